"""The order in which a worker takes due runs.

Higher priorities come first. Within a priority the steps take turns, so that a step with a million due runs
delays another step by one run only. Within a step the earliest due time comes first.
"""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RunTurn(Value):
    """A due run, as it was listed."""

    priority: str
    due: float
    step: str
    entity: str
    version: int = 0
    provider: str = ""


def order_turns(waiting: Mapping[str, Sequence[RunTurn]], last: str = "") -> list[RunTurn]:
    """Return runs in the order in which the worker takes them.

    waiting  due runs by step, each list in its own order
    last     the step that was served last
    """
    # Continue after the step that was served last, or the first names would be preferred in every round.
    steps = sorted(waiting)
    steps = [step for step in steps if step > last] + [step for step in steps if step <= last]
    priorities = sorted({turn.priority for turns in waiting.values() for turn in turns})
    ordered: list[RunTurn] = []
    for priority in priorities:
        lanes = [[turn for turn in waiting[step] if turn.priority == priority] for step in steps]
        for position in range(max(map(len, lanes))):
            ordered += [lane[position] for lane in lanes if position < len(lane)]
    return ordered
