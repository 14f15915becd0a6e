"""Schedules of the whole engine by the hundred thousand (`tests/sim/simulator.py`), and what is complete.

ONCEMORE_SIM_SCHEDULES=N   how many schedules (300,000 in `make torture`, a few elsewhere)
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.crash.test_every_flow import SCENARIOS
from tests.sim.simulator import Report, run_many
from tests.sim.test_exhaustive import EFFECTS, TURNS, explored

if TYPE_CHECKING:
    from collections.abc import Callable

TORTURE = bool(os.environ.get("ONCEMORE_TORTURE"))
#: Elsewhere they only show that they still run: tests/sim and tests/crash do the same on their own scale.
PARTS = 8 if TORTURE else 1
SCHEDULES = int(os.environ.get("ONCEMORE_SIM_SCHEDULES", "300000")) if TORTURE else 100
AT_ONCE = 1_000


@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_of_very_many_breaks_a_promise(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    first, count = random.getrandbits(40), max(1, SCHEDULES // PARTS)
    report = Report()
    for at in range(first, first + count, AT_ONCE):
        run_many(range(at, min(at + AT_ONCE, first + count)), report=report)
    print(f"\nsimulation: seeds {first} … {first + count - 1}: {report}")
    record_property("simulation", str(report))
    assert report.schedules == count


@pytest.mark.timeout(0)
@pytest.mark.parametrize("turns", TURNS if TORTURE else list(TURNS)[:1])
@pytest.mark.parametrize("effect", EFFECTS if TORTURE else list(EFFECTS)[:1])
def test_every_interleaving_of_two_workers(effect: str, turns: str) -> None:
    explorer = explored(effect, turns, faults=2 if TORTURE else 0)
    print(f"\n{effect}, {turns}: {explorer.states:,} states, {explorer.ends:,} ends, violations 0")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENARIOS if TORTURE else list(SCENARIOS)[:1])
def test_three_processes_die_one_after_the_other(name: str) -> None:
    print(f"\n{name}: {SCENARIOS[name].crash_everywhere(3 if TORTURE else 1)} ways to die")
