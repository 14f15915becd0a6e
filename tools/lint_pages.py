"""Write the pages about the rules of the linter from the docstrings of the rules.

    python tools/lint_pages.py           list the pages that differ; exit code 1 if there is one
    python tools/lint_pages.py --write   write them

`oncemore lint --explain OM101` prints the same text, so that it is written once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from oncemore.lint.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference" / "lint"


def list_pages() -> dict[Path, str]:
    """Return the text of each page."""
    return {FOLDER / f"{rule.id.lower()}.md": rule.page.strip() + "\n" for rule in RULES.values()}


def find_differences() -> list[Path]:
    """Return the pages that are missing or differ, and files that no rule owns."""
    pages = list_pages()
    stale = [path for path, text in pages.items() if not path.is_file() or path.read_text("utf-8") != text]
    return stale + [path for path in sorted(FOLDER.glob("*.md")) if path not in pages]


def main() -> int:
    """List or write the pages."""
    if "--write" in sys.argv[1:]:
        for path, text in list_pages().items():
            path.write_text(text, encoding="utf-8")
    differences = find_differences()
    for path in differences:
        print(f"{path.relative_to(ROOT)} differs: run python tools/lint_pages.py --write")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
