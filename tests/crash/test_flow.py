"""Stopped before and after every operation of every flow, and again inside the recovery: effects hold."""

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
from oncemore.steps import ops
from tests.crash.harness import (
    AFTER_EACH,
    EVERYWHERE,
    CrashPoint,
    ProcessCrash,
    ScriptRun,
    crash_everywhere,
    start_call,
)
from tests.crash.simulation import ENTITY, POLICY, StepSimulation

OUTCOMES = {
    "succeeds": ["ok"],
    "fails twice, then succeeds": ["transient", "transient", "ok"],
    "fails after the effect, then succeeds": ["transient after", "ok"],
    "always fails": ["transient"],
    "fails for good": ["permanent"],
    "is refused, then succeeds": ["refused", "ok"],
}
EFFECTS = [("pure", False), ("idempotent", False), ("outbox", False), ("once", False), ("once", True)]


def check_end(simulation: StepSimulation, result: object, *, crashed: bool) -> None:
    """Check a finished run against the promise of its effect class."""
    run = simulation.check_log()
    assert run is not None
    assert run.state != "RUNNING"
    if simulation.effect == "once":
        # Without a reconcile function, one execution that may have had an effect; with one, as many as
        # it takes, each of them known not to have had any before the next.
        assert len(simulation.effects) <= 1
        if result == "value":
            assert len(simulation.effects) == 1
        else:
            assert isinstance(result, OutcomeUnknown | RetriesExhausted | PermanentFailure)
        if simulation.asks:
            assert not isinstance(result, OutcomeUnknown)
        return
    if result == "value":
        assert simulation.applied["k"] == 1 or simulation.effect == "outbox"
        assert run.state == "COMPLETE"
    else:
        assert isinstance(result, RetriesExhausted | PermanentFailure | Quarantined)
        poison = isinstance(result, Quarantined)
        assert (run.state, run.held_for) == (("SOFT_FAIL", "poison") if poison else ("HARD_FAIL", ""))
        assert not poison or (crashed and run.attempt_count == run.max_attempts)


@pytest.mark.unmeasured
@pytest.mark.parametrize(("effect", "asks"), EFFECTS, ids=lambda value: str(value))
@pytest.mark.parametrize("name", OUTCOMES, ids=str)
def test_a_crash_anywhere_and_again_in_the_recovery(name: str, effect: str, asks: bool) -> None:
    def start() -> StepSimulation:
        return StepSimulation(effect, OUTCOMES[name], asks=asks)

    whole = start()
    _, length = whole.run_call()
    check_end(whole, whole.call(), crashed=False)
    crashes = 0
    levels = (EVERYWHERE, AFTER_EACH)
    for simulation in crash_everywhere(
        start, StepSimulation.run_call, levels, after_crash=StepSimulation.check_log
    ):
        check_end(simulation, simulation.call(), crashed=True)
        crashes += 1
    assert crashes >= 2 * length


@pytest.mark.parametrize(("effect", "asks"), EFFECTS, ids=str)
def test_a_finished_run_is_never_run_again(effect: str, asks: bool) -> None:
    simulation = StepSimulation(effect, ["ok"], asks=asks)
    assert simulation.call() == "value"
    assert [simulation.call() for _ in range(10)] == ["value"] * 10
    assert simulation.executions == 1


def test_a_failure_sticks() -> None:
    simulation = StepSimulation("idempotent", ["permanent", "ok"])
    first, again = simulation.call(), simulation.call()
    assert isinstance(first, PermanentFailure)
    assert isinstance(again, PermanentFailure)
    assert "permanent" in str(again)
    assert simulation.executions == 1


def test_a_once_effect_that_may_have_happened_is_held_and_never_repeated() -> None:
    simulation = StepSimulation("once", ["transient after", "ok"])
    for _ in range(5):
        assert isinstance(simulation.call(), OutcomeUnknown)
    assert simulation.executions == 1


def start_attempt(simulation: StepSimulation, **plan: object) -> ScriptRun:
    """Start a call and stop it before its attempt."""
    run = simulation.start(**plan)
    run.run_until(ops.RunAttempt)
    return run


@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox", "once"])
def test_a_former_holder_can_neither_commit_nor_fail_the_run(effect: str) -> None:
    simulation = StepSimulation(effect, ["ok"], asks=True)
    zombie = start_attempt(simulation)
    late = simulation.perform(zombie.op)  # the attempt is over, and its process is paused
    simulation.live_workers.clear()
    assert simulation.call() == "value"
    version = simulation.load_run().version
    zombie.resume(late)
    end = zombie.run()
    if effect == "once":
        assert isinstance(end.error, LeaseLost)
    else:
        assert end.value == "value"  # it reads the result of the other process
    assert simulation.load_run().version == version
    simulation.check_log()


