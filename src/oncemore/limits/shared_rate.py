"""Rate limiters at run time: slots are taken in memory, or in batches from a shared store.

A process takes one slot from the store at first and doubles the batch each time it is used up, so that a
busy process writes rarely and an idle one reserves little. Slots of a process that dies or becomes idle are
lost: the rate may not be reached, but it is never exceeded.
"""

from __future__ import annotations

from _thread import allocate_lock

from oncemore import clock as clocks
from oncemore.errors import StoreError, log_warning
from oncemore.limits import rate_rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from oncemore.limits.rate_rules import RateLimit
    from oncemore.log.record import QuotaRecord
    from oncemore.steps.engine import Engine

#: Largest batch of slots, and the longest time in seconds that a batch may span.
MOST_TAKEN, FAR_S = 100, 1.0


class RateLimiter:
    """Gives calls the slots of a rate limit.

    rate_limit  the number of calls per period
    name        the name of the rate
    """

    __slots__ = ("_find", "_free_at", "_lock", "_mine", "_next_at", "_size", "name", "rate_limit")

    def __init__(self, rate: RateLimit, name: str = "", find: Callable[[], Engine] | None = None) -> None:
        self.rate_limit, self.name = rate, name
        self._find = find
        self._next_at = self._free_at = 0.0
        # The unused slots of this process, earliest last: pop() takes the next one.
        self._mine: list[float] = []
        self._size = 1
        self._lock = allocate_lock()

    def take_slot(self, *, has_slot: bool = False) -> Generator[Any, Any, float]:
        """Take a slot, unless the call has one; return the seconds until it may start, 0 or less for now."""
        if self._find is None:
            return self._take_local_slot()
        engine = self._find()
        if has_slot:
            return self._keep_distance(engine.now())
        try:
            while (wait := self._time_to_slot(engine.now())) is None:
                yield from self._fetch_slots(engine)
        except StoreError as error:
            log_warning(
                f"rate {self.name}: the store cannot be reached ({error}); this process counts its calls in "
                "memory"
            )
            return self._take_local_slot()
        return wait

    def _keep_distance(self, now: float) -> float:
        """Return 0 if a call with a due slot may start now, else the seconds to wait for earlier calls.

        Calls may be late for their slots, because a worker was busy or suspended. The late calls of one
        process keep the interval of the rate instead of starting all at once.
        """
        with self._lock:
            start, free_at = rate_rules.take_slots(self.rate_limit, self._free_at, now)
            # Only a call that starts uses the interval; one that waits asks again.
            if start <= now:
                self._free_at = free_at
        return max(0.0, start - now)

    def _take_local_slot(self) -> float:
        now = clocks.current.wall()
        with self._lock:
            start, self._next_at = rate_rules.take_slots(self.rate_limit, self._next_at, now)
        return start - now

    def _time_to_slot(self, now: float) -> float | None:
        """Return the seconds to the next slot of this process; None if it has none left."""
        # Older slots are discarded: used late and together they would exceed the burst.
        oldest = now - max(self.rate_limit.interval_s, 0.01) * self.rate_limit.burst
        with self._lock:
            while self._mine:
                slot = self._mine.pop()
                if slot >= oldest:
                    return slot - now
            return None

    def _fetch_slots(self, engine: Engine) -> Generator[Any, Any, None]:
        """Take a batch of slots from the store."""
        # Imported here: the store needs third-party modules, a rate in memory needs none.
        from oncemore.limits.concurrency import update_quota

        count, rate = self._size, self.rate_limit

        def turn(quota: QuotaRecord, now: float) -> tuple[QuotaRecord, tuple[float, float]]:
            start, next_at = rate_rules.take_slots(rate, quota.next_at, now, count)
            after = quota._replace(
                calls_per_period=rate.per, period_s=rate.period_s, burst=rate.burst, next_at=next_at
            )
            return after, (start, now)

        first, now = yield from update_quota(engine, self.name, turn)
        step = rate.interval_s
        with self._lock:
            self._mine = sorted([*self._mine, *(first + n * step for n in range(count))], reverse=True)
            # A batch that reaches far into the future keeps slots from the other processes.
            is_far = first + count * step - now > FAR_S
            self._size = max(1, self._size // 2) if is_far else min(2 * self._size, MOST_TAKEN)
