"""Ours is never longer, and the page that says so has the numbers of the files."""

from __future__ import annotations

import pytest

from tools import compare


@pytest.mark.parametrize("program", compare.PROGRAMS)
def test_ours_is_never_longer(program: str) -> None:
    lines = compare.count_program(program)
    assert lines["oncemore"] == min(lines.values()), lines


def test_every_program_is_written_with_every_library() -> None:
    folders = {path.parent.name for path in compare.COMPARE.glob("*/with_*.py")}
    assert folders == set(compare.PROGRAMS)
    written = {program: tuple(compare.count_program(program)) for program in compare.PROGRAMS}
    # The application of DBOS's documentation is compared with DBOS alone.
    assert written.pop("widget_store") == ("dbos", "oncemore")
    assert set(written.values()) == {compare.LIBRARIES}
    assert len(written) == 8


def test_the_page_has_the_numbers_of_the_files() -> None:
    written = compare.PAGE.read_text(encoding="utf-8")
    assert compare.build_table() in written, "run python tools/compare.py --write"
    assert compare.replace_table(written) == written


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""A docstring\n\nof three lines."""\n\nimport os\n', 1),
        ("# A comment.\nx = 1  # another\n\n\ny = 2\n", 2),
        ('def f():\n    """Text."""\n    return (\n        1,\n    )\n', 4),
        ('text = """two\nlines"""\n', 2),
        ("", 0),
    ],
)
def test_lines_with_code_are_counted(source: str, lines: int) -> None:
    assert compare.count_lines(source) == lines
