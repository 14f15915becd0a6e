"""Every failure in the log has a proof that its schema accepts and that replay computes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from hypothesis import given

import oncemore
from oncemore.audit import proof_schema
from oncemore.maintenance.replay import LogReplay
from oncemore.policy.closing import HOLDS, RESUMES, STOPS, Closing, closing_of, closing_proof, decide_closing
from oncemore.policy.decide import Situation, decide_retry
from oncemore.testing import FakeClock
from tests.policy.test_decide import policies, situations
from tests.steps.colours import POLICY, SOON, Turns, abandoned, made

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.policy.policy import Policy

SCHEMA = jsonschema_rs.validator_for(proof_schema())
EVENTS = (*STOPS, *HOLDS, *RESUMES, "lease_expired", "interrupted", "outcome_unknown", "reconciled")


@pytest.mark.unmeasured
@given(policies, situations)
def test_every_proof_after_an_attempt_fits_the_schema(policy: Policy, at: Situation) -> None:
    SCHEMA.validate(decide_retry(policy, at).proof())


@pytest.mark.parametrize("event", EVENTS)
def test_every_proof_of_a_closing_fits_the_schema_and_gives_its_decision_back(event: str) -> None:
    for answer in ("", "unknown", "not_applied"):
        for attempt in (1, 3):
            for policy in ("mine@7:0123456789ab", ""):
                for crashes in ((0, 0), (0, 2), (1, 2)):
                    decision = decide_closing(Closing(event, attempt, 3, 5.0, answer, policy, *crashes))
                    proof: dict[str, Any] = closing_proof(decision)
                    SCHEMA.validate(proof)
                    assert decide_closing(closing_of(proof)) == decision


FAILURES = (oncemore.errors.StepFailed, oncemore.errors.CallRefused, oncemore.errors.OutcomeUncertain)


def call_step(step: Any) -> None:
    with pytest.raises(FAILURES):
        step()


def fail_in_every_way() -> None:
    """Let runs be retried, exhausted, refused, interrupted, cancelled, held and settled."""
    call_step(made("plain", Turns(*[SOON] * 9), name="exhausted"))
    call_step(made("plain", Turns(ValueError("no")), name="refused"))
    for n in range(2):
        with pytest.raises(KeyboardInterrupt):
            made(
                "plain",
                Turns(KeyboardInterrupt()),
                name=f"cut {n}",
                policy=POLICY.replace(max_attempts=n + 1),
            )()
    call_step(made("plain", Turns(lambda *_: object()), name="unavailable", effect="pure"))
    slow = POLICY.replace(schedule=oncemore.backoff.fixed(1200.0, 1500.0), max_delay_s=9000.0)
    late = made("plain", Turns(SOON), name="late", policy=slow)
    call_step(late)
    late.cancel(reason="not needed")
    for name in ("settled", "held"):
        once = made("plain", Turns(SOON), name=name, effect="once")
        call_step(once)
        if name == "settled":
            once.settle(oncemore.not_applied(), reason="seen in the ledger")
    approved = made("plain", Turns(1), name="approved", requires_approval=True)
    call_step(approved)


def check_failures(engine: oncemore.Engine) -> set[str]:
    """Check the proof of every failure in a log; return the reasons that were met."""
    reasons = set()
    for told in LogReplay(cipher=engine.cipher).replay_entries(engine.store.read_entries()):
        assert told.differences == ()
        if {"SOFT_FAIL", "HARD_FAIL"} & set(told.marks):
            assert told.decision is not None, (told.entity, told.marks, told.state.reason)
            SCHEMA.validate(told.decision)
            reasons.add(told.state.reason)
    return reasons


@pytest.mark.req("PROOF-1")
def test_every_failure_in_the_log_has_a_proof_that_fits_the_schema(tmp_path: Path) -> None:
    with FakeClock(), oncemore.open("memory:") as engine, engine:
        fail_in_every_way()
        reasons = check_failures(engine)
    abandoned(tmp_path / "again.db")
    with oncemore.open(tmp_path / "again.db") as engine, engine:
        assert made("plain", Turns(2))() == 2
        reasons |= check_failures(engine)
    abandoned(tmp_path / "poison.db", policy=POLICY.replace(max_crashes=1))
    with oncemore.open(tmp_path / "poison.db") as engine, engine:
        call_step(made("plain", Turns(2), policy=POLICY.replace(max_crashes=1)))
        (item,) = engine.quarantine.list()
        engine.quarantine.reject(item.id, reason="it kills workers", by="operator")
        reasons |= check_failures(engine)
    assert reasons >= {
        "retry", "max_attempts_exceeded", "not_retryable", "interrupted", "result_unavailable", "cancelled",
        "outcome_unknown", "decided", "lease_expired", "rejected", "max_crashes_exceeded",
    }  # fmt: skip
