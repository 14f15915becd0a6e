"""Budgets and breakers of HTTP clients, shared or one per host."""

from __future__ import annotations

from oncemore.errors import UsageError
from oncemore.limits.breaker import BreakerCall, BreakerCore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from oncemore.http.request_retry import RequestRetry
    from oncemore.limits.breaker import Script
    from oncemore.policy.model import Action, Failure, Verdict

#: The number of hosts with a limit of their own; beyond it the oldest one is dropped.
MAX_HOSTS: Final = 1000


class PerHostLimits:
    """One budget or breaker for all hosts, or one per host, created at the first request to it.

    option   "budget" or "breaker", for error messages
    limit    None, one object for all hosts, or a function of the host's name
    expected the class of the objects
    """

    def __init__(self, option: str, limit: Any, expected: type) -> None:
        if limit is not None and not isinstance(limit, expected) and not callable(limit):
            name = option.capitalize()
            raise UsageError(
                f"{option} is {limit!r}; it takes a {name}, or a function that makes one for a host"
            )
        self._option, self._limit, self._expected = option, limit, expected
        self._by_host: dict[str, Any] = {}

    def for_host(self, host: str) -> Any:
        """Return the budget or breaker of a host, or None."""
        if self._limit is None or isinstance(self._limit, self._expected):
            return self._limit
        known = self._by_host.get(host)
        if known is not None:
            return known
        created = self._limit(host)
        if not isinstance(created, self._expected):
            raise UsageError(
                f"{self._option} returned {created!r} for a host; it must return a {self._expected.__name__}"
            )
        # Bounded, because a crawler may meet any number of hosts.
        if len(self._by_host) >= MAX_HOSTS:
            self._by_host.pop(next(iter(self._by_host)), None)
        # `setdefault`: another thread may have created the limit of this host at the same time.
        return self._by_host.setdefault(host, created)


class HostBreaker(BreakerCore):
    """The breaker of a host, as one request uses it."""

    __slots__ = ("_exchange",)

    def __init__(self, breaker: BreakerCore, exchange: RequestRetry) -> None:
        super().__init__(breaker.name, breaker.rules, breaker.storage)
        self._exchange = exchange

    def start_call(self, limit_s: float | None = None) -> BreakerCall:
        """Return the breaker call of the request."""
        return HostFailureCounter(self, limit_s, self._exchange)


class HostFailureCounter(BreakerCall):
    """A breaker call that counts a failure of the host even if only the request forbids a retry."""

    __slots__ = ("_exchange",)

    def __init__(self, breaker: BreakerCore, limit_s: float | None, exchange: RequestRetry) -> None:
        super().__init__(breaker, limit_s)
        self._exchange = exchange

    def record_failure(self, failure: Failure, verdict: Verdict, action: Action) -> Script[float | None]:
        """Record a failed attempt, as UNKNOWN if the request may have had an effect."""
        # With the verdict TERMINAL the failure would not count against the host.
        return super().record_failure(
            failure, "UNKNOWN" if self._exchange.is_repeat_unsafe else verdict, action
        )
