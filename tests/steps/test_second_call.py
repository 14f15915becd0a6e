"""The second call: what the key's last run is decides what a call does."""

import datetime
import decimal
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore.log.entry_codec import build_write, decode_head
from oncemore.log.record import RecordChange
from oncemore.log.record import RunRecord as State
from oncemore.log.store import Batch, Stored
from oncemore.steps import step as step_module
from oncemore.testing import FakeClock
from tests.steps.colours import POLICY, RAISES, SOON, Busy, Turns, abandoned, do, each_colour, made, on_sqlite

VALUES: list[Any] = [
    None, 0, "", False, [], {}, (), 0.0, b"", "text", -1, 2**70, 1.5, float("inf"), decimal.Decimal("1.50"),
    b"\x00\xff", (1, (2, [3, {"a": (4,)}])), {1, 2}, frozenset({"a"}), {"$odd": 1}, {1: "one", None: 2},
    datetime.date(2026, 11, 15), datetime.time(12, 30), datetime.timedelta(days=-1, microseconds=5),
    datetime.datetime(2026, 11, 15, 12, 0, tzinfo=datetime.UTC), datetime.datetime(2026, 1, 1),
    uuid.UUID(int=7), "e\u0301", "\x00", {"nested": [None, (), {"deep": {1}}]},
]  # fmt: skip


