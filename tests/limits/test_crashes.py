"""A run at a breaker, killed before and after every operation, and again in what comes after.

Whatever dies where: the work is never called while the breaker is open, or half-open for somebody else; the
breaker never stays half-open for ever; each run counts once; run and breaker are what the log adds up to.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

from oncemore.errors import Deferred, StepFailed
from oncemore.limits.breaker_rules import BreakerRules
from oncemore.log.entry_codec import decode_body, decode_head, decode_header
from oncemore.log.head_access import build_write
from oncemore.log.record import NOWHERE, BreakerRecord, RunRecord, apply_header
from oncemore.log.store import Batch, Stored
from oncemore.steps import flow, ops
from tests.crash.world import ENTITY, POLICY, Crash, World

BREAKER = "breaker/p"
AT_LENGTH = bool(os.environ.get("ONCEMORE_TORTURE"))
RULES = BreakerRules(failures=1, cooldown_s=300.0)


def seen_of(world: World, entity: str, kind: type[Any]) -> ops.LoadedHead:
    """Read an entity of any kind."""
    head = world.store.load_head(entity)
    if head is None:
        return ops.LoadedHead(entity, 0, NOWHERE, None)
    assert head.body is not None
    return ops.LoadedHead(
        entity, head.version, head.hash, decode_head(head.head, kind), decode_body(head.body)
    )


class Gated(World):
    """A world whose one step passes a breaker that opens at the first failure."""

    def __init__(self, turns: list[str], rules: BreakerRules = RULES) -> None:
        super().__init__("idempotent", turns)
        self.rules = rules
        self.moves: list[str] = []

    def plan(self) -> ops.StepPlan:
        return super().plan().copy_with(barrier=ops.StepBreaker(BREAKER, self.rules))

    def circuit(self) -> BreakerRecord | None:
        head = self.store.load_head(BREAKER)
        return None if head is None else decode_head(head.head, BreakerRecord)

    def _load_head(self, op: ops.LoadHead) -> ops.LoadedHead:
        return self.seen_of(op.entity, RunRecord)

    def _load_breaker(self, op: ops.LoadBreaker) -> ops.LoadedHead:
        return self.seen_of(op.entity, BreakerRecord)

    def seen_of(self, entity: str, kind: type[Any]) -> ops.LoadedHead:
        return seen_of(self, entity, kind)

    def _append_change(self, op: ops.AppendChange) -> ops.LoadedHead | None:
        pairs = [(op.seen, op.change), *op.also]
        writes = [
            build_write(seen.entity, seen.version, seen.hash, change, self.now) for seen, change in pairs
        ]
        answer = self.store.append(Batch(tuple(writes), op.guards)).wait()
        return self.seen() if isinstance(answer, Stored) else None

    def _run_attempt(self, op: ops.RunAttempt) -> ops.AttemptOutcome:
        circuit = self.circuit()
        if circuit is not None:
            mine = (circuit.probe_worker, circuit.probe_entity, circuit.probe_fence) == (
                self.me,
                ENTITY,
                op.seen.record.fence,
            )
            assert circuit.state == "CLOSED" or (circuit.state == "HALF_OPEN" and mine)
        return super()._run_attempt(op)

    def check(self) -> RunRecord | None:
        run = super().check()
        state: BreakerRecord | None = None
        for entry in self.store.read_entries(BREAKER):
            header = decode_header(entry.header)
            before, state = state, apply_header(state, header.sets, BreakerRecord)
            if state.state == "HALF_OPEN" and before is not None and before.state == "HALF_OPEN":
                assert state.probe_number == before.probe_number + 1
        assert state == self.circuit()
        return run

    def to_the_end(self) -> ops.EndCall:
        """Call again and again, as somebody would, until it is over."""
        for _ in range(30):
            end, _ = self.drive()
            self.check()
            if not isinstance(end.error, Deferred):
                return end
            assert end.error.until > self.now
            self.now = end.error.until
        raise AssertionError("it does not end")


SCENARIOS = {
    "well": (["ok"], "COMPLETE", "CLOSED"),
    "fails once, the probe comes good": (["transient", "ok"], "COMPLETE", "CLOSED"),
    "the probe fails too": (["transient", "transient", "ok"], "COMPLETE", "CLOSED"),
    "it fails to the end": (["transient"], "HARD_FAIL", "OPEN"),
    "the probe tells nothing": (["transient", "permanent"], "HARD_FAIL", "OPEN"),
}


@pytest.mark.torture
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_before_or_after_any_operation_leaves_nothing_behind(name: str) -> None:
    turns, _, _ = SCENARIOS[name]
    # How many operations there are when nobody dies, over all the calls that it takes.
    worlds = 0
    for first, when in itertools.product(range(1, 60), ("before", "after")):
        died = False
        for second in range(25) if AT_LENGTH else (0, 1, 2, 3, 5, 8, 13, 21):
            world = Gated(list(turns))
            died = _dies(world, (first, when))
            reached = died and (second == 0 or _dies(world, (second, "after")))
            worlds += 1
            end = world.to_the_end()
            run, circuit = world.check(), world.circuit()
            assert run is not None
            assert run.state in ("COMPLETE", "HARD_FAIL") or run.held_for
            assert end.value == "value" or isinstance(end.error, StepFailed) or run.held_for
            assert circuit is None or circuit.state in ("CLOSED", "OPEN", "HALF_OPEN")
            if run.state == "COMPLETE":
                assert circuit is None or circuit.state == "CLOSED"
            if not reached:
                break
        if not died:
            break  # there are no more operations to die at
    else:
        raise AssertionError("there are more operations than were tried")
    assert worlds > 20


def _dies(world: Gated, at: tuple[int, str]) -> bool:
    """Let calls be made, at the times that they are told, until one dies; say whether one did."""
    left, when = at
    for _ in range(10):
        try:
            end, count = world.drive((left, when))
        except Crash:
            return True
        left -= count
        if left <= 0 or not isinstance(end.error, Deferred):
            return False
        world.now = end.error.until
    return False


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_a_crash_it_ends_as_it_should(name: str) -> None:
    turns, run_state, circuit_state = SCENARIOS[name]
    world = Gated(turns)
    world.to_the_end()
    run, circuit = world.check(), world.circuit()
    assert run is not None
    assert (run.state, circuit.state if circuit else "CLOSED") == (run_state, circuit_state)
    assert run.attempt_count <= POLICY.max_attempts


def test_who_is_second_at_the_breaker_reads_again() -> None:
    """Two runs fail at once: both count, though one of the writes is refused at first."""
    world = Gated(["transient"], BreakerRules(failures=5, cooldown_s=300.0))
    script = flow.run_step(world.plan(), world.call())
    op = world.advance(script, next(script), ops.AppendChange)  # the claim
    op = script.send(world.do(op))
    op = world.advance(script, op, ops.AppendChange)  # the failure, with what it means for the breaker
    assert op.also
    other = world.seen_of(BREAKER, BreakerRecord)
    from oncemore.limits import breaker_rules
    from oncemore.limits.shared_breaker import build_breaker_change, new_breaker_record

    after = breaker_rules.after_failure(world.rules, new_breaker_record(BREAKER), world.now)
    write = build_write(BREAKER, other.version, other.hash, build_breaker_change(None, after), world.now)
    assert isinstance(world.store.append(Batch((write,))).wait(), Stored)
    assert world.do(op) is None  # nothing of it is written
    op = script.send(None)
    op = world.advance(script, op, ops.AppendChange)
    assert world.do(op) is not None
    found = world.circuit()
    assert found is not None
    assert found.failures == 2
    run = world.check()
    assert run is not None
    assert (run.state, run.failure_counted) == ("SOFT_FAIL", True)


def test_a_claim_that_meets_an_opened_breaker_is_made_by_nobody() -> None:
    world = Gated(["ok"])
    script = flow.run_step(world.plan(), world.call())
    claim = world.advance(script, next(script), ops.AppendChange)
    assert claim.guards[BREAKER] == 0
    from oncemore.limits import breaker_rules as gate
    from oncemore.limits.shared_breaker import build_breaker_change, new_breaker_record

    after = gate.after_failure(world.rules, new_breaker_record(BREAKER), world.now)
    write = build_write(BREAKER, 0, NOWHERE, build_breaker_change(None, after), world.now)
    assert isinstance(world.store.append(Batch((write,))).wait(), Stored)
    assert world.do(claim) is None
    assert world.seen().record is None
    op = script.send(None)
    deferral = world.advance(script, op, ops.AppendChange)
    assert world.do(deferral).record.reason == "circuit_open"
    assert world.executions == 0
