"""The proof of a decision: every input, threshold and intermediate number as JSON.

A proof also contains the formula in plain arithmetic, so a reader can compute the delay from the
proof alone. It is built on demand from the decision's own inputs and is not stored beside them, so
that the two cannot disagree.
"""

from __future__ import annotations

from oncemore.policy.canonical_json import encode_canonical, format_number
from oncemore.policy.explain import compute_terms, decision_sentence, delay_formula
from oncemore.policy.policy import policy_facts, policy_id
from oncemore.policy.tuning import is_stretch_clamped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.decide import Decision, Situation
    from oncemore.policy.explain import DelayTerms
    from oncemore.policy.model import Failure
    from oncemore.policy.tuning import Signals, TuningTerms

PROOF_FORMAT = "oncemore.proof/1"


def build_proof(decision: Decision) -> dict[str, Plain]:
    """Return a decision's proof as plain values."""
    return build_recorded_proof(decision, policy_id(decision.policy))


def build_recorded_proof(decision: Decision, name: Plain) -> dict[str, Plain]:
    """Return a decision's proof under the recorded name, version and digest of its policy.

    Used for a recomputed decision, whose policy was restored from the thresholds of a proof, and for a
    run whose `max_attempts` an operator has raised: the thresholds contain the raised number, and the
    policy keeps its recorded name.
    """
    return _assemble_proof(decision, name, policy_facts(decision.policy).thresholds)


def encode_proof(decision: Decision) -> bytes:
    """Return a decision's proof as canonical JSON: the bytes of `encode_canonical(build_proof(decision))`.

    Every decision of a durable run writes a proof. This function formats the text directly, with the keys
    in canonical order, at a third of the cost of `encode_canonical`. The tests compare the two results.
    """
    # Imported here: `import oncemore` must not load `json`.
    from json.encoder import encode_basestring as quote

    policy, situation, terms = decision.policy, decision.situation, compute_terms(decision)
    facts = policy_facts(policy)
    clamps = _format_names(_list_clamps(decision, terms))
    formula = "" if terms is None else delay_formula(policy, situation.attempt)
    text = (
        f'{{"action":"{decision.action}","attempt":{situation.attempt},"clamps":{clamps},'
        f'"delay_s":{format_number(decision.delay_s)},"failure":{_format_failure(situation.failure, quote)},'
        f'"format":"{PROOF_FORMAT}","formula":{quote(formula)},'
        f'"inputs":{_format_inputs(situation, quote)},"not_before":{_format_optional(decision.not_before)},'
        f'"policy":{facts.name_json},'
        f'"reason":"{decision.reason}","sentence":{quote(decision_sentence(decision))},"terms":{_format_terms(terms)},'
        f'"thresholds":{facts.thresholds_json},"verdict":"{situation.verdict}"}}'
    )
    try:
        return text.encode()
    except UnicodeEncodeError:
        # A lone surrogate in a text: `encode_canonical` raises the error that names the value's path.
        return encode_canonical(_assemble_proof(decision, facts.name_json, facts.thresholds_json))


# Integers are written by `str`: `format_number` is for floats only.


def _format_optional(value: float | None) -> str:
    return "null" if value is None else format_number(value) if type(value) is float else str(value)


def _format_names(names: Iterable[Plain]) -> str:
    return "[" + ",".join([f'"{name}"' for name in names]) + "]"


# The functions below write their keys in alphabetical order, as RFC 8785 requires.


def _format_failure(failure: Failure, quote: Callable[[str], str]) -> str:
    kind, sent, retry_after, code, rule = failure
    return (
        f'{{"code":{quote(code)},"kind":"{kind}","retry_after":{_format_optional(retry_after)},"rule":{quote(rule)},'
        f'"sent":"{sent}"}}'
    )


def _format_inputs(situation: Situation, quote: Callable[[str], str]) -> str:
    signals = "null" if situation.signals is None else _format_signals(situation.signals)
    # Both are absent in proofs of policies without tuning, and in those of older versions.
    autonomy = "" if situation.autonomy is None else f'"autonomy":{_format_plain(situation.autonomy)},'
    readings = "" if situation.readings is None else f'"readings":{_format_plain(situation.readings)},'
    return (
        f'{{{autonomy}"deadline":{_format_optional(situation.deadline)},"expected_s":{_format_optional(situation.expected_s)},'
        f'"held_for":{quote(situation.hold_reason)},"hold_until":{_format_optional(situation.hold_until)},"now":{_format_optional(situation.now)},'
        f'{readings}"seed":{quote(situation.seed)},"signals":{signals},"started":{_format_optional(situation.started_at)},'
        f'"tokens":{_format_optional(situation.budget_tokens)}}}'
    )


def _format_plain(value: dict[str, Any]) -> str:
    return encode_canonical(value).decode()


