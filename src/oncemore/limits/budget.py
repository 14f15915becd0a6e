"""A retry budget: it limits the retries that an overloaded service receives from all callers together.

Each retry takes tokens; each success earns a fraction of one back. While most calls succeed the
budget stays full and has no effect; when most fail it is empty, and failures are raised at once
instead of being multiplied. One budget may serve any number of functions and threads.
"""

from __future__ import annotations

from _thread import allocate_lock

from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

#: Behaviour of a retry without a token.
AT_EMPTY = ("fail", "wait", "park")


class TokenBucket:
    """A bucket of retry tokens, shared by every `retry` and `step` that is given it.

    capacity     tokens at the start and at most; the longest burst of retries
    per_success  tokens that a successful call earns back, with or without retries
    at_empty     behaviour of a retry without a token: "fail" (the failure is raised at once), "wait" (the
                 retry waits for a token, within the time limit of the call), or "park" (the failure is
                 raised at once, with the time to call again)
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
        # threading.Lock without importing threading: this module is behind `import oncemore`.
        self._lock = allocate_lock()

    @property
    def tokens(self) -> float:
        """The tokens that are left."""
        return self._tokens

    def take_tokens(self, cost: float) -> float | None:
        """Take tokens for a retry; return None, or the number of tokens left if there are too few.

        Two callers never take the same token.
        """
        tokens = self.draw_tokens(cost)
        return None if tokens >= cost else tokens

    def draw_tokens(self, cost: float) -> float:
        """Take tokens if there are enough; return the number before."""
        with self._lock:
            tokens = self._tokens
            if tokens >= cost:
                self._tokens = tokens - cost
            return tokens

    def return_tokens(self, tokens: float) -> None:
        """Give tokens back, up to the capacity."""
        with self._lock:
            # Rounded, because ten times 0.1 must be one whole token.
            self._tokens = min(self.capacity, round(self._tokens + tokens, 9))

    def earn_tokens(self) -> None:
        """Add the tokens of one success, up to the capacity."""
        self.return_tokens(self.per_success)

    @property
    def entity(self) -> str:
        """The entity of a shared budget in the log; empty for a budget in memory."""
        return ""

    def _pay_script(self, cost: float) -> Generator[Any, Any, float | None]:
        """Take tokens like `take_tokens`, as a generator: a shared budget writes to the store."""
        # Nothing to store here, but the driver expects a generator.
        yield from ()
        return self.take_tokens(cost)

    def _earn_script(self) -> Generator[Any, Any, None]:
        """Earn tokens like `earn_tokens`, as a generator."""
        yield from ()
        self.earn_tokens()
