"""PACE: how many calls may be under way toward one provider at once (CONC-5).

A provider that throttles is asked half as much, at once; every quiet interval after that allows one more,
up to what was allowed at first. Nothing else raises it: no failure ever does (CONC-1).
"""

from __future__ import annotations

from oncemore._values import Value


class Pace(Value):
    """How many may be under way now.

    most   how many at most
    now    how many at present
    since  when that last changed, in POSIX seconds
    """

    most: int
    now: int
    since: float = 0.0

    def throttled(self, began: float, at: float) -> Pace:
        """Return the pace after an attempt was told to slow down.

        began  when that attempt began: one that began before the last change tells nothing new
        """
        if began < self.since:
            return self
        return self._replace(now=max(1, self.now // 2), since=at)

    def quiet(self, at: float, interval_s: float) -> Pace:
        """Return the pace after some time in which nobody asked to slow down."""
        if self.now >= self.most or at - self.since < interval_s:
            return self
        return self._replace(now=self.now + 1, since=at)