def test_a_former_holder_that_failed_reads_what_the_other_committed() -> None:
    simulation = StepSimulation("idempotent", ["transient", "ok"])
    zombie = start_attempt(simulation)
    late = simulation.perform(zombie.op)
    simulation.live_workers.clear()
    assert simulation.call() == "value"
    zombie.resume(late)
    assert zombie.run().value == "value"


def test_a_key_that_is_being_worked_on_is_refused_or_waited_for() -> None:
    simulation = StepSimulation("idempotent", ["ok"])
    holder = start_attempt(simulation)
    refused = simulation.start(if_running="raise").run()
    assert isinstance(refused.error, InProgress)
    assert "worker-1" in str(refused.error)
    waiting = simulation.start()
    assert waiting.run_until(ops.WatchEntity).seconds == 60.0
    assert holder.run().value == "value"
    waiting.resume(None)
    assert waiting.run().value == "value"
    assert simulation.executions == 1


def test_of_two_that_claim_at_once_one_waits_for_the_other() -> None:
    simulation = StepSimulation("idempotent", ["ok"])
    one, two = simulation.start(), simulation.start()
    for run in (one, two):
        run.run_until(ops.AppendChange)
    one.step()
    assert type(one.op) is ops.RunAttempt
    two.run_until(ops.WatchEntity)
    assert one.run().value == "value"
    two.resume(None)
    assert two.run().value == "value"
    assert simulation.executions == 1


def test_other_arguments_under_the_same_key_are_refused() -> None:
    simulation = StepSimulation("idempotent", ["ok"])
    simulation.call()
    other = start_call(simulation.make_plan(), simulation.make_call(input_hash="other"))
    assert isinstance(simulation.start(other).run().error, KeyConflict)


def test_a_long_wait_is_deferred_and_a_later_call_continues() -> None:
    simulation = StepSimulation("idempotent", ["transient", "ok"])
    deferred = simulation.start(inline_wait_s=1.0).run().error
    assert isinstance(deferred, Deferred)
    assert deferred.until == 1005.0
    assert pickle.loads(pickle.dumps(deferred)).until == 1005.0  # noqa: S301 - our own bytes
    simulation.live_workers.clear()
    assert simulation.call() == "value"
    assert simulation.now == 1005.0


def refuse_to_encode(value: object) -> object:
    raise ResultUnavailable("a lambda cannot be kept")


@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_a_result_that_cannot_be_kept_is_done_all_the_same(effect: str) -> None:
    simulation = StepSimulation(effect, ["ok"])
    for _ in range(3):
        error = simulation.start(encode=refuse_to_encode).run().error
        assert isinstance(error, ResultUnavailable)
        assert "a lambda cannot be kept" in str(error)
    assert simulation.executions == 1
    run = simulation.check_log()
    assert run is not None
    assert run.state == "COMPLETE"


def test_a_pure_result_that_cannot_be_kept_is_a_failure() -> None:
    simulation = StepSimulation("pure", ["ok"])
    first = simulation.start(encode=refuse_to_encode).run().error
    assert isinstance(first, PermanentFailure)
    assert isinstance(first.__cause__, ResultUnavailable)
    assert isinstance(simulation.call(), PermanentFailure)
    assert simulation.executions == 1


def test_a_pure_result_that_cannot_be_kept_by_a_worker_without_its_lease_changes_nothing() -> None:
    simulation = StepSimulation("pure", ["ok"])
    zombie = start_attempt(simulation, encode=refuse_to_encode)
    late = simulation.perform(zombie.op)
    simulation.live_workers.clear()
    assert simulation.call() == "value"
    zombie.resume(late)
    assert zombie.run().value == "value"


def test_a_run_keeps_the_budget_it_was_given() -> None:
    simulation = StepSimulation("idempotent", ["transient"])
    with pytest.raises(ProcessCrash):
        simulation.run_call(CrashPoint(6, "after"))
    generous = simulation.start(policy=POLICY.replace(max_attempts=9))
    assert isinstance(generous.run().error, RetriesExhausted)
    assert simulation.executions == 3


def test_the_state_is_rebuilt_from_the_headers_and_unknown_formats_are_refused() -> None:
    simulation = StepSimulation("idempotent", ["transient", "ok"])
    simulation.call()
    headers = [decode_header(entry.header) for entry in simulation.store.read_entries(ENTITY)]
    run: RunRecord | None = None
    for header in headers:
        run = apply_header(run, header.sets)
    assert run == simulation.load_run().record
    assert apply_header(None, headers[0].sets).state == "RUNNING"
    with pytest.raises(IllegalTransition):
        apply_header(simulation.load_run().record, {"state": "RUNNING"})
    with pytest.raises(StoreError, match="cannot be read"):
        decode_header(b"{}")
    newer = msgspec.json.encode(msgspec.structs.replace(headers[0], format=99))
    with pytest.raises(StoreError, match="newer"):
        decode_header(newer)
    with pytest.raises(StoreError, match="newer"):
        decode_head(b"[99]")
