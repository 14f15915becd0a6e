"""PROOF: a decision as evidence, and as a paragraph.

A proof holds every input, threshold and intermediate number, and the formula in plain arithmetic, so
that a stranger can compute the delay from it alone. It is made on demand from the decision's own
inputs, never kept beside them, so that the two cannot disagree. `explain` says the same to a tired
operator: what happened, what was decided, where the number comes from, what bounds it.
"""

from __future__ import annotations

from oncemore._time_spans import seconds
from oncemore._values import Value, make
from oncemore.policy.backoff import drawn
from oncemore.policy.canonical_json import canonical, number
from oncemore.policy.decide import deadline_left, tuned
from oncemore.policy.policy import facts, policy_id
from oncemore.policy.tuning import is_stretch_clamped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Final

    from oncemore.policy.backoff import Schedule, Shape, Spread
    from oncemore.policy.canonical_json import Plain
    from oncemore.policy.decide import Decision, Reason, Situation
    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy
    from oncemore.policy.tuning import Signals, Tuned

FORMAT = "oncemore.proof/1"


class Terms(Value):
    """The numbers between the inputs and the delay."""

    planned_s: float
    u: float
    jittered_s: float
    tuned: Tuned | None
    room_s: float | None


#: Decisions that never came to ask how long to wait.
_WITHOUT_DELAY = frozenset(
    {"not_retryable", "quarantined", "outcome_unknown", "max_attempts_exceeded", "held", "retry_budget_empty"}
)


def terms_of(decision: Decision) -> Terms | None:
    """Compute again the numbers that the decision came from; None when it asked for no delay."""
    if decision.reason in _WITHOUT_DELAY:
        return None
    policy, at = decision.policy, decision.situation
    plan, u, own = drawn(policy.schedule, policy.jitter, policy.max_delay_s, at.seed, at.attempt)
    left = deadline_left(policy, at)
    room = None if left is None else left - (at.expected_s or 0.0)
    return make(Terms, (plan, u, own, None if policy.tuning is None else tuned(policy, at, own), room))


_PLANNED: Final[dict[Shape, Callable[[Schedule, int], str]]] = {
    "exponential": lambda s, n: f"{s.base:g} * {s.factor:g} ** {n if s.exponent == 'attempt' else n - 1}",
    "linear": lambda s, n: f"{s.base:g} * {n}",
    "fixed": lambda s, n: f"{s.delays[min(n, len(s.delays)) - 1]:g}",
}

_SPREAD: Final[dict[Spread, str]] = {
    "none": "min({cap:g}, {plan})",
    "full": "u * min({cap:g}, {plan})",
    "equal": "(0.5 + 0.5 * u) * min({cap:g}, {plan})",
    "additive": "min({cap:g}, {plan} + u * {amount:g})",
    "proportional": "min({cap:g}, min({cap:g}, {plan}) * (1 + {amount:g} * (2 * u - 1)))",
    "decorrelated": "min({cap:g}, base + u * (3 * previous - base)), previous from the draws before",
}


def formula(policy: Policy, attempt: int) -> str:
    """Return the arithmetic of the jittered delay after an attempt, with the policy's numbers in it."""
    known = facts(policy).formulas
    text = known.get(attempt)
    if text is None:
        text = known[attempt] = _formula(policy, attempt)
    return text


def _formula(policy: Policy, attempt: int) -> str:
    plan = _PLANNED[policy.schedule.shape](policy.schedule, attempt)
    return _SPREAD[policy.jitter.spread].format(
        cap=policy.max_delay_s, plan=plan, amount=policy.jitter.amount
    )


def proof(decision: Decision) -> dict[str, Plain]:
    """Return every input, term and bound of a decision as plain values."""
    return proof_under(decision, policy_id(decision.policy))


def proof_under(decision: Decision, name: Plain) -> dict[str, Plain]:
    """Return the proof of a decision under the name, version and digest of another form of its policy.

    For a decision that is recomputed, whose policy is known by its recorded name only; and for one whose
    `max_attempts` a person has raised for this run: that is in the thresholds, the policy is the same.
    """
    return _proof(decision, name, facts(decision.policy).thresholds)


def proof_bytes(decision: Decision) -> bytes:
    """Return the proof as canonical JSON: the bytes of `canonical(proof(decision))`.

    Every decision of a durable run writes one, so that it is put together here in the order that its
    keys have anyway, at a third of the cost of the way through `canonical`; the tests hold the two
    against each other.
    """
    from json.encoder import encode_basestring as quote

    policy, at, terms = decision.policy, decision.situation, terms_of(decision)
    known = facts(policy)
    text = (
        f'{{"action":"{decision.action}","attempt":{at.attempt},"clamps":{_listed(_clamps(decision, terms))},'
        f'"delay_s":{number(decision.delay_s)},"failure":{_failure_text(at.failure, quote)},'
        f'"format":"{FORMAT}","formula":{quote("" if terms is None else formula(policy, at.attempt))},'
        f'"inputs":{_inputs_text(at, quote)},"not_before":{_number(decision.not_before)},'
        f'"policy":{known.named},'
        f'"reason":"{decision.reason}","sentence":{quote(sentence(decision))},"terms":{_terms_text(terms)},'
        f'"thresholds":{known.written},"verdict":"{at.verdict}"}}'
    )
    try:
        return text.encode()
    except UnicodeEncodeError:
        return canonical(_proof(decision, known.named, known.written))  # says which part has no form


