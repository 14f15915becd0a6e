"""A proof is enough to compute the delay again; its explanation is readable for an operator."""

import hashlib
import json
import math

import pytest
from hypothesis import given

from oncemore.policy.backoff import FULL_JITTER, Jitter, Schedule
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.explain import format_seconds
from oncemore.policy.model import KINDS, Failure
from oncemore.policy.policy import Policy
from oncemore.policy.proof import PROOF_FORMAT
from oncemore.policy.tuning import Signals, Tuning
from tests.policy.test_decide import PLAIN, failed, policies, situations


def compute_delay(proof: dict) -> float:  # type: ignore[type-arg]
    """Compute the delay from the proof alone, independently of the package."""
    bounds, inputs, n = proof["thresholds"], proof["inputs"], proof["attempt"]
    schedule, jitter, cap = bounds["schedule"], bounds["jitter"], bounds["max_delay_s"]

    def u(k: int) -> float:
        first = hashlib.sha256(f"{inputs['seed']}:{k}".encode()).digest()[:8]
        return (int.from_bytes(first, "big") >> 11) / 2**53

    def plan(k: int) -> float:
        if schedule["shape"] == "fixed":
            return float(schedule["delays"][min(k, len(schedule["delays"])) - 1])
        if schedule["shape"] == "linear":
            return float(schedule["base"] * k)
        return float(
            schedule["base"] * schedule["factor"] ** (k if schedule["exponent"] == "attempt" else k - 1)
        )

    held, amount = min(cap, plan(n)), jitter["amount"]
    delay = {
        "none": lambda: held,
        "full": lambda: held * u(n),
        "equal": lambda: held / 2 + u(n) * held / 2,
        "additive": lambda: min(cap, plan(n) + amount * u(n)),
        "proportional": lambda: min(cap, held * (1 + amount * (2 * u(n) - 1))),
        "decorrelated": lambda: chain(n),
    }

    def chain(k: int) -> float:
        before = plan(1) if k == 1 else chain(k - 1)
        return min(cap, plan(1) + u(k) * (3 * before - plan(1)))

    b = delay[jitter["spread"]]()
    ends = [end for end in (inputs["deadline"],) if end is not None]
    if bounds["total_timeout_s"] is not None and inputs["started"] is not None:
        ends.append(inputs["started"] + bounds["total_timeout_s"])
    left = min(ends) - inputs["now"] if ends else None
    expected = inputs["expected_s"] or 0.0
    if bounds["tuning"] is not None:
        b = tuned(b, bounds["tuning"], inputs["signals"] or {}, cap, expected, left)
    b = max(b, proof["failure"]["retry_after"] or 0.0)
    return b if left is None else min(b, left - expected)


def tuned(b: float, knobs: dict, signals: dict, cap: float, expected: float, left: float | None) -> float:  # type: ignore[type-arg]
    intensity, price = signals.get("grid_intensity"), signals.get("energy_price")
    c = p = risk = 0.0
    if intensity is not None:
        c = min(1, max(0, (intensity - knobs["carbon_low"]) / (knobs["carbon_high"] - knobs["carbon_low"])))
    if price is not None and price >= knobs["price_peak"]:
        p = 1.0
    if left is not None and knobs["deadline_bias"]:
        buffer = (
            left
            - expected
            - (signals.get("queue_depth") or 0) * expected / max(1, signals.get("parallelism") or 1)
        )
        risk = min(1, max(0, (knobs["min_buffer_s"] - buffer) / knobs["min_buffer_s"]))
    budget = signals.get("error_budget")
    spent = budget is not None and budget <= 0
    stretch = 1.0 if spent else min(1 + c + 0.5 * p, knobs["max_stretch"])
    return min(max(b * stretch * (1 - risk), min(1.0, b)), cap)


@pytest.mark.unmeasured
@pytest.mark.req("PROOF-2")
@given(policies, situations)
def test_the_delay_can_be_computed_from_the_proof_alone(policy: Policy, at: Situation) -> None:
    decision = decide_retry(policy, at)
    proof = json.loads(decision.proof_bytes())
    if decision.action == "retry":
        assert math.isclose(compute_delay(proof), decision.delay_s, rel_tol=1e-9, abs_tol=1e-9)
    assert proof["format"] == PROOF_FORMAT
    assert proof["policy"] == {"name": policy.name, "version": policy.version, "digest": policy.digest}
    assert {
        "inputs",
        "thresholds",
        "formula",
        "terms",
        "clamps",
        "action",
        "reason",
        "delay_s",
    } <= proof.keys()


