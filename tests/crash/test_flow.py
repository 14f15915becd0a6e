"""Stopped before and after every operation of every flow, and again inside the recovery: effects hold."""

import itertools
import pickle

import msgspec
import pytest

from oncemore.errors import (
    Deferred,
    IllegalTransition,
    InProgress,
    KeyConflict,
    LeaseLost,
    OutcomeUnknown,
    PermanentFailure,
    Quarantined,
    ResultUnavailable,
    RetriesExhausted,
    StoreError,
)
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.record import RunRecord, apply_header
from oncemore.steps import flow, ops
from tests.crash.world import ENTITY, POLICY, Crash, World

SCRIPTS = {
    "succeeds": ["ok"],
    "fails twice, then succeeds": ["transient", "transient", "ok"],
    "fails after the effect, then succeeds": ["transient after", "ok"],
    "always fails": ["transient"],
    "fails for good": ["permanent"],
    "is refused, then succeeds": ["refused", "ok"],
}
EFFECTS = [("pure", False), ("idempotent", False), ("outbox", False), ("once", False), ("once", True)]


def finish(world: World) -> object:
    """Call again, as a person or a message would, until there is an end; return its value or error."""
    end, _ = world.drive()
    return end.value if end.error is None else end.error


def judge(world: World, result: object, crashes: int) -> None:
    """Hold a finished world to what its effect class promises."""
    run = world.check()
    assert run is not None
    assert run.state != "RUNNING"
    if world.effect == "once":
        # Without a reconcile function, one execution that may have had an effect; with one, as many as
        # it takes, each of them known not to have had any before the next.
        assert len(world.happened) <= 1
        if result == "value":
            assert len(world.happened) == 1
        else:
            assert isinstance(result, OutcomeUnknown | RetriesExhausted | PermanentFailure)
        if world.asks:
            assert not isinstance(result, OutcomeUnknown)
        return
    if result == "value":
        assert world.applied["k"] == 1 or world.effect == "outbox"
        assert run.state == "COMPLETE"
    else:
        assert isinstance(result, RetriesExhausted | PermanentFailure | Quarantined)
        poison = isinstance(result, Quarantined)
        assert (run.state, run.held_for) == (("SOFT_FAIL", "poison") if poison else ("HARD_FAIL", ""))
        assert not poison or (crashes and run.attempt_count == run.max_attempts)


@pytest.mark.unmeasured
@pytest.mark.parametrize(("effect", "asks"), EFFECTS, ids=lambda value: str(value))
@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_crash_anywhere_and_again_in_the_recovery(script: str, effect: str, asks: bool) -> None:
    turns = SCRIPTS[script]
    whole = World(effect, turns, asks=asks)
    _, ops = whole.drive()
    judge(whole, finish(whole), 0)
    cases = 0
    for first in itertools.product(range(1, ops + 1), ("before", "after")):
        deep = 1
        while True:
            world = World(effect, turns, asks=asks)
            with pytest.raises(Crash):
                world.drive(first)
            world.check()
            try:
                world.drive((deep, "after"))
            except Crash:
                world.check()
                judge(world, finish(world), 2)
                cases += 1
                deep += 1
                continue
            judge(world, finish(world), 1)
            break
    assert cases >= ops


@pytest.mark.parametrize(("effect", "asks"), EFFECTS, ids=str)
def test_a_finished_run_is_never_run_again(effect: str, asks: bool) -> None:
    world = World(effect, ["ok"], asks=asks)
    assert finish(world) == "value"
    assert [finish(world) for _ in range(10)] == ["value"] * 10
    assert world.executions == 1


def test_a_failure_sticks() -> None:
    world = World("idempotent", ["permanent", "ok"])
    first, again = finish(world), finish(world)
    assert isinstance(first, PermanentFailure)
    assert isinstance(again, PermanentFailure)
    assert "permanent" in str(again)
    assert world.executions == 1


def test_a_once_effect_that_may_have_happened_is_held_and_never_repeated() -> None:
    world = World("once", ["transient after", "ok"])
    for _ in range(5):
        assert isinstance(finish(world), OutcomeUnknown)
    assert world.executions == 1


def begun(world: World, **changes: object) -> tuple[object, object]:
    """Start a call and stop it where it would run the work."""
    script = flow.run_step(world.plan().copy_with(**changes), world.call())
    return script, world.advance(script, next(script), ops.RunAttempt)


def ended(world: World, script: object, op: object) -> ops.EndCall:
    end = world.advance(script, op, ops.EndCall)
    assert isinstance(end, ops.EndCall)
    return end


@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox", "once"])
def test_a_former_holder_can_neither_commit_nor_fail_the_run(effect: str) -> None:
    world = World(effect, ["ok"], asks=True)
    zombie, op = begun(world)
    late = world.do(op)  # it did its work, then was paused
    world.alive.clear()
    assert finish(world) == "value"
    version = world.seen().version
    end = ended(world, zombie, zombie.send(late))  # type: ignore[attr-defined]
    if effect == "once":
        assert isinstance(end.error, LeaseLost)
    else:
        assert end.value == "value"  # it reads what the other committed
    assert world.seen().version == version
    world.check()


