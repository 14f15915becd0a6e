"""Perform the operations of a call: the append, the attempt, and the table of all operations.

The functions get the call and the operation (`steps.ops`) and return the result that the script is sent.
Operations that may wait have an async function too; both run the same script. Every call passes through this
module; `steps.operations` has the operations that most calls do not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._driver import OperationTable, run_script, run_script_async
from oncemore._values import make
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.log.entry_codec import CHECKPOINT, build_write, was_notified_already
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import LoadedHead, RunRecord
from oncemore.log.store import Batch, Conflict, JoinedWriteFailed, Stored
from oncemore.retries import deadlines
from oncemore.retries.loop import ENDS, CallFunction
from oncemore.steps import append, observers, operations
from oncemore.steps.attempt import CURRENT, RunningAttempt
from oncemore.steps.current_attempt import AttemptContext
from oncemore.steps.ops import (
    AppendChange,
    AskPermission,
    AttemptOutcome,
    ReserveWorker,
    RunAttempt,
    VoidClaim,
)
from oncemore.steps.outcome import build_outcome
from oncemore.steps.plan import UntilNotMet
from oncemore.steps.transactions import roll_back, roll_back_async
from oncemore.telemetry.meter import MeasuredAwaitable, start_measuring

if TYPE_CHECKING:
    from oncemore._driver import Script
    from oncemore.log.store import EntryWrite
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import AttemptTerms, EndCall, Permission, ReadClock

    Answered = Stored | Conflict
    Appended = LoadedHead | VoidClaim | JoinedWriteFailed | None


def run_call(call: PreparedCall, script: Script[EndCall], table: OperationTable, reply: object = None) -> Any:
    """Run the script of a call to its end in this thread; return the value or raise the error.

    table  the functions that perform the operations (`steps.call_operations`)
    reply  the result of the operation that the script has yielded last, if an async driver ran it so far
    """
    try:
        end = run_script(script, table, call, reply)
    except BaseException as error:
        abandon_call(call, error)
        # The interruption takes precedence over later errors.
        if call.interrupt is not None and error is not call.interrupt:
            raise call.interrupt from error
        raise
    return _end_call(call, end)


async def run_call_async(call: PreparedCall, script: Script[EndCall], table: OperationTable) -> Any:
    """Run the script of a call to its end in this task, on asyncio or trio; like `run_call`."""
    try:
        end = await run_script_async(script, table, call)
    except GeneratorExit as closed:
        # Closing a coroutine ends its innermost await first; that left its result in `last_answer`. The rest
        # of the script runs without awaiting and raises this again.
        if call.last_answer is None:
            abandon_call(call, closed)
            raise
        call.interrupt = closed
        return run_call(call, script, table, call.last_answer)
    except BaseException as error:
        abandon_call(call, error)
        if call.interrupt is not None and error is not call.interrupt:
            raise call.interrupt from error
        raise
    return _end_call(call, end)


def _end_call(call: PreparedCall, end: EndCall) -> Any:
    """Return the value of a call, or raise its error; an interruption takes precedence."""
    if call.has_reservation:
        call.release_worker()
    error = call.interrupt or end.error
    if call.trace is not None:
        call.end_trace(error)
    if error is None:
        return end.value
    try:
        raise error
    finally:
        del error, end, call  # break the cycle: error → traceback → frame → error


def abandon_call(call: PreparedCall, error: BaseException) -> None:
    """Give the attempt up after its outcome could not be stored, so that other workers can take it over.

    After a second Ctrl-C nothing is written any more: the store may be the reason for the wait.
    """
    if call.trace is not None:
        call.end_trace(error)
    if call.current_attempt is not None and call.worker is not None:
        call.engine.leases.retire_worker(call.worker, quietly=not isinstance(error, Exception))
        leave_attempt(call)
    call.release_worker()


def leave_attempt(call: PreparedCall) -> None:
    """End the attempt in this process: its worker no longer holds it."""
    if call.current_attempt is not None and call.worker is not None:
        # Cleared first: an interruption below must not make it leave twice.
        attempt, call.current_attempt = call.current_attempt, None
        call.worker.remove_attempt(attempt)
        if call.worker.retired:
            call.engine.leases.close_retired_worker(call.worker)


def read_clock(call: PreparedCall, op: ReadClock) -> float:
    """Return the time of the store's clock."""
    return call.store.now() + clocks.current.offset


# Permission and worker ------------------------------------------------------------------------------


def ask_permission(call: PreparedCall, op: AskPermission) -> Permission:
    """Return whether an attempt may begin, as far as operators decide that."""
    permissions = call.engine.permissions
    # The common case, without a call: all switches are off, and the claim's guard detects a change.
    cached = permissions.cached
    is_plain = not (op.entity or op.datasets)
    if cached is not None and is_plain and (permissions.external is None or not op.begins):
        return cached
    return permissions.ask_permission(call.engine, op)


