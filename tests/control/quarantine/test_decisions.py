"""What people decide, what becomes of it, and that of two who decide one is told that the other was first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import LeaseLost, StaleDecision, UsageError
from oncemore.control import quarantine_items
from oncemore.control.review import MAX_EXTRA_ATTEMPTS, is_held, list_choices, make_decision, record_decision
from oncemore.governance.dataset_model import NO_LABEL
from oncemore.log.record import ArtifactRecord, EventRecord, RunRecord
from oncemore.outbox import EventMessage, OutboxRelay
from oncemore.steps.call import PreparedCall
from oncemore.steps.history import verify_chain
from oncemore.steps.ops import AppendChange, RunAttempt
from tests.artifacts.conftest import alter
from tests.control.quarantine.helpers import charge, doubtful, list_marks, processes
from tests.crash.harness import run_with_driver, start_engine_call

if TYPE_CHECKING:
    from oncemore.control.quarantine_items import QuarantineItem
    from oncemore.steps.engine import Engine
    from oncemore.testing import FakeClock

ANN: Any = {"by": "operator", "reason": "looked at it"}


class Turns:
    """Work that needs review until it is told to go well."""

    def __init__(self, **options: Any) -> None:
        self.calls, self.good = 0, False
        self.step = oncemore.step(name="turns", **{"effect": "idempotent", **options})(self.work)

    def work(self) -> str:
        self.calls += 1
        if self.good:
            return "done"
        raise oncemore.NeedsReview("AMBIGUOUS_NAME")


def only(engine: Engine) -> QuarantineItem:
    (item,) = engine.quarantine
    return item


def decision(run: oncemore.Run) -> dict[str, Any]:
    (made,) = [body["decision"] for _, _, body in run._own_entries() if "decision" in body]
    return made  # type: ignore[no-any-return]


def test_released_work_has_its_next_attempt_and_the_decision_is_on_record(engine: Engine) -> None:
    turns = Turns()
    turns.step.run()
    engine.quarantine.release(only(engine), **ANN)
    assert list(engine.quarantine) == []
    run = turns.step.last_run()
    assert (run.status, run.held_for, run.reason) == ("SOFT_FAIL", "", "decided")
    turns.good = True
    assert turns.step() == "done"
    assert [one.number for one in turns.step.last_run().attempts] == [1, 2]
    assert decision(turns.step.last_run()) == {
        "action": "release",
        "reason": "looked at it",
        "actor": "operator",
    }
    assert "decided by operator: release, because looked at it" in turns.step.last_run().explain()
    assert list_marks(engine, f"run/{run.key}")[2] == ("SOFT_FAIL", "DECISION")
    verify_chain(engine.store.read_entries())


def test_released_work_that_needs_review_again_waits_again_and_its_budget_still_ends(engine: Engine) -> None:
    turns = Turns()
    for n in (1, 2):
        turns.step.run()
        engine.quarantine.release(only(engine), **ANN)
        assert turns.calls == n
    turns.step.run()
    item = only(engine)
    assert item.attempts == 3
    assert len(engine.quarantine.show(item).decisions) == 2
    with pytest.raises(UsageError, match=r"used all of its 3 attempts; give it more: rerun"):
        engine.quarantine.release(item, **ANN)
    assert only(engine) == item


def test_work_goes_beyond_its_budget_only_by_a_recorded_extra_one(engine: Engine) -> None:
    turns = Turns(policy=oncemore.Policy(max_attempts=1))
    turns.step.run()
    with pytest.raises(UsageError, match="reason is missing"):
        engine.quarantine.rerun(only(engine), by="operator", reason=" ")
    engine.quarantine.rerun(only(engine), by=" operator ", reason="more memory", extra_attempts=2)
    made = decision(turns.step.last_run())
    assert made == {"action": "rerun", "reason": "more memory", "actor": "operator", "extra_attempts": 2}
    assert turns.step.last_run().state.max_attempts == 3
    turns.step.run()
    engine.quarantine.release(only(engine), by="bob", reason="again")
    turns.step.run()
    with pytest.raises(UsageError, match="used all of its 3"):
        engine.quarantine.release(only(engine), by="bob", reason="again")
    assert turns.calls == 3


def test_a_limited_list_has_those_that_wait_longest(engine: Engine) -> None:
    @oncemore.step(effect="idempotent", name="scan.read")
    def read(page: int) -> None:
        raise oncemore.NeedsReview("UNREADABLE")

    runs = [read.bind(engine).run(page).run_id for page in range(5)]
    assert [item.id for item in engine.quarantine.list(limit=2)] == runs[:2]
    assert len(engine.quarantine) == len(engine.quarantine.list()) == 5
    # An item is found by its entity without a list of all.
    held = engine.quarantine.list()[3]
    assert engine.quarantine.show(held.entity).item.id == held.id


def test_rejected_work_has_failed_for_good(engine: Engine) -> None:
    turns = Turns()
    turns.step.run()
    engine.quarantine.reject(only(engine), **ANN)
    assert list(engine.quarantine) == []
    for _ in range(2):
        with pytest.raises(oncemore.PermanentFailure, match=r"\(rejected\).*AMBIGUOUS_NAME"):
            turns.step()
    run = turns.step.last_run()
    assert (run.status, run.reason, turns.calls) == ("HARD_FAIL", "rejected", 1)
    assert run.error["code"] == "AMBIGUOUS_NAME"
    escalations = [one["escalation"] for one in run.records() if one["kind"] == "ESCALATION"]
    assert [one["attempts"] for one in escalations] == [1, 1]
    turns.good = True
    with oncemore.context(actor="operator"):
        assert turns.step.rerun(reason="it was a mistake") == "done"


def test_an_unknown_outcome_is_neither_released_nor_run_again_but_settled(engine: Engine) -> None:
    charge.run(1)
    item = only(engine)
    for refused in (engine.quarantine.release, engine.quarantine.rerun):
        with pytest.raises(UsageError, match=r"may have taken effect.*settle it"):
            refused(item, **ANN)
    for odd in (oncemore.unknown(), "applied"):
        with pytest.raises(UsageError, match="settle takes"):
            engine.quarantine.settle(item, odd, **ANN)  # type: ignore[arg-type]
    with pytest.raises(oncemore.Error, match="the result"):
        engine.quarantine.settle(item, oncemore.applied(object()), **ANN)
    assert only(engine) == item
    engine.quarantine.settle(item, oncemore.applied({"receipt": 7}), **ANN)
    assert charge(1) == {"receipt": 7}
    settled = decision(charge.last_run(1))  # type: ignore[arg-type]
    assert (settled["action"], settled["reason"], settled["actor"]) == ("settle", "looked at it", "operator")
    assert settled["outcome"] == "applied"
    assert list(engine.quarantine) == []


def test_an_effect_that_did_not_happen_is_tried_again_within_its_budget(engine: Engine) -> None:
    for n in range(1, 4):
        assert charge.run(1).state.attempt_count == n
        engine.quarantine.settle(only(engine).id, oncemore.not_applied(), **ANN)
    with pytest.raises(oncemore.RetriesExhausted):
        charge(1)
    assert list(engine.quarantine) == []


def test_an_unknown_outcome_can_be_rejected(engine: Engine) -> None:
    charge.run(1)
    engine.quarantine.reject(only(engine), **ANN)
    with pytest.raises(oncemore.PermanentFailure, match="rejected"):
        charge(1)


@pytest.mark.parametrize("what", ["release", "reject", "rerun"])
@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"by": "", "reason": "x"}, "by is missing; say who decides"),
        ({"by": None, "reason": "x"}, "by is missing"),
        ({"by": "operator", "reason": ""}, "reason is missing; say why"),
        ({"by": "operator", "reason": "x" * 2001}, "reason has 2001 characters"),
        ({"by": "a" * 201, "reason": "x"}, "by has 201 characters"),
    ],
)
def test_a_decision_without_a_name_or_a_reason_is_refused(what: str, told: Any, match: str) -> None:
    with oncemore.open("memory:") as engine:
        doubtful.run(1)
        with pytest.raises(UsageError, match=match):
            getattr(engine.quarantine, what)(only(engine), **told)
        assert len(engine.quarantine) == 1


@pytest.mark.parametrize("extra", [0, -1, MAX_EXTRA_ATTEMPTS + 1, True, 1.5, "2"])
def test_an_odd_number_of_attempts_is_refused(extra: Any) -> None:
    with pytest.raises(UsageError, match="extra_attempts is"):
        make_decision("rerun", "operator", "x", 0, extra)


def test_a_decision_about_what_has_changed_bounces_and_says_so(engine: Engine) -> None:
    turns = Turns()
    turns.step.run()
    first = only(engine)
    engine.quarantine.release(first, by="bob", reason="fine")
    before = list(engine.store.read_entries())
    for late in (engine.quarantine.release, engine.quarantine.reject, engine.quarantine.rerun):
        with pytest.raises(StaleDecision, match=r"not in quarantine any more \(release by bob: fine\)"):
            late(first, **ANN)
    turns.step.run()  # held again: it is another hold than the one that was looked at
    with pytest.raises(StaleDecision, match="has version 5 now, and was looked at in version 2"):
        engine.quarantine.reject(first, **ANN)
    with pytest.raises(StaleDecision, match="has version 5 now"):
        engine.quarantine.reject(first.entity, version=2, **ANN)
    assert [entry.seq for entry in engine.store.read_entries()][: len(before)] == [
        entry.seq for entry in before
    ]
    engine.quarantine.reject(first.entity, version=5, **ANN)


def test_settling_what_has_changed_bounces_and_says_so(engine: Engine) -> None:
    charge.run(1)
    first = only(engine)
    engine.quarantine.settle(first, oncemore.not_applied(), **ANN)
    with pytest.raises(StaleDecision, match="not in quarantine any more"):
        engine.quarantine.settle(first, oncemore.applied(1), **ANN)
    charge.run(1)
    with pytest.raises(StaleDecision, match="has version 5 now"):
        engine.quarantine.settle(first, oncemore.applied(1), **ANN)
    doubtful.run(1)
    (other,) = engine.quarantine.list(step="doubtful")
    with pytest.raises(UsageError, match="is not in doubt"):
        engine.quarantine.settle(other, oncemore.applied(1), **ANN)
    with pytest.raises(UsageError, match="only a run can be settled"):
        engine.quarantine.settle("event/nothing", oncemore.applied(1), **ANN)
    with pytest.raises(StaleDecision):
        engine.quarantine.settle("run/nothing", oncemore.applied(1), **ANN)
    with pytest.raises(UsageError, match="there is no run/nothing"):
        engine.quarantine.release("run/nothing", **ANN)


def test_who_settles_in_the_very_moment_that_another_does_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.steps import operator_flow

    with oncemore.open("memory:") as engine:
        charge.run(1)
        item = only(engine)
        settle = operator_flow.settle_run

        def slow(*told: Any) -> Any:
            monkeypatch.setattr(operator_flow, "settle_run", settle)
            engine.quarantine.reject(item, by="bob", reason="first")
            return settle(*told)

        monkeypatch.setattr(operator_flow, "settle_run", slow)
        with pytest.raises(StaleDecision, match="in this very moment"):
            engine.quarantine.settle(item, oncemore.applied(1), **ANN)
        assert charge.last_run(1).status == "HARD_FAIL"  # type: ignore[union-attr]


def test_a_decision_that_lost_the_race_against_another_is_refused() -> None:
    start = processes()
    with start() as engine:
        doubtful.run(1)
        item = only(engine)
        script = record_decision(item.entity, RunRecord, make_decision("release", "operator", "slow"))
        slow = run_with_driver(engine, PreparedCall.for_decision(engine), script)
        slow.run_until(AppendChange)
        engine.quarantine.reject(item, by="bob", reason="fast")
        end = slow.run()
        assert isinstance(end.error, StaleDecision)
        assert "in this very moment" in str(end.error)
        assert doubtful.last_run(1).status == "HARD_FAIL"  # type: ignore[union-attr]


def test_of_many_threads_that_decide_exactly_one_wins(engine: Engine) -> None:
    for x in range(5):
        doubtful.run(x)
    for item in engine.quarantine:
        barrier, outcomes = threading.Barrier(8), []

        def decide(n: int, item: Any = item, barrier: Any = barrier, outcomes: Any = outcomes) -> None:
            what = (engine.quarantine.release, engine.quarantine.reject)[n % 2]
            barrier.wait(30)
            try:
                what(item, by=f"person {n}", reason="I was first")
                outcomes.append(n)
            except StaleDecision:
                outcomes.append(None)

        crowd = [threading.Thread(target=decide, args=(n,)) for n in range(8)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join(60)
        (winner,) = [n for n in outcomes if n is not None]
        assert outcomes.count(None) == 7
        made = [
            body["decision"]["actor"]
            for _, _, body in oncemore.Run(engine, item.entity)._own_entries()
            if "decision" in body
        ]
        assert made == [f"person {winner}"]
    verify_chain(engine.store.read_entries())


# A former holder ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "what"),  # an unknown outcome is settled, not run again
    [
        ("pure", "reject"),
        ("pure", "rerun"),
        ("idempotent", "reject"),
        ("idempotent", "rerun"),
        ("once", "reject"),
    ],
)
def test_a_former_holder_can_commit_neither_after_a_reject_nor_after_a_rerun(effect: Any, what: str) -> None:
    start = processes()
    policy = oncemore.Policy(max_attempts=1, max_crashes=1)
    step = oncemore.step(effect=effect, name="slow", policy=policy)(lambda: "late")
    paused = start()
    zombie = start_engine_call(paused, step)
    zombie.run_until(RunAttempt)  # its attempt is under way, and is taken for lost
    zombie.end_process()
    with start() as engine:
        step.run()
        getattr(engine.quarantine, what)(only(engine), **ANN)
        before = list(engine.store.read_entries())
        end = zombie.run()
        ended = end.value if end.error is None else end.error
        late = list(engine.store.read_entries())[len(before) :]
        assert not [entry for entry in late if b'"COMMIT"' in entry.header and b'"fence":1,' in entry.header]
        run = step.last_run()
        if what == "reject":
            assert isinstance(ended, LeaseLost if effect == "once" else oncemore.PermanentFailure)
            assert (run.status, run.reason, late) == ("HARD_FAIL", "rejected", [])
        else:
            assert (ended, run.state.fence) == ("late", 2), (
                "its own attempt bounced, and it took the next one"
            )
        verify_chain(engine.store.read_entries())


# Deadlines, artifacts, dead letters -----------------------------------------------------------------


def test_a_deadline_that_passed_while_a_person_thought_ends_nothing(clock: FakeClock) -> None:
    turns = Turns(total_timeout=10)
    with oncemore.open("memory:") as engine:
        turns.step.run()
        clock.advance(1000.0)
        engine.quarantine.release(only(engine), **ANN)
        turns.good = True
        assert turns.step() == "done"


def test_a_deadline_that_is_ahead_still_holds(clock: FakeClock) -> None:
    turns = Turns(total_timeout=1000)
    with oncemore.open("memory:") as engine:
        turns.step.run()
        ends = turns.step.last_run().state.deadline
        engine.quarantine.release(only(engine), **ANN)
        assert turns.step.last_run().state.deadline == ends > 0


def altered(engine: Engine, **options: Any) -> Any:
    """Return a step whose artifact was altered, and met."""

    @oncemore.step(name="report", artifact="report", **options)
    def report() -> Any:
        return oncemore.current().put(b"the report")

    alter(engine.artifact_store.backend, report().digest)
    report.run()
    return report


def test_a_run_and_its_artifact_are_released_together_when_the_bytes_are_right(engine: Engine) -> None:
    report = altered(engine, effect="pure")
    item = only(engine)
    with pytest.raises(UsageError, match=r"cannot be released.*was altered"):
        engine.quarantine.release(item, **ANN)
    digest = engine.quarantine.show(item).artifact["expected"]  # type: ignore[index]
    alter(engine.artifact_store.backend, digest)
    engine.quarantine.release(item, **ANN)
    assert list(engine.quarantine) == []
    assert report().digest == digest
    assert report.last_run().reason == "artifact_exists"
    verify_chain(engine.store.read_entries())


def test_a_rejected_run_leaves_its_artifact_to_be_decided_about(engine: Engine) -> None:
    report = altered(engine, effect="pure")
    engine.quarantine.reject(only(engine), **ANN)
    with pytest.raises(oncemore.PermanentFailure, match="rejected"):
        report()
    item = only(engine)
    assert item.kind == "artifact"
    engine.quarantine.reject(item, **ANN)
    assert list(engine.quarantine) == []
    assert engine.artifacts.list() == []
    with pytest.raises(oncemore.Quarantined):  # it is still not what it was, and still not computed over
        report.rerun(reason="try")
    assert only(engine).kind == "run"
    alter(engine.artifact_store.backend, engine.quarantine.show(only(engine)).artifact["expected"])  # type: ignore[index]
    engine.quarantine.release(only(engine), **ANN)
    assert report.last_run().held_for == ""


def test_an_artifact_is_released_when_its_bytes_are_right(engine: Engine) -> None:
    report = altered(engine, effect="idempotent")
    item = only(engine)
    assert item.kind == "artifact"
    with pytest.raises(UsageError, match=r"cannot be released.*was altered"):
        engine.quarantine.release(item, **ANN)
    with pytest.raises(UsageError, match="an artifact cannot be rerun"):
        engine.quarantine.rerun(item, **ANN)
    digest = engine.quarantine.show(item).artifact["expected"]  # type: ignore[index]
    alter(engine.artifact_store.backend, digest)
    engine.quarantine.release(item, **ANN)
    assert report().digest == digest
    with pytest.raises(StaleDecision, match="release by operator"):
        engine.quarantine.release(item, **ANN)


def test_an_artifact_that_is_gone_cannot_be_released(engine: Engine) -> None:
    altered(engine, effect="idempotent")
    item = only(engine)
    engine.artifact_store.backend.remove_object(
        engine.quarantine.show(item).artifact["expected"], float("inf")
    )  # type: ignore[index]
    with pytest.raises(UsageError, match="is missing"):
        engine.quarantine.release(item, **ANN)


def dead(engine: Engine) -> tuple[QuarantineItem, list[str], Any]:
    """Return a dead letter, what arrived at last, and a relay."""
    arrived: list[str] = []

    @oncemore.step(effect="outbox", name="give")
    def give() -> None:
        oncemore.current().emit("orders.packed", 1)
        oncemore.current().emit("orders.shipped", 2)

    def sink(message: EventMessage) -> None:
        if not arrived and message.topic == "orders.packed":
            arrived.append("refused")
            raise oncemore.PermanentError("no such customer")
        arrived.append(message.topic)

    give()
    relay = OutboxRelay(engine, {"*": sink})
    relay.run_once()
    return only(engine), arrived, relay


def test_a_released_dead_letter_is_sent_again(engine: Engine) -> None:
    item, arrived, relay = dead(engine)
    with pytest.raises(UsageError, match="a dead letter cannot be rerun"):
        engine.quarantine.rerun(item, **ANN)
    engine.quarantine.release(item, **ANN)
    assert list(engine.quarantine) == []
    relay.run_once()
    assert arrived == ["refused", "orders.shipped", "orders.packed"]
    verify_chain(engine.store.read_entries())


def test_a_rejected_dead_letter_is_kept_and_not_sent(engine: Engine) -> None:
    item, arrived, relay = dead(engine)
    engine.quarantine.reject(item, **ANN)
    assert list(engine.quarantine) == []
    assert relay.run_once().delivered == 0
    assert relay.dead_letters() == ()
    assert arrived == ["refused", "orders.shipped"]
    with pytest.raises(StaleDecision, match="reject by operator"):
        engine.quarantine.release(item, **ANN)
    with oncemore.context(actor="operator"):
        relay.redeliver(item.id, reason="a mistake")
    assert relay.run_once().delivered == 1


def test_what_can_be_decided_follows_from_what_is_held() -> None:
    run = RunRecord(held_for="poison", attempt_count=3, max_attempts=3)
    assert list_choices(run) == ("rerun", "reject")
    assert list_choices(run._replace(max_attempts=4)) == ("release", "reject", "rerun")
    assert list_choices(run._replace(held_for="outcome_unknown")) == ("settle", "reject")
    assert list_choices(ArtifactRecord()) == list_choices(EventRecord()) == ("release", "reject")
    assert is_held(run)
    assert not is_held(run._replace(pruned_at=1.0))
    assert not is_held(EventRecord(state="REJECTED"))
    assert not is_held(None)


def test_an_item_without_an_error_says_why_it_has_no_class(engine: Engine) -> None:
    Turns().step.run()
    item = only(engine)
    bare = quarantine_items._add_governance(engine, item._replace(kind="event", error={}), {})
    assert (bare.error_classes, bare.without["error_classes"]) == ((), "no attempt has failed")
    # A label that was missing when the item was quarantined stays missing.
    unlabelled = quarantine_items._add_governance(
        engine, item._replace(dataset="x"), {"care_label": NO_LABEL, "error_classes": ["ODD"]}
    )
    assert unlabelled.without == {"care_label": "the dataset is not registered"}