def _number(value: float | None) -> str:
    return "null" if value is None else number(value) if type(value) is float else str(value)


def _listed(names: Iterable[Plain]) -> str:
    return "[" + ",".join([f'"{name}"' for name in names]) + "]"


def _failure_text(failure: Failure, quote: Callable[[str], str]) -> str:
    kind, sent, retry_after, code, rule = failure
    return (
        f'{{"code":{quote(code)},"kind":"{kind}","retry_after":{_number(retry_after)},"rule":{quote(rule)},'
        f'"sent":"{sent}"}}'
    )


def _inputs_text(at: Situation, quote: Callable[[str], str]) -> str:
    signals = "null" if at.signals is None else _signals_text(at.signals)
    return (
        f'{{"deadline":{_number(at.deadline)},"expected_s":{_number(at.expected_s)},'
        f'"held_for":{quote(at.held_for)},"hold_until":{_number(at.hold_until)},"now":{_number(at.now)},'
        f'"seed":{quote(at.seed)},"signals":{signals},"started":{_number(at.started)},'
        f'"tokens":{_number(at.tokens)}}}'
    )


def _signals_text(signals: Signals) -> str:
    intensity, price, depth, parallelism, budget = signals
    return (
        f'{{"energy_price":{_number(price)},"error_budget":{_number(budget)},'
        f'"grid_intensity":{_number(intensity)},"parallelism":{_number(parallelism)},'
        f'"queue_depth":{_number(depth)}}}'
    )


def _tuned_text(terms: Tuned) -> str:
    carbon, price, queue, buffer, risk, stretch, delay, missing = terms
    return (
        f'{{"buffer_s":{_number(buffer)},"carbon":{_number(carbon)},"delay_s":{_number(delay)},'
        f'"missing":{_listed(missing)},"price":{_number(price)},"queue_s":{_number(queue)},'
        f'"risk":{_number(risk)},"stretch":{_number(stretch)}}}'
    )


def _terms_text(terms: Terms | None) -> str:
    if terms is None:
        return "null"
    plan, u, own, by_tuning, room = terms
    tuning = "null" if by_tuning is None else _tuned_text(by_tuning)
    return (
        f'{{"jittered_s":{_number(own)},"planned_s":{_number(plan)},"room_s":{_number(room)},"tuned":{tuning},'
        f'"u":{number(u)}}}'
    )


def _proof(decision: Decision, name: Plain, thresholds: Plain) -> dict[str, Plain]:
    policy, at, terms = decision.policy, decision.situation, terms_of(decision)
    return {
        "format": FORMAT,
        "policy": name,
        "attempt": at.attempt,
        "verdict": at.verdict,
        "failure": _failure(at.failure),
        "inputs": _inputs(at),
        "thresholds": thresholds,
        "formula": "" if terms is None else formula(policy, at.attempt),
        "terms": None if terms is None else _terms(terms),
        "clamps": _clamps(decision, terms),
        "action": decision.action,
        "reason": decision.reason,
        "delay_s": decision.delay_s,
        "not_before": decision.not_before,
        "sentence": sentence(decision),
    }


def _failure(failure: Failure) -> dict[str, Plain]:
    kind, sent, retry_after, code, rule = failure
    return {"kind": kind, "sent": sent, "retry_after": retry_after, "code": code, "rule": rule}


def _inputs(at: Situation) -> dict[str, Plain]:
    return {
        "now": at.now,
        "started": at.started,
        "deadline": at.deadline,
        "expected_s": at.expected_s,
        "seed": at.seed,
        "tokens": at.tokens,
        "hold_until": at.hold_until,
        "held_for": at.held_for,
        "signals": None if at.signals is None else at.signals._asdict(),
    }


def _terms(terms: Terms) -> dict[str, Plain]:
    plan, u, own, by_tuning, room = terms
    return {
        "planned_s": plan,
        "u": u,
        "jittered_s": own,
        "tuned": None if by_tuning is None else by_tuning._asdict(),
        "room_s": room,
    }


def _clamps(decision: Decision, terms: Terms | None) -> list[Plain]:
    """Name every bound that changed the number, in the order in which they acted."""
    if terms is None:
        return []
    policy, asked = decision.policy, decision.situation.failure.retry_after
    own = terms.jittered_s if terms.tuned is None else terms.tuned.delay_s
    found: list[Plain] = []
    if terms.planned_s > policy.max_delay_s:
        found.append("max_delay_s")
    if (
        terms.tuned is not None
        and policy.tuning is not None
        and is_stretch_clamped(terms.tuned, policy.tuning)
    ):
        found.append("max_stretch")
    if asked is not None and asked > own:
        found.append("retry_after")
    if decision.action == "retry" and decision.delay_s < max(own, asked or 0.0):
        found.append("deadline")
    return found


