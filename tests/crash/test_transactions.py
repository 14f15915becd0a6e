"""Transactional steps, crashed at every operation, also between the user's commit and ours: applied once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.errors import OutcomeUnknown, Quarantined, RetriesExhausted
from tests.crash.test_every_flow import VALUES, Scenario, check_scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.simulation import JudgedSimulation

ENDS = (*VALUES, RetriesExhausted, Quarantined, OutcomeUnknown)


class OnceScenario(Scenario):
    """A scenario whose effect happens once, and not at all if the run has failed."""

    def check_end(self, simulation: JudgedSimulation) -> None:
        super().check_end(simulation)
        run = simulation.load_run().record
        assert len(simulation.effects) <= 1
        if run.state == "COMPLETE":
            assert len(simulation.effects) == 1
            assert len(simulation.book.events) == sum(
                action == "event" for action in self.outcomes[-1].split()
            )
        elif run.state == "HARD_FAIL":
            assert not simulation.effects


SCENARIOS = {
    "in the user's own database": OnceScenario("transactional", ["begin effect event ok"], ends=ENDS),
    "in the user's own database, after a failure": OnceScenario(
        "transactional", ["begin effect event transient", "begin effect event ok"], ends=ENDS
    ),
    "in the user's own database, cut": OnceScenario(
        "transactional", ["begin effect cut", "begin effect event ok"], ends=ENDS
    ),
    "in the user's own database, with checkpoints": OnceScenario(
        "transactional", ["checkpoint begin effect checkpoint event ok"], ends=ENDS
    ),
    "beside the log": OnceScenario("transactional", ["beside event ok"], ends=ENDS),
    "beside the log, after a failure": OnceScenario(
        "transactional", ["beside event transient", "beside event ok"], ends=ENDS
    ),
}


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_at_every_operation_and_again_at_every_one_after_it(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    crashes, length = check_scenario(name, SCENARIOS[name], record_property)
    assert crashes > length
