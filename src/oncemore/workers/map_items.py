"""Queue of a job's items: decides the next item and when it may start.

The queue counts the active calls of each provider, holds items that are due later, and applies the
concurrency limit of each provider (`limits.concurrency_rules`). Time is an argument; the queue never waits.
Items are taken from the caller's iterator only when there is room for them, so that a job of a million items
does not hold them all in memory.
"""

from __future__ import annotations

from bisect import insort
from collections import deque

from oncemore._values import Value
from oncemore.limits.concurrency_rules import ConcurrencyState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: How long a provider must not throttle before its limit rises by one.
QUIET_PERIOD_S = 5.0
#: How many items are read ahead to find one whose provider has room.
MAX_READY_ITEMS = 100
#: The wait while nothing can change before an active call returns.
IDLE_WAIT_S = 3600.0


class MapItem(Value):
    """One item of a job: its number, its provider and its argument.

    key  the key of its run, once an attempt was made
    """

    number: int
    provider: str
    value: Any
    key: str = ""


class ItemQueue:
    """The remaining items of a job; not thread-safe, the job's lock protects it."""

    def __init__(self, items: Iterator[MapItem], max_concurrency: int) -> None:
        self.concurrency_states: dict[str, ConcurrencyState] = {}
        self.calls_by_provider: dict[str, int] = {}
        self._items: Iterator[MapItem] | None = items
        self._max_concurrency = max_concurrency
        self._ready: dict[str, deque[MapItem]] = {}
        self._ready_count = 0
        self._waiting: list[tuple[float, int, MapItem]] = []

    @property
    def active_calls(self) -> int:
        """The number of active calls."""
        return sum(self.calls_by_provider.values())

    def take_item(self, now: float) -> MapItem | float | None:
        """Return the next item, the seconds to wait for one, or None when there are no more."""
        for name, limit in self.concurrency_states.items():
            self.concurrency_states[name] = limit.after_quiet_period(now, QUIET_PERIOD_S)
        while self._waiting and self._waiting[0][0] <= now:
            self._add_ready(self._waiting.pop(0)[2])
        item = None if self.active_calls >= self._max_concurrency else self._next_item()
        if item is not None:
            self.calls_by_provider[item.provider] = self.calls_by_provider.get(item.provider, 0) + 1
            return item
        times = self._wake_times()
        if times:
            return min(times) - now
        return IDLE_WAIT_S if self.active_calls else None

    def _wake_times(self) -> list[float]:
        """Return the times at which an item is due or the limit of a provider may rise."""
        slow = [
            limit.since + QUIET_PERIOD_S
            for limit in self.concurrency_states.values()
            if limit.now < limit.most
        ]
        # A higher limit helps only if an item is ready to use it.
        return [*(self._waiting[0][:1] if self._waiting else ()), *(slow if self._ready_count else ())]

    def _next_item(self) -> MapItem | None:
        # Items that were read ahead come first, or they would wait until the iterator is exhausted.
        for name, items in self._ready.items():
            if items and self._has_room(name):
                self._ready_count -= 1
                return items.popleft()
        while self._items is not None and self._ready_count < MAX_READY_ITEMS:
            item = next(self._items, None)
            if item is None:
                self._items = None
            elif self._has_room(item.provider):
                return item
            else:
                self._add_ready(item)
        return None

    def _add_ready(self, item: MapItem) -> None:
        self._ready_count += 1
        self._ready.setdefault(item.provider, deque()).append(item)

    def _has_room(self, provider: str) -> bool:
        limit = self.concurrency_states.setdefault(
            provider, ConcurrencyState(self._max_concurrency, self._max_concurrency)
        )
        return self.calls_by_provider.get(provider, 0) < limit.now

    def record_throttling(self, item: MapItem, began: float, now: float) -> None:
        """Lower the limit of the provider that throttled an attempt of an item."""
        self.concurrency_states[item.provider] = self.concurrency_states[item.provider].after_throttling(
            began, now
        )

    def return_item(self, item: MapItem, until: float | None) -> None:
        """End the call of an item: for good, or until it is due again."""
        self.calls_by_provider[item.provider] -= 1
        if until is not None:
            # The number decides between equal times, so that items themselves are never compared.
            insort(self._waiting, (until, item.number, item))

    def close(self) -> None:
        """Drop all remaining items."""
        self._items, self._ready_count = None, 0
        self._ready.clear()
        self._waiting.clear()
