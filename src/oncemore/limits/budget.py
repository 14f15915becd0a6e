"""A retry budget: what keeps a struggling service from being hit by everybody's repeats at once.

Each retry takes tokens; each success earns a fraction of one back. While most calls succeed the
budget stays full and is not noticed; when most fail it runs dry, and failures are passed on at once
instead of being multiplied. One budget may serve any number of functions and threads.
"""

from __future__ import annotations

from _thread import allocate_lock

from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

#: What a retry does for which no token is left.
AT_EMPTY = ("fail", "wait", "park")


class Budget:
    """A bucket of retry tokens, shared by every `retry` and `step` that is given it.

    capacity     tokens at the start and at most; the longest burst of retries
    per_success  tokens that a call which succeeded at once or in the end earns back
    at_empty     what a retry does for which no token is left: "fail" (the failure is raised at once), "wait"
                 (it waits until there is one, as long as the call may take), or "park" (it is raised at once,
                 and says when to come back)
    """

    __slots__ = ("_lock", "_tokens", "at_empty", "capacity", "per_success")

    def __init__(self, capacity: float = 10.0, per_success: float = 0.1, *, at_empty: str = "fail") -> None:
        if not 0 < capacity < float("inf"):
            raise UsageError(f"capacity is {capacity!r}; it must be a finite number above 0")
        if not 0 <= per_success <= capacity:
            raise UsageError(
                f"per_success is {per_success!r}; it must be from 0 to the capacity, {capacity:g}"
            )
        if at_empty not in AT_EMPTY:
            raise UsageError(f"at_empty is {at_empty!r}; the choices are {', '.join(AT_EMPTY)}")
        self.at_empty = at_empty
        self.capacity = float(capacity)
        self.per_success = float(per_success)
        self._tokens = self.capacity
        self._lock = allocate_lock()

    @property
    def tokens(self) -> float:
        """The tokens that are left."""
        return self._tokens

    def take(self, cost: float) -> float | None:
        """Take tokens for a retry; return None, or how many there were when there were too few.

        Two callers never take the same token.
        """
        had = self.draw(cost)
        return None if had >= cost else had

    def draw(self, cost: float) -> float:
        """Take tokens if there are enough; return how many there were."""
        with self._lock:
            had = self._tokens
            if had >= cost:
                self._tokens = had - cost
            return had

    def give(self, tokens: float) -> None:
        """Give tokens back, up to the capacity."""
        with self._lock:  # rounded, so that ten tenths are one
            self._tokens = min(self.capacity, round(self._tokens + tokens, 9))

    def earn(self) -> None:
        """Give back what a success earns, up to the capacity."""
        self.give(self.per_success)

    @property
    def entity(self) -> str:
        """Where it is in the log, where it is shared; empty where this process alone has it."""
        return ""

    def paying(self, cost: float) -> Generator[Any, Any, float | None]:
        """Take tokens like `take`, as a script: one that is shared has to be stored."""
        yield from ()
        return self.take(cost)

    def earning(self) -> Generator[Any, Any, None]:
        """Give back like `earn`, as a script."""
        yield from ()
        self.earn()
