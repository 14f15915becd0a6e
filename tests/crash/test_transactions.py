"""Transactional work, killed at every operation, also between the user's commit and ours: done once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oncemore.errors import OutcomeUnknown, Quarantined, RetriesExhausted
from tests.crash.test_every_flow import DEEP, VALUES, Scenario, killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.crash.acts import Stage

ENDS = (*VALUES, RetriesExhausted, Quarantined, OutcomeUnknown)


class Once(Scenario):
    """What is done is done once, and what has failed for good has not happened."""

    def judge(self, stage: Stage) -> None:
        super().judge(stage)
        run = stage.seen().record
        assert len(stage.happened) <= 1
        if run.state == "COMPLETE":
            assert len(stage.happened) == 1
            assert len(stage.book.events) == sum(turn == "event" for turn in self.turns[-1].split())
        elif run.state == "HARD_FAIL":
            assert not stage.happened


SCENARIOS = {
    "in the user's own database": Once("transactional", ["begin effect event ok"], ends=ENDS),
    "in the user's own database, after a failure": Once(
        "transactional", ["begin effect event transient", "begin effect event ok"], ends=ENDS
    ),
    "in the user's own database, cut": Once(
        "transactional", ["begin effect cut", "begin effect event ok"], ends=ENDS
    ),
    "in the user's own database, with checkpoints": Once(
        "transactional", ["checkpoint begin effect checkpoint event ok"], ends=ENDS
    ),
    "beside the log": Once("transactional", ["beside event ok"], ends=ENDS),
    "beside the log, after a failure": Once(
        "transactional", ["beside event transient", "beside event ok"], ends=ENDS
    ),
}


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_at_every_operation_and_again_at_every_one_after_it(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    scenario = SCENARIOS[name]
    whole = scenario.stage()
    whole.play(*scenario.acts(whole))
    scenario.judge(whole)
    crashes = killed(scenario, (), DEEP)
    print(f"\n{name}: {crashes} ways to die, {DEEP} deep")
    record_property("crashes", crashes)
    assert crashes > whole.length
