"""A replay reproduces a log; every kind of difference is reported with both values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import StoreError
from oncemore.log.encryption import BodyCipher
from oncemore.maintenance import replay
from oncemore.maintenance.replay import LogReplay, ReplayDifference, policy_from_proof, recompute_decision
from oncemore.policy.closing import is_closing
from oncemore.policy.policy import STANDARD, Policy
from tests.queries.forge import entity_of, forge_store
from tests.queries.sealing import codec
from tests.queries.work import SURE, run_all_steps

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.store import Store


def differences(store: Store, entity: str | None = None, **told: Any) -> list[ReplayDifference]:
    return [
        one
        for each in LogReplay(**told).replay_entries(store.read_entries(entity))
        for one in each.differences
    ]


@pytest.mark.req("PROOF-4", "REPLAY-3")
def test_every_recorded_decision_is_reproduced_to_the_byte(store: Store) -> None:
    told = list(LogReplay().replay_entries(store.read_entries()))
    assert len(told) == store.wait_for_change(0, 0.0)
    assert sum(one.decision is not None for one in told) == 12
    assert [one for each in told for one in each.differences] == []


def test_encrypted_decisions_are_replayed_with_the_key_and_marked_sealed_without() -> None:
    with oncemore.open("memory:", codec=codec) as engine:
        run_all_steps(engine)
        entries = list(engine.store.read_entries())
    closed, open_ = (
        list(LogReplay().replay_entries(entries)),
        list(LogReplay(cipher=BodyCipher(codec)).replay_entries(entries)),
    )
    assert any(one.sealed for one in closed)
    assert not any(one.decision for one in closed)
    assert not any(one.sealed for one in open_)
    assert sum(one.decision is not None for one in open_) == 12
    assert [one for each in open_ for one in each.differences] == []


@pytest.mark.unmeasured
def test_a_thousand_decisions_under_all_policies_are_reproduced(tmp_path: Path) -> None:
    # Every shape, every jitter, deadlines and tuning: each proof must hold all that its decision needs.
    tuned = oncemore.Policy(
        "tuned", max_attempts=6, tuning=policy_tuning(), jitter=oncemore.jitter.additive(0.5)
    )
    spreads = [
        *map(oncemore.Jitter, ("full", "equal", "decorrelated", "none")),
        oncemore.jitter.proportional(0.1),
        oncemore.jitter.additive(0.2),
    ]
    shapes = [
        oncemore.backoff.exponential(0.1),
        oncemore.backoff.linear(0.2),
        oncemore.backoff.fixed(0.1, 0.7, 0.3),
    ]
    policies = [
        oncemore.Policy(f"p{at}", max_attempts=5, schedule=shape, jitter=spread)
        for at, (shape, spread) in enumerate((shape, spread) for shape in shapes for spread in spreads)
    ]
    with oncemore.open("memory:") as engine, oncemore.testing.instant_waits():
        for policy in (*policies, tuned):

            @oncemore.step(effect="idempotent", name=policy.name, policy=policy, total_timeout=1000)
            def fail(n: int) -> None:
                raise ConnectionResetError(f"number {n}")

            for n in range(11):
                with pytest.raises(oncemore.RetriesExhausted):
                    fail(n)
        told = list(LogReplay().replay_entries(engine.store.read_entries()))
    assert sum(one.decision is not None for one in told) > 1000
    assert [one for each in told for one in each.differences] == []


def policy_tuning() -> Any:
    from oncemore.policy.tuning import Tuning

    return Tuning(carbon_low=100.0)


#: What was changed in a run of `flaky`, and what is said of it: name, recorded and computed.
FORGED = {
    "the delay": ("proof.delay_s", lambda h, b: proof(b, delay_s=82.0)),
    "the sentence": ("proof.sentence", lambda h, b: proof(b, sentence="because.")),
    "the formula": ("proof.formula", lambda h, b: proof(b, formula="42")),
    "a number's form": ("proof.terms.planned_s", lambda h, b: terms(b, int)),
    "the seed": ("proof.inputs.seed", lambda h, b: inputs(b, seed="0" * 64)),
    "when it began": ("proof.inputs.started", lambda h, b: inputs(b, started=1.0)),
    "a deadline": ("proof.inputs.deadline", lambda h, b: inputs(b, deadline=9e9)),
    "the bound": ("proof.thresholds.max_attempts", lambda h, b: bounds(b, max_attempts=7)),
    "an unknown bound": ("proof", lambda h, b: bounds(b, most=7)),
    "the wait": ("not_before", lambda h, b: sets(h, "SOFT_FAIL", not_before=9e9)),
    "the reason": ("reason", lambda h, b: sets(h, "SOFT_FAIL", reason="held")),
    "an early start": ("began", lambda h, b: early(h)),
    "an attempt's number": ("attempt", lambda h, b: sets(h, "INTENT", attempt=7)),
    "a fence": ("fence", lambda h, b: sets(h, "INTENT", fence=9)),
    "the count": ("tried", lambda h, b: sets(h, "INTENT", attempt_count=9)),
}


def proof(body: dict[str, Any], **changes: Any) -> None:
    if "proof" in body:
        body["proof"].update(changes)


def terms(body: dict[str, Any], form: Any) -> None:
    if "proof" in body:
        body["proof"]["terms"]["planned_s"] = form(body["proof"]["terms"]["planned_s"])


def inputs(body: dict[str, Any], **changes: Any) -> None:
    if "proof" in body:
        body["proof"]["inputs"].update(changes)


def bounds(body: dict[str, Any], **changes: Any) -> None:
    if "proof" in body:
        body["proof"]["thresholds"].update(changes)


def sets(header: dict[str, Any], mark: str, **changes: Any) -> None:
    if mark in header["marks"]:
        header["sets"].update(changes)


def early(header: dict[str, Any]) -> None:
    if header["marks"] == ["RUNNING", "INTENT"]:
        header["at"] -= 100.0


@pytest.mark.req("REPLAY-6")
@pytest.mark.parametrize("what", FORGED)
def test_a_changed_value_is_reported_with_both_values(store: Store, what: str) -> None:
    name, change = FORGED[what]
    entity = entity_of(store, "flaky")
    found = differences(forge_store(store, entity, change))
    assert name in {one.what for one in found}
    first = next(one for one in found if one.what == name)
    assert first.entity == entity
    assert first.run_id
    assert first.recorded != first.computed or repr(first.recorded) != repr(first.computed)


def test_a_run_that_differs_from_its_decision_is_reported(store: Store) -> None:
    entity = entity_of(store, "wrong")
    found = differences(forge_store(store, entity, lambda h, b: sets(h, "HARD_FAIL", state="SOFT_FAIL")))
    assert [(one.what, one.recorded, one.computed) for one in found][:1] == [
        ("state", "SOFT_FAIL", "HARD_FAIL")
    ]


@pytest.mark.req("REPLAY-6")
def test_a_changed_policy_is_drift_with_both_digests_and_both_decisions(
    store: Store,
) -> None:
    entity = entity_of(store, "hopeless")
    assert differences(store, entity, current=lambda recorded: None) == []
    assert differences(store, entity, current=lambda recorded: STANDARD) == []
    stricter = STANDARD.replace(max_attempts=2, max_delay_s=0.01, schedule=oncemore.backoff.fixed(0.01))
    found = differences(store, entity, current=lambda recorded: stricter)
    assert found[0].what == "policy.digest"
    assert (found[0].recorded, found[0].computed) == (STANDARD.digest, stricter.digest)
    assert {"now.delay_s", "now.action", "now.formula"} <= {one.what for one in found}


def test_an_altered_entry_is_refused_with_its_number(store: Store) -> None:
    entity = entity_of(store, "flaky")
    entries = list(store.read_entries(entity))
    entries[1] = entries[1]._replace(body=entries[1].body.replace(b"peer", b"pear"))
    with pytest.raises(StoreError, match=re.escape(f"entry {entries[1].seq} ({entity}) was altered")):
        list(LogReplay().replay_entries(entries))


def test_a_proof_reproduces_its_decision_and_the_policy_cache_is_bounded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs = [one.decision for one in LogReplay().replay_entries(store.read_entries()) if one.decision]
    proofs = [one for one in proofs if not is_closing(one)]
    assert policy_from_proof(proofs[0]) is policy_from_proof(proofs[0])
    monkeypatch.setattr(replay, "_MAX_POLICIES", 1)
    monkeypatch.setattr(replay, "_policy_cache", {})
    again = [recompute_decision(one) for one in proofs]
    assert [(d.action, d.delay_s, d.reason) for d in again] == [
        (one["action"], one["delay_s"], one["reason"]) for one in proofs
    ]
    assert len(replay._policy_cache) == 1
    signals = {**proofs[0], "inputs": {**proofs[0]["inputs"], "signals": {"grid_intensity": 600.0}}}
    assert recompute_decision(signals).situation.signals is not None
    other = Policy("other", max_attempts=1)
    assert recompute_decision(proofs[0], other).reason == "max_attempts_exceeded"


def test_events_that_could_not_be_delivered_are_replayed_too() -> None:
    from oncemore.outbox import OutboxRelay

    def refuse(message: object) -> None:
        raise ConnectionResetError("nobody there")

    @oncemore.step(effect="outbox", name="gives")
    def gives() -> None:
        oncemore.current().emit("topic", 1)

    with oncemore.open("memory:") as engine, oncemore.testing.instant_waits():
        gives()
        OutboxRelay(engine, {"*": refuse}, policy=SURE).run_once()
        told = list(LogReplay().replay_entries(engine.store.read_entries()))
        assert [one.entity[:6] for one in told if one.decision] == ["event/"]
        assert [one for each in told for one in each.differences] == []


#: What was changed in a run that is held because its outcome is not known, and what replay says of it.
FORGED_CLOSING = {
    "the sentence": ("proof.sentence", lambda h, b: proof(b, sentence="because.")),
    "the answer": ("proof.action", lambda h, b: inputs(b, answer="not_applied")),
    "the bound": ("proof.thresholds.max_attempts", lambda h, b: bounds(b, max_attempts=7)),
    "the hold": ("held_for", lambda h, b: sets(h, "SOFT_FAIL", held_for="poison")),
    "a missing input": ("proof", lambda h, b: b.get("proof", {}).get("inputs", {}).pop("answer", None)),
}


@pytest.mark.parametrize("what", FORGED_CLOSING)
def test_a_changed_proof_of_a_closing_is_a_difference(store: Store, what: str) -> None:
    name, change = FORGED_CLOSING[what]
    found = differences(forge_store(store, entity_of(store, "pay"), change))
    assert name in {one.what for one in found}
