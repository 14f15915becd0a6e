"""What the work can know and do while it runs: its number, key, fence, chance, events and checkpoints."""

import asyncio
import contextvars
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

import oncemore
from oncemore.log.entry_codec import decode_body, decode_head
from oncemore.log.record import EventRecord
from oncemore.log.store import HeadQuery
from oncemore.testing import FakeClock
from tests.steps.colours import (
    COLOURS,
    POLICY,
    SOON,
    Busy,
    Turns,
    do,
    each_colour,
    in_memory,
    made,
    on_sqlite,
)


def test_outside_of_a_step_there_is_none() -> None:
    with pytest.raises(oncemore.UsageError, match=r"for the inside of a function with @oncemore.step"):
        oncemore.current()


@pytest.mark.req("WAL-7")
@each_colour
def test_an_attempt_knows_its_number_key_and_fence(
    colour: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    seen: list[Any] = []

    def work(x: int) -> None:
        me = oncemore.current()
        seen.append((me.number, me.fence, me.key, me.run_id, me.step))
        if me.number < 3:
            raise SOON

    step = made(colour, work)
    run = do(colour, step.run, 5)
    assert [(number, fence) for number, fence, *_ in seen] == [(1, 1), (2, 2), (3, 3)]
    assert {rest for _, _, *rest_ in seen for rest in [tuple(rest_)]} == {(step.key(5), run.run_id, "work")}
    with pytest.raises(oncemore.UsageError):
        oncemore.current()


@each_colour
def test_chance_is_the_same_when_an_attempt_is_replayed(colour: str, engine: oncemore.Engine) -> None:
    drawn: dict[int, list[float]] = {}

    def work(x: int) -> None:
        me = oncemore.current()
        assert me.rng is me.rng
        drawn[me.number] = [me.rng.random() for _ in range(3)]
        if me.number == 1:
            raise SOON

    with FakeClock():
        run = do(colour, made(colour, work).run)
    seed = run.records()[0]["seed"]
    assert drawn == {
        number: [random.Random(f"{seed}:{number}").random(), *drawn[number][1:]] for number in (1, 2)
    }
    assert drawn[1] != drawn[2]


@in_memory
@pytest.mark.usefixtures("engine")
@each_colour
def test_the_work_can_ask_how_much_time_it_has(colour: str) -> None:
    assert do(colour, made(colour, lambda x: oncemore.current().remaining())) is None
    limited = made(colour, lambda x: oncemore.current().remaining(), timeout=50, name="limited")
    assert 40 < do(colour, limited) <= 50
    whole = made(colour, lambda x: oncemore.time_remaining(), timeout=50, total_timeout=30, name="whole")
    assert 20 < do(colour, whole) <= 30


# Events ---------------------------------------------------------------------------------------------


def events_of(engine: oncemore.Engine) -> list[tuple[EventRecord, Any, bytes]]:
    """Return the events that were given away: state, payload and all bytes of the payload."""
    found = []
    for head in engine.store.list_heads(HeadQuery("event")):
        (entry,) = engine.store.read_entries(head.entity)
        assert entry.body is not None
        found.append((decode_head(head.head, EventRecord), decode_body(entry.body)["payload"], entry.body))
    return sorted(found, key=lambda event: event[0].ordinal)


@each_colour
def test_events_leave_with_the_commit_once_and_without_the_key(
    colour: str, engine: oncemore.Engine, clock: FakeClock
) -> None:
    ids: list[list[str]] = []

    def work(x: int) -> str:
        me = oncemore.current()
        ids.append([me.emit("paid", {"amount": x, "when": (1, 2)}), me.emit("shipped")])
        if me.number == 1:
            raise SOON
        return "done"

    step = made(colour, work, effect="outbox")
    with oncemore.context(tenant="acme", correlation_id="corr-7"):
        do(colour, step, 5)
        do(colour, step, 5)
        run = step.last_run(5)
    assert ids[0] == ids[1]
    found = events_of(engine)
    assert [event.event_id for event, _, _ in found] == ids[0]
    assert [(event.topic, payload) for event, payload, _ in found] == [
        ("paid", {"amount": 5, "when": {"$tuple": [1, 2]}}),
        ("shipped", None),
    ]
    for event, _, data in found:
        assert (event.tenant, event.correlation_id, event.state) == ("acme", "corr-7", "PENDING")
        assert run.key.encode() not in data
        assert event.event_id not in run.key
        assert run.key not in event.event_id
        assert re.fullmatch("[0-9a-f]{32}", event.event_id)


@pytest.mark.usefixtures("clock")
@each_colour
def test_an_attempt_that_does_not_commit_publishes_nothing(colour: str, engine: oncemore.Engine) -> None:
    def work(x: int) -> None:
        oncemore.current().emit("paid")
        raise SOON if x else ValueError("bad")

    for x in (0, 1):
        with pytest.raises(oncemore.StepFailed):
            do(colour, made(colour, work, effect="outbox"), x)
    assert events_of(engine) == []


@in_memory
@pytest.mark.usefixtures("engine")
def test_a_new_run_gives_new_events_and_another_key_others() -> None:
    ids: list[str] = []

    def work(x: int) -> None:
        ids.append(oncemore.current().emit("computed", x))

    step = made("plain", work, effect="pure")
    step(1)
    step.rerun(1, reason="the table was lost")
    step(2)
    assert len(set(ids)) == 3


@in_memory
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("topic", "payload", "says"),
    [
        ("", 1, "topic is ''; it takes a text of 1 to 200 characters"),
        ("x" * 201, 1, "topic is 'xxx"),
        (5, 1, "topic is 5"),
        ("good", object(), "is an object, which has no form in JSON"),
    ],
    ids=["empty", "long", "number", "object"],
)
def test_an_event_needs_a_topic_and_a_payload_that_has_a_form(topic: Any, payload: Any, says: str) -> None:
    step = made("plain", lambda x: oncemore.current().emit(topic, payload), effect="outbox")
    with pytest.raises(oncemore.PermanentFailure, match=re.escape(says)):
        step()


