"""Explains decisions: the numbers behind a delay, one sentence per decision, and a full paragraph.

The numbers are computed again from the decision's own inputs and are not stored beside them, so a
decision and its explanation cannot disagree. `proof` uses the same numbers for its JSON.
"""

from __future__ import annotations

from oncemore._values import Value, make
from oncemore.policy.backoff import delay_terms
from oncemore.policy.decide import compute_tuning, deadline_left
from oncemore.policy.policy import policy_facts
from oncemore.policy.tuning import CARBON_WEIGHT, NO_SIGNALS, PRICE_WEIGHT, is_stretch_clamped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from oncemore.policy.backoff import Schedule, Shape, Spread
    from oncemore.policy.decide import Decision, Reason, Situation
    from oncemore.policy.policy import Policy
    from oncemore.policy.tuning import TuningTerms


def format_seconds(value: float) -> str:
    """Return a duration for people: 0.42 s, 12 s, 4 min 10 s, 2 h 5 min."""
    if value < 120:
        return f"{value:.3g} s" if value < 10 else f"{value:.4g} s"
    if value < 7200:
        # Rounded first: 599.9 seconds are 10 min 0 s, and not 9 min 60 s.
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes} min {seconds} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


class DelayTerms(Value):
    """The intermediate numbers between a decision's inputs and its delay."""

    planned_s: float
    u: float
    jittered_s: float
    tuned: TuningTerms | None
    room_s: float | None


#: Reasons of decisions that `decide_retry` takes before it computes a delay.
_WITHOUT_DELAY = frozenset(
    {"not_retryable", "quarantined", "outcome_unknown", "max_attempts_exceeded", "held", "retry_budget_empty"}
)


def compute_terms(decision: Decision) -> DelayTerms | None:
    """Return the intermediate numbers of a decision; None if it was taken without computing a delay."""
    if decision.reason in _WITHOUT_DELAY:
        return None
    policy, situation = decision.policy, decision.situation
    planned, u, jittered = delay_terms(
        policy.schedule, policy.jitter, policy.max_delay_s, situation.seed, situation.attempt
    )
    tuned = None if policy.tuning is None else compute_tuning(policy, situation, jittered)
    left = deadline_left(policy, situation)
    room = None if left is None else left - (situation.expected_s or 0.0)
    return make(DelayTerms, (planned, u, jittered, tuned, room))


# The formulas mirror `SCHEDULES` and `SPREADS` in `backoff`: a change there needs one here too.
_SCHEDULE_FORMULAS: Final[dict[Shape, Callable[[Schedule, int], str]]] = {
    "exponential": lambda s, n: f"{s.base:g} * {s.factor:g} ** {n if s.exponent == 'attempt' else n - 1}",
    "linear": lambda s, n: f"{s.base:g} * {n}",
    "fixed": lambda s, n: f"{s.delays[min(n, len(s.delays)) - 1]:g}",
}

_JITTER_FORMULAS: Final[dict[Spread, str]] = {
    "none": "min({cap:g}, {plan})",
    "full": "u * min({cap:g}, {plan})",
    "equal": "(0.5 + 0.5 * u) * min({cap:g}, {plan})",
    "additive": "min({cap:g}, {plan} + u * {amount:g})",
    "proportional": "min({cap:g}, min({cap:g}, {plan}) * (1 + {amount:g} * (2 * u - 1)))",
    "decorrelated": "min({cap:g}, base + u * (3 * previous - base)), previous from the draws before",
}


def delay_formula(policy: Policy, attempt: int) -> str:
    """Return the arithmetic of the jittered delay after an attempt, with the policy's numbers in it."""
    # Every proof contains the formula, so it is built once per policy and attempt number.
    formulas = policy_facts(policy).formulas
    text = formulas.get(attempt)
    if text is None:
        plan = _SCHEDULE_FORMULAS[policy.schedule.shape](policy.schedule, attempt)
        text = formulas[attempt] = _JITTER_FORMULAS[policy.jitter.spread].format(
            cap=policy.max_delay_s, plan=plan, amount=policy.jitter.amount
        )
    return text


# The sentence is part of the recorded proof, and `replay` compares proofs byte by byte: a changed wording
# makes the proofs of existing logs differ.


def decision_sentence(decision: Decision) -> str:
    """Return one English sentence with the failure and the decision."""
    return f"{_describe_failure(decision.situation)}; {_REASON_SENTENCES[decision.reason](decision)}."


def _describe_failure(situation: Situation) -> str:
    """Return the attempt, the code and the kind of its failure.

    A retried failure of kind "permanent" is described without its kind: there `on=` or the policy
    overrides the classifiers, and the sentence says so instead of contradicting itself.
    """
    code = situation.failure.code or "an error"
    kind = f" ({situation.failure.kind})"
    if situation.verdict == "RETRYABLE" and not situation.failure.may_pass:
        kind = ", which on= or the policy retries"
    return f"attempt {situation.attempt} failed with {code}{kind}"


