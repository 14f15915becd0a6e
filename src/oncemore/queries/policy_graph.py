"""A policy's schedule as the numbers of a drawing."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.policy import check_seed
from oncemore.queries.policy_schedule import Delay, Sample, Worst, delays, sample, worst

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.policy.policy import Policy
    from oncemore.queries.policies import Found


class Graph(Value):
    """The waits with their ranges, and those of some runs."""

    name: str
    version: str
    provider: str | None
    worst: Worst
    delays: tuple[Delay, ...]
    samples: tuple[Sample, ...]


def graph(found: Found, seed: str, runs: int) -> Graph:
    """Return the waits of a policy, and of so many runs that are drawn from a seed."""
    policy = found.policy
    drawn = tuple(sample(policy, one) for one in seeds(policy, seed, runs))
    return Graph(found.address, policy.version, found.provider, worst(policy), delays(policy), drawn)


def seeds(policy: Policy, seed: str, runs: int) -> list[str]:
    """Return the seeds of sample runs: the given one, then the same with a number; else 1, 2, 3 …

    A policy with a literal seed draws the same for every run, so that there is one sample to show.
    """
    literal = check_seed(policy.jitter_seed)
    if literal is not None and not seed:
        return [literal][:runs]
    numbers = range(1, runs + 1)
    return [(seed if n == 1 else f"{seed}-{n}") if seed else f"{n}" for n in numbers]
