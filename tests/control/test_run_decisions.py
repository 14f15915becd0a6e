"""Decisions about a recorded run without the code of its step: cancel, and begin failed work again."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.control.run_decisions import cancel_recorded_run, reopen_recorded_run
from oncemore.errors import InProgress, NotPermitted, Quarantined, StaleDecision, UsageError
from oncemore.log.record import RecordChange

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BY: dict[str, Any] = {"by": "operator", "reason": "a test"}
ONCE = oncemore.Policy("once", max_attempts=1)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


@pytest.fixture
def failing() -> Any:
    """A step that fails until its list of errors is empty."""

    @oncemore.step(effect="idempotent", name="ship", policy=ONCE)
    def ship(order: str) -> str:
        if ship_errors:
            raise ship_errors.pop()
        return f"shipped {order}"

    ship_errors: list[Exception] = [ValueError("no address")]
    return ship


def entity_of(run: Any) -> str:
    return f"run/{run.key}"


def test_failed_work_begins_again_with_its_recorded_arguments(log: oncemore.Engine, failing: Any) -> None:
    run = failing.run("A-17")
    assert run.status == "HARD_FAIL"
    again = reopen_recorded_run(log, entity_of(run), run.run_id, **BY)
    assert (again.state, again.run_number, again.attempt_count, again.max_attempts) == ("PENDING", 2, 0, 1)
    assert again.run_id != run.run_id
    oncemore.Worker(log, [failing]).run_until_idle()
    assert failing("A-17") == "shipped A-17"
    # One entry says who, when and why, and the log verifies.
    bodies = [body for body in read_bodies(log, entity_of(run)) if "decision" in body]
    assert [body["decision"] for body in bodies] == [
        {"action": "rerun", "reason": "a test", "actor": "operator"}
    ]
    assert log.verify().entries > 0


def read_bodies(log: oncemore.Engine, entity: str) -> list[dict[str, Any]]:
    from oncemore.log.entry_codec import read_body

    return [read_body(entry, log.cipher) for entry in log.store.read_entries(entity)]


def test_only_the_run_that_was_seen_begins_again_and_only_once(log: oncemore.Engine, failing: Any) -> None:
    run = failing.run("A-17")
    reopen_recorded_run(log, entity_of(run), run.run_id, **BY)
    with pytest.raises(StaleDecision, match="the last run of its key is"):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)
    with pytest.raises(StaleDecision, match="the last run of its key is"):
        cancel_recorded_run(log, entity_of(run), run.run_id, **BY)
    with pytest.raises(UsageError, match="there is no run/nothing"):
        cancel_recorded_run(log, "run/nothing", "x", **BY)
    with pytest.raises(UsageError, match="reason is missing"):
        reopen_recorded_run(log, entity_of(run), run.run_id, by="operator", reason=" ")


def test_complete_work_does_not_begin_again(log: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", name="square")
    def square(n: int) -> int:
        return n * n

    run = square.run(3)
    with pytest.raises(UsageError, match="only failed work is run again"):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)


def test_held_work_is_decided_in_quarantine(log: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="check")
    def check(n: int) -> None:
        raise oncemore.NeedsReview("DOUBT")

    run = check.run(1)
    with pytest.raises(Quarantined):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)
    with pytest.raises(Quarantined):
        cancel_recorded_run(log, entity_of(run), run.run_id, **BY)


def test_work_without_its_arguments_or_its_policy_does_not_begin_again(
    log: oncemore.Engine, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @oncemore.step(effect="idempotent", name="login", policy=ONCE)
    def login(name: str, password: oncemore.Secret[str]) -> None:
        raise ValueError("wrong")

    run = login.run("archivist", oncemore.Secret("x"))
    with pytest.raises(UsageError, match="its arguments are not in the log"):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)
    run = failing.run("A-17")
    monkeypatch.setattr(type(log.policies), "find_policy", lambda *args: None)
    with pytest.raises(UsageError, match=r"its policy once@.* is not in the log"):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)


def test_work_on_a_blocked_dataset_or_without_a_review_does_not_begin_again(log: oncemore.Engine) -> None:
    log.datasets.register("survey", care_label="Public", operations=["count"], reason="new", by="steward")

    @oncemore.step(effect="idempotent", name="count", policy=ONCE, dataset="survey", operation="count")
    def count(n: int) -> None:
        raise ValueError("broken")

    run = count.run(1)
    log.datasets.label("survey", sensitivity="Sensitive", reason="villages", by="steward")
    second = count.run(2)
    with pytest.raises(Quarantined, match="before a person has decided"):
        reopen_recorded_run(log, entity_of(second), second.run_id, **BY)
    log.datasets.block("survey", reason="a letter", by="steward")
    with pytest.raises(NotPermitted):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)


def test_a_decision_that_another_writer_overtakes_is_refused(
    log: oncemore.Engine, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failing.run("A-17")
    from oncemore.control import run_decisions

    real = run_decisions.find_open_review

    def overtake(record: Any) -> Any:
        monkeypatch.setattr(run_decisions, "find_open_review", real)
        touch_run(log, entity_of(run))
        return (yield from real(record))

    monkeypatch.setattr(run_decisions, "find_open_review", overtake)
    with pytest.raises(StaleDecision, match="changed in this very moment"):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)
    # And if the new run is already there when the script reads it.
    monkeypatch.setattr(run_decisions, "find_opening", begin_before(log, run, run_decisions.find_opening))
    with pytest.raises(StaleDecision, match="the last run of its key is"):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)


def begin_before(log: oncemore.Engine, run: Any, find_opening: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `find_opening` before which another operator begins the work again."""
    is_first = [True]

    def find(*args: Any) -> Any:
        if is_first.pop() if is_first else False:
            reopen_recorded_run(log, entity_of(run), run.run_id, by="another", reason="first")
        return find_opening(*args)

    return find


