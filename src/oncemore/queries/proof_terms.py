"""The proof of a decision as a chain of terms: each with its value, and how it follows from those before it.

The chain answers "why did attempt 3 wait 82 s" without knowledge of the proof's format. It is read from the
recorded proof alone; a field that this version does not know is left out.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.policy.explain import format_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

#: The bounds that can change a delay, as sentences.
CLAMP_TEXTS = {
    "max_delay_s": "the planned delay was cut to the longest permitted delay",
    "max_stretch": "the tuning was cut to its largest factor",
    "retry_after": "raised to what the provider asked for",
    "deadline": "shortened, so that the next attempt can finish before the deadline",
}
ACTION_TEXTS = {
    "retry": "try again",
    "defer": "defer",
    "stop": "stop",
    "quarantine": "hold for a person",
    "escalate": "escalate",
}


class ProofTerm(Value):
    """One term of a chain: its name, its value as text, and how it was computed or where it comes from."""

    name: str
    value: str
    source: str = ""


def list_proof_terms(proof: Mapping[str, Any]) -> tuple[ProofTerm, ...]:
    """Return the chain of a recorded proof, from the failure to the decision."""
    terms = proof.get("terms") or {}
    return (
        *_failure_terms(proof),
        *(_delay_terms(proof, terms) if terms else ()),
        *_bound_terms(proof, terms),
        *_decision_terms(proof),
    )


def _failure_terms(proof: Mapping[str, Any]) -> Iterator[ProofTerm]:
    failure = proof.get("failure") or {}
    rule = f"classified by rule {failure['rule']}" if failure.get("rule") else ""
    yield ProofTerm("failure", f"{failure.get('code') or 'an error'} ({failure.get('kind', '')})", rule)
    effect = "it cannot have taken effect" if failure.get("sent") == "no" else "it may have taken effect"
    yield ProofTerm("verdict", str(proof.get("verdict", "")).replace("_", " ").lower(), effect)
    # An end that no policy has decided has no limit of attempts.
    limit = (proof.get("thresholds") or {}).get("max_attempts")
    if limit:
        yield ProofTerm("attempt", f"{proof.get('attempt', '')} of {limit}", "max_attempts of the policy")


def _delay_terms(proof: Mapping[str, Any], terms: Mapping[str, Any]) -> Iterator[ProofTerm]:
    """Yield the plan, the random draw and the tuning of a delay."""
    thresholds = proof.get("thresholds") or {}
    shape = (thresholds.get("schedule") or {}).get("shape", "")
    yield ProofTerm("planned delay", format_seconds(terms["planned_s"]), f"{shape} schedule of the policy")
    spread = (thresholds.get("jitter") or {}).get("spread", "none")
    # Without jitter nothing was drawn, although the proof has a number.
    if spread != "none":
        seed = str((proof.get("inputs") or {}).get("seed", ""))
        yield ProofTerm("u", f"{terms['u']:.6f}", f"drawn from the run's seed {seed[:12]}…, {spread} jitter")
    yield ProofTerm("own delay", format_seconds(terms["jittered_s"]), str(proof.get("formula", "")))
    tuned = terms.get("tuned")
    if tuned:
        yield from _tuning_terms(tuned)


def _tuning_terms(tuned: Mapping[str, Any]) -> Iterator[ProofTerm]:
    yield ProofTerm(
        "carbon and price",
        f"times {tuned['stretch']:g}",
        f"carbon {tuned['carbon']:g}, price {tuned['price']:g}",
    )
    yield ProofTerm("deadline risk", f"times {1 - tuned['risk']:g}", f"risk {tuned['risk']:g}")
    missing = ", ".join(tuned.get("missing") or ())
    yield ProofTerm(
        "tuned delay", format_seconds(tuned["delay_s"]), f"not known: {missing}" if missing else ""
    )


def _bound_terms(proof: Mapping[str, Any], terms: Mapping[str, Any]) -> Iterator[ProofTerm]:
    retry_after = (proof.get("failure") or {}).get("retry_after")
    if retry_after is not None:
        yield ProofTerm("Retry-After", format_seconds(retry_after), "the provider asked for it")
    if terms.get("room_s") is not None:
        room = format_seconds(max(0.0, terms["room_s"]))
        yield ProofTerm("room", room, "time before the next attempt must start")
    for clamp in proof.get("clamps") or ():
        yield ProofTerm("bound", str(clamp), CLAMP_TEXTS.get(str(clamp), ""))


def _decision_terms(proof: Mapping[str, Any]) -> Iterator[ProofTerm]:
    action = str(proof.get("action", ""))
    delay = f" in {format_seconds(proof['delay_s'])}" if proof.get("delay_s") else ""
    reason = str(proof.get("reason", "")).replace("_", " ")
    yield ProofTerm("decision", ACTION_TEXTS.get(action, action) + delay, "" if reason == action else reason)
    policy = proof.get("policy") or {}
    yield ProofTerm(
        "policy",
        f"{policy.get('name', '')} version {policy.get('version', '')}",
        str(policy.get("digest", ""))[:12],
    )
