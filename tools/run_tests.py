"""Run everything that must hold, part by part, and say how long each part took.

    python tools/run_tests.py              all parts, in the order of the table
    python tools/run_tests.py lint types   only these
    python tools/run_tests.py --plain      the tests and the clean install, without coverage

The first part that fails ends the run with its exit code: what comes later would only bury the
message. A new part is one more line in `PARTS`. The last line printed is `N passed, N failed`, so
that a person or a machine that looks at nothing else still sees whether tests ran.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable

Command = tuple[str, ...]


class Part(NamedTuple):
    """A name and the commands that belong to it; `{results}` becomes a file for this part's counts."""

    name: str
    commands: tuple[Command, ...]


#: What runs many schedules, and what kills real processes.
CAMPAIGNS = (
    "tests/sim",
    "tests/storm",
    *sorted(
        str(path.relative_to(ROOT))
        for path in ROOT.glob("tests/**/test_kill*.py")
        if "storm" not in path.parts
    ),
    "tests/demo/test_demo.py",
    "tests/demo/test_demo_exoarmur.py",
)


#: The test files that the coverage gate needs (`tools/measured_tests.py` finds them): a traced test takes two
#: thirds longer, so the others run untraced.
MEASURED = tuple((ROOT / "tools/measured_tests.txt").read_text().split())

#: Many tests wait for servers, programs and clocks: half as many again at once as there are processors. Each
#: takes a piece, so that a file's server is started once, and who is done takes from the others.
AT_ONCE = ("-n", str(min(8, 3 * (os.cpu_count() or 1) // 2 or 1)), "--dist", "worksteal")


def without(*folders: str) -> tuple[str, ...]:
    """Return what tells pytest to leave these out."""
    return tuple(f"--ignore={folder}" for folder in folders)


PARTS = (
    Part(
        "lint",
        (
            (PYTHON, "-m", "ruff", "check", "."),
            (PYTHON, "-m", "ruff", "format", "--check", "."),
        ),
    ),
    Part("types", ((PYTHON, "-m", "mypy"), (PYTHON, "-m", "pyright", "--pythonpath", PYTHON))),
    # Coverage starts before pytest does, because our own pytest plugin imports the package before
    # any other plugin could begin to measure. xdist's workers are measured as subprocesses.
    Part(
        "measured tests",
        (
            (PYTHON, "-m", "coverage", "erase"),
            (
                PYTHON,
                "-m",
                "coverage",
                "run",
                "-m",
                "pytest",
                *AT_ONCE,
                "--junit-xml",
                "{results}",
                *MEASURED,
            ),
        ),
    ),
    Part("tests", ((PYTHON, "-m", "pytest", *AT_ONCE, "--junit-xml", "{results}", *without(*MEASURED)),)),
    Part(
        "coverage",
        (
            (PYTHON, "-m", "coverage", "combine", "--quiet"),
            (PYTHON, "tools/coverage_gate.py"),
        ),
    ),
    Part("clean install", ((PYTHON, "tools/clean_install.py"),)),
)


class Counts(NamedTuple):
    """How many tests passed, failed (errors included) and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed" + (
            f", {self.skipped} skipped" if self.skipped else ""
        )


def counts_in(folder: Path) -> Counts | None:
    """Read the counts from pytest's JUnit files; None when no tests were run."""
    files = sorted(folder.glob("*.xml"))
    if not files:
        return None
    suites = [suite for file in files for suite in ElementTree.parse(file).getroot().iter("testsuite")]
    ran, failures, errors, skipped = (
        sum(int(suite.get(field, 0)) for suite in suites)
        for field in ("tests", "failures", "errors", "skipped")
    )
    return Counts(ran - failures - errors - skipped, failures + errors, skipped)


def surroundings() -> dict[str, str]:
    """Return the environment of the parts: thousands of interpreters start, and none should compile anew.

    The wrapper of pyright would ask the package index for a newer version at every start.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}


def run(part: Part, results: Path) -> int:
    """Run the commands of a part up to the first that fails; return its exit code."""
    for command in part.commands:
        words = [word.format(results=results) for word in command]
        code = subprocess.run(words, cwd=ROOT, env=surroundings(), check=False).returncode
        if code:
            # A signal's number is negative, which no exit code can be.
            return code if code > 0 else 128 - code
    return 0


def chosen(names: list[str], parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts of these names in the order of the table, or all when none is named."""
    known = [part.name for part in parts]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no part named {', '.join(unknown)}; there are {', '.join(known)}")
    return tuple(part for part in parts if not names or part.name in names)


def strip_coverage(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts that depend on the version of Python, with the tests run directly by pytest."""
    kept = [part for part in parts if part.name not in ("lint", "types", "coverage")]
    measured = ("-m", "coverage", "run")
    return tuple(
        Part(
            part.name,
            tuple(
                command[:1] + command[4:] if command[1:4] == measured else command
                for command in part.commands
                if command[1:4] != ("-m", "coverage", "erase")
            ),
        )
        for part in kept
    )


def main(names: list[str], parts: tuple[Part, ...] = PARTS) -> int:
    """Run the parts and print the closing table."""
    if "--plain" in names:
        names, parts = [name for name in names if name != "--plain"], strip_coverage(parts)
    todo = chosen(names, parts)
    table: list[tuple[str, str, float]] = []
    code = 0
    with TemporaryDirectory() as folder:
        for number, part in enumerate(todo):
            print(f"\n== {part.name}", flush=True)
            start = time.perf_counter()
            code = run(part, Path(folder, f"{number}.xml"))
            seconds = time.perf_counter() - start
            table.append((part.name, "failed" if code else "ok", seconds))
            print(f"== {part.name}: {seconds:.1f} s", flush=True)
            if code:
                break
        counts = counts_in(Path(folder))
    table += [(part.name, "not run", 0.0) for part in todo[len(table) :]]
    print()
    for name, outcome, seconds in table:
        print(f"{name:<16}{outcome:<10}{seconds:8.1f} s")
    print(f"{'all':<16}{'failed' if code else 'ok':<10}{sum(row[2] for row in table):8.1f} s")
    if counts:
        print(counts)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
