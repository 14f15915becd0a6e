"""The public limits: `Breaker`, `Budget` and `Rate`.

They add to the core classes the classification of errors and the engine that is open, for shared limits.
"""

from __future__ import annotations

from contextvars import ContextVar

from oncemore import clock as clocks
from oncemore.classifiers.classify import classify, ensure_plugins_loaded
from oncemore.errors import StoreError, UsageError, log_warning
from oncemore.limits.breaker import (
    BreakerCall,
    BreakerCore,
    check_name,
    local_breaker_state,
    run_limit_script,
    run_limit_script_async,
)
from oncemore.limits.breaker_rules import BreakerRules
from oncemore.limits.budget import TokenBucket as Plain
from oncemore.limits.rate_rules import parse_rate
from oncemore.limits.shared_rate import RateLimiter
from oncemore.policy.canonical_json import normalize_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType
    from typing import Any, ParamSpec, Self, TypeVar

    from oncemore.limits.breaker import BreakerStorage, Script
    from oncemore.log.record import BreakerRecord, QuotaRecord
    from oncemore.steps.engine import Engine

    P = ParamSpec("P")
    R = TypeVar("R")


class Breaker(BreakerCore):
    """Stops calls to a provider that keeps failing, and admits one call after a while as a probe.

    name        the provider: a host, or any other name
    failures    consecutive failed operations that open it
    cooldown_s  seconds that it stays open; after that one call is admitted, and its result decides
    count       "operations": each counts once, at its first failed call; or all failed "attempts"
    rate        instead of `failures`: the fraction of failed calls that opens it, over `window_s` seconds,
                from `minimum_calls` calls on
    shared      stored in the store of the engine that is open (`oncemore.open`, or the settings): all
                processes on that store share it, and it outlives them; else it is in memory

    For `retry(breaker=…)` and `step(breaker=…)`, or by itself: `with breaker:`, `async with breaker:`,
    `breaker.call(function, …)`. Permanent errors do not count.
    """

    __slots__ = ()

    def __init__(
        self,
        name: str,
        *,
        failures: int = 3,
        cooldown_s: float | timedelta = 300.0,
        count: str = "operations",
        rate: float | None = None,
        window_s: float | timedelta = 60.0,
        minimum_calls: int = 10,
        shared: bool = False,
    ) -> None:
        rules = BreakerRules(
            failures=failures,
            cooldown_s=_check_seconds(cooldown_s),
            counts=count,
            rate=rate,
            window_s=_check_seconds(window_s),
            minimum_calls=minimum_calls,
        )
        super().__init__(name, rules, stored_breaker_state(name) if shared else None)

    @property
    def circuit(self) -> BreakerRecord:
        """The current record of the breaker."""
        return self.storage.load_state()

    @property
    def state(self) -> str:
        """CLOSED, OPEN or HALF_OPEN."""
        return self.circuit.state

    @property
    def until(self) -> float | None:
        """The time until which it admits no call, in POSIX seconds; None while it is closed."""
        circuit = self.circuit
        return None if circuit.state == "CLOSED" else circuit.open_until

    def __repr__(self) -> str:
        return f"<oncemore.Breaker {self.name} {self.state}>"

    def call(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a plain function behind the breaker; use `async with breaker:` for an async one."""
        # While nothing has failed, a success costs no lock and no write.
        if not (self.light and self.storage.clean):
            with self:
                return work(*args, **kwargs)
        try:
            value = work(*args, **kwargs)
        except Exception as error:
            run_limit_script(_record_block_end(self.start_call(), error))
            raise
        # A call in another thread may have failed meanwhile: then this success counts.
        if not self.storage.clean:
            run_limit_script(_record_block_end(self.start_call(), None))  # type: ignore[unreachable]
        return value

    def __enter__(self) -> Self:
        call = self.start_call()
        refusal = run_limit_script(call.ask_admission())
        if refusal is not None:
            raise refusal
        _push_call(call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_limit_script(_record_block_end(_pop_call(self), error))

    async def __aenter__(self) -> Self:
        call = self.start_call()
        refusal = await run_limit_script_async(call.ask_admission())
        if refusal is not None:
            raise refusal
        _push_call(call)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = _pop_call(self)
        if error is not None and not isinstance(error, Exception):
            # A cancelled task must not await anything more.
            call.finish_call()
        else:
            await run_limit_script_async(_record_block_end(call, error))


def _record_block_end(call: BreakerCall, error: BaseException | None) -> Script[Any]:
    """Record the end of a block; a cancellation or an interrupt says nothing about the provider."""
    if error is None:
        return (yield from call.record_success())
    if not isinstance(error, Exception):
        return call.finish_call()
    ensure_plugins_loaded()
    failure = classify(error, clocks.current.wall())
    return (yield from call.record_failure(failure, "RETRYABLE" if failure.may_pass else "TERMINAL", "stop"))


#: The open blocks of this task or thread, the innermost last: one breaker may serve many at once.
_INSIDE: ContextVar[tuple[BreakerCall, ...]] = ContextVar("oncemore.passages", default=())


def _push_call(call: BreakerCall) -> None:
    _INSIDE.set((*_INSIDE.get(), call))


def _pop_call(breaker: BreakerCore) -> BreakerCall:
    *outer_calls, call = _INSIDE.get()
    assert call.gate is breaker
    _INSIDE.set(tuple(outer_calls))
    return call


def _check_seconds(value: Any) -> Any:
    return value.total_seconds() if hasattr(value, "total_seconds") else value


def stored_breaker_state(name: str, find: Callable[[], Engine] | None = None) -> BreakerStorage:
    """Return the storage of a breaker in the store of an engine, shared by its processes."""
    # Imported here: the store needs third-party modules, a breaker in memory needs none.
    from oncemore.limits.shared_breaker import StoredBreakerState

    return StoredBreakerState(name, find or _open_engine)


def _open_engine() -> Engine:
    # Looked up at each use: the engine may be opened after the decorator has run.
    from oncemore.open_engine import find_engine

    return find_engine(None)


class Budget(Plain):
    """A bucket of retry tokens, shared by every `retry` and `step` that is given it.

    capacity     tokens at the start and at most; the longest burst of retries
    per_success  tokens that a successful call earns back, with or without retries
    at_empty     behaviour of a retry without a token: "fail" (the failure is raised at once), "wait" (the
                 retry waits for a token, within the time limit of the call), or "park" (the failure is
                 raised at once, with the time to call again; the run of a step continues when there is one)
    name         the name of the budget, required if it is shared
    shared       stored in the store of the engine that is open: all processes on that store share it
    """

    __slots__ = ("_earned", "_find", "name")

    def __init__(
        self,
        capacity: float = 10.0,
        per_success: float = 0.1,
        *,
        at_empty: str = "fail",
        name: str = "",
        shared: bool = False,
    ) -> None:
        super().__init__(capacity, per_success, at_empty=at_empty)
        self.name = check_name(name) if shared else normalize_name(name)
        self._find = _open_engine if shared else None
        self._earned = 0.0

    @property
    def tokens(self) -> float:
        """The tokens that are left; for a shared budget, those in the store."""
        if self._find is None:
            return self._tokens
        from oncemore.limits.concurrency import load_quota

        try:
            quota = load_quota(self._find(), self.name)
        except StoreError:
            # Without the store, this process counts in memory.
            return self._tokens
        # Without a capacity no token was ever taken: the budget is full.
        return quota.tokens if quota.capacity else self.capacity

    @property
    def entity(self) -> str:
        """The entity of a shared budget in the log; empty for a budget in memory."""
        if self._find is None:
            return ""
        from oncemore.limits.concurrency import PREFIX

        return PREFIX + self.name

    def _pay_script(self, cost: float) -> Script[float | None]:
        """Take tokens from the store if it is shared; from memory if the store is down."""
        spend = lambda tokens: tokens - cost if tokens >= cost else None  # noqa: E731
        short: float | None = yield from self._run_on_store(spend, self.take_tokens, cost)
        return short

    def _earn_script(self) -> Script[None]:
        """Add the tokens of one success; write them to a store in batches."""
        if self._find is None:
            return self.earn_tokens()
        # Rounded, because ten times 0.1 must be one whole token.
        self._earned = round(self._earned + self.per_success, 9)
        if self._earned >= max(1.0, self.capacity / 10):
            yield from self._run_on_store(lambda tokens: tokens, lambda cost: self.earn_tokens(), 0.0)
        return None

    def _run_on_store(
        self, spend: Callable[[float], float | None], in_memory: Callable[[float], Any], cost: float
    ) -> Any:
        if self._find is None:
            return in_memory(cost)
        from oncemore.limits.concurrency import update_quota

        earned, self._earned = self._earned, 0.0

        def turn(quota: QuotaRecord, now: float) -> tuple[QuotaRecord, float | None]:
            stored = quota.tokens if quota.capacity else self.capacity
            tokens = min(self.capacity, round(stored + earned, 9))
            left = spend(tokens)
            after = quota._replace(capacity=self.capacity, tokens=tokens if left is None else left)
            return after, tokens if left is None else None

        engine = self._find()
        try:
            return (yield from update_quota(engine, self.name, turn))
        except StoreError as error:
            log_warning(
                f"budget {self.name}: the store cannot be reached ({error}); this process counts its tokens "
                "in memory"
            )
            return in_memory(cost)

    def __repr__(self) -> str:
        return f"Budget({self.tokens:g} of {self.capacity:g} tokens, {self.per_success:g} per success)"


class Rate(RateLimiter):
    """A rate limit for every function that has it: each call waits for its slot.

    text    calls and a time: "10/s", "100/min", "5/h", "1/10s"
    burst   calls admitted at once after an idle period; by default calls are evenly spaced
    name    the name of the rate, required if it is shared
    shared  stored in the store of the engine that is open: all processes on that store share it
    """

    __slots__ = ()

    def __init__(self, text: str, *, burst: int = 1, name: str = "", shared: bool = False) -> None:
        name = check_name(name) if shared else normalize_name(name)
        super().__init__(parse_rate(text, burst), name, _open_engine if shared else None)

    def __repr__(self) -> str:
        of = f" of {self.name}" if self.name else ""
        return f"<oncemore.Rate{of}: {self.rate_limit.per} in {self.rate_limit.period_s:g} s>"


def resolve_rate(option: object) -> RateLimiter:
    """Return the rate limiter of an option: the object itself, or a new one for a text."""
    return option if isinstance(option, RateLimiter) else RateLimiter(parse_rate(option))


def resolve_breaker(option: object, rules: BreakerRules | None = None) -> BreakerCore | None:
    """Return the breaker of an option: the object itself, or one for the name of a provider.

    A name stands for the same state everywhere in this process; `rules` are those of a policy.
    """
    if option is None or isinstance(option, BreakerCore):
        return option
    if isinstance(option, str):
        return BreakerCore(option, rules or BreakerRules(), local_breaker_state(option))
    raise UsageError(f"breaker is {option!r}; it takes the name of a provider, or oncemore.Breaker(...)")
