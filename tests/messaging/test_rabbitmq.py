"""Events to RabbitMQ and messages from it, with a real server: kills, cuts of the wire, dead letters.

All tests of RabbitMQ are in this module, because starting a server takes seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.inbox import Inbox, InboxStats, inbox_from_url, rabbitmq
from oncemore.messaging.sink_urls import parse_sinks
from oncemore.messaging.sources import rabbitmq as from_rabbitmq
from oncemore.messaging.sources.rabbitmq import RabbitMqSource
from oncemore.outbox import OutboxRelay, RabbitMqSink
from oncemore.steps.history import verify_chain
from tests.messaging.inbox.broker import Wire
from tests.messaging.inbox.fake_queue import Shop
from tests.messaging.inbox.test_kills import ROOT, _booking, victim
from tests.messaging.inbox.victim import STEP
from tests.messaging.outbox.simulation import events
from tests.servers import rabbitmq as servers
from tests.servers.faults import refusing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The beginning of the method frames basic.ack of AMQP, from the client and from the server.
ACK = b"\x00\x3c\x00\x50"


@pytest.fixture(scope="module")
def server() -> Iterator[servers.RabbitMqServer]:
    with contextlib.ExitStack() as stack:
        try:
            started = stack.enter_context(servers.running())
        except servers.NoRabbitMq as reason:
            pytest.skip(str(reason))
        yield started


class Broker:
    """The queues of a test."""

    def __init__(self, url: str) -> None:
        import pika

        self.url, self._pika = url, pika

    def call(self, work: Callable[[Any], Any]) -> Any:
        with contextlib.closing(
            self._pika.BlockingConnection(self._pika.URLParameters(self.url))
        ) as connection:
            return work(connection.channel())

    def declare(self, queue: str, **arguments: Any) -> None:
        self.call(lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments))

    def put(self, queue: str, *orders: Any, **properties: Any) -> None:
        def publish(channel: Any) -> None:
            for number, order in enumerate(orders):
                body = order if isinstance(order, bytes) else json.dumps({"order": order}).encode()
                told = {"message_id": f"m{number}-{order!r:.20}", **properties}
                channel.basic_publish("", queue, body, self._pika.BasicProperties(**told))

        self.declare(queue)
        self.call(publish)

    def take(self, queue: str) -> list[Any]:
        """Remove all messages; return method, properties and body of each."""

        def get(channel: Any) -> list[Any]:
            found = []
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got)
            return found

        return list(self.call(get))

    def depth(self, queue: str) -> int:
        return int(self.call(lambda channel: channel.queue_declare(queue, passive=True).method.message_count))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


@pytest.fixture
def broker(server: servers.RabbitMqServer) -> Broker:
    return Broker(server.url)


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_rabbitmq, "POLL_S", 0.2)


@oncemore.step(effect="outbox", name="gives")
def give(order: str) -> None:
    oncemore.current().emit("orders.new", {"order": order})


@contextlib.contextmanager
def closing_sink(sink: RabbitMqSink) -> Iterator[RabbitMqSink]:
    with contextlib.closing(sink):
        yield sink


# The sink -------------------------------------------------------------------------------------------


def test_an_event_is_stored_persistently_under_its_id(engine: oncemore.Engine, broker: Broker) -> None:
    broker.declare("orders.new")
    with oncemore.context(correlation_id="c-1"):
        give("A-1")
    relay = OutboxRelay(engine, {"orders.*": broker.url})
    assert relay.run_once().delivered == 1
    relay.close()
    ((_, properties, body),) = broker.take("orders.new")
    content = json.loads(body)
    assert (content["payload"], properties.message_id) == ({"order": "A-1"}, content["id"])
    assert (properties.delivery_mode, properties.correlation_id) == (2, "c-1")
    assert (properties.content_type, properties.type) == ("application/json", "orders.new")
    assert properties.headers == {"Oncemore-Id": content["id"], "Oncemore-Attempt": "1"}
    assert give.key("A-1") not in str(properties) + body.decode()


def test_an_event_without_a_route_waits_until_there_is_one(
    engine: oncemore.Engine, clock: Any, broker: Broker
) -> None:
    give("A-1")
    sinks = [RabbitMqSink(broker.url, routing_key="later"), RabbitMqSink(broker.url, exchange="missing")]
    for sink in sinks:
        assert OutboxRelay(engine, {"*": sink}).run_once().failed == 1
        clock.advance(3600)
    assert [(event.state, event.attempt) for event in events(engine).values()] == [("PENDING", 2)]
    broker.declare("later")
    # The missing exchange has cost the second sink its channel; the first one has kept its own.
    assert OutboxRelay(engine, {"*": sinks[0]}).run_once().delivered == 1
    for sink in sinks:
        sink.close()
    assert len(broker.take("later")) == 1


def test_a_lost_confirmation_is_a_repeat_that_an_inbox_recognises(
    engine: oncemore.Engine, clock: Any, server: servers.RabbitMqServer, broker: Broker
) -> None:
    broker.declare("orders.new")
    give("A-1")
    with contextlib.closing(Wire(server.port)) as cable:
        cable.cut_at = [("out", ACK)]
        address = f"amqp://guest:guest@127.0.0.1:{cable.port}"
        with closing_sink(RabbitMqSink(address)) as sink:
            relay = OutboxRelay(engine, {"orders.*": sink})
            assert relay.run_once().failed == 1
            clock.advance(3600)
            assert relay.run_once().delivered == 1
    assert (cable.cuts, broker.depth("orders.new")) == (1, 2)
    shop = Shop()
    stats = rabbitmq(shop.step, broker.url, queue="orders.new", concurrency=1).drain()
    assert (stats, shop.booked) == (InboxStats(done=1, duplicate=1), [("A-1", 1)])


def test_a_server_that_does_not_confirm_is_a_timeout(server: servers.RabbitMqServer, broker: Broker) -> None:
    from tests.messaging.outbox.test_queues import MESSAGE

    broker.declare(MESSAGE.topic)
    with closing_sink(RabbitMqSink(broker.url, timeout=0.3)) as sink:
        sink(MESSAGE)
        with server.paused(), pytest.raises(TimeoutError, match="RabbitMQ did not confirm the event within"):
            sink(MESSAGE)
        with closing_sink(RabbitMqSink(broker.url)) as patient:
            patient(MESSAGE)
        sink(MESSAGE)  # over a new connection
    assert {properties.message_id for _, properties, _ in broker.take(MESSAGE.topic)} == {MESSAGE.id}


def test_cloudevents_in_binary_form_are_read_by_an_inbox(engine: oncemore.Engine, broker: Broker) -> None:
    broker.declare("binary")
    give("A-1")
    with closing_sink(RabbitMqSink(broker.url, routing_key="binary", form="cloudevents-binary")) as sink:
        assert OutboxRelay(engine, {"*": sink}).run_once().delivered == 1
    shop = Shop()
    assert rabbitmq(shop.step, broker.url, queue="binary").drain() == InboxStats(done=1)
    assert shop.booked == [("A-1", 1)]


# The source -----------------------------------------------------------------------------------------


def test_a_message_is_acknowledged_after_its_result_is_stored(
    engine: oncemore.Engine, broker: Broker
) -> None:
    broker.put("booking", "A-1", "A-2", correlation_id="c-7")
    broker.put("booking", "A-1", "A-2")  # the same ids
    shop = Shop()
    stats = rabbitmq(shop.step, broker.url, queue="booking", concurrency=1).drain()
    assert (stats, shop.booked) == (InboxStats(done=2, duplicate=2), [("A-1", 1), ("A-2", 1)])
    assert (set(shop.correlations), broker.depth("booking")) == ({"c-7"}, 0)


def test_poison_is_a_dead_letter_here_and_in_the_dead_letter_exchange(
    engine: oncemore.Engine, broker: Broker
) -> None:
    broker.declare("graveyard")
    told = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graveyard"}
    broker.declare("poison", **told)
    for body, properties in (
        (b"{", {"message_id": "p1"}),
        (b'{"order": "A-1"}', {}),
        (b'{"order": "A-1"}', {}),
    ):
        broker.call(
            lambda channel, body=body, properties=properties: channel.basic_publish(
                "", "poison", body, broker._pika.BasicProperties(**properties)
            )
        )
    shop = Shop()
    inbox = rabbitmq(shop.step, broker.url, queue="poison", concurrency=1)
    assert inbox.drain() == InboxStats(dead=3)
    letters = {letter.error["message"][:26] for letter in inbox.dead_letters()}
    assert letters == {"the message is not JSON: I", "the message has no id, so "}
    assert (shop.booked, len(broker.take("graveyard")), broker.depth("poison")) == ([], 3, 0)


def test_with_a_key_a_message_needs_no_id(engine: oncemore.Engine, broker: Broker) -> None:
    broker.put("keyed", "A-1", "A-1", message_id=None)
    shop = Shop()
    inbox = rabbitmq(
        shop.step, broker.url, queue="keyed", key=lambda content: content["order"], concurrency=1
    )
    assert inbox.drain() == InboxStats(done=1, duplicate=1)


def test_a_deferred_message_comes_again_when_it_is_due(
    engine: oncemore.Engine, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_rabbitmq, "MAX_HELD_S", 0.05)  # the step waits for 90 s
    broker.put("deferred", "A-1")
    shop, counts = Shop(), []
    shop.says = [ConnectionRefusedError("not now")]
    inbox = rabbitmq(shop.step, broker.url, queue="deferred")
    receive = inbox._source.receive

    async def count(limit: int) -> Any:
        got = await receive(limit)
        counts.extend(delivery.message.delivery_count for delivery in got)
        if len(counts) >= 3:
            inbox.stop()
        return got

    inbox._source.receive = count  # type: ignore[method-assign]
    inbox.run()
    assert (counts[:3], inbox.stats.done, shop.booked) == ([1, 2, 3], 0, [])
    assert inbox.stats.deferred >= 2
    # The inbox has ended, and the server has the message: it was not acknowledged.
    assert broker.depth("deferred") == 1


def test_a_consumer_holds_no_more_messages_than_its_prefetch(engine: oncemore.Engine, broker: Broker) -> None:
    broker.put("many", *range(9))
    go_on, held = threading.Event(), []

    @oncemore.step(effect="idempotent", name="slow")
    def slow(order: int) -> int:
        assert go_on.wait(20)
        return order

    inbox = rabbitmq(slow, broker.url, queue="many", concurrency=2, prefetch=3)
    thread = threading.Thread(target=inbox.run)
    thread.start()
    try:
        until = time.monotonic() + 20
        while len(inbox.active_ids) < 2:
            assert time.monotonic() < until
            time.sleep(0.005)
        held.append(broker.depth("many"))
        go_on.set()
        while inbox.stats.done < 9:
            assert time.monotonic() < until
            time.sleep(0.005)
    finally:
        inbox.stop()
        thread.join(20)
    assert (held, broker.depth("many")) == ([6], 0)


def test_two_inboxes_share_a_queue(engine: oncemore.Engine, broker: Broker) -> None:
    broker.declare("shared", **{"x-queue-type": "quorum"})
    broker.call(
        lambda channel: [
            channel.basic_publish(
                "", "shared", b'{"order": "%d"}' % (number // 2),
                broker._pika.BasicProperties(message_id=str(number // 2)),
            )
            for number in range(40)
        ]
    )  # fmt: skip
    shop = Shop()
    inboxes = [rabbitmq(shop.step, broker.url, queue="shared", prefetch=5) for _ in range(2)]
    threads = [threading.Thread(target=inbox.run) for inbox in inboxes]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 30
    while sum(inbox.stats.done + inbox.stats.duplicate for inbox in inboxes) < 40:
        assert time.monotonic() < until, [inbox.stats for inbox in inboxes]
        time.sleep(0.01)
    for inbox in inboxes:
        inbox.stop()
    for thread in threads:
        thread.join(20)
    assert sorted(order for order, _ in shop.booked) == sorted(map(str, range(20)))
    assert broker.depth("shared") == 0


def test_a_wire_cut_before_the_ack_leads_to_a_duplicate_that_is_not_run(
    engine: oncemore.Engine, server: servers.RabbitMqServer, broker: Broker
) -> None:
    broker.put("cut", "A-1")
    shop = Shop()
    with contextlib.closing(Wire(server.port)) as cable:
        cable.cut_at = [("in", ACK)]
        address = f"amqp://guest:guest@127.0.0.1:{cable.port}"
        inbox = rabbitmq(shop.step, address, queue="cut")
        for _ in range(20):
            inbox.drain()
            if inbox.stats.duplicate:
                break
    assert (cable.cuts, shop.booked, broker.depth("cut")) == (1, [("A-1", 1)], 0)
    assert inbox.stats == InboxStats(done=1, duplicate=1, unanswered=1)


def test_a_consumer_killed_around_its_ack_does_not_run_the_message_again(
    tmp_path: Path, broker: Broker
) -> None:
    for when, taken in (("committed", InboxStats(duplicate=1)), ("acked", InboxStats())):
        home = tmp_path / when
        home.mkdir()
        broker.put("victim", "A-1", message_id=f"id-{when}")
        with victim(home, broker.url, when) as process:
            process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, when
        with oncemore.open(home / "log.db") as engine:
            book: Any = oncemore.step(effect="idempotent", name=STEP)(_booking(home / "booked"))
            assert rabbitmq(book, broker.url, queue="victim").drain() == taken, when
            assert (home / "booked").read_text() == "A-1\n"
            verify_chain(engine.store.read_entries())
        assert broker.depth("victim") == 0


def test_a_killed_server_keeps_its_messages_and_both_sides_come_back(
    engine: oncemore.Engine, clock: Any, server: servers.RabbitMqServer, broker: Broker
) -> None:
    broker.declare("orders.new")
    shop = Shop()
    with closing_sink(RabbitMqSink(broker.url)) as sink:
        relay = OutboxRelay(engine, {"orders.*": sink})
        give("A-1")
        assert relay.run_once().delivered == 1
        inbox = rabbitmq(shop.step, broker.url, queue="late")
        broker.declare("late")
        thread = threading.Thread(target=inbox.run)
        thread.start()
        server.kill()
        give("A-2")
        assert relay.run_once().failed == 1
        server.start()
        clock.advance(3600)
        assert relay.run_once().delivered == 1
        assert [json.loads(body)["payload"]["order"] for *_, body in broker.take("orders.new")] == [
            "A-1",
            "A-2",
        ]
        broker.put("late", "A-3")
        until = time.monotonic() + 30
        while not inbox.stats.done:
            assert time.monotonic() < until, inbox.stats
            time.sleep(0.01)
        inbox.stop()
        thread.join(20)
    assert shop.booked == [("A-3", 1)]


def test_a_deleted_queue_is_reported_and_waited_for(engine: oncemore.Engine, broker: Broker) -> None:
    broker.declare("gone")
    shop = Shop()
    inbox = rabbitmq(shop.step, broker.url, queue="gone", queue_type="classic")
    thread = threading.Thread(target=inbox.run)
    thread.start()
    until = time.monotonic() + 30
    while not broker.call(lambda channel: channel.queue_declare("gone", passive=True).method.consumer_count):
        assert time.monotonic() < until
        time.sleep(0.01)
    broker.call(lambda channel: channel.queue_delete("gone"))
    broker.put("gone", "A-1")  # declared again, by the test or by the inbox
    while not inbox.stats.done:
        assert time.monotonic() < until, inbox.stats
        time.sleep(0.01)
    inbox.stop()
    thread.join(20)
    assert shop.booked == [("A-1", 1)]


def test_a_missing_queue_is_created_or_reported(engine: oncemore.Engine, broker: Broker) -> None:
    shop = Shop()
    with pytest.raises(
        oncemore.UsageError, match="there is no queue 'absent'; create it, or pass queue_type="
    ):
        rabbitmq(shop.step, broker.url, queue="absent").drain()
    address = f"{broker.url}/%2F?queue=made&queue_type=quorum&prefetch=7"
    assert inbox_from_url(shop.step, address).drain() == InboxStats()
    broker.put("made-too", "A-1")
    assert broker.depth("made") == 0
    with pytest.raises(Exception, match="PRECONDITION_FAILED"):
        broker.declare("made", **{"x-queue-type": "classic"})


def test_the_command_takes_an_amqp_address(tmp_path: Path, broker: Broker) -> None:
    (tmp_path / "shop.py").write_text(
        "import oncemore\n\n@oncemore.step(effect='idempotent')\ndef book(order: str) -> str:\n"
        "    return order\n"
    )
    broker.put("command", "A-1", b"{")
    command = [sys.executable, "-m", "oncemore", "inbox", "shop:book", "--drain", "--json"]
    done = subprocess.run(
        [*command, "--from", f"{broker.url}?queue=command"], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {"done": 1, "dead": 1}.items() <= json.loads(done.stdout).items()


# Without a server -----------------------------------------------------------------------------------


def test_bad_options_are_refused() -> None:
    shop = Shop()
    for wrong, said in (
        ({"url": "http://x"}, "url takes amqp"),
        ({"queue": ""}, "queue is ''"),
        ({"prefetch": 0}, "prefetch is 0; it takes 1 to 65535"),
        ({"queue_type": "stream"}, "queue_type is 'stream'; the choices are quorum, classic"),
    ):
        with pytest.raises(oncemore.UsageError, match=said):
            rabbitmq(shop.step, **{"url": "amqp://x", "queue": "q", **wrong})
    for address in ("amqp://x", "amqp://x?queue=q&other=1"):
        with pytest.raises(
            oncemore.UsageError, match=r"the address takes .*amqp://host:5672/VHOST\?queue=NAME"
        ):
            inbox_from_url(shop.step, address)
    with pytest.raises(oncemore.UsageError, match="prefetch is 'many'; it takes a whole number"):
        inbox_from_url(shop.step, "amqp://x?queue=q&prefetch=many")
    for told, said in (({"url": "nats://x"}, "url takes amqp"), ({"timeout": 0}, "timeout is 0")):
        with pytest.raises(oncemore.UsageError, match=said):
            RabbitMqSink(**{"url": "amqp://x", **told})


def test_addresses_and_names_hide_passwords() -> None:
    found = parse_sinks(
        [
            "amqp://u:secret@host/v",
            {"rabbitmq": "amqps://host", "exchange": "e", "routing_key": "r", "name": "x"},
        ]
    )
    assert [repr(sink) for sink in found.values()] == [
        "<oncemore.RabbitMqSink amqp://***@host/v /{topic}>",
        "<oncemore.RabbitMqSink amqps://host e/r>",
    ]
    assert RabbitMqSource("amqp://h/v", queue="q", prefetch=1).name == "rabbitmq:v/q"


def test_an_unreachable_server_is_an_error_at_once(engine: oncemore.Engine) -> None:
    import pika.exceptions

    give("A-1")
    with refusing() as refused:
        sink = RabbitMqSink(f"amqp://127.0.0.1:{refused.port}", options={"connection_attempts": 1})
        assert OutboxRelay(engine, {"*": sink}).run_once().failed == 1
        sink.close()
        source = RabbitMqSource(f"amqp://127.0.0.1:{refused.port}", queue="q", prefetch=1)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            asyncio.run(source.open())
        with pytest.raises(ConnectionResetError, match="has ended"):
            source._connection.submit(print)  # type: ignore[union-attr]


def test_without_pika_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    inbox = Inbox(RabbitMqSource("amqp://localhost", queue="q", prefetch=1), Shop().step)
    with pytest.raises(oncemore.MissingExtra, match=r"pip install 'oncemore\[rabbitmq\]'"):
        inbox.drain()