_REASON_SENTENCES: Final[dict[Reason, Callable[[Decision], str]]] = {
    "retry": lambda d: (
        f"attempt {d.situation.attempt + 1} of {d.policy.max_attempts} follows "
        + (f"in {format_seconds(d.delay_s)}" if d.delay_s else "at once")
    ),
    "not_retryable": lambda d: (
        "not tried again: "
        + (
            "the failure may be temporary, but this call does not retry it"
            if d.situation.failure.may_pass
            else "this failure does not pass by itself"
        )
    ),
    "quarantined": lambda d: "not tried again: quarantined until a person decides",
    "outcome_unknown": lambda d: "not tried again: it may have taken effect, and it must not happen twice",
    "max_attempts_exceeded": lambda d: (
        f"given up: all {d.policy.max_attempts} attempts are used"
        if d.policy.max_attempts > 1
        else "given up: the policy allows one attempt"
    ),
    "held": lambda d: (
        f"deferred: {d.situation.hold_reason or 'held'} for another {format_seconds(_seconds_until(d))}"
    ),
    "retry_budget_empty": lambda d: (
        f"given up: the retry budget holds {d.situation.budget_tokens:g} tokens "
        f"and a retry costs {d.policy.retry_cost:g}"
    ),
    "retry_after_beyond_cap": lambda d: (
        f"deferred: the provider asked for a wait of {format_seconds(_seconds_until(d))}, "
        f"and a wait here may last {format_seconds(d.policy.max_delay_s)} at most"
    ),
    "retry_after_beyond_deadline": lambda d: (
        f"given up: the provider asked for a wait of {format_seconds(_seconds_until(d))}, and only "
        f"{format_seconds(_seconds_left(d))} are left"
    ),
    "wait_beyond_deadline": lambda d: (
        f"given up: the next attempt would start in {format_seconds(_seconds_until(d))}, "
        f"and only {format_seconds(_seconds_left(d))} are left"
    ),
    "deadline_passed": lambda d: "given up: the time limit of the whole call has passed",
}


def _seconds_until(decision: Decision) -> float:
    return 0.0 if decision.not_before is None else decision.not_before - decision.situation.now


def _seconds_left(decision: Decision) -> float:
    # An attempt must also finish in time, so its expected duration is not available for waiting.
    left = deadline_left(decision.policy, decision.situation)
    return 0.0 if left is None else max(0.0, left - (decision.situation.expected_s or 0.0))


def explain_decision(decision: Decision, digest: str = "") -> str:
    """Return a paragraph with the decision, its reason and its numbers.

    digest  the recorded policy digest, for a policy that was restored from a proof's thresholds only
    """
    policy, situation, terms = decision.policy, decision.situation, compute_terms(decision)
    sentence = decision_sentence(decision)
    lines = [sentence[:1].upper() + sentence[1:]]
    if situation.failure.rule:
        effect = "; the attempt cannot have taken effect" if situation.failure.sent == "no" else ""
        lines.append(f"Classified by rule {situation.failure.rule}{effect}.")
    if terms is not None:
        lines.append(_explain_delay(policy, situation, terms))
        if terms.tuned is not None:
            lines.append(_explain_tuning(policy, situation, terms.jittered_s, terms.tuned))
        lines.extend(_explain_bounds(decision, terms))
    lines.append(f"Policy {policy.name} version {policy.version}, {(digest or policy.digest)[:12]}.")
    return " ".join(lines)


def _explain_delay(policy: Policy, situation: Situation, terms: DelayTerms) -> str:
    draw = f" with u = {terms.u:.6f} drawn from its seed" if policy.jitter.spread != "none" else ""
    return (
        f"The policy's own delay is {delay_formula(policy, situation.attempt)} = "
        f"{terms.jittered_s:.6g} s{draw}."
    )


def _explain_tuning(policy: Policy, situation: Situation, base_s: float, terms: TuningTerms) -> str:
    """Return the tuned delay as a product, with the signal behind each factor."""
    tuning, signals = policy.tuning, situation.signals or NO_SIGNALS
    assert tuning is not None
    slowed = f" x {terms.slow:g} (slowed down by the autonomy matrix)" if terms.slow != 1.0 else ""
    text = f"Tuned to {terms.delay_s:.6g} s = {base_s:.6g} s x {terms.stretch:g}{slowed} x {1 - terms.risk:g}"
    reasons = []
    if signals.grid_intensity is not None:
        added = f"+{CARBON_WEIGHT * terms.carbon:g}{_describe_source(situation, 'grid_intensity')}"
        scale = f"on the scale from {tuning.carbon_low:g} to {tuning.carbon_high:g}"
        reasons.append(f"grid intensity {signals.grid_intensity:g} g/kWh {scale}: {added}")
    if signals.energy_price is not None:
        relation = "at or above" if terms.price else "below"
        reasons.append(
            f"price {signals.energy_price:g} USD/kWh {relation} the peak of {tuning.price_peak:g}: "
            f"+{PRICE_WEIGHT * terms.price:g}{_describe_source(situation, 'energy_price')}"
        )
    if is_stretch_clamped(terms, tuning):
        reasons.append(f"the stretch is held at {tuning.max_stretch:g}")
    if terms.buffer_s is not None:
        buffer = format_seconds(max(0.0, terms.buffer_s))
        reasons.append(f"a buffer of {buffer} before the deadline: risk {terms.risk:g}")
    text += f" ({'; '.join(reasons)})" if reasons else ""
    return text + (f", not known: {', '.join(terms.missing)}." if terms.missing else ".")


def _describe_source(situation: Situation, name: str) -> str:
    """Return source and age of a signal, if the situation has its reading."""
    reading = (situation.readings or {}).get(name, {})
    if "source" not in reading:
        return ""
    age = reading.get("age_s")
    return f", from {reading['source']}" + (f", {format_seconds(age)} old" if age else "")


def _explain_bounds(decision: Decision, terms: DelayTerms) -> list[str]:
    retry_after = decision.situation.failure.retry_after
    lines = []
    if retry_after is not None:
        wait = format_seconds(retry_after)
        lines.append(f"The provider asked for a wait of {wait}; the delay is never shorter.")
    if terms.room_s is not None:
        room = format_seconds(max(0.0, terms.room_s))
        lines.append(f"The deadline leaves {room} before the next attempt must start.")
    return lines
