"""Who dies on the line before and after each write: an execution is counted once, never twice, never not."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from oncemore.errors import Cancelled, CoolingDown
from oncemore.steps import operator_flow, ops
from tests.limits.cooldowns.world import Crash, Room

if TYPE_CHECKING:
    from oncemore.limits.cooldown_rules import ResourceRecord

#: Turns of the work, and the outcomes that its record may have: deaths use attempts up.
SCENARIOS = {
    "it comes good": (["ok"], {"SUCCESS"}),
    "it fails once and comes good": (["transient", "ok"], {"SUCCESS", "RETRYABLE_FAILURE", "QUARANTINE"}),
    "it fails until no attempt is left": (["transient"], {"RETRYABLE_FAILURE", "QUARANTINE"}),
    "it fails for good": (["permanent"], {"TERMINAL_FAILURE"}),
    "a person has to look": (["review"], {"QUARANTINE"}),
    "it wants to be left alone for long": (["deferred"], {"RETRYABLE_FAILURE"}),
}
#: How many processes die one after the other.
DEEP = {"it comes good": 2, "a person has to look": 2}


def after(turns: list[str], deaths: tuple[tuple[int, str], ...]) -> Room | None:
    """Return what is left when processes died one after the other; None if the last one came to its end."""
    room = Room(turns)
    for at in deaths:
        try:
            room.drive(at)
        except Crash:
            room.atomic()
        else:
            return None
    return room


def killed(turns: list[str], outcomes: set[str], deaths: tuple[tuple[int, str], ...], deep: int) -> int:
    count = 0
    for number in itertools.count(1):
        rooms = [after(turns, (*deaths, (number, when))) for when in ("before", "after")]
        if rooms == [None, None]:
            return count
        for when, room in zip(("before", "after"), rooms, strict=True):
            if room is not None:
                room.drive()
                judge(room, outcomes)
                count += 1 + (killed(turns, outcomes, (*deaths, (number, when)), deep - 1) if deep > 1 else 0)
    raise AssertionError


def judge(room: Room, outcomes: set[str]) -> None:
    book: ResourceRecord = room.book().record
    assert book.attempt_count_total == 1, "one execution, counted once"
    assert book.last_attempt_outcome in outcomes
    executed = room.executions
    end, _ = room.drive()
    if book.validation_status == "VALID":
        assert (end.value, end.error) == ("value", None)
    else:
        assert isinstance(end.error, CoolingDown), end
    assert room.executions == executed, "nobody is asked"
    assert room.book().record == book, "a skip changes nothing"


@pytest.mark.req("COOL-6", "COOL-11", "COOL-8")
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_execution_is_counted_once_wherever_its_processes_die(name: str) -> None:
    turns, outcomes = SCENARIOS[name]
    whole = Room(turns)
    whole.drive()
    judge(whole, outcomes)
    crashes = killed(turns, outcomes, (), DEEP.get(name, 1))
    print(f"\n{name}: {crashes} ways to die")
    assert crashes > 20


def test_a_record_that_changes_between_the_look_and_the_claim_is_looked_at_again() -> None:
    """Another key of the same resource fails in between: this one must not ask any more."""
    room = Room(["transient"])
    script = room.script()
    op = room.advance(script, next(script), ops.AppendChange)
    assert "INTENT" in op.change.marks
    assert op.guards["resource/p"] == 0
    Room(["transient"], "run/other", beside=room).drive()
    assert room.book().record.attempt_count_total == 1
    op = script.send(room.do(op))
    while type(op) is not ops.EndCall:
        op = script.send(room.do(op))
    assert isinstance(op.error, CoolingDown)
    assert (op.error.outcome, room.executions) == ("SKIPPED_BACKOFF", 0)


def test_two_keys_of_one_resource_at_once_are_both_counted() -> None:
    """The second to end finds that the record has moved, reads it again, and counts on from there."""
    room = Room(["transient", "transient", "transient"])
    script = room.script()
    op = next(script)
    while not (type(op) is ops.AppendChange and op.also):
        op = script.send(room.do(op))
    Room(["transient"], "run/other", beside=room).drive()
    while type(op) is not ops.EndCall:
        op = script.send(room.do(op))
    assert room.book().record.attempt_count_total == 2
    assert room.executions == 3, "the attempt is not lost for that"


def test_nobody_waits_inside_a_call_for_what_is_left_alone() -> None:
    room = Room(["deferred"])
    room.drive()
    room.now += 4990.0  # ten more seconds, which a call would sit out
    end, _ = room.drive()
    assert isinstance(end.error, CoolingDown)
    assert (end.error.outcome, room.executions) == ("SKIPPED_BACKOFF", 1)
    room.now += 10.0
    room.drive()
    assert (room.executions, room.book().record.attempt_count_total) == (2, 2)


def test_a_run_that_is_put_off_while_somebody_cancels_it_is_cancelled() -> None:
    room = Room(["transient"])
    Room(["transient"], "run/other", beside=room).drive()
    submitting = operator_flow.submit_run(room.plan(), room.call(), 0.0)
    op = next(submitting)
    while type(op) is not ops.EndCall:
        op = submitting.send(room.do(op))
    script = room.script()
    op = next(script)
    while not (type(op) is ops.AppendChange and op.change.marks == ("DECISION",)):
        op = script.send(room.do(op))
    assert op.change.after.reason == "cooling_down"
    cancelling = operator_flow.cancel_run(room.plan(), room.call(), "because", "somebody")
    other = next(cancelling)
    while type(other) is not ops.EndCall:
        other = cancelling.send(room.do(other))
    while type(op) is not ops.EndCall:
        op = script.send(room.do(op))
    assert isinstance(op.error, Cancelled)
    assert room.executions == 0