@pytest.mark.req("BACKOFF-7")
def test_seed_draw_and_jitter_are_in_the_proof_and_can_be_computed_again() -> None:
    policy = Policy(max_attempts=6, schedule=Schedule("exponential", 10.0, 2.0, "attempt"),
                    jitter=Jitter("additive", 10.0), max_delay_s=900.0)  # fmt: skip
    seed = hashlib.sha256(b"0193a000-0000-7000-8000-000000000001").hexdigest()
    proof = json.loads(decide_retry(policy, failed(3, seed=seed)).proof_bytes())
    assert proof["inputs"]["seed"] == seed
    assert round(proof["terms"]["u"], 6) == 0.214231
    assert round(proof["terms"]["jittered_s"], 6) == round(80 + 10 * proof["terms"]["u"], 6) == 82.142307


def test_the_proof_names_the_bounds_that_changed_the_delay() -> None:
    capped = PLAIN.replace(max_delay_s=4.0)
    assert decide_retry(capped, failed(2)).proof()["clamps"] == ["max_delay_s"]
    assert decide_retry(PLAIN, failed(1, 7.0)).proof()["clamps"] == ["retry_after"]
    assert decide_retry(PLAIN, failed(3, deadline=1030.0, expected_s=20.0)).proof()["clamps"] == ["deadline"]
    stretched = PLAIN.replace(tuning=Tuning(max_stretch=1.5))
    signals = Signals(900.0, 0.9)
    assert decide_retry(stretched, failed(1, signals=signals)).proof()["clamps"] == ["max_stretch"]
    assert decide_retry(PLAIN, failed(4)).proof()["clamps"] == []


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        (failed(1), ["Attempt 1 failed with HTTP_503 (transient)", "attempt 2 of 4 follows in 5 s", "= 5 s"]),
        (failed(1, 7.0), ["follows in 7 s", "asked for a wait of 7 s; the delay is never shorter"]),
        (failed(4), ["given up: all 4 attempts are used"]),
        (failed(1, 300.0), ["deferred", "asked for a wait of 5 min 0 s", "may last 30 s at most"]),
        (failed(1, 20.0, deadline=1010.0), ["asked for a wait of 20 s, and only 10 s are left"]),
        (failed(1, deadline=1003.0), ["would start in 5 s, and only 3 s are left"]),
        (failed(1, deadline=900.0), ["the time limit of the whole call has passed"]),
        (failed(1, budget_tokens=0.25), ["the retry budget holds 0.25 tokens and a retry costs 1"]),
        (
            failed(1, hold_until=1060.0, hold_reason="breaker open"),
            ["deferred: breaker open for another 60 s"],
        ),
        (
            failed()._replace(verdict="TERMINAL"),
            ["the failure may be temporary, but this call does not retry it"],
        ),
        (
            failed()._replace(verdict="TERMINAL", failure=Failure("permanent", code="HTTP_404")),
            ["HTTP_404 (permanent); not tried again: this failure does not pass by itself"],
        ),
        (failed()._replace(verdict="QUARANTINE"), ["quarantined until a person decides"]),
        (failed()._replace(verdict="UNKNOWN"), ["it may have taken effect, and it must not happen twice"]),
        (failed(1, deadline=1100.0), ["The deadline leaves 100 s before the next attempt must start"]),
    ],
)
def test_every_decision_explains_itself(situation: Situation, words: list[str]) -> None:
    text = decide_retry(PLAIN, situation).explain()
    for part in words:
        assert part in text
    assert "Policy plain version 1" in text
    assert text.endswith(".")


