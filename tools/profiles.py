"""Hold what is made from policy files and their table against what is kept: digests, schema, list,
reference page.

    python tools/profiles.py           say what is out of step
    python tools/profiles.py --write   write it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from oncemore.policy.files.file_reader import DIGESTS_FILE, PROFILES_FOLDER, compute_digests
from oncemore.policy.files.json_schema import reference_tables, schema
from oncemore.queries.policy_catalogue import PACKAGED_ROWS_FILE, packaged_json

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "policy-files.md"
BEGIN = "<!-- fields: made by tools/profiles.py -->\n"
END = "<!-- end of fields -->\n"


def wanted(page: str) -> dict[Path, str]:
    """Return what each kept file should hold; the page keeps all but its tables."""
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    return {
        PROFILES_FOLDER / DIGESTS_FILE: compute_digests(),
        PACKAGED_ROWS_FILE: packaged_json(),
        PROFILES_FOLDER / "policy.schema.json": json.dumps(schema(), indent=1, ensure_ascii=False) + "\n",
        PAGE: f"{head}{BEGIN}\n{reference_tables()}\n{END}{tail}",
    }


def stale() -> dict[Path, str]:
    """Return the files that are out of step, with what they should hold."""
    files = wanted(PAGE.read_text(encoding="utf-8") if PAGE.exists() else "")
    return {
        path: text
        for path, text in files.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }


def main(arguments: list[str]) -> int:
    """Say what is out of step, or write it."""
    if "--write" not in arguments:
        found = stale()
        for path in found:
            print(f"out of step: {path.relative_to(ROOT)}")
        return 1 if found else 0
    for _ in range(2):  # the list is read through the digests, which must be right first
        for path, text in stale().items():
            path.write_text(text, encoding="utf-8")
            print(f"written: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
