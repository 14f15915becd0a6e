"""What a relay delivers, in which order, and what happens to undeliverable events."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import trio

import oncemore
from oncemore.log.entry_codec import decode_body, decode_header
from oncemore.messaging import relay as relays
from oncemore.outbox import POLICY as STANDARD
from oncemore.outbox import DeliveryStats, EventMessage, OutboxRelay
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.history import verify_chain
from tests.messaging.outbox.simulation import POLICY, Consumer, OutboxSimulation, events, give, states
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.store import HeadQuery
    from oncemore.testing import FakeClock

SOON = oncemore.TransientError("not yet")
NEVER = oncemore.PermanentError("not like this")


class Odd(Exception):
    """An error without a classifier rule."""


def relay_of(engine: oncemore.Engine, sink: Any, **options: Any) -> OutboxRelay:
    return OutboxRelay(engine, {"*": sink}, **{"policy": POLICY, **options})


def only(engine: oncemore.Engine) -> Any:
    (event,) = events(engine).values()
    return event


def entries_of(engine: oncemore.Engine, event_id: str) -> list[tuple[Any, dict[str, Any]]]:
    found = engine.store.read_entries(f"event/{event_id}")
    return [(decode_header(entry.header), decode_body(entry.body or b"{}")) for entry in found]


# Delivering -----------------------------------------------------------------------------------------


def test_an_emitted_event_is_delivered_once_with_all_fields(engine: oncemore.Engine) -> None:
    consumer = Consumer()
    with oncemore.context(tenant="acme", correlation_id="c-1"):
        give("a", ["one", "two"])
    relay = relay_of(engine, consumer)
    assert relay.run_once() == DeliveryStats(delivered=2)
    assert relay.run_once() == DeliveryStats()
    one, two = consumer.got
    assert (one.topic, one.payload, one.tenant, one.correlation_id) == ("one", "a0", "acme", "c-1")
    assert (one.attempt, two.attempt) == (1, 1)
    assert (two.lane, two.sequence) == (one.lane, one.sequence + 1)
    assert events(engine)[one.id].created_at == one.created
    assert states(engine) == {"DELIVERED": 2}
    verify_chain(engine.store.read_entries())


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


def test_one_log_has_attempts_results_and_events(engine: oncemore.Engine) -> None:
    give("a", ["one"])
    relay_of(engine, Consumer({("one", 1): SOON})).run_once()
    heads = verify_chain(engine.store.read_entries())
    run = give.last_run("a", ["one"])
    assert heads[f"run/{run.key}"][2] == run.state
    (event,) = events(engine).values()
    assert heads[f"event/{event.event_id}"][2] == event
    assert (event.state, event.attempt) == ("PENDING", 1)


def test_every_change_of_an_event_is_an_entry_of_its_chain(engine: oncemore.Engine, clock: FakeClock) -> None:
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
def test_an_exact_topic_wins_over_the_first_matching_pattern(
    engine: oncemore.Engine, routes: dict[str, str], topic: str, to: str | None
) -> None:
    give("a", [topic])
    got: list[str] = []
    sinks = {pattern: (lambda message, name=name: got.append(name)) for pattern, name in routes.items()}
    tally = OutboxRelay(engine, sinks).run_once()
    assert got == ([to] if to else [])
    assert tally.unrouted == (0 if to else 1)


# Order ----------------------------------------------------------------------------------------------


def test_an_event_waits_for_its_predecessor_and_other_lanes_do_not(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    give("a", ["slow", "x", "x"])
    give("b", ["x"])
    consumer = Consumer({("slow", 1): SOON})
    relay = relay_of(engine, consumer)
    assert relay.run_once() == DeliveryStats(delivered=1, failed=1, waiting=3)
    assert consumer.payloads == ["b0"]
    clock.advance(5.0)
    assert relay.run_once() == DeliveryStats(delivered=3)
    assert consumer.payloads == ["b0", "a0", "a1", "a2"]


def test_a_dead_predecessor_does_not_block_its_lane(engine: oncemore.Engine) -> None:
    give("a", ["bad", "x"])
    consumer = Consumer({("bad", 0): NEVER})
    assert relay_of(engine, consumer).run_once() == DeliveryStats(delivered=1, dead=1)
    assert consumer.payloads == ["a1"]


def life(version: str, topics: list[str]) -> None:
    """Run one key of a step again and emit events in that run."""

    @oncemore.step(effect="pure", name="lives", version=version)
    def lives() -> None:
        for n, topic in enumerate(topics):
            oncemore.current().emit(topic, f"{version}.{n}")

    lives()


def test_events_of_a_later_run_wait_for_all_earlier_runs(engine: oncemore.Engine, clock: FakeClock) -> None:
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


def test_a_later_run_waits_for_an_event_that_another_relay_is_sending(
    engine: oncemore.Engine,
) -> None:
    for version, topics in (("1", ["x", "other"]), ("2", []), ("3", ["x"])):
        life(version, topics)
    consumer = Consumer()
    relay = OutboxRelay(engine, {"x": consumer})
    relay.run_once()
    assert consumer.payloads == ["1.0"]
    OutboxRelay(engine, {"other": consumer}).run_once()
    relay.run_once()
    assert consumer.payloads == ["1.0", "1.1", "3.0"]


def test_a_predecessor_without_a_sink_blocks_its_lane_and_is_counted(engine: oncemore.Engine) -> None:
    give("a", ["other", "x"])
    consumer = Consumer()
    assert OutboxRelay(engine, {"x": consumer}).run_once() == DeliveryStats(waiting=1, unrouted=1)
    OutboxRelay(engine, {"other": consumer}).run_once()
    OutboxRelay(engine, {"x": consumer}).run_once()
    assert consumer.payloads == ["a0", "a1"]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_several_relays_at_once_deliver_everything_once_and_in_order(engine: oncemore.Engine) -> None:
    names = [f"n{n:02}-" for n in range(12)]
    for name in names:
        give(name, ["x"] * 8)
    lock, got = threading.Lock(), Consumer()

    def sink(message: EventMessage) -> None:
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
    monkeypatch.setattr("oncemore.messaging.delivery.MAX_PASSES", 5)
    numbers = iter(range(10_000))
    give("first", ["x"])
    tally = relay_of(engine, lambda message: give(f"next{next(numbers)}", ["x"])).run_once()
    assert tally.delivered == 5


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
def test_a_listing_is_bounded(engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncemore.messaging.delivery.MAX_LISTED", 8)
    give("a", ["slow"] + ["x"] * 30)
    assert relay_of(engine, Consumer({("slow", 1): SOON}), batch=4).run_once().waiting == 8


def test_an_event_whose_run_is_not_known_is_delivered_all_the_same(engine: oncemore.Engine) -> None:
    # Its id does not follow from its run: written by something else than this version of emit().
    simulation = OutboxSimulation(("a", ["x"]))
    head = simulation.store._heads.pop(
        next(name for name in simulation.store._heads if name.startswith("run/"))
    )
    simulation.relay().run_once()
    assert (simulation.consumer.got[0].sequence, states(simulation.engine())) == (0, {"DELIVERED": 1})
    simulation.store._heads[head.entity] = head
    simulation.close()


# Failing --------------------------------------------------------------------------------------------


def test_a_transient_failure_is_retried_after_its_delay(engine: oncemore.Engine, clock: FakeClock) -> None:
    give("a", ["x"])
    consumer = Consumer({("x", 1): SOON, ("x", 2): Odd("what no rule knows")})
    relay = relay_of(engine, consumer)
    for wait in (5.0, 7.0):
        assert relay.run_once() == DeliveryStats(failed=1, waiting=1)
        clock.advance(wait - 3.0)
        assert relay.run_once() == DeliveryStats(waiting=1), "not before its time"
        clock.advance(3.0)
    assert relay.run_once() == DeliveryStats(delivered=1)
    assert [message.attempt for message in consumer.got] == [1, 2, 3]
    assert len({message.to_json() for message in consumer.got}) == 1, "the same bytes in every attempt"


@pytest.mark.req("MSG-8")
def test_a_refused_event_becomes_a_dead_letter_and_the_queue_continues(
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
    (letter,) = relay.dead_letters()
    assert (letter.topic, letter.tenant, letter.correlation_id) == ("poison", "acme", "c-9")
    assert (letter.reason, letter.attempts) == ("max_attempts_exceeded", 3)
    assert letter.error["type"] == "Odd"
    assert "hunter2" not in str(letter)
    assert letter.event_id in caplog.text
    assert "redeliver" in caplog.text
    assert "hunter2" not in caplog.text
    marks = [header.marks for header, _ in entries_of(engine, letter.event_id)]
    assert marks[-1] == ("DEAD", "DECISION", "ESCALATION")
    assert relay.run_once() == DeliveryStats(), "it is not sent again by itself"


def test_attempts_are_always_bounded(engine: oncemore.Engine, clock: FakeClock) -> None:
    give("a", ["x"])
    consumer = Consumer({("x", 0): SOON})
    relay = relay_of(engine, consumer)
    for _ in range(10):
        relay.run_once()
        clock.advance(1000.0)
    assert len(consumer.got) == 3
    (letter,) = relay.dead_letters()
    assert (letter.reason, letter.attempts) == ("max_attempts_exceeded", 3)


def test_a_policy_that_allows_fewer_attempts_than_were_made_gives_up_without_sending(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    give("a", ["x"])
    consumer = Consumer({("x", 0): SOON})
    relay_of(engine, consumer).run_once()
    clock.advance(10.0)
    assert relay_of(engine, consumer, policy=POLICY.replace(max_attempts=1)).run_once() == DeliveryStats(
        dead=1
    )
    assert len(consumer.got) == 1


def test_the_relays_own_policy_grows_its_delays_up_to_an_hour() -> None:
    assert STANDARD.max_attempts == 20
    assert STANDARD.max_delays()[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(STANDARD.max_delays()) == 3600.0


@pytest.mark.parametrize("from_", ["dead", "delivered"])
def test_an_operator_redelivers_an_event_under_the_same_id_and_the_decision_is_recorded(
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
    assert body["decision"] == {"action": "redeliver", "reason": "they had lost it", "actor": "an operator"}
    assert relay.run_once() == DeliveryStats(delivered=1)
    assert [(message.id, message.attempt) for message in consumer.got] == [
        (event.event_id, 1),
        (event.event_id, 2),
    ]
    assert relay.dead_letters() == ()


def test_a_redelivered_event_has_all_attempts_and_continues_their_numbers(
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

    def consumer(message: EventMessage) -> None:
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
def test_redelivering_an_unfinished_event_is_refused(
    engine: oncemore.Engine, call: Callable[..., Any], why: str
) -> None:
    give("a", ["x"])
    with pytest.raises(oncemore.UsageError, match=why):
        call(relay_of(engine, Consumer()), only(engine).event_id)


def test_of_two_concurrent_redeliveries_one_is_refused() -> None:
    simulation = OutboxSimulation(("a", ["x"]))
    relay = simulation.relay()
    relay.run_once()
    first = relay._make_driver(None)
    script = relays.redeliver_event(only(simulation.engine()).event_id, lambda head: {"reason": "mine"})
    seen = first.load_head(next(script))
    save = script.send(first.ask_permission(script.send(seen)))
    relay.redeliver(seen.record.event_id, reason="theirs")
    with pytest.raises(oncemore.UsageError, match="changed at the same time"):
        script.send(relays_save(first, save))
    simulation.close()


def relays_save(courier: Any, op: Any) -> Any:
    from oncemore.messaging.driver import _append_change

    return _append_change(courier, op)


def test_a_dead_event_with_a_pruned_body_is_listed(engine: oncemore.Engine) -> None:
    give("a", ["x"])
    relay = relay_of(engine, Consumer({("x", 0): NEVER}))
    relay.run_once()
    engine.store.open_maintenance().prune_bodies({f"event/{only(engine).event_id}": 10})
    (letter,) = relay.dead_letters()
    assert (letter.reason, letter.error) == ("not_retryable", {})


# Bounds ---------------------------------------------------------------------------------------------


def test_an_event_with_a_large_or_pruned_payload_is_dead_before_it_is_sent(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="outbox", name="large")
    def large(x: str) -> None:
        oncemore.current().emit("large", "x" * 2000)
        oncemore.current().emit("pruned")
        oncemore.current().emit("fine")

    large("a")
    pruned = next(event for event in events(engine).values() if event.topic == "pruned")
    engine.store.open_maintenance().prune_bodies({f"event/{pruned.event_id}": 2})
    consumer = Consumer()
    relay = relay_of(engine, consumer, max_bytes=1000)
    assert relay.run_once() == DeliveryStats(delivered=1, dead=2)
    assert [message.topic for message in consumer.got] == ["fine"]
    assert {letter.topic: letter.error["message"][-10:] for letter in relay.dead_letters()} == {
        "large": "t is 1,000",
        "pruned": "was pruned",
    }


def test_a_sink_that_exceeds_its_timeout_is_abandoned_and_retried(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    let_go = threading.Event()
    give("a", ["x"])
    tries: list[int] = []

    def sink(message: EventMessage) -> None:
        tries.append(message.attempt)
        if message.attempt == 1:
            let_go.wait(10)

    relay = relay_of(engine, sink, policy=POLICY.replace(timeout_s=0.5))
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
def test_bad_relay_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(oncemore.UsageError):
        OutboxRelay(oncemore.open("memory:"), **{"routes": {"*": print}, **options})


def test_plain_and_async_sinks_need_two_relays() -> None:
    async def later(message: EventMessage) -> None:
        """An async method."""

    with pytest.raises(oncemore.UsageError, match="a relay for each kind"):
        OutboxRelay(oncemore.open("memory:"), {"a": later, "b": print})


# Interrupts and broken stores -----------------------------------------------------------------------


def test_ctrl_c_during_a_send_is_raised_and_releases_the_event(engine: oncemore.Engine) -> None:
    give("a", ["x"])

    def sink(message: EventMessage) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        relay_of(engine, sink).run_once()
    event = only(engine)
    assert (event.state, event.attempt, event.worker, event.reason) == ("PENDING", 1, "", "interrupted")
    consumer = Consumer()
    assert relay_of(engine, consumer).run_once() == DeliveryStats(delivered=1)


@pytest.mark.parametrize("lost", ["claim", "mark"])
def test_a_write_without_an_answer_ends_the_pass_and_the_next_pass_reads_the_store(
    lost: str,
) -> None:
    simulation = OutboxSimulation(("a", ["x"]))
    append, fate = simulation.store.append, {"claim": "SENDING", "mark": "DELIVERED"}[lost]

    def losing(batch: Any) -> Any:
        answer = append(batch)
        if fate in decode_header(batch.writes[0].header).marks:
            simulation.store.append = append  # type: ignore[method-assign]
            raise oncemore.StoreError("the line to the store broke")
        return answer

    simulation.store.append = losing  # type: ignore[method-assign]
    engine = simulation.engine()
    relay = simulation.relay(engine)
    with pytest.raises(oncemore.StoreError):
        relay.run_once()
    assert not any(me.busy for me in engine.leases.workers.values())
    simulation.relay().run_once()
    assert len(simulation.consumer.got) == 1
    assert states(engine) == {"DELIVERED": 1}
    simulation.check()
    simulation.close()


def test_a_relay_whose_pass_was_stopped_by_another_event_of_its_process_goes_on(
    engine: oncemore.Engine,
) -> None:
    """A stopped pass ends after the current event."""
    for name in "abc":
        give(name, ["x", "y"])
    stop = threading.Event()
    consumer = Consumer()

    def sink(message: EventMessage) -> None:
        consumer(message)
        stop.set()

    relay = relay_of(engine, sink)
    assert relay.run_once(stop).delivered == 1
    assert len(consumer.got) == 1
    stop.clear()
    relay_of(engine, consumer).run_once()
    assert len(consumer.effects) == 6


# The loop -------------------------------------------------------------------------------------------


def relay_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "oncemore-relay"]


def test_a_started_relay_delivers_what_comes_and_leaves_no_thread(engine: oncemore.Engine) -> None:
    consumer = Consumer({("x", 1): SOON})
    with relay_of(
        engine, consumer, poll_s=0.05, policy=POLICY.replace(schedule=Schedule("fixed", delays=(0.02,)))
    ) as relay:
        assert relay.start() is relay, "a second start is none"
        assert len(relay_threads()) == 1
        for name in "abc":
            give(name, ["x"])
        wait_until(lambda: len(consumer.effects) == 3)
        wait_until(lambda: states(engine) == {"DELIVERED": 3})
    assert relay_threads() == []
    relay.close()
    with relay:
        give("d", ["y"])
        wait_until(lambda: len(consumer.effects) == 4)


def test_a_waiting_relay_wakes_when_the_log_grows(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "MAX_STOP_DELAY_S", 0.02)
    consumer = Consumer()
    with relay_of(engine, consumer, poll_s=60.0):
        time.sleep(0.15)  # so that it has looked, found nothing, and looked away several times
        give("a", ["x"])
        wait_until(lambda: consumer.effects)


def test_a_relay_survives_store_errors(caplog: pytest.LogCaptureFixture) -> None:
    simulation = OutboxSimulation(("a", ["x"]))
    heads, failures = simulation.store.list_heads, iter((True, True))

    def failing(query: HeadQuery) -> Any:
        if next(failures, False):
            raise oncemore.StoreError("not now")
        return heads(query)

    simulation.store.list_heads = failing  # type: ignore[method-assign]
    relay = OutboxRelay(simulation.engine(), {"*": simulation.consumer}, poll_s=0.01)
    with relay:
        wait_until(lambda: simulation.consumer.effects)
    assert "it tries again" in caplog.text
    simulation.close()


def test_close_warns_about_a_sink_that_does_not_return(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relays, "GRACE_S", 0.05)
    inside, let_go = threading.Event(), threading.Event()

    def sink(message: EventMessage) -> None:
        inside.set()
        let_go.wait(10)

    give("a", ["x"])
    relay = relay_of(engine, sink).start()
    assert inside.wait(10)
    with caplog.at_level(logging.WARNING):
        relay.close()
    assert "did not return" in caplog.text
    let_go.set()
    wait_until(lambda: not relay_threads())


# Async ----------------------------------------------------------------------------------------------


def run_in(colour: str, main: Callable[[], Any]) -> Any:
    return asyncio.run(main()) if colour == "asyncio" else trio.run(main)


class Later:
    """An async sink that is an object."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def __call__(self, message: EventMessage) -> None:
        self._consumer(message)


