"""Calls, crashes, decisions and time in any order, against a model that fits on one screen.

The first machine holds the flow to the table of the second call (docs/design.md): what the key's last run
is decides what a call does. Its model knows nothing of entries, leases and fences: only what a user knows.
The second holds the SQLite store to the one in memory, which is the protocol written plainly.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from oncemore.errors import (
    DeadlineExceeded,
    Deferred,
    InProgress,
    KeyConflict,
    OutcomeUnknown,
    PermanentFailure,
    Quarantined,
    RetriesExhausted,
    UsageError,
)
from oncemore.log.entry_codec import hash_entry
from oncemore.log.memory import MemoryStore
from oncemore.log.record import NOWHERE
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, Conflict, EntryWrite, HeadIndex, HeadQuery, Stored
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.canonical_json import hash_bytes
from oncemore.policy.policy import Policy
from oncemore.steps import operator_flow, ops
from tests.crash.harness import start_call
from tests.crash.simulation import StepSimulation, decide_as_operator
from tests.sim.test_bug_bank import BUGS

DELAY_S, INLINE_S, ATTEMPTS = 100.0, 60.0, 3
POLICY = Policy(
    "model",
    max_attempts=ATTEMPTS,
    max_crashes=None,
    schedule=Schedule("fixed", delays=(DELAY_S,)),
    jitter=Jitter("none"),
)
TURNS = ("ok", "transient", "transient after", "permanent", "refused")


class Model:
    """What a user knows of a key: where its run is, how often it was tried, when it may go on."""

    def __init__(self, effect: str) -> None:
        self.effect = effect
        self.at = "none"  # … waits, held, poison, failed, done, lost (its worker died in it)
        self.why: type = PermanentFailure
        self.attempt_count = 0
        self.ran = 0  # executions, over all runs
        self.due = 0.0

    def begins(self) -> None:
        self.at, self.attempt_count = "waits", 0

    def runs(self, turn: str, now: float) -> None:
        """An execution ends."""
        self.attempt_count += 1
        self.ran += 1
        if turn == "ok":
            self.at = "done"
        elif self.effect == "once" and turn != "refused":
            self.at = "held"
        elif turn == "permanent":
            self.at, self.why = "failed", PermanentFailure
        elif self.attempt_count >= ATTEMPTS:
            self.at, self.why = "failed", RetriesExhausted
        else:
            self.at, self.due = "waits", now + DELAY_S

    def closes(self, now: float) -> None:
        """Somebody finds that the worker of the last attempt is gone."""
        if self.effect == "once":
            self.at = "held"
        elif self.attempt_count >= ATTEMPTS:
            self.at = "poison"
        else:
            self.at, self.due = "waits", now

    def call(self, turn: str, now: float) -> Any:
        """What a call does and ends with: a value, or the type of its error."""
        if self.at == "none":
            self.begins()
            self.due = now
        if self.at == "lost":
            self.closes(now)
        if self.at == "waits":
            if self.due - now > INLINE_S:
                return Deferred
            self.runs(turn, max(now, self.due))
            if self.at == "waits":
                return Deferred  # the next delay is longer than a call waits
        return {"done": "value", "failed": self.why, "held": OutcomeUnknown, "poison": Quarantined}[self.at]


class FlowMachine(RuleBasedStateMachine):
    """One key, called, killed, waited for, reopened and settled."""

    effect: ClassVar[str] = "idempotent"

    def __init__(self) -> None:
        super().__init__()
        self.simulation = StepSimulation(self.effect, ["ok"])
        self.model = Model(self.effect)
        self.plan = self.simulation.make_plan().copy_with(policy=POLICY, inline_wait_s=INLINE_S)

    def run(self, script: Any) -> Any:
        """Run a script to its end; return its value, or the type of its error."""
        end = self.simulation.start(script).run()
        self.simulation.live_workers.clear()
        return end.value if end.error is None else type(end.error)

    def turn(self, turn: str) -> None:
        self.simulation.outcomes = [turn]

    @rule(turn=st.sampled_from(TURNS))
    def call(self, turn: str) -> None:
        self.turn(turn)
        expected = self.model.call(turn, self.simulation.now)
        assert self.run(start_call(self.plan, self.simulation.make_call())) == expected

    @rule(seconds=st.sampled_from((1.0, 50.0, 200.0)))
    def time_passes(self, seconds: float) -> None:
        self.simulation.now += seconds

    @precondition(lambda self: self.model.at in ("none", "waits"))
    @rule(where=st.sampled_from(("before the claim", "after the claim", "after the work")))
    def a_process_dies(self, where: str) -> None:
        """A worker is killed on its way; what it had begun counts."""
        self.turn("ok")
        model, now = self.model, self.simulation.now
        late = model.at == "waits" and model.due - now > INLINE_S
        process = self.simulation.start(start_call(self.plan, self.simulation.make_call()))
        while process.op is not None and type(process.op) is not ops.RunAttempt:
            if type(process.op) is ops.AppendChange and where == "before the claim":
                break
            process.step()
        if process.op is None:
            assert late
            assert isinstance(process.result.error, Deferred)
            self.simulation.live_workers.clear()
            return
        if where == "after the work":
            self.simulation.perform(process.op)
            model.ran += 1
        self.simulation.live_workers.clear()
        if where != "before the claim":
            model.at, model.attempt_count = "lost", (0 if model.at == "none" else model.attempt_count) + 1

    @rule(turn=st.sampled_from(TURNS))
    def rerun(self, turn: str) -> None:
        self.turn(turn)
        model = self.model
        ended = self.run(
            operator_flow.reopen_run(self.plan, self.simulation.make_call(), decide_as_operator("rerun"))
        )
        if model.at == "failed" or (model.at == "done" and self.effect == "pure"):
            assert ended is None
            model.begins()
            model.due = self.simulation.now
        elif model.at == "held":
            assert ended is OutcomeUnknown
        elif model.at == "poison":
            assert ended is Quarantined
        else:
            assert ended is (InProgress if model.at == "lost" else UsageError)

    @rule(applied=st.booleans())
    def settle(self, applied: bool) -> None:
        answer = ops.ReconcileAnswer("applied", "value") if applied else ops.ReconcileAnswer("not_applied")
        ended = self.run(operator_flow.settle_run(self.plan, self.simulation.make_call(), answer))
        if self.model.at != "held":
            assert ended is UsageError
        elif applied:
            self.model.at = "done"
        elif self.model.attempt_count >= ATTEMPTS:
            self.model.at, self.model.why = "failed", RetriesExhausted
        else:
            self.model.at, self.model.due = "waits", self.simulation.now

    @rule()
    def another_call_has_the_key(self) -> None:
        other = self.simulation.make_call()
        other.input_hash = "other"
        ended = self.run(start_call(self.plan, other)) if self.model.at != "none" else KeyConflict
        assert ended is KeyConflict

    @rule()
    def too_late(self) -> None:
        """A call whose time is over begins nothing."""
        if self.model.at == "none":
            late = self.simulation.make_call()
            late.deadline = self.simulation.now
            assert self.run(start_call(self.plan, late)) is DeadlineExceeded

    @invariant()
    def the_log_holds(self) -> None:
        assert self.simulation.executions == self.model.ran
        seen = self.simulation.load_run()
        if seen.record is None:
            assert self.model.at == "none"
            return
        states = {"lost": "RUNNING", "failed": "HARD_FAIL", "done": "COMPLETE"}
        states |= dict.fromkeys(("held", "poison"), "SOFT_FAIL")
        assert seen.record.state == states.get(self.model.at, seen.record.state)
        assert seen.record.attempt_count == self.model.attempt_count
        assert seen.record.held_for == {"held": "outcome_unknown", "poison": "poison"}.get(self.model.at, "")


class Pure(FlowMachine):
    effect = "pure"


class Outbox(FlowMachine):
    effect = "outbox"


class Once(FlowMachine):
    effect = "once"


RUNS = settings(stateful_step_count=30, suppress_health_check=[HealthCheck.filter_too_much])


TestAnyOrderOfCallsGoesAsTheTableSays = FlowMachine.TestCase
TestAnyOrderOfPureCallsGoesAsTheTableSays = Pure.TestCase
TestAnyOrderOfCallsThatEmitGoesAsTheTableSays = Outbox.TestCase
TestAnyOrderOfCallsThatMustNotRepeatGoesAsTheTableSays = Once.TestCase
for case in (FlowMachine, Pure, Outbox, Once):
    case.TestCase.settings = RUNS


@pytest.mark.parametrize(
    ("bug", "machine"),
    [
        ("a held run is tried by the next caller", Once),
        ("once is tried again after any error", Once),
        ("once begins anew after its failure", FlowMachine),
        ("who takes over does not wait", FlowMachine),
        ("a lost attempt does not count", FlowMachine),
    ],
)
def test_a_flow_that_goes_another_way_is_noticed(
    bug: str, machine: type[FlowMachine], monkeypatch: pytest.MonkeyPatch
) -> None:
    BUGS[bug](monkeypatch)
    # The same examples every time: that a bug can be noticed is shown, not that chance is kind today.
    quick = settings(
        RUNS,
        phases=[Phase.generate],
        database=None,
        report_multiple_bugs=False,
        derandomize=True,
        max_examples=300,
    )
    with pytest.raises((AssertionError, FlakyFailure)):
        run_state_machine_as_test(machine, settings=quick)


# Two stores ---------------------------------------------------------------------------------------------

ENTITIES = ("run/a", "run/b", "worker/c", "event/d")


class StoreMachine(RuleBasedStateMachine):
    """The same batches to both: the same answers, heads and entries from both."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.open()
        self.model = MemoryStore(lambda: 0.0)
        self.written = 0

    def open(self) -> None:
        self.store = SqliteStore(self.folder / "log.db")

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @rule(
        entities=st.lists(st.sampled_from(ENTITIES), min_size=1, max_size=3, unique=True),
        stale=st.lists(st.integers(-2, 2), min_size=3, max_size=3),
        guarded=st.lists(st.tuples(st.sampled_from(ENTITIES), st.booleans()), max_size=2),
        state=st.sampled_from(("PENDING", "RUNNING", "COMPLETE")),
        due=st.none() | st.floats(0, 10),
        body=st.binary(max_size=20),
        sync=st.booleans(),
    )
    def append(
        self, entities: list[str], stale: list[int], guarded: list[tuple[str, bool]], state: str,
        due: float | None, body: bytes, sync: bool,
    ) -> None:  # fmt: skip
        """Most batches fit; some expect a version that is not there, some guard one that has moved."""
        writes = []
        for entity, by in zip(entities, stale, strict=False):
            head = self.model.load_head(entity)
            self.written += 1
            version = max(0, (0 if head is None else head.version) + (by if abs(by) == 2 else 0))
            header = f"{self.written}:{entity}".encode()
            prev = NOWHERE if head is None else head.hash
            index = HeadIndex(entity.split("/")[0], state, due, "step", "w", "d")
            made = hash_entry(prev, header, hash_bytes(body))
            writes.append(EntryWrite(entity, version, header, body, made, b"head " + header, index))
        guards = {}
        for entity, holds in guarded:
            if entity not in entities:
                head = self.model.load_head(entity)
                guards[entity] = (0 if head is None else head.version) + (0 if holds else 1)
        batch = Batch(tuple(writes), guards, sync)
        answers = [store.append(batch).wait() for store in (self.model, self.store)]
        assert type(answers[0]) is type(answers[1])
        if isinstance(answers[0], Stored):
            assert answers[0] == answers[1]
        else:
            assert isinstance(answers[1], Conflict)
            there = self.model.load_head(answers[1].entity)  # of several conflicts, either store names one
            assert answers[1].head == there
            wanted = {**guards, **{write.entity: write.expect for write in writes}}
            assert (0 if there is None else there.version) != wanted[answers[1].entity]

    @rule(entity=st.sampled_from(ENTITIES), before=st.integers(0, 6))
    def prune(self, entity: str, before: int) -> None:
        head = self.model.load_head(entity)
        if head is not None:
            for store in (self.model, self.store):
                store.open_maintenance().prune_bodies({entity: min(before, head.version)})

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.open()

    @rule(
        kind=st.sampled_from(("run", "worker", "event")),
        state=st.none() | st.sampled_from(("PENDING", "RUNNING")),
        due_by=st.none() | st.floats(0, 10),
        limit=st.integers(1, 3),
    )
    def look(self, kind: str, state: str | None, due_by: float | None, limit: int) -> None:
        query = HeadQuery(kind, state, due_by, limit=limit)
        assert list(self.store.list_heads(query)) == list(self.model.list_heads(query))

    @rule(entity=st.none() | st.sampled_from(ENTITIES), after=st.integers(0, 5))
    def read(self, entity: str | None, after: int) -> None:
        assert list(self.store.read_entries(entity, after)) == list(self.model.read_entries(entity, after))

    @invariant()
    def heads_are_the_same(self) -> None:
        for entity in ENTITIES:
            assert self.store.load_head(entity) == self.model.load_head(entity)


TestTheStoreInAFileAnswersAsTheOneInMemory = StoreMachine.TestCase
StoreMachine.TestCase.settings = RUNS