@in_memory
@pytest.mark.usefixtures("engine")
def test_events_are_bounded() -> None:
    def work(x: int) -> int:
        for n in range(x):
            oncemore.current().emit("tick", n)
        return x

    step = made("plain", work, effect="outbox")
    assert step(1000) == 1000
    with pytest.raises(oncemore.PermanentFailure, match="emits more than 1000 events"):
        step(1001)


# Checkpoints ----------------------------------------------------------------------------------------


def halves(colour: str, seen: list[Any], **options: Any) -> Any:
    """Return a step that does its work in two halves, and fails between them in its first attempt."""
    options = {"effect": "idempotent", "name": "halves", "policy": POLICY, **options}

    def begin() -> Any:
        seen.append(oncemore.current().resume("from the beginning"))
        return seen[-1]

    def fail() -> None:
        if oncemore.current().number == 1:
            raise SOON

    if colour == "plain":

        @oncemore.step(**options)
        def plain() -> str:
            if begin() == "from the beginning":
                oncemore.current().checkpoint({"rows": (1, 2)})
                assert oncemore.current().resume() == {"rows": (1, 2)}
            fail()
            return "whole"

        return plain

    @oncemore.step(**options)
    async def coroutine() -> str:
        if begin() == "from the beginning":
            await oncemore.current().checkpoint({"rows": (1, 2)})
            assert oncemore.current().resume() == {"rows": (1, 2)}
        fail()
        return "whole"

    return coroutine


@pytest.mark.req("WAL-6")
@pytest.mark.usefixtures("clock")
@each_colour
def test_a_later_attempt_resumes_from_the_checkpoint(colour: str, engine: oncemore.Engine) -> None:
    seen: list[Any] = []
    step = halves(colour, seen)
    assert do(colour, step) == "whole"
    assert seen == ["from the beginning", {"rows": (1, 2)}]
    run = step.last_run()
    refs = [line["checkpoint_ref"] for line in run.records()]
    assert refs[0] is None
    assert refs[-1] == f"run/{run.key}#2"
    assert "kept a checkpoint" in run.explain()


@pytest.mark.req("WAL-6")
@each_colour
def test_a_checkpoint_survives_the_death_of_its_worker(colour: str, tmp_path: Path) -> None:
    seen: list[Any] = []
    step = halves(colour, seen)
    with FakeClock():
        engine = oncemore.open(tmp_path / "log.db", max_inline_wait_s=0)
        with pytest.raises(oncemore.Deferred):
            do(colour, step.bind(engine))
        engine.close()
        with oncemore.open(tmp_path / "log.db"):
            assert do(colour, step) == "whole"
    assert seen == ["from the beginning", {"rows": (1, 2)}]


@in_memory
@pytest.mark.usefixtures("engine")
def test_a_new_run_does_not_resume_from_an_old_one() -> None:
    found: list[Any] = []

    def work(x: int) -> None:
        found.append(oncemore.current().resume())
        oncemore.current().checkpoint("old")

    step = made("plain", work, effect="pure")
    step()
    step.rerun(reason="anew")
    assert found == [None, None]


@in_memory
@pytest.mark.usefixtures("engine")
def test_a_checkpoint_that_has_no_form_fails_the_attempt() -> None:
    with pytest.raises(oncemore.PermanentFailure, match="has no form in JSON"):
        made("plain", lambda x: oncemore.current().checkpoint(object()))()


