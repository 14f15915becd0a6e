"""Decides about the next attempt: policy and situation in, decision out.

The checks run in this order, and the first that fails ends the decision:

    may this failure be retried?    verdict          no: stop or quarantine
    is an attempt left?             max_attempts     no: stop
    is there a hold?                hold_until       yes: defer (open breaker, pause)
    are there tokens for a retry?   retry budget     no: stop
    how long is the delay?          schedule, jitter, cap, tuning; Retry-After is a minimum
    does the delay fit?             beyond the cap: defer; beyond the deadline: stop

Nothing here reads a clock or draws a random number: `Situation` holds all inputs. The same situation
always gives the same decision, and its proof (`policy.proof`) can be built later.
"""

from __future__ import annotations

from oncemore._values import Value, make
from oncemore.policy.backoff import jittered_delay
from oncemore.policy.tuning import NO_SIGNALS, Signals, TuningTerms, slow_down, tune_delay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Literal

    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.model import Action, Failure, Verdict
    from oncemore.policy.policy import Policy

    Reason = Literal[
        "retry",
        "not_retryable",
        "quarantined",
        "outcome_unknown",
        "max_attempts_exceeded",
        "held",
        "retry_budget_empty",
        "retry_after_beyond_cap",
        "retry_after_beyond_deadline",
        "wait_beyond_deadline",
        "deadline_passed",
    ]


class Situation(Value):
    """All inputs of a decision after a failed attempt; times are POSIX seconds on one clock.

    signals   the numbers of tuning
    readings  the same and further inputs with their sources and ages, for the proof
    autonomy  the decision of the autonomy matrix in force: its id, its action and its `slow_factor`
    """

    attempt: int
    failure: Failure
    verdict: Verdict
    now: float
    seed: str = ""
    started_at: float | None = None
    deadline: float | None = None
    expected_s: float | None = None
    budget_tokens: float | None = None
    hold_until: float | None = None
    hold_reason: str = ""
    signals: Signals | None = None
    readings: dict[str, Any] | None = None
    autonomy: dict[str, Any] | None = None


class Decision(Value):
    """The decision after a failed attempt, with its policy and its situation.

    action      retry, defer, stop, quarantine or escalate
    reason      the reason as a stable code
    delay_s     seconds to wait before the next attempt (retry), else 0
    not_before  earliest useful time for another attempt; None if unknown
    """

    action: Action
    reason: Reason
    delay_s: float
    not_before: float | None
    policy: Policy
    situation: Situation

    def proof(self) -> dict[str, Plain]:
        """Return every input, term and bound as plain values."""
        from oncemore.policy.proof import build_proof

        return build_proof(self)

    def proof_bytes(self) -> bytes:
        """Return the proof as canonical JSON: the same inputs give the same bytes."""
        from oncemore.policy.proof import encode_proof

        return encode_proof(self)

    def explain(self) -> str:
        """Return a paragraph with the decision, its reason and its numbers."""
        from oncemore.policy.explain import explain_decision

        return explain_decision(self)


#: Action and reason for each verdict that does not allow a retry.
_FINAL_ACTIONS: Final[dict[Verdict, tuple[Action, Reason]]] = {
    "TERMINAL": ("stop", "not_retryable"),
    "QUARANTINE": ("quarantine", "quarantined"),
    "UNKNOWN": ("quarantine", "outcome_unknown"),
}


def decide_retry(policy: Policy, situation: Situation) -> Decision:
    """Return the decision after the failed attempt in `situation`."""
    # Unpacked once: this runs at every failure, and each attribute lookup of a tuple costs time.
    attempt, failure, verdict, now, seed, _, deadline, expected, tokens, hold_until, _, _, _, _ = situation
    if verdict != "RETRYABLE":
        action, reason = _FINAL_ACTIONS[verdict]
        return make(Decision, (action, reason, 0.0, None, policy, situation))
    if attempt >= policy.max_attempts:
        return make(
            Decision, ("stop", "max_attempts_exceeded", 0.0, _retry_not_before(situation), policy, situation)
        )
    if hold_until is not None and hold_until > now:
        return make(Decision, ("defer", "held", 0.0, hold_until, policy, situation))
    if tokens is not None and tokens < policy.retry_cost:
        return make(
            Decision, ("stop", "retry_budget_empty", 0.0, _retry_not_before(situation), policy, situation)
        )
    delay = jittered_delay(policy.schedule, policy.jitter, policy.max_delay_s, seed, attempt)
    if policy.tuning is not None:
        delay = compute_tuning(policy, situation, delay).delay_s
    retry_after = failure.retry_after
    # Retry-After is a minimum: the jittered delay never undercuts it.
    if retry_after is not None and retry_after > delay:
        delay = retry_after
    if deadline is not None or policy.total_timeout_s is not None:
        left = deadline_left(policy, situation)
        if left is not None and delay >= left - (expected or 0.0):
            return _decide_at_deadline(policy, situation, delay, left - (expected or 0.0))
    # The deadline is checked first: a deferred run would only find out later that its time is over.
    if retry_after is not None and retry_after > policy.max_delay_s:
        return make(Decision, ("defer", "retry_after_beyond_cap", 0.0, now + retry_after, policy, situation))
    return make(Decision, ("retry", "retry", delay, now + delay, policy, situation))


def _decide_at_deadline(policy: Policy, situation: Situation, delay: float, room: float) -> Decision:
    """Return the decision for a delay that does not end before `room`.

    `room` is the number of seconds until the latest start of an attempt that can still finish in time.
    """
    retry_after = situation.failure.retry_after
    if room <= 0:
        return make(
            Decision, ("stop", "deadline_passed", 0.0, _retry_not_before(situation), policy, situation)
        )
    if retry_after is not None and retry_after >= room:
        return make(
            Decision,
            ("stop", "retry_after_beyond_deadline", 0.0, situation.now + retry_after, policy, situation),
        )
    if situation.expected_s is None:
        # Without an expected duration, a shortened wait would start an attempt with no time to finish.
        return make(Decision, ("stop", "wait_beyond_deadline", 0.0, situation.now + delay, policy, situation))
    return make(Decision, ("retry", "retry", room, situation.now + room, policy, situation))


def compute_tuning(policy: Policy, situation: Situation, delay: float) -> TuningTerms:
    """Return the tuning terms of a delay; the policy must have tuning."""
    assert policy.tuning is not None
    left = deadline_left(policy, situation)
    signals, slow = situation.signals or NO_SIGNALS, 1.0
    if situation.autonomy is not None:
        slow = situation.autonomy.get("slow_factor", 1.0)
    expected = situation.expected_s or 0.0
    terms = tune_delay(delay, policy.tuning, signals, policy.max_delay_s, expected, left)
    return terms if slow == 1.0 else slow_down(terms, slow, delay, policy.max_delay_s, signals)


def deadline_left(policy: Policy, situation: Situation) -> float | None:
    """Return the seconds until the deadline or the policy's total timeout, the earlier of both."""
    end = situation.deadline
    if policy.total_timeout_s is not None and situation.started_at is not None:
        own_end = situation.started_at + policy.total_timeout_s
        end = own_end if end is None else min(end, own_end)
    return None if end is None else end - situation.now


def _retry_not_before(situation: Situation) -> float | None:
    """Return the time from Retry-After, if the failure carries one."""
    return None if situation.failure.retry_after is None else situation.now + situation.failure.retry_after
