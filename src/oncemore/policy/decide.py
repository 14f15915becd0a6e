"""DECIDE: policy and situation in, decision out.

The questions are asked in this order, and the first that says no ends it:

    may this failure be repeated?   verdict          no: stop, quarantine or hold
    is an attempt left?             max_attempts     no: stop
    is somebody asking us to wait?  hold_until       yes: defer (an open breaker, a pause)
    may we afford a retry?          retry budget     no: stop
    how long?                       schedule, jitter, cap, tuning; Retry-After is a floor
    does that fit?                  beyond the cap: defer; beyond the deadline: stop

Nothing here asks what time it is or draws a number: `Situation` holds all that was known. So the same
situation always gives the same decision, and the proof (`policy.proof`) can be made from it later.
"""

from __future__ import annotations

from oncemore._values import Value, make
from oncemore.policy.backoff import jittered
from oncemore.policy.tuning import NOTHING_KNOWN, Signals, Tuned, tune

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, Literal

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
    """All that is known when an attempt has failed; times are POSIX seconds on one clock."""

    attempt: int
    failure: Failure
    verdict: Verdict
    now: float
    seed: str = ""
    started: float | None = None
    deadline: float | None = None
    expected_s: float | None = None
    tokens: float | None = None
    hold_until: float | None = None
    held_for: str = ""
    signals: Signals | None = None


class Decision(Value):
    """What to do after a failed attempt, and everything it was computed from.

    action      retry, defer, stop, quarantine or escalate
    reason      why, as a stable code
    delay_s     seconds to wait before the next attempt (retry), else 0
    not_before  earliest time at which trying again makes sense, if anybody named one
    """

    action: Action
    reason: Reason
    delay_s: float
    not_before: float | None
    policy: Policy
    situation: Situation

    def proof(self) -> dict[str, Plain]:
        """Return every input, term and bound as plain values."""
        from oncemore.policy.proof import proof

        return proof(self)

    def proof_bytes(self) -> bytes:
        """Return the proof as canonical JSON: same inputs, same bytes."""
        from oncemore.policy.proof import proof_bytes

        return proof_bytes(self)

    def explain(self) -> str:
        """Return a paragraph that says what was decided, and why, with the numbers."""
        from oncemore.policy.proof import explain

        return explain(self)


#: What follows from a verdict that does not allow a repeat.
_FINAL: Final[dict[Verdict, tuple[Action, Reason]]] = {
    "TERMINAL": ("stop", "not_retryable"),
    "QUARANTINE": ("quarantine", "quarantined"),
    "UNKNOWN": ("quarantine", "outcome_unknown"),
}


def decide(policy: Policy, at: Situation) -> Decision:
    """Return what to do after the failed attempt that the situation describes."""
    # Taken apart once: this runs at every failure, and a field of a tuple is dear to look up.
    attempt, failure, verdict, now, seed, _, deadline, expected, tokens, hold_until, _, _ = at
    if verdict != "RETRYABLE":
        action, reason = _FINAL[verdict]
        return make(Decision, (action, reason, 0.0, None, policy, at))
    if attempt >= policy.max_attempts:
        return make(Decision, ("stop", "max_attempts_exceeded", 0.0, _asked(at), policy, at))
    if hold_until is not None and hold_until > now:
        return make(Decision, ("defer", "held", 0.0, hold_until, policy, at))
    if tokens is not None and tokens < policy.retry_cost:
        return make(Decision, ("stop", "retry_budget_empty", 0.0, _asked(at), policy, at))
    delay = jittered(policy.schedule, policy.jitter, policy.max_delay_s, seed, attempt)
    if policy.tuning is not None:
        delay = tuned(policy, at, delay).delay_s
    asked = failure.retry_after
    if asked is not None and asked > delay:
        delay = asked
    if deadline is not None or policy.within_s is not None:
        left = deadline_left(policy, at)
        if left is not None and delay >= left - (expected or 0.0):
            return _at_deadline(policy, at, delay, left - (expected or 0.0))
    if asked is not None and asked > policy.max_delay_s:
        return make(Decision, ("defer", "retry_after_beyond_cap", 0.0, now + asked, policy, at))
    return make(Decision, ("retry", "retry", delay, now + delay, policy, at))


def _at_deadline(policy: Policy, at: Situation, delay: float, room: float) -> Decision:
    """Decide about a wait that reaches the latest moment at which an attempt can still finish."""
    asked = at.failure.retry_after
    if room <= 0:
        return make(Decision, ("stop", "deadline_passed", 0.0, _asked(at), policy, at))
    if asked is not None and asked >= room:
        return make(Decision, ("stop", "retry_after_beyond_deadline", 0.0, at.now + asked, policy, at))
    if at.expected_s is None:
        # Cutting the wait short would start an attempt with no time left to finish it.
        return make(Decision, ("stop", "wait_beyond_deadline", 0.0, at.now + delay, policy, at))
    return make(Decision, ("retry", "retry", room, at.now + room, policy, at))


def tuned(policy: Policy, at: Situation, delay: float) -> Tuned:
    """Return the terms that tuning adds to a delay; only for a policy that has tuning."""
    assert policy.tuning is not None
    left = deadline_left(policy, at)
    signals = at.signals or NOTHING_KNOWN
    return tune(delay, policy.tuning, signals, policy.max_delay_s, at.expected_s or 0.0, left)


def deadline_left(policy: Policy, at: Situation) -> float | None:
    """Return the time to the earlier of the deadline and the end of the policy's own limit."""
    ends = at.deadline
    if policy.within_s is not None and at.started is not None:
        own = at.started + policy.within_s
        ends = own if ends is None else min(ends, own)
    return None if ends is None else ends - at.now


def _asked(at: Situation) -> float | None:
    """Return when the other side wants us back, if it said so."""
    return None if at.failure.retry_after is None else at.now + at.failure.retry_after
