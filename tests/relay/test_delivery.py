"""What a relay delivers, in which order, and what becomes of what it cannot deliver."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from oncemore.log.entry_codec import body_of, header_of
from oncemore.messaging import relay as relays
from oncemore.outbox import POLICY as STANDARD
from oncemore.outbox import Message, Relay, Tally
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.run import verify
from tests.relay.world import POLICY, Consumer, World, events, give, states

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.store import Query
    from oncemore.testing import FakeClock

SOON = oncemore.TransientError("not yet")
NEVER = oncemore.PermanentError("not like this")


class Odd(Exception):
    """Known to nobody."""


def relay_of(engine: oncemore.Engine, sink: Any, **options: Any) -> Relay:
    return Relay(engine, {"*": sink}, **{"policy": POLICY, **options})


def only(engine: oncemore.Engine) -> Any:
    (event,) = events(engine).values()
    return event


def entries_of(engine: oncemore.Engine, event_id: str) -> list[tuple[Any, dict[str, Any]]]:
    found = engine.store.entries(f"event/{event_id}")
    return [(header_of(entry.header), body_of(entry.body or b"{}")) for entry in found]


# Delivering -----------------------------------------------------------------------------------------


def test_what_was_given_away_is_delivered_once_with_all_that_is_known_of_it(engine: oncemore.Engine) -> None:
    consumer = Consumer()
    with oncemore.context(tenant="acme", correlation_id="c-1"):
        give("a", ["one", "two"])
    relay = relay_of(engine, consumer)
    assert relay.run_once() == Tally(delivered=2)
    assert relay.run_once() == Tally()
    one, two = consumer.got
    assert (one.topic, one.payload, one.tenant, one.correlation_id) == ("one", "a0", "acme", "c-1")
    assert (one.attempt, two.attempt) == (1, 1)
    assert (two.lane, two.sequence) == (one.lane, one.sequence + 1)
    assert events(engine)[one.id].created == one.created
    assert states(engine) == {"DELIVERED": 2}
    verify(engine.store.entries())


def test_an_event_of_work_that_did_not_commit_does_not_exist(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    tries: list[int] = []

    @oncemore.step(effect="outbox", name="late", policy=POLICY)
    def late() -> None:
        tries.append(1)
        oncemore.current().emit("topic", len(tries))
        if len(tries) < 3:
            raise SOON

    late()
    consumer = Consumer()
    relay_of(engine, consumer).run_once()
    assert consumer.payloads == [3]


def test_attempts_results_and_outbox_are_told_by_one_log(engine: oncemore.Engine) -> None:
    give("a", ["one"])
    relay_of(engine, Consumer({("one", 1): SOON})).run_once()
    heads = verify(engine.store.entries())
    run = give.last("a", ["one"])
    assert heads[f"run/{run.key}"][2] == run.state
    (event,) = events(engine).values()
    assert heads[f"event/{event.event_id}"][2] == event
    assert (event.state, event.attempt) == ("PENDING", 1)


def test_every_change_is_an_entry_of_the_events_own_chain(engine: oncemore.Engine, clock: FakeClock) -> None:
    give("a", ["one"])
    relay = relay_of(engine, Consumer({("one", 1): SOON}))
    relay.run_once()
    clock.advance(5.0)
    relay.run_once()
    told = entries_of(engine, only(engine).event_id)
    assert [header.marks for header, _ in told] == [
        ("EVENT",), ("SENDING",), ("PENDING", "DECISION"), ("SENDING",), ("DELIVERED",),
    ]  # fmt: skip
    assert told[1][0].sets["attempt"] == 1, "an attempt is counted before it is sent"
    assert told[2][1]["error"]["message"] == "not yet"
    assert (told[2][1]["proof"]["action"], told[2][1]["proof"]["policy"]["name"]) == ("retry", "test")


@pytest.mark.parametrize(
    ("routes", "topic", "to"),
    [
        ({"a": "1", "*": "2"}, "a", "1"),
        ({"*": "2", "a": "1"}, "a", "1"),
        ({"a.*": "1", "*": "2"}, "a.b", "1"),
        ({"a.*": "1", "*": "2"}, "b", "2"),
        ({"*": "2", "a.*": "1"}, "a.b", "2"),
        ({"a.*": "1"}, "A.b", None),
    ],
)
def test_a_name_comes_first_and_then_the_first_pattern(
    engine: oncemore.Engine, routes: dict[str, str], topic: str, to: str | None
) -> None:
    give("a", [topic])
    got: list[str] = []
    sinks = {pattern: (lambda message, name=name: got.append(name)) for pattern, name in routes.items()}
    tally = Relay(engine, sinks).run_once()
    assert got == ([to] if to else [])
    assert tally.unrouted == (0 if to else 1)


# Order ----------------------------------------------------------------------------------------------


def test_an_event_waits_for_its_elder_and_other_entities_do_not(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    give("a", ["slow", "x", "x"])
    give("b", ["x"])
    consumer = Consumer({("slow", 1): SOON})
    relay = relay_of(engine, consumer)
    assert relay.run_once() == Tally(delivered=1, failed=1, waiting=3)
    assert consumer.payloads == ["b0"]
    clock.advance(5.0)
    assert relay.run_once() == Tally(delivered=3)
    assert consumer.payloads == ["b0", "a0", "a1", "a2"]


def test_an_elder_that_is_dead_holds_up_nobody(engine: oncemore.Engine) -> None:
    give("a", ["bad", "x"])
    consumer = Consumer({("bad", 0): NEVER})
    assert relay_of(engine, consumer).run_once() == Tally(delivered=1, dead=1)
    assert consumer.payloads == ["a1"]


def life(version: str, topics: list[str]) -> None:
    """Run the one key of a step anew, and give events away in that run."""

    @oncemore.step(effect="pure", name="lives", version=version)
    def lives() -> None:
        for n, topic in enumerate(topics):
            oncemore.current().emit(topic, f"{version}.{n}")

    lives()


def test_a_later_run_of_a_key_waits_for_all_runs_before_it(engine: oncemore.Engine, clock: FakeClock) -> None:
    life("1", ["x", "slow"])
    life("2", [])
    life("3", ["x", "x"])
    consumer = Consumer({("slow", 1): SOON})
    relay = relay_of(engine, consumer)
    relay.run_once()
    assert consumer.payloads == ["1.0"]
    clock.advance(5.0)
    relay.run_once()
    assert consumer.payloads == ["1.0", "1.1", "3.0", "3.1"]
    consumer.check_order()
    assert len({message.lane for message in consumer.got}) == 1


def test_a_later_run_waits_for_the_last_event_of_an_earlier_one_though_another_relay_has_it(
    engine: oncemore.Engine,
) -> None:
    for version, topics in (("1", ["x", "other"]), ("2", []), ("3", ["x"])):
        life(version, topics)
    consumer = Consumer()
    relay = Relay(engine, {"x": consumer})
    relay.run_once()
    assert consumer.payloads == ["1.0"]
    Relay(engine, {"other": consumer}).run_once()
    relay.run_once()
    assert consumer.payloads == ["1.0", "1.1", "3.0"]


def test_an_elder_without_a_sink_holds_up_its_entity_and_is_counted(engine: oncemore.Engine) -> None:
    give("a", ["other", "x"])
    consumer = Consumer()
    assert Relay(engine, {"x": consumer}).run_once() == Tally(waiting=1, unrouted=1)
    Relay(engine, {"other": consumer}).run_once()
    Relay(engine, {"x": consumer}).run_once()
    assert consumer.payloads == ["a0", "a1"]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_several_relays_at_once_deliver_everything_once_and_in_order(engine: oncemore.Engine) -> None:
    names = [f"n{n:02}-" for n in range(12)]
    for name in names:
        give(name, ["x"] * 8)
    lock, got = threading.Lock(), Consumer()

    def sink(message: Message) -> None:
        with lock:
            got(message)

    crowd = [threading.Thread(target=relay_of(engine, sink, batch=7).run_once) for _ in range(5)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(60)
    relay_of(engine, sink).run_once()
    assert len(got.got) == len(got.effects) == 96, "while their relays lived, each was sent by one of them"
    got.check_order()
    assert states(engine) == {"DELIVERED": 96}


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_waiting_events_do_not_hide_those_behind_them(engine: oncemore.Engine) -> None:
    give("a", ["slow"] + ["x"] * 30)
    give("b", ["y"])
    consumer = Consumer({("slow", 1): SOON})
    tally = relay_of(engine, consumer, batch=2).run_once()
    assert consumer.payloads == ["b0"]
    assert (tally.delivered, tally.failed) == (1, 1)


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_pass_ends_though_events_keep_coming(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.messaging.delivery.MOST_LOOKS", 5)
    numbers = iter(range(10_000))
    give("first", ["x"])
    tally = relay_of(engine, lambda message: give(f"next{next(numbers)}", ["x"])).run_once()
    assert tally.delivered == 5


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_look_lists_no_more_than_its_most(engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.messaging.delivery.MOST_LISTED", 8)
    give("a", ["slow"] + ["x"] * 30)
    assert relay_of(engine, Consumer({("slow", 1): SOON}), batch=4).run_once().waiting == 8


def test_an_event_whose_run_is_not_known_is_delivered_all_the_same(engine: oncemore.Engine) -> None:
    # Its id does not follow from its run: written by something else than this version of emit().
    world = World(("a", ["x"]))
    head = world.store._heads.pop(next(name for name in world.store._heads if name.startswith("run/")))
    world.relay().run_once()
    assert (world.consumer.got[0].sequence, states(world.engine())) == (0, {"DELIVERED": 1})
    world.store._heads[head.entity] = head
    world.close()


# Failing --------------------------------------------------------------------------------------------


def test_a_failure_that_may_pass_is_tried_again_when_its_delay_is_over(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    give("a", ["x"])
    consumer = Consumer({("x", 1): SOON, ("x", 2): Odd("what no rule knows")})
    relay = relay_of(engine, consumer)
    for wait in (5.0, 7.0):
        assert relay.run_once() == Tally(failed=1, waiting=1)
        clock.advance(wait - 3.0)
        assert relay.run_once() == Tally(waiting=1), "not before its time"
        clock.advance(3.0)
    assert relay.run_once() == Tally(delivered=1)
    assert [message.attempt for message in consumer.got] == [1, 2, 3]
    assert len({message.json() for message in consumer.got}) == 1, "the same bytes in every attempt"


@pytest.mark.req("MSG-8")
def test_a_poisoned_message_ends_in_the_dead_list_and_the_queue_goes_on(
    engine: oncemore.Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    with oncemore.context(tenant="acme", correlation_id="c-9"):
        give("a", ["poison", "x"])
    give("b", ["x"])
    consumer = Consumer({("poison", 0): Odd("password=hunter2 cannot be read")})
    relay = relay_of(engine, consumer)
    for _ in range(3):
        relay.run_once()
        clock.advance(10.0)
    assert sorted(consumer.payloads) == ["a1", "b0"]
    (letter,) = relay.dead()
    assert (letter.topic, letter.tenant, letter.correlation_id) == ("poison", "acme", "c-9")
    assert (letter.reason, letter.attempts) == ("max_attempts_exceeded", 3)
    assert letter.error["type"] == "Odd"
    assert "hunter2" not in str(letter)
    assert letter.event_id in caplog.text
    assert "redeliver" in caplog.text
    assert "hunter2" not in caplog.text
    marks = [header.marks for header, _ in entries_of(engine, letter.event_id)]
    assert marks[-1] == ("DEAD", "DECISION", "ESCALATION")
    assert relay.run_once() == Tally(), "it is not sent again by itself"


def test_attempts_are_bounded_whatever_happens(engine: oncemore.Engine, clock: FakeClock) -> None:
    give("a", ["x"])
    consumer = Consumer({("x", 0): SOON})
    relay = relay_of(engine, consumer)
    for _ in range(10):
        relay.run_once()
        clock.advance(1000.0)
    assert len(consumer.got) == 3
    (letter,) = relay.dead()
    assert (letter.reason, letter.attempts) == ("max_attempts_exceeded", 3)


def test_a_policy_that_allows_fewer_attempts_than_were_made_gives_up_without_sending(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    give("a", ["x"])
    consumer = Consumer({("x", 0): SOON})
    relay_of(engine, consumer).run_once()
    clock.advance(10.0)
    assert relay_of(engine, consumer, policy=POLICY.but(max_attempts=1)).run_once() == Tally(dead=1)
    assert len(consumer.got) == 1


def test_the_relays_own_policy_grows_its_delays_up_to_an_hour() -> None:
    assert STANDARD.max_attempts == 20
    assert STANDARD.largest_delays()[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(STANDARD.largest_delays()) == 3600.0


@pytest.mark.parametrize("from_", ["dead", "delivered"])
def test_a_person_has_an_event_sent_again_under_the_same_id_and_that_is_recorded(
    engine: oncemore.Engine, clock: FakeClock, from_: str
) -> None:
    give("a", ["x"])
    consumer = Consumer({("x", 1): NEVER} if from_ == "dead" else {})
    relay = relay_of(engine, consumer)
    relay.run_once()
    event = only(engine)
    with oncemore.context(actor="an operator"):
        relay.redeliver(event.event_id, reason="they had lost it")
    header, body = entries_of(engine, event.event_id)[-1]
    assert header.marks == ("PENDING", "DECISION")
    assert body["decision"] == {"what": "redeliver", "reason": "they had lost it", "actor": "an operator"}
    assert relay.run_once() == Tally(delivered=1)
    assert [(message.id, message.attempt) for message in consumer.got] == [
        (event.event_id, 1),
        (event.event_id, 2),
    ]
    assert relay.dead() == ()


def test_a_redelivered_event_has_a_whole_budget_and_its_numbers_go_on(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    give("a", ["x"])
    consumer = Consumer({("x", 0): SOON})
    relay = relay_of(engine, consumer)
    for turn in range(2):
        for _ in range(4):
            relay.run_once()
            clock.advance(100.0)
        if not turn:
            relay.redeliver(only(engine).event_id, reason="the line is up again")
    assert [message.attempt for message in consumer.got] == [1, 2, 3, 4, 5, 6]


@pytest.mark.req("MSG-4")
def test_a_message_delivered_twice_an_hour_apart_is_processed_once(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    done: list[str] = []

    @oncemore.step(effect="idempotent", name="process", key=["message_id"])
    def process(message_id: str, payload: Any) -> None:
        done.append(payload)

    give("a", ["x"])
    sends: list[str] = []

    def consumer(message: Message) -> None:
        sends.append(message.id)
        process(message.id, message.payload)

    relay = relay_of(engine, consumer)
    relay.run_once()
    clock.advance(3600.0)
    relay.redeliver(sends[0], reason="somebody was not sure")
    relay.run_once()
    assert sends == [sends[0]] * 2
    assert done == ["a0"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda relay, id_: relay.redeliver("0" * 32, reason="x"), "there is no event"),
        (lambda relay, id_: relay.redeliver(id_, reason="x"), "is PENDING"),
        (lambda relay, id_: relay.redeliver(id_, reason=" "), "reason is missing"),
    ],
    ids=["unknown", "pending", "no reason"],
)
def test_what_cannot_be_redelivered_is_refused(
    engine: oncemore.Engine, call: Callable[..., Any], why: str
) -> None:
    give("a", ["x"])
    with pytest.raises(oncemore.UsageError, match=why):
        call(relay_of(engine, Consumer()), only(engine).event_id)


def test_of_two_people_who_decide_at_once_one_is_told_to_look_again() -> None:
    world = World(("a", ["x"]))
    relay = world.relay()
    relay.run_once()
    first = relay._courier(None)
    script = relays.redeliver(only(world.engine()).event_id, "mine", "")
    seen = first.load(next(script))
    save = script.send(first.permit(script.send(seen)))
    relay.redeliver(seen.run.event_id, reason="theirs")
    with pytest.raises(oncemore.UsageError, match="look again"):
        script.send(relays_save(first, save))
    world.close()


def relays_save(courier: Any, op: Any) -> Any:
    from oncemore.messaging.driver import _save

    return _save(courier, op)


def test_a_dead_event_whose_body_was_pruned_is_listed_all_the_same(engine: oncemore.Engine) -> None:
    give("a", ["x"])
    relay = relay_of(engine, Consumer({("x", 0): NEVER}))
    relay.run_once()
    engine.store.prune({f"event/{only(engine).event_id}": 10})
    (letter,) = relay.dead()
    assert (letter.reason, letter.error) == ("not_retryable", {})


# Bounds ---------------------------------------------------------------------------------------------


def test_a_payload_that_is_too_large_or_gone_is_dead_before_it_is_sent(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="outbox", name="large")
    def large(x: str) -> None:
        oncemore.current().emit("large", "x" * 2000)
        oncemore.current().emit("pruned")
        oncemore.current().emit("fine")

    large("a")
    pruned = next(event for event in events(engine).values() if event.topic == "pruned")
    engine.store.prune({f"event/{pruned.event_id}": 2})
    consumer = Consumer()
    relay = relay_of(engine, consumer, max_bytes=1000)
    assert relay.run_once() == Tally(delivered=1, dead=2)
    assert [message.topic for message in consumer.got] == ["fine"]
    assert {letter.topic: letter.error["message"][-10:] for letter in relay.dead()} == {
        "large": "s the most",
        "pruned": "was pruned",
    }


def test_a_sink_that_outlives_its_limit_is_left_behind_and_tried_again(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    let_go = threading.Event()
    give("a", ["x"])
    tries: list[int] = []

    def sink(message: Message) -> None:
        tries.append(message.attempt)
        if message.attempt == 1:
            let_go.wait(10)

    relay = relay_of(engine, sink, policy=POLICY.but(timeout_s=0.5))
    assert relay.run_once().failed == 1
    let_go.set()
    clock.advance(5.0)
    assert relay.run_once().delivered == 1
    assert tries == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"routes": {}},
        {"routes": {"": print}},
        {"routes": {7: print}},
        {"routes": {"x": "not a function"}},
        {"batch": 0},
        {"batch": True},
        {"max_bytes": 0},
        {"poll_s": 0},
        {"poll_s": "1"},
    ],
    ids=str,
)
def test_a_relay_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(oncemore.UsageError):
        Relay(oncemore.open("memory:"), **{"routes": {"*": print}, **options})


def test_sinks_of_two_colours_need_two_relays() -> None:
    async def later(message: Message) -> None:
        """Be async."""

    with pytest.raises(oncemore.UsageError, match="a relay for each kind"):
        Relay(oncemore.open("memory:"), {"a": later, "b": print})


# Interrupts and broken stores -----------------------------------------------------------------------


def test_ctrl_c_while_sending_goes_through_and_leaves_the_event_free(engine: oncemore.Engine) -> None:
    give("a", ["x"])

    def sink(message: Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        relay_of(engine, sink).run_once()
    event = only(engine)
    assert (event.state, event.attempt, event.worker, event.reason) == ("PENDING", 1, "", "interrupted")
    consumer = Consumer()
    assert relay_of(engine, consumer).run_once() == Tally(delivered=1)


@pytest.mark.parametrize("lost", ["claim", "mark"])
def test_a_write_whose_answer_is_lost_ends_the_pass_and_the_next_one_goes_by_what_is_stored(
    lost: str,
) -> None:
    world = World(("a", ["x"]))
    append, fate = world.store.append, {"claim": "SENDING", "mark": "DELIVERED"}[lost]

    def losing(batch: Any) -> Any:
        answer = append(batch)
        if fate in header_of(batch.writes[0].header).marks:
            world.store.append = append  # type: ignore[method-assign]
            raise oncemore.StoreError("the line to the store broke")
        return answer

    world.store.append = losing  # type: ignore[method-assign]
    engine = world.engine()
    relay = world.relay(engine)
    with pytest.raises(oncemore.StoreError):
        relay.run_once()
    assert not any(me.busy for me in engine._mine.values())
    world.relay().run_once()
    assert len(world.consumer.got) == 1
    assert states(engine) == {"DELIVERED": 1}
    world.check()
    world.close()


def test_a_relay_whose_pass_was_stopped_by_another_event_of_its_process_goes_on(
    engine: oncemore.Engine,
) -> None:
    """A pass that is told to stop ends after the event under way."""
    for name in "abc":
        give(name, ["x", "y"])
    stop = threading.Event()
    consumer = Consumer()

    def sink(message: Message) -> None:
        consumer(message)
        stop.set()

    relay = relay_of(engine, sink)
    assert relay.run_once(stop).delivered == 1
    assert len(consumer.got) == 1
    stop.clear()
    relay_of(engine, consumer).run_once()
    assert len(consumer.effects) == 6


# The loop -------------------------------------------------------------------------------------------


def until(true: Callable[[], object], within: float = 20.0) -> None:
    ends = time.monotonic() + within
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.005)


def relay_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "oncemore-relay"]


def test_a_started_relay_delivers_what_comes_and_leaves_no_thread(engine: oncemore.Engine) -> None:
    consumer = Consumer({("x", 1): SOON})
    with relay_of(
        engine, consumer, poll_s=0.05, policy=POLICY.but(schedule=Schedule("fixed", delays=(0.02,)))
    ) as relay:
        assert relay.start() is relay, "a second start is none"
        assert len(relay_threads()) == 1
        for name in "abc":
            give(name, ["x"])
        until(lambda: len(consumer.effects) == 3)
        until(lambda: states(engine) == {"DELIVERED": 3})
    assert relay_threads() == []
    relay.close()
    with relay:
        give("d", ["y"])
        until(lambda: len(consumer.effects) == 4)


def test_a_waiting_relay_wakes_when_the_log_grows(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "DEAF_S", 0.02)
    consumer = Consumer()
    with relay_of(engine, consumer, poll_s=60.0):
        time.sleep(0.15)  # so that it has looked, found nothing, and looked away several times
        give("a", ["x"])
        until(lambda: consumer.effects, 10.0)


def test_a_relay_outlives_a_store_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    world = World(("a", ["x"]))
    heads, failures = world.store.heads, iter((True, True))

    def failing(query: Query) -> Any:
        if next(failures, False):
            raise oncemore.StoreError("not now")
        return heads(query)

    world.store.heads = failing  # type: ignore[method-assign]
    relay = Relay(world.engine(), {"*": world.consumer}, poll_s=0.01)
    with relay:
        until(lambda: world.consumer.effects)
    assert "it tries again" in caplog.text
    world.close()


def test_close_says_so_when_a_sink_does_not_come_back(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relays, "GRACE_S", 0.05)
    inside, let_go = threading.Event(), threading.Event()

    def sink(message: Message) -> None:
        inside.set()
        let_go.wait(10)

    give("a", ["x"])
    relay = relay_of(engine, sink).start()
    assert inside.wait(10)
    with caplog.at_level(logging.WARNING):
        relay.close()
    assert "did not come back" in caplog.text
    let_go.set()
    until(lambda: not relay_threads())


# Async ----------------------------------------------------------------------------------------------


def run_in(colour: str, main: Callable[[], Any]) -> Any:
    return asyncio.run(main()) if colour == "asyncio" else trio.run(main)


class Later:
    """An async sink that is no function."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def __call__(self, message: Message) -> None:
        self._consumer(message)


