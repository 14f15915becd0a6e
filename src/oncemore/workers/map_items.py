"""BOARD: which item of a job comes next, and when.

A job calls one step for many items, some of them toward other providers than the rest. A board knows what is
under way, what waits for its time, and how many calls each provider takes at once
(`limits.concurrency_rules`); it is told
the time and never waits itself. Items are drawn when there is room for them, so that a job of a million costs
no more memory than what is under way and what came of the others.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from oncemore._values import Value
from oncemore.limits.concurrency_rules import Pace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: How long a provider must be quiet before one more call is allowed toward it.
QUIET_S = 5.0
#: How many items are drawn ahead while their own provider has no room, to find one whose provider has.
AHEAD = 100
#: As good as for ever: somebody has to come back first.
FOREVER = 3600.0


class Item(Value):
    """One call of a job: its place among all, whom it asks something of, and what it is called with.

    key  of its run, where an attempt was made
    """

    number: int
    provider: str
    given: Any
    key: str = ""


class Board:
    """What is left of a job; whoever shares one takes turns."""

    def __init__(self, items: Iterator[Item], most: int) -> None:
        self.paces: dict[str, Pace] = {}
        self.under_way: dict[str, int] = {}
        self._items: Iterator[Item] | None = items
        self._most = most
        self._ready: dict[str, deque[Item]] = {}
        self._ahead = 0
        self._later: list[tuple[float, int, Item]] = []

    @property
    def busy(self) -> int:
        """How many calls are under way."""
        return sum(self.under_way.values())

    def take(self, now: float) -> Item | float | None:
        """Return the next item; or how long to wait for one; or None when there will be none."""
        for name, pace in self.paces.items():
            self.paces[name] = pace.quiet(now, QUIET_S)
        while self._later and self._later[0][0] <= now:
            self._put_by(self._later.pop(0)[2])
        item = None if self.busy >= self._most else self._next()
        if item is not None:
            self.under_way[item.provider] = self.under_way.get(item.provider, 0) + 1
            return item
        times = self._times()
        if times:
            return min(times) - now
        return FOREVER if self.busy else None

    def _times(self) -> list[float]:
        """Return when something may change by itself: an item's time comes, or a provider was quiet."""
        slow = [pace.since + QUIET_S for pace in self.paces.values() if pace.now < pace.most]
        return [*(self._later[0][:1] if self._later else ()), *(slow if self._ahead else ())]

    def _next(self) -> Item | None:
        for name, items in self._ready.items():
            if items and self._has_room(name):
                self._ahead -= 1
                return items.popleft()
        while self._items is not None and self._ahead < AHEAD:
            item = next(self._items, None)
            if item is None:
                self._items = None
            elif self._has_room(item.provider):
                return item
            else:
                self._put_by(item)
        return None

    def _put_by(self, item: Item) -> None:
        self._ahead += 1
        self._ready.setdefault(item.provider, deque()).append(item)

    def _has_room(self, provider: str) -> bool:
        pace = self.paces.setdefault(provider, Pace(self._most, self._most))
        return self.under_way.get(provider, 0) < pace.now

    def throttled(self, item: Item, began: float, now: float) -> None:
        """Ask less of the provider of an item whose attempt was told to slow down."""
        self.paces[item.provider] = self.paces[item.provider].throttled(began, now)

    def back(self, item: Item, until: float | None) -> None:
        """Take back an item that was under way: for good, or to be taken again from a time on."""
        self.under_way[item.provider] -= 1
        if until is not None:
            insort(self._later, (until, item.number, item))

    def close(self) -> None:
        """Have nothing left to take."""
        self._items, self._ahead = None, 0
        self._ready.clear()
        self._later.clear()
