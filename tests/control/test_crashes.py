"""A switch thrown, and a process killed, at every operation of a call: nothing begins after the throw."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.control.model import (
    ALL_EXECUTION,
    APPROVAL_NEEDED,
    SWITCHES_ENTITY,
    Approval,
    SwitchBoard,
    turn_switch_off,
    turn_switch_on,
)
from oncemore.control.permits import approval_entity
from oncemore.errors import NotPermitted, OutcomeUnknown
from oncemore.log.attempt_transitions import end_attempt
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.head_access import build_write
from oncemore.log.record import NOWHERE, RecordChange
from oncemore.log.store import Batch, Stored
from oncemore.steps import ops
from tests.crash.acts import Stage
from tests.crash.world import ENTITY, Crash

if TYPE_CHECKING:
    from collections.abc import Callable

TOLD = {"by": "operator", "reason": "stop", "at": 1.0}


def turn(stage: Stage, how: Callable[[SwitchBoard], SwitchBoard]) -> None:
    """Turn the switch as another process would."""
    stage.judge.people = True
    head = stage.store.load_head(SWITCHES_ENTITY)
    before: SwitchBoard | None = None if head is None else decode_head(head.head, SwitchBoard)
    change = RecordChange(("CONTROL",), before, how(before or SwitchBoard()))
    version, prev = (0, NOWHERE) if head is None else (head.version, head.hash)
    write = build_write(SWITCHES_ENTITY, version, prev, change, stage.now)
    assert isinstance(stage.store.append(Batch((write,))).wait(), Stored)


def throw(stage: Stage) -> None:
    turn(stage, lambda control: turn_switch_on(control, ALL_EXECUTION, TOLD))


def release(stage: Stage) -> None:
    turn(stage, lambda control: turn_switch_off(control, ALL_EXECUTION))


def begun(stage: Stage, *, stopped: bool = False) -> list[int]:
    """Return the INTENTs in the log; those after a switch was thrown and before its release, if asked."""
    on, found = False, []
    for entry in stage.store.read_entries():
        header = decode_header(entry.header)
        if entry.entity == SWITCHES_ENTITY:
            on = header.sets["state"] == "STOPPED"
        elif "INTENT" in header.marks and (on or not stopped):
            found.append(entry.seq)
    return found


def played(stage: Stage, throw_at: int, dies_at: int) -> tuple[str, Any, int]:
    """Play a call; throw the switch before one of its operations, die at another. Return what came of it."""
    script, count = stage.calling(), 0
    try:
        while True:
            op = next(script)
            count += 1
            if count == throw_at:
                throw(stage)
            if count == dies_at:
                stage._die()
            del op
    except StopIteration as end:
        stage.alive.discard(stage.me)
        return "ended", end.value, count
    except Crash:
        return "died", None, count


@pytest.mark.unmeasured
@pytest.mark.req("AUTO-7")
@pytest.mark.parametrize("checks_guards_late", [False, True], ids=["guarded", "looked at late"])
@pytest.mark.parametrize("effect", ["idempotent", "once", "outbox"])
def test_a_switch_and_a_death_at_every_operation(
    effect: str, checks_guards_late: bool, record_property: Callable[[str, object], None]
) -> None:
    turns = ["refused", "effect ok"] if effect == "once" else ["transient", "event effect ok"]
    ways = voided = 0
    for throw_at in itertools.count(1):
        whole = Stage(effect, turns, checks_guards_late=checks_guards_late)
        *_, length = played(whole, throw_at, 0)
        if throw_at > length:
            break
        for dies_at in range(length + 1):
            stage = Stage(effect, turns, checks_guards_late=checks_guards_late)
            how, ended, _ = played(stage, throw_at, dies_at)
            ways, voided = ways + 1, voided + stage.voided
            executed = stage.executions
            assert executed <= len(begun(stage)) - stage.voided, "nothing is called by a claim that is void"
            if how == "died" and stage.store.load_head(SWITCHES_ENTITY) is None:
                throw(stage)  # it died before the switch was thrown
            again = stage.play(stage.calling)  # somebody else comes while it is on
            assert stage.executions == executed, "nothing is called while the switch is on"
            assert len(begun(stage, stopped=True)) == stage.voided, "where there is one, it was not taken up"
            if again not in ("value 1", "value 2"):
                assert isinstance(again, NotPermitted | OutcomeUnknown), again
            release(stage)
            for _ in range(5):
                end = stage.play(stage.calling)
                if not isinstance(end, NotPermitted):
                    break
            assert end in ("value 1", "value 2", "value 3") or isinstance(end, OutcomeUnknown), end
            stage.judge.closing(stage.store)
            assert isinstance(ended, NotPermitted | OutcomeUnknown | str) or ended is None
            lost = 1 if how == "died" else 0
            assert stage.seen().record.attempt_count <= stage.executions + lost, (
                "what did not begin is no try"
            )
            if effect == "once":
                assert len(stage.happened) <= 1
    record_property("gate crashes", ways)
    assert ways > 50
    assert bool(voided) == checks_guards_late


def test_a_void_claim_that_somebody_else_has_taken_over_is_theirs() -> None:
    """Its worker was taken for dead before it came to give the claim back."""
    stage = Stage("idempotent", ["effect ok"], checks_guards_late=True)
    script = stage.calling()
    for op in script:
        if type(op) is ops.AppendChange and "INTENT" in op.change.marks and not stage.voided:
            throw(stage)
        if stage.voided:
            break
    assert type(op) is ops.AppendChange
    assert op.change.after.reason == "released"
    release(stage)
    stage.alive.clear()
    assert stage.play(stage.calling) == "value 2"
    with pytest.raises(StopIteration) as end:
        while True:
            next(script)
    assert end.value.value == "value 2"
    assert stage.executions == 1
    stage.judge.closing(stage.store)


def approve(stage: Stage) -> None:
    """Approve what waits, as `engine.approvals` does it: with the run, or not at all."""
    seen = stage.seen()
    assert seen.body is not None
    told = seen.body["requested"]
    made = Approval(
        "GRANTED",
        told["run_entity"],
        told["step"],
        told["effect"],
        told["input_hash"],
        told["cfg_hash"],
        told["policy"],
        9,
        0.0,
        "reviewer",
        "seen",
        stage.now,
    )
    name = approval_entity(ENTITY)
    after = end_attempt(seen.record, seen.record.state, "decided", not_before=stage.now)
    writes = (
        build_write(name, 0, NOWHERE, RecordChange(("APPROVAL",), None, made), stage.now),
        build_write(
            ENTITY,
            seen.version,
            seen.hash,
            RecordChange((seen.record.state, "DECISION"), seen.record, after),
            stage.now,
        ),
    )
    assert isinstance(stage.store.append(Batch(writes)).wait(), Stored)
    stage.book.run = after  # the judge has not seen it
    stage.book.version, stage.book.hash = seen.version + 1, writes[1].hash


def held_back() -> Stage:
    stage = Stage("once", ["effect ok"], approval=True)
    stage.judge.people = True
    return stage


@pytest.mark.req("AUTO-9")
def test_a_death_at_every_operation_of_work_that_needs_an_approval(
    record_property: Callable[[str, object], None],
) -> None:
    ways = 0
    for dies_at in itertools.count(0):
        stage = held_back()
        how, *_ = played(stage, 0, dies_at)
        assert stage.executions == 0
        if how == "ended" and dies_at:
            break
        assert isinstance(stage.play(stage.calling), NotPermitted)
        assert stage.seen().record.held_for == APPROVAL_NEEDED
        approve(stage)
        for second in itertools.count(1):
            copy = held_back()
            assert isinstance(copy.play(copy.calling), NotPermitted)
            approve(copy)
            died, *_ = played(copy, 0, second)
            ways += 1
            end = copy.play(copy.calling)
            assert end == "value 1" or isinstance(end, OutcomeUnknown)
            assert len(copy.happened) <= 1
            if died == "ended":
                break
    record_property("gate crashes", ways)
    assert ways > 10


def test_every_intent_carries_the_switches_it_was_let_through_by() -> None:
    stage = Stage("idempotent", ["transient", "effect ok"])
    saves: list[ops.AppendChange] = []
    script = stage.calling()
    for op in script:
        if type(op) is ops.AppendChange and "INTENT" in op.change.marks:
            saves.append(op)
    assert [save.guards for save in saves] == [{SWITCHES_ENTITY: 0}, {SWITCHES_ENTITY: 0}]