@pytest.mark.parametrize("colour", ["asyncio", "trio"])
@pytest.mark.parametrize("timeout", [None, 5.0])
def test_async_sinks_are_awaited_by_the_same_script(
    engine: oncemore.Engine, clock: FakeClock, colour: str, timeout: float | None
) -> None:
    give("a", ["slow", "x", "bad"])
    consumer = Consumer({("slow", 1): SOON, ("bad", 0): NEVER})
    relay = relay_of(engine, Later(consumer), policy=POLICY.but(timeout_s=timeout))

    async def main() -> list[Tally]:
        told = [await relay.run_once()]
        clock.advance(5.0)
        return [*told, await relay.run_once()]

    assert run_in(colour, main) == [Tally(failed=1, waiting=3), Tally(delivered=2, dead=1)]
    assert consumer.payloads == ["a0", "a1"]


@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_a_cancelled_async_relay_leaves_its_event_free(engine: oncemore.Engine, colour: str) -> None:
    give("a", ["x"])

    async def sink(message: Message) -> None:
        if message.attempt == 1:
            sleep = asyncio.sleep if colour == "asyncio" else trio.sleep
            await sleep(60)

    relay = relay_of(engine, sink)

    async def main() -> None:
        if colour == "asyncio":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await relay.run_once()
        else:
            with trio.move_on_after(0.05) as scope:
                await relay.run_once()
            assert scope.cancelled_caught
        assert only(engine).reason == "interrupted"
        assert (await relay.run_once()).delivered == 1

    run_in(colour, main)


