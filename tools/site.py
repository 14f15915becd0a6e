"""Build the site of the documentation into build/site, and check what was built.

    python -m tools.site

The pages are arranged below build/pages (tools/site_pages.py, tools/api_pages.py), and Sphinx builds them. A
warning of Sphinx ends the build. Afterwards every link inside the site is followed, and every address that
a browser would load by itself must be a file of the site.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from tools import api_pages, site_pages

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build" / "pages"
TARGET = ROOT / "build" / "site"
#: The elements whose address a browser loads when it shows the page; of `link` all but those in NAMES.
LOADED = {
    "audio",
    "embed",
    "iframe",
    "image",
    "img",
    "input",
    "object",
    "script",
    "source",
    "track",
    "use",
    "video",
}
ADDRESSES = ("src", "srcset", "data", "poster", "href", "xlink:href")
#: Kinds of `link` that only name another page.
NAMES = {"author", "canonical", "copyright", "help", "index", "license", "next", "prev", "search", "top"}
#: An address in a style sheet: a url() or the file of an @import.
STYLE_ADDRESS = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")


class PageParser(HTMLParser):
    """Collects the addresses that a page loads, those that it links to, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read the addresses and the anchor of one element."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.loaded += _read_style(values.get("style", ""))
        self._in_style = tag == "style"
        if tag == "a" and "href" in values:
            self.linked.append(values["href"])
        elif tag in LOADED or (tag == "link" and not set(values.get("rel", "").split()) <= NAMES):
            found = [values[name] for name in ADDRESSES if name in values]
            # A srcset has several addresses, each followed by a size.
            self.loaded += [part.split()[0] for text in found for part in text.split(", ") if part.strip()]

    def handle_data(self, data: str) -> None:
        """Read the addresses in a style sheet of the page."""
        if self._in_style:
            self.loaded += _read_style(data)

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a style sheet."""
        self._in_style = False


def _read_style(text: str) -> list[str]:
    return [first or second for first, second in STYLE_ADDRESS.findall(text)]


class SiteFault(NamedTuple):
    """A fault of the built site: the file, the address in it and what is wrong."""

    file: str
    address: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.address}: {self.problem}"


def find_faults(site: Path) -> list[SiteFault]:
    """Return the broken links of a built site, and the addresses of other hosts that a browser would load."""
    site = site.resolve()
    pages = {path: _parse(path) for path in sorted(site.rglob("*.html"))}
    styles = sorted([*site.rglob("*.css"), *site.rglob("*.svg")])
    loaded = [(path, address) for path, page in pages.items() for address in page.loaded]
    loaded += [
        (path, address) for path in styles for address in _read_style(path.read_text(encoding="utf-8"))
    ]
    linked = [(path, address) for path, page in pages.items() for address in page.linked]
    found = [(path, address, check_load(address, path, site)) for path, address in loaded]
    found += [(path, address, check_link(address, path, site, pages)) for path, address in linked]
    return [SiteFault(path.relative_to(site).as_posix(), *rest) for path, *rest in found if rest[1]]


def _parse(path: Path) -> PageParser:
    parser = PageParser()
    parser.feed(path.read_text(encoding="utf-8"))
    parser.close()
    return parser


def check_load(address: str, path: Path, site: Path) -> str:
    """Return what is wrong with an address that a browser loads; "" if it is a file of the site."""
    parts = urlsplit(address)
    if parts.scheme == "data" or (not parts.scheme and not parts.netloc and not parts.path):
        return ""
    if parts.scheme or parts.netloc:
        return "loaded from another host"
    return "" if _find_file(parts.path, path, site) else "the file does not exist"


def _find_file(link: str, path: Path, site: Path) -> Path | None:
    """Return the file that a relative address leads to; None if there is none below the site."""
    target = (path.parent / unquote(link)).resolve() if link else path
    target = target / "index.html" if target.is_dir() else target
    return target if target.is_file() and target.is_relative_to(site) else None


def check_link(address: str, path: Path, site: Path, pages: dict[Path, PageParser]) -> str:
    """Return what is wrong with a link; "" for links to other hosts, which the reader follows or not."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = _find_file(parts.path, path, site)
    if target is None:
        return "the page does not exist"
    page = pages.get(target)
    anchor = unquote(parts.fragment)
    return "the page has no such anchor" if page and anchor and anchor not in page.anchors else ""


def main() -> int:
    """Arrange the pages, build the site and check it."""
    for folder in (SOURCE, TARGET):
        shutil.rmtree(folder, ignore_errors=True)
    site_pages.write_pages(site_pages.build_pages() | api_pages.build_pages(), SOURCE)
    shutil.copytree(ROOT / "docs" / "pictures", SOURCE / "pictures", ignore=shutil.ignore_patterns("*.json"))
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-j", "auto"]
    config = ["-c", str(ROOT / "docs" / "theme"), "-d", str(ROOT / "build" / "doctrees")]
    code = subprocess.run([*command, *config, str(SOURCE), str(TARGET)], cwd=ROOT, check=False).returncode
    if code:
        return code
    # Sphinx copies the pictures of Markdown links only, and a table has some as HTML.
    shutil.copytree(SOURCE / "pictures", TARGET / "pictures")
    faults = find_faults(TARGET)
    print(*faults, sep="\n", end="\n" if faults else "")
    pages = sum(1 for _ in TARGET.rglob("*.html"))
    print(f"{TARGET.relative_to(ROOT)}/index.html: {pages} pages, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
