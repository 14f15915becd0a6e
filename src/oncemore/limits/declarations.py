"""Breaker: what keeps a provider that is down from being asked again and again.

With what the rooms above the engine know: which errors count, and which engine is open.
"""

from __future__ import annotations

from contextvars import ContextVar

from oncemore import clock as clocks
from oncemore.classifiers.classify import classify, ready
from oncemore.errors import StoreError, UsageError
from oncemore.limits.breaker import Gate, Passage, awaited, check_name, named, waited_for
from oncemore.limits.breaker_rules import Rules
from oncemore.limits.budget import Budget as Plain
from oncemore.limits.rate_rules import pulse_of
from oncemore.limits.shared_rate import Meter
from oncemore.policy.canonical_json import normalize_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType
    from typing import Any, ParamSpec, Self, TypeVar

    from oncemore.limits.breaker import Book, Script
    from oncemore.log.record import Circuit, Quota
    from oncemore.steps.engine import Engine

    P = ParamSpec("P")
    R = TypeVar("R")


class Breaker(Gate):
    """Stops calls to a provider that keeps failing, and lets one through after a while to see.

    name        the provider: a host, or what you call it
    failures    how many operations that fail one after another open it
    cooldown_s  seconds that it then stays open; after that one call is let through, and decides
    count       "operations": each counts once, at its first failed call; or all failed "attempts"
    rate        instead of `failures`: the part of calls whose failure opens it, over `window_s` seconds, from
                `least` calls on
    shared      kept in the store of the engine that is open (`oncemore.open`, or the settings): all processes
                on that store share it, and it outlives them; else this object has it, in memory

    For `retry(breaker=…)` and `step(breaker=…)`, or by itself: `with breaker:`, `async with breaker:`,
    `breaker.call(function, …)`. Errors that do not pass by themselves do not count.
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
        least: int = 10,
        shared: bool = False,
    ) -> None:
        rules = Rules(failures, _seconds(cooldown_s), count, rate, _seconds(window_s), least)
        super().__init__(name, rules, shared_book(name) if shared else None)

    @property
    def circuit(self) -> Circuit:
        """What is known of it now."""
        return self.book.look()

    @property
    def state(self) -> str:
        """CLOSED, OPEN or HALF_OPEN."""
        return self.circuit.state

    @property
    def until(self) -> float | None:
        """Until when no call goes through, in POSIX seconds; None while calls do."""
        circuit = self.circuit
        return None if circuit.state == "CLOSED" else circuit.until

    def __repr__(self) -> str:
        return f"<oncemore.Breaker {self.name} {self.state}>"

    def call(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a plain function behind the breaker; an async one goes into `async with breaker:`."""
        if not (self.light and self.book.clean):
            with self:
                return work(*args, **kwargs)
        try:
            value = work(*args, **kwargs)
        except Exception as error:
            waited_for(_left(self.passage(), error))
            raise
        if not self.book.clean:  # others have failed meanwhile
            waited_for(_left(self.passage(), None))  # type: ignore[unreachable]
        return value

    def __enter__(self) -> Self:
        passage = self.passage()
        refused = waited_for(passage.admit())
        if refused is not None:
            raise refused
        _push(passage)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waited_for(_left(_pop(self), error))

    async def __aenter__(self) -> Self:
        passage = self.passage()
        refused = await awaited(passage.admit())
        if refused is not None:
            raise refused
        _push(passage)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        passage = _pop(self)
        if error is not None and not isinstance(error, Exception):
            passage.leave()  # whoever was cancelled must not await
        else:
            await awaited(_left(passage, error))


def _left(passage: Passage, error: BaseException | None) -> Script[Any]:
    """Tell what came of a block; what cut it off from outside says nothing about the provider."""
    if error is None:
        return (yield from passage.passed())
    if not isinstance(error, Exception):
        return passage.leave()
    ready()
    failure = classify(error, clocks.current.wall())
    return (yield from passage.failed(failure, "RETRYABLE" if failure.passing else "TERMINAL", "stop"))


#: The blocks that this task or thread is in, the innermost last: one breaker may serve many at once.
_INSIDE: ContextVar[tuple[Passage, ...]] = ContextVar("oncemore.passages", default=())


def _push(passage: Passage) -> None:
    _INSIDE.set((*_INSIDE.get(), passage))


def _pop(gate: Gate) -> Passage:
    *around, passage = _INSIDE.get()
    assert passage.gate is gate
    _INSIDE.set(tuple(around))
    return passage


def _seconds(value: Any) -> Any:
    return value.total_seconds() if hasattr(value, "total_seconds") else value


