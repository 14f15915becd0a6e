"""Perform the operations of a call: one function per operation, and the table of them.

The functions get the call and the operation (`steps.ops`) and return the result that the script is sent.
Operations that may wait have an async function too; both run the same script.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._driver import OperationTable, run_script, run_script_async
from oncemore._values import make
from oncemore.errors import LeaseLost, UsageError, log_warning
from oncemore.limits import budget_step
from oncemore.limits.breaker import run_limit_script, run_limit_script_async
from oncemore.limits.shared_rate import RateLimiter
from oncemore.log.entry_codec import load_head
from oncemore.log.group_commit import InterruptShield
from oncemore.retries import deadlines
from oncemore.retries.loop import ENDS, CallFunction
from oncemore.steps.append import append_change, append_change_async, run_in_thread
from oncemore.steps.attempt import CURRENT, AttemptContext, RunningAttempt
from oncemore.steps.attempt_storage import AttemptStorage, read_entry
from oncemore.steps.call import PreparedCall
from oncemore.steps.ops import (
    AppendChange,
    AskPermission,
    AskReconcile,
    AttemptOutcome,
    CheckArtifact,
    CommitTransaction,
    DrawBudget,
    EarnBudget,
    FetchResult,
    LoadBreaker,
    LoadHead,
    LoadPolicy,
    NotifyListeners,
    PrepareSubmission,
    ReadBody,
    ReadClock,
    ReadLease,
    RefundBudget,
    ReserveWorker,
    RunAttempt,
    SleepSeconds,
    SpillResult,
    TakeRateSlot,
    WatchEntity,
)
from oncemore.steps.reconcile import ask_reconcile, ask_reconcile_async
from oncemore.steps.transactions import (
    commit_transaction,
    commit_transaction_async,
    roll_back,
    roll_back_async,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from oncemore._driver import Script
    from oncemore.log.record import LoadedHead
    from oncemore.policy.policy import Policy
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import AttemptTerms, EndCall, Permission

#: Poll interval of a caller that waits for another worker: at first, at most, and the total.
POLL_FIRST_S, POLL_MAX_S, POLL_TOTAL_S = 0.002, 0.05, 0.5
_REAL_CLOCK = clocks.Clock()


def run_call(call: PreparedCall, script: Script[EndCall], table: OperationTable | None = None) -> Any:
    """Run the script of a call to its end in this thread; return the value or raise the error.

    table  the functions that perform the operations, where the step is of another kind (`oncemore exec`)
    """
    return _finish_call(call, script, table or CALL_OPERATIONS)


def _finish_call(
    call: PreparedCall, script: Script[EndCall], table: OperationTable, reply: object = None
) -> Any:
    try:
        end = run_script(script, table, call, reply)
    except BaseException as error:
        call.abandon(error)
        # The interruption takes precedence over later errors.
        if call.interrupt is not None and error is not call.interrupt:
            raise call.interrupt from error
        raise
    return call.finish(end)


async def run_call_async(
    call: PreparedCall, script: Script[EndCall], table: OperationTable | None = None
) -> Any:
    """Run the script of a call to its end in this task, on asyncio or trio; like `run_call`."""
    table = table or CALL_OPERATIONS
    try:
        end = await run_script_async(script, table, call)
    except GeneratorExit as closed:
        # Closing a coroutine ends its innermost await first, which left its result in `last_answer`. The rest
        # of the script runs without awaiting and raises this again.
        if call.last_answer is None:
            call.abandon(closed)
            raise
        call.interrupt = closed
        return _finish_call(call, script, table, call.last_answer)
    except BaseException as error:
        call.abandon(error)
        if call.interrupt is not None and error is not call.interrupt:
            raise call.interrupt from error
        raise
    return call.finish(end)


def run_decision(engine: Engine, script: Script[EndCall]) -> Any:
    """Run the script of an operator's decision to its end; return its value or raise its error."""
    return run_call(PreparedCall.for_decision(engine), script)


# Reading --------------------------------------------------------------------------------------------


def _load_head(call: PreparedCall, op: LoadHead) -> LoadedHead:
    call.was_reread = True
    return load_head(call.store, op.entity, call.engine.cipher, op.kind)


