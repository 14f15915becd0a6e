"""List the schedules and the queues of a store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.control.model import find_blocking_switch
from oncemore.control.permits import load_switches
from oncemore.limits import queue_step
from oncemore.limits.queue_rules import QueueSlot
from oncemore.log.entry_codec import decode_head
from oncemore.log.store import HeadQuery
from oncemore.schedules.record import ScheduleRecord

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine

#: The number of schedules that are listed.
MAX_LISTED = 10_000
#: A tick that is so late has no worker.
OVERDUE_S = 60.0


class ScheduleView(Value):
    """A schedule as operators see it.

    times        the cron expression, or the interval
    last_tick    the last tick that got a run, in UTC; None before the first one
    next_tick    the next tick, in UTC
    paused_by    the switch that stops the step; empty if none does
    is_overdue   whether the next tick should have been taken for a minute: no worker knows the step
    """

    name: str
    step: str
    times: str
    tz: str
    missed: str
    last_tick: str | None
    next_tick: str
    paused_by: str
    is_overdue: bool
    ticks: int
    skipped: int


class QueueView(Value):
    """A queue: its concurrency, and the attempts that hold its slots.

    concurrency  as the last attempt declared it
    keys         the keys of the running attempts
    """

    name: str
    concurrency: int
    running: int
    steps: tuple[str, ...]
    keys: tuple[str, ...]


def list_schedules(engine: Engine) -> list[tuple[ScheduleView, ScheduleRecord]]:
    """Return the schedules of a store with their records, by name."""
    now, (_, board) = engine.now(), load_switches(engine)
    heads = engine.store.list_heads(HeadQuery("schedule", limit=MAX_LISTED))
    records = sorted((decode_head(head.head, ScheduleRecord) for head in heads), key=lambda each: each.name)
    views = []
    for record in records:
        paused_by = find_blocking_switch(board, (record.step,), "", record.pipeline)
        view = ScheduleView(
            name=record.name,
            step=record.step,
            times=record.expression or _describe_interval(record.every_s),
            tz=record.tz,
            missed=record.missed,
            last_tick=format_tick(record.last_tick) if record.last_tick else None,
            next_tick=format_tick(record.next_tick),
            paused_by=paused_by,
            is_overdue=not paused_by and now - record.next_tick > OVERDUE_S,
            ticks=record.tick_count,
            skipped=record.skipped_count,
        )
        views.append((view, record))
    return views


def format_tick(tick: float) -> str:
    """Return a tick in UTC, as ISO 8601."""
    return datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")


def list_queues(engine: Engine) -> list[QueueView]:
    """Return the queues of a store, by name: those with at least one attempt so far."""
    queues: dict[str, list[tuple[int, QueueSlot]]] = {}
    for head in queue_step.list_slots(engine):
        slot = decode_head(head.head, QueueSlot)
        queues.setdefault(slot.queue, []).append((head.seq, slot))
    return [_make_queue_view(engine, name, queues[name]) for name in sorted(queues)]


def _make_queue_view(engine: Engine, name: str, slots: list[tuple[int, QueueSlot]]) -> QueueView:
    holders = [(slot, queue_step.load_holder(engine, slot)) for _, slot in slots]
    active = [(slot, run) for slot, run in holders if queue_step.is_held(engine, slot, run)]
    return QueueView(
        name=name,
        concurrency=max(slots)[1].limit,
        running=len(active),
        steps=tuple(sorted({run.step for _, run in active if run is not None})),
        keys=tuple(slot.run_entity.removeprefix("run/") for slot, _ in active),
    )


def _describe_interval(seconds: float) -> str:
    """Return the time between two ticks in words, in its largest whole unit."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"every {seconds / size:g} {unit}"
    return f"every {seconds:g} s"