@in_memory
@pytest.mark.usefixtures("engine")
@each_colour
def test_after_its_end_an_attempt_can_do_nothing_more(colour: str) -> None:
    kept: list[oncemore.Attempt] = []
    do(colour, made(colour, lambda x: kept.append(oncemore.current())))
    (attempt,) = kept
    with pytest.raises(oncemore.LeaseLost, match="attempt 1 is over, it cannot emit any more"):
        attempt.emit("late")
    with pytest.raises(oncemore.LeaseLost, match="it cannot checkpoint any more"):
        attempt.checkpoint("late")
    assert attempt.number == 1


@pytest.mark.parametrize("effect", ["idempotent", "once"])
def test_an_attempt_that_was_taken_over_can_neither_keep_emit_nor_commit(effect: str, tmp_path: Path) -> None:
    first, second = oncemore.open(tmp_path / "log.db"), oncemore.open(tmp_path / "log.db")
    refused: list[type[Exception]] = []

    def work(x: int) -> str:
        me = oncemore.current()
        assert first.leases.current is not None
        first.leases.current.end_lease()  # as if it had been stopped until its lease was over
        other = made(
            "plain", Turns("other"), effect=effect, reconcile=_says_not if effect == "once" else None
        )
        assert contextvars.Context().run(other.bind(second)) == "other"
        for late in (lambda: me.checkpoint(1), lambda: me.emit("late")):
            with pytest.raises(oncemore.LeaseLost) as caught:
                late()
            refused.append(caught.type)
        return "mine"

    step = made("plain", work, effect=effect).bind(first)
    if effect == "once":
        with pytest.raises(
            oncemore.LeaseLost, match="attempt 1 took effect, but another worker had taken over"
        ):
            step()
    else:
        assert step() == "other"
    assert len(refused) == 2
    assert step.last_run().value == "other"
    assert [line["kind"] for line in step.last_run().records()].count("COMMIT") == 1
    first.close()
    second.close()


def _says_not(x: int = 0) -> object:
    return oncemore.not_applied()


# Nesting --------------------------------------------------------------------------------------------


def nested(colour: str, inner: Any, around: Any, **options: Any) -> Any:
    """Return an outer step that calls an inner one, in one colour."""
    options = {"effect": "idempotent", "name": "outer", "policy": POLICY, **options}
    if colour == "plain":

        @oncemore.step(**options)
        def plain(x: int = 0) -> Any:
            return around(x, inner(x))

        return plain

    @oncemore.step(**options)
    async def coroutine(x: int = 0) -> Any:
        return around(x, await inner(x))

    return coroutine


@pytest.mark.usefixtures("engine", "clock")
@each_colour
def test_an_inner_steps_commit_survives_the_outer_steps_retry(colour: str) -> None:
    inner_turns, outer_turns = Turns("inner"), Turns(SOON, SOON, "outer")
    inner = made(colour, inner_turns, name="inner")
    outer = nested(colour, inner, lambda x, value: (outer_turns(), value))
    assert do(colour, outer) == ("outer", "inner")
    assert (inner_turns.calls, outer_turns.calls) == (1, 3)


@pytest.mark.usefixtures("engine", "clock")
@each_colour
def test_attempts_do_not_multiply(colour: str) -> None:
    inner_turns, outer_turns = Turns(SOON), Turns("never")
    inner = made(colour, inner_turns, name="inner")
    outer = nested(colour, inner, outer_turns)
    with pytest.raises(oncemore.PermanentFailure, match="RetriesExhausted") as caught:
        do(colour, outer)
    assert (inner_turns.calls, outer_turns.calls) == (3, 0)
    assert isinstance(caught.value.__cause__, oncemore.RetriesExhausted)
    assert caught.value.run.step == "outer"  # type: ignore[attr-defined]
    assert caught.value.__cause__.run.step == "inner"  # type: ignore[attr-defined]
    assert outer.last_run().attempts[0].error["code"] == "STEP_FAILED"


@pytest.mark.usefixtures("clock")
@each_colour
def test_an_inner_step_that_is_parked_parks_the_outer_one_as_long(colour: str) -> None:
    inner_turns = Turns(SOON, "inner")
    with oncemore.open("memory:", max_inline_wait_s=1):
        inner = made(colour, inner_turns, name="inner")
        outer = nested(colour, inner, lambda x, value: value)
        with pytest.raises(oncemore.Deferred) as caught:
            do(colour, outer)
        assert caught.value.run.step == "outer"  # type: ignore[attr-defined]
        assert caught.value.until >= inner.last_run(0).not_before
        assert outer.last_run().attempts[0].error["code"] == "STEP_PARKED"