def shared_book(name: str, find: Callable[[], Engine] | None = None) -> Book:
    """Return where a breaker is kept that all share who share the store of an engine."""
    from oncemore.limits.shared_breaker import Shared

    return Shared(name, find or _open_engine)


def _open_engine() -> Engine:
    from oncemore.open_engine import chosen

    return chosen(None)


class Budget(Plain):
    """A bucket of retry tokens, shared by every `retry` and `step` that is given it.

    capacity     tokens at the start and at most; the longest burst of retries
    per_success  tokens that a call which succeeded at once or in the end earns back
    at_empty     what a retry does for which no token is left: "fail" (the failure is raised at once), "wait"
                 (it waits until there is one, as long as the call may take), or "park" (it is raised at once,
                 and says when to come back; the run of a step goes on then, once there is one)
    name         whose budget it is: needed where it is shared
    shared       kept in the store of the engine that is open: all processes on that store have it together
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
        """The tokens that are left; of a shared one, those that the store knows of."""
        if self._find is None:
            return self._tokens
        from oncemore.limits.concurrency import known

        try:
            found = known(self._find(), self.name)
        except StoreError:
            return self._tokens
        return found.tokens if found.capacity else self.capacity

    @property
    def entity(self) -> str:
        """Where it is in the log, where it is shared; empty where this process alone has it."""
        if self._find is None:
            return ""
        from oncemore.limits.concurrency import PREFIX

        return PREFIX + self.name

    def paying(self, cost: float) -> Script[float | None]:
        """Take tokens, of the store where it is shared; if that is down, of this process."""
        spend = lambda had: had - cost if had >= cost else None  # noqa: E731
        short: float | None = yield from self._shared(spend, self.take, cost)
        return short

    def earning(self) -> Script[None]:
        """Give back what a success earns; to a store, when it is worth a write."""
        if self._find is None:
            return self.earn()
        self._earned = round(self._earned + self.per_success, 9)
        if self._earned >= max(1.0, self.capacity / 10):
            yield from self._shared(lambda had: had, lambda cost: self.earn(), 0.0)
        return None

    def _shared(
        self, spend: Callable[[float], float | None], alone: Callable[[float], Any], cost: float
    ) -> Any:
        if self._find is None:
            return alone(cost)
        from oncemore.limits.concurrency import changed

        earned, self._earned = self._earned, 0.0

        def turn(found: Quota, now: float) -> tuple[Quota, float | None]:
            had = min(self.capacity, round((found.tokens if found.capacity else self.capacity) + earned, 9))
            left = spend(had)
            after = found._replace(capacity=self.capacity, tokens=had if left is None else left)
            return after, had if left is None else None

        engine = self._find()
        try:
            return (yield from changed(engine, self.name, turn))
        except StoreError as error:
            engine.grumble(
                f"budget {self.name}: the store cannot be reached ({error}); this process pays alone"
            )
            return alone(cost)

    def __repr__(self) -> str:
        return f"Budget({self.tokens:g} of {self.capacity:g} tokens, {self.per_success:g} per success)"


class Rate(Meter):
    """So many calls in a time, for all who are given it: each waits for its moment.

    text    calls and a time: "10/s", "100/min", "5/h", "1/10s"
    burst   how many may go at once after a rest; else calls are evenly apart
    name    whose rate it is: needed where it is shared
    shared  kept in the store of the engine that is open: all processes on that store have it together
    """

    __slots__ = ()

    def __init__(self, text: str, *, burst: int = 1, name: str = "", shared: bool = False) -> None:
        name = check_name(name) if shared else normalize_name(name)
        super().__init__(pulse_of(text, burst), name, _open_engine if shared else None)

    def __repr__(self) -> str:
        of = f" of {self.name}" if self.name else ""
        return f"<oncemore.Rate{of}: {self.pulse.per} in {self.pulse.period_s:g} s>"


def meter_of(given: object) -> Meter:
    """Return the rate that an option gives: one that is shared, or one of its own."""
    return given if isinstance(given, Meter) else Meter(pulse_of(given))


def gate_of(given: object, rules: Rules | None = None) -> Gate | None:
    """Return the breaker that an option gives: one, or the name of a provider, with a policy's rules.

    A name means the same circuit wherever it is named in this process.
    """
    if given is None or isinstance(given, Gate):
        return given
    if isinstance(given, str):
        return Gate(given, rules or Rules(), named(given))
    raise UsageError(f"breaker is {given!r}; it takes the name of a provider, or oncemore.Breaker(...)")
