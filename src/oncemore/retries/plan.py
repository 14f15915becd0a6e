"""The plan of a retried function: its options, checked, as the attempt loop reads them."""

from __future__ import annotations

from oncemore._values import FrozenRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from oncemore.limits.breaker import BreakerCore
    from oncemore.limits.budget import TokenBucket
    from oncemore.limits.shared_rate import RateLimiter
    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy
    from oncemore.retries.report import RetryReport

    class CallObserver(Protocol):
        """Receives the events of a call; its methods must not raise."""

        def record_failure(self, report: RetryReport) -> None:
            """Record a failed attempt and the decision about it."""

        def record_end(self, number: int, now: float, error: BaseException | None) -> None:
            """Record that attempt `number` succeeded, or that an error from outside ended the call."""


NO_FALLBACK: Any = object()


class RetryPlan(FrozenRecord):
    """The checked options of a decorated function.

    covers    returns whether an error may be retried
    deadline  POSIX seconds after which no attempt begins
    cuts      whether an attempt can be interrupted at the deadline
    heard     whether a hook or an observer needs the report of each failure
    light     whether a success needs no more than returning the value
    witness   the observer of every failure and every end, if there is one
    breaker   the breaker that has to admit each attempt, if there is one
    rate      the rate limiter that gives each attempt its slot, if there is one
    """

    __slots__ = (
        "breaker", "budget", "classify", "covers", "cuts", "deadline", "fallback", "heard", "light", "name",
        "on_give_up", "on_retry", "policy", "rate", "seed", "until", "witness",
    )  # fmt: skip
    breaker: BreakerCore | None
    budget: TokenBucket | None
    classify: Callable[[BaseException, float], Failure]
    covers: Callable[[Exception, Failure], bool]
    cuts: bool
    deadline: float | None
    fallback: Any
    heard: bool
    light: bool
    name: str
    on_give_up: Callable[[RetryReport], object] | None
    on_retry: Callable[[RetryReport], object] | None
    policy: Policy
    rate: RateLimiter | None
    seed: str | None
    until: Callable[[Any], object] | None
    witness: CallObserver | None

    def __init__(
        self,
        name: str,
        policy: Policy,
        covers: Callable[[Exception, Failure], bool],
        classify: Callable[[BaseException, float], Failure],
        *,
        until: Callable[[Any], object] | None = None,
        deadline: float | None = None,
        budget: TokenBucket | None = None,
        seed: str | None = None,
        fallback: Any = NO_FALLBACK,
        on_retry: Callable[[RetryReport], object] | None = None,
        on_give_up: Callable[[RetryReport], object] | None = None,
        cuts: bool = False,
        witness: CallObserver | None = None,
        breaker: BreakerCore | None = None,
        rate: RateLimiter | None = None,
    ) -> None:
        limits = (policy.timeout_s, policy.total_timeout_s, deadline, until, budget, witness, rate)
        light = all(limit is None for limit in limits)
        heard = on_retry is not None or witness is not None
        self.set_fields(
            breaker=breaker,
            budget=budget,
            classify=classify,
            covers=covers,
            cuts=cuts,
            deadline=deadline,
            fallback=fallback,
            heard=heard,
            light=light,
            name=name,
            on_give_up=on_give_up,
            on_retry=on_retry,
            policy=policy,
            rate=rate,
            seed=seed,
            until=until,
            witness=witness,
        )