def _load_policy(call: PreparedCall, op: LoadPolicy) -> Policy | None:
    policy = call.engine.policies.find_policy(call.engine, op.name)
    if policy is None:
        log_warning(
            f"{call.plan.name}: the log does not have policy {op.name}, with which the run began; it goes on "
            "with its attempts and the step's present policy"
        )
    return policy


def _read_clock(call: PreparedCall, op: ReadClock) -> float:
    return call.engine.now()


def _sleep_seconds(call: PreparedCall, op: SleepSeconds) -> None:
    if call.interrupt is not None:
        raise call.interrupt
    clocks.current.sleep(op.seconds)


async def _sleep_seconds_async(call: PreparedCall, op: SleepSeconds) -> None:
    if call.interrupt is not None:
        raise call.interrupt
    await clocks.current.pause(op.seconds)


def _watch_entity(call: PreparedCall, op: WatchEntity) -> None:
    for pause in _poll_intervals(call, op):
        time.sleep(pause)


async def _watch_entity_async(call: PreparedCall, op: WatchEntity) -> None:
    for pause in _poll_intervals(call, op):
        await _REAL_CLOCK.pause(pause)


def _poll_intervals(call: PreparedCall, op: WatchEntity) -> Generator[float, None, None]:
    """Yield poll intervals until the entity has changed or the lease must be read again.

    In real time even under a test clock: another process works meanwhile.
    """
    if call.interrupt is not None:
        raise call.interrupt
    ends, pause = time.monotonic() + min(op.seconds, POLL_TOTAL_S), POLL_FIRST_S
    while (left := ends - time.monotonic()) > 0:
        yield min(pause, left)
        with InterruptShield():
            head = call.store.load_head(op.entity)
        if head is None or head.version != op.version:
            return
        pause = min(pause * 1.5, POLL_MAX_S)


# Permission, worker, limits -------------------------------------------------------------------------


def _ask_permission(call: PreparedCall, op: AskPermission) -> Permission:
    return call.engine.permissions.ask_permission(call.engine, op)


async def _ask_permission_async(call: PreparedCall, op: AskPermission) -> Permission:
    # A second source of switches may be on another machine.
    if call.interrupt is not None or not call.engine.permissions.has_external:
        return _ask_permission(call, op)
    return await run_in_thread(_ask_permission, call, op)  # type: ignore[no-any-return]


def _reserve_worker(call: PreparedCall, op: ReserveWorker) -> AttemptTerms:
    """Reserve this process's worker, whose lease covers the attempt, and return the terms."""
    if call.has_reservation:
        call.release_worker()
    if op.seen is not None:
        call.load_arguments(op.seen)
    engine, lease = call.engine, call.plan.lease
    now, leases = engine.now(), engine.leases
    while True:
        worker = leases.current_identity(now) if lease is None else leases.identity_for(lease, now)
        # A worker that was retired at this very moment refuses; the next one is another.
        if worker.reserve_slot():
            break
    call.worker, call.has_reservation = worker, True
    terms = call.make_terms(call, worker.name, now)
    engine.policies.record_policy(engine, op.policy_name, op.policy, op.source)
    return terms


def _prepare_submission(call: PreparedCall, op: PrepareSubmission) -> AttemptTerms:
    terms = call.make_terms(call, "", call.engine.now())
    call.engine.policies.record_policy(call.engine, *op)
    return terms


def _take_rate_slot(call: PreparedCall, op: TakeRateSlot) -> float:
    return run_limit_script(_rate_script(call, op))


async def _take_rate_slot_async(call: PreparedCall, op: TakeRateSlot) -> float:
    return await run_limit_script_async(_rate_script(call, op))


def _rate_script(call: PreparedCall, op: TakeRateSlot) -> Script[float]:
    """Return the script that takes a slot; all steps on the engine share one limiter per rate."""
    engine = call.engine
    limiter = engine.rate_limiters.get(op.rate)
    if limiter is None:
        made = RateLimiter(op.rate.limit, op.rate.name, lambda: engine)
        limiter = engine.rate_limiters.setdefault(op.rate, made)
    return limiter.take_slot(has_slot=op.has_slot)


def _earn_budget(call: PreparedCall, op: EarnBudget) -> None:
    run_limit_script(budget_step.earn_budget(call.engine, op.budget))


