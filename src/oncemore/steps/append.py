"""Complete a write after its acknowledgement was lost, and build the further writes of a batch.

A write that was begun is completed. If its acknowledgement was lost, by an interruption or a failing store,
the *same* compare-and-set is sent again, and the entry that stands in the log is the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._driver import OperationTable
from oncemore._values import Value
from oncemore.artifacts.store import reference_entity
from oncemore.control.model import APPROVAL_NEEDED
from oncemore.errors import StoreError
from oncemore.log.entry_codec import ARTIFACT, build_event_write, build_write, decode_head
from oncemore.log.record import NOWHERE, ArtifactRecord, EventRecord, RecordChange
from oncemore.log.store import Conflict, JoinedWriteFailed, Stored

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from oncemore.log.encryption import BodyCipher
    from oncemore.log.record import LoadedHead, RunRecord
    from oncemore.log.store import Batch, EntryWrite
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import Output

    Answered = Stored | Conflict

#: Waits before a write without an acknowledgement is sent again, in seconds.
RESEND_DELAYS_S = (0.0, 0.05, 0.25, 1.0)


def build_joined_writes(
    also: tuple[tuple[LoadedHead, RecordChange], ...],
    events: tuple[Output, ...],
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


def is_attempt_running(call: PreparedCall, answer: Conflict) -> bool:
    """Return whether the attempt of the call still holds its run although a write was refused."""
    if call.current_attempt is None:
        return False
    entity, fence = call.current_attempt
    # If another entity of the batch caused the conflict, the run itself may be unchanged.
    head = answer.head if answer.entity == entity else call.store.load_head(entity)
    run: RunRecord | None = None if head is None else decode_head(head.head)
    return run is not None and run.state == "RUNNING" and run.fence == fence


def join_escalation(
    call: PreparedCall, head: LoadedHead, change: RecordChange, also: tuple[Any, ...]
) -> tuple[RecordChange, tuple[Any, ...]]:
    """Return a change that needs a person, and the other changes with the escalation that it opens."""
    from oncemore.governance.escalations import add_escalation_write

    if getattr(change.after, "held_for", "") == APPROVAL_NEEDED:
        from oncemore.governance.identity import describe_requester

        requester = describe_requester(call.engine)
        body = {**change.body, "requester": requester} if requester else change.body
        return change._replace(body=body), also
    # The script of an operator's decision has no plan.
    governed = call.plan is not None and call.plan.policy.governed
    change, opened = add_escalation_write(call.engine, head.entity, head.version, change, governed=governed)
    return change, (*also, *opened)


class WaitForResend(Value):
    """Wait before a batch is sent again."""

    seconds: float


def resend_batch(
    call: PreparedCall, batch: Batch, error: BaseException
) -> Generator[WaitForResend, None, Answered | JoinedWriteFailed]:
    """Send a batch again after its acknowledgement was lost, to find out whether it is stored."""
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


RESEND_OPERATIONS = OperationTable({WaitForResend: _wait_for_resend}, {WaitForResend: _wait_for_resend_async})