async def ask_permission_async(call: PreparedCall, op: AskPermission) -> Permission:
    """Return whether an attempt may begin, without blocking the event loop."""
    # A second source of switches may be on another machine.
    if call.interrupt is not None or not call.engine.permissions.has_external:
        return ask_permission(call, op)
    return await operations.run_in_thread(ask_permission, call, op)  # type: ignore[no-any-return]


def reserve_worker(call: PreparedCall, op: ReserveWorker) -> AttemptTerms:
    """Reserve a worker of this process with enough lease for the attempt, and return the terms."""
    if call.has_reservation:
        call.release_worker()
    if call.plan.governed_profile is not None:
        call.engine.policies.accept_profile(call.engine, call.plan.governed_profile)
    if op.head is not None:
        call.load_arguments(op.head)
    engine, lease = call.engine, call.plan.lease
    now, leases = call.store.now() + clocks.current.offset, engine.leases
    while True:
        worker = leases.current_identity(now) if lease is None else leases.identity_for(lease, now)
        # A worker that was retired at this very moment refuses; the next one is another.
        if worker.reserve_slot():
            break
    call.worker, call.has_reservation = worker, True
    terms = call.make_terms(call, worker.name, now)
    if observers.start_trace is not None:
        terms = observers.begin_trace(call, terms, op.head)
    if op.policy_name not in engine.policies.known:
        engine.policies.record_policy(engine, op.policy_name, op.policy, op.source)
    return terms


# Append ---------------------------------------------------------------------------------------------


def append_change(call: PreparedCall, op: AppendChange) -> Appended:
    """Append a change and wait for the store; return the new head, or None on a conflict."""
    batch, after = encode_change(call, op)
    answer: Answered | JoinedWriteFailed | None = None
    shield = InterruptShield()
    if call.interrupt is not None:
        shield.was_interrupted = True
    try:
        with shield:
            answer = call.store.append(batch).wait()
    except JoinedWriteFailed as failed:
        return failed
    except BaseException as error:
        # A second Ctrl-C ends the process at once: nothing more is written.
        if shield.twice:
            raise
        if answer is None:
            answer = run_script(append.resend_batch(call, batch, error), append.RESEND_OPERATIONS)
        else:
            call.interrupt = error  # raised when the run is in a consistent state
    if type(answer) is Stored:
        return apply_result(call, op, after, answer)
    if isinstance(answer, JoinedWriteFailed):
        return answer
    # Another process has sent the notification first: the change is encoded again without it.
    if was_notified_already(op, batch, answer):
        return append_change(call, op)
    return apply_result(call, op, after, answer)


async def append_change_async(call: PreparedCall, op: AppendChange) -> Appended:
    """Append a change without blocking the event loop; like `append_change`."""
    # A cancelled task must not await: this one write blocks the event loop instead.
    if call.interrupt is not None:
        return append_change(call, op)
    batch, after = encode_change(call, op)
    closed: BaseException | None = None
    try:
        answer: Answered | JoinedWriteFailed = await call.store.append(batch)
    except JoinedWriteFailed as failed:
        return failed
    except BaseException as error:  # noqa: BLE001 - an interruption is raised when the run is consistent
        closed = error
        script = append.resend_batch(call, batch, error)
        # A cancelled task must not await.
        if isinstance(error, Exception):
            answer = await run_script_async(script, append.RESEND_OPERATIONS)
        else:
            answer = run_script(script, append.RESEND_OPERATIONS)
    if type(answer) is not Stored:
        if isinstance(answer, JoinedWriteFailed):
            return answer
        if was_notified_already(op, batch, answer):
            return await append_change_async(call, op)
    result = apply_result(call, op, after, answer)
    call.keep_if_closed(closed, result)
    return result


def encode_change(call: PreparedCall, op: AppendChange) -> tuple[Batch, LoadedHead]:
    """Return the batch of a change, and the head as it will be once the batch is stored."""
    head, change, sync, events, joined_write, also, guards, late = op
    entity, version, prev, _, _ = head
    engine, store = call.engine, call.store
    now, cipher = store.now() + clocks.current.offset, engine.cipher
    if "ESCALATION" in change.marks:
        change, also = append.join_escalation(call, head, change, also)
    if engine.notifier is not None:
        change, notifications = engine.notifier.add_notifications(engine, entity, version, change, now)
        events = (*events, *notifications)
    write = build_write(entity, version, prev, change, now, cipher)
    marks, _, run, body = change
    if "INTENT" in marks:
        _register_attempt(call, entity, run, guards)
    writes: tuple[EntryWrite, ...] = (write,)
    if also or events:
        writes = (write, *append.build_joined_writes(also, events, now, cipher))
    after = make(LoadedHead, (entity, version + 1, write.hash, run, body))
    late = late and store.checks_guards_late
    return make(Batch, (writes, guards, sync, joined_write, late)), after


