"""Queues: at most so many attempts of a queue's steps at once, over all processes on a store.

A queue has numbered slots, each an entity of the log that names the attempt that took it last. The claim of
an attempt takes a free slot in the same write, a compare-and-set on both: two attempts never share a slot. A
slot is not returned. It is free again as soon as its attempt is over: the run has ended, failed or begun
another attempt, or the lease of its worker has passed. So a crash leaves nothing behind: before the claim no
slot is taken, and after it the slot ends with the attempt.

The claim also guards the run that held the slot before: if that run has changed since it was read, the claim
is refused and decides again.

A call waits for a free slot as long as calls wait (`max_inline_wait_s`). After that its run stays PENDING for
a worker, and the call raises `Deferred`. A worker waits for the log to grow before it looks again.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.limits.queue_rules import MAX_CONCURRENCY, QueueSlot
from oncemore.log.entry_codec import decode_head
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import NOWHERE, LoadedHead, RecordChange, RunRecord
from oncemore.log.store import HeadQuery
from oncemore.steps import refusals, transitions
from oncemore.steps.ops import AppendChange, EndCall, FindQueueSlot, WatchLog

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
#: A number after that of every slot.
_ALL_SLOTS = 1e9
_MARK: tuple[Any, ...] = ("QUEUE",)


class FreeSlot(NamedTuple):
    """A free slot, and the version of the run that held it before: it must not have changed.

    holder  the entity of that run; empty if the slot was never taken
    """

    head: LoadedHead
    holder: str = ""
    holder_version: int = 0


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
            claim = AppendChange(head, change, self.plan.effect != "pure", guards=guards)
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
        # The holder may be this very run, in an earlier attempt: the claim itself compares its version.
        if self.slot.holder and self.slot.holder != head.entity:
            guards = {**claim.guards, self.slot.holder: self.slot.holder_version}
            claim = claim._replace(guards=guards)
        # A slot may not be taken before all guards are compared.
        return claim._replace(also=(*claim.also, taken), late=False)


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
    """Yield the free slots of a queue: those that were never taken, then the one taken longest ago first."""
    heads = {head.by.due: head for head in list_slots(engine, queue.name)}
    unused = [number for number in range(queue.concurrency) if number not in heads]
    # In random order: processes that start together would all try the first one.
    random.shuffle(unused)
    for number in unused:
        yield FreeSlot(LoadedHead(f"{PREFIX}{queue.name}/{number}", 0, NOWHERE, None))
    # After the concurrency was lowered, the slots above it are not given out any more.
    taken = [head for number, head in heads.items() if number is not None and number < queue.concurrency]
    for head in sorted(taken, key=lambda head: head.seq):
        slot = decode_head(head.head, QueueSlot)
        version = find_end(engine, slot)
        if version is not None:
            loaded = LoadedHead(head.entity, head.version, head.hash, slot)
            yield FreeSlot(loaded, slot.run_entity, version)


def find_end(engine: Engine, slot: QueueSlot) -> int | None:
    """Return the version of the run that shows the end of a slot's attempt; None while the attempt runs."""
    with InterruptShield():
        head = engine.store.load_head(slot.run_entity)
    if head is None:
        return 0
    run: RunRecord = decode_head(head.head)
    if run.fence != slot.fence or run.state != "RUNNING":
        return head.version
    is_held = engine.leases.lease_until(run.worker, slot.run_entity, slot.fence) > engine.now()
    return None if is_held else head.version


def list_slots(engine: Engine, queue: str | None = None) -> list[Head]:
    """Return the slots of a queue, or of all queues, that were ever taken."""
    query = HeadQuery("queue", step=queue, due_by=_ALL_SLOTS, limit=MAX_CONCURRENCY * (1 if queue else 100))
    with InterruptShield():
        return list(engine.store.list_heads(query))


def count_room(engine: Engine, queue: StepQueue, most: int, own: Sequence[str]) -> int:
    """Return how many runs of a queue a worker may start, counted up to `most`.

    own  the runs of the worker that are active: those without a slot yet will take one that is free now
    """
    holders = {decode_head(head.head, QueueSlot).run_entity for head in list_slots(engine, queue.name)}
    unclaimed = sum(entity not in holders for entity in own)
    return sum(1 for _ in islice(iterate_free_slots(engine, queue), most + unclaimed)) - unclaimed
