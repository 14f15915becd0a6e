"""The site: the navigation names every page, links lead on, and nothing is loaded from other hosts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import api, api_pages, site, site_pages

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = site_pages.read_sections(ROOT.joinpath(site_pages.INDEX).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return site_pages.build_pages() | api_pages.build_pages()


# Navigation.


def test_the_navigation_names_every_page_and_every_page_exists() -> None:
    assert site_pages.list_unlisted(SECTIONS, site_pages.list_pages()) == ([], [])


def test_a_page_without_navigation_and_a_name_without_page_are_found() -> None:
    sections = site_pages.read_sections("## I want to … start\n\n[a](a.md) [gone](gone.md)\n")
    assert sections[0].title == "Start"
    assert site_pages.list_unlisted(sections, ["README.md", "docs/index.md", "docs/a.md", "docs/b.md"]) == (
        ["docs/b.md"],
        ["docs/gone.md"],
    )


def test_tasks_come_first_and_each_page_stands_once(pages: dict[str, str]) -> None:
    trees = re.findall(r"(?s)```\{toctree\}\n(.*?)```", pages["index.md"])
    rows = [row for tree in trees for row in tree.split("\n\n", 1)[1].split()]
    assert "All tasks on one page <all-tasks>" in trees[0]
    assert rows[:4] == ["tasks/start", "tasks/retry-calls", "tasks/do-work-once", "tasks/operate-it"]
    assert rows[-2:] == ["api/index", "tasks/decision-records"]
    listed = [page for section in SECTIONS for page in section.pages]
    assert len(listed) == len(set(listed))


# Links.


def find_broken(pages: dict[str, str]) -> list[str]:
    """Links of arranged pages that lead to no page and no picture."""
    pictures = {f"pictures/{path.name}" for path in (ROOT / "docs" / "pictures").glob("*.*")}
    return [
        f"{place}: {target}"
        for place, text in pages.items()
        for target in site_pages.list_targets(text)
        if site_pages.resolve_target(place, target) not in pages.keys() | pictures
    ]


def test_every_link_of_the_site_leads_to_a_page_of_it(pages: dict[str, str]) -> None:
    assert find_broken(pages) == []
    assert find_broken({"a/b.md": "[x](../gone.md) [y](b.md)"}) == ["a/b.md: ../gone.md"]


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("README.md", "[x](docs/how-to/a.md#b)", "[x](how-to/a.md#b)"),
        ("docs/how-to/a.md", "[x](../../CHANGELOG.md)", "[x](../project/changelog.md)"),
        ("docs/how-to/a.md", "[x](../index.md)", "[x](../all-tasks.md)"),
        ("docs/how-to/a.md", "[x](b.md) and [y](#z)", "[x](b.md) and [y](#z)"),
        ("docs/a.md", "[x](../src/p.yaml)", "[x](files/src/p.yaml.md)"),
        ("docs/a.md", "[x](b/p.yaml)", "[x](files/docs/b/p.yaml.md)"),
        ("docs/a.md", "[x](https://example.org/docs/b.md)", "[x](https://example.org/docs/b.md)"),
        ("docs/a.md", "`[x](../src/p.yaml)`", "`[x](../src/p.yaml)`"),
        ("docs/a.md", "```text\n[x](../p.yaml)\n```\n", "```text\n[x](../p.yaml)\n```\n"),
        ("README.md", "[![p](docs/pictures/p.svg)](docs/a.md)", "[![p](pictures/p.svg)](a.md)"),
        ("README.md", '<img src="docs/pictures/p.png">', '<img src="pictures/p.png">'),
    ],
)
def test_a_link_follows_its_page(page: str, text: str, expected: str) -> None:
    assert site_pages.rewrite_links(page, site_pages.place_of(page), text) == expected


def test_a_linked_file_is_shown_whole(tmp_path: Path) -> None:
    tmp_path.joinpath("both").mkdir()
    tmp_path.joinpath("both/a.py").write_text("x = '```'\n")
    tmp_path.joinpath("both/b.yaml").write_text("y: 1\n")
    page = site_pages.make_file_page("both", tmp_path)
    assert "## a.py\n\n````python\nx = '```'\n````\n" in page
    assert "## b.yaml\n\n```yaml\ny: 1\n```\n" in page


# The Python reference.


def test_the_reference_has_every_line_of_the_interface(pages: dict[str, str]) -> None:
    text = "".join(page for place, page in pages.items() if place.startswith("api/"))
    # Long lines are broken.
    unbroken = " ".join(text.split())
    absent = [
        line
        for line in api.FILE.read_text(encoding="utf-8").splitlines()
        # Bases and makers of a class are sentences; the version is not a name to look up.
        if not re.search(r": (class\(|made by )|__version__", line) and line not in unbroken
    ]
    assert absent == []
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert len(headings) > 100
    undescribed = re.findall(r"(?m)^## (\w+)\n\n```python\n.*\n```\n\n(?=#)", text)
    # Modules have pages of their own, and values their type.
    assert set(undescribed) <= {"backoff", "events", "jitter"}


def test_rows_of_a_docstring_become_a_table_and_choices_stay_with_their_argument() -> None:
    text = """Do it.

    effect       its effect:
                   pure    nothing
                   once    a | b
    name, other  two
                 lines
    wide, column one space

    Raises an error.
    """
    assert api_pages.convert_docstring(text) == (
        "Do it.\n\n| name | meaning |\n| --- | --- |\n"
        "| `effect` | its effect:<br>`pure`: nothing<br>`once`: a \\| b |\n"
        "| `name, other` | two lines |\n| `wide, column` | one space |\n\nRaises an error."
    )


# The built site.


def build(folder: Path, html: str, css: str = "") -> list[tuple[str, str]]:
    folder.joinpath("index.html").write_text(html)
    folder.joinpath("other.html").write_text('<h1 id="here">x</h1>')
    folder.joinpath("site.css").write_text(css)
    return [(fault.address, fault.problem) for fault in site.find_faults(folder)]


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        '<link rel="preconnect" href="https://fonts.example">',
        '<img src="http://pictures.example/x.png">',
        '<img srcset="https://pictures.example/x.png 2x">',
        '<iframe src="https://video.example"></iframe>',
        '<div style="background: url(https://pictures.example/x.png)"></div>',
        '<style>@import "https://fonts.example/x.css";</style>',
    ],
)
def test_what_a_browser_would_load_from_another_host_is_found(html: str, tmp_path: Path) -> None:
    assert [problem for _, problem in build(tmp_path, html)] == ["loaded from another host"]


def test_a_style_sheet_that_loads_from_another_host_is_found(tmp_path: Path) -> None:
    assert build(tmp_path, "", "@font-face { src: url('https://fonts.example/x.woff2') }") == [
        ("https://fonts.example/x.woff2", "loaded from another host")
    ]


def test_broken_links_of_a_built_page_are_found(tmp_path: Path) -> None:
    html = (
        '<a href="gone.html"></a><a href="other.html#gone"></a><a href="../x.html"></a><img src="gone.png">'
    )
    assert sorted(build(tmp_path, html)) == [
        ("../x.html", "the page does not exist"),
        ("gone.html", "the page does not exist"),
        ("gone.png", "the file does not exist"),
        ("other.html#gone", "the page has no such anchor"),
    ]


def test_own_files_links_to_other_hosts_and_data_are_no_faults(tmp_path: Path) -> None:
    html = (
        '<link rel="stylesheet" href="site.css?v=1"><link rel="canonical" href="https://example.org/">'
        '<a href="https://example.org">x</a><a href="other.html#here">x</a><a href="#">x</a>'
        '<img src="data:image/png;base64,AA=="><svg><use href="#icon"></use></svg>'
    )
    assert build(tmp_path, html, "a { background: url(data:image/svg+xml;x) }") == []
