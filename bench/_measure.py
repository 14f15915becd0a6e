"""How everything in this folder is measured, so that the numbers mean the same thing everywhere.

The machine is shared: a neighbour can take a core for any moment. So

* cost is CPU time of the measuring thread, which a neighbour's turn does not lengthen;
* the subjects of a group run in turns, in a new order each round, each for about the same few
  milliseconds, so that a slow moment strikes all of them alike;
* a ratio is formed inside a round and the median of the rounds is taken; the quartiles stand beside it.

Every subject has its own copy of the timing loop: the interpreter specialises code as it runs, and one
loop shared by all would be specialised for none. The collector stays on, so that whoever makes
garbage pays for it; what was there before is kept out of its sight.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import subprocess
import sys
import time
from importlib.metadata import version
from itertools import repeat
from math import inf
from statistics import median, quantiles
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence


TIMES = "\N{MULTIPLICATION SIGN}"


class Spread(NamedTuple):
    """The median of some numbers, with their lower and upper quartile."""

    median: float
    low: float
    high: float


def spread(numbers: Sequence[float]) -> Spread:
    """Return median and quartiles; a single number is its own."""
    if len(numbers) < 2:
        return Spread(numbers[0], numbers[0], numbers[0])
    low, _, high = quantiles(numbers, n=4, method="inclusive")
    return Spread(median(numbers), low, high)


class Row(NamedTuple):
    """One subject in a table: what it costs, and how that compares."""

    subject: str
    cost: Spread
    ratio: Spread


class Group(NamedTuple):
    """A table of subjects, and what was found beside the numbers."""

    name: str
    unit: str
    over: str
    rows: list[Row]
    note: str = ""

    def of(self, subject: str) -> Row:
        """Return the row of a subject."""
        return next(row for row in self.rows if row.subject == subject)

    def text(self) -> str:
        """Return the group as lines for a person."""
        columns = (self.name, f"{self.unit}, median (quartiles)", f"÷ {self.over}")
        rows = [
            (row.subject, spelled(row.cost), spelled(row.ratio, TIMES))
            for row in sorted(self.rows, key=lambda row: row.ratio.median)
        ]
        return table(columns, rows) + (f"\n{self.note}" if self.note else "")

    def plain(self) -> dict[str, Any]:
        """Return the group for JSON."""
        rows = [
            {"subject": row.subject, "cost": row.cost._asdict(), "ratio": row.ratio._asdict()}
            for row in self.rows
        ]
        return {**self._asdict(), "rows": rows}


class Subject(NamedTuple):
    """Something to be measured: `run(n)` does it n times and returns what that cost."""

    name: str
    run: Callable[[int], int]


def at_least(subject: Subject, least: int) -> Subject:
    """Return a subject that does so many at a time; the cost is that of as many as asked.

    For what is done by many at once: a turn that is too short has them all begin, and end, and little else.
    """

    def run(n: int) -> int:
        many = max(n, least)
        return subject.run(many) * n // many

    return Subject(subject.name, run)


class Effort(NamedTuple):
    """How much is spent on a measurement: rounds, about how long each turn in them, and how long in all.

    When the time is up there are fewer rounds, but three at least.
    """

    rounds: int
    batch_ns: int
    most_s: float = inf


# Timing loops.


def _calls(call: Callable[[Any], object], argument: object, n: int) -> int:
    begin = time.thread_time_ns()
    for _ in repeat(None, n):
        call(argument)
    return time.thread_time_ns() - begin


async def _awaits(call: Callable[[Any], Any], argument: object, n: int) -> int:
    begin = time.thread_time_ns()
    for _ in repeat(None, n):
        await call(argument)
    return time.thread_time_ns() - begin


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function with a code object of its own."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__)


def calls(name: str, call: Callable[[Any], object], argument: object = 7) -> Subject:
    """Return a subject that is a plain call with one argument."""
    loop = _own(_calls)
    return Subject(name, lambda n: loop(call, argument, n))


def awaits(name: str, call: Callable[[Any], Any], runner: asyncio.Runner, argument: object = 7) -> Subject:
    """Return a subject that is an awaited call with one argument, in one task of a running loop."""
    loop = _own(_awaits)
    return Subject(name, lambda n: runner.run(loop(call, argument, n)))


# Rounds.


def interleaved(subjects: Sequence[Subject], effort: Effort) -> dict[str, list[float]]:
    """Measure all subjects in turns; return for each its cost of one call in every round, in order."""
    sizes = {subject.name: _size(subject, effort.batch_ns) for subject in subjects}
    costs: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    gc.collect()
    gc.freeze()
    try:
        ends = time.monotonic() + effort.most_s
        for done in range(effort.rounds):
            if done >= 3 and time.monotonic() > ends:
                break
            for subject in random.sample(subjects, len(subjects)):
                n = sizes[subject.name]
                costs[subject.name].append(subject.run(n) / n)
    finally:
        gc.unfreeze()
    return costs


def _size(subject: Subject, batch_ns: int) -> int:
    """Return how many calls fill a batch; finding out also warms the subject up."""
    subject.run(10)  # what is imported or remembered at first use would count as its usual cost
    n = 1
    while (cost := subject.run(n)) < batch_ns / 4:
        n *= 2
    return max(1, round(n * batch_ns / cost))


def ratios(costs: dict[str, list[float]], to: str) -> dict[str, Spread]:
    """Return each subject's cost over that of another, formed round by round."""
    return {
        name: spread([one / other for one, other in zip(own, costs[to], strict=True)])
        for name, own in costs.items()
    }


