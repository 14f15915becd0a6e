"""Arrange the pages of the repository as the source of a site: one page per file, tasks first.

The pages stay as they are for a reader of the repository. For the site they get other places (the README is
the landing page), links that follow them, and a navigation that is read from docs/index.md. Files of the
repository that a page links to, such as a profile or an example, become pages that show their text, because
the site must not depend on another host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
INDEX = "docs/index.md"
LANDING = "index.md"
#: Pages that stand outside of docs/, or under another name than on the site.
PLACES = {
    "README.md": LANDING,
    INDEX: "all-tasks.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
}
#: Folders below docs/ that hold no pages.
NOT_PAGES = ("docs/theme/",)
#: The language of a shown file, for its colours.
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".sh": "sh"}
#: A fenced block or a code span, which may show a link without being one; or the target of a link or picture.
LINK = re.compile(
    r"(?ms)^(?P<indent> *)```.*?^(?P=indent)```[ \t]*$|`[^`\n]*`|"
    r"(?:(?<=\]\()|(?<=<img src=\"))(?P<target>[^)\s\"]+)(?=[)\s\"])"
)


class Section(NamedTuple):
    """A part of the navigation: its title, its place, its text and the pages it links to, in order."""

    title: str
    place: str
    text: str
    pages: tuple[str, ...]


def list_pages(root: Path = ROOT) -> list[str]:
    """Return the paths of all pages that the site shows, relative to the repository."""
    pages = sorted(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))
    outside = [path for path in PLACES if path != INDEX and (root / path).exists()]
    return [*outside, *(path for path in pages if not path.startswith(NOT_PAGES))]


def place_of(path: str) -> str:
    """Return the place of a file of the repository on the site."""
    if path in PLACES:
        return PLACES[path]
    # A policy file below docs/ is shown as a page, like a file of any other folder.
    if path.startswith("docs/pictures/") or (path.startswith("docs/") and path.endswith(".md")):
        return path.removeprefix("docs/")
    return f"files/{path}.md"


def read_sections(text: str) -> list[Section]:
    """Return the sections of docs/index.md; a page belongs to the first section that links to it."""
    # The list of decision records has no heading of its own, and is a section of the navigation all the same.
    text = text.replace("\nDecision records (", "\n## Decision records\n\nDecision records (", 1)
    known = set(PLACES) - {"SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    sections = []
    for title, body in re.findall(r"(?ms)^## (.+?)\n(.*?)(?=^## |\Z)", text):
        pages = []
        for target in list_targets(body):
            path = posixpath.normpath(posixpath.join("docs", target.partition("#")[0]))
            if path.endswith(".md") and path not in known:
                known.add(path)
                pages.append(path)
        # "I want to … retry calls" is "Retry calls" in a list of sections.
        words = title.removeprefix("I want to … ")
        name = words[:1].upper() + words[1:]
        place = f"tasks/{re.sub(r'[^a-z]+', '-', words.lower())}.md"
        sections.append(Section(name, place, body, tuple(pages)))
    return sections


def list_targets(text: str) -> list[str]:
    """Return the relative targets of the links in a text, without those that code only shows."""
    found = (match["target"] for match in LINK.finditer(text))
    return [target for target in found if target and not re.match(r"[a-z]+:|#", target)]


def resolve_target(page: str, target: str) -> str:
    """Return the path in the repository that a link on a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target.partition("#")[0]))


def rewrite_links(page: str, place: str, text: str) -> str:
    """Return the text of a page with links that lead from its place on the site."""

    def rewrite(match: re.Match[str]) -> str:
        target = match["target"]
        if not target or re.match(r"[a-z]+:|#", target):
            return match[0]
        _, mark, anchor = target.partition("#")
        to = place_of(resolve_target(page, target))
        return posixpath.relpath(to, posixpath.dirname(place) or ".") + mark + anchor

    return LINK.sub(rewrite, text)


def make_file_page(path: str, root: Path = ROOT) -> str:
    """Return a page that shows a file, or all files of a folder, as text."""
    source = root / path
    parts = [f"# {path}\n"]
    files = [source] if source.is_file() else sorted(one for one in source.rglob("*") if one.is_file())
    for file in files:
        if "__pycache__" in file.parts:
            continue
        if file != source:
            parts.append(f"## {file.relative_to(source).as_posix()}\n")
        text = file.read_text(encoding="utf-8")
        # The fence is longer than any in the text, so that a file with Markdown in it does not end it.
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
        parts.append(f"{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text.rstrip()}\n{fence}\n")
    return "\n".join(parts)


def make_toctree(names: list[str], place: str, caption: str = "") -> str:
    """Return the directive that puts pages, named by their places, below a page in the navigation."""
    start = posixpath.dirname(place) or "."
    # A name with a title of its own stands in angle brackets, and is relative already.
    rows = [
        name if name.endswith(">") else posixpath.relpath(name, start).removesuffix(".md") for name in names
    ]
    head = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), ""]
    return "\n".join(["", *head, *rows, "```", ""])


def make_section_page(section: Section) -> str:
    """Return the page of a section: its table of tasks, with its pages below it in the navigation."""
    text = f"# {section.title}\n\n{rewrite_links(INDEX, section.place, section.text)}"
    return text + make_toctree([place_of(path) for path in section.pages], section.place)


def list_unlisted(sections: list[Section], pages: list[str]) -> tuple[list[str], list[str]]:
    """Return the pages that the navigation does not name, and those it names that do not exist."""
    listed = {path for section in sections for path in section.pages} | {"README.md", INDEX}
    return sorted(set(pages) - listed), sorted(listed - set(pages))


def build_pages(root: Path = ROOT) -> dict[str, str]:
    """Return the text of every page of the site by its place, without the API reference."""
    sections = read_sections((root / INDEX).read_text(encoding="utf-8"))
    site = {section.place: make_section_page(section) for section in sections}
    linked: set[str] = set()
    for page in list_pages(root):
        text = (root / page).read_text(encoding="utf-8")
        linked |= {resolve_target(page, target) for target in list_targets(text)}
        site[place_of(page)] = rewrite_links(page, place_of(page), text)
    shown = {path for path in linked if place_of(path).startswith("files/")}
    site |= {place_of(path): make_file_page(path, root) for path in shown}
    # Shown files are reached by links only; a page in no navigation must say so.
    site |= {place_of(path): f"---\norphan: true\n---\n\n{site[place_of(path)]}" for path in shown}
    # Its own title says only "Documentation", which the whole site is.
    everything = f"All tasks on one page <{PLACES[INDEX].removesuffix('.md')}>"
    tasks = [*(section.place for section in sections if section.title != "Decision records"), everything]
    records = [section.place for section in sections if section.title == "Decision records"]
    site[LANDING] += make_toctree(tasks, LANDING, "I want to …")
    site[LANDING] += make_toctree(["api/index.md", *records], LANDING, "In detail")
    return site


def write_pages(pages: dict[str, str], target: Path) -> None:
    """Write pages below a folder."""
    for place, text in pages.items():
        path = target / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
