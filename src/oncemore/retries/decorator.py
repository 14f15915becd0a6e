"""CALL: the names a user writes."""

from __future__ import annotations

from oncemore.errors import UsageError
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import check_jitter, check_schedule
from oncemore.retries.attempts import Attempts
from oncemore.retries.driver import wrap
from oncemore.retries.loop import NO_FALLBACK
from oncemore.retries.options import (
    as_seconds,
    caution,
    check_options,
    colour_of,
    known_plan,
    plan_of,
    remember_plan,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from os import PathLike
    from typing import Any, Concatenate, Never, ParamSpec, Protocol, TypeVar, Unpack, overload

    from oncemore.audit.events import Event
    from oncemore.limits.breaker import Gate
    from oncemore.limits.budget import Budget
    from oncemore.limits.shared_rate import Meter
    from oncemore.policy.backoff import Exponent
    from oncemore.policy.policy import Policy
    from oncemore.retries.loop import Report
    from oncemore.retries.options import On, Options, Seconds

    P = ParamSpec("P")
    R = TypeVar("R")
    S = TypeVar("S")
    Q = ParamSpec("Q")

    class Retried(Protocol[P, R]):
        """A function with retries: called like the function itself."""

        __name__: str
        __wrapped__: Callable[P, R]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Call the function, with retries."""

        def using(self, **options: Unpack[Options]) -> Retried[P, R]:
            """Return the same function with some options changed."""

        @overload
        def __get__(self, instance: None, owner: type[Any] | None = None) -> Retried[P, R]: ...
        @overload
        def __get__(
            self: Retried[Concatenate[S, Q], R], instance: S, owner: type[Any] | None = None
        ) -> Callable[Q, R]: ...


def exponential(
    base: Seconds = 1.0, *, factor: float = 2.0, cap: Seconds | None = None, exponent: Exponent = "attempt-1"
) -> Schedule:
    """Plan delays of base, base * factor, base * factor ** 2, … up to the cap (30 s unless given).

    With exponent="attempt" the first delay is already base * factor.
    """
    top = None if cap is None else as_seconds("cap", cap)
    return check_schedule(Schedule("exponential", as_seconds("base", base), factor, exponent, (), top))


def linear(step: Seconds, *, cap: Seconds | None = None) -> Schedule:
    """Plan delays of step, 2 * step, 3 * step, … up to the cap (30 s unless given)."""
    top = None if cap is None else as_seconds("cap", cap)
    return check_schedule(Schedule("linear", as_seconds("step", step), cap=top))


def fixed(*delays: Seconds) -> Schedule:
    """Plan these delays in this order; the last one repeats."""
    return check_schedule(Schedule("fixed", delays=tuple(as_seconds("delay", delay) for delay in delays)))


def additive(span: Seconds) -> Jitter:
    """Spread each delay by adding up to `span` seconds."""
    return check_jitter(Jitter("additive", as_seconds("span", span)))


def proportional(fraction: float) -> Jitter:
    """Spread each delay by up to ± this fraction of it."""
    return check_jitter(Jitter("proportional", fraction))


def retry(
    _bare: Never = ...,  # type: ignore[assignment]
    /,
    *,
    on: On,
    until: Callable[[Any], object] | None = None,
    attempts: int | None = None,
    timeout: Seconds | None = None,
    within: Seconds | None = None,
    deadline: datetime | float | None = None,
    wait: Schedule | Seconds | Sequence[Seconds] | None = None,
    jitter: Jitter | str | None = None,
    policy: Policy | str | PathLike[str] | None = None,
    budget: Budget | None = None,
    breaker: Gate | str | None = None,
    rate: Meter | str | None = None,
    seed: str | int | None = None,
    fallback: Any = NO_FALLBACK,
    on_retry: Callable[[Report], object] | None = None,
    on_give_up: Callable[[Report], object] | None = None,
    on_event: Callable[[Event], object] | None = None,
    category: str | None = None,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Retried[P, R]]:
    """Try a function again when it fails in a way that may pass; using it declares it safe to repeat.

    on          what is tried again: exception types, a predicate, "transient" (whatever the classifiers
                know to pass by itself) or "not-sent" (only what cannot have taken effect)
    until       a predicate on the returned value: tried again while it does not hold
    attempts    calls in all, the first included (3)
    timeout     limit of one attempt; an async one is cancelled, a plain one is left behind in a thread
    within      limit of the whole call with its waits
    deadline    the same as a point in time: an aware datetime or POSIX seconds
    wait        a schedule (`exponential`, `linear`, `fixed`), or seconds, or a list of them
    jitter      "full", "equal", "decorrelated", "none", `additive(s)`, `proportional(f)`; a schedule has
                full jitter unless told otherwise, plain seconds have none
    policy      a `Policy`, the name of one ("kfm-rules", "nova-cat/acquisition") or the path of a policy
                file; what is given beside it changes a copy
    budget      a `Budget` that retries take tokens from
    breaker     a `Breaker` that has to let each attempt through, or the name of a provider: one that keeps
                failing is then left alone for a while, and calls raise `CircuitOpen` at once
    rate        how many calls in a time, attempts included: "10/s", "100/min", or a `Rate` that several share
    seed        makes the draws the same in every call
    fallback    returned, or called with the error, instead of raising it
    on_retry    called with a `Report` before each wait; on_give_up before the error is raised
    on_event    called with an audit event at each failure and at the end, successes included
                (`oncemore.audit` has places to keep them); what it raises never reaches the caller
    category    what events count it under; unless given, RETRY_ and the function's name in capitals
    name        what reports, notes and log lines call it

    Raises the function's own last exception, with a note that says what was tried and why it ended.
    A provider's Retry-After is never undercut; one that is longer than a wait may be ends the call.
    """
    if _bare is not ...:
        raise UsageError("write @oncemore.retry(on=...): what may be tried again has no default")
    options: Options = {
        "on": on, "until": until, "attempts": attempts, "timeout": timeout, "within": within,
        "deadline": deadline, "wait": wait, "jitter": jitter, "policy": policy, "budget": budget,
        "breaker": breaker, "rate": rate, "seed": seed, "fallback": fallback, "on_retry": on_retry,
        "on_give_up": on_give_up, "on_event": on_event, "category": category, "name": name,
    }  # fmt: skip
    # A wrong option shows at its own line, before there is a function.
    caution(plan_of(options, "", "any"))

    def decorate(work: Callable[P, R]) -> Retried[P, R]:
        if isinstance(work, (staticmethod, classmethod)):
            raise UsageError(f"put @oncemore.retry below @{type(work).__name__}, next to the function")
        if isinstance(work, type):
            raise UsageError(f"{work.__name__} is a class; retry a function that makes one")
        return _wrapped(work, options)

    return decorate


def retrying(work: Callable[P, R], /, **options: Unpack[Options]) -> Retried[P, R]:
    """Return a callable that runs `work` with retries; takes what `retry` takes."""
    check_options(options, "retrying")
    caution(plan_of(options, "", "any"))
    return _wrapped(work, options)


def attempts(**options: Unpack[Options]) -> Attempts:
    """Return the attempts of a block, for `for` or `async for`; takes what `retry` takes.

    Put the work into `with attempt:`. A block returns nothing, so that `until` and `fallback` are not
    for it; `timeout` needs `async with attempt:`.
    """
    plan = known_plan(options)
    if plan is None:
        check_options(options, "attempts")
        for unfit in ("until", "fallback"):
            if unfit in options:
                raise UsageError(f"attempts() takes no {unfit}=: a block returns nothing; use oncemore.retry")
        plan = plan_of(options, "block", "any")
        caution(plan)
        remember_plan(options, plan)
    return Attempts(plan)


def _wrapped(work: Callable[P, R], options: Options) -> Retried[P, R]:
    if not callable(work):
        raise UsageError(f"{work!r} cannot be called; give the function itself, not what it returned")
    colour = colour_of(work)
    name = getattr(work, "__qualname__", None) or type(work).__qualname__
    if colour in ("generator", "async-generator"):
        raise UsageError(
            f"{name} is {'an' if colour[0] == 'a' else 'a'} {colour} function: it fails while it is "
            "iterated, when values have been handed out already; retry what it calls, or collect the "
            "values into a list inside it"
        )
    made: Any = wrap(plan_of(options, name, colour), work, colour)

    def using(**changes: Unpack[Options]) -> Retried[P, R]:
        """Return the same function with some options changed."""
        merged: Options = {**options, **changes}
        check_options(merged, "using")
        caution(plan_of(merged, "", "any"))
        return _wrapped(work, merged)

    made.using = using
    return made  # type: ignore[no-any-return]
