"""A switch turned on, and a process crashed, at every operation of a call: no attempt begins after it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.control.model import (
    ALL_EXECUTION,
    APPROVAL_NEEDED,
    SWITCHES_ENTITY,
    Approval,
    SwitchBoard,
    turn_switch_off,
    turn_switch_on,
)
from oncemore.control.permits import approval_entity
from oncemore.errors import NotPermitted, OutcomeUnknown
from oncemore.log.entry_codec import build_write, decode_head, decode_header
from oncemore.log.record import NOWHERE, RecordChange
from oncemore.log.store import Batch, Stored
from oncemore.steps import ops
from oncemore.steps.transitions import end_attempt
from tests.crash.harness import BEFORE_EACH, crash_everywhere
from tests.crash.simulation import ENTITY, JudgedSimulation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.crash.harness import CrashPoint

DETAILS = {"by": "operator", "reason": "stop", "at": 1.0}


def turn_switch(simulation: JudgedSimulation, change_board: Callable[[SwitchBoard], SwitchBoard]) -> None:
    """Turn the switch as another process would."""
    simulation.judge.people = True
    head = simulation.store.load_head(SWITCHES_ENTITY)
    before: SwitchBoard | None = None if head is None else decode_head(head.head, SwitchBoard)
    change = RecordChange(("CONTROL",), before, change_board(before or SwitchBoard()))
    version, prev = (0, NOWHERE) if head is None else (head.version, head.hash)
    write = build_write(SWITCHES_ENTITY, version, prev, change, simulation.now)
    assert isinstance(simulation.store.append(Batch((write,))).wait(), Stored)


def turn_on(simulation: JudgedSimulation) -> None:
    turn_switch(simulation, lambda board: turn_switch_on(board, ALL_EXECUTION, DETAILS))


def turn_off(simulation: JudgedSimulation) -> None:
    turn_switch(simulation, lambda board: turn_switch_off(board, ALL_EXECUTION))


def intents(simulation: JudgedSimulation, *, stopped: bool = False) -> list[int]:
    """Return the INTENTs in the log; with `stopped`, those that were written while the switch was on."""
    on, found = False, []
    for entry in simulation.store.read_entries():
        header = decode_header(entry.header)
        if entry.entity == SWITCHES_ENTITY:
            on = header.sets["state"] == "STOPPED"
        elif "INTENT" in header.marks and (on or not stopped):
            found.append(entry.seq)
    return found


class SwitchScenario:
    """A call during which the switch is turned on, before the operation of a number."""

    def __init__(self, effect: str, switch_at: int, *, checks_guards_late: bool) -> None:
        self.effect, self.switch_at, self.checks_guards_late = effect, switch_at, checks_guards_late
        self.end: Any = None

    def start(self) -> JudgedSimulation:
        """Return the state that the process finds."""
        outcomes = {"once": ["refused", "effect ok"]}.get(self.effect, ["transient", "event effect ok"])
        self.end = None
        return JudgedSimulation(self.effect, outcomes, checks_guards_late=self.checks_guards_late)

    def run(self, simulation: JudgedSimulation, crash: CrashPoint | None = None) -> None:
        """Call, and turn the switch on in between."""

        def call_while_switching() -> Generator[Any, Any, Any]:
            script = simulation.call_step()
            for number in itertools.count(1):
                try:
                    op = next(script)
                except StopIteration as end:
                    return end.value
                if number == self.switch_at:
                    turn_on(simulation)
                yield op

        self.end = simulation.run_process(call_while_switching, crash=crash)

    def check_end(self, simulation: JudgedSimulation, *, crashed: bool) -> None:
        """Check that no attempt begins before the switch is off, and that the run then ends."""
        executed, void = simulation.executions, simulation.void_claims
        assert executed <= len(intents(simulation)) - void, "no attempt runs by a void claim"
        if crashed and simulation.store.load_head(SWITCHES_ENTITY) is None:
            turn_on(simulation)  # the process crashed before the switch was turned on
        again = simulation.run_process(simulation.call_step)  # another process calls while it is on
        assert simulation.executions == executed, "no attempt runs while the switch is on"
        assert len(intents(simulation, stopped=True)) == simulation.void_claims, "only void claims"
        if again not in ("value 1", "value 2"):
            assert isinstance(again, NotPermitted | OutcomeUnknown), again
        turn_off(simulation)
        for _ in range(5):
            end = simulation.run_process(simulation.call_step)
            if not isinstance(end, NotPermitted):
                break
        assert end in ("value 1", "value 2", "value 3") or isinstance(end, OutcomeUnknown), end
        simulation.judge.closing(simulation.store)
        assert isinstance(self.end, NotPermitted | OutcomeUnknown | str) or self.end is None
        attempts = simulation.load_run().record.attempt_count
        assert attempts <= simulation.executions + crashed, "a claim that did not begin is not an attempt"
        if self.effect == "once":
            assert len(simulation.effects) <= 1


@pytest.mark.unmeasured
@pytest.mark.req("AUTO-7")
@pytest.mark.parametrize("checks_guards_late", [False, True], ids=["guarded", "checked late"])
@pytest.mark.parametrize("effect", ["idempotent", "once", "outbox"])
def test_a_switch_and_a_crash_at_every_operation(
    effect: str, checks_guards_late: bool, record_property: Callable[[str, object], None]
) -> None:
    ways = void_claims = 0
    for switch_at in itertools.count(1):
        scenario = SwitchScenario(effect, switch_at, checks_guards_late=checks_guards_late)
        whole = scenario.start()
        scenario.run(whole)
        if switch_at > whole.length:
            break
        ways, void_claims = ways + 1, void_claims + whole.void_claims
        scenario.check_end(whole, crashed=False)
        for simulation in crash_everywhere(scenario.start, scenario.run, [BEFORE_EACH]):
            ways, void_claims = ways + 1, void_claims + simulation.void_claims
            scenario.check_end(simulation, crashed=True)
    record_property("gate crashes", ways)
    assert ways > 50
    assert bool(void_claims) == checks_guards_late


def test_a_void_claim_that_another_worker_has_taken_over_belongs_to_it() -> None:
    """Its worker was taken for dead before it could release the claim."""
    simulation = JudgedSimulation("idempotent", ["effect ok"], checks_guards_late=True)
    script = simulation.call_step()
    for op in script:
        if type(op) is ops.AppendChange and "INTENT" in op.change.marks and not simulation.void_claims:
            turn_on(simulation)
        if simulation.void_claims:
            break
    assert type(op) is ops.AppendChange
    assert op.change.after.reason == "released"
    turn_off(simulation)
    simulation.live_workers.clear()
    assert simulation.run_process(simulation.call_step) == "value 2"
    with pytest.raises(StopIteration) as end:
        while True:
            next(script)
    assert end.value.value == "value 2"
    assert simulation.executions == 1
    simulation.judge.closing(simulation.store)


def approve(simulation: JudgedSimulation) -> None:
    """Approve the run as `engine.approvals` does: in the same batch as the run."""
    head = simulation.load_run()
    assert head.body is not None
    wanted = head.body["requested"]
    approval = Approval(
        "GRANTED",
        wanted["run_entity"],
        wanted["step"],
        wanted["effect"],
        wanted["input_hash"],
        wanted["cfg_hash"],
        wanted["policy"],
        9,
        0.0,
        "reviewer",
        "seen",
        simulation.now,
    )
    name = approval_entity(ENTITY)
    after = end_attempt(head.record, head.record.state, "decided", not_before=simulation.now)
    writes = (
        build_write(name, 0, NOWHERE, RecordChange(("APPROVAL",), None, approval), simulation.now),
        build_write(
            ENTITY,
            head.version,
            head.hash,
            RecordChange((head.record.state, "DECISION"), head.record, after),
            simulation.now,
        ),
    )
    assert isinstance(simulation.store.append(Batch(writes)).wait(), Stored)
    simulation.book.run = after  # the judge has not seen it
    simulation.book.version, simulation.book.hash = head.version + 1, writes[1].hash


def start_unapproved() -> JudgedSimulation:
    simulation = JudgedSimulation("once", ["effect ok"], requires_approval=True)
    simulation.judge.people = True
    return simulation


def start_approved() -> JudgedSimulation:
    simulation = start_unapproved()
    assert isinstance(simulation.run_process(simulation.call_step), NotPermitted)
    approve(simulation)
    return simulation


def run_call(simulation: JudgedSimulation, crash: CrashPoint | None) -> None:
    simulation.run_process(simulation.call_step, crash=crash)


@pytest.mark.req("AUTO-9")
def test_a_crash_at_every_operation_of_a_run_that_needs_an_approval(
    record_property: Callable[[str, object], None],
) -> None:
    ways = 0
    for simulation in crash_everywhere(start_unapproved, run_call, [BEFORE_EACH]):
        assert simulation.executions == 0
        assert isinstance(simulation.run_process(simulation.call_step), NotPermitted)
        assert simulation.load_run().record.held_for == APPROVAL_NEEDED
        ways += 1
    for simulation in crash_everywhere(start_approved, run_call, [BEFORE_EACH]):
        end = simulation.run_process(simulation.call_step)
        assert end == "value 1" or isinstance(end, OutcomeUnknown)
        assert len(simulation.effects) <= 1
        ways += 1
    record_property("gate crashes", ways)
    assert ways > 10


def test_every_intent_is_guarded_by_the_switches_it_was_permitted_by() -> None:
    simulation = JudgedSimulation("idempotent", ["transient", "effect ok"])
    saves: list[ops.AppendChange] = []
    script = simulation.call_step()
    for op in script:
        if type(op) is ops.AppendChange and "INTENT" in op.change.marks:
            saves.append(op)
    assert [save.guards for save in saves] == [{SWITCHES_ENTITY: 0}, {SWITCHES_ENTITY: 0}]