@pytest.fixture(autouse=True, params=["looked for", "taken for new"])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds also where each call is taken for one of new work."""
    if request.param == "taken for new":
        monkeypatch.setattr(step_module, "NEW_KEY_STREAK", 0)


@each_colour
def test_work_is_taken_for_new_after_many_calls_of_new_work_until_one_is_not(
    colour: str, engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    looked: list[str] = []
    work, head = made(colour, ran.append), engine.store.load_head

    def counted(entity: str) -> Any:
        looked.append(entity)
        return head(entity)

    do(colour, work, -1)
    monkeypatch.setattr(engine.store, "load_head", counted)
    for number in range(step_module.NEW_KEY_STREAK + 10):
        do(colour, work, number)
    assert len(looked) == max(0, step_module.NEW_KEY_STREAK - 1)
    looked.clear()
    for number in (0, 1, 2):
        do(colour, work, number)
    assert len(looked) == 3, "one was claimed in vain and then read, the others were read at once"
    assert ran == list(range(-1, step_module.NEW_KEY_STREAK + 10))


@pytest.mark.usefixtures("engine")
@each_colour
def test_the_first_call_runs_and_every_later_one_gets_the_stored_value(colour: str) -> None:
    turns = Turns({"answer": 42})
    step = made(colour, turns)
    assert [do(colour, step, 1) for _ in range(3)] == [{"answer": 42}] * 3
    assert turns.calls == 1
    assert do(colour, step, 2) == {"answer": 42}
    assert turns.calls == 2


@pytest.mark.req("IDEM-7")
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_is_the_same_the_second_time_falsy_or_not(value: Any) -> None:
    turns = Turns([value])
    step = made("plain", lambda x: turns()[0])
    first, second = step(), step()
    assert first == second == value
    assert type(first) is type(second) is type(value)
    assert turns.calls == 1


@pytest.mark.usefixtures("engine")
def test_the_first_caller_too_gets_a_value_of_its_own() -> None:
    kept: list[list[int]] = [[1]]
    step = made("plain", lambda x: kept[0])
    first = step()
    first.append(2)
    assert kept[0] == [1]
    assert step() == [1]


# A result that cannot be kept -----------------------------------------------------------------------


@pytest.mark.req("IDEM-18")
@each_colour
@pytest.mark.parametrize("effect", ["idempotent", "outbox", "once"])
def test_a_result_that_cannot_be_kept_is_done_all_the_same(
    colour: str, effect: str, engine: oncemore.Engine
) -> None:
    value = object()
    turns = Turns(value)
    step = made(colour, turns, effect=effect)
    with pytest.raises(oncemore.ResultUnavailable, match="done, but its result cannot be stored") as first:
        do(colour, step)
    assert first.value.value is value
    with pytest.raises(oncemore.ResultUnavailable, match="done, but its result cannot be stored") as later:
        do(colour, step)
    assert later.value.value is None
    assert turns.calls == 1
    run = do(colour, step.run)
    assert run.status == "COMPLETE"
    with pytest.raises(oncemore.ResultUnavailable):
        _ = run.value
    assert b"pickle" not in b"".join(entry.body or b"" for entry in engine.store.read_entries())


@pytest.mark.req("IDEM-18")
@pytest.mark.usefixtures("engine")
@each_colour
def test_a_pure_step_whose_result_cannot_be_kept_fails_for_good(colour: str) -> None:
    turns = Turns(lambda x: lambda: 1)
    step = made(colour, turns, effect="pure", policy=RAISES)
    for cause in (oncemore.ResultUnavailable, type(None)):
        with pytest.raises(oncemore.PermanentFailure, match="the result is a function") as caught:
            do(colour, step)
        assert isinstance(caught.value.__cause__, cause)
    assert turns.calls == 1


# Somebody is at it ----------------------------------------------------------------------------------


@on_sqlite
@each_colour
def test_a_call_waits_for_an_attempt_that_is_under_way(colour: str, engine: oncemore.Engine) -> None:
    busy, other = Busy(), Turns("other")
    busy.start(made("plain", busy.hold).bind(engine))
    threading.Timer(0.05, busy.go_on.set).start()
    assert do(colour, made(colour, other)) == "held"
    busy.end()
    assert (busy.value, other.calls) == ("held", 0)


@pytest.mark.req("LEASE-1")
@on_sqlite
@each_colour
def test_a_call_that_does_not_wait_is_told_who_has_it_and_until_when(
    colour: str, engine: oncemore.Engine, tmp_path: Path
) -> None:
    busy, turns = Busy(), Turns("mine")
    holder = made("plain", busy.hold).bind(engine)
    busy.start(holder)
    worker = holder.last_run().state.worker
    with oncemore.open(tmp_path / "log.db", lease_s=7) as second:
        for where in (engine, second):
            step = made(colour, turns, if_running="raise").bind(where)
            with pytest.raises(oncemore.InProgress, match="is being worked on by") as caught:
                do(colour, step)
            assert caught.value.worker == worker
            assert 50 < caught.value.until - engine.now() <= 60
            run = do(colour, step.run)
            assert (run.status, run.state.worker) == ("RUNNING", worker)
    busy.end()
    assert turns.calls == 0


@on_sqlite
@each_colour
def test_within_bounds_the_waiting_for_somebody_else(colour: str, engine: oncemore.Engine) -> None:
    busy = Busy()
    busy.start(made("plain", busy.hold).bind(engine))
    with pytest.raises(oncemore.InProgress):
        do(colour, made(colour, Turns("mine"), total_timeout=0.05))
    busy.end()


@pytest.mark.parametrize("effect", ["pure", "idempotent", "outbox"])
@each_colour
def test_an_attempt_whose_worker_is_gone_is_closed_and_the_work_done_again(
    colour: str, effect: str, tmp_path: Path
) -> None:
    lost = abandoned(tmp_path / "log.db", effect=effect)
    turns = Turns(lambda x: oncemore.current().number)
    with oncemore.open(tmp_path / "log.db"):
        step = made(colour, turns, effect=effect)
        assert do(colour, step) == 2
        first, second = step.last_run().attempts
    assert (first.number, first.outcome, first.reason) == (1, "SOFT_FAIL", "lease_expired")
    assert (second.number, second.outcome) == (2, "COMPLETE")
    assert first.worker == lost.state.worker != second.worker


@pytest.mark.req("STATE-6")
@pytest.mark.parametrize("crashes", [3, None])
def test_lost_attempts_use_up_a_budget_too(tmp_path: Path, crashes: int | None) -> None:
    policy = POLICY.replace(max_crashes=crashes)
    for _ in range(3):
        abandoned(tmp_path / "log.db", policy=policy)
    turns = Turns("never")
    with oncemore.open(tmp_path / "log.db"):
        step = made("plain", turns, policy=policy)
        budget = "max_crashes" if crashes else "max_attempts"
        with pytest.raises(oncemore.Quarantined, match=rf"poison.*\({budget}\)"):
            step()
        assert [attempt.number for attempt in step.last_run().attempts] == [1, 2, 3]
    assert turns.calls == 0


# It waits -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("engine")
@each_colour
def test_what_is_due_soon_is_waited_for(colour: str, clock: FakeClock) -> None:
    turns = Turns(SOON, SOON, "done")
    assert do(colour, made(colour, turns)) == "done"
    assert turns.calls == 3
    assert clock.delays == pytest.approx([5.0, 7.0], abs=0.5)


@pytest.mark.usefixtures("clock")
@each_colour
def test_what_is_due_later_is_parked_and_a_later_call_goes_on(colour: str, tmp_path: Path) -> None:
    turns = Turns(SOON, "done")
    with oncemore.open(tmp_path / "log.db", max_inline_wait_s=4) as engine:
        step = made(colour, turns)
        began = engine.now()
        with pytest.raises(oncemore.Deferred, match="a later call goes on") as caught:
            do(colour, step)
        assert caught.value.until == pytest.approx(began + 5, abs=0.5)
        assert caught.value.until == caught.value.run.not_before  # type: ignore[attr-defined]
        assert do(colour, step.run).status == "SOFT_FAIL"
        assert turns.calls == 1
    with oncemore.open(tmp_path / "log.db"):
        assert do(colour, step) == "done"


@pytest.mark.req("LEASE-6")
@each_colour
def test_whoever_takes_over_during_a_delay_respects_it(colour: str, tmp_path: Path, clock: FakeClock) -> None:
    began: list[float] = []
    turns = Turns(SOON, lambda x: began.append(second.now()))
    with oncemore.open(tmp_path / "log.db", max_inline_wait_s=0), pytest.raises(oncemore.Deferred) as caught:
        do(colour, made(colour, turns))
    clock.advance(1)
    with oncemore.open(tmp_path / "log.db") as second:
        do(colour, made(colour, turns))
    assert clock.delays == pytest.approx([4.0], abs=0.5)
    assert began[0] >= caught.value.until


@pytest.mark.usefixtures("clock")
def test_a_caller_who_has_less_time_than_the_delay_is_parked() -> None:
    turns = Turns(SOON, "done")
    with oncemore.open("memory:") as engine:
        engine.inline_wait_s = 0
        with pytest.raises(oncemore.Deferred):
            made("plain", turns)()
        engine.inline_wait_s = 60
        with pytest.raises(oncemore.Deferred):
            made("plain", turns, total_timeout=1)()
        assert made("plain", turns, total_timeout=10)() == "done"


# It is held -----------------------------------------------------------------------------------------


@each_colour
def test_a_once_effect_that_may_have_happened_is_held_and_never_repeated(
    colour: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    turns = Turns(SOON, "twice")
    step = made(colour, turns, effect="once")
    for _ in range(3):
        with pytest.raises(oncemore.OutcomeUnknown, match="attempt 1 may have taken effect") as caught:
            do(colour, step)
    run = caught.value.run
    assert isinstance(run, oncemore.Run)
    assert (run.status, run.held_for, run.reason) == ("SOFT_FAIL", "outcome_unknown", "outcome_unknown")
    assert turns.calls == 1
    assert clock.delays == []
    assert do(colour, step.run).held_for == "outcome_unknown"
    assert "held, outcome unknown" in repr(run)


def test_a_once_attempt_whose_worker_is_gone_is_held(tmp_path: Path) -> None:
    abandoned(tmp_path / "log.db", effect="once")
    turns = Turns("twice")
    with oncemore.open(tmp_path / "log.db"), pytest.raises(oncemore.OutcomeUnknown, match="lease_expired"):
        made("plain", turns, effect="once")()
    assert turns.calls == 0


@pytest.mark.req("WAL-11")
@pytest.mark.usefixtures("engine", "clock")
@each_colour
@pytest.mark.parametrize("asked", ["at once", "deferred"])
def test_reconcile_is_asked_again_until_it_knows(colour: str, asked: str) -> None:
    answers = Turns(oncemore.unknown(), oncemore.unknown(), oncemore.applied("found it"))
    if asked == "at once":
        answers.turns = answers.turns[2:]
    turns = Turns(SOON)
    step = made(colour, turns, effect="once", reconcile=lambda x=0: answers())
    if asked == "deferred":
        with pytest.raises(oncemore.OutcomeUnknown):
            do(colour, step, 1)
        assert answers.calls == 2
    assert do(colour, step, 1) == "found it"
    assert do(colour, step, 1) == "found it"
    assert (turns.calls, answers.calls) == (1, 3 if asked == "deferred" else 1)
    assert step.last_run(1).reason == "reconciled"


@pytest.mark.req("WAL-11")
@pytest.mark.usefixtures("engine", "clock")
@each_colour
def test_reconcile_that_finds_nothing_lets_it_be_tried_again_within_the_budget(colour: str) -> None:
    turns = Turns(SOON, SOON, SOON, "never")
    step = made(colour, turns, effect="once", reconcile=lambda x=0: oncemore.not_applied())
    with pytest.raises(oncemore.RetriesExhausted, match="after 3 attempts"):
        do(colour, step)
    assert turns.calls == 3


@pytest.mark.usefixtures("engine")
def test_reconcile_gets_the_arguments_of_the_step_and_sees_the_lost_attempt() -> None:
    seen: list[Any] = []

    def look(x: int) -> object:
        seen.append((x, oncemore.current().number, oncemore.current().key, oncemore.current().resume("none")))
        for forbidden in (lambda: oncemore.current().checkpoint(1), lambda: oncemore.current().emit("a")):
            with pytest.raises(oncemore.UsageError, match="a reconcile function only looks"):
                forbidden()
        return oncemore.applied(x)

    def work(x: int) -> None:
        oncemore.current().checkpoint("half")
        raise SOON

    step = made("plain", work, effect="once", reconcile=look)
    assert step(5) == 5
    assert seen == [(5, 1, step.key(5), "half")]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("colour", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_reconcile_of_an_async_step_may_be_either(colour: str, kind: str) -> None:
    async def look(x: int = 0) -> object:
        return oncemore.applied("async")

    def plainly(x: int = 0) -> object:
        return oncemore.applied("plain")

    step = made(colour, Turns(SOON), effect="once", reconcile=look if kind == "async" else plainly)
    assert do(colour, step) == kind


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("answer", [True, None, "applied", ValueError("broken")], ids=repr)
@each_colour
def test_reconcile_that_answers_nonsense_or_fails_knows_nothing(
    colour: str, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Turns(answer)
    step = made(colour, Turns(SOON), effect="once", reconcile=lambda x=0: answers())
    with pytest.raises(oncemore.OutcomeUnknown):
        do(colour, step)
    assert "reconcile function" in caplog.text


@each_colour
def test_a_person_can_say_that_it_did_happen(colour: str, engine: oncemore.Engine) -> None:
    turns = Turns(SOON)
    step = made(colour, turns, effect="once")
    with pytest.raises(oncemore.OutcomeUnknown):
        do(colour, step)
    with oncemore.context(actor="ada"):
        run = step.settle(oncemore.applied({"receipt": 7}), reason="seen in the bank's statement")
    assert (run.status, run.value) == ("COMPLETE", {"receipt": 7})
    assert do(colour, step) == {"receipt": 7}
    assert "decided by ada: settle, because seen in the bank's statement" in run.explain()
    assert turns.calls == 1


@pytest.mark.usefixtures("engine")
@each_colour
def test_a_person_can_say_that_it_did_not_happen(colour: str) -> None:
    turns = Turns(SOON, "paid")
    step = made(colour, turns, effect="once")
    with pytest.raises(oncemore.OutcomeUnknown):
        do(colour, step)
    run = step.settle(oncemore.not_applied(), reason="the bank has no trace of it")
    assert (run.status, run.held_for) == ("SOFT_FAIL", "")
    assert do(colour, step) == "paid"
    assert (
        "decided by an unnamed actor: settle, because the bank has no trace of it"
        in step.last_run().explain()
    )


@pytest.mark.usefixtures("engine")
def test_what_was_settled_as_applied_may_have_a_value_that_cannot_be_kept() -> None:
    step = made("plain", Turns(SOON), effect="once")
    with pytest.raises(oncemore.OutcomeUnknown):
        step()
    step.settle(oncemore.applied(object()), reason="it happened")
    with pytest.raises(oncemore.ResultUnavailable, match="done, but its result cannot be stored"):
        step()


@pytest.mark.usefixtures("engine")
def test_only_what_is_held_can_be_settled_and_only_with_an_answer_and_a_reason() -> None:
    step = made("plain", Turns("done"), effect="once")
    with pytest.raises(oncemore.UsageError, match="is not held"):
        step.settle(oncemore.not_applied(), reason="why not")
    step()
    with pytest.raises(oncemore.UsageError, match="is not held") as caught:
        step.settle(oncemore.not_applied(), reason="why not")
    assert caught.value.run.status == "COMPLETE"  # type: ignore[attr-defined]
    for answer in (oncemore.unknown(), True, None):
        with pytest.raises(oncemore.UsageError, match="settle takes"):
            step.settle(answer, reason="because")
    for reason in ("", "  ", None, 5):
        with pytest.raises(oncemore.UsageError, match="reason is missing"):
            step.settle(oncemore.applied(), reason=reason)
        with pytest.raises(oncemore.UsageError, match="reason is missing"):
            step.rerun(reason=reason)


@pytest.mark.usefixtures("engine", "clock")
@each_colour
def test_errors_after_which_nothing_has_happened_let_a_once_effect_be_tried_again(colour: str) -> None:
    turns = Turns(ConnectionRefusedError(), ConnectionRefusedError(), "paid")
    assert do(colour, made(colour, turns, effect="once", not_applied=ConnectionRefusedError)) == "paid"
    turns.calls = 0
    assert do(colour, made(colour, turns, effect="once", not_applied="not-sent", name="named")) == "paid"
    turns.calls = 0
    says = made(colour, turns, effect="once", not_applied=lambda error: "refused" in repr(error).lower())
    assert do(colour, says, 2) == "paid"


@pytest.mark.usefixtures("engine")
def test_a_not_applied_function_that_fails_leaves_it_open(caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns(ConnectionRefusedError(), "twice")
    step = made("plain", turns, effect="once", not_applied=lambda error: error.code == 7)  # type: ignore[attr-defined]
    with pytest.raises(oncemore.OutcomeUnknown):
        step()
    assert turns.calls == 1
    assert "the not_applied function failed: AttributeError" in caplog.text


# It failed ------------------------------------------------------------------------------------------


@each_colour
def test_a_failure_sticks_with_its_class_and_message_and_the_first_caller_gets_the_cause(
    colour: str, engine: oncemore.Engine
) -> None:
    bug = ValueError("no such product")
    turns = Turns(bug, "never")
    step = made(colour, turns, policy=RAISES)
    told = []
    for cause in (bug, None, None):
        with pytest.raises(oncemore.PermanentFailure, match=r"ValueError: no such product") as caught:
            do(colour, step)
        assert caught.value.__cause__ is cause
        assert isinstance(caught.value.run, oncemore.Run)
        assert caught.value.run.status == "HARD_FAIL"
        assert caught.value.run.error is not None
        assert caught.value.run.error["message"] == "no such product"
        told.append(str(caught.value))
    assert told[1] == told[2]
    assert told[1].startswith(f"{told[0]}. This failure is stored since 20")
    assert turns.calls == 1


@pytest.mark.req("STATE-7")
@pytest.mark.usefixtures("engine", "clock")
@each_colour
def test_exhaustion_is_another_failure_than_a_permanent_error(colour: str) -> None:
    turns = Turns(SOON)
    step = made(colour, turns, policy=RAISES)
    for _ in range(2):
        with pytest.raises(oncemore.RetriesExhausted, match=r"after 3 attempts \(max_attempts_exceeded\)"):
            do(colour, step)
    assert turns.calls == 3
    final = [line for line in step.last_run().records() if line["kind"] == "TRANSITION"][-1]
    assert final["state"] == "HARD_FAIL"
    assert final["error"]["error"] == final["reason"] == "max_attempts_exceeded"
    assert final["error"]["last"]["message"] == "not yet"


@pytest.mark.req("STATE-3", "STATE-6")
@pytest.mark.usefixtures("clock")
@each_colour
def test_a_failed_run_can_be_run_again_for_a_reason_with_a_new_budget(
    colour: str, engine: oncemore.Engine
) -> None:
    numbers: list[int] = []
    fences: list[int] = []

    def work(x: int) -> str:
        numbers.append(oncemore.current().number)
        fences.append(oncemore.current().fence)
        if len(numbers) < 6:
            raise SOON
        return "at last"

    step = made(colour, work)
    with pytest.raises(oncemore.RetriesExhausted):
        do(colour, step)
    first = step.last_run()
    with oncemore.context(actor="ada"):
        assert do(colour, step.rerun, reason="the provider is back") == "at last"
    run = step.last_run()
    assert numbers == fences == [1, 2, 3, 4, 5, 6]
    assert [attempt.number for attempt in run.attempts] == [4, 5, 6]
    assert (run.state.run_number, run.state.attempt_count, run.state.max_attempts) == (2, 3, 3)
    assert run.run_id != first.run_id
    assert "decided by ada: rerun, because the provider is back" in run.explain()
    assert do(colour, step) == "at last"
    lines = run.records()
    for one in {line["run_id"] for line in lines}:
        states = [line["state"] for line in lines if line["run_id"] == one and line["kind"] == "TRANSITION"]
        assert "HARD_FAIL" not in states[:-1]
        escalations = [line for line in lines if line["run_id"] == one and line["kind"] == "ESCALATION"]
        assert len(escalations) == states.count("HARD_FAIL")


@pytest.mark.usefixtures("engine")
def test_only_a_failed_run_can_be_run_again(tmp_path: Path) -> None:
    done = made("plain", Turns("done"))
    with pytest.raises(oncemore.UsageError, match="was never run") as caught:
        done.rerun(reason="why not")
    assert caught.value.run is None
    done()
    with pytest.raises(oncemore.UsageError, match="running it again would apply it twice"):
        done.rerun(reason="why not")
    held = made("plain", Turns(SOON), effect="once", name="held")
    with pytest.raises(oncemore.OutcomeUnknown):
        held()
    with pytest.raises(oncemore.OutcomeUnknown, match="settle that first"):
        held.rerun(reason="why not")
    with oncemore.open(tmp_path / "other.db", max_inline_wait_s=0):
        waits = made("plain", Turns(SOON), name="waits")
        with pytest.raises(oncemore.Deferred):
            waits()
        with pytest.raises(oncemore.UsageError, match="not over yet"):
            waits.rerun(reason="why not")
    busy = Busy()
    runs = made("plain", busy.hold, name="runs")
    with oncemore.open(tmp_path / "third.db") as engine:
        busy.start(runs.bind(engine))
        with pytest.raises(oncemore.InProgress) as going:
            runs.rerun(reason="why not")
        assert going.value.worker
        busy.end()


@pytest.mark.usefixtures("engine")
def test_pure_work_can_be_run_again_though_it_is_done() -> None:
    turns = Turns("first", "second")
    step = made("plain", turns, effect="pure")
    assert step() == "first"
    assert step.rerun(reason="the input file was replaced") == "second"
    assert step() == "second"


@pytest.mark.usefixtures("engine", "clock")
@pytest.mark.parametrize("policy", ["exoarmur", "lit"])
@each_colour
def test_where_the_policy_says_so_a_call_of_failed_work_is_a_new_run(colour: str, policy: str) -> None:
    turns = Turns(oncemore.PolicyViolation("SCHEMA_INVALID"), "good")
    step = made(colour, turns, policy=policy)
    with pytest.raises(oncemore.PermanentFailure):
        do(colour, step)
    assert do(colour, step) == "good"
    assert (step.last_run().state.run_number, [one.number for one in step.last_run().attempts]) == (2, [2])


@pytest.mark.usefixtures("engine", "clock")
@pytest.mark.parametrize("policy", ["exoarmur", "lit"])
def test_a_once_effect_is_never_run_anew_by_a_call(policy: str) -> None:
    turns = Turns(oncemore.PolicyViolation("SCHEMA_INVALID"), "twice")
    step = made("plain", turns, policy=policy, effect="once", not_applied=oncemore.PolicyViolation)
    for _ in range(2):
        with pytest.raises(oncemore.PermanentFailure):
            step()
    assert turns.calls == 1
    assert step.rerun(reason="the schema is mended") == "twice"


# It was pruned --------------------------------------------------------------------------------------


def prune(engine: oncemore.Engine, entity: str) -> None:
    """Forget the bodies of a run, as a retention job will."""
    head = engine.store.load_head(entity)
    assert head is not None
    state: State = decode_head(head.head)
    change = RecordChange(("PRUNE",), state, state._replace(pruned_at=engine.now()))
    write = build_write(entity, head.version, head.hash, change, engine.now())
    assert isinstance(engine.store.append(Batch((write,))).wait(), Stored)
    engine.store.open_maintenance().prune_bodies({entity: head.version + 1})


@each_colour
@pytest.mark.parametrize("effect", ["pure", "once"])
def test_pruned_work_is_not_run_a_second_time(colour: str, effect: str, engine: oncemore.Engine) -> None:
    turns = Turns("once")
    step = made(colour, turns, effect=effect)
    do(colour, step)
    prune(engine, "run/" + step.key())
    for call in (step, step.run):
        with pytest.raises(oncemore.KeyExpired, match="ended as COMPLETE and its record was pruned"):
            do(colour, call)
    with pytest.raises(oncemore.KeyExpired, match="its value was pruned"):
        _ = step.last_run().value
    assert step.last_run().attempts[0].outcome == "COMPLETE"
    assert turns.calls == 1
    assert step.last_run().explain().count("COMPLETE") == 2  # its standing, and its one attempt
    assert "were pruned" in step.last_run().explain()


def test_pruned_failures_cannot_be_run_again_either(engine: oncemore.Engine) -> None:
    step = made("plain", Turns(ValueError()))
    with pytest.raises(oncemore.PermanentFailure):
        step()
    prune(engine, "run/" + step.key())
    with pytest.raises(oncemore.KeyExpired, match="ended as HARD_FAIL"):
        step.rerun(reason="please")
    assert step.last_run().error is None


# What a call leaves behind --------------------------------------------------------------------------


@each_colour
@pytest.mark.usefixtures("engine")
def test_run_gives_the_run_and_raises_only_what_is_about_no_run(colour: str) -> None:
    step = made(colour, Turns("value"), key=lambda x: "same")
    run = do(colour, step.run, 1)
    assert (run.status, run.value, run.key) == ("COMPLETE", "value", step.key(1))
    with pytest.raises(oncemore.KeyConflict):
        do(colour, step.run, 2)
    failing = made(colour, Turns(ValueError("bad")), name="failing")
    run = do(colour, failing.run)
    assert (run.status, run.reason, run.error["type"]) == ("HARD_FAIL", "not_retryable", "ValueError")
    with pytest.raises(oncemore.UsageError, match="has no value: it is not COMPLETE"):
        _ = run.value


@each_colour
@pytest.mark.usefixtures("engine")
def test_run_is_about_the_call_though_the_work_changed_its_argument(colour: str) -> None:
    step = made(colour, lambda x: x.append("changed"))
    run = do(colour, step.run, ["original"])
    assert run.status == "COMPLETE"
    assert run.key == step.key(["original"])


@pytest.mark.usefixtures("engine")
def test_last_and_key_run_nothing() -> None:
    turns = Turns("value")
    step = made("plain", turns)
    assert step.last_run() is None
    assert len(step.key()) == 64
    step()
    assert step.last_run().value == "value"
    assert turns.calls == 1
