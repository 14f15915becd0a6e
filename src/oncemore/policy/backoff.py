"""How long to wait: a schedule plans, a jitter spreads, a cap holds.

    planned = schedule(n)              n is the attempt that failed, counted from 1
    b       = min(cap, jitter(planned, u))

A schedule and a jitter are one small value each, with the name of their shape; what a shape means is
a row in a table below. Full and equal jitter hold the *ceiling* at the cap before they draw, so that
capped delays stay spread; additive jitter is capped after it is added; a proportional one is held
before and after (a maximum is a maximum).
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.canonical_json import draw

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, Literal

    Shape = Literal["exponential", "linear", "fixed"]
    Exponent = Literal["attempt", "attempt-1"]
    Spread = Literal["none", "full", "equal", "additive", "proportional", "decorrelated"]


class Schedule(Value):
    """A plan of delays; made by `exponential`, `linear` or `fixed`.

    `cap` is the longest delay that a policy made with this schedule allows; None leaves it to the
    policy. `exponent` says whether the first delay is `base * factor` or `base`.
    """

    shape: Shape
    base: float = 0.0
    factor: float = 2.0
    exponent: Exponent = "attempt-1"
    delays: tuple[float, ...] = ()
    cap: float | None = None


class Jitter(Value):
    """A way to spread delays; `amount` is seconds for additive, a fraction for proportional."""

    spread: Spread
    amount: float = 0.0


#: No plan is longer, so that every number in a proof is finite; the cap comes long before.
LONGEST_S: Final = 1e300

NONE: Final = Jitter("none")
FULL: Final = Jitter("full")


def _exponential(schedule: Schedule, n: int) -> float:
    try:
        plan = schedule.base * schedule.factor ** (n if schedule.exponent == "attempt" else n - 1)
    except OverflowError:
        return LONGEST_S if schedule.base else 0.0
    return min(plan, LONGEST_S)


def _linear(schedule: Schedule, n: int) -> float:
    return schedule.base * n


def _fixed(schedule: Schedule, n: int) -> float:
    delays = schedule.delays
    return delays[n - 1] if n <= len(delays) else delays[-1]


PLANS: Final[dict[Shape, Callable[[Schedule, int], float]]] = {
    "exponential": _exponential,
    "linear": _linear,
    "fixed": _fixed,
}


def planned(schedule: Schedule, n: int) -> float:
    """Return the delay that the schedule plans after attempt n, before jitter and cap."""
    return PLANS[schedule.shape](schedule, n)


#: (planned, u, amount, cap) -> delay. Decorrelated is not here: it needs the delay before (below).
SPREADS: Final[dict[Spread, Callable[[float, float, float, float], float]]] = {
    "none": lambda plan, u, amount, cap: min(cap, plan),
    "full": lambda plan, u, amount, cap: u * min(cap, plan),
    "equal": lambda plan, u, amount, cap: (0.5 + 0.5 * u) * min(cap, plan),
    "additive": lambda plan, u, amount, cap: min(cap, plan + u * amount),
    "proportional": lambda plan, u, amount, cap: min(cap, min(cap, plan) * (1 + amount * (2 * u - 1))),
}


def jittered(schedule: Schedule, jitter: Jitter, cap: float, seed: str, n: int) -> float:
    """Return b: the delay after attempt n, spread by the seed's draw and held at the cap."""
    plan = PLANS[schedule.shape](schedule, n)
    spread, amount = jitter
    if spread == "decorrelated":  # its delay comes from the one before, not from the plan of this attempt
        return _decorrelated(planned(schedule, 1), cap, seed, n)
    if spread == "none" or plan == 0.0 == amount:
        return min(cap, plan)
    return SPREADS[spread](plan, draw(seed, n), amount, cap)


def drawn(schedule: Schedule, jitter: Jitter, cap: float, seed: str, n: int) -> tuple[float, float, float]:
    """Return (planned, u, b) for showing how `jittered` came to its number; u is 0 where none was drawn."""
    plan = planned(schedule, n)
    if jitter.spread == "decorrelated":
        return plan, draw(seed, n), _decorrelated(planned(schedule, 1), cap, seed, n)
    if jitter.spread == "none" or plan == 0.0 == jitter.amount:
        return plan, 0.0, min(cap, plan)
    u = draw(seed, n)
    return plan, u, SPREADS[jitter.spread](plan, u, jitter.amount, cap)


def _decorrelated(base: float, cap: float, seed: str, n: int) -> float:
    """Each delay lies between the base and three times the one before, which its own draw gave.

    The chain is computed anew from the seed, so that a decision needs no memory but its number.
    """
    delay = base
    for k in range(1, n + 1):
        delay = min(cap, base + draw(seed, k) * (3.0 * delay - base))
    return delay


def largest(schedule: Schedule, jitter: Jitter, cap: float, n: int) -> float:
    """Return the longest delay that can follow attempt n, for showing a policy's worst case."""
    plan = planned(schedule, n)
    if jitter.spread == "decorrelated":
        return min(cap, planned(schedule, 1) * 3.0**n) if n < 600 else cap
    if jitter.spread == "none":
        return min(cap, plan)
    return SPREADS[jitter.spread](plan, 1.0, jitter.amount, cap)
