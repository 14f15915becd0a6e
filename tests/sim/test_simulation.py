"""Thousands of schedules of the whole engine, each from one seed: no promise is broken in any.

`make test` runs 8,000 new ones each time, `make torture` 20,000 (and 300,000 more in `tests/torture`).

ONCEMORE_SIM_SCHEDULES=N   how many schedules, if not those
ONCEMORE_SIM_SEED=S        only this schedule, with every step of it
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.sim.judge import Violation
from tests.sim.simulator import Report, Sim, main, replay, run_many, seeded

if TYPE_CHECKING:
    from collections.abc import Callable

TORTURE = bool(os.environ.get("ONCEMORE_TORTURE"))
PARTS = 8 if TORTURE else 4
SCHEDULES = int(os.environ.get("ONCEMORE_SIM_SCHEDULES", "20000" if TORTURE else "8000"))
ONE = os.environ.get("ONCEMORE_SIM_SEED")
#: Fewer than that in a part would mean that faults no longer reach the states they are meant for.
LEAST_PAIRS = 45


def one(seed: int) -> None:
    """Show a schedule step by step."""
    steps, error = replay(seed)
    print("\n".join(steps))
    if error is not None:
        raise error


@pytest.mark.req("STATE-3", "WAL-7")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS if ONE is None else 1))
def test_no_schedule_breaks_a_promise(part: int, record_property: Callable[[str, object], None]) -> None:
    if ONE is not None:
        one(int(ONE))
        return
    first = random.getrandbits(40)  # pytest-randomly prints the seed of this one
    count = max(1, SCHEDULES // PARTS)
    report = run_many(range(first, first + count))
    print(f"\nsimulation: seeds {first} … {first + count - 1}: {report}")
    record_property("simulation", str(report))
    assert report.schedules == count
    if count >= 2_000:
        assert len(report.pairs_of_states()) >= LEAST_PAIRS, sorted(report.pairs_of_states())


def test_the_same_seed_gives_the_same_log_to_the_byte() -> None:
    prints: list[list[str]] = [[], []]
    seeds = [random.getrandbits(40) for _ in range(max(20, SCHEDULES // 1000))]
    with seeded():
        for found in prints:
            for seed in seeds:
                sim = Sim(seed, trace=found is prints[1])  # to look on changes nothing either
                sim.run()
                found.append(sim.fingerprint())
    assert prints[0] == prints[1], seeds


def test_a_violation_names_its_seed_and_is_replayed_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Sim):
        def _finish(self) -> None:
            raise Violation("it is broken on purpose")

    with pytest.raises(Violation, match=r"seed 7, at .* broken on purpose") as caught:
        run_many([7], Broken)
    assert "python -m tests.sim.simulator 7" in caught.value.__notes__[0]
    steps, error = replay(7, Broken)
    assert isinstance(error, Violation)
    assert len(steps) > 10
    assert main(["7"]) == 0
    assert "no violation" in capsys.readouterr().out


def test_schedules_reach_every_state_with_every_kind_of_fault() -> None:
    report = Report()
    run_many(range(1_500), report=report)
    states = {state for state, _, _ in report.pairs}
    faults = {fault.split(",")[0] for _, _, fault in report.pairs}
    assert states >= {"none", "PENDING", "RUNNING", "SOFT_FAIL", "held", "HARD_FAIL", "COMPLETE"}
    assert faults >= {
        "crash", "pause", "jump", "late", "cut", "cut before", "cut after", "unreachable",
        "answer lost before", "answer lost after",
    }  # fmt: skip
    assert report.late  # a zombie's effect that lands late is met, and told apart
