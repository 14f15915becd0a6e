"""Every flow, crashed at every operation and again at every operation of the recovery."""

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
from tests.crash.harness import BEFORE_EACH, CrashPoint, ProcessCrash, crash_everywhere
from tests.crash.simulation import ENTITY, POLICY, Interruption, JudgedSimulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.record import LoadedHead

    Flow = Callable[[], Any]


#: How many processes crash one after the other, each at every operation that it performs.
DEPTH = 3 if os.environ.get("ONCEMORE_TORTURE") else 2


class Scenario:
    """The state before, the flows that a process then runs, and the ends that are allowed."""

    def __init__(
        self,
        effect: str,
        outcomes: list[str],
        *,
        before: Callable[[JudgedSimulation], None] = lambda simulation: None,
        flows: Callable[[JudgedSimulation], list[Flow]] = lambda simulation: [simulation.call_step],
        ends: tuple[Any, ...],
        after_crash: Callable[[JudgedSimulation], None] = lambda simulation: None,
        **plan: Any,
    ) -> None:
        self.effect, self.outcomes, self.plan = effect, outcomes, plan
        self.before, self.flows, self.ends, self.after_crash = before, flows, ends, after_crash

    def start(self) -> JudgedSimulation:
        """Return the state that the process finds."""
        simulation = JudgedSimulation(self.effect, self.outcomes, **self.plan)
        self.before(simulation)
        return simulation

    def run(self, simulation: JudgedSimulation, crash: CrashPoint | None = None) -> None:
        """Run the flows in one process."""
        simulation.run_process(*self.flows(simulation), crash=crash)

    def crash_everywhere(self, depth: int) -> int:
        """Crash so many processes at each of their operations, check every end; return the crashes."""
        crashes = 0
        for simulation in crash_everywhere(
            self.start, self.run, [BEFORE_EACH] * depth, after_crash=self.after_crash
        ):
            self.run(simulation)
            self.check_end(simulation)
            crashes += 1
        return crashes

    def check_end(self, simulation: JudgedSimulation) -> None:
        """Call until the run ends; check that end, and the log."""
        for _ in range(20):
            ended = simulation.run_process(simulation.call_step)
            if isinstance(ended, Deferred):
                simulation.now = max(simulation.now, ended.until)
            elif not isinstance(ended, Interruption):
                break
        kinds = tuple(kind for kind in self.ends if isinstance(kind, type))
        assert ended in self.ends or isinstance(ended, kinds), ended
        simulation.judge.closing(simulation.store)
        run = simulation.load_run().record
        assert run is not None
        assert run.state in ("COMPLETE", "HARD_FAIL") or run.held_for
        if simulation.effect == "once":
            assert len(simulation.effects) <= 1


def fail_first(simulation: JudgedSimulation) -> None:
    """Let the run fail permanently."""
    assert isinstance(simulation.run_process(simulation.call_step), StepFailed)


def complete_first(simulation: JudgedSimulation) -> None:
    """Let the run complete."""
    assert simulation.run_process(simulation.call_step) == "value 1"


def hold_first(simulation: JudgedSimulation) -> None:
    """Let the outcome of the run be unknown."""
    assert isinstance(simulation.run_process(simulation.call_step), OutcomeUnknown)


def hold_without_answer(simulation: JudgedSimulation) -> None:
    """Let the outcome be unknown, also to the reconcile function the first two times."""
    simulation.unknown_answers = 2
    hold_first(simulation)


def submit_first(simulation: JudgedSimulation) -> None:
    """Submit the run without starting it."""
    simulation.run_process(simulation.submit)


def fail_one_attempt(simulation: JudgedSimulation) -> None:
    """Let the first attempt fail, and the run wait for its second one."""
    assert any(type(op) is ops.SleepSeconds for op in simulation.call_step())
    simulation.live_workers.clear()


def pass_time(simulation: JudgedSimulation) -> None:
    simulation.now += 100.0


