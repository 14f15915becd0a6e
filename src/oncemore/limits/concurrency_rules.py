"""The rules of a concurrency limit: the number of concurrent calls to one provider (CONC-5).

Throttling halves the limit at once; every quiet interval after that raises it by one, up to the initial
limit. Nothing else raises it, and no failure ever does (CONC-1).
"""

from __future__ import annotations

from oncemore._values import Value


class ConcurrencyState(Value):
    """The limit of concurrent calls.

    most   the initial limit
    now    the current limit
    since  the time of its last change, in POSIX seconds
    """

    most: int
    now: int
    since: float = 0.0

    def after_throttling(self, began: float, at: float) -> ConcurrencyState:
        """Return the limit after an attempt was throttled.

        began  the time at which that attempt began
        """
        # The attempt began under the former limit, so it is not evidence about the current one.
        if began < self.since:
            return self
        return self._replace(now=max(1, self.now // 2), since=at)

    def after_quiet_period(self, at: float, interval_s: float) -> ConcurrencyState:
        """Return the limit after a period without throttling."""
        if self.now >= self.most or at - self.since < interval_s:
            return self
        return self._replace(now=self.now + 1, since=at)
