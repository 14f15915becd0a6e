"""The docs tell the truth: links lead somewhere, words are explained, and the code in them runs."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import pytest

import oncemore.testing

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

#: Pages whose Python runs, and how many blocks on each may say that they do not. A new exception
#: changes a number here, so that somebody looks at it.
RUN = sorted([ROOT / "README.md", *(DOCS / "tutorial").rglob("*.md"), *(DOCS / "how-to").rglob("*.md")])
LEFT_OUT: dict[str, int] = {
    "docs/how-to/see-why-it-waited.md": 1,
    # Code of another library: a part of a program in examples/ (tests/docs/test_changing_over.py).
    "docs/how-to/from-celery-retries.md": 2,
    "docs/how-to/from-dbos.md": 7,
    "docs/how-to/from-temporal-activities.md": 3,
    "docs/how-to/prove-to-an-auditor.md": 1,
    "docs/how-to/recover-after-a-crash.md": 1,
    "docs/how-to/take-work-from-a-queue.md": 1,
    "docs/how-to/use-it-in-your-engine.md": 2,
    "docs/tutorial/02-first-step.md": 1,
    "docs/tutorial/03-a-pipeline.md": 3,
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# Links.


def without_code(text: str) -> str:
    """The text with code blocks and spans blanked; they may show a link without being one."""
    blank = re.sub(r"(?ms)^```.*?^```\s*$", lambda found: "\n" * found[0].count("\n"), text)
    return re.sub(r"`[^`\n]*`", "", blank)


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"(?m)^#+ +(.+?) *#*$", re.sub(r"(?ms)^```.*?^```\s*$", "", text))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return set(plain)


def broken_links(page: Path, text: str) -> list[str]:
    """The relative links of a page that lead nowhere."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        to = (page.parent / file).resolve() if file else page
        if not leads(to, anchor, text if to == page else None):
            broken.append(target)
    return broken


def leads(to: Path, anchor: str, text: str | None) -> bool:
    """Whether there is such a file here, and such a heading in it; a text stands for its page."""
    if text is None:
        if not to.exists() or not to.is_relative_to(ROOT):
            return False
        text = read(to) if to.suffix == ".md" else ""
    return not anchor or anchor in anchors_of(text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, read(page)) == []


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ("[x](design.md)", False),
        ("[x](../README.md)", False),
        ("[x](design.md#10-layout-and-tests)", False),
        ("[x](#here)", False),
        ("[x](https://example.org/gone)", False),
        ("`[x](gone.md)`", False),
        ("[x](gone.md)", True),
        ("[x](design.md#gone)", True),
        ("[x](#gone)", True),
        ("[x](../../outside.md)", True),
    ],
)
def test_a_link_that_leads_nowhere_is_found(link: str, broken: bool) -> None:
    assert bool(broken_links(DOCS / "page.md", f"# Here\n\n{link}\n")) is broken


@pytest.mark.parametrize("page", [page for page in PAGES if page.is_relative_to(DOCS)], ids=name_of)
def test_every_page_can_be_reached_from_the_index(page: Path) -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / found).resolve() for found in re.findall(r"\]\(([^)#\s]+)", read(index))}
    assert page == index or page in linked, f"add {page.name} to docs/index.md"


# Words.


def words_of(text: str) -> list[str]:
    """The words explained in the rows of a table, in order; `A / B` explains two."""
    return [
        word
        for row in re.findall(r"(?m)^\| \*\*(.+?)\*\* \|", text)
        for word in (part.strip().lower() for part in row.split("/"))
    ]


def test_the_glossary_is_in_order_and_says_each_word_once() -> None:
    words = words_of(read(DOCS / "glossary.md"))
    assert words == sorted(set(words))


def test_the_glossary_has_every_word_of_the_design() -> None:
    design = words_of(read(DOCS / "design.md"))
    assert len(design) > 15
    assert sorted(set(design) - set(words_of(read(DOCS / "glossary.md")))) == []


def test_both_words_of_a_row_are_read() -> None:
    assert words_of("| word | means |\n| **Lease / Fence** | x |\n| **Key** | y |\n") == [
        "lease",
        "fence",
        "key",
    ]


# The house.


def house_of(text: str) -> dict[str, bool]:
    """The paths drawn in the listing of the source folder, and whether each is there already."""
    listing = re.search(r"(?ms)^```text\nsrc/oncemore/\n(.*?)^```", text)
    assert listing, "the listing begins with src/oncemore/"
    drawn, folder = {}, ""
    for line in listing[1].splitlines():
        if found := re.match(r"(?P<inside>│   )?[├└]── (?P<name>\S+)", line):
            path = found["name"] if not found["inside"] else folder + found["name"]
            folder = path if path.endswith("/") else folder
            drawn[path] = not line.endswith("(to come)")
    return drawn


def is_built(path: Path) -> bool:
    """Whether there is a file, or a folder that git would keep."""
    return path.is_file() or any(path.rglob("*.py"))


def house_faults(drawn: dict[str, bool], source: Path) -> list[str]:
    """Where the listing and the folder differ; only the top of the house must be drawn in full."""
    there = {path: is_built(source / path) for path in drawn}
    top = sorted(path.name for path in source.iterdir() if path.name != "__pycache__" and is_built(path))
    return (
        [f"{path} is drawn and not there" for path in drawn if drawn[path] and not there[path]]
        + [f"{path} is there and said to come" for path in drawn if there[path] and not drawn[path]]
        + [f"{name} is not drawn" for name in top if not {name, f"{name}/"} & drawn.keys()]
    )


