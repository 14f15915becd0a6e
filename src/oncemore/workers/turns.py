"""TURNS: in which order waiting runs are taken.

Higher priorities come first. Within one, steps take turns, so that a step with a million waiting runs keeps
no other step waiting for more than one of them; within a step, what was due first comes first.
"""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Turn(Value):
    """A run that may be taken, as it was listed."""

    priority: str
    due: float
    step: str
    entity: str
    version: int = 0
    provider: str = ""


def in_turn(waiting: Mapping[str, Sequence[Turn]], last: str = "") -> list[Turn]:
    """Return runs in the order in which they are to be taken.

    waiting  runs by step, each step's in their own order
    last     the step that was served last: others come before it, in the order of their names
    """
    steps = sorted(waiting)
    steps = [step for step in steps if step > last] + [step for step in steps if step <= last]
    priorities = sorted({turn.priority for turns in waiting.values() for turn in turns})
    ordered: list[Turn] = []
    for priority in priorities:
        lanes = [[turn for turn in waiting[step] if turn.priority == priority] for step in steps]
        for place in range(max(map(len, lanes))):
            ordered += [lane[place] for lane in lanes if place < len(lane)]
    return ordered
