"""Computes delays: a schedule plans, a jitter spreads, a cap limits.

    planned = schedule(n)              n is the attempt that failed, counted from 1
    b       = min(cap, jitter(planned, u))

`SCHEDULES` and `SPREADS` hold one function per shape. Full and equal jitter apply the cap to the
planned delay before they draw, so that capped delays stay spread. Additive jitter is capped after the
addition. Proportional jitter is capped before and after, because it can also lengthen a delay.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.canonical_json import draw_uniform

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, Literal

    Shape = Literal["exponential", "linear", "fixed"]
    Exponent = Literal["attempt", "attempt-1"]
    Spread = Literal["none", "full", "equal", "additive", "proportional", "decorrelated"]
    #: The jitters without an amount, which an option takes as a word.
    JitterWord = Literal["full", "equal", "decorrelated", "none"]


class Schedule(Value):
    """A plan of delays, created by a function of `oncemore.backoff`.

    `cap` is the longest delay of a policy with this schedule; None leaves it to the policy. `exponent`
    says whether the first delay is `base * factor` or `base`.
    """

    shape: Shape
    base: float = 0.0
    factor: float = 2.0
    exponent: Exponent = "attempt-1"
    delays: tuple[float, ...] = ()
    cap: float | None = None


class Jitter(Value):
    """How delays are spread; `amount` is seconds for additive and a fraction for proportional jitter."""

    spread: Spread
    amount: float = 0.0


#: Upper limit of a planned delay, so that every number in a proof is finite; caps are far smaller.
MAX_PLANNED_S: Final = 1e300

NO_JITTER: Final = Jitter("none")
FULL_JITTER: Final = Jitter("full")


def _exponential_delay(schedule: Schedule, n: int) -> float:
    try:
        plan = schedule.base * schedule.factor ** (n if schedule.exponent == "attempt" else n - 1)
    except OverflowError:
        return MAX_PLANNED_S if schedule.base else 0.0
    return min(plan, MAX_PLANNED_S)


def _linear_delay(schedule: Schedule, n: int) -> float:
    return schedule.base * n


def _fixed_delay(schedule: Schedule, n: int) -> float:
    delays = schedule.delays
    return delays[n - 1] if n <= len(delays) else delays[-1]


SCHEDULES: Final[dict[Shape, Callable[[Schedule, int], float]]] = {
    "exponential": _exponential_delay,
    "linear": _linear_delay,
    "fixed": _fixed_delay,
}


def planned_delay(schedule: Schedule, n: int) -> float:
    """Return the schedule's delay after attempt n, before jitter and cap."""
    return SCHEDULES[schedule.shape](schedule, n)


#: (planned, u, amount, cap) -> delay. Decorrelated jitter is missing: it needs the previous delay (below).
SPREADS: Final[dict[Spread, Callable[[float, float, float, float], float]]] = {
    "none": lambda plan, u, amount, cap: min(cap, plan),
    "full": lambda plan, u, amount, cap: u * min(cap, plan),
    "equal": lambda plan, u, amount, cap: (0.5 + 0.5 * u) * min(cap, plan),
    "additive": lambda plan, u, amount, cap: min(cap, plan + u * amount),
    "proportional": lambda plan, u, amount, cap: min(cap, min(cap, plan) * (1 + amount * (2 * u - 1))),
}


def jittered_delay(schedule: Schedule, jitter: Jitter, cap: float, seed: str, n: int) -> float:
    """Return b: the delay after attempt n, spread by the seed's draw and limited by the cap."""
    plan = SCHEDULES[schedule.shape](schedule, n)
    spread, amount = jitter
    # Decorrelated delays grow from the previous delay and ignore the plan of this attempt.
    if spread == "decorrelated":
        return _decorrelated_delay(planned_delay(schedule, 1), cap, seed, n)
    # Without anything to spread, the SHA-256 of a draw is saved.
    if spread == "none" or plan == 0.0 == amount:
        return min(cap, plan)
    return SPREADS[spread](plan, draw_uniform(seed, n), amount, cap)


def delay_terms(
    schedule: Schedule, jitter: Jitter, cap: float, seed: str, n: int
) -> tuple[float, float, float]:
    """Return (planned, u, b): the terms of `jittered_delay`; u is 0 where nothing was drawn."""
    plan = planned_delay(schedule, n)
    if jitter.spread == "decorrelated":
        return plan, draw_uniform(seed, n), _decorrelated_delay(planned_delay(schedule, 1), cap, seed, n)
    if jitter.spread == "none" or plan == 0.0 == jitter.amount:
        return plan, 0.0, min(cap, plan)
    u = draw_uniform(seed, n)
    return plan, u, SPREADS[jitter.spread](plan, u, jitter.amount, cap)


def _decorrelated_delay(base: float, cap: float, seed: str, n: int) -> float:
    """Return a delay between the base and three times the previous delay, which came from its own draw.

    The chain is recomputed from the seed, so a decision depends only on its attempt number.
    """
    delay = base
    for k in range(1, n + 1):
        delay = min(cap, base + draw_uniform(seed, k) * (3.0 * delay - base))
    return delay


def largest_delay(schedule: Schedule, jitter: Jitter, cap: float, n: int) -> float:
    """Return the longest delay that can follow attempt n: a policy's worst case."""
    plan = planned_delay(schedule, n)
    if jitter.spread == "decorrelated":
        # 3.0 ** 646 overflows a float; long before that, every schedule has reached its cap.
        return min(cap, planned_delay(schedule, 1) * 3.0**n) if n < 600 else cap
    if jitter.spread == "none":
        return min(cap, plan)
    return SPREADS[jitter.spread](plan, 1.0, jitter.amount, cap)
