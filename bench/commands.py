"""How soon a command answers: the whole process, over `python -c "import click"`.

    python bench/commands.py           about a minute
    python bench/commands.py --quick   the same in a few seconds, too noisy to believe
    python bench/commands.py --json    the same for a machine

Every command is started as its script does it, in turns, on a store with a few runs; what it costs is the
CPU time of its process, its end included. Bytecode is compiled before, as it is after an installation.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from _measure import Goal, Group, Row, command, ratios, spread

import oncemore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

CLICK = 'python -c "import click"'
SCRIPT = "import sys; from oncemore.cli import main; main(sys.argv[1:])"
MADE = """
import oncemore
@oncemore.step(effect="pure")
def double(x: int) -> int: return 2 * x
for x in range(20): double(x)
print(double.last_run(19).state.run_id)
"""
#: What needs no store, and what looks at one.
PLAIN = ("--version", "policy list", "runs key --operation a --tenant t")
LOOKING = (
    "runs", "show RUN", "explain RUN", "replay RUN", "store tail", "store doctor",
    "store health", "quarantine list", "store sizes", "store verify",
)  # fmt: skip
LIMIT = 2.0


def environment(cache: Path) -> dict[str, str]:
    """Return what commands are started with: nothing of ours is set, and bytecode is kept."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ONCEMORE_") and name != "PYTHONDONTWRITEBYTECODE"
    }
    ours = str(Path(oncemore.__file__).parents[1])  # the same code as here, from whatever folder
    return {**kept, "PYTHONPYCACHEPREFIX": str(cache), "PYTHONPATH": ours}


def cost(words: list[str], folder: Path, env: dict[str, str]) -> float:
    """Return the milliseconds of CPU that a process took from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr.decode()}")
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def started(name: str, commands: tuple[str, ...], rounds: int) -> Group:
    """Start each command in turns with the import that it is compared to."""
    with tempfile.TemporaryDirectory() as place:
        folder, env = Path(place), environment(Path(place, "bytecode"))
        Path(folder, "oncemore.toml").touch()
        made = subprocess.run(
            [sys.executable, "-c", MADE], cwd=folder, env=env, capture_output=True, text=True, check=True
        )
        subjects = {CLICK: ["-c", "import click"]}
        for words in commands:
            subjects[f"oncemore {words}"] = ["-c", SCRIPT, *words.replace("RUN", made.stdout.strip()).split()]
        for words in subjects.values():
            cost(words, folder, env)
        costs: dict[str, list[float]] = {subject: [] for subject in subjects}
        for _ in range(rounds):
            for subject in random.sample(list(subjects), len(subjects)):
                costs[subject].append(cost(subjects[subject], folder, env))
    against = ratios(costs, CLICK)
    rows = [Row(subject, spread(own), against[subject]) for subject, own in costs.items()]
    return Group(name, "ms CPU per process", CLICK, rows)


def measured(options: argparse.Namespace) -> Iterator[Group]:
    """Measure the commands that need no store, then those that look at one."""
    rounds = 1 if options.quick else 21
    yield started("without a store", PLAIN, rounds)
    yield started("looking at a store", LOOKING, rounds)


def goals(groups: list[Group]) -> list[Goal]:
    """Every command is to answer within twice the import."""
    return [
        Goal("start", row.subject, row.ratio, LIMIT, None)
        for group in groups
        for row in group.rows
        if row.subject != CLICK
    ]


if __name__ == "__main__":
    command(__doc__, ("click", "apsw", "msgspec"), measured, goals)
