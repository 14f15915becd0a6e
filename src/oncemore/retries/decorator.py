"""The public functions `retry`, `retrying` and `attempts`."""

from __future__ import annotations

from oncemore.errors import UsageError
from oncemore.retries.attempts import Attempts
from oncemore.retries.driver import wrap_function
from oncemore.retries.options import (
    build_plan,
    check_options,
    function_colour,
    known_plan,
    remember_plan,
    warn_unwise_policy,
)
from oncemore.retries.plan import NO_FALLBACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from os import PathLike
    from typing import Any, Concatenate, Never, ParamSpec, Protocol, TypeVar, Unpack, overload

    from oncemore.audit.events import AuditEvent
    from oncemore.limits.breaker import BreakerCore
    from oncemore.limits.budget import TokenBucket
    from oncemore.limits.shared_rate import RateLimiter
    from oncemore.policy.backoff import Jitter, JitterWord, Schedule
    from oncemore.policy.policy import Policy
    from oncemore.retries.options import On, RetryOptions, Seconds
    from oncemore.retries.report import RetryReport

    P = ParamSpec("P")
    R = TypeVar("R")
    S = TypeVar("S")
    Q = ParamSpec("Q")

    class RetriedFunction(Protocol[P, R]):
        """A function with retries: called like the function itself."""

        __name__: str
        __wrapped__: Callable[P, R]

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Call the function, with retries."""

        def with_options(self, **options: Unpack[RetryOptions]) -> RetriedFunction[P, R]:
            """Return the same function with some options changed."""

        @overload
        def __get__(self, instance: None, owner: type[Any] | None = None) -> RetriedFunction[P, R]: ...
        @overload
        def __get__(
            self: RetriedFunction[Concatenate[S, Q], R], instance: S, owner: type[Any] | None = None
        ) -> Callable[Q, R]: ...


def retry(
    _bare: Never = ...,  # type: ignore[assignment]
    /,
    *,
    on: On,
    until: Callable[[Any], object] | None = None,
    attempts: int | None = None,
    timeout: Seconds | None = None,
    total_timeout: Seconds | None = None,
    deadline: datetime | float | None = None,
    wait: Schedule | Seconds | Sequence[Seconds] | None = None,
    jitter: Jitter | JitterWord | None = None,
    policy: Policy | str | PathLike[str] | None = None,
    budget: TokenBucket | None = None,
    breaker: BreakerCore | str | None = None,
    rate: RateLimiter | str | None = None,
    seed: str | int | None = None,
    fallback: Any = NO_FALLBACK,
    on_retry: Callable[[RetryReport], object] | None = None,
    on_give_up: Callable[[RetryReport], object] | None = None,
    on_event: Callable[[AuditEvent], object] | None = None,
    category: str | None = None,
    name: str | None = None,
) -> Callable[[Callable[P, R]], RetriedFunction[P, R]]:
    """Retry a function after a transient failure; using it declares the function safe to repeat.

    on          the errors to retry: exception types, a predicate, "transient" (errors that the classifiers
                know to be transient) or "not-sent" (only errors that cannot have had an effect)
    until       a predicate on the returned value: the call is repeated while it is false
    attempts    calls in total, the first included (3)
    timeout     limit of one attempt; an async one is cancelled, a plain one is abandoned in a thread
    total_timeout  limit of the whole call with its waits
    deadline    the same as a point in time: an aware datetime or POSIX seconds
    wait        a schedule of `oncemore.backoff`, or seconds, or a list of them
    jitter      "full", "equal", "decorrelated", "none", or one of `oncemore.jitter`; by default full
                for a schedule and none for plain seconds
    policy      a `Policy`, the name of one ("kfm-rules", "nova-cat/acquisition") or the path of a policy
                file; further options change a copy of it
    budget      a `Budget` that retries take tokens from
    breaker     a `Breaker` that has to admit each attempt, or the name of a provider: while it keeps
                failing it is not called, and calls raise `CircuitOpen` at once
    rate        calls per time, attempts included: "10/s", "100/min", or a shared `Rate`
    seed        makes the jitter the same in every call
    fallback    returned, or called with the error, instead of raising it
    on_retry    called with a `Report` before each wait; on_give_up before the error is raised
    on_event    called with an audit event at each failure and at the end, successes included
                (`oncemore.audit` has sinks for them); its errors never reach the caller
    category    the category of its events; by default RETRY_ and the function's name in capitals
    name        its name in reports, notes and log records; by default the function's

    Raises the function's own last exception, with a note about the attempts and the reason of the end.
    A wait is never shorter than the provider's Retry-After; one beyond the longest wait ends the call.
    """
    if _bare is not ...:
        raise UsageError("write @oncemore.retry(on=...): the errors to retry have no default")
    options: RetryOptions = {
        "on": on, "until": until, "attempts": attempts, "timeout": timeout, "total_timeout": total_timeout,
        "deadline": deadline, "wait": wait, "jitter": jitter, "policy": policy, "budget": budget,
        "breaker": breaker, "rate": rate, "seed": seed, "fallback": fallback, "on_retry": on_retry,
        "on_give_up": on_give_up, "on_event": on_event, "category": category, "name": name,
    }  # fmt: skip
    # Built here only for the checks: a wrong option is reported at the line of the decorator.
    warn_unwise_policy(build_plan(options, "", "any"))

    def decorate(work: Callable[P, R]) -> RetriedFunction[P, R]:
        # These objects are descriptors, and the wrapper would have to be one of the same kind.
        if isinstance(work, (staticmethod, classmethod)):
            raise UsageError(f"put @oncemore.retry below @{type(work).__name__}, next to the function")
        if isinstance(work, type):
            raise UsageError(f"{work.__name__} is a class; retry a function that creates an instance")
        return _wrap_function(work, options)

    return decorate


def retrying(work: Callable[P, R], /, **options: Unpack[RetryOptions]) -> RetriedFunction[P, R]:
    """Return a callable that runs `work` with retries; takes the options of `retry`."""
    check_options(options, "retrying")
    warn_unwise_policy(build_plan(options, "", "any"))
    return _wrap_function(work, options)


def attempts(**options: Unpack[RetryOptions]) -> Attempts:
    """Return the attempts of a block, for `for` or `async for`; takes the options of `retry`.

    Put the work into `with attempt:`. A block returns no value, so `until` and `fallback` are refused;
    `timeout` needs `async with attempt:`.
    """
    # The loop is inside a function, so each call of that gets here: the plan is cached.
    plan = known_plan(options)
    if plan is None:
        check_options(options, "attempts")
        for option in ("until", "fallback"):
            if option in options:
                raise UsageError(
                    f"attempts() takes no {option}=: a block returns no value; use oncemore.retry"
                )
        plan = build_plan(options, "block", "any")
        warn_unwise_policy(plan)
        remember_plan(options, plan)
    return Attempts(plan)


def _wrap_function(work: Callable[P, R], options: RetryOptions) -> RetriedFunction[P, R]:
    if not callable(work):
        raise UsageError(f"{work!r} is not callable; pass the function itself, not its result")
    colour = function_colour(work)
    name = getattr(work, "__qualname__", None) or type(work).__qualname__
    # Repeating a generator would yield the values before the failure a second time.
    if colour in ("generator", "async-generator"):
        raise UsageError(
            f"{name} is {'an' if colour[0] == 'a' else 'a'} {colour} function: it fails during the "
            "iteration, after the caller has received values; retry the function that it calls, or collect "
            "the values into a list inside it"
        )
    wrapper: Any = wrap_function(build_plan(options, name, colour), work, colour)

    def with_options(**changes: Unpack[RetryOptions]) -> RetriedFunction[P, R]:
        """Return the same function with some options changed."""
        merged: RetryOptions = {**options, **changes}
        check_options(merged, "with_options")
        warn_unwise_policy(build_plan(merged, "", "any"))
        return _wrap_function(work, merged)

    wrapper.with_options = with_options
    return wrapper  # type: ignore[no-any-return]
