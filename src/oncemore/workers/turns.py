"""Which due runs a worker takes, and in which order.

Higher priorities come first. Within a priority the steps take turns, so that a step with a million due runs
delays another step by one run only. Within a step the earliest due time comes first.

If several processes share a store, each has a share of the runs, by a hash of their names. A process that
took runs of another share would often claim a run that the owner of that share claims at the same moment, and
one of both would fail. So a worker takes runs of another share only if they have been listed for a while, or
if no more runs follow.
"""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: After how many seconds in the list a run may be taken by any worker.
UNCLAIMED_S = 0.5


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


class FairShare:
    """Selects runs for one worker, and remembers since when runs of another share are listed."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}

    def select_runs(
        self,
        step: str,
        due: Sequence[RunTurn],
        is_foreign: Callable[[RunTurn], bool],
        now: float,
        *,
        has_more: bool,
    ) -> list[RunTurn]:
        """Return the runs of a step to take, in order; empty if the caller must list more of them.

        is_foreign  returns whether a run belongs to another share
        has_more    the list was cut off, and more runs follow
        """
        own: list[RunTurn] = []
        foreign: list[RunTurn] = []
        for turn in due:
            (foreign if is_foreign(turn) else own).append(turn)
        before = self._since.get(step, {})
        since = self._since[step] = {turn.entity: before.get(turn.entity, now) for turn in foreign}
        if not has_more:
            # The owner of the other share starts at the front of its runs, so this worker starts at the end.
            return own + foreign[::-1]
        # A run that was listed for long has an owner that is busy, or that does not know the step.
        return [turn for turn in foreign if now - since[turn.entity] > UNCLAIMED_S] + own