async def _earn_budget_async(call: PreparedCall, op: EarnBudget) -> None:
    # A cancelled task must not await.
    if call.interrupt is not None:
        return _earn_budget(call, op)
    return await run_limit_script_async(budget_step.earn_budget(call.engine, op.budget))


# The attempt ----------------------------------------------------------------------------------------


def _run_attempt(call: PreparedCall, op: RunAttempt) -> AttemptOutcome:
    if call.interrupt is not None:
        return AttemptOutcome(op.seen, None, call.interrupt, begun=False)
    attempt, invoke = RunningAttempt(op.seen, AttemptStorage(call), CURRENT.get()), _compute_limits(op)
    try:
        with AttemptContext(attempt, call.engine.artifact_store, invoke.ends):
            if invoke.limit_s is None and not call.plan.isolate:
                value = call.plan.function(*call.args, **call.kwargs)
            else:
                value = _call_limited(call, attempt, invoke)
    except BaseException as error:  # noqa: BLE001 - passed to the script as a value
        if attempt.mark is not None:
            roll_back(attempt.mark)
        return build_outcome(call, attempt, None, error)
    return build_outcome(call, attempt, value, None)


def _call_limited(call: PreparedCall, attempt: RunningAttempt, invoke: CallFunction) -> Any:
    """Call a plain function under its time limit, in a process of its own if the step asks for that."""
    isolate = call.plan.isolate
    if callable(isolate):
        return isolate(call, attempt, invoke)
    if isolate:
        from oncemore.steps import isolation

        return isolation.run_in_process(call, attempt, invoke)

    def work() -> Any:
        return call.plan.function(*call.args, **call.kwargs)

    # An abandoned thread must not use the transaction while it is rolled back: wait for it.
    if attempt.seen.record.effect == "transactional":
        return deadlines.run_to_end(attempt.step, invoke, work)
    from oncemore.retries import timeouts

    return timeouts.run_in_helper(attempt.step, invoke, work)


async def _run_attempt_async(call: PreparedCall, op: RunAttempt) -> AttemptOutcome:
    if call.interrupt is not None:
        return AttemptOutcome(op.seen, None, call.interrupt, begun=False)
    attempt, invoke = RunningAttempt(op.seen, AttemptStorage(call), CURRENT.get()), _compute_limits(op)
    try:
        with AttemptContext(attempt, call.engine.artifact_store, invoke.ends):
            work = call.plan.function(*call.args, **call.kwargs)
            value = await (
                work if invoke.limit_s is None else deadlines.run_with_timeout(attempt.step, invoke, work)
            )
    except BaseException as error:  # noqa: BLE001 - passed to the script as a value
        if attempt.mark is not None:
            await roll_back_async(attempt.mark, error)
        outcome = build_outcome(call, attempt, None, error)
        call.keep_if_closed(error, outcome)
        return outcome
    return build_outcome(call, attempt, value, None)


def _compute_limits(op: RunAttempt) -> CallFunction:
    """Return the limits of an attempt; the end of an outer attempt also limits the inner one."""
    outer, limit, whole = ENDS.get(), op.limit_s, op.whole
    if outer is None and limit is None:
        return make(CallFunction, (op.seen.record.attempt, None, whole, None))
    if outer is not None:
        left = max(0.0, outer - clocks.current.monotonic())
        if limit is None or left < limit:
            limit, whole = left, True
    ends = None if limit is None else clocks.current.monotonic() + limit
    return CallFunction(op.number, limit, whole, ends)


