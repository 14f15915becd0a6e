"""Counts of a worker's finished runs, and the runs that it has left with their reasons.

A run is left if it is due within the wait limit and this worker did not begin it: a switch is on, the log has
moved, its arguments do not fit here, or the worker was stopped. Runs due after the limit are listed as not
due, so that an operator does not take the end of the worker for the end of all work.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.control import permits
from oncemore.control.model import SWITCH_ON, find_blocking_switch
from oncemore.log.entry_codec import decode_head
from oncemore.log.store import HeadQuery
from oncemore.steps.refusals import format_utc
from oncemore.workers.takeover import FAR_FUTURE

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from oncemore.control.model import SwitchBoard
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

#: The maximum number of runs counted, of one step or of all unknown steps.
MAX_COUNTED = 100_000


class WorkerHealth(Value):
    """Health of a worker, for a monitor.

    loop_age_s        seconds since the loop last started a round; None if the loop is not running
    store_read_age_s  seconds since the worker last read the store; None if it never has
    stopping          a stop was requested, and the worker takes no more runs
    """

    loop_age_s: float | None
    store_read_age_s: float | None
    stopping: bool


class WorkerStats(Value):
    """Counts of a worker's runs by outcome.

    done      runs that the worker completed
    failed    runs that ended in a failure
    deferred  runs that are due again later
    held      runs that wait for an operator: their outcome is unknown, or they need an approval
    refused   runs that cannot continue here: their arguments are not in the log, or do not fit
    """

    done: int = 0
    failed: int = 0
    deferred: int = 0
    held: int = 0
    refused: int = 0


class Leftover(Value):
    """Runs of one step that a worker has left for the same reason.

    is_due  whether they are due within the wait limit; if not, `why` has their time
    """

    step: str
    runs: int
    why: str
    is_due: bool = True


def count_unknown_runs(engine: Engine, steps: Container[str]) -> dict[str, int]:
    """Return the number of due runs by step, for steps other than the given ones."""
    heads = engine.store.list_heads(HeadQuery("run", due_by=engine.now(), limit=MAX_COUNTED))
    return dict(Counter(head.by.step for head in heads if head.by.step not in steps))


def list_leftovers(
    engine: Engine,
    refused: Mapping[str, Mapping[str, int]],
    blocked: Mapping[str, str],
    wait_s: float,
) -> tuple[Leftover, ...]:
    """Return the runs left of the steps in `refused`, by step and reason.

    refused  by step, the runs that cannot continue here, with their versions
    blocked  by entity, the reason why a run was not permitted to begin
    """
    _, control = permits.load_switches(engine)
    limit = engine.now() + wait_s
    left: list[Leftover] = []
    for step in sorted(refused):
        heads = list(
            engine.store.list_heads(HeadQuery("run", step=step, due_by=FAR_FUTURE, limit=MAX_COUNTED))
        )
        # The listing is sorted by due time, so that the runs due later follow the due ones.
        due = [head for head in heads if (head.by.due or 0.0) <= limit]
        reasons = Counter(_reason(head, control, refused[step], blocked) for head in due)
        left += [Leftover(step, count, why) for why, count in sorted(reasons.items())]
        if len(due) < len(heads):
            first = format_utc(min(head.by.due or 0.0 for head in heads[len(due) :]))
            left.append(
                Leftover(step, len(heads) - len(due), f"due later, the first at {first}", is_due=False)
            )
    return tuple(left)


def _reason(head: Head, control: SwitchBoard, refused: Mapping[str, int], blocked: Mapping[str, str]) -> str:
    if control.moved_to:
        return f"the log has moved to {control.moved_to}"
    run: RunRecord = decode_head(head.head)
    name = find_blocking_switch(control, (run.step,), run.tenant)
    if name:
        switch = control.active[name]
        return (
            f"the switch {name} is on since {format_utc(switch['at'])} ({switch['by']}: {switch['reason']})"
        )
    # A run with a newer version was changed since the refusal, and might fit now.
    if refused.get(head.entity) == head.version:
        return "it cannot run here; a warning above says why"
    if head.entity in blocked:
        if blocked[head.entity] == SWITCH_ON:
            return "a switch that another system keeps is on"
        return "whether a switch is on could not be read"
    return "it was not begun"


def summarize(left: Iterable[Leftover]) -> str:
    """Return the leftovers as one text: number, step and reason of each."""
    return "; ".join(f"{leftover.runs} of {leftover.step} ({leftover.why})" for leftover in left)