#: One situation for every reason of a decision about a failure that may be repeated.
REPEATED = {
    "retry": failed(1),
    "max_attempts_exceeded": failed(4),
    "held": failed(1, hold_until=1060.0, hold_reason="circuit_open"),
    "retry_budget_empty": failed(1, budget_tokens=0.25),
    "retry_after_beyond_cap": failed(1, 300.0),
    "retry_after_beyond_deadline": failed(1, 20.0, deadline=1010.0),
    "wait_beyond_deadline": failed(1, deadline=1003.0),
    "deadline_passed": failed(1, deadline=900.0),
}
ENDED = {"TERMINAL": "not_retryable", "QUARANTINE": "quarantined", "UNKNOWN": "outcome_unknown"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reason", [*REPEATED, *ENDED.values()])
def test_no_sentence_contradicts_itself(kind: str, reason: str) -> None:
    verdicts = {reason: verdict for verdict, reason in ENDED.items()}
    at = REPEATED.get(reason) or failed(1)._replace(verdict=verdicts[reason])  # type: ignore[arg-type]
    decision = decide_retry(PLAIN, at._replace(failure=at.failure._replace(kind=kind)))  # type: ignore[arg-type]
    assert decision.reason == reason
    text = decision.explain()
    head, _, tail = text.partition(".")[0].partition("; ")
    claims = {
        "retried": "follows" in tail,
        "deferred": tail.startswith("deferred"),
        "given up": tail.startswith("given up"),
        "not tried again": tail.startswith("not tried again"),
    }
    assert [claim for claim, made in claims.items() if made] == [
        {"retry": "retried", "defer": "deferred"}.get(decision.action)
        or ("given up" if reason in REPEATED else "not tried again")
    ]
    # A failure that is repeated, or was until the limit, is not called one that does not pass.
    final = reason in ENDED.values()
    assert ("(permanent)" in head or "(conflict)" in head) == (final and kind in ("permanent", "conflict"))
    assert ("on= or the policy retries" in head) == (not final and kind in ("permanent", "conflict"))
    assert ("does not pass by itself" in tail) <= (kind in ("permanent", "conflict"))
    assert ("it may pass" in tail) <= (kind in ("transient", "throttled"))


def test_the_explanation_shows_the_draw_and_the_tuning() -> None:
    policy = PLAIN.replace(jitter=FULL_JITTER, tuning=Tuning())
    text = decide_retry(policy, failed(1, seed="x", signals=Signals(500.0, 0.1, 0.0))).explain()
    assert "u * min(30, 5) =" in text
    assert "drawn from its seed" in text
    assert "s x 2 x 1 (grid intensity 500 g/kWh on the scale from 250 to 500: +1; price 0.1 USD/kWh" in text
    assert "not known" not in text


def test_one_attempt_and_an_immediate_retry_have_plain_sentences() -> None:
    assert "the policy allows one attempt" in decide_retry(PLAIN.replace(max_attempts=1), failed()).explain()
    at_once = PLAIN.replace(schedule=Schedule("fixed", delays=(0.0,)))
    assert "attempt 2 of 4 follows at once" in decide_retry(at_once, failed()).explain()


def test_an_attempt_that_was_not_sent_is_described_so() -> None:
    failure = Failure("transient", "no", None, "CONNECTION_REFUSED", "builtins:ConnectionRefusedError")
    text = decide_retry(PLAIN, failed()._replace(failure=failure)).explain()
    assert "the attempt cannot have taken effect" in text
    bare = decide_retry(PLAIN, failed()._replace(failure=Failure("transient"))).explain()
    assert "failed with an error (transient)" in bare
    assert "Rule" not in bare


@pytest.mark.parametrize("spread", ["none", "full", "equal", "additive", "proportional", "decorrelated"])
@pytest.mark.parametrize("shape", ["exponential", "linear", "fixed"])
def test_every_schedule_and_jitter_has_its_formula(shape: str, spread: str) -> None:
    policy = Policy(
        schedule=Schedule(shape, 2.0, delays=(3.0,)), jitter=Jitter(spread, 0.5)  # type: ignore[arg-type]
    )  # fmt: skip
    proof = decide_retry(policy, failed(1, seed="s")).proof()
    assert "30" in str(proof["formula"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.4213, "0.421 s"),
        (5, "5 s"),
        (82.1423, "82.14 s"),
        (250, "4 min 10 s"),
        (599.9, "10 min 0 s"),
        (7500, "2 h 5 min"),
        (1e6, "277 h 46 min"),
    ],
)
def test_durations_are_readable(value: float, text: str) -> None:
    assert format_seconds(value) == text
