"""What a policy may cost, before it runs: every delay with its range, and the worst of all of them.

low       the draw is 0            planned   what the schedule says, held at the cap
high      the draw is 1            tuned     high, stretched as far as tuning may, held at the cap
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.backoff import SPREADS, jittered, largest, planned
from oncemore.policy.tuning import CARBON_WEIGHT, PRICE_WEIGHT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.policy.policy import Policy


class Delay(Value):
    """The wait after one attempt: its range, and how far tuning can take it (None without tuning)."""

    after: int
    low_s: float
    planned_s: float
    high_s: float
    tuned_s: float | None


class Worst(Value):
    """The most that one call under a policy can cost.

    calls        attempts in all
    delay_s      all waits at their longest
    stretch      how far tuning may stretch a wait, if the policy is tuned
    tuned_s      all waits at their longest, with tuning at its limit
    asked_s      all waits when the other side asks each time for the longest that is waited for
    running_s    all attempts at their limit, if they have one
    together_s   attempts and (tuned) waits together, no longer than the limit of the whole call
    within_s     the limit of the whole call, if it has one
    """

    calls: int
    delay_s: float
    stretch: float | None
    tuned_s: float | None
    asked_s: float
    running_s: float | None
    together_s: float | None
    within_s: float | None


class Sample(Value):
    """The waits of one run that always fails, as its seed draws them."""

    seed: str
    delays_s: tuple[float, ...]


def delays(policy: Policy) -> tuple[Delay, ...]:
    """Return the wait after every attempt that may be followed by another."""
    return tuple(_delay(policy, n) for n in range(1, policy.max_attempts))


def _delay(policy: Policy, n: int) -> Delay:
    cap = policy.max_delay_s
    high = largest(policy.schedule, policy.jitter, cap, n)
    stretch = most_stretch(policy)
    tuned = None if stretch is None else min(cap, high * stretch)
    return Delay(n, _smallest(policy, n), min(cap, _plan(policy, n)), high, tuned)


def _plan(policy: Policy, n: int) -> float:
    """Return what is planned; decorrelated jitter walks on from the first plan and knows no other."""
    return planned(policy.schedule, 1 if policy.jitter.spread == "decorrelated" else n)


def _smallest(policy: Policy, n: int) -> float:
    jitter, cap = policy.jitter, policy.max_delay_s
    if jitter.spread == "decorrelated":
        return min(cap, planned(policy.schedule, 1))
    return SPREADS[jitter.spread](planned(policy.schedule, n), 0.0, jitter.amount, cap)


def most_stretch(policy: Policy) -> float | None:
    """Return how far carbon and price together may stretch a wait; None without tuning."""
    if policy.tuning is None:
        return None
    return min(1.0 + CARBON_WEIGHT + PRICE_WEIGHT, policy.tuning.max_stretch)


def worst(policy: Policy) -> Worst:
    """Return the most that one call can cost."""
    waits = delays(policy)
    longest = sum(wait.high_s for wait in waits)
    tuned = None if policy.tuning is None else sum(wait.tuned_s or 0.0 for wait in waits)
    asked = sum(max(policy.max_delay_s, wait.high_s) for wait in waits)
    running = None if policy.timeout_s is None else policy.max_attempts * policy.timeout_s
    together = None if running is None else running + (longest if tuned is None else tuned)
    if policy.within_s is not None:
        together = policy.within_s if together is None else min(together, policy.within_s)
    return Worst(
        policy.max_attempts, longest, most_stretch(policy), tuned, asked, running, together, policy.within_s
    )


def sample(policy: Policy, seed: str) -> Sample:
    """Return the waits that a seed draws."""
    schedule, jitter, cap = policy.schedule, policy.jitter, policy.max_delay_s
    return Sample(
        seed, tuple(jittered(schedule, jitter, cap, seed, n) for n in range(1, policy.max_attempts))
    )