@on_sqlite
@pytest.mark.usefixtures("clock")
def test_an_inner_step_that_somebody_else_has_is_tried_again_later(engine: oncemore.Engine) -> None:
    busy = Busy()
    busy.start(made("plain", busy.hold, name="inner").bind(engine), 0)
    inner = made("plain", Turns("never"), name="inner", if_running="raise")

    def around(x: int) -> str:
        if oncemore.current().number == 2:
            busy.end()
        return str(inner(x))

    outer = made("plain", around, name="outer")
    assert outer() == "held"
    assert outer.last_run().attempts[0].error["code"] == "STEP_IN_PROGRESS"


@in_memory
@pytest.mark.usefixtures("engine")
@each_colour
def test_a_step_that_calls_itself_with_the_same_key_is_refused_at_any_depth(colour: str) -> None:
    holder: dict[str, Any] = {}

    async def call(x: int) -> Any:
        return await holder["outer"](x)

    inner: Any
    if colour == "plain":
        inner = made(colour, lambda x: holder["outer"](x), name="inner")
    else:

        @oncemore.step(effect="idempotent", name="inner")
        async def inner(x: int) -> Any:
            return await holder["outer"](x)

    holder["outer"] = nested(colour, inner, lambda x, value: value)
    with pytest.raises(oncemore.PermanentFailure) as caught:
        do(colour, holder["outer"])
    assert "outer calls itself with the same key" in str(caught.value.__cause__)


@in_memory
@pytest.mark.usefixtures("engine")
def test_a_step_may_call_itself_with_another_key() -> None:
    @oncemore.step(effect="pure")
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert factorial(20) == 2432902008176640000
    assert factorial.last_run(19) is not None


@pytest.mark.req("CORR-1", "CORR-2")
@each_colour
def test_inner_steps_keep_their_own_attempt_and_inherit_what_is_carried(
    colour: str, engine: oncemore.Engine
) -> None:
    inside: list[Any] = []

    def look(x: Any) -> str:
        me = oncemore.current()
        inside.append((me.step, me.tenant, me.correlation_id))
        return "value"

    inner = made(colour, look, name="inner")

    def around(x: int, value: str) -> str:
        look(x)
        return value

    outer = nested(colour, inner, around)
    do(colour, outer, 1)
    generated = outer.last_run(1).correlation_id
    assert generated == outer.last_run(1).run_id
    with oncemore.context(tenant="acme", correlation_id="given", deadline=engine.now() + 1000):
        do(colour, outer, 2)
        runs = [outer.last_run(2), inner.last_run(2)]
        assert runs[0].state.deadline == runs[1].state.deadline > 0
    assert inside == [
        ("inner", "", generated),
        ("outer", "", generated),
        ("inner", "acme", "given"),
        ("outer", "acme", "given"),
    ]
    for run in runs:
        assert {line["correlation_id"] for line in run.records()} == {"given"}


@pytest.mark.req("CORR-5")
@in_memory
@pytest.mark.usefixtures("engine")
def test_equal_requests_without_a_correlation_id_have_one_key() -> None:
    turns = Turns("value")
    step = made("plain", turns)
    assert (step(1), step(1)) == ("value", "value")
    assert turns.calls == 1


# Context --------------------------------------------------------------------------------------------


@in_memory
@pytest.mark.usefixtures("engine")
def test_context_goes_where_it_is_copied_to() -> None:
    step = made("plain", lambda x: oncemore.current().tenant)
    found: dict[str, Any] = {}
    with oncemore.context(tenant="acme"):
        copied = contextvars.copy_context()
        threads = [
            threading.Thread(target=lambda: found.update(copied=copied.run(step, 1))),
            threading.Thread(target=lambda: found.update(plain=step.bind(oncemore.open("memory:"))(2))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {"copied": "acme", "plain": ""}


@in_memory
@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("colour", COLOURS[1:])
def test_tasks_each_have_their_own_context(colour: str) -> None:
    step = made(colour, lambda x: oncemore.current().tenant)
    found: dict[str, str] = {}

    async def one(tenant: str) -> None:
        with oncemore.context(tenant=tenant):
            found[tenant] = await step(0)

    async def main() -> None:
        if colour == "asyncio":
            await asyncio.gather(*[one(name) for name in "abc"])
        else:
            async with trio.open_nursery() as nursery:
                for name in "abc":
                    nursery.start_soon(one, name)

    asyncio.run(main()) if colour == "asyncio" else trio.run(main)
    assert found == {"a": "a", "b": "b", "c": "c"}
