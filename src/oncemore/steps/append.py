"""Append a change to a run: the write of a call, exactly once.

A write that was begun is completed. If its acknowledgement was lost, by an interruption or a failing store,
the *same* compare-and-set is sent again, and the entry that stands in the log is the answer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._driver import OperationTable, run_script, run_script_async
from oncemore._values import Value, make
from oncemore.artifacts.store import reference_entity
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import StoreError
from oncemore.log.entry_codec import (
    ARTIFACT,
    CHECKPOINT,
    build_event_write,
    build_write,
    decode_head,
    was_notified_already,
)
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import NOWHERE, ArtifactRecord, EventRecord, LoadedHead, RecordChange, RunRecord
from oncemore.log.store import Batch, Conflict, JoinedWriteFailed, Stored
from oncemore.steps.ops import VoidClaim

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from oncemore.log.encryption import BodyCipher
    from oncemore.log.store import EntryWrite
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import AppendChange, Given

    Answered = Stored | Conflict
    Appended = LoadedHead | VoidClaim | JoinedWriteFailed | None

#: Waits before a write whose answer was lost is sent again, in seconds.
RESEND_DELAYS_S = (0.0, 0.05, 0.25, 1.0)


def append_change(call: PreparedCall, op: AppendChange) -> Appended:
    """Append a change and wait for the store; return the new head, or None on a conflict."""
    batch, after = encode_change(call, op)
    answer: Answered | JoinedWriteFailed | None = None
    shield = InterruptShield(call.interrupt is not None)
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
            answer = run_script(resend_batch(call, batch, error), _RESEND)
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
        script = resend_batch(call, batch, error)
        is_error = isinstance(error, Exception)
        answer = await run_script_async(script, _RESEND) if is_error else run_script(script, _RESEND)
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
    seen, change, sync, events, beside, also, guards, late = op
    entity, version, prev, _, _ = seen
    engine = call.engine
    now, cipher = engine.now(), engine.cipher
    if engine.notifier is not None:
        change, notifications = engine.notifier.add_notifications(engine, entity, version, change, now)
        events = (*events, *notifications)
    write = build_write(entity, version, prev, change, now, cipher)
    marks, _, run, body = change
    if "INTENT" in marks:
        _register_attempt(call, entity, run, guards)
    writes: tuple[EntryWrite, ...] = (write,)
    if also or events:
        writes = (write, *_build_joined_writes(also, events, now, cipher))
    after = make(LoadedHead, (entity, version + 1, write.hash, run, body))
    late = late and call.store.checks_guards_late
    return make(Batch, (writes, guards, sync, beside, late)), after


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


def _build_joined_writes(
    also: tuple[tuple[LoadedHead, RecordChange], ...],
    events: tuple[Given, ...],
    now: float,
    cipher: BodyCipher | None,
) -> Iterator[EntryWrite]:
    """Yield the further writes of a batch: other entities, events and artifact references."""
    for head, change in also:
        yield build_write(head.entity, head.version, head.hash, change, now, cipher)
    for record, payload in events:
        if type(record) is ArtifactRecord:
            change = RecordChange(ARTIFACT, None, record)
            yield build_write(reference_entity(record), 0, NOWHERE, change, now, cipher)
        else:
            assert type(record) is EventRecord
            yield build_event_write((record, payload), now, cipher)


def apply_result(call: PreparedCall, op: AppendChange, after: LoadedHead, answer: Answered) -> Appended:
    """Return the new head, or None on a conflict; update what this process has cached."""
    engine = call.engine
    if isinstance(answer, Conflict):
        # A refused checkpoint does not end the attempt: it may belong to an abandoned attempt of this call,
        # while the next one runs.
        if op.change.marks != CHECKPOINT and not _is_attempt_still_running(call, answer):
            call.leave_attempt()
        # The entity that has changed may be cached: a switch, or a breaker.
        if answer.entity in op.guards:
            engine.permissions.drop_cached()
        if op.also or op.guards:
            engine.breakers.drop_cached(answer.entity)
        return VoidClaim(after) if answer.stored_seqs else None
    call.write_count += 1
    # A cancelled run stays RUNNING until its attempt ends.
    if after.record.state != "RUNNING":
        call.leave_attempt()
    if op.also:
        engine.breakers.apply_written(engine, op.also)
        # A failure may halt its pipeline.
        if any(head.entity == SWITCHES_ENTITY for head, _ in op.also):
            engine.permissions.drop_cached()
    if engine.notifier is not None and engine.notifier.concerns(op.change):
        engine.notifier.wake_thread(engine)
    return after


def _is_attempt_still_running(call: PreparedCall, answer: Conflict) -> bool:
    """Return whether the attempt of the call still holds its run although a write was refused."""
    if call.current_attempt is None:
        return False
    entity, fence = call.current_attempt
    # If another entity of the batch caused the conflict, the run itself may be unchanged.
    head = answer.head if answer.entity == entity else call.store.load_head(entity)
    run: RunRecord | None = None if head is None else decode_head(head.head)
    return run is not None and run.state == "RUNNING" and run.fence == fence


# A write without an answer --------------------------------------------------------------------------


class WaitForResend(Value):
    """Wait before a batch is sent again."""

    seconds: float


def resend_batch(
    call: PreparedCall, batch: Batch, error: BaseException
) -> Generator[WaitForResend, None, Answered | JoinedWriteFailed]:
    """Send a batch again whose acknowledgement was lost, to find out whether it is stored."""
    if not isinstance(error, StoreError):
        if isinstance(error, Exception):
            raise error
        call.interrupt = error
    last = error
    for delay in RESEND_DELAYS_S:
        yield WaitForResend(delay)
        try:
            answer = call.store.append(batch).wait()
        except StoreError as again:
            last = again
            continue
        except JoinedWriteFailed as failed:
            # The versions fitted, so nothing was stored before.
            return failed
        if isinstance(answer, Stored) or answer.stored_seqs or not (seq := find_own_entry(call, batch)):
            return answer
        # A store that checks guards late has not said whether they had changed: they count as changed.
        return Conflict(next(iter(batch.guards)), None, (seq,)) if batch.late else Stored((seq,))
    if call.interrupt is not None and last is not call.interrupt:
        raise call.interrupt from last
    raise last


def find_own_entry(call: PreparedCall, batch: Batch) -> int:
    """Return the sequence number of the batch's first entry if it is stored; 0 if another one is."""
    first = batch.writes[0]
    for entry in call.store.read_entries(first.entity, first.expect):
        return entry.seq if entry.hash == first.hash else 0
    return 0


def _wait_for_resend(context: object, op: WaitForResend) -> None:
    if op.seconds:
        clocks.current.sleep(op.seconds)


async def _wait_for_resend_async(context: object, op: WaitForResend) -> None:
    if op.seconds:
        await clocks.current.pause(op.seconds)


_RESEND = OperationTable({WaitForResend: _wait_for_resend}, {WaitForResend: _wait_for_resend_async})


async def run_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Call a blocking function in a thread and await its result, on asyncio or trio."""
    trio = clocks.find_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(function, *args)
    return await sys.modules["asyncio"].to_thread(function, *args)
