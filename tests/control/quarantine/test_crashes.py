"""A process may die before or after all it does: a hold and its notices are one write, a decision is one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.control.review import make_decision, record_decision
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import RunRecord
from oncemore.log.store import HeadQuery
from oncemore.steps.history import verify_chain
from oncemore.steps.ops import RunAttempt
from tests.artifacts.conftest import alter
from tests.control.quarantine.world import Call, Crash, Heard, charge, die, doubtful, processes, quiet, told

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.steps.engine import Engine

WHENS = ("before", "after")


def judge(engine: Engine, sinks: int) -> None:
    """Whatever is held has its notices, and what has notices is held."""
    held = len(engine.quarantine)
    assert len(told(engine)) == held * sinks
    for item in engine.quarantine:
        assert len(engine.quarantine.show(item).notifications) == sinks
    verify_chain(engine.store.read_entries())


def end(engine: Engine, call: Callable[[Engine], Any], crash_at: tuple[int, str] | None = None) -> int:
    """Run a process to its end or to its crash; return how many operations it took, 0 if it died."""
    made = call(engine)
    try:
        made.run(crash_at)
    except Crash:
        return 0
    return int(made.count)


CALLS: dict[str, Callable[[Engine], Any]] = {
    "a review": lambda engine: Call.of(engine, doubtful, 1),
    "an unknown outcome": lambda engine: Call.of(engine, charge, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_crash_anywhere_leaves_the_hold_with_all_its_notices_or_neither(name: str) -> None:
    call, start = CALLS[name], processes(lambda: quiet(Heard(), Heard()))
    most, crashes, holds = end(start(), call), 0, 0
    for at in range(1, most + 1):
        for when in WHENS:
            start = processes(lambda: quiet(Heard(), Heard()))
            crashes += end(start(), call, (at, when)) == 0
            after = start()
            judge(after, 2)
            holds += len(after.quarantine)
            end(start(), call)  # whoever comes next brings it to the same end
            judge(start(), 2)
            assert len(after.quarantine) == 1
    assert crashes == 2 * most
    assert holds, "no crash fell after the hold"


def test_a_crash_anywhere_leaves_a_failure_with_all_its_notices_or_neither() -> None:
    @oncemore.step(effect="idempotent", name="broken")
    def broken(x: int) -> None:
        raise ValueError(x)

    def call(engine: Engine) -> Any:
        return Call.of(engine, broken, 1)

    def failed(engine: Engine) -> bool:
        heads = engine.store.list_heads(HeadQuery("run"))
        return any(decode_head(head.head).state == "HARD_FAIL" for head in heads)

    start = processes(lambda: quiet(Heard(), Heard()))
    most, failures = end(start(), call), 0
    for at in range(1, most + 1):
        for when in WHENS:
            start = processes(lambda: quiet(Heard(), Heard()))
            end(start(), call, (at, when))
            failures += failed(start())
            assert len(told(start())) == (2 if failed(start()) else 0)
            end(start(), call)  # the next process brings it to the same end
            assert failed(start())
            assert len(told(start())) == 2
    assert failures, "no crash fell after the failure was written"


def test_a_crash_anywhere_in_closing_the_last_lost_attempt_leaves_poison_with_its_notices_or_neither() -> (
    None
):
    step = oncemore.step(effect="pure", name="deadly", policy=oncemore.Policy(max_attempts=1))(lambda: 1)

    def lost() -> Any:
        start = processes(lambda: quiet(Heard()))
        victim = start()
        Call.of(victim, step).up_to(RunAttempt)
        die(victim)
        return start

    def call(engine: Engine) -> Any:
        return Call.of(engine, step)

    most = end(lost()(), call)
    for at in range(1, most + 1):
        for when in WHENS:
            start = lost()
            end(start(), call, (at, when))
            judge(start(), 1)
            end(start(), call)
            judge(start(), 1)
            assert [item.reason for item in start().quarantine] == ["poison"]


def test_a_crash_anywhere_in_meeting_altered_bytes_leaves_the_hold_or_neither() -> None:
    @oncemore.step(effect="pure", name="report", artifact="report")
    def report() -> Any:
        return oncemore.current().put(b"the report")

    def flipped() -> Any:
        shelf = oncemore.open("memory:").artifact_store
        start = processes(lambda: quiet(Heard()))

        def started() -> Engine:
            made = start()
            made.artifact_store = shelf
            return made

        alter(shelf.backend, report.bind(started())().digest)
        return started

    def call(engine: Engine) -> Any:
        return Call.of(engine, report)

    most = end(flipped()(), call)
    for at in range(1, most + 1):
        for when in WHENS:
            start = flipped()
            end(start(), call, (at, when))
            end(start(), call)
            engine = start()
            (item,) = engine.quarantine
            assert (item.kind, item.reason) == ("run", "checksum_mismatch")
            # The reference was set aside first, then the run was held: the second is told later.
            assert [notice.ordinal for notice in told(engine)] == [0, 1]
            verify_chain(engine.store.read_entries())


@pytest.mark.parametrize("what", ["release", "reject", "rerun"])
def test_a_crash_anywhere_in_a_decision_leaves_it_made_or_not(what: str) -> None:
    def decide(engine: Engine) -> Any:
        entity = f"run/{doubtful.bind(engine).key(1)}"
        made = make_decision(what, "operator", "looked", 0, 1 if what == "rerun" else 0)
        return Call(engine, engine.quarantine._make_call("x"), record_decision(entity, RunRecord, made))

    def held() -> Any:
        start = processes()
        end(start(), CALLS["a review"])
        return start

    most, outcomes = end(held()(), decide), set()
    for at in range(1, most + 1):
        for when in WHENS:
            start = held()
            before = len(list(start().store.read_entries()))
            assert end(start(), decide, (at, when)) == 0
            engine = start()
            written = list(engine.store.read_entries())[before:]
            assert len(written) in (0, 1), "a decision is one append"
            assert len(engine.quarantine) == 1 - len(written)
            outcomes.add(len(written))
            if not written:
                end(start(), decide)
            assert len(engine.quarantine) == 0
            verify_chain(engine.store.read_entries())
    assert outcomes == {0, 1}


@pytest.mark.parametrize("colour", ["plain", "async"])
@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_two_that_hold_at_the_same_time_write_one_notice_between_them(effect: Any, colour: str) -> None:
    start = processes(lambda: quiet(Heard(), Heard()))
    one, other = start(), start()

    def fail(x: int) -> None:
        raise oncemore.NeedsReview("WHO")

    async def fail_awaited(x: int) -> None:
        raise oncemore.NeedsReview("WHO")

    step: Any = oncemore.step(effect=effect, name="work")(fail if colour == "plain" else fail_awaited)
    quick = oncemore.step(effect=effect, name="work")(fail)
    assert one.notifier is not None
    of, first, under_way = one.notifier.add_notifications, [True], []

    def slow(engine: Engine, *told_: Any) -> Any:
        """Make the notices; before they are written, somebody else holds another run for the same reason."""
        made = of(engine, *told_)
        if made[1] and first:
            first.pop()
            quick.bind(other).run(2)
        elif made[1]:
            (me,) = engine.leases.workers.values()
            under_way.append(me.has_attempt(told_[0], 1))
        return made

    one.notifier.add_notifications = slow  # type: ignore[method-assign]
    ended = step.bind(one).run(1)
    run = ended if colour == "plain" else asyncio.run(ended)
    assert (bool(run.held_for), len(run.attempts)) == (True, 1)
    assert under_way == [True], "nobody may take it for lost in between"
    engine = start()
    assert len(engine.quarantine) == 2
    assert [(event.topic[-1], event.ordinal) for event in told(engine)] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1),
    ]  # fmt: skip
    verify_chain(engine.store.read_entries())