def test_a_former_holder_that_failed_reads_what_the_other_committed() -> None:
    world = World("idempotent", ["transient", "ok"])
    zombie, op = begun(world)
    late = world.do(op)
    world.alive.clear()
    assert finish(world) == "value"
    assert ended(world, zombie, zombie.send(late)).value == "value"  # type: ignore[attr-defined]


def test_a_key_that_is_being_worked_on_is_refused_or_waited_for() -> None:
    world = World("idempotent", ["ok"])
    holder, op = begun(world)
    hasty = flow.run_step(world.plan().copy_with(if_running="raise"), world.call())
    refused = ended(world, hasty, next(hasty))
    assert isinstance(refused.error, InProgress)
    assert "worker-1" in str(refused.error)
    patient = flow.run_step(world.plan(), world.call())
    waiting = world.advance(patient, next(patient), ops.WatchEntity)
    assert waiting.seconds == 60.0
    ended(world, holder, holder.send(world.do(op)))  # type: ignore[attr-defined]
    assert ended(world, patient, patient.send(None)).value == "value"
    assert world.executions == 1


def test_of_two_that_claim_at_once_one_waits_for_the_other() -> None:
    world = World("idempotent", ["ok"])
    one, two = (flow.run_step(world.plan(), world.call()) for _ in range(2))
    first, second = (world.advance(script, next(script), ops.AppendChange) for script in (one, two))
    work = one.send(world.do(first))
    assert type(work) is ops.RunAttempt
    waiting = world.advance(two, second, ops.WatchEntity)
    assert ended(world, one, work).value == "value"
    assert type(waiting) is ops.WatchEntity
    assert ended(world, two, two.send(None)).value == "value"
    assert world.executions == 1


def test_other_arguments_under_the_same_key_are_refused() -> None:
    world = World("idempotent", ["ok"])
    finish(world)
    script = flow.run_step(world.plan(), world.call()._replace(input_hash="other"))
    assert isinstance(ended(world, script, next(script)).error, KeyConflict)


def test_a_long_wait_is_parked_and_a_later_call_goes_on() -> None:
    world = World("idempotent", ["transient", "ok"])
    script = flow.run_step(world.plan().copy_with(inline_wait_s=1.0), world.call())
    parked = ended(world, script, next(script)).error
    assert isinstance(parked, Deferred)
    assert parked.until == 1005.0
    assert pickle.loads(pickle.dumps(parked)).until == 1005.0  # noqa: S301 - our own bytes
    world.alive.clear()
    assert finish(world) == "value"
    assert world.now == 1005.0


def odd(value: object) -> object:
    raise ResultUnavailable("a lambda cannot be kept")


@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_a_result_that_cannot_be_kept_is_done_all_the_same(effect: str) -> None:
    world = World(effect, ["ok"])
    for _ in range(3):
        script = flow.run_step(world.plan().copy_with(encode=odd), world.call())
        error = ended(world, script, next(script)).error
        assert isinstance(error, ResultUnavailable)
        assert "a lambda cannot be kept" in str(error)
    assert world.executions == 1
    run = world.check()
    assert run is not None
    assert run.state == "COMPLETE"


def test_a_pure_result_that_cannot_be_kept_is_a_failure() -> None:
    world = World("pure", ["ok"])
    script = flow.run_step(world.plan().copy_with(encode=odd), world.call())
    first = ended(world, script, next(script)).error
    assert isinstance(first, PermanentFailure)
    assert isinstance(first.__cause__, ResultUnavailable)
    assert isinstance(finish(world), PermanentFailure)
    assert world.executions == 1


def test_a_pure_result_that_cannot_be_kept_by_one_who_lost_the_lease_changes_nothing() -> None:
    world = World("pure", ["ok"])
    zombie, op = begun(world, encode=odd)
    late = world.do(op)
    world.alive.clear()
    assert finish(world) == "value"
    assert ended(world, zombie, zombie.send(late)).value == "value"  # type: ignore[attr-defined]


def test_a_run_keeps_the_budget_it_was_given() -> None:
    world = World("idempotent", ["transient"])
    with pytest.raises(Crash):
        world.drive((6, "after"))
    generous = world.plan().copy_with(policy=POLICY.replace(max_attempts=9))
    script = flow.run_step(generous, world.call())
    assert isinstance(ended(world, script, next(script)).error, RetriesExhausted)
    assert world.executions == 3


def test_the_state_is_the_fold_of_the_headers_and_strangers_bytes_are_refused() -> None:
    world = World("idempotent", ["transient", "ok"])
    finish(world)
    headers = [decode_header(entry.header) for entry in world.store.read_entries(ENTITY)]
    run: RunRecord | None = None
    for header in headers:
        run = apply_header(run, header.sets)
    assert run == world.seen().record
    assert apply_header(None, headers[0].sets).state == "RUNNING"
    with pytest.raises(IllegalTransition):
        apply_header(world.seen().record, {"state": "RUNNING"})
    with pytest.raises(StoreError, match="cannot be read"):
        decode_header(b"{}")
    newer = msgspec.json.encode(msgspec.structs.replace(headers[0], format=99))
    with pytest.raises(StoreError, match="newer"):
        decode_header(newer)
    with pytest.raises(StoreError, match="newer"):
        decode_head(b"[99]")