def _what(at: Situation) -> str:
    """Return what failed; its kind only where the decision agrees with it.

    The classifiers' "permanent" beside "attempt 2 of 3 follows" would contradict itself: there `on=` or the
    policy decided otherwise, and the sentence says so.
    """
    code = at.failure.code or "an error"
    kind = f" ({at.failure.kind})"
    if at.verdict == "RETRYABLE" and not at.failure.passing:
        kind = ", which on= or the policy retries"
    return f"attempt {at.attempt} failed with {code}{kind}"


_SENTENCES: Final[dict[Reason, Callable[[Decision], str]]] = {
    "retry": lambda d: (
        f"attempt {d.situation.attempt + 1} of {d.policy.max_attempts} follows "
        + (f"in {seconds(d.delay_s)}" if d.delay_s else "at once")
    ),
    "not_retryable": lambda d: (
        "not tried again: "
        + (
            "it may pass, but is not among what is tried again here"
            if d.situation.failure.passing
            else "this failure does not pass by itself"
        )
    ),
    "quarantined": lambda d: "not tried again: it waits for a person to look at it",
    "outcome_unknown": lambda d: "not tried again: it may have taken effect, and it must not happen twice",
    "max_attempts_exceeded": lambda d: (
        f"given up: all {d.policy.max_attempts} attempts are used"
        if d.policy.max_attempts > 1
        else "given up: the policy allows one attempt"
    ),
    "held": lambda d: f"put off: {d.situation.held_for or 'held'} for another {seconds(_until(d))}",
    "retry_budget_empty": lambda d: (
        f"given up: the retry budget holds {d.situation.tokens:g} tokens "
        f"and a retry costs {d.policy.retry_cost:g}"
    ),
    "retry_after_beyond_cap": lambda d: (
        f"put off: the other side wants {seconds(_until(d))} of rest, "
        f"and a wait here may last {seconds(d.policy.max_delay_s)} at most"
    ),
    "retry_after_beyond_deadline": lambda d: (
        f"given up: the other side wants {seconds(_until(d))} of rest, and only {seconds(_room(d))} are left"
    ),
    "wait_beyond_deadline": lambda d: (
        f"given up: the next attempt would start in {seconds(_until(d))}, "
        f"and only {seconds(_room(d))} are left"
    ),
    "deadline_passed": lambda d: "given up: the time for the whole call is up",
}


def _until(decision: Decision) -> float:
    return 0.0 if decision.not_before is None else decision.not_before - decision.situation.now


def _room(decision: Decision) -> float:
    left = deadline_left(decision.policy, decision.situation)
    return 0.0 if left is None else max(0.0, left - (decision.situation.expected_s or 0.0))


def sentence(decision: Decision) -> str:
    """Return one English sentence: what failed and what follows."""
    return f"{_what(decision.situation)}; {_SENTENCES[decision.reason](decision)}."


def explain(decision: Decision, digest: str = "") -> str:
    """Return a paragraph that says what was decided, and why, with the numbers.

    digest  of the policy as it was recorded, where the policy at hand is known by its bounds only
    """
    policy, at, terms = decision.policy, decision.situation, terms_of(decision)
    lines = [_capitalised(sentence(decision))]
    if at.failure.rule:
        lines.append(f"Rule {at.failure.rule} read it so{_effect(at)}.")
    if terms is not None:
        lines.append(_arithmetic(policy, at, terms))
        if terms.tuned is not None:
            lines.append(_tuning(terms.tuned))
        lines.extend(_floor_and_ceiling(decision, terms))
    lines.append(f"Policy {policy.name} version {policy.version}, {(digest or policy.digest)[:12]}.")
    return " ".join(lines)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _effect(at: Situation) -> str:
    return "; nothing of the attempt can have taken effect" if at.failure.sent == "no" else ""


def _arithmetic(policy: Policy, at: Situation, terms: Terms) -> str:
    where = f" with u = {terms.u:.6f} drawn from its seed" if policy.jitter.spread != "none" else ""
    return f"The policy's own delay is {formula(policy, at.attempt)} = {terms.jittered_s:.6g} s{where}."


def _tuning(terms: Tuned) -> str:
    text = (
        f"Tuned by {terms.stretch:g} for carbon and price and {1 - terms.risk:g} for the deadline: "
        f"{terms.delay_s:.6g} s"
    )
    return text + (f" (not known: {', '.join(terms.missing)})." if terms.missing else ".")


def _floor_and_ceiling(decision: Decision, terms: Terms) -> list[str]:
    asked = decision.situation.failure.retry_after
    lines = []
    if asked is not None:
        lines.append(f"The other side asked for {seconds(asked)}, which is never undercut.")
    if terms.room_s is not None:
        lines.append(
            f"The deadline leaves {seconds(max(0.0, terms.room_s))} before the next attempt must start."
        )
    return lines
