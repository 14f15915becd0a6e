"""What a worker has done, and what it has left undone and why.

A run is left if it is due within the wait limit and this worker did not begin it: a switch is on, the log has
moved, its arguments do not fit here, or the worker was stopped. Runs that are due after the limit are listed
too, as not due, so that nobody takes an end for the end of all work.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.control import permits
from oncemore.control.model import SWITCHED, stops
from oncemore.log.entry_codec import head_of
from oncemore.log.store import Query
from oncemore.steps.refusals import utc
from oncemore.workers.takeover import EVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from oncemore.control.model import Control
    from oncemore.log.record import Run
    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

#: How many runs of a step are counted.
MOST_COUNTED = 100_000


class Worked(Value):
    """What a worker has done.

    done     runs that it brought to COMPLETE
    failed   attempts that ended a run for good
    later    attempts that failed and are due again later
    held     runs that wait for a person: what became of them is not known
    refused  runs that could not go on here: their arguments are not in the log, or do not fit
    """

    done: int = 0
    failed: int = 0
    later: int = 0
    held: int = 0
    refused: int = 0


class Leftover(Value):
    """Runs of one step that a worker has left for the same reason.

    is_due  whether they are due within the wait limit; else they are due later, as `why` says
    """

    step: str
    runs: int
    why: str
    is_due: bool = True


def list_leftovers(
    engine: Engine,
    refused: Mapping[str, Mapping[str, int]],
    blocked: Mapping[str, str],
    wait_s: float,
) -> tuple[Leftover, ...]:
    """Return what is left of the steps in `refused`, by step and reason.

    refused  by step, the runs that cannot go on here, with the version that was seen
    blocked  why runs were not let begin, by entity
    """
    _, control = permits.read(engine)
    limit = engine.now() + wait_s
    left: list[Leftover] = []
    for step in sorted(refused):
        heads = list(engine.store.heads(Query("run", step=step, due_by=EVER, limit=MOST_COUNTED)))
        due = [head for head in heads if (head.by.due or 0.0) <= limit]
        reasons = Counter(_reason(head, control, refused[step], blocked) for head in due)
        left += [Leftover(step, count, why) for why, count in sorted(reasons.items())]
        if len(due) < len(heads):
            first = utc(min(head.by.due or 0.0 for head in heads[len(due) :]))
            left.append(
                Leftover(step, len(heads) - len(due), f"due later, the first at {first}", is_due=False)
            )
    return tuple(left)


def _reason(head: Head, control: Control, refused: Mapping[str, int], blocked: Mapping[str, str]) -> str:
    if control.moved:
        return f"the log has moved to {control.moved}"
    run: Run = head_of(head.head)
    name = stops(control, (run.step,), run.tenant)
    if name:
        switch = control.on[name]
        return f"the switch {name} is on since {utc(switch['at'])} ({switch['by']}: {switch['reason']})"
    if refused.get(head.entity) == head.version:
        return "it cannot run here; a warning above says why"
    if head.entity in blocked:
        if blocked[head.entity] == SWITCHED:
            return "a switch that another system keeps is on"
        return "whether a switch is on could not be read"
    return "it was not begun"


def summarize(left: Iterable[Leftover]) -> str:
    """Return what is left as one sentence part: how many of which step, and why."""
    return "; ".join(f"{one.runs} of {one.step} ({one.why})" for one in left)