def test_the_drawing_of_the_house_is_the_house() -> None:
    assert house_faults(house_of(read(DOCS / "style.md")), ROOT / "src/oncemore") == []


def test_a_drawing_that_is_not_the_house_is_found(tmp_path: Path) -> None:
    tmp_path.joinpath("core").mkdir()
    for name in ("api.py", "attic.py", "core/key.py", "core/gate.py"):
        tmp_path.joinpath(name).touch()
    page = """```text
src/oncemore/
├── api.py        x
├── gone.py       x
└── core/         x
│   ├── key.py    x
│   ├── gate.py   x (to come)
│   └── later.py  x (to come)
```
"""
    assert house_faults(house_of(page), tmp_path) == [
        "gone.py is drawn and not there",
        "core/gate.py is there and said to come",
        "attic.py is not drawn",
    ]


# Code.


class Block(NamedTuple):
    """A block of Python on a page: its first line, its text, why it does not run, and what it prints.

    A block fenced as ```text right after it is what it prints, word for word.
    """

    line: int
    code: str
    left_out: str
    printed: str | None = None


def blocks_of(text: str) -> list[Block]:
    """Every block fenced as ```python; `<!-- not run: reason -->` right before it leaves it out."""
    pattern = re.compile(
        r"(?ms)^(?:<!-- not run: (?P<reason>[^\n]+?) -->\s*\n)?```(?P<kind>\S*)[^\n]*\n(?P<code>.*?)^```\s*$"
    )
    shown = re.compile(r"(?ms)\s*^```text\n(?P<printed>.*?)^```\s*$")
    return [
        Block(
            text.count("\n", 0, found.start("code")) + 1,
            found["code"],
            found["reason"] or "",
            output["printed"] if (output := shown.match(text, found.end())) else None,
        )
        for found in pattern.finditer(text)
        if found["kind"] == "python"
    ]


def run_page(name: str, text: str) -> None:
    """Run the blocks of a page in order, as the parts of one module."""
    module = ModuleType("page")
    sys.modules["page"] = module
    try:
        for block in blocks_of(text):
            if block.left_out:
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                # Empty lines before it make a traceback point at the line of the page.
                exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), module.__dict__)  # noqa: S102
            sys.stdout.write(printed.getvalue())
            if block.printed is not None:
                assert printed.getvalue().split() == block.printed.split(), f"{name}:{block.line}"
    finally:
        del sys.modules["page"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, for what a page may write, and waits that end at once."""
    monkeypatch.chdir(tmp_path)
    with oncemore.testing.instant_waits(), settings_of_its_own():
        yield


@contextlib.contextmanager
def settings_of_its_own() -> Iterator[None]:
    """Let a page configure Django, which a process can do only once."""
    from django.conf import settings
    from django.utils.functional import empty

    earlier = settings._wrapped
    settings._wrapped = empty
    try:
        yield
    finally:
        settings._wrapped = earlier


@pytest.mark.parametrize("page", RUN, ids=name_of)
@pytest.mark.usefixtures("elsewhere")
def test_the_code_on_a_page_runs(page: Path) -> None:
    run_page(str(page), read(page))


def test_blocks_left_out_are_counted() -> None:
    counts = {name_of(page): sum(bool(block.left_out) for block in blocks_of(read(page))) for page in RUN}
    assert {name: count for name, count in counts.items() if count} == LEFT_OUT


def test_python_is_fenced_as_python_where_it_is_run() -> None:
    # `py` or `pycon` would look the same to a reader and never run.
    odd = {
        name_of(page): re.findall(r"(?m)^```(?:py|py3|python3|pycon|Python)\b.*", read(page)) for page in RUN
    }
    assert {name: found for name, found in odd.items() if found} == {}


@pytest.mark.usefixtures("elsewhere")
def test_blocks_of_a_page_share_their_names_and_a_failing_one_fails() -> None:
    run_page("page.md", "```python\nx = 1\n```\ntext\n```python\nassert x == 1\n```\n")
    with pytest.raises(ZeroDivisionError) as failed:
        run_page("page.md", "text\n\n```python\ny = 1\n1 / 0\n```\n")
    assert failed.traceback[-1].lineno + 1 == 5


def test_what_a_page_says_is_printed_is_printed() -> None:
    page = "```python\nprint('one',\n      'two')\n```\n\n```text\none two\n```\n"
    run_page("page", page)
    with pytest.raises(AssertionError, match="page:2"):
        run_page("page", page.replace("one two\n", "one three\n"))


@pytest.mark.usefixtures("elsewhere")
def test_a_page_does_not_wait() -> None:
    started = time.monotonic()
    run_page(
        "page.md",
        "```python\nimport oncemore\n@oncemore.retry(on=OSError, wait=[60, 61], jitter='none')\n"
        "def fail(): raise OSError\ntry: fail()\nexcept OSError: pass\n```\n",
    )
    assert time.monotonic() - started < 30


def test_a_block_is_left_out_only_by_a_reason_right_before_it() -> None:
    page = (
        "<!-- not run: needs a server -->\n```python\na\n```\n\n"
        "```python\nb\n```\n"
        "```text\nc\n```\n"
        "<!-- note -->\n```python\nd\n```\n"
    )
    assert [(block.code, block.left_out) for block in blocks_of(page)] == [
        ("a\n", "needs a server"),
        ("b\n", ""),
        ("d\n", ""),
    ]


def test_the_readme_shows_the_two_commands() -> None:
    text = read(ROOT / "README.md")
    for command in ("make demo", "make test", "python3 -m venv .venv"):
        assert command in text
