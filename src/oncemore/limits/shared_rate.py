"""METERS: a rate at work. Moments are handed out in memory, or in batches by a store for all who share it.

Who takes moments from a store takes one at first, and twice as many each time that they were used up, so
that a busy process writes seldom and an idle one keeps nothing from the others. Moments that were taken and
not used, because their process died or had nothing more to do, are lost: a rate is never exceeded, only not
reached.
"""

from __future__ import annotations

from _thread import allocate_lock

from oncemore import clock as clocks
from oncemore.errors import StoreError
from oncemore.limits import rate_rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from oncemore.limits.rate_rules import Pulse
    from oncemore.log.record import Quota
    from oncemore.steps.engine import Engine

#: How many moments are taken at once at most, and over how much time.
MOST_TAKEN, FAR_S = 100, 1.0


class Meter:
    """Gives calls their moments.

    pulse  how many in which time
    name   whose rate it is
    """

    __slots__ = ("_find", "_free_at", "_lock", "_mine", "_next_at", "_size", "name", "pulse")

    def __init__(self, pulse: Pulse, name: str = "", find: Callable[[], Engine] | None = None) -> None:
        self.pulse, self.name = pulse, name
        self._find = find
        self._next_at = self._free_at = 0.0
        self._mine: list[float] = []  # moments that are ours, the first one last
        self._size = 1
        self._lock = allocate_lock()

    def wait(self, *, has_moment: bool = False) -> Generator[Any, Any, float]:
        """Take a moment, unless the call has one; return the seconds until it may go, 0 or less for now."""
        if self._find is None:
            return self._alone()
        engine = self._find()
        if has_moment:
            return self._keep_distance(engine.now())
        try:
            while (wait := self._left(engine.now())) is None:
                yield from self._fetch(engine)
        except StoreError as error:
            engine.grumble(
                f"rate {self.name}: the store cannot be reached ({error}); this process counts alone"
            )
            return self._alone()
        return wait

    def _keep_distance(self, now: float) -> float:
        """Return 0 if a call whose moment has come may go now; else how long the calls before it keep it.

        Calls may come late to their moments, because a worker was busy or stood still. Those of one process
        do not catch up all at once then: what goes is as far apart as the moments were.
        """
        with self._lock:
            at, free_at = rate_rules.take(self.pulse, self._free_at, now)
            if at <= now:
                self._free_at = free_at
        return max(0.0, at - now)

    def _alone(self) -> float:
        now = clocks.current.wall()
        with self._lock:
            at, self._next_at = rate_rules.take(self.pulse, self._next_at, now)
        return at - now

    def _left(self, now: float) -> float | None:
        """Return how long it is until the first moment that is ours; None if there is none any more."""
        late = now - max(self.pulse.step_s, 0.01) * self.pulse.burst
        with self._lock:
            while self._mine:
                at = self._mine.pop()
                if at >= late:
                    return at - now
            return None

    def _fetch(self, engine: Engine) -> Generator[Any, Any, None]:
        """Take moments from the store, for all to see."""
        from oncemore.limits.concurrency import changed

        count, pulse = self._size, self.pulse

        def turn(found: Quota, now: float) -> tuple[Quota, tuple[float, float]]:
            at, next_at = rate_rules.take(pulse, found.next_at, now, count)
            told = (pulse.per, pulse.period_s, pulse.burst)
            after = found._replace(per=told[0], period_s=told[1], burst=told[2], next_at=next_at)
            return after, (at, now)

        first, now = yield from changed(engine, self.name, turn)
        step = pulse.step_s
        with self._lock:
            self._mine = sorted([*self._mine, *(first + n * step for n in range(count))], reverse=True)
            far = first + count * step - now > FAR_S
            self._size = max(1, self._size // 2) if far else min(2 * self._size, MOST_TAKEN)
