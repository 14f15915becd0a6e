"""The record of a schedule in the log."""

from __future__ import annotations

from oncemore._values import Value


class ScheduleRecord(Value):
    """A schedule of a step: its declaration, and its place in time (`schedules.driver`).

    state          always ACTIVE: switches stop the step
    expression     the cron expression; empty if `every_s` has the interval, counted from `start_at`
    missed         "skip", "once" or "all": the ticks that were not taken in time
    declared_at    time at which a worker last wrote the declaration
    last_tick      the last tick that got a run; 0: none
    next_tick      the next tick
    tick_count     number of ticks that got a run
    skipped_count  number of missed ticks without a run, as far as they were counted
    """

    state: str = "ACTIVE"
    name: str = ""
    step: str = ""
    pipeline: str = ""
    expression: str = ""
    every_s: float = 0.0
    start_at: float = 0.0
    tz: str = ""
    missed: str = ""
    declared_at: float = 0.0
    last_tick: float = 0.0
    next_tick: float = 0.0
    tick_count: int = 0
    skipped_count: int = 0
