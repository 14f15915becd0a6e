"""Every flow there is, killed at every operation and again at every operation of what comes after."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.errors import (
    Cancelled,
    DeadlineExceeded,
    Deferred,
    KeyConflict,
    OutcomeUnknown,
    PermanentFailure,
    Quarantined,
    RetriesExhausted,
    StepFailed,
    UsageError,
)
from oncemore.policy.backoff import Schedule
from oncemore.steps import ops
from tests.crash.acts import Cut, Stage
from tests.crash.world import ENTITY, POLICY, Crash

if TYPE_CHECKING:
    from collections.abc import Callable

    Act = Callable[[], Any]


#: How many processes die one after the other, each at every operation it comes to.
DEEP = 3 if os.environ.get("ONCEMORE_TORTURE") else 2


class Scenario:
    """What was there before, what a process then does, and what may have become of it in the end."""

    def __init__(
        self,
        effect: str,
        turns: list[str],
        *,
        before: Callable[[Stage], None] = lambda stage: None,
        acts: Callable[[Stage], list[Act]] = lambda stage: [stage.calling],
        ends: tuple[Any, ...],
        deferred: Callable[[Stage], None] = lambda stage: None,
        **plan: Any,
    ) -> None:
        self.effect, self.turns, self.plan = effect, turns, plan
        self.before, self.acts, self.ends, self.deferred = before, acts, ends, deferred

    def stage(self) -> Stage:
        made = Stage(self.effect, self.turns, **self.plan)
        self.before(made)
        return made

    def judge(self, stage: Stage) -> None:
        """Call until there is an end; hold it to what may have become of it, and the log to its rules."""
        for _ in range(20):
            ended = stage.play(stage.calling)
            if isinstance(ended, Deferred):
                stage.now = max(stage.now, ended.until)
            elif not isinstance(ended, Cut):
                break
        kinds = tuple(kind for kind in self.ends if isinstance(kind, type))
        assert ended in self.ends or isinstance(ended, kinds), ended
        stage.judge.closing(stage.store)
        run = stage.seen().record
        assert run is not None
        assert run.state in ("COMPLETE", "HARD_FAIL") or run.held_for
        if stage.effect == "once":
            assert len(stage.happened) <= 1


def failed(stage: Stage) -> None:
    """It has failed for good before."""
    assert isinstance(stage.play(stage.calling), StepFailed)


def done(stage: Stage) -> None:
    """It was done before."""
    assert stage.play(stage.calling) == "value 1"


def held(stage: Stage) -> None:
    """Nobody knows what became of it."""
    assert isinstance(stage.play(stage.calling), OutcomeUnknown)


def held_twice(stage: Stage) -> None:
    """Nobody knows, and a reconcile function that is asked does not either, for now."""
    stage.patience = 2
    held(stage)


def handed_in(stage: Stage) -> None:
    """It was handed in, and nobody has begun it."""
    stage.play(stage.submitting)


def put_off(stage: Stage) -> None:
    """It has failed once, and waits for its second attempt."""
    assert any(type(op) is ops.SleepSeconds for op in stage.calling())
    stage.alive.clear()


def time_passes(stage: Stage) -> None:
    stage.now += 100.0


VALUES = tuple(f"value {n}" for n in range(1, 9))
SCENARIOS = {
    "a rerun of failed work": Scenario(
        "idempotent", ["permanent", "transient", "effect ok"], before=failed,
        ends=(*VALUES, RetriesExhausted, Quarantined), acts=lambda stage: [stage.reopening, stage.calling],
    ),
    "a rerun of failed work that must not repeat": Scenario(
        "once", ["refused", "refused", "refused", "effect ok"], before=failed,
        ends=(*VALUES, OutcomeUnknown, StepFailed), acts=lambda stage: [stage.reopening, stage.calling],
    ),
    "a rerun of pure work that is done": Scenario(
        "pure", ["effect ok"], before=done, ends=(*VALUES, RetriesExhausted, Quarantined),
        acts=lambda stage: [stage.reopening, stage.calling],
    ),
    "a decision that it was applied": Scenario(
        "once", ["effect transient"], before=held, ends=("value 1",),
        acts=lambda stage: [stage.settling, stage.calling],
    ),
    "a decision that it was not applied": Scenario(
        "once", ["transient", "effect ok"], before=held, ends=(*VALUES, OutcomeUnknown),
        acts=lambda stage: [stage.settling, stage.calling],
    ),
    "a reconcile function that knows later, applied": Scenario(
        "once", ["effect transient"], before=held_twice,
        ends=("value 1",), asks=True,
    ),
    "a reconcile function that knows later, not applied": Scenario(
        "once", ["transient", "effect ok"], before=held_twice,
        ends=(*VALUES, RetriesExhausted), asks=True,
    ),
    "checkpoints": Scenario(
        "idempotent", ["checkpoint checkpoint transient", "checkpoint effect checkpoint ok"],
        ends=(*VALUES, RetriesExhausted, Quarantined),
    ),
    "checkpoints of work that must not repeat": Scenario(
        "once", ["checkpoint effect checkpoint ok"], ends=("value 1", OutcomeUnknown),
    ),
    "checkpoints of work that must not repeat, with a reconcile function": Scenario(
        "once", ["checkpoint effect checkpoint ok"], ends=(*VALUES, RetriesExhausted), asks=True,
    ),
    "events": Scenario(
        "outbox", ["event event transient", "event event ok"], ends=(*VALUES, RetriesExhausted, Quarantined)
    ),
    "events of work that fails for good": Scenario("outbox", ["event permanent"], ends=(StepFailed,)),
    "a deadline that comes in a wait": Scenario(
        "idempotent", ["transient"], ends=(DeadlineExceeded, RetriesExhausted, Quarantined),
        acts=lambda stage: [lambda: stage.calling(deadline=1008.0)],
    ),
    "a deadline that passes while nobody is there": Scenario(
        "idempotent", ["transient", "effect ok"], ends=(*VALUES, DeadlineExceeded), deferred=time_passes,
        acts=lambda stage: [lambda: stage.calling(deadline=1008.0)],
    ),
    "a deadline and work that must not repeat": Scenario(
        "once", ["refused", "effect ok"], ends=(*VALUES, DeadlineExceeded, OutcomeUnknown),
        deferred=time_passes,
        acts=lambda stage: [lambda: stage.calling(deadline=1008.0)],
    ),
    "a new run after a failure": Scenario(
        "idempotent", ["permanent", "transient", "effect ok"], before=failed,
        ends=(*VALUES, StepFailed, Quarantined),
        after_failure="new_run",
    ),
    "no new run after a failure of work that must not repeat": Scenario(
        "once", ["refused", "refused", "refused", "effect ok"], before=failed, ends=(StepFailed,),
        after_failure="new_run",
    ),
    "another config of pure work": Scenario(
        "pure", ["effect ok"], before=done, ends=(*VALUES, RetriesExhausted, Quarantined),
        acts=lambda stage: [lambda: stage.calling(cfg_hash="other")],
    ),
    "another config of work with effects": Scenario(
        "idempotent", ["effect ok"], before=done, ends=("value 1",),
        acts=lambda stage: [lambda: stage.calling(cfg_hash="other")],
    ),
    "work that is handed in": Scenario(
        "idempotent", ["transient", "effect ok"], ends=(*VALUES, RetriesExhausted, Quarantined),
        acts=lambda stage: [stage.submitting, stage.submitting, stage.calling],
    ),
    "work that must not repeat and is handed in for later": Scenario(
        "once", ["refused", "effect ok"], ends=(*VALUES, OutcomeUnknown),
        acts=lambda stage: [lambda: stage.submitting(at=1020.0), stage.calling],
    ),
    "another config of pure work that is handed in": Scenario(
        "pure", ["effect ok"], before=done, ends=(*VALUES, RetriesExhausted, Quarantined),
        acts=lambda stage: [lambda: stage.submitting(cfg_hash="other"), stage.calling],
    ),
    "work that is cancelled before it has begun": Scenario(
        "idempotent", ["effect ok"], before=handed_in, ends=(Cancelled,),
        acts=lambda stage: [stage.cancelling, stage.cancelling, stage.calling],
    ),
    "work that is cancelled between two attempts": Scenario(
        "once", ["refused", "effect ok"], before=put_off, ends=(Cancelled,),
        acts=lambda stage: [stage.cancelling, stage.calling],
    ),
    "a rerun of cancelled work": Scenario(
        "idempotent", ["transient", "effect ok"], before=handed_in, ends=(*VALUES, StepFailed),
        acts=lambda stage: [stage.cancelling, stage.reopening, stage.calling],
    ),
    "a cut before the first line": Scenario(
        "idempotent", ["cut off", "effect ok"], ends=(*VALUES, RetriesExhausted, Quarantined)
    ),
    "a cut before the first line of work that must not repeat": Scenario(
        "once", ["cut off", "effect ok"], ends=(*VALUES, OutcomeUnknown)
    ),
    "a cut in the work": Scenario(
        "idempotent", ["effect cut", "effect ok"], ends=(*VALUES, RetriesExhausted, Quarantined)
    ),
    "a cut in pure work": Scenario(
        "pure", ["checkpoint cut", "effect ok"], ends=(*VALUES, RetriesExhausted, Quarantined)
    ),
    "a cut in work that must not repeat": Scenario("once", ["effect cut"], ends=(OutcomeUnknown,)),
    "a cut in work that must not repeat, with a reconcile function": Scenario(
        "once", ["effect cut"], ends=(*VALUES, RetriesExhausted), asks=True
    ),
}  # fmt: skip


def after(scenario: Scenario, deaths: tuple[int, ...]) -> Stage | None:
    """Return what is left when processes died one after the other; None if the last one came to its end."""
    stage = scenario.stage()
    for dies_at in deaths:
        try:
            stage.play(*scenario.acts(stage), dies_at=dies_at)
        except Crash:
            scenario.deferred(stage)
        else:
            return None
    return stage


def killed(scenario: Scenario, deaths: tuple[int, ...], deep: int) -> int:
    """Kill at every operation, and what comes after it at every one of its own; return how often."""
    count = 0
    for dies_at in itertools.count(1):
        stage = after(scenario, (*deaths, dies_at))
        if stage is None:
            return count
        stage.play(*scenario.acts(stage))
        scenario.judge(stage)
        count += 1 + (killed(scenario, (*deaths, dies_at), deep - 1) if deep > 1 else 0)
    raise AssertionError


@pytest.mark.unmeasured
@pytest.mark.req("WAL-7", "WAL-13")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_at_every_operation_and_again_at_every_one_after_it(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    scenario = SCENARIOS[name]
    whole = scenario.stage()
    whole.play(*scenario.acts(whole))
    length = whole.length
    scenario.judge(whole)
    crashes = killed(scenario, (), DEEP)
    print(f"\n{name}: {crashes} ways to die, {DEEP} deep")
    record_property("crashes", crashes)
    assert crashes > length


# What the scenarios must have met ---------------------------------------------------------------------


def test_an_attempt_goes_on_from_the_checkpoint_of_the_one_before() -> None:
    stage = Stage("idempotent", ["checkpoint transient", "checkpoint effect ok"])
    assert stage.play(stage.calling) == "value 2"
    assert stage.kept == [1]


def test_events_are_there_if_and_only_if_it_was_committed() -> None:
    stage = Stage("outbox", ["event event permanent"])
    failed(stage)
    assert not stage.book.events
    stage.turns = ["event event ok"]
    stage.play(stage.reopening, stage.calling)
    assert len(stage.book.events) == 2
    stage.judge.closing(stage.store)


@pytest.mark.req("STATE-6")
def test_attempts_are_numbered_on_through_crashes_and_runs() -> None:
    stage = Stage("idempotent", ["transient"], policy=POLICY.replace(max_attempts=6))
    for _ in range(2):
        assert any(type(op) is ops.RunAttempt for op in stage.calling())  # there it dies
        stage.alive.clear()
    assert stage.seen().record.attempt == 2
    assert isinstance(stage.play(stage.calling), RetriesExhausted)
    assert sorted(stage.book.executed) == [3, 4, 5, 6]  # a run crashed at attempt 2 resumes at 3
    stage.turns = ["effect ok"]
    assert stage.play(stage.reopening, stage.calling) == "value 7"


@pytest.mark.req("LEASE-7")
def test_ten_redeliveries_of_work_that_fails_are_no_more_attempts() -> None:
    stage = Stage("idempotent", ["transient"])
    for dies_at in range(1, 11):
        try:
            stage.play(stage.calling, dies_at=dies_at)
        except Crash:
            continue
    assert isinstance(stage.play(stage.calling), RetriesExhausted)
    assert stage.executions <= POLICY.max_attempts


@pytest.mark.req("LEASE-6")
def test_who_takes_over_in_a_delay_waits_for_its_end() -> None:
    slow = POLICY.replace(schedule=Schedule("fixed", delays=(20.0,)))
    stage = Stage("idempotent", ["transient", "effect ok"], policy=slow)
    assert any(type(op) is ops.SleepSeconds for op in stage.calling())  # it dies in its delay of 20 s
    stage.alive.clear()
    stage.now += 1.0
    assert stage.play(stage.calling) == "value 2"
    assert stage.seen().record.started_at >= 1020.0


@pytest.mark.req("WAL-11")
@pytest.mark.parametrize(
    ("turn", "patience", "ends"),
    [
        ("effect transient", 0, "value 1"),
        ("transient", 0, "value 2"),
        ("effect transient", 9, OutcomeUnknown),
    ],
    ids=["effect there", "effect absent", "unknown"],
)
def test_an_intent_without_commit_is_asked_about_first(turn: str, patience: int, ends: Any) -> None:
    stage = Stage("once", [turn, "effect ok"], asks=True)
    script = stage.calling()
    for op in script:
        if op == "effect" or (type(op) is ops.RunAttempt and turn == "transient"):
            break
    if turn != "transient":
        next(script)  # the effect happens, and nobody hears of it
    else:
        stage.executions += 1
    stage.alive.clear()
    stage.patience = patience
    ended = stage.play(stage.calling)
    assert ended == ends or isinstance(ended, ends)  # type: ignore[arg-type]
    assert len(stage.happened) == 1


def test_of_two_people_who_decide_the_second_decides_nothing() -> None:
    """What the second looked at is gone: a new attempt is held by then, which they know nothing of."""
    stage = Stage("once", ["transient", "effect transient"])
    held(stage)
    second = stage.settling()
    for op in second:
        if type(op) is ops.AppendChange:
            break
    stage.play(stage.settling, stage.calling)
    assert isinstance(stage.play(stage.calling), OutcomeUnknown)  # attempt 2 took effect, and is held
    version = stage.seen().version
    with pytest.raises(StopIteration) as end:
        next(second)
    assert isinstance(end.value.value, UsageError)
    assert stage.seen().version == version
    assert len(stage.happened) == 1


@pytest.mark.parametrize("act", ["reopening", "settling"])
def test_other_arguments_decide_nothing_about_a_key(act: str) -> None:
    stage = Stage("once", ["refused"] if act == "reopening" else ["transient"])
    stage.play(stage.calling)
    made = stage.call()._replace(input_hash="other")
    stage.call = lambda: made  # type: ignore[method-assign]
    version = stage.seen().version
    script = getattr(stage, act)()
    with pytest.raises(StopIteration) as end:
        stage.judge.ended = lambda *args: None  # type: ignore[method-assign]
        while True:
            next(script)
    assert isinstance(end.value.value, KeyConflict)
    assert stage.seen().version == version


@pytest.mark.parametrize(
    "plan", [{"after_failure": "new_run"}, {}], ids=["after a failure", "another config"]
)
def test_a_new_run_does_not_begin_after_its_deadline(plan: dict[str, Any]) -> None:
    stage = Stage("pure", ["permanent"] if plan else ["effect ok"], **plan)
    stage.play(stage.calling)
    version = stage.seen().version
    ended = stage.play(lambda: stage.calling(deadline=stage.now, cfg_hash="cfg" if plan else "other"))
    assert isinstance(ended, DeadlineExceeded)
    assert stage.seen().version == version


@pytest.mark.parametrize("ends", ["ok", "permanent", "cut"])
@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_a_checkpoint_whose_answer_was_lost_for_good_does_not_lose_the_attempt(
    effect: str, ends: str
) -> None:
    """Its outcome is written on what is there, as long as the attempt is the one under way."""
    stage = Stage(effect, [f"checkpoint effect {ends}"])
    script = stage.calling()
    real = stage._append_change

    def unsure(op: ops.AppendChange) -> ops.LoadedHead | None:
        saved = real(op)
        return op.seen if op.change.marks == ("CHECKPOINT",) else saved

    stage._append_change = unsure  # type: ignore[method-assign]
    with pytest.raises(StopIteration) as end:
        while True:
            next(script)
    run = stage.seen().record
    if ends == "ok":
        assert (end.value.value, run.state) == ("value 1", "COMPLETE")
    elif ends == "cut":
        assert isinstance(end.value.value, Cut)
        assert (run.state, run.reason) == ("SOFT_FAIL", "interrupted")
    elif effect == "once":
        assert isinstance(end.value.value, OutcomeUnknown)
    else:
        assert isinstance(end.value.value, PermanentFailure)
    assert stage.executions == 1
    assert ENTITY in stage.judge.books


def test_of_two_who_hand_in_or_cancel_the_second_looks_again() -> None:
    stage = Stage("idempotent", ["effect ok"])
    for first, second in ((stage.submitting, stage.submitting), (stage.cancelling, stage.cancelling)):
        late = second()
        for op in late:
            if type(op) is ops.AppendChange:
                break
        stage.play(first)
        version = stage.seen().version
        assert list(late) == [ops.LoadHead(ENTITY), ops.ReadClock()], (
            "it reads again, and finds that all is done"
        )
        assert stage.seen().version == version


# Cancelled while it runs ------------------------------------------------------------------------------

RUNNING = {
    "it commits": ("idempotent", "effect ok", ("value 1",)),
    "it fails": ("idempotent", "effect transient", (Cancelled, RetriesExhausted)),
    "it fails for good": ("idempotent", "permanent", (StepFailed,)),
    "it keeps checkpoints": ("idempotent", "checkpoint effect ok", ("value 1",)),
    "it must not repeat, and commits": ("once", "effect ok", ("value 1",)),
    "it must not repeat, and nothing has happened": ("once", "refused", (Cancelled, RetriesExhausted)),
    "it must not repeat, and nobody knows": ("once", "effect transient", (OutcomeUnknown,)),
    "it is cut off": ("idempotent", "effect cut", (Cut,)),
}


def cancelled_at(effect: str, turn: str, at: int, dies_at: int) -> tuple[Stage, Any, int] | None:
    """Cancel a call that has come to an operation; the process that cancels may die in the middle.

    Return how the call ended, and the number of the attempt that was cancelled.
    """
    stage = Stage(effect, [turn])
    script = stage.calling()
    try:
        for _ in range(at):
            next(script)
    except StopIteration:
        return None
    lane, me = stage.lane, stage.me
    try:
        told = stage.play(stage.cancelling, dies_at=dies_at)
        assert told is None or isinstance(told, UsageError | OutcomeUnknown), told
    except Crash:
        pass
    stage.lane, stage.me = lane, me
    stage.alive.add(me)
    run = stage.seen().record
    number = run.attempt if run is not None and run.cancelled_at else 0
    try:
        while True:
            next(script)
    except StopIteration as end:
        return stage, end.value, number


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", RUNNING)
def test_what_is_cancelled_while_it_runs_commits_or_is_not_tried_again(name: str) -> None:
    effect, turn, ends = RUNNING[name]
    kinds = tuple(kind for kind in ends if isinstance(kind, type))
    asked = 0
    for at, dies_at in ((n // 5 + 1, n % 5) for n in itertools.count()):
        found = cancelled_at(effect, turn, at, dies_at)
        if found is None:
            break
        stage, ended, number = found
        run = stage.seen().record
        stage.judge.closing(stage.store)
        if run.cancelled_at:
            asked += 1
            assert ended in ends or isinstance(ended, kinds), (at, ended)
            assert run.attempt == number, "no further attempt begins"
            again = stage.play(stage.calling)
            assert again == ended or type(again) is type(ended) or type(ended) is Cut
            assert stage.seen().record.attempt == number
    assert asked
