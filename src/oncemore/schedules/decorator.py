"""`oncemore.schedule`: let workers run a step at fixed times."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.policy.canonical_json import normalize_name
from oncemore.schedules.ticks import CronTicks, IntervalTicks, find_zone, parse_cron, parse_interval
from oncemore.steps.step import StepCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Literal

    from oncemore.retries.options import Seconds

S = TypeVar("S", bound=StepCalls[..., Any])

MISSED = ("skip", "once", "all")
RIGHT_FORM = (
    "write @oncemore.schedule('0 6 * * *') above @oncemore.step(effect=…), and both above the function"
)


class StepSchedule(Value):
    """A schedule of a step, as its code declares it.

    ticks       the times of its runs
    tz          the time zone of the ticks that the function gets
    missed      "skip", "once" or "all"
    takes_tick  whether the function has a parameter for the tick
    """

    name: str
    ticks: CronTicks | IntervalTicks
    tz: str
    missed: str
    takes_tick: bool


def schedule(
    expression: str | None = None,
    /,
    *,
    every: Seconds | None = None,
    start: datetime | None = None,
    tz: str = "UTC",
    missed: Literal["skip", "once", "all"] = "once",
    name: str | None = None,
) -> Callable[[S], S]:
    """Let workers run a step at fixed times: one run per tick over all processes on the store.

    It stands above `@oncemore.step(…)`; the decorated object stays the step. The function takes the time of
    its tick, an aware datetime, or nothing. Every worker that knows the step submits its ticks.

    expression  five cron fields in the time zone `tz`: minute, hour, day of month, month, day of week; or
                @hourly, @daily, @weekly, @monthly, @yearly. Needs the extra `cron`
    every       instead of the expression: the time between two ticks, counted from 1970 or from `start`
    start       the first tick of `every`, an aware datetime
    tz          the name of a time zone, such as "Europe/Berlin"
    missed      what happens to ticks that no worker took in time: "skip" runs none of them, "once" the last
                one, "all" each of them, at most the last 1,000
    name        the name of the schedule in the log; the name of the step unless given
    """
    if (expression is None) == (every is None):
        raise UsageError("schedule() takes a cron expression or every=, one of both")
    if callable(expression):
        raise UsageError(f"schedule() needs its times: {RIGHT_FORM}")
    if start is not None and every is None:
        raise UsageError("start is for every=; a cron expression says itself when it begins")
    if missed not in MISSED:
        raise UsageError(f"missed is {missed!r}; the choices are {', '.join(MISSED)}")
    find_zone(tz)
    ticks = parse_interval(every, start) if expression is None else parse_cron(expression, tz)
    if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= 200):
        raise UsageError(f"name is {name!r}; it takes a text of 1 to 200 characters")

    def decorate(step: S) -> S:
        if not isinstance(step, StepCalls):
            raise UsageError(f"schedule() got {step!r:.80}, which is not a step; {RIGHT_FORM}")
        add_schedule(step, StepSchedule(name or step.name, ticks, tz, missed, takes_tick=True))
        return step

    return decorate


def add_schedule(step: StepCalls[..., Any], declared: StepSchedule) -> None:
    """Add a schedule to a step, after a check that each tick can be a run of its own."""
    options = step._options  # noqa: SLF001 - the options of a step have its schedules
    declared = declared._replace(name=normalize_name(declared.name), takes_tick=_takes_tick(step, options))
    if any(other.name == declared.name for other in options.schedules):
        raise UsageError(f"{step.name} has two schedules called {declared.name!r}; give one of them name=")
    # Both could give two ticks the same key, or one tick two keys in two workers.
    if options.keys.uses_clock or not options.keys.keys_all_arguments:
        raise UsageError(
            f"{step.name} has key= or bucket=, and a schedule; the tick makes the key, so leave both out"
        )
    if not declared.takes_tick:
        options.keys.use_ticks()
    options.schedules = (*options.schedules, declared)


def _takes_tick(step: StepCalls[..., Any], options: Any) -> bool:
    """Return whether the function takes the tick; refuse a function that needs other arguments."""
    parameters = list(inspect.signature(options.function).parameters.values())
    required = [each for each in parameters if each.default is each.empty and each.kind not in _VARIADIC]
    positional = [each for each in parameters if each.kind in _POSITIONAL]
    if len(required) > 1 or (required and required[0] not in positional) or (required and step._bound):  # noqa: SLF001
        names = ", ".join(each.name for each in required)
        raise UsageError(
            f"{step.name} takes {names}; a scheduled function takes one argument, the time of its tick, or "
            "none"
        )
    if not positional:
        return False
    if positional[0].name in options.keys.ignored:
        raise UsageError(
            f"ignore= of {step.name} leaves out {positional[0].name}, which is the tick of its runs"
        )
    return True


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
