"""SHARING: which of the runs that are due a worker takes, where several processes take from one list.

Each process has a share, by the names of runs, and takes what is its own. If it went on with what is others',
it would reach for just what they are about to take: both read it, both claim it, one of them in vain. So as
long as there is more than was listed, what is others' is left to them, unless it has stood in the list for
long: whoever has that share is then busy with something else, or does not know the step. What is left in the
end is taken by anybody, from the other end than they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.workers.turns import Turn

#: After how long in the list a run is anybody's.
LEFT_S = 0.5


class Sharing:
    """A worker's part of what is due; it remembers since when it has seen what is others'."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, float]] = {}

    def of(
        self, step: str, due: Sequence[Turn], others: Callable[[Turn], bool], now: float, *, more: bool
    ) -> list[Turn]:
        """Return the runs of a step that are to be taken, in this order; none: there may be some further on.

        others  whether a run is in somebody else's share
        more    whether there are more than these
        """
        own: list[Turn] = []
        theirs: list[Turn] = []
        for turn in due:
            (theirs if others(turn) else own).append(turn)
        before = self._since.get(step, {})
        since = self._since[step] = {turn.entity: before.get(turn.entity, now) for turn in theirs}
        if not more:
            return own + theirs[::-1]
        return [turn for turn in theirs if now - since[turn.entity] > LEFT_S] + own
