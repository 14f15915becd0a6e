"""A policy under the names that a policy file uses; what does not apply to it is left out.

A linear schedule has no factor, and no jitter no seed: two policies with equal values here decide alike,
whatever else their parts may hold.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.policy import Policy


def values(policy: Policy) -> dict[str, Plain]:
    """Return everything that a policy decides by, and its name and version."""
    return {
        "name": policy.name,
        "version": policy.version,
        "governed": policy.governed,
        **dict(_retrying(policy)),
        **classes(policy),
        **({} if policy.tuning is None else {f"tuning.{k}": v for k, v in policy.tuning._asdict().items()}),
    }


def classes(policy: Policy) -> dict[str, Plain]:
    """Return which errors are retried; the lists are absent where it is left to the facts."""
    listed = {} if policy.classes is None else policy.classes._asdict()
    return {
        **{name: list(v) if isinstance(v, tuple) else v for name, v in listed.items()},
        "unmatched": policy.unmatched,
    }


def _retrying(policy: Policy) -> Iterator[tuple[str, Plain]]:
    schedule, jitter = policy.schedule, policy.jitter
    yield "max_attempts", policy.max_attempts
    yield "schedule", schedule.shape
    if schedule.shape == "fixed":
        yield "delays_s", list(schedule.delays)
    else:
        yield "base_delay_s", schedule.base
    if schedule.shape == "exponential":
        yield "factor", schedule.factor
        yield "exponent", schedule.exponent
    yield "max_delay_s", policy.max_delay_s
    yield "jitter", jitter.spread
    if jitter.spread == "additive":
        yield "jitter_span_s", jitter.amount
    if jitter.spread == "proportional":
        yield "jitter_factor", jitter.amount
    if jitter.spread != "none":
        yield "jitter_seed", policy.jitter_seed
    yield "timeout_s", policy.timeout_s
    yield "within_s", policy.within_s
    yield "retry_cost", policy.retry_cost