def build_outcome(
    call: PreparedCall, attempt: RunningAttempt, value: Any, error: BaseException | None
) -> AttemptOutcome:
    """Return the outcome of an attempt and end it.

    A child process that was forked inside the function and returns from it writes nothing.
    """
    attempt.over = True
    if attempt.is_forked:
        raise error or LeaseLost(f"{attempt.step}: attempt {attempt.number} is that of the parent process")
    # An interruption of a checkpoint was raised inside the function: its own outcome counts.
    call.interrupt = None if error is None or isinstance(error, Exception) else error
    if attempt.mark is not None and attempt.mark.applied is not None:
        call.interrupt = None
        return AttemptOutcome(attempt.seen, applied=attempt.mark.applied)
    if error is not None:
        evidence = tuple((record, None) for record in attempt.evidence)
        return AttemptOutcome(attempt.seen, None, error, attempt.begun, evidence=evidence)
    if attempt.seen.record.effect == "transactional" and attempt.mark is None and attempt.also is None:
        refusal = UsageError(
            f"{attempt.step} is transactional and used neither current().transaction(connection) nor "
            "current().on_commit(write): what it wrote, if it did, was not one with its record"
        )
        return AttemptOutcome(attempt.seen, None, refusal)
    if attempt.artifacts or attempt.mark is not None or attempt.also is not None:
        return AttemptOutcome(
            attempt.seen,
            value,
            events=attempt.collect_outputs(),
            artifacts=attempt.list_artifacts(),
            mark=attempt.mark,
            also=attempt.also,
        )
    return AttemptOutcome(attempt.seen, value, None, True, attempt.events)


# Artifacts ------------------------------------------------------------------------------------------


def _check_artifact(call: PreparedCall, op: CheckArtifact) -> Any:
    return call.engine.artifacts.check_artifact(op.entity, op.cfg_hash, op.name)


async def _check_artifact_async(call: PreparedCall, op: CheckArtifact) -> Any:
    if call.interrupt is not None:
        return _check_artifact(call, op)
    return await run_in_thread(_check_artifact, call, op)


def _spill_result(call: PreparedCall, op: SpillResult) -> Any:
    try:
        return _write_result(call, op)
    except BaseException as error:  # noqa: BLE001 - raised after the result is stored in the log
        call.interrupt = error
        return None


async def _spill_result_async(call: PreparedCall, op: SpillResult) -> Any:
    try:
        return await run_in_thread(_write_result, call, op)
    except BaseException as error:  # noqa: BLE001 - as in `_spill_result`
        call.interrupt = error
        return None


def _write_result(call: PreparedCall, op: SpillResult) -> Any:
    return call.engine.artifacts.spill_result(op.seen.entity, op.seen.record, op.encoded)


def _fetch_result(call: PreparedCall, op: FetchResult) -> Any:
    return call.engine.artifacts.fetch_result(op.spilled)


async def _fetch_result_async(call: PreparedCall, op: FetchResult) -> Any:
    return (
        _fetch_result(call, op)
        if call.interrupt is not None
        else await run_in_thread(_fetch_result, call, op)
    )


CALL_OPERATIONS = OperationTable(
    {
        LoadHead: _load_head,
        LoadPolicy: _load_policy,
        LoadBreaker: lambda call, op: call.engine.breakers.load_breaker(call.engine, op.entity),
        ReadClock: _read_clock,
        ReadLease: lambda call, op: call.engine.leases.lease_until(op.worker, op.entity, op.fence),
        ReadBody: lambda call, op: read_entry(call, op.entity, op.version),
        SleepSeconds: _sleep_seconds,
        WatchEntity: _watch_entity,
        AskPermission: _ask_permission,
        ReserveWorker: _reserve_worker,
        PrepareSubmission: _prepare_submission,
        TakeRateSlot: _take_rate_slot,
        DrawBudget: lambda call, op: budget_step.draw_budget(call.engine, op),
        RefundBudget: lambda call, op: budget_step.refund_budget(call.engine, op),
        EarnBudget: _earn_budget,
        AppendChange: append_change,
        RunAttempt: _run_attempt,
        CommitTransaction: commit_transaction,
        AskReconcile: ask_reconcile,
        CheckArtifact: _check_artifact,
        SpillResult: _spill_result,
        FetchResult: _fetch_result,
        NotifyListeners: lambda call, op: call.engine.listener.notify(op.what, op.seen),
    },
    {
        SleepSeconds: _sleep_seconds_async,
        WatchEntity: _watch_entity_async,
        AskPermission: _ask_permission_async,
        TakeRateSlot: _take_rate_slot_async,
        EarnBudget: _earn_budget_async,
        AppendChange: append_change_async,
        RunAttempt: _run_attempt_async,
        CommitTransaction: commit_transaction_async,
        AskReconcile: ask_reconcile_async,
        CheckArtifact: _check_artifact_async,
        SpillResult: _spill_result_async,
        FetchResult: _fetch_result_async,
    },
)