@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_an_async_relay_runs_until_it_is_stopped_whatever_the_store_does(colour: str) -> None:
    world = World(("a", ["x"]))
    heads, failures = world.store.heads, iter((True,))

    def failing(query: Query) -> Any:
        if next(failures, False):
            raise oncemore.StoreError("not now")
        return heads(query)

    world.store.heads = failing  # type: ignore[method-assign]
    stop = threading.Event()

    async def sink(message: Message) -> None:
        world.consumer(message)
        stop.set()

    relay = Relay(world.engine(), {"*": sink}, poll_s=0.01)
    run_in(colour, lambda: relay.run(stop))
    assert world.consumer.payloads == ["a0"]
    with pytest.raises(oncemore.UsageError, match=r"await relay\.run"):
        relay.start()
    world.close()


def test_a_plain_relay_runs_in_the_callers_thread_until_it_is_stopped(engine: oncemore.Engine) -> None:
    give("a", ["x"])
    stop = threading.Event()
    relay_of(engine, lambda message: stop.set()).run(stop)
    assert states(engine) == {"DELIVERED": 1}


def test_a_policy_without_spread_is_taken_as_it_is() -> None:
    policy = Policy("own", max_attempts=2, schedule=Schedule("fixed", delays=(1.0,)), jitter=Jitter("none"))
    assert Relay(oncemore.open("memory:"), {"*": print}, policy=policy)._rules.policy is policy
