"""A run behind a breaker, crashed before and after every operation, and again in the recovery.

After every crash: the work is never called while the breaker is open, or half-open for another probe; the
breaker never stays half-open; each run counts once; run and breaker are what the log adds up to.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from oncemore.errors import StepFailed
from oncemore.limits import breaker_rules
from oncemore.limits.breaker_rules import BreakerRules
from oncemore.limits.shared_breaker import build_breaker_change, new_breaker_record
from oncemore.log.entry_codec import build_write, decode_header, load_head
from oncemore.log.record import BreakerRecord, RunRecord, apply_header
from oncemore.log.store import Batch, Stored
from oncemore.steps import ops
from oncemore.steps.plan import StepBreaker
from tests.crash.harness import EVERYWHERE, CrashLevel, crash_everywhere
from tests.crash.simulation import POLICY, StepSimulation

BREAKER = "breaker/p"
#: Where the process that recovers crashes: everywhere in `make torture`, at some operations elsewhere.
RECOVERY = CrashLevel(
    ("after",), range(1, 25) if os.environ.get("ONCEMORE_TORTURE") else (1, 2, 3, 5, 8, 13, 21)
)
RULES = BreakerRules(failures=1, cooldown_s=300.0)


class BreakerSimulation(StepSimulation):
    """A step behind a breaker that opens at the first failure."""

    def __init__(self, outcomes: list[str], rules: BreakerRules = RULES) -> None:
        super().__init__("idempotent", outcomes, breaker=StepBreaker(BREAKER, rules))
        self.rules = rules

    def load_breaker(self) -> BreakerRecord | None:
        """Return the record of the breaker."""
        record: BreakerRecord | None = load_head(self.store, BREAKER, None, BreakerRecord).record
        return record

    def open_breaker(self) -> None:
        """Count a failure of another run."""
        head = load_head(self.store, BREAKER, None, BreakerRecord)
        after = breaker_rules.after_failure(self.rules, new_breaker_record(BREAKER), self.now)
        change = build_breaker_change(None, after)
        write = build_write(BREAKER, head.version, head.hash, change, self.now)
        assert isinstance(self.store.append(Batch((write,))).wait(), Stored)

    def _run_attempt(self, op: ops.RunAttempt) -> ops.AttemptOutcome:
        breaker = self.load_breaker()
        if breaker is not None:
            probe = (breaker.probe_worker, breaker.probe_entity, breaker.probe_fence)
            is_probe = probe == (self.worker, self.entity, op.head.record.fence)
            assert breaker.state == "CLOSED" or (breaker.state == "HALF_OPEN" and is_probe)
        return super()._run_attempt(op)

    def check_log(self) -> RunRecord | None:
        run = super().check_log()
        state: BreakerRecord | None = None
        for entry in self.store.read_entries(BREAKER):
            before, state = state, apply_header(state, decode_header(entry.header).sets, BreakerRecord)
            if state.state == "HALF_OPEN" and before is not None and before.state == "HALF_OPEN":
                assert state.probe_number == before.probe_number + 1
        assert state == self.load_breaker()
        return run


SCENARIOS = {
    "succeeds": (["ok"], "COMPLETE", "CLOSED"),
    "fails once, the probe succeeds": (["transient", "ok"], "COMPLETE", "CLOSED"),
    "the probe fails too": (["transient", "transient", "ok"], "COMPLETE", "CLOSED"),
    "always fails": (["transient"], "HARD_FAIL", "OPEN"),
    "the probe fails permanently": (["transient", "permanent"], "HARD_FAIL", "OPEN"),
}


@pytest.mark.torture
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_before_or_after_any_operation_leaves_nothing_behind(name: str) -> None:
    outcomes, _, _ = SCENARIOS[name]
    crashes = 0
    for simulation in crash_everywhere(
        lambda: BreakerSimulation(list(outcomes)), BreakerSimulation.run_to_end, (EVERYWHERE, RECOVERY)
    ):
        crashes += 1
        end = simulation.run_to_end()
        run, breaker = simulation.check_log(), simulation.load_breaker()
        assert run is not None
        assert run.state in ("COMPLETE", "HARD_FAIL") or run.held_for
        assert end.value == "value" or isinstance(end.error, StepFailed) or run.held_for
        assert breaker is None or breaker.state in ("CLOSED", "OPEN", "HALF_OPEN")
        if run.state == "COMPLETE":
            assert breaker is None or breaker.state == "CLOSED"
    assert crashes > 20


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_without_crashes_ends_as_listed(name: str) -> None:
    outcomes, run_state, breaker_state = SCENARIOS[name]
    simulation = BreakerSimulation(outcomes)
    simulation.run_to_end()
    run, breaker = simulation.check_log(), simulation.load_breaker()
    assert run is not None
    assert (run.state, breaker.state if breaker else "CLOSED") == (run_state, breaker_state)
    assert run.attempt_count <= POLICY.max_attempts


def start_failure(simulation: StepSimulation) -> Any:
    """Start a call and stop it before the write of its failed attempt."""
    process = simulation.start()
    process.run_until(ops.AppendChange)  # the claim
    process.step()
    assert process.run_until(ops.AppendChange).also
    return process


def test_a_failure_that_lost_the_race_for_the_breaker_is_counted_after_a_second_read() -> None:
    """Two runs fail at once: both count, though one of the writes is refused at first."""
    simulation = BreakerSimulation(["transient"], BreakerRules(failures=5, cooldown_s=300.0))
    process = start_failure(simulation)
    simulation.open_breaker()
    assert simulation.perform(process.op) is None  # nothing of it is written
    process.resume(None)
    process.run_until(ops.AppendChange)
    process.step()
    breaker = simulation.load_breaker()
    assert breaker is not None
    assert breaker.failures == 2
    run = simulation.check_log()
    assert run is not None
    assert (run.state, run.failure_counted) == ("SOFT_FAIL", True)


def test_a_claim_is_refused_if_the_breaker_has_opened_since() -> None:
    simulation = BreakerSimulation(["ok"])
    process = simulation.start()
    assert process.run_until(ops.AppendChange).guards[BREAKER] == 0
    simulation.open_breaker()
    assert simulation.perform(process.op) is None
    assert simulation.load_run().record is None
    process.resume(None)
    deferral = process.run_until(ops.AppendChange)
    assert simulation.perform(deferral).record.reason == "circuit_open"
    assert simulation.executions == 0