def compared(name: str, subjects: list[Subject], effort: Effort, over: str) -> Group:
    """Measure subjects in turns and compare each with one of them."""
    costs = interleaved(subjects, effort)
    against = ratios(costs, over)
    rows = [Row(subject, spread(own), against[subject]) for subject, own in costs.items()]
    return Group(name, "ns CPU per call", over, rows)


# Interpreters of their own.


def fresh(*arguments: str) -> Any:
    """Run a new interpreter with these arguments; return the JSON that it prints last."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{arguments} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


# What is printed.


def about(packages: Sequence[str]) -> dict[str, Any]:
    """Say what was measured, on what, when and how busy it was."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "load": [round(load, 2) for load in os.getloadavg()],
        "versions": {package: version(package) for package in packages},
    }


def heading(facts: dict[str, Any]) -> str:
    """Return the first lines of a report."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    load = " ".join(f"{load:.2f}" for load in facts["load"])
    return f"{facts['when']} · {facts['python']} · {facts['machine']} · load {load}\n{versions}"


def number(value: float) -> str:
    """Return a number as a person reads it: three digits that matter, thousands apart."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spelled(spread: Spread, unit: str = "") -> str:
    """Return median and quartiles as `5.2 (4.9-5.6)`, or the median alone where all is one number."""
    if spread.low == spread.high:
        return f"{number(spread.median)}{unit}"
    return f"{number(spread.median)}{unit} ({number(spread.low)}-{number(spread.high)})"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines with aligned columns, names to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, rows)])


class Goal(NamedTuple):
    """A number that docs/design.md §9 asks for; `most` says whether it is an upper limit."""

    row: str
    what: str
    ours: Spread
    floor: float
    aim: float | None
    unit: str = TIMES
    most: bool = True

    def reached(self, limit: float) -> bool:
        """Whether our median is on the good side of a limit."""
        return self.ours.median <= limit if self.most else self.ours.median >= limit

    @property
    def verdict(self) -> str:
        """Inside or outside the floor and, where there is one, the aim."""
        floor = "inside" if self.reached(self.floor) else "OUTSIDE"
        if self.aim is None:
            return floor
        return f"{floor}, aim {'reached' if self.reached(self.aim) else 'not reached'}"

    def limit(self, value: float | None) -> str:
        """Return a limit with its sign and unit."""
        return "" if value is None else f"{'≤' if self.most else '≥'} {number(value)}{self.unit}"

    def plain(self) -> dict[str, Any]:
        """Return the goal and what became of it, for JSON."""
        return {**self._asdict(), "ours": self.ours._asdict(), "verdict": self.verdict}


def verdicts(goals: Sequence[Goal]) -> str:
    """Return the closing table of a report."""
    return table(
        ("what it must cost", "floor", "aim", "ours", "verdict"),
        [
            (
                f"{goal.row}: {goal.what}",
                goal.limit(goal.floor),
                goal.limit(goal.aim),
                spelled(goal.ours, goal.unit),
                goal.verdict,
            )
            for goal in goals
        ],
    )


# The command.


def command(
    doc: str | None,
    packages: Sequence[str],
    measured: Callable[[argparse.Namespace], Iterable[Group]],
    goals: Callable[[list[Group]], list[Goal]],
    numbers: Mapping[str, str] | None = None,
) -> None:
    """Measure as the command line says; print each table when it is there, and the verdicts last.

    `numbers` are further options, each a number, with what it means. With --json the tables go to the
    standard error, so that one sees how far it is.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, too noisy to believe")
    parser.add_argument("--json", action="store_true", help="for a machine; the tables go to stderr")
    for option, meaning in (numbers or {}).items():
        parser.add_argument(f"--{option}", type=int, metavar="N", help=meaning)
    options = parser.parse_args()
    out = sys.stderr if options.json else sys.stdout
    facts = about(packages)
    print(heading(facts), file=out)
    groups: list[Group] = []
    for group in measured(options):
        groups.append(group)
        print(f"\n{group.text()}", file=out, flush=True)
    reached = goals(groups)
    print(f"\n{verdicts(reached)}", file=out)
    if options.json:
        report = {**facts, "quick": options.quick, "groups": [group.plain() for group in groups]}
        print(json.dumps({**report, "goals": [goal.plain() for goal in reached]}, indent=1))
