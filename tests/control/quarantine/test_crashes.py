"""Crashes anywhere: a hold is written together with its notifications, and a decision is one write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import oncemore
from oncemore.control.review import make_decision, record_decision
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import RunRecord
from oncemore.log.store import HeadQuery
from oncemore.steps.call import PreparedCall
from oncemore.steps.engine import Engine
from oncemore.steps.history import verify_chain
from oncemore.steps.ops import RunAttempt
from tests.artifacts.conftest import alter
from tests.control.quarantine.helpers import (
    RecordingSink,
    charge,
    doubtful,
    list_notifications,
    make_manual_notifier,
    processes,
)
from tests.crash.harness import ScriptRun, crash_everywhere, run_with_driver, start_engine_call
from tests.steps.colours import RAISES

#: Starts a process on the store of a scenario.
Start = Callable[[], Engine]


def crash_everywhere_in(
    prepare: Callable[[], Start], call: Callable[[Engine], ScriptRun]
) -> tuple[int, list[Start]]:
    """Crash a call before and after each of its operations.

    Return the number of its operations, and what starts the processes that recover.
    """
    whole = call(prepare()())
    whole.run()
    return whole.count, list(crash_everywhere(prepare, lambda start, crash: call(start()).run(crash)))


def check_notifications(engine: Engine, sinks: int) -> None:
    """Check that every item in quarantine has its notifications, and that there are no others."""
    held = len(engine.quarantine)
    assert len(list_notifications(engine)) == held * sinks
    for item in engine.quarantine:
        assert len(engine.quarantine.show(item).notifications) == sinks
    verify_chain(engine.store.read_entries())


def start_with_sinks(count: int) -> Start:
    """Return what starts processes that notify so many sinks."""
    return processes(lambda: make_manual_notifier(*(RecordingSink() for _ in range(count))))


CALLS: dict[str, Callable[[Engine], ScriptRun]] = {
    "a review": lambda engine: start_engine_call(engine, doubtful, 1),
    "an unknown outcome": lambda engine: start_engine_call(engine, charge, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_crash_anywhere_leaves_the_hold_with_all_its_notices_or_neither(name: str) -> None:
    length, crashes = crash_everywhere_in(lambda: start_with_sinks(2), CALLS[name])
    assert len(crashes) == 2 * length
    holds = 0
    for start in crashes:
        after = start()
        check_notifications(after, 2)
        holds += len(after.quarantine)
        CALLS[name](start()).run()  # the next process brings it to the same end
        check_notifications(start(), 2)
        assert len(after.quarantine) == 1
    assert holds, "no crash fell after the hold"


def test_a_crash_anywhere_leaves_a_failure_with_all_its_notices_or_neither() -> None:
    @oncemore.step(effect="idempotent", name="broken", policy=RAISES)
    def broken(x: int) -> None:
        raise ValueError(x)

    def call(engine: Engine) -> ScriptRun:
        return start_engine_call(engine, broken, 1)

    def has_failed(engine: Engine) -> bool:
        heads = engine.store.list_heads(HeadQuery("run"))
        return any(decode_head(head.head).state == "HARD_FAIL" for head in heads)

    length, crashes = crash_everywhere_in(lambda: start_with_sinks(2), call)
    assert len(crashes) == 2 * length
    failures = 0
    for start in crashes:
        failures += has_failed(start())
        assert len(list_notifications(start())) == (2 if has_failed(start()) else 0)
        call(start()).run()  # the next process brings it to the same end
        assert has_failed(start())
        assert len(list_notifications(start())) == 2
    assert failures, "no crash fell after the failure was written"


def test_a_crash_anywhere_in_closing_the_last_lost_attempt_leaves_poison_with_its_notices_or_neither() -> (
    None
):
    step = oncemore.step(effect="pure", name="deadly", policy=oncemore.Policy(max_crashes=1))(lambda: 1)

    def call(engine: Engine) -> ScriptRun:
        return start_engine_call(engine, step)

    def lose_the_attempt() -> Start:
        start = start_with_sinks(1)
        victim = call(start())
        victim.run_until(RunAttempt)
        victim.end_process()
        return start

    length, crashes = crash_everywhere_in(lose_the_attempt, call)
    assert len(crashes) == 2 * length
    for start in crashes:
        check_notifications(start(), 1)
        call(start()).run()
        check_notifications(start(), 1)
        assert [item.reason for item in start().quarantine] == ["poison"]


def test_a_crash_anywhere_in_meeting_altered_bytes_leaves_the_hold_or_neither() -> None:
    @oncemore.step(effect="pure", name="report", artifact="report")
    def report() -> Any:
        return oncemore.current().put(b"the report")

    def alter_the_report() -> Start:
        artifacts = oncemore.open("memory:").artifact_store
        start = start_with_sinks(1)

        def start_with_artifacts() -> Engine:
            engine = start()
            engine.artifact_store = artifacts
            return engine

        alter(artifacts.backend, report.bind(start_with_artifacts())().digest)
        return start_with_artifacts

    def call(engine: Engine) -> ScriptRun:
        return start_engine_call(engine, report)

    length, crashes = crash_everywhere_in(alter_the_report, call)
    assert len(crashes) == 2 * length
    for start in crashes:
        call(start()).run()
        engine = start()
        (item,) = engine.quarantine
        assert (item.kind, item.reason) == ("run", "checksum_mismatch")
        # The reference was quarantined first, then the run was held: the second is notified later.
        assert [event.ordinal for event in list_notifications(engine)] == [0, 1]
        verify_chain(engine.store.read_entries())


@pytest.mark.parametrize("action", ["release", "reject", "rerun"])
def test_a_crash_anywhere_in_a_decision_leaves_it_made_or_not(action: str) -> None:
    def decide(engine: Engine) -> ScriptRun:
        entity = f"run/{doubtful.bind(engine).key(1)}"
        decision = make_decision(action, "operator", "looked", 0, 1 if action == "rerun" else 0)
        job = PreparedCall.for_decision(engine)
        return run_with_driver(engine, job, record_decision(entity, RunRecord, decision))

    def hold_for_review() -> Start:
        start = processes()
        CALLS["a review"](start()).run()
        return start

    before = len(list(hold_for_review()().store.read_entries()))
    length, crashes = crash_everywhere_in(hold_for_review, decide)
    assert len(crashes) == 2 * length
    outcomes = set()
    for start in crashes:
        engine = start()
        written = list(engine.store.read_entries())[before:]
        assert len(written) in (0, 1), "a decision is one append"
        assert len(engine.quarantine) == 1 - len(written)
        outcomes.add(len(written))
        if not written:
            decide(start()).run()
        assert len(engine.quarantine) == 0
        verify_chain(engine.store.read_entries())
    assert outcomes == {0, 1}


@pytest.mark.parametrize("colour", ["plain", "async"])
@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_two_that_hold_at_the_same_time_write_one_notice_between_them(effect: Any, colour: str) -> None:
    start = processes(lambda: make_manual_notifier(RecordingSink(), RecordingSink()))
    one, other = start(), start()

    def fail(x: int) -> None:
        raise oncemore.NeedsReview("WHO")

    async def fail_awaited(x: int) -> None:
        raise oncemore.NeedsReview("WHO")

    step: Any = oncemore.step(effect=effect, name="work")(fail if colour == "plain" else fail_awaited)
    quick = oncemore.step(effect=effect, name="work")(fail)
    assert one.notifier is not None
    add, first, under_way = one.notifier.add_notifications, [True], []

    def slow(engine: Engine, *args: Any) -> Any:
        """Add the notifications; before they are written, another process holds a run for the same reason."""
        made = add(engine, *args)
        if made[1] and first:
            first.pop()
            quick.bind(other).run(2)
        elif made[1]:
            (me,) = engine.leases.workers.values()
            under_way.append(me.has_attempt(args[0], 1))
        return made

    one.notifier.add_notifications = slow  # type: ignore[method-assign]
    ended = step.bind(one).run(1)
    run = ended if colour == "plain" else asyncio.run(ended)
    assert (bool(run.held_for), len(run.attempts)) == (True, 1)
    assert under_way == [True], "no process may take it for lost in between"
    engine = start()
    assert len(engine.quarantine) == 2
    assert [(event.topic[-1], event.ordinal) for event in list_notifications(engine)] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1),
    ]  # fmt: skip
    verify_chain(engine.store.read_entries())
