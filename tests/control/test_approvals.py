"""Approvals: no attempt begins before somebody has approved it, and only what they have seen is approved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NotPermitted, RetriesExhausted, StaleDecision, TransientError, UsageError
from oncemore.log.entry_codec import decode_body, decode_header
from oncemore.workers.worker import Worker

if TYPE_CHECKING:
    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

calls: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


def delete(table: str, rows: int = 0) -> str:
    calls.append((table, rows))
    return f"deleted {table}"


def step(**told: Any) -> Any:
    return oncemore.step(**{"effect": "once", "name": "delete", "requires_approval": True, **told})(delete)


def bodies(engine: Engine, run: Any, mark: str) -> list[dict[str, Any]]:
    entries = engine.store.read_entries(f"run/{run.key}")
    return [
        decode_body(entry.body or b"{}") for entry in entries if mark in decode_header(entry.header).marks
    ]


@pytest.mark.req("AUTO-9")
def test_what_nobody_has_approved_waits_and_is_done_once_after_the_grant(engine: Engine) -> None:
    work = step()
    with pytest.raises(NotPermitted, match="waits for an approval: it is not approved yet") as told:
        work("orders")
    assert told.value.reason == "approval_needed"
    run: Any = told.value.run
    assert f"oncemore control approve {run.run_id}" in str(told.value)
    assert (run.status, run.held_for, run.state.attempt) == ("PENDING", "approval_needed", 0)
    assert calls == []
    with pytest.raises(NotPermitted):
        work("orders")
    assert work.last_run("orders").version == run.version, "it is held once"
    (waiting,) = engine.approvals.list_waiting()
    assert (waiting.run_id, waiting.step, waiting.arguments) == (
        run.run_id,
        "delete",
        {"table": "orders", "rows": 0},
    )
    given = engine.approvals.approve(run.run_id, reason="seen", by="reviewer", expires=3600)
    assert (given.state, given.by, given.upto) == ("GRANTED", "reviewer", 3)
    assert engine.approvals.list_waiting() == ()
    assert work("orders") == "deleted orders"
    assert work("orders") == "deleted orders"
    assert calls == [("orders", 0)]
    (intent,) = bodies(engine, run, "INTENT")
    assert (intent["approval"]["by"], intent["approval"]["reason"]) == ("reviewer", "seen")
    (decision,) = bodies(engine, run, "DECISION")
    assert decision["decision"] == {"action": "approve", "reason": "seen", "actor": "reviewer"}
    assert engine.verify().entries


def test_a_worker_goes_on_with_what_was_approved(engine: Engine) -> None:
    work = step()
    run = work.submit("orders")
    worker = Worker(engine, [work], poll_s=0.05)
    assert worker.run_until_idle().held == 1
    assert calls == []
    engine.approvals.approve(run, reason="seen")
    assert worker.run_until_idle().done == 1
    assert calls == [("orders", 0)]


def test_a_call_can_be_approved_before_it_is_made(engine: Engine) -> None:
    work = step()
    assert work.approve("orders", reason="planned", by="reviewer").state == "GRANTED"
    assert work("orders") == "deleted orders"
    with pytest.raises(NotPermitted, match="it is not approved yet"):
        work("customers")


def test_a_call_that_waits_can_be_approved_by_its_arguments(engine: Engine) -> None:
    work = step()
    work.run("orders")
    work.approve("orders", reason="seen", expires=60)
    assert engine.approvals.list_waiting() == ()
    assert work("orders") == "deleted orders"


def test_other_arguments_are_not_approved(engine: Engine) -> None:
    work = step(key="table")
    work.approve("orders", 10, reason="ten rows")
    with pytest.raises(NotPermitted, match="with another arguments"):
        work("orders", 1000)
    assert calls == []


def test_another_policy_is_not_approved(engine: Engine) -> None:
    work = step()
    work.approve("orders", reason="seen")
    changed = step(policy=oncemore.Policy("wild", max_attempts=9))
    with pytest.raises(NotPermitted, match="with another policy"):
        changed("orders")
    assert calls == []
    run = changed.last_run("orders")
    assert run.held_for == "approval_needed", "it is held for what is wanted now"
    engine.approvals.approve(run, reason="nine attempts are fine")
    assert changed("orders") == "deleted orders"


def test_a_run_that_waits_for_its_approval_keeps_its_policy(engine: Engine) -> None:
    run = step().run("orders")
    engine.approvals.approve(run, reason="seen")
    assert step(policy=oncemore.Policy("wild", max_attempts=9))("orders") == "deleted orders"
    assert step().last_run("orders").state.max_attempts == 3


def test_another_version_is_not_approved(engine: Engine) -> None:
    step().approve("orders", reason="seen")
    with pytest.raises(NotPermitted, match="another version or config"):
        step(version="2")("orders")


def test_another_effect_is_not_approved(engine: Engine) -> None:
    step().approve("orders", reason="seen")
    with pytest.raises(NotPermitted, match="another effect"):
        step(effect="idempotent")("orders")


def test_what_has_expired_is_not_approved(engine: Engine, clock: FakeClock) -> None:
    work = step()
    run = work.run("orders")
    engine.approvals.approve(run, reason="seen", by="reviewer", expires=60)
    clock.sleep(61)
    with pytest.raises(NotPermitted, match="the approval of reviewer has expired"):
        work("orders")
    (given,) = engine.approvals.list()
    assert given.state == "EXPIRED"
    assert calls == []
    engine.approvals.approve(run, reason="again", expires=60)
    assert work("orders") == "deleted orders"


def test_what_was_revoked_is_not_approved(engine: Engine) -> None:
    work = step()
    run = work.run("orders")
    engine.approvals.approve(run, reason="seen", by="reviewer")
    assert engine.approvals.revoke(run.key[:12], reason="wrong table", by="reviewer").state == "REVOKED"
    with pytest.raises(NotPermitted, match="was revoked"):
        work("orders")
    with pytest.raises(StaleDecision, match="no approval of"):
        engine.approvals.revoke(run, reason="once more")


def test_every_attempt_is_asked_for_and_an_approval_covers_so_many(engine: Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="flaky", requires_approval=True)
    def flaky() -> None:
        calls.append("try")
        if len(calls) == 2:
            engine.approvals.revoke(key, reason="enough")
        raise TransientError("not yet")

    key = flaky.key()
    flaky.approve(reason="go")
    with pytest.raises(NotPermitted, match="was revoked"):
        flaky()
    assert len(calls) == 2
    flaky.approve(reason="go on")
    with pytest.raises(RetriesExhausted):
        flaky()
    assert len(calls) == 3
    with pytest.raises(NotPermitted, match="up to attempt 3, and this is attempt 4"):
        flaky.rerun(reason="once more")


def test_an_approval_revoked_between_the_look_and_the_intent_refuses_the_intent(engine: Engine) -> None:
    from tests.control.test_switch import Between

    work = step()
    work.approve("orders", reason="go")
    store = engine.store

    def revoke() -> None:
        engine.opened_store = store
        engine.approvals.revoke(work.key("orders"), reason="stop")

    engine.opened_store = Between(store, revoke)  # type: ignore[assignment]
    with pytest.raises(NotPermitted, match="was revoked"):
        work("orders")
    assert calls == []


def test_a_run_that_was_held_needs_its_approval_whatever_the_step_says_now(engine: Engine) -> None:
    run = step().run("orders")
    lax = step(requires_approval=False)
    with pytest.raises(NotPermitted):
        lax("orders")
    engine.approvals.approve(run, reason="seen")
    assert lax("orders") == "deleted orders"


def test_it_is_in_quarantine_where_it_can_be_rejected_and_not_released(engine: Engine) -> None:
    work = step()
    run = work.run("orders")
    (item,) = engine.quarantine.list(reason="approval_needed")
    assert item.id == run.run_id
    case = engine.quarantine.show(item)
    assert case.choices == ("approve", "reject")
    for wrong in (engine.quarantine.release, engine.quarantine.rerun):
        with pytest.raises(UsageError, match="oncemore control approve"):
            wrong(item, by="operator", reason="x")
    engine.quarantine.reject(item, by="operator", reason="never")
    assert work.last_run("orders").status == "HARD_FAIL"
    with pytest.raises(StaleDecision, match="does not wait for an approval"):
        engine.approvals.approve(run, reason="too late")


def test_whoever_is_to_be_told_of_quarantine_is_told(tmp_path: Any) -> None:
    told: list[Any] = []
    with oncemore.open(tmp_path / "log.db", notify={"desk": told.append}) as engine:
        step().run("orders")
        engine.notifier.make_relay(engine).run_once()  # type: ignore[union-attr]
    assert len(told) == 1


def test_two_who_approve_at_once_do_so_once(engine: Engine) -> None:
    run = step().run("orders")
    engine.approvals.approve(run, reason="first", by="one")
    with pytest.raises(StaleDecision, match="does not wait"):
        engine.approvals.approve(run, reason="second", by="another")


def test_an_approval_of_what_has_just_changed_is_refused(engine: Engine) -> None:
    from oncemore.control import approvals
    from oncemore.control.model import ApprovalRequest
    from oncemore.log.entry_codec import load_head

    run = step().run("orders")
    seen = load_head(engine.store, f"run/{run.key}")
    engine.approvals.approve(run, reason="first")
    wanted = ApprovalRequest(**(seen.body or {})["requested"])
    with pytest.raises(StaleDecision, match="in this very moment"):
        approvals.grant_approval(engine, wanted, seen, 1, "second", None, None)


@pytest.mark.parametrize("expires", [0, -1, float("nan"), 1e12, True])
def test_an_approval_holds_for_some_time(engine: Engine, expires: Any) -> None:
    run = step().run("orders")
    with pytest.raises(UsageError, match="expires"):
        engine.approvals.approve(run, reason="x", expires=expires)


def test_what_is_meant_is_found_by_the_beginning_of_an_id(engine: Engine) -> None:
    work = step()
    first, _ = work.run("orders"), work.run("customers")
    with pytest.raises(UsageError, match="2 runs that wait begin with"):
        engine.approvals.approve(first.run_id[:5], reason="x")
    with pytest.raises(UsageError, match="no run with the key"):
        engine.approvals.approve("zzzz", reason="x")
    assert engine.approvals.approve(first.key[:10], reason="x").key == first.key
    with pytest.raises(StaleDecision, match="does not wait"):
        engine.approvals.approve(first.run_id, reason="x")
    assert "Approvals of" in repr(engine.approvals)


def test_a_step_is_asked_for_by_one_word(engine: Engine) -> None:
    with pytest.raises(UsageError, match="requires_approval is 'perhaps'; it takes True or False"):
        step(requires_approval="perhaps")


def test_what_was_held_after_a_failed_attempt_goes_on_where_it_was(engine: Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="flaky", requires_approval=True)
    def flaky() -> str:
        calls.append("try")
        if len(calls) == 1:
            engine.approvals.revoke(key, reason="look again")
            raise TransientError("not yet")
        return "done"

    key = flaky.key()
    flaky.approve(reason="go")
    run = flaky.run()
    assert (run.status, run.held_for, run.state.attempt_count) == ("SOFT_FAIL", "approval_needed", 1)
    engine.approvals.approve(run, reason="go on")
    assert flaky() == "done"