def _format_signals(signals: Signals) -> str:
    intensity, price, depth, parallelism, budget = signals
    return (
        f'{{"energy_price":{_format_optional(price)},"error_budget":{_format_optional(budget)},'
        f'"grid_intensity":{_format_optional(intensity)},"parallelism":{_format_optional(parallelism)},'
        f'"queue_depth":{_format_optional(depth)}}}'
    )


def _format_tuning(terms: TuningTerms) -> str:
    carbon, price, queue, buffer, risk, stretch, delay, missing, slow = terms
    slowed = "" if slow == 1.0 else f',"slow":{_format_optional(slow)}'
    return (
        f'{{"buffer_s":{_format_optional(buffer)},"carbon":{_format_optional(carbon)},"delay_s":{_format_optional(delay)},'
        f'"missing":{_format_names(missing)},"price":{_format_optional(price)},"queue_s":{_format_optional(queue)},'
        f'"risk":{_format_optional(risk)}{slowed},"stretch":{_format_optional(stretch)}}}'
    )


def _format_terms(terms: DelayTerms | None) -> str:
    if terms is None:
        return "null"
    planned, u, jittered, tuned, room = terms
    tuning = "null" if tuned is None else _format_tuning(tuned)
    return (
        f'{{"jittered_s":{_format_optional(jittered)},"planned_s":{_format_optional(planned)},"room_s":{_format_optional(room)},"tuned":{tuning},'
        f'"u":{format_number(u)}}}'
    )


# The same content as plain values, for callers that need a dict. Canonical JSON sorts the keys, so the
# order here is that of the documentation.


def _assemble_proof(decision: Decision, name: Plain, thresholds: Plain) -> dict[str, Plain]:
    policy, situation, terms = decision.policy, decision.situation, compute_terms(decision)
    return {
        "format": PROOF_FORMAT,
        "policy": name,
        "attempt": situation.attempt,
        "verdict": situation.verdict,
        "failure": _failure_dict(situation.failure),
        "inputs": _inputs_dict(situation),
        "thresholds": thresholds,
        "formula": "" if terms is None else delay_formula(policy, situation.attempt),
        "terms": None if terms is None else _terms_dict(terms),
        "clamps": _list_clamps(decision, terms),
        "action": decision.action,
        "reason": decision.reason,
        "delay_s": decision.delay_s,
        "not_before": decision.not_before,
        "sentence": decision_sentence(decision),
    }


def _failure_dict(failure: Failure) -> dict[str, Plain]:
    kind, sent, retry_after, code, rule = failure
    return {"kind": kind, "sent": sent, "retry_after": retry_after, "code": code, "rule": rule}


def _inputs_dict(situation: Situation) -> dict[str, Plain]:
    surroundings = {"readings": situation.readings, "autonomy": situation.autonomy}
    return {
        "now": situation.now,
        "started": situation.started_at,
        "deadline": situation.deadline,
        "expected_s": situation.expected_s,
        "seed": situation.seed,
        "tokens": situation.budget_tokens,
        "hold_until": situation.hold_until,
        "held_for": situation.hold_reason,
        "signals": None if situation.signals is None else situation.signals._asdict(),
        **{name: value for name, value in surroundings.items() if value is not None},
    }


def _terms_dict(terms: DelayTerms) -> dict[str, Plain]:
    planned, u, jittered, tuned, room = terms
    return {
        "planned_s": planned,
        "u": u,
        "jittered_s": jittered,
        "tuned": None if tuned is None else _tuning_dict(tuned),
        "room_s": room,
    }


def _tuning_dict(terms: TuningTerms) -> dict[str, Plain]:
    fields = terms._asdict()
    # Absent unless the autonomy matrix slows the work down: older proofs do not have it.
    if terms.slow == 1.0:
        del fields["slow"]
    return fields


def _list_clamps(decision: Decision, terms: DelayTerms | None) -> list[Plain]:
    """Return the names of the bounds that changed the delay, in the order they were applied."""
    if terms is None:
        return []
    policy, retry_after = decision.policy, decision.situation.failure.retry_after
    own_delay = terms.jittered_s if terms.tuned is None else terms.tuned.delay_s
    # The names are those of the policy fields and inputs, so that a reader finds them in the thresholds.
    clamps: list[Plain] = []
    if terms.planned_s > policy.max_delay_s:
        clamps.append("max_delay_s")
    if (
        terms.tuned is not None
        and policy.tuning is not None
        and is_stretch_clamped(terms.tuned, policy.tuning)
    ):
        clamps.append("max_stretch")
    if retry_after is not None and retry_after > own_delay:
        clamps.append("retry_after")
    # A retry that waits less than its own delay was shortened to finish before the deadline.
    if decision.action == "retry" and decision.delay_s < max(own_delay, retry_after or 0.0):
        clamps.append("deadline")
    return clamps