def touch_run(log: oncemore.Engine, entity: str) -> None:
    """Append an entry to a run that changes nothing in it."""
    from oncemore.log.entry_codec import build_write, load_head
    from oncemore.log.store import Batch

    head = load_head(log.store, entity, log.cipher)
    change = RecordChange(("DECISION",), head.record, head.record, {"remark": "x"})
    write = build_write(entity, head.version, head.hash, change, log.now(), log.cipher)
    log.store.append(Batch((write,))).wait()


def test_a_moved_log_accepts_no_decision(log: oncemore.Engine, failing: Any, tmp_path: Path) -> None:
    from oncemore.maintenance.copy import move_log

    run = failing.run("A-17")
    log.close()  # which ends its lease
    move_log(log, oncemore.open(tmp_path / "new.db"), reason="a test", by="operator")
    with pytest.raises(NotPermitted):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)


def test_a_log_that_moves_in_the_middle_accepts_no_decision(
    log: oncemore.Engine, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncemore.control import moved_log, run_decisions
    from oncemore.steps.ops import EndCall

    run = failing.run("A-17")

    def refuse(subject: str, op: Any) -> Any:
        # The switches are asked again with the write; here they say that the log has moved since.
        yield moved_log.ASK_IF_MOVED
        return EndCall(None, NotPermitted("this log has moved", "moved"))

    monkeypatch.setattr(run_decisions, "append_decision", refuse)
    with pytest.raises(NotPermitted, match="has moved"):
        reopen_recorded_run(log, entity_of(run), run.run_id, **BY)
    assert failing.last_run("A-17").run_id == run.run_id


def test_a_waiting_run_is_cancelled_at_once(log: oncemore.Engine, failing: Any) -> None:
    run = failing.submit("A-18", at=timedelta(hours=1))
    record = cancel_recorded_run(log, entity_of(run), run.run_id, **BY)
    assert (record.state, record.reason) == ("HARD_FAIL", "cancelled")
    with pytest.raises(oncemore.StepFailed):
        failing("A-18")


def test_a_running_attempt_may_end_after_it_was_cancelled(log: oncemore.Engine) -> None:
    @oncemore.step(effect="idempotent", name="slow")
    def slow(n: int) -> int:
        attempt = oncemore.current()
        entity = f"run/{attempt.key}"
        run_id = log.store.load_head(entity)
        assert run_id is not None
        from oncemore.log.entry_codec import decode_head

        record = cancel_recorded_run(log, entity, decode_head(run_id.head).run_id, **BY)
        assert (record.state, record.cancelled_at > 0) == ("RUNNING", True)
        with pytest.raises(InProgress):
            reopen_recorded_run(log, entity, record.run_id, **BY)
        return n

    assert slow(1) == 1


def test_a_run_with_a_cooldown_is_cancelled_with_its_code(log: oncemore.Engine) -> None:
    @oncemore.step(
        effect="idempotent", name="fetch", policy=ONCE, cooldown=oncemore.Cooldown(lambda name: name)
    )
    def fetch(name: str) -> None:
        raise oncemore.TransientError("busy")

    run = fetch.run("product")
    with pytest.raises(UsageError, match="oncemore runs cancel MODULE --run"):
        cancel_recorded_run(log, entity_of(run), run.run_id, **BY)