@pytest.mark.parametrize("colour", ["asyncio", "trio"])
@pytest.mark.parametrize("timeout", [None, 5.0])
def test_async_sinks_are_awaited_by_the_same_script(
    engine: oncemore.Engine, clock: FakeClock, colour: str, timeout: float | None
) -> None:
    give("a", ["slow", "x", "bad"])
    consumer = Consumer({("slow", 1): SOON, ("bad", 0): NEVER})
    relay = relay_of(engine, Later(consumer), policy=POLICY.replace(timeout_s=timeout))

    async def main() -> list[DeliveryStats]:
        told = [await relay.run_once()]
        clock.advance(5.0)
        return [*told, await relay.run_once()]

    assert run_in(colour, main) == [DeliveryStats(failed=1, waiting=3), DeliveryStats(delivered=2, dead=1)]
    assert consumer.payloads == ["a0", "a1"]


@pytest.mark.parametrize("colour", ["asyncio", "trio"])
def test_a_cancelled_async_relay_leaves_its_event_free(engine: oncemore.Engine, colour: str) -> None:
    give("a", ["x"])

    async def sink(message: EventMessage) -> None:
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
def test_an_async_relay_runs_until_stopped_despite_store_errors(colour: str) -> None:
    simulation = OutboxSimulation(("a", ["x"]))
    heads, failures = simulation.store.list_heads, iter((True,))

    def failing(query: HeadQuery) -> Any:
        if next(failures, False):
            raise oncemore.StoreError("not now")
        return heads(query)

    simulation.store.list_heads = failing  # type: ignore[method-assign]
    stop = threading.Event()

    async def sink(message: EventMessage) -> None:
        simulation.consumer(message)
        stop.set()

    relay = OutboxRelay(simulation.engine(), {"*": sink}, poll_s=0.01)
    run_in(colour, lambda: relay.run(stop))
    assert simulation.consumer.payloads == ["a0"]
    with pytest.raises(oncemore.UsageError, match=r"await relay\.run"):
        relay.start()
    simulation.close()


def test_a_plain_relay_runs_in_the_callers_thread_until_it_is_stopped(engine: oncemore.Engine) -> None:
    give("a", ["x"])
    stop = threading.Event()
    relay_of(engine, lambda message: stop.set()).run(stop)
    assert states(engine) == {"DELIVERED": 1}


def test_a_policy_without_jitter_is_accepted() -> None:
    policy = Policy("own", max_attempts=2, schedule=Schedule("fixed", delays=(1.0,)), jitter=Jitter("none"))
    assert OutboxRelay(oncemore.open("memory:"), {"*": print}, policy=policy)._options.policy is policy
