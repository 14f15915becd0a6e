"""Queues: at most so many attempts of a queue's steps at once, over all processes on a store.

A queue has numbered slots, each an entity of the log that names the attempt that took it last. The claim of
an attempt takes a free slot in the same write, a compare-and-set on both: two attempts never share a slot. A
slot is not returned. It is free again as soon as its attempt is over: the run has ended, failed or begun
another attempt, or the lease of its worker has passed. So a crash leaves nothing behind: before the claim no
slot is taken, and after it the slot ends with the attempt.

That an attempt is over stays true for ever, because fences only rise. So a read that is a little old can take
a free slot for taken, and never a taken one for free.

A call waits for a free slot as long as calls wait (`max_inline_wait_s`). After that its run stays PENDING for
a worker, and the call raises `Deferred`. A worker waits for the log to grow before it looks again.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.limits.queue_rules import MAX_CONCURRENCY, FindQueueSlot, QueueSlot
from oncemore.log.entry_codec import decode_head, load_head
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import NOWHERE, LoadedHead, RecordChange, RunRecord
from oncemore.log.store import HeadQuery
from oncemore.steps import refusals, transitions
from oncemore.steps.ops import AppendChange, EndCall, WatchLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from oncemore.limits.breaker_step import BreakerPass
    from oncemore.limits.queue_rules import StepQueue
    from oncemore.log.store import Head
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import AttemptTerms, Script
    from oncemore.steps.plan import StepPlan

PREFIX = "queue/"
#: The reason of a run that waits for a slot, and the longest time between two checks of a waiting call.
QUEUE_FULL, RECHECK_S = "queue_full", 0.5
#: A queue with more slots is read by one list.
MAX_SINGLE_READS = 16
#: A number after that of every slot.
_ALL_SLOTS = 1e9
_MARK: tuple[Any, ...] = ("QUEUE",)


class FreeSlot(NamedTuple):
    """A free slot.

    missing_run  the run that took it last, if the log does not have it: it was removed, which the claim
                 must prove; empty otherwise
    """

    head: LoadedHead
    missing_run: str = ""


# The script of a call -------------------------------------------------------------------------------


def wait_for_slot(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, now: float
) -> Script:
    """Return a `FreeSlot` of the step's queue, or the end of a call that has waited long enough.

    The result is None if the run has changed meanwhile.
    """
    assert plan.queue is not None
    ends = min(now + plan.inline_wait_s, call.give_up) if call.give_up else now + plan.inline_wait_s
    while (slot := (yield FindQueueSlot(plan.queue))) is None:
        # Counted and not read from the clock: other processes work in real time, also under a test clock.
        if now >= ends:
            return (yield from _end_waiting(plan, call, terms, head, now))
        pause = min(RECHECK_S, ends - now)
        yield WatchLog(pause)
        now += pause
    return slot


def _end_waiting(
    plan: StepPlan, call: PreparedCall, terms: AttemptTerms, head: LoadedHead, now: float
) -> Script:
    """Leave the run to a worker, and return the end of the call."""
    assert plan.queue is not None
    # A run that waits already needs no entry: nothing has changed.
    if head.record is None or head.record.state in transitions.FINAL_STATES:
        change = transitions.build_deferral(
            plan, call, terms, head, now, mark="QUEUE", reason=QUEUE_FULL, until=now,
            body={"queue": plan.queue.name},
        )  # fmt: skip
        if (yield AppendChange(head, change)) is None:
            return None
    return EndCall(None, refusals.queue_full(plan, call, now))


class QueuePass(NamedTuple):
    """The slot for the claim of an attempt, and the pass of its breaker if there is one."""

    plan: StepPlan
    slot: FreeSlot
    breaker_pass: BreakerPass | None

    def build_claim(
        self, head: LoadedHead, change: RecordChange, now: float, guards: Mapping[str, int], *, late: bool
    ) -> AppendChange:
        """Return the claim of the attempt, which also takes the slot."""
        if self.breaker_pass is None:
            claim = AppendChange(head, change, self.plan.effect != "pure", guards=guards, late=late)
        else:
            claim = self.breaker_pass.build_claim(head, change, now, guards, late=late)
        queue, run = self.plan.queue, change.after
        assert queue is not None
        assert type(run) is RunRecord
        after = QueueSlot(
            queue=queue.name,
            number=int(self.slot.head.entity.rpartition("/")[2]),
            limit=queue.concurrency,
            run_entity=head.entity,
            fence=run.fence,
        )
        taken = self.slot.head, RecordChange(_MARK, self.slot.head.record, after)
        # The missing run may be the one that is claimed: the claim itself compares its version.
        if self.slot.missing_run and self.slot.missing_run != head.entity:
            claim = claim._replace(guards={**claim.guards, self.slot.missing_run: 0}, late=False)
        return claim._replace(also=(*claim.also, taken))


def pass_queue(plan: StepPlan, slot: FreeSlot | None, breaker_pass: BreakerPass | None) -> Script:
    """Return the `QueuePass` of the claim; None if the slot was taken while the call waited for its rate."""
    assert plan.queue is not None
    if plan.rate is not None:
        slot = yield FindQueueSlot(plan.queue)
    return None if slot is None else QueuePass(plan, slot, breaker_pass)


# Reading the slots ----------------------------------------------------------------------------------


def find_free_slot(engine: Engine, queue: StepQueue) -> FreeSlot | None:
    """Return a free slot of a queue, or None if all are taken."""
    return next(iterate_free_slots(engine, queue), None)


def iterate_free_slots(engine: Engine, queue: StepQueue) -> Iterator[FreeSlot]:
    """Yield the free slots of a queue in random order: processes that look together take different ones."""
    for head in _read_slots(engine, queue):
        # A slot that was never taken has no record.
        run = None if head.record is None else load_holder(engine, head.record)
        if head.record is None or not is_held(engine, head.record, run):
            is_missing = head.record is not None and run is None
            yield FreeSlot(head, head.record.run_entity if is_missing else "")


def _read_slots(engine: Engine, queue: StepQueue) -> Iterator[LoadedHead]:
    """Yield the slots of a queue; those above a lowered concurrency are not given out any more."""
    numbers = list(range(queue.concurrency))
    random.shuffle(numbers)
    # Few slots are read one by one, as far as the caller needs them: a list costs more in some stores.
    if queue.concurrency <= MAX_SINGLE_READS:
        for number in numbers:
            yield load_head(engine.store, f"{PREFIX}{queue.name}/{number}", engine.cipher, QueueSlot)
        return
    heads = {head.entity: head for head in list_slots(engine, queue.name)}
    for number in numbers:
        entity = f"{PREFIX}{queue.name}/{number}"
        head = heads.get(entity)
        if head is None:
            yield LoadedHead(entity, 0, NOWHERE, None)
        else:
            yield LoadedHead(entity, head.version, head.hash, decode_head(head.head, QueueSlot))


def load_holder(engine: Engine, slot: QueueSlot) -> RunRecord | None:
    """Return the run whose attempt took a slot last; None if the log does not have it."""
    with InterruptShield():
        head = engine.store.load_head(slot.run_entity)
    return None if head is None else decode_head(head.head)


def is_held(engine: Engine, slot: QueueSlot, run: RunRecord | None) -> bool:
    """Return whether the attempt that took a slot is still running, in a worker that is alive."""
    if run is None or run.fence > slot.fence:
        return False
    # A lower fence is that of an old read: the run was written together with the slot.
    if run.fence < slot.fence:
        return True
    is_running = run.state == "RUNNING"
    return is_running and engine.leases.lease_until(run.worker, slot.run_entity, slot.fence) > engine.now()


def list_slots(engine: Engine, queue: str | None = None) -> list[Head]:
    """Return the slots of a queue, or of all queues, that were ever taken."""
    query = HeadQuery("queue", step=queue, due_by=_ALL_SLOTS, limit=MAX_CONCURRENCY * (1 if queue else 100))
    with InterruptShield():
        return list(engine.store.list_heads(query))


def count_room(engine: Engine, queue: StepQueue, most: int, own: Sequence[str]) -> int:
    """Return how many runs of a queue a worker may start, counted up to `most`.

    own  the runs of the worker that are active: each has a slot, or will take one that is free now
    """
    free, held = 0, set()
    for head in _read_slots(engine, queue):
        slot = head.record
        if slot is not None and is_held(engine, slot, load_holder(engine, slot)):
            held.add(slot.run_entity)
        else:
            free += 1
        if free - len(own) >= most:
            break
    return free - sum(entity not in held for entity in own)
