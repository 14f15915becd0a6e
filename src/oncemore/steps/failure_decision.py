"""Decide about a failed attempt of a step. Pure: nothing here reads or writes.

The verdict is given by `on=` and `until=` of the step, else by the classes of its policy; `policy.decide`
turns it into a retry, a deferral or an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.policy.canonical_json import run_seed
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.verdict import decide_verdict
from oncemore.retries.loop import NOT_MET
from oncemore.telemetry.surroundings import P0_MAX_STRETCH

if TYPE_CHECKING:
    from oncemore.log.record import RunRecord
    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Failure, Verdict
    from oncemore.steps.plan import StepPlan
    from oncemore.telemetry.surroundings import Surroundings

#: A shorter failure, such as a refused connection, does not show how long the work takes.
SHORTEST_MEASURED_S = 1.0


def decide_step_verdict(plan: StepPlan, error: Exception, failure: Failure) -> Verdict:
    """Return the verdict on a failure: by `on=` and `until=` of the step, else by the policy's classes."""
    refused: Verdict = "QUARANTINE" if plan.quarantines else "TERMINAL"
    if plan.covers is None:
        verdict = decide_verdict(failure, plan.policy, plan.effect, quarantines=plan.quarantines)
    else:
        verdict = decide_verdict(failure, plan.policy, plan.effect)
        if verdict not in ("UNKNOWN", "QUARANTINE"):
            verdict = "RETRYABLE" if plan.covers(error, failure) else refused
    # IDEM-3: only idempotent effects and those behind an outbox are tried again.
    if plan.effect == "once" and not plan.repeats_once and verdict == "RETRYABLE":
        verdict = refused
    return "RETRYABLE" if failure is NOT_MET else verdict


def decide_failure(
    plan: StepPlan, run: RunRecord, error: Exception, now: float, around: Surroundings | None = None
) -> Decision:
    """Return the decision about a failed attempt; equal inputs give equal decisions in every process.

    around  signals and measured values, for a policy with tuning
    """
    failure = plan.classify(error, now)
    if plan.effect == "once":
        failure = failure._replace(sent="no" if plan.not_applied(error) else "maybe")
    verdict = decide_step_verdict(plan, error, failure)
    policy = plan.policy
    # An operator can grant a run more attempts than its policy has.
    if run.max_attempts != policy.max_attempts:
        policy = policy.copy_with(max_attempts=run.max_attempts)
    if run.priority == "P0" and policy.tuning is not None and policy.tuning.max_stretch > P0_MAX_STRETCH:
        policy = policy.copy_with(tuning=policy.tuning._replace(max_stretch=P0_MAX_STRETCH))
    deadline, started_at = run.deadline or None, run.created_at
    # A submitted run that was due later has its total timeout from that time on, not from its creation.
    if deadline is not None and policy.total_timeout_s is not None:
        started_at = max(started_at, deadline - policy.total_timeout_s)
    situation = Situation(
        attempt=run.attempt_count,
        failure=failure,
        verdict=verdict,
        now=now,
        seed=run.seed or run_seed(run.run_id),
        started_at=started_at,
        deadline=deadline,
        expected_s=_expected_duration(run, now) or None,
    )
    if around is not None:
        situation = situation._replace(
            signals=around.signals, readings=around.readings, autonomy=around.autonomy
        )
    return decide_retry(policy, situation)


def _expected_duration(run: RunRecord, now: float) -> float:
    """Return how long the next attempt is expected to take after one that just failed; 0 if unknown."""
    duration = round(now - run.started_at, 6)
    if duration < SHORTEST_MEASURED_S:
        return run.expected_duration_s
    return max(run.expected_duration_s, duration)
