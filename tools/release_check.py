"""Run everything that a release needs, part by part, and print one table.

    python tools/release_check.py            all parts
    python tools/release_check.py docs       only these

A part is a target of make. Every part runs, also after one that failed, so that one run shows all faults.
Parts that run apart or do not exist yet are rows of the table too: a release is not ready without them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: The targets of make, in an order in which none waits for a later one, with what each of them shows.
PARTS = {
    "check": "lint, format and types",
    "build": "wheel and source archive",
    "reproducible": "two builds have the same bytes",
    "package-check": "contents, and every extra in an empty environment",
    "sbom": "SBOMs, licences and manifest",
    "supply-chain": "images, actions and dependencies are pinned",
    "check-workflows": "workflows by their schema, zizmor and actionlint",
    "check-containers": "Dockerfile, compose file and Kubernetes manifest by their validators",
    "docs-versions": "the sites of all releases, without warnings or broken links",
}
#: What takes longer than a rehearsal may, or asks another host.
APART = {
    "test-all": "all tests on every Python version that the metadata names: make test-all",
    "torture": "long campaigns: make torture",
    "engines": "steps inside other engines: make engines",
    "advisories": "known advisories, asks the package index: make advisories",
    "pin-images": "digests of the images in deploy/, asks the registries: make pin-images",
    "image": "the container image, needs an engine: make image",
    "check-tag": "the signed tag, which the workflow that publishes checks: make check-tag",
}
#: What belongs to a release and does not exist yet.
MISSING = {
    "evidence": "figures of runs of an hour, in docs/explanation/evidence.md",
}


class PartResult(NamedTuple):
    """A row of the table: the part, its result, the seconds it took and what it shows."""

    part: str
    result: str
    seconds: float | None
    shows: str

    def __str__(self) -> str:
        seconds = "" if self.seconds is None else f"{self.seconds:.1f}"
        return f"{self.part:<18}{self.result:<10}{seconds:>8}  {self.shows}"


def run_part(part: str) -> PartResult:
    """Run the target of one part."""
    print(f"\n== {part}", flush=True)
    start = time.perf_counter()
    code = subprocess.run(["make", "--no-print-directory", part], cwd=ROOT, check=False).returncode
    return PartResult(part, "failed" if code else "ok", time.perf_counter() - start, PARTS[part])


def make_table(results: list[PartResult]) -> list[str]:
    """Return the lines of the table, with the parts that were not run here."""
    rows = [
        *results,
        *(PartResult(part, "apart", None, shows) for part, shows in APART.items()),
        *(PartResult(part, "missing", None, shows) for part, shows in MISSING.items()),
    ]
    failed = sum(one.result == "failed" for one in results)
    total = sum(one.seconds or 0 for one in results)
    end = f"{len(results) - failed} ok, {failed} failed, {len(APART)} apart, {len(MISSING)} missing"
    return [f"{'part':<18}{'result':<10}{'seconds':>8}  shows", *map(str, rows), f"{end}: {total:.0f} s"]


def main(names: list[str]) -> int:
    """Run the parts and print the table; the exit code is 1 if a part failed."""
    if unknown := [name for name in names if name not in PARTS]:
        raise SystemExit(f"no part named {', '.join(unknown)}; there are {', '.join(PARTS)}")
    results = [run_part(part) for part in PARTS if not names or part in names]
    print("", *make_table(results), sep="\n")
    return 1 if any(one.result == "failed" for one in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
