"""How many lines the linter checks in a second on one core.

    python bench/lint.py            the table, and a verdict for the goal
    python bench/lint.py --quick    the same in a few seconds, too noisy to believe
    python bench/lint.py --json     the same for a machine

Method: `_measure.py`. The source is the standard library, read into memory before. Beside the linter stands
the parser of the interpreter alone, which is the least that any linter costs.
"""

from __future__ import annotations

import ast
import gc
import sysconfig
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from _measure import Effort, Goal, Group, Row, calls, command, interleaved, ratios, spread

from oncemore.lint.project import CheckedFile, check_files, paused_collector
from oncemore.lint.rules import RULES
from oncemore.lint.settings import LintSettings

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

PARSE, LINT = "parse only", "oncemore lint, all rules"
FLOOR = 50_000.0


def read_sources(quick: bool) -> list[CheckedFile]:
    """Return the modules of the standard library."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[: 15 if quick else None]
    return [CheckedFile(path.name, path.read_bytes()) for path in paths]


def parse_sources(files: list[CheckedFile]) -> None:
    """Parse every file and forget the trees."""
    with paused_collector(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for file in files:
            ast.parse(file.data)


def main() -> None:
    """Measure, and print."""
    goals: list[Goal] = []

    def measured(options: Namespace) -> Iterator[Group]:
        files = read_sources(options.quick)
        lines = sum(file.data.count(b"\n") for file in files)
        settings = LintSettings(rules=tuple(RULES))
        subjects = [
            calls(PARSE, lambda _: parse_sources(files)),
            calls(LINT, lambda _: check_files(iter(files), settings)),
        ]
        gc.collect()
        costs = interleaved(subjects, Effort(3 if options.quick else 9, 1, 120.0))
        per_line = {name: [cost / lines for cost in own] for name, own in costs.items()}
        against = ratios(costs, PARSE)
        rows = [Row(subject, spread(own), against[subject]) for subject, own in per_line.items()]
        rate = spread([1e9 / cost for cost in per_line[LINT]])
        goals.append(Goal("lint", "lines a second on one core", rate, FLOOR, None, "", most=False))
        name = f"the standard library, {len(files)} files, {lines:,} lines"
        yield Group(name, "ns CPU per line", PARSE, rows)

    command(__doc__, (), measured, lambda groups: goals)


if __name__ == "__main__":
    main()
