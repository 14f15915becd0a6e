"""The two drivers of durable calls: they perform the operations of a script, blocking or awaiting.

Both run the same script. They differ only in how they wait: for the disk, for the function, for time, for
another worker. Two rules keep an interruption (Ctrl-C, cancellation) from losing anything:

* A write that was begun is completed. If its acknowledgement was lost, the *same* compare-and-set is sent
  again, and the entry that stands in the log is the answer.
* The interruption is raised when the run is in a consistent state: where the script would wait or end.
  Between claim and function it makes an attempt that never began.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import make
from oncemore.artifacts.artifact import CURRENT_READER
from oncemore.limits.breaker import run_limit_script
from oncemore.limits.breaker import run_limit_script_async as script_awaited
from oncemore.log.interrupt_shield import InterruptShield
from oncemore.retries.deadlines import run_with_timeout
from oncemore.retries.loop import ENDS
from oncemore.steps.attempt import CURRENT, Attempt
from oncemore.steps.call_in_progress import CallInProgress, append_change, append_change_async, run_in_thread
from oncemore.steps.context import CONTEXT, CallContext, earlier_deadline
from oncemore.steps.ops import (
    AppendChange,
    ArtifactCheck,
    AskPermission,
    AskReconcile,
    AttemptOutcome,
    CheckArtifact,
    CommitTransaction,
    DrawBudget,
    EarnBudget,
    EndCall,
    FetchResult,
    LoadBreaker,
    LoadHead,
    LoadPolicy,
    NotifyListeners,
    PrepareSubmission,
    ReadBody,
    ReadClock,
    ReadLease,
    ReconcileAnswer,
    RefundBudget,
    ReserveWorker,
    RunAttempt,
    SleepSeconds,
    SpillResult,
    TakeRateSlot,
    TransactionOutcome,
    WatchEntity,
)
from oncemore.steps.transactions import AppliedMark, run_mark_script, run_mark_script_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from oncemore.log.record import ArtifactRecord
    from oncemore.log.store import Conflict, Stored
    from oncemore.steps.ops import Permission, Script

    Answered = Stored | Conflict

#: Poll interval of a caller that waits for another worker: at first, at most, and the total.
POLL_FIRST_S, POLL_MAX_S, POLL_TOTAL_S = 0.002, 0.05, 0.5


class _AttemptContext:
    """Sets the context variables of user code: attempt, call context, time limit, artifact store."""

    __slots__ = ("_artifact_store", "_attempt", "_ends", "_tokens")

    def __init__(self, job: CallInProgress, attempt: Attempt, ends: float | None) -> None:
        self._attempt, self._ends, self._artifact_store = attempt, ends, job.engine.artifact_store

    def __enter__(self) -> None:
        run, context = self._attempt.seen.record, CONTEXT.get()
        ends = earlier_deadline(run.deadline, context.deadline) if run.deadline else context.deadline
        carried = make(CallContext, (run.tenant, run.correlation_id, ends, context.actor, context.trace_id))
        reader = CURRENT_READER.set(self._artifact_store)
        self._tokens = CURRENT.set(self._attempt), CONTEXT.set(carried), ENDS.set(self._ends), reader

    def __exit__(self, *error: object) -> None:
        current, carried, ends, reader = self._tokens
        CURRENT_READER.reset(reader)
        ENDS.reset(ends)
        CONTEXT.reset(carried)
        CURRENT.reset(current)


def _check_reconcile_answer(job: CallInProgress, found: Any) -> ReconcileAnswer:
    if type(found) is ReconcileAnswer:
        return found
    job.engine.log_warning(
        f"a reconcile function answered {found!r}; it takes applied(), not_applied() or unknown()"
    )
    return ReconcileAnswer("unknown")


def _reconcile_failed(job: CallInProgress, error: BaseException) -> ReconcileAnswer:
    """Return "unknown" for a `reconcile` that raised; an interruption is raised after that is stored."""
    if isinstance(error, Exception):
        job.engine.log_warning(f"a reconcile function failed: {type(error).__name__}")
    else:
        job.interrupt = error
    return ReconcileAnswer("unknown")


# Blocking -------------------------------------------------------------------------------------------


def run_call(job: CallInProgress, script: Script, result: Any = None) -> Any:
    """Run a script to its end in this thread; return the value or raise the error.

    result  the result of the operation that the script yielded last, if it has begun
    """
    try:
        op = script.send(result)
        while (do := _BLOCKING.get(type(op))) is not None:  # EndCall has no entry
            op = script.send(do(job, op))
    except BaseException as error:
        job.abandon_call(error)
        if job.interrupt is not None and error is not job.interrupt:
            raise job.interrupt from error  # the interruption takes precedence over later errors
        raise
    return _end_call(job, op)


def _end_call(job: CallInProgress, op: EndCall) -> Any:
    if job.has_reservation:
        job.release_worker()
    error = job.interrupt or op.error
    if error is None:
        return op.value
    try:
        raise error
    finally:
        del error, op, job  # break the cycle: error → traceback → frame → error


def _run_attempt(job: CallInProgress, op: RunAttempt) -> AttemptOutcome:
    if job.interrupt is not None:
        return AttemptOutcome(op.seen, None, job.interrupt, begun=False)
    attempt, invoke = job.make_attempt(op.seen), job.compute_limits(op)
    try:
        with _AttemptContext(job, attempt, invoke.ends):
            value = job.engine.call_function(job, attempt, invoke)
    except BaseException as error:  # noqa: BLE001 - passed to the script as a value
        if attempt.mark is not None:
            run_mark_script(attempt.mark.roll_back())
        return job.build_outcome(attempt, None, error)
    return job.build_outcome(attempt, value, None)


def _commit_transaction(job: CallInProgress, op: CommitTransaction) -> TransactionOutcome:
    shield = InterruptShield(job.interrupt is not None)
    try:
        with shield:
            run_mark_script(job.commit_transaction(op))
    except BaseException as error:
        if shield.twice:
            raise  # a second Ctrl-C ends the process at once
        return _transaction_outcome(job, op.mark, error)
    return TransactionOutcome(None)


def _transaction_outcome(job: CallInProgress, mark: AppliedMark, error: BaseException) -> TransactionOutcome:
    """Return the outcome of a transaction that raised; an interruption after its commit is kept."""
    if not mark.finished:
        return TransactionOutcome(error)
    job.interrupt = error  # raised when the run is in a consistent state
    return TransactionOutcome(None)


def _ask_reconcile(job: CallInProgress, op: AskReconcile) -> ReconcileAnswer:
    if job.interrupt is not None:
        return ReconcileAnswer("unknown")
    job.recall(op.seen)
    try:
        with _AttemptContext(job, job.make_attempt(op.seen, asks=True), ENDS.get()):
            return _check_reconcile_answer(job, job.call_reconcile())
    except BaseException as error:  # noqa: BLE001 - the outcome is unknown
        return _reconcile_failed(job, error)


def _spill_result(job: CallInProgress, op: SpillResult) -> tuple[str, ArtifactRecord] | None:
    try:
        return job.spill_result(op)
    except BaseException as error:  # noqa: BLE001 - raised after the result is stored in the log
        job.interrupt = error
        return None


def _take_rate_slot(job: CallInProgress, op: TakeRateSlot) -> float:
    return run_limit_script(job.take_rate_slot(op))


def _earn_budget(job: CallInProgress, op: EarnBudget) -> None:
    run_limit_script(job.earn_budget(op))


def _sleep_seconds(job: CallInProgress, op: SleepSeconds) -> None:
    if job.interrupt is not None:
        raise job.interrupt
    clocks.current.sleep(op.seconds)


def _watch_entity(job: CallInProgress, op: WatchEntity) -> None:
    if job.interrupt is not None:
        raise job.interrupt
    for pause in _poll_intervals(job, op):
        time.sleep(pause)


def _poll_intervals(job: CallInProgress, op: WatchEntity) -> Generator[float, None, None]:
    """Yield poll intervals until the entity has changed or the lease must be read again.

    In real time even under a test clock: another process works meanwhile.
    """
    ends, pause = time.monotonic() + min(op.seconds, POLL_TOTAL_S), POLL_FIRST_S
    while (left := ends - time.monotonic()) > 0:
        yield min(pause, left)
        with InterruptShield():
            head = job.store.load_head(op.entity)
        if head is None or head.version != op.version:
            return
        pause = min(pause * 1.5, POLL_MAX_S)


# Awaiting -------------------------------------------------------------------------------------------


async def run_call_async(job: CallInProgress, script: Script) -> Any:
    """Run a script to its end in this task, on asyncio or trio; return the value or raise the error."""
    try:
        op = next(script)
        while True:
            if (quick := _IMMEDIATE.get(type(op))) is not None:
                op = script.send(quick(job, op))
            elif (do := _AWAITING.get(type(op))) is not None:
                job.last_answer = None
                op = script.send(await do(job, op))
            else:  # the end
                break
    except GeneratorExit as closed:
        # Closing a coroutine ends its innermost await first, which left its result in `job.last_answer`. The
        # rest of the script runs without awaiting and raises this again.
        if job.last_answer is None:
            job.abandon_call(closed)
            raise
        job.interrupt = closed
        return run_call(job, script, job.last_answer)
    except BaseException as error:
        job.abandon_call(error)
        if job.interrupt is not None and error is not job.interrupt:
            raise job.interrupt from error  # the interruption takes precedence over later errors
        raise
    return _end_call(job, op)


async def _run_attempt_async(job: CallInProgress, op: RunAttempt) -> AttemptOutcome:
    if job.interrupt is not None:
        return AttemptOutcome(op.seen, None, job.interrupt, begun=False)
    attempt, invoke = job.make_attempt(op.seen), job.compute_limits(op)
    try:
        with _AttemptContext(job, attempt, invoke.ends):
            made = job.call_function()
            value = await (made if invoke.limit_s is None else run_with_timeout(attempt.step, invoke, made))
    except BaseException as error:  # noqa: BLE001 - passed to the script as a value
        if attempt.mark is not None:
            await _roll_back_async(attempt.mark, error)
        job.last_answer = job.build_outcome(attempt, None, error)
        return job.last_answer  # type: ignore[no-any-return]
    return job.build_outcome(attempt, value, None)


async def _commit_transaction_async(job: CallInProgress, op: CommitTransaction) -> TransactionOutcome:
    if not op.mark.is_async:
        return _commit_transaction(job, op)
    try:
        await run_mark_script_async(job.commit_transaction(op))
    except BaseException as error:  # noqa: BLE001 - as for the work itself
        job.last_answer = _transaction_outcome(job, op.mark, error)
        return job.last_answer  # type: ignore[no-any-return]
    return TransactionOutcome(None)


async def _roll_back_async(mark: AppliedMark, error: BaseException) -> None:
    """Roll the transaction of a failed or cancelled task back; a closed coroutine cannot await it."""
    if not mark.is_async:
        run_mark_script(mark.roll_back())
    elif not isinstance(error, GeneratorExit):
        trio = clocks.find_trio()
        if trio is None:
            await run_mark_script_async(mark.roll_back())
        else:
            with trio.CancelScope(shield=True):
                await run_mark_script_async(mark.roll_back())


async def _ask_reconcile_async(job: CallInProgress, op: AskReconcile) -> ReconcileAnswer:
    if job.interrupt is not None:
        return ReconcileAnswer("unknown")
    job.recall(op.seen)
    try:
        with _AttemptContext(job, job.make_attempt(op.seen, asks=True), ENDS.get()):
            found = job.call_reconcile()
            return _check_reconcile_answer(job, await found if hasattr(type(found), "__await__") else found)
    except BaseException as error:  # noqa: BLE001 - the outcome is unknown
        job.last_answer = _reconcile_failed(job, error)
        return job.last_answer  # type: ignore[no-any-return]


async def _take_rate_slot_async(job: CallInProgress, op: TakeRateSlot) -> float:
    return await script_awaited(job.take_rate_slot(op))


async def _earn_budget_async(job: CallInProgress, op: EarnBudget) -> None:
    if job.interrupt is not None:
        return _earn_budget(job, op)  # a cancelled task must not await
    return await script_awaited(job.earn_budget(op))


async def _sleep_seconds_async(job: CallInProgress, op: SleepSeconds) -> None:
    if job.interrupt is not None:
        raise job.interrupt
    await clocks.current.pause(op.seconds)


async def _watch_entity_async(job: CallInProgress, op: WatchEntity) -> None:
    if job.interrupt is not None:
        raise job.interrupt
    for pause in _poll_intervals(job, op):
        await _REAL_CLOCK.pause(pause)


async def _check_artifact_async(job: CallInProgress, op: CheckArtifact) -> ArtifactCheck:
    return (
        job.check_artifact(op) if job.interrupt is not None else await run_in_thread(job.check_artifact, op)
    )


async def _ask_permission_async(job: CallInProgress, op: AskPermission) -> Permission:
    if job.interrupt is not None or not job.engine.permissions.has_external:
        return job.ask_permission(op)
    return await run_in_thread(job.ask_permission, op)  # type: ignore[no-any-return]


async def _spill_result_async(job: CallInProgress, op: SpillResult) -> tuple[str, ArtifactRecord] | None:
    try:
        return await run_in_thread(job.spill_result, op)  # type: ignore[no-any-return]
    except BaseException as error:  # noqa: BLE001 - as in `_spill`
        job.interrupt = error
        return None


async def _fetch_result_async(job: CallInProgress, op: FetchResult) -> Any:
    return job.fetch_result(op) if job.interrupt is not None else await run_in_thread(job.fetch_result, op)


_REAL_CLOCK = clocks.Clock()

_IMMEDIATE: dict[type, Callable[[CallInProgress, Any], Any]] = {
    LoadHead: CallInProgress.load_head,
    LoadBreaker: CallInProgress.load_breaker,
    DrawBudget: CallInProgress.draw_budget,
    RefundBudget: CallInProgress.refund_budget,
    ReserveWorker: CallInProgress.reserve_worker,
    PrepareSubmission: CallInProgress.prepare_submission,
    ReadClock: CallInProgress.read_clock,
    ReadLease: CallInProgress.read_lease,
    ReadBody: CallInProgress.read_body,
    NotifyListeners: CallInProgress.notify_listeners,
    LoadPolicy: CallInProgress.load_policy,
}
_BLOCKING: dict[type, Callable[[CallInProgress, Any], Any]] = {
    **_IMMEDIATE,
    AppendChange: append_change,
    RunAttempt: _run_attempt,
    AskReconcile: _ask_reconcile,
    SleepSeconds: _sleep_seconds,
    WatchEntity: _watch_entity,
    CommitTransaction: _commit_transaction,
    TakeRateSlot: _take_rate_slot,
    CheckArtifact: CallInProgress.check_artifact,
    SpillResult: _spill_result,
    FetchResult: CallInProgress.fetch_result,
    AskPermission: CallInProgress.ask_permission,
    EarnBudget: _earn_budget,
}
_AWAITING: dict[type, Callable[[CallInProgress, Any], Coroutine[Any, Any, Any]]] = {
    AppendChange: append_change_async,
    RunAttempt: _run_attempt_async,
    AskReconcile: _ask_reconcile_async,
    SleepSeconds: _sleep_seconds_async,
    WatchEntity: _watch_entity_async,
    CheckArtifact: _check_artifact_async,
    SpillResult: _spill_result_async,
    FetchResult: _fetch_result_async,
    CommitTransaction: _commit_transaction_async,
    TakeRateSlot: _take_rate_slot_async,
    AskPermission: _ask_permission_async,
    EarnBudget: _earn_budget_async,
}
