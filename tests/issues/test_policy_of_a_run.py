"""A run keeps the policy that it began with: numbers, version and digest, without the policy's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.store import HeadQuery
from oncemore.policy.files import loader
from oncemore.policy.policy import STANDARD, Policy, policy_name, restore_policy
from oncemore.queries.explain import explain_run
from oncemore.queries.policies import find_policy
from oncemore.queries.replay import replay_all, replay_run
from oncemore.queries.run_timeline import load_timeline
from oncemore.queries.runs import find_run
from oncemore.steps import recorded_policies
from tests.steps.colours import SOON, Turns, do, each_colour, in_memory, made

if TYPE_CHECKING:
    from oncemore.testing import FakeClock

OLD = """
profile: mine
version: "1"
retry_policy: {max_attempts: 4, delays_s: [100, 200, 300], timeout_s: 50}
"""
NEW = """
profile: mine
version: "2"
retry_policy: {max_attempts: 6, delays_s: [1, 2, 3, 4, 5], timeout_s: 7}
"""


def write_policy(text: str) -> Path:
    path = Path("mine.yaml").absolute()
    path.write_text(text)
    loader.forget()
    return path


def proof_of(run: Any) -> dict[str, Any]:
    return run.proofs[-1]  # type: ignore[no-any-return]


def go_on(step: Any, engine: oncemore.Engine, clock: FakeClock, colour: str = "plain") -> Any:
    """Let the time of a run that waits come, and go on with it."""
    clock.advance(step.last_run().state.not_before - engine.now() + 0.001)
    return do(colour, step.run)


@pytest.mark.req("POL-12")
@each_colour
def test_a_run_goes_on_with_the_policy_it_began_with(
    colour: str,
    engine: oncemore.Engine,
    clock: FakeClock,
) -> None:
    step = made(colour, Turns(SOON), policy=write_policy(OLD))
    digest = find_policy("mine.yaml").policy.digest
    with pytest.raises(oncemore.Deferred):  # the first delay is longer than a call waits
        do(colour, step)
    new = made(colour, Turns(SOON), policy=write_policy(NEW))
    delays = []
    for _ in range(3):
        run = go_on(new, engine, clock, colour)
        proof = proof_of(run)
        delays.append(proof["delay_s"])
        assert proof["policy"] == {"name": "mine", "version": "1", "digest": digest}
        assert proof["thresholds"]["max_attempts"] == 4
    assert delays == [200.0, 300.0, 0.0]
    assert (run.status, run.reason, run.state.attempt_count) == ("HARD_FAIL", "max_attempts_exceeded", 4)
    told = explain_run(load_timeline(engine.store, find_run(engine.store, run.run_id))).told
    kept = "The run keeps the policy it began with, mine@1:"
    assert [any(kept in text for text in one.sentences) for one in told] == [False, True, True, True]
    Path("mine.yaml").unlink()
    loader.forget()
    assert replay_run(engine.store, f"run/{run.key}").verdict == "agrees"
    assert replay_all(engine.store).all_agree


def test_the_next_run_has_the_new_policy(engine: oncemore.Engine, clock: FakeClock) -> None:
    old = made("plain", Turns(ValueError("no")), policy=write_policy(OLD))
    assert old.run().status == "HARD_FAIL"
    new = made("plain", Turns(SOON), policy=write_policy(NEW))
    with pytest.raises(oncemore.RetriesExhausted):
        new.rerun(reason="a new policy")
    assert clock.delays == pytest.approx([1, 2, 3, 4, 5], abs=0.5)
    proof = proof_of(new.last_run())
    assert (proof["policy"]["version"], proof["policy"]["digest"]) == (
        "2",
        find_policy("mine.yaml").policy.digest,
    )


@pytest.mark.usefixtures("clock")
def test_work_that_was_handed_in_keeps_its_policy(engine: oncemore.Engine) -> None:
    made("plain", Turns(SOON), policy=write_policy(OLD)).submit()
    new = made("plain", Turns(SOON), policy=write_policy(NEW))
    run = new.run()
    assert (run.state.max_attempts, proof_of(run)["delay_s"]) == (4, 100.0)
    assert run.state.not_before > engine.now() + 90


@in_memory
def test_attempts_that_a_person_grants_are_of_the_same_policy(
    engine: oncemore.Engine,
    clock: FakeClock,
) -> None:
    step = made("plain", Turns(oncemore.NeedsReview("look"), SOON), policy=write_policy(OLD))
    run = step.run()
    engine.quarantine.rerun(run.run_id, by="an operator", reason="more", extra_attempts=5)
    again = step.run()
    assert (again.state.max_attempts, proof_of(again)["thresholds"]["max_attempts"]) == (9, 9)
    assert proof_of(again)["policy"]["digest"] == find_policy("mine.yaml").policy.digest
    assert replay_run(engine.store, f"run/{run.key}", current=True).verdict == "agrees"


@in_memory
def test_an_approval_is_for_the_policy_that_the_run_keeps(
    engine: oncemore.Engine,
    clock: FakeClock,
) -> None:
    step = made("plain", Turns(SOON, "done"), policy=write_policy(OLD), requires_approval=True)
    step.approve(by="an operator", reason="seen")
    with pytest.raises(oncemore.Deferred):
        step()
    new = made("plain", Turns("done"), policy=write_policy(NEW), requires_approval=True)
    new.approve(by="an operator", reason="seen again")
    assert go_on(new, engine, clock).value == "done"


@in_memory
@pytest.mark.usefixtures("clock")
def test_a_log_of_an_earlier_version_goes_on_with_the_present_policy(
    engine: oncemore.Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(recorded_policies.RecordedPolicies, "record_policy", lambda *told: None)
        made("plain", Turns(SOON), policy=write_policy(OLD)).submit()
    new = made("plain", Turns(SOON, "done"), policy=write_policy(NEW))
    assert new() == "done"
    assert "the log does not have policy mine@1:" in caplog.text
    assert (new.last_run().proofs[0]["policy"]["version"], new.last_run().state.max_attempts) == ("2", 4)


def test_a_policy_is_recorded_once_per_store_whoever_is_first(tmp_path: Path) -> None:
    one, other = (oncemore.open(tmp_path / "log.db") for _ in range(2))
    name = "mine@1:0123456789ab"
    with one, other:
        assert other.policies.find_policy(other, name) is None
        one.store.load_head("policy/x")
        one.policies.record_policy(one, name, STANDARD)
        other.policies.record_policy(other, name, STANDARD)
        (head,) = one.store.list_heads(HeadQuery("policy"))
        assert (head.entity, head.version) == ("policy/0123456789ab", 1)
        one.policies.record_policy(one, policy_name(STANDARD), STANDARD)
        fresh = oncemore.open(tmp_path / "log.db")
        assert fresh.policies.find_policy(fresh, policy_name(STANDARD)) == STANDARD
        with fresh, pytest.raises(oncemore.StoreError, match="its digest does not match its name"):
            fresh.policies.find_policy(fresh, name)


def test_an_engine_remembers_a_bounded_number_of_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_policies, "MOST_KNOWN", 2)
    with oncemore.open("memory:") as engine:
        for number in range(5):
            made("plain", Turns("done"), name=f"step {number}", policy=Policy(f"p{number}"))()
        assert sum(1 for _ in engine.store.list_heads(HeadQuery("policy"))) == 5


def test_a_recorded_policy_is_restored_as_it_was() -> None:
    for name in ("kfm-loop", "kfm-rules", "nova-cat", "lit", "exoarmur/NATS_CONNECT", "standard"):
        policy = oncemore.policy.files.policy(name)
        assert restore_policy(policy.to_dict()) == policy  # type: ignore[arg-type]
        assert restore_policy(policy.to_dict()).digest == policy.digest  # type: ignore[arg-type]
    with pytest.raises(oncemore.PolicyError, match="has patience_s, which this oncemore does not know"):
        restore_policy({**STANDARD.to_dict(), "patience_s": 1.0})
