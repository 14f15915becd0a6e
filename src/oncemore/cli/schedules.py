"""`oncemore workflow schedules` and `queues`: the ticks of scheduled steps, and the slots of queues."""

from __future__ import annotations

from oncemore.cli.commands import CommandReport, store_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.queries.schedules import QueueView, ScheduleView
    from oncemore.schedules.record import ScheduleRecord
    from oncemore.steps.engine import Engine

SCHEDULE_HEADS = ("schedule", "step", "times", "zone", "last tick", "next tick", "missed", "remark")


@store_command("schedules", "oncemore workflow schedules\noncemore workflow schedules --json")
def schedules(engine: Engine) -> CommandReport:
    """List schedules with their last and next ticks.

    Ticks are shown in the local time zone, and in UTC with --json. A schedule is recorded when a worker that
    knows its step first runs.
    """
    from oncemore.queries.schedules import list_schedules

    listed = list_schedules(engine)
    return CommandReport([view._asdict() for view, _ in listed], lambda out: _print_schedules(out, listed))


@store_command("queues", "oncemore workflow queues\noncemore workflow queues --json")
def queues(engine: Engine) -> CommandReport:
    """List queues with the attempts that they run now.

    A queue is recorded when an attempt of one of its steps first begins.
    """
    from oncemore.queries.schedules import list_queues

    views = list_queues(engine)
    return CommandReport([view._asdict() for view in views], lambda out: _print_queues(out, views))


def _print_schedules(out: OutputWriter, listed: Sequence[tuple[ScheduleView, ScheduleRecord]]) -> None:
    from oncemore.queries.times import format_time

    if not listed:
        out.write_line("No schedules yet; a worker records those of its steps.", "green")
        return
    rows = [
        (
            view.name, view.step, view.times, view.tz,
            format_time(record.last_tick)[:19] if record.last_tick else "-",
            format_time(record.next_tick)[:19], view.missed, _describe_remark(view),
        )
        for view, record in listed
    ]  # fmt: skip
    out.write_table([SCHEDULE_HEADS, *rows])


def _describe_remark(view: ScheduleView) -> str:
    if view.paused_by:
        return f"paused by the switch {view.paused_by}"
    return "overdue: no worker takes it" if view.is_overdue else ""


def _print_queues(out: OutputWriter, views: Sequence[QueueView]) -> None:
    if not views:
        out.write_line("No queue has been used yet.", "green")
        return
    rows = [
        (view.name, f"{view.running} of {view.concurrency}", ", ".join(view.steps) or "-") for view in views
    ]
    out.write_table([("queue", "running", "steps"), *rows])
