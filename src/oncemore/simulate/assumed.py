"""Simulate a policy without history: sample runs whose attempts fail with an assumed probability.

Every failed attempt is decided by `policy.decide`, with the jitter that its seed draws. The worst case is not
drawn: every attempt that can fail fails, and every delay is the longest that the policy permits. With a
probability of 1 all sample runs make as many attempts as the worst case.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.backoff import largest_delay
from oncemore.policy.canonical_json import draw_uniform
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.model import Failure
from oncemore.policy.tuning import CARBON_WEIGHT, PRICE_WEIGHT
from oncemore.simulate.recorded_runs import MeasuredValues, RecordedAttempt, RecordedRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.policy.policy import Policy
    from oncemore.policy.tuning import Signals

FAILURE = Failure("transient", code="ASSUMED", rule="simulate:assumed")


class AssumedConditions(Value):
    """The assumptions about every attempt.

    probability  of a failure, 0 to 1
    attempt_s    how long an attempt takes
    energy_kwh   its energy; None if it is not of interest
    deadline_s   the time from the start to the deadline; None without one
    """

    probability: float
    attempt_s: float = 0.0
    energy_kwh: float | None = None
    deadline_s: float | None = None
    signals: Signals | None = None


class AssumedRun(Value):
    """One sample run; `reason` is that of the decision that ended it, or empty if it completed."""

    attempts: int
    delay_s: float
    duration_s: float
    completed: bool
    reason: str


class SampleSpread(Value):
    """The spread of one figure over all sample runs."""

    mean: float
    median: float
    high: float
    most: float


class AssumedReport(Value):
    """Sample runs of a policy and its worst case.

    completed         the share of runs that completed
    high              in a spread: the value that 95 % of the runs do not exceed
    worst_attempts    attempts if every attempt fails that can fail
    worst_delay_s     the longest delays of these attempts together
    worst_tuned_s     the same with the largest stretch of tuning; None without tuning
    """

    policy: str
    version: str
    conditions: AssumedConditions
    runs: int
    completed: float
    missed_deadlines: float | None
    attempts: SampleSpread
    delay_s: SampleSpread
    duration_s: SampleSpread
    energy_kwh: SampleSpread | None
    worst_attempts: int
    worst_delay_s: float
    worst_tuned_s: float | None
    ends: tuple[tuple[str, int], ...]


def sample_run(policy: Policy, conditions: AssumedConditions, seed: str) -> AssumedRun:
    """Return one run: its attempts fail as the seed draws, its delays are those of the policy."""
    now, delays, attempt = 0.0, 0.0, 0
    while True:
        attempt += 1
        now += conditions.attempt_s
        # Another seed than that of the jitter: the two draws must not depend on each other.
        if draw_uniform(f"{seed}/failure", attempt) >= conditions.probability:
            return AssumedRun(attempt, delays, now, completed=True, reason="")
        decision = decide_retry(policy, _fail_attempt(conditions, attempt, now, seed, conditions.signals))
        if decision.action != "retry":
            return AssumedRun(attempt, delays, now, completed=False, reason=decision.reason)
        delays += decision.delay_s
        now += decision.delay_s


def _fail_attempt(
    conditions: AssumedConditions, attempt: int, now: float, seed: str, signals: Signals | None = None
) -> Situation:
    """Return the situation after a failed attempt of a sample run that began at 0."""
    return Situation(
        attempt=attempt,
        failure=FAILURE,
        verdict="RETRYABLE",
        now=now,
        seed=seed,
        started_at=0.0,
        deadline=conditions.deadline_s,
        expected_s=conditions.attempt_s or None,
        signals=signals,
    )


def simulate_assumed(policy: Policy, conditions: AssumedConditions, seeds: Sequence[str]) -> AssumedReport:
    """Return sample runs, one per seed, and the worst case under the same assumption."""
    runs = [sample_run(policy, conditions, seed) for seed in seeds]
    energy = conditions.energy_kwh
    deadline = conditions.deadline_s
    worst = policy.max_attempts if conditions.probability > 0 else 1
    delays = [largest_delay(policy.schedule, policy.jitter, policy.max_delay_s, n) for n in range(1, worst)]
    reasons = [run.reason or "completed" for run in runs]
    return AssumedReport(
        policy=policy.name,
        version=policy.version,
        conditions=conditions,
        runs=len(runs),
        completed=sum(run.completed for run in runs) / len(runs),
        missed_deadlines=None
        if deadline is None
        else sum(not run.completed or run.duration_s > deadline for run in runs) / len(runs),
        attempts=_spread([float(run.attempts) for run in runs]),
        delay_s=_spread([run.delay_s for run in runs]),
        duration_s=_spread([run.duration_s for run in runs]),
        energy_kwh=None if energy is None else _spread([run.attempts * energy for run in runs]),
        worst_attempts=worst,
        worst_delay_s=sum(delays),
        worst_tuned_s=_stretch_delays(policy, delays),
        ends=tuple(sorted((reason, reasons.count(reason)) for reason in set(reasons))),
    )


def make_assumed_run(
    policy: Policy, conditions: AssumedConditions, run_id: str, seed: str, attempts: int
) -> RecordedRun:
    """Return a sample run in the form of a recorded one, for a comparison of policies by order.

    Its attempts fail as the id draws, so that both policies meet the same failures; the seed draws the
    jitter. It holds at most `attempts` of them, without delays: each policy decides its own.
    """
    found: list[RecordedAttempt] = []
    while len(found) < attempts:
        began = len(found) * conditions.attempt_s
        ended = began + conditions.attempt_s
        if draw_uniform(f"{run_id}/failure", len(found) + 1) >= conditions.probability:
            found.append(RecordedAttempt(0, began, ended, "COMPLETE", MeasuredValues()))
            break
        situation = _fail_attempt(conditions, len(found) + 1, ended, seed)
        found.append(
            RecordedAttempt(
                0, began, ended, "FAILED", MeasuredValues(), policy=policy, situation=situation, action="stop"
            )
        )
    return RecordedRun(
        run_id=run_id,
        key=run_id,
        step="assumed",
        effect="idempotent",
        policy=f"{policy.name}@{policy.version}",
        priority="P1",
        created_at=0.0,
        ended_at=found[-1].ended,
        deadline=conditions.deadline_s,
        state="COMPLETE" if found[-1].outcome == "COMPLETE" else "HARD_FAIL",
        attempts=tuple(found),
    )


def _stretch_delays(policy: Policy, delays: Sequence[float]) -> float | None:
    if policy.tuning is None:
        return None
    stretch = min(1.0 + CARBON_WEIGHT + PRICE_WEIGHT, policy.tuning.max_stretch)
    return sum(min(policy.max_delay_s, delay * stretch) for delay in delays)


def _spread(values: list[float]) -> SampleSpread:
    ordered = sorted(values)
    return SampleSpread(
        mean=sum(ordered) / len(ordered),
        median=ordered[(len(ordered) - 1) // 2],
        # The nearest rank: a value that some run really had.
        high=ordered[max(0, -(-95 * len(ordered) // 100) - 1)],
        most=ordered[-1],
    )
