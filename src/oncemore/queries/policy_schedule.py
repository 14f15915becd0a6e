"""Compute the delays of a policy and the most that one call can cost, before it is used.

low       the delay if the jitter draws 0
planned   the delay of the schedule without jitter, bounded by the cap
high      the delay if the jitter draws 1
tuned     the high delay, stretched as far as tuning permits, bounded by the cap
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.backoff import SPREADS, jittered_delay, largest_delay, planned_delay
from oncemore.policy.policy import check_seed
from oncemore.policy.tuning import CARBON_WEIGHT, PRICE_WEIGHT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.policy.policy import Policy
    from oncemore.queries.policies import FoundPolicy


class DelayRange(Value):
    """The range of the delay after one attempt; `tuned_s` is None without tuning."""

    after: int
    low_s: float
    planned_s: float
    high_s: float
    tuned_s: float | None


class WorstCase(Value):
    """The most that one call under a policy can cost.

    calls            the number of attempts
    delay_s          the sum of the longest delays
    stretch          the largest factor that tuning applies; None without tuning
    tuned_s          the sum of the longest delays with the largest factor
    asked_s          the sum of the delays if every response asks for the longest accepted Retry-After
    running_s        the sum of the timeouts of all attempts; None without a timeout
    together_s       attempts and delays together, bounded by the total timeout
    total_timeout_s  the total timeout of the call; None without one
    """

    calls: int
    delay_s: float
    stretch: float | None
    tuned_s: float | None
    asked_s: float
    running_s: float | None
    together_s: float | None
    total_timeout_s: float | None


class SampleDelays(Value):
    """The delays of one run that always fails, as its seed draws them."""

    seed: str
    delays_s: tuple[float, ...]


class DelayGraph(Value):
    """The numbers of a plot: the range of every delay, and the delays of some sample runs."""

    name: str
    version: str
    provider: str | None
    worst: WorstCase
    delays: tuple[DelayRange, ...]
    samples: tuple[SampleDelays, ...]


def list_delays(policy: Policy) -> tuple[DelayRange, ...]:
    """Return the delay after every attempt but the last."""
    return tuple(_delay_range(policy, n) for n in range(1, policy.max_attempts))


def _delay_range(policy: Policy, n: int) -> DelayRange:
    cap = policy.max_delay_s
    high = largest_delay(policy.schedule, policy.jitter, cap, n)
    stretch = max_stretch(policy)
    tuned = None if stretch is None else min(cap, high * stretch)
    return DelayRange(n, _smallest_delay(policy, n), min(cap, _planned_delay(policy, n)), high, tuned)


def _planned_delay(policy: Policy, n: int) -> float:
    # Decorrelated jitter starts from the first delay and has no plan for the later ones.
    return planned_delay(policy.schedule, 1 if policy.jitter.spread == "decorrelated" else n)


def _smallest_delay(policy: Policy, n: int) -> float:
    jitter, cap = policy.jitter, policy.max_delay_s
    if jitter.spread == "decorrelated":
        return min(cap, planned_delay(policy.schedule, 1))
    return SPREADS[jitter.spread](planned_delay(policy.schedule, n), 0.0, jitter.amount, cap)


def max_stretch(policy: Policy) -> float | None:
    """Return the largest factor that carbon and price apply to a delay; None without tuning."""
    if policy.tuning is None:
        return None
    return min(1.0 + CARBON_WEIGHT + PRICE_WEIGHT, policy.tuning.max_stretch)


def compute_worst_case(policy: Policy) -> WorstCase:
    """Return the most that one call can cost."""
    delays = list_delays(policy)
    longest = sum(delay.high_s for delay in delays)
    tuned = None if policy.tuning is None else sum(delay.tuned_s or 0.0 for delay in delays)
    # A Retry-After up to the cap is obeyed; a longer one defers the run and ends the call.
    asked = sum(max(policy.max_delay_s, delay.high_s) for delay in delays)
    running = None if policy.timeout_s is None else policy.max_attempts * policy.timeout_s
    together = None if running is None else running + (longest if tuned is None else tuned)
    # The total timeout ends a call in the middle of an attempt or a delay.
    if policy.total_timeout_s is not None:
        together = policy.total_timeout_s if together is None else min(together, policy.total_timeout_s)
    return WorstCase(
        calls=policy.max_attempts,
        delay_s=longest,
        stretch=max_stretch(policy),
        tuned_s=tuned,
        asked_s=asked,
        running_s=running,
        together_s=together,
        total_timeout_s=policy.total_timeout_s,
    )


def sample_delays(policy: Policy, seed: str) -> SampleDelays:
    """Return the delays that a seed draws."""
    schedule, jitter, cap = policy.schedule, policy.jitter, policy.max_delay_s
    return SampleDelays(
        seed, tuple(jittered_delay(schedule, jitter, cap, seed, n) for n in range(1, policy.max_attempts))
    )


def build_graph(found: FoundPolicy, seed: str, runs: int) -> DelayGraph:
    """Return the delays of a policy, and those of several sample runs."""
    policy = found.policy
    return DelayGraph(
        name=found.address,
        version=policy.version,
        provider=found.provider,
        worst=compute_worst_case(policy),
        delays=list_delays(policy),
        samples=tuple(sample_delays(policy, drawn) for drawn in sample_seeds(policy, seed, runs)),
    )


def sample_seeds(policy: Policy, seed: str, runs: int) -> list[str]:
    """Return the seeds of sample runs: the given one, then numbered ones; without it 1, 2, 3 …"""
    # With a literal seed in the policy every run draws the same delays, so one sample shows them all.
    literal = check_seed(policy.jitter_seed)
    if literal is not None and not seed:
        return [literal][:runs]
    numbers = range(1, runs + 1)
    return [(seed if n == 1 else f"{seed}-{n}") if seed else f"{n}" for n in numbers]