def _register_attempt(call: PreparedCall, entity: str, run: Any, guards: Any) -> None:
    """Register an attempt with its worker before it is written: no thread may take it for lost."""
    assert call.worker is not None
    assert type(run) is RunRecord
    assert SWITCHES_ENTITY in guards, "an attempt was claimed without reading the switches"
    attempt = (entity, run.fence)
    reserved, call.has_reservation = call.has_reservation, False
    call.worker.add_attempt(attempt, reserved=reserved)
    # Only now: an attempt that is not registered must not be removed, it may belong to another call.
    call.current_attempt = attempt


def apply_result(call: PreparedCall, op: AppendChange, after: LoadedHead, answer: Answered) -> Appended:
    """Return the new head, or None on a conflict; update the caches of this process."""
    engine = call.engine
    if type(answer) is Conflict:
        # A refused checkpoint does not end the attempt: it may belong to an abandoned attempt of this call,
        # while the next one runs.
        if op.change.marks != CHECKPOINT and not append.is_attempt_running(call, answer):
            leave_attempt(call)
        # The entity that has changed may be cached: a switch, or a breaker.
        if answer.entity in op.guards:
            engine.permissions.drop_cached()
        if op.also or op.guards:
            engine.breakers.drop_cached(answer.entity)
        return VoidClaim(after) if answer.stored_seqs else None
    call.write_count += 1
    # A cancelled run stays RUNNING until its attempt ends.
    if after.record.state != "RUNNING" and call.current_attempt is not None:
        leave_attempt(call)
    if op.also:
        engine.breakers.apply_written(engine, op.also)
        # A failure may halt its pipeline.
        if any(head.entity == SWITCHES_ENTITY for head, _ in op.also):
            engine.permissions.drop_cached()
    if engine.notifier is not None and engine.notifier.concerns(op.change):
        engine.notifier.wake_thread(engine)
    if observers.is_observed(call, op.change):
        now = call.store.now() + clocks.current.offset
        observers.report_change(engine, op.head.entity, op.change, now, call.trace)
    return after


# The attempt ----------------------------------------------------------------------------------------


def run_attempt(call: PreparedCall, op: RunAttempt) -> AttemptOutcome:
    """Call the function of the step; return its value or its error, and its outputs."""
    if call.interrupt is not None:
        return AttemptOutcome(op.head, None, call.interrupt, begun=False)
    attempt, invoke = RunningAttempt(op.head, call, CURRENT.get()), _compute_limits(op)
    start_measuring(call.engine, attempt)
    context: Any = AttemptContext(attempt, call.engine.artifact_store, invoke.ends)
    try:
        with context if call.trace is None else call.trace.wrap_attempt(context):
            if invoke.limit_s is None and not call.plan.isolate:
                value = call.plan.function(*call.args, **call.kwargs)
            else:
                value = operations.call_limited(call, attempt, invoke)
            if call.plan.until is not None and not call.plan.until(value):
                raise UntilNotMet(attempt.step, value)
    except BaseException as error:  # noqa: BLE001 - passed to the script as a value
        if attempt.mark is not None:
            roll_back(attempt.mark)
        return build_outcome(call, attempt, None, error)
    return build_outcome(call, attempt, value, None)


async def run_attempt_async(call: PreparedCall, op: RunAttempt) -> AttemptOutcome:
    """Await the function of the step; like `run_attempt`."""
    if call.interrupt is not None:
        return AttemptOutcome(op.head, None, call.interrupt, begun=False)
    attempt, invoke = RunningAttempt(op.head, call, CURRENT.get()), _compute_limits(op)
    start_measuring(call.engine, attempt)
    context: Any = AttemptContext(attempt, call.engine.artifact_store, invoke.ends)
    try:
        with context if call.trace is None else call.trace.wrap_attempt(context):
            work = MeasuredAwaitable(attempt, call.plan.function(*call.args, **call.kwargs))
            value = await (
                work if invoke.limit_s is None else deadlines.run_with_timeout(attempt.step, invoke, work)
            )
            if call.plan.until is not None and not call.plan.until(value):
                raise UntilNotMet(attempt.step, value)
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
        return make(CallFunction, (op.head.record.attempt, None, whole, None))
    if outer is not None:
        left = max(0.0, outer - clocks.current.monotonic())
        if limit is None or left < limit:
            limit, whole = left, True
    ends = None if limit is None else clocks.current.monotonic() + limit
    return CallFunction(op.number, limit, whole, ends)
