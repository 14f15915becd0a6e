"""`make requirements` tells what is covered; it must not be more optimistic than the run was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tools import requirements

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """# Page

### 2.1 Waiting (WAIT)

- **WAIT-1** · MUST · all — Waits grow.
  - *Accepted when* they grow.
- **WAIT-2** · MUST (or SHOULD) · all — Waits end.
  - *Accepted when* they end.

### 2.2 Papers (DOC)

- **DOC-1** · MAY · one — *(not planned)* Pages have footers.
  - *Accepted when* they do.

| X-1 | Two readings | the first | because |
| G-1 | How long | 10 s |
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/requirements.md").write_text(PAGE, encoding="utf-8")
    return tmp_path


def ran(root: Path, **tests: tuple[str, list[str]]) -> None:
    record = {
        "last_run": "2026-01-02T03:04:05+00:00",
        "last_whole_run": None,
        "tests": {name: {"outcome": outcome, "req": marks} for name, (outcome, marks) in tests.items()},
    }
    (root / ".requirements-run.json").write_text(json.dumps(record), encoding="utf-8")


def report(root: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = requirements.main(list(arguments), root)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_without_a_run_everything_planned_is_open(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = report(root, capsys)
    assert code == 0
    assert "last run: never" in text
    assert "WAIT-1 WAIT-2" in text
    assert "and 1 not planned" in text


def test_only_passed_tests_cover(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(
        root,
        good=("passed", ["WAIT-1", "G-1"]),
        bad=("failed", ["WAIT-2"]),
        none=("skipped", ["WAIT-2"]),
        expected=("xfail", ["WAIT-2"]),
    )
    code, text = report(root, capsys)
    assert code == 0
    assert "last run: 2026-01-02T03:04:05+00:00" in text
    assert "WAIT             1     1  Waiting" in text
    assert text.count("WAIT-2") == 1
    assert "choices shown by tests: G-1" in text


def test_json_says_the_same(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(root, good=("passed", ["WAIT-1"]), bad=("failed", ["WAIT-2"]))
    code, text = report(root, capsys, "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["groups"][0] == {
        "group": "WAIT",
        "title": "Waiting",
        "covered": ["WAIT-1"],
        "open": ["WAIT-2"],
        "not_planned": [],
    }
    assert facts["tests"] == {"WAIT-1": ["good"]}


def test_an_id_that_is_not_on_the_page_is_an_error_with_its_test(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(root, good=("passed", ["WAIT-1"]), typo=("skipped", ["WAIT-11"]))
    code, text = report(root, capsys)
    assert code == 1
    assert "unknown id WAIT-11, named by typo" in text


def test_one_id_shows_statement_check_and_tests(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(root, good=("passed", ["WAIT-2"]), bad=("failed", ["WAIT-2"]))
    code, text = report(root, capsys, "--id", "WAIT-2")
    assert code == 0
    assert "WAIT-2 · MUST (or SHOULD) · all\nWaits end.\nAccepted when they end.\n" in text
    assert "shown by good" in text
    assert "not counted, did not pass: bad" in text
    assert "open" in report(root, capsys, "--id", "WAIT-1")[1]
    assert "Choice: the first" in report(root, capsys, "--id", "X-1")[1]
    assert report(root, capsys, "--id", "WAIT-9")[0] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("- **WAIT-1** · MUST · all — Again.\n  - *Accepted when* so.\n", "WAIT-1 is there twice"),
        ("- **WAIT-3** · MUST · all — No check.\n", "no *Accepted when* under WAIT-3"),
        ("- **WAIT-3**, MUST, all: another form.\n  - *Accepted when* so.\n", "not in the form"),
        ("- **LOST-1** · MUST · all — No heading.\n  - *Accepted when* so.\n", "for LOST"),
    ],
)
def test_a_line_the_tool_would_lose_is_an_error(root: Path, line: str, message: str) -> None:
    page = root / "docs/requirements.md"
    page.write_text(PAGE + "\n" + line, encoding="utf-8")
    with pytest.raises(SystemExit) as stopped:
        requirements.read_page(page)
    assert message in str(stopped.value)


def test_our_own_page_reads() -> None:
    page = requirements.read_page(requirements.ROOT / requirements.PAGE)
    groups = {one.group for one in page.requirements.values()}
    assert {"PROD", "BACKOFF", "CLASS", "TIME", "TUNE", "TEST", "X", "G"} <= groups