VALUES = tuple(f"value {n}" for n in range(1, 9))
SCENARIOS = {
    "a rerun of failed work": Scenario(
        "idempotent", ["permanent", "transient", "effect ok"], before=fail_first,
        ends=(*VALUES, RetriesExhausted, Quarantined), flows=lambda sim: [sim.rerun, sim.call_step],
    ),
    "a rerun of failed work that must not repeat": Scenario(
        "once", ["refused", "refused", "refused", "effect ok"], before=fail_first,
        ends=(*VALUES, OutcomeUnknown, StepFailed), flows=lambda sim: [sim.rerun, sim.call_step],
    ),
    "a rerun of pure work that is done": Scenario(
        "pure", ["effect ok"], before=complete_first, ends=(*VALUES, RetriesExhausted, Quarantined),
        flows=lambda sim: [sim.rerun, sim.call_step],
    ),
    "a decision that it was applied": Scenario(
        "once", ["effect transient"], before=hold_first, ends=("value 1",),
        flows=lambda sim: [sim.settle, sim.call_step],
    ),
    "a decision that it was not applied": Scenario(
        "once", ["transient", "effect ok"], before=hold_first, ends=(*VALUES, OutcomeUnknown),
        flows=lambda sim: [sim.settle, sim.call_step],
    ),
    "a reconcile function that knows later, applied": Scenario(
        "once", ["effect transient"], before=hold_without_answer,
        ends=("value 1",), asks=True,
    ),
    "a reconcile function that knows later, not applied": Scenario(
        "once", ["transient", "effect ok"], before=hold_without_answer,
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
        flows=lambda sim: [lambda: sim.call_step(deadline=1008.0)],
    ),
    "a deadline that passes between two calls": Scenario(
        "idempotent", ["transient", "effect ok"], ends=(*VALUES, DeadlineExceeded), after_crash=pass_time,
        flows=lambda sim: [lambda: sim.call_step(deadline=1008.0)],
    ),
    "a deadline and work that must not repeat": Scenario(
        "once", ["refused", "effect ok"], ends=(*VALUES, DeadlineExceeded, OutcomeUnknown),
        after_crash=pass_time,
        flows=lambda sim: [lambda: sim.call_step(deadline=1008.0)],
    ),
    "a new run after a failure": Scenario(
        "idempotent", ["permanent", "transient", "effect ok"], before=fail_first,
        ends=(*VALUES, StepFailed, Quarantined),
        after_failure="new_run",
    ),
    "no new run after a failure of work that must not repeat": Scenario(
        "once", ["refused", "refused", "refused", "effect ok"], before=fail_first, ends=(StepFailed,),
        after_failure="new_run",
    ),
    "another config of pure work": Scenario(
        "pure", ["effect ok"], before=complete_first, ends=(*VALUES, RetriesExhausted, Quarantined),
        flows=lambda sim: [lambda: sim.call_step(cfg_hash="other")],
    ),
    "another config of work with effects": Scenario(
        "idempotent", ["effect ok"], before=complete_first, ends=("value 1",),
        flows=lambda sim: [lambda: sim.call_step(cfg_hash="other")],
    ),
    "work that is handed in": Scenario(
        "idempotent", ["transient", "effect ok"], ends=(*VALUES, RetriesExhausted, Quarantined),
        flows=lambda sim: [sim.submit, sim.submit, sim.call_step],
    ),
    "work that must not repeat and is handed in for later": Scenario(
        "once", ["refused", "effect ok"], ends=(*VALUES, OutcomeUnknown),
        flows=lambda sim: [lambda: sim.submit(at=1020.0), sim.call_step],
    ),
    "another config of pure work that is handed in": Scenario(
        "pure", ["effect ok"], before=complete_first, ends=(*VALUES, RetriesExhausted, Quarantined),
        flows=lambda sim: [lambda: sim.submit(cfg_hash="other"), sim.call_step],
    ),
    "work that is cancelled before it has begun": Scenario(
        "idempotent", ["effect ok"], before=submit_first, ends=(Cancelled,),
        flows=lambda sim: [sim.cancel, sim.cancel, sim.call_step],
    ),
    "work that is cancelled between two attempts": Scenario(
        "once", ["refused", "effect ok"], before=fail_one_attempt, ends=(Cancelled,),
        flows=lambda sim: [sim.cancel, sim.call_step],
    ),
    "a rerun of cancelled work": Scenario(
        "idempotent", ["transient", "effect ok"], before=submit_first, ends=(*VALUES, StepFailed),
        flows=lambda sim: [sim.cancel, sim.rerun, sim.call_step],
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


def check_scenario(
    name: str, scenario: Scenario, record_property: Callable[[str, object], None]
) -> tuple[int, int]:
    """Run a scenario whole, then with every crash; return the number of crashes and of operations."""
    whole = scenario.start()
    scenario.run(whole)
    length = whole.length
    scenario.check_end(whole)
    crashes = scenario.crash_everywhere(DEPTH)
    print(f"\n{name}: {crashes} ways to die, {DEPTH} deep")
    record_property("crashes", crashes)
    return crashes, length


@pytest.mark.unmeasured
@pytest.mark.req("WAL-7", "WAL-13")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_at_every_operation_and_again_at_every_one_after_it(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    crashes, length = check_scenario(name, SCENARIOS[name], record_property)
    assert crashes > length


# Single paths, which the scenarios pass through -------------------------------------------------------


def test_an_attempt_continues_from_the_checkpoint_of_the_previous_one() -> None:
    simulation = JudgedSimulation("idempotent", ["checkpoint transient", "checkpoint effect ok"])
    assert simulation.run_process(simulation.call_step) == "value 2"
    assert simulation.found_checkpoints == [1]


def test_events_are_stored_if_and_only_if_the_run_is_committed() -> None:
    simulation = JudgedSimulation("outbox", ["event event permanent"])
    fail_first(simulation)
    assert not simulation.book.events
    simulation.outcomes = ["event event ok"]
    simulation.run_process(simulation.rerun, simulation.call_step)
    assert len(simulation.book.events) == 2
    simulation.judge.closing(simulation.store)


@pytest.mark.req("STATE-6")
def test_attempt_numbers_continue_through_crashes_and_reruns() -> None:
    simulation = JudgedSimulation("idempotent", ["transient"], policy=POLICY.replace(max_attempts=6))
    for _ in range(2):
        assert any(type(op) is ops.RunAttempt for op in simulation.call_step())  # there it dies
        simulation.live_workers.clear()
    assert simulation.load_run().record.attempt == 2
    assert isinstance(simulation.run_process(simulation.call_step), RetriesExhausted)
    assert sorted(simulation.book.executed) == [3, 4, 5, 6]  # a run crashed at attempt 2 resumes at 3
    simulation.outcomes = ["effect ok"]
    assert simulation.run_process(simulation.rerun, simulation.call_step) == "value 7"


@pytest.mark.req("LEASE-7")
def test_ten_redeliveries_of_a_failing_run_add_no_attempts() -> None:
    simulation = JudgedSimulation("idempotent", ["transient"])
    for number in range(1, 11):
        try:
            simulation.run_process(simulation.call_step, crash=CrashPoint(number, "before"))
        except ProcessCrash:
            continue
    assert isinstance(simulation.run_process(simulation.call_step), RetriesExhausted)
    assert simulation.executions <= POLICY.max_attempts


@pytest.mark.req("LEASE-6")
def test_a_worker_that_takes_over_during_a_delay_waits_for_its_end() -> None:
    slow = POLICY.replace(schedule=Schedule("fixed", delays=(20.0,)))
    simulation = JudgedSimulation("idempotent", ["transient", "effect ok"], policy=slow)
    assert any(type(op) is ops.SleepSeconds for op in simulation.call_step())  # it dies in its delay of 20 s
    simulation.live_workers.clear()
    simulation.now += 1.0
    assert simulation.run_process(simulation.call_step) == "value 2"
    assert simulation.load_run().record.started_at >= 1020.0


@pytest.mark.req("WAL-11")
@pytest.mark.parametrize(
    ("outcome", "unknown_answers", "ends"),
    [
        ("effect transient", 0, "value 1"),
        ("transient", 0, "value 2"),
        ("effect transient", 9, OutcomeUnknown),
    ],
    ids=["effect there", "effect absent", "unknown"],
)
def test_the_reconcile_function_is_asked_about_an_intent_without_commit(
    outcome: str, unknown_answers: int, ends: Any
) -> None:
    simulation = JudgedSimulation("once", [outcome, "effect ok"], asks=True)
    script = simulation.call_step()
    for op in script:
        if op == "effect" or (type(op) is ops.RunAttempt and outcome == "transient"):
            break
    if outcome != "transient":
        next(script)  # the effect happens, and its process dies before it is recorded
    else:
        simulation.executions += 1
    simulation.live_workers.clear()
    simulation.unknown_answers = unknown_answers
    ended = simulation.run_process(simulation.call_step)
    assert ended == ends or isinstance(ended, ends)  # type: ignore[arg-type]
    assert len(simulation.effects) == 1


def test_of_two_operators_who_settle_a_run_the_second_changes_nothing() -> None:
    """The attempt that the second operator looked at is over: another one is held by then."""
    simulation = JudgedSimulation("once", ["transient", "effect transient"])
    hold_first(simulation)
    second = simulation.settle()
    for op in second:
        if type(op) is ops.AppendChange:
            break
    simulation.run_process(simulation.settle, simulation.call_step)
    assert isinstance(
        simulation.run_process(simulation.call_step), OutcomeUnknown
    )  # attempt 2 took effect, and is held
    version = simulation.load_run().version
    with pytest.raises(StopIteration) as end:
        while True:
            next(second)
    assert isinstance(end.value.value, UsageError)
    assert simulation.load_run().version == version
    assert len(simulation.effects) == 1


@pytest.mark.parametrize("action", ["rerun", "settle"])
def test_a_decision_with_other_arguments_is_refused(action: str) -> None:
    simulation = JudgedSimulation("once", ["refused"] if action == "rerun" else ["transient"])
    simulation.run_process(simulation.call_step)
    made = simulation.make_call()
    made.input_hash = "other"
    simulation.make_call = lambda: made  # type: ignore[method-assign]
    version = simulation.load_run().version
    script = getattr(simulation, action)()
    with pytest.raises(StopIteration) as end:
        simulation.judge.ended = lambda *args: None  # type: ignore[method-assign]
        while True:
            next(script)
    assert isinstance(end.value.value, KeyConflict)
    assert simulation.load_run().version == version


@pytest.mark.parametrize(
    "plan", [{"after_failure": "new_run"}, {}], ids=["after a failure", "another config"]
)
def test_a_new_run_does_not_begin_after_its_deadline(plan: dict[str, Any]) -> None:
    simulation = JudgedSimulation("pure", ["permanent"] if plan else ["effect ok"], **plan)
    simulation.run_process(simulation.call_step)
    version = simulation.load_run().version
    ended = simulation.run_process(
        lambda: simulation.call_step(deadline=simulation.now, cfg_hash="cfg" if plan else "other")
    )
    assert isinstance(ended, DeadlineExceeded)
    assert simulation.load_run().version == version


@pytest.mark.parametrize("ends", ["ok", "permanent", "cut"])
@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_a_checkpoint_whose_answer_was_lost_for_good_does_not_lose_the_attempt(
    effect: str, ends: str
) -> None:
    """Its outcome is written on what is there, as long as the attempt is the one under way."""
    simulation = JudgedSimulation(effect, [f"checkpoint effect {ends}"])
    script = simulation.call_step()
    real = simulation._append_change

    def unsure(op: ops.AppendChange) -> LoadedHead | None:
        saved = real(op)
        return op.head if op.change.marks == ("CHECKPOINT",) else saved

    simulation._append_change = unsure  # type: ignore[method-assign]
    with pytest.raises(StopIteration) as end:
        while True:
            next(script)
    run = simulation.load_run().record
    if ends == "ok":
        assert (end.value.value, run.state) == ("value 1", "COMPLETE")
    elif ends == "cut":
        assert isinstance(end.value.value, Interruption)
        assert (run.state, run.reason) == ("SOFT_FAIL", "interrupted")
    elif effect == "once":
        assert isinstance(end.value.value, OutcomeUnknown)
    else:
        assert isinstance(end.value.value, PermanentFailure)
    assert simulation.executions == 1
    assert ENTITY in simulation.judge.books


def test_of_two_submissions_or_cancellations_the_second_reads_again() -> None:
    simulation = JudgedSimulation("idempotent", ["effect ok"])
    # After a conflict a cancellation also asks whether the log has moved; a submission asked that before.
    reads = [ops.LoadHead(ENTITY), ops.ReadClock()]
    asks = ops.AskPermission((), "", begins=False)
    for decide, expected in ((simulation.submit, reads), (simulation.cancel, [asks, *reads])):
        late = decide()
        for op in late:
            if type(op) is ops.AppendChange:
                break
        simulation.run_process(decide)
        version = simulation.load_run().version
        assert list(late) == expected, "it reads again, and finds that all is done"
        assert simulation.load_run().version == version


# Runs that are cancelled while they run ---------------------------------------------------------------

RUNNING = {
    "it commits": ("idempotent", "effect ok", ("value 1",)),
    "it fails": ("idempotent", "effect transient", (Cancelled, RetriesExhausted)),
    "it fails for good": ("idempotent", "permanent", (StepFailed,)),
    "it keeps checkpoints": ("idempotent", "checkpoint effect ok", ("value 1",)),
    "it must not repeat, and commits": ("once", "effect ok", ("value 1",)),
    "it must not repeat, and nothing has happened": ("once", "refused", (Cancelled, RetriesExhausted)),
    "it must not repeat, and its outcome is unknown": ("once", "effect transient", (OutcomeUnknown,)),
    "it is cut off": ("idempotent", "effect cut", (Interruption,)),
}


def cancel_before(
    effect: str, outcome: str, at: int, crash: CrashPoint | None
) -> tuple[JudgedSimulation, Any, int] | None:
    """Cancel a call before one of its operations, in a process that may crash.

    Return how the call ended, and the number of the cancelled attempt; None after the last operation.
    """
    simulation = JudgedSimulation(effect, [outcome])
    script = simulation.call_step()
    try:
        for _ in range(at):
            next(script)
    except StopIteration:
        return None
    judged_call, worker = simulation.judged_call, simulation.worker
    try:
        answer = simulation.run_process(simulation.cancel, crash=crash)
        assert answer is None or isinstance(answer, UsageError | OutcomeUnknown), answer
    except ProcessCrash:
        pass
    simulation.judged_call, simulation.worker = judged_call, worker
    simulation.live_workers.add(worker)
    run = simulation.load_run().record
    number = run.attempt if run is not None and run.cancelled_at else 0
    try:
        while True:
            next(script)
    except StopIteration as end:
        return simulation, end.value, number


@pytest.mark.unmeasured
@pytest.mark.parametrize("name", RUNNING)
def test_a_run_that_is_cancelled_while_it_runs_commits_or_is_not_retried(name: str) -> None:
    effect, outcome, ends = RUNNING[name]
    kinds = tuple(kind for kind in ends if isinstance(kind, type))
    cancelled = 0
    for at, crash_number in ((n // 5 + 1, n % 5) for n in itertools.count()):
        crash = CrashPoint(crash_number, "before") if crash_number else None
        found = cancel_before(effect, outcome, at, crash)
        if found is None:
            break
        simulation, ended, number = found
        run = simulation.load_run().record
        simulation.judge.closing(simulation.store)
        if run.cancelled_at:
            cancelled += 1
            assert ended in ends or isinstance(ended, kinds), (at, ended)
            assert run.attempt == number, "no further attempt begins"
            again = simulation.run_process(simulation.call_step)
            assert again == ended or type(again) is type(ended) or type(ended) is Interruption
            assert simulation.load_run().record.attempt == number
    assert cancelled
