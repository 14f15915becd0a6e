"""Inboxes on a real nats-server: kills of the server, and cuts of the wire, between COMMIT and ack."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.inbox import Inbox, InboxStats, inbox_from_url, jetstream
from oncemore.messaging.sources.jetstream import JetStreamSource
from oncemore.queries.report_period import load_period
from oncemore.queries.sustainability_report import build_sustainability
from tests.messaging.inbox.broker import Broker, left, published, wire
from tests.messaging.inbox.fake_queue import Shop
from tests.servers.faults import refusing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("nats"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the poll time: a stop is noticed between two fetches."""
    monkeypatch.setattr("oncemore.messaging.sources.jetstream.POLL_S", 0.2)


@pytest.fixture
def url(broker: Broker) -> str:
    return f"nats://127.0.0.1:{broker._port}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


def put(url: str, stream: str, *orders: Any, **headers: str) -> None:
    messages = [
        (
            f"{stream.lower()}.new",
            one if isinstance(one, bytes) else json.dumps({"order": one}).encode(),
            headers,
        )
        for one in orders
    ]
    asyncio.run(published(url, stream, *messages))


def serve(inbox: Inbox, until: Callable[[], bool], also: Callable[[], None] | None = None) -> None:
    """Serve until a condition holds, for at most 20 s."""

    async def main() -> None:
        serving = asyncio.ensure_future(inbox.serve())
        async with asyncio.timeout(20):
            while not until() and not serving.done():
                await asyncio.sleep(0.01)
                if also is not None:
                    also()
        inbox.stop()
        await serving

    asyncio.run(main())


def test_messages_are_processed_and_removed_from_the_stream(store: oncemore.Engine, url: str) -> None:
    shop = Shop()
    put(url, "ONE", "A-1", "A-2", b"{no json")
    inbox = jetstream(shop.step_awaited, url, stream="ONE", durable="shop")
    serve(inbox, lambda: sum(inbox.stats) == 3)
    assert sorted(shop.booked) == [("A-1", 1), ("A-2", 1)]
    assert inbox.stats == InboxStats(done=2, dead=1)
    assert asyncio.run(left(url, "ONE")) == (0, 0)
    assert len(inbox.dead_letters()) == 1


@pytest.mark.req("MSG-4")
def test_a_repeat_beyond_the_servers_own_window_is_acknowledged_and_not_run(
    store: oncemore.Engine, url: str
) -> None:
    shop = Shop()
    for turn in range(2):  # the message id is the sender's; a work queue that is empty has forgotten it
        asyncio.run(_anew(url, "AGAIN", turn))
        put(url, "AGAIN", "A-1", **{"Nats-Msg-Id": "order-1"})
        inbox = jetstream(shop.step, url, stream="AGAIN", durable="shop")
        serve(inbox, lambda inbox=inbox: sum(inbox.stats) == 1)  # type: ignore[misc]
    assert (inbox.stats, len(shop.booked)) == (InboxStats(duplicate=1), 1)


@pytest.mark.req("TELEM-12")
def test_a_day_of_messages_delivered_twice_adds_no_energy(store: oncemore.Engine, url: str) -> None:
    @oncemore.step(effect="idempotent", name="day.book")
    def book(order: str) -> str:
        oncemore.current().add_usage(energy_kwh=0.01)
        return order

    orders, energy = [f"A-{n}" for n in range(10)], []
    for turn in range(2):
        # The stream is new: the server does not know any more that it had these messages before.
        asyncio.run(_anew(url, "DAY", turn))
        for order in orders:
            put(url, "DAY", order, **{"Nats-Msg-Id": order})
        inbox = jetstream(book, url, stream="DAY", durable="shop")
        serve(inbox, lambda inbox=inbox: sum(inbox.stats) == len(orders))  # type: ignore[misc]
        report = build_sustainability(load_period(store.store, 0.0, 4e9))
        energy.append(next(figure.value for figure in report.figures if figure.name == "energy_kwh"))
        # No key was computed again after COMPLETE.
        assert report.computed_again == ()
    assert energy[0] == pytest.approx(0.1, rel=0.01)
    assert energy[1] < energy[0] * 1.01


async def _anew(url: str, stream: str, turn: int) -> None:
    import nats

    if turn:
        client = await nats.connect(url)
        await client.jetstream().delete_stream(stream)
        await client.close()


def test_the_first_message_of_a_recreated_stream_is_a_new_one(store: oncemore.Engine, url: str) -> None:
    shop = Shop()
    for turn in range(2):
        asyncio.run(_anew(url, "FRESH", turn))
        put(url, "FRESH", "A-1")
        inbox = jetstream(shop.step, url, stream="FRESH", durable="shop")
        serve(inbox, lambda inbox=inbox: sum(inbox.stats) == 1)  # type: ignore[misc]
        assert inbox.stats == InboxStats(done=1)
    assert len(shop.booked) == 2


def test_a_deferred_message_is_delivered_after_the_decided_delay(store: oncemore.Engine, url: str) -> None:
    policy = oncemore.Policy(
        "soon",
        max_attempts=3,
        schedule=oncemore.Schedule("fixed", delays=(0.6, 0.7)),
        jitter=oncemore.Jitter("none"),
    )
    shop, times = Shop(policy=policy), []
    shop.says = [ConnectionRefusedError()]
    put(url, "LATER", "A-1")
    inbox = jetstream(shop.step, url, stream="LATER", durable="shop", ack_wait=30)
    serve(
        inbox,
        lambda: bool(shop.booked),
        lambda: times.append(time.monotonic()) if inbox.stats.deferred else None,
    )
    assert 0.4 < times[-1] - times[0] < 5
    assert inbox.stats._replace(done=0).deferred >= 1
    assert asyncio.run(left(url, "LATER")) == (0, 0)


def test_work_longer_than_ack_wait_is_delivered_once(store: oncemore.Engine, url: str) -> None:
    shop = Shop()

    @oncemore.step(effect="idempotent", name="slow")
    def slow(order: str) -> None:
        time.sleep(2.5)  # real time: it is the server's that counts
        shop.booked.append((order, 1))

    put(url, "SLOW", "A-1")
    inbox = jetstream(slow, url, stream="SLOW", durable="shop", ack_wait=1.0)
    serve(inbox, lambda: sum(inbox.stats) == 1)
    assert (inbox.stats, len(shop.booked)) == (InboxStats(done=1), 1)


class Held(JetStreamSource):
    """A source that calls a function before its first ack."""

    before_ack: Any = None

    async def ack(self, delivery: Any) -> None:
        call, self.before_ack = self.before_ack, None
        if call is not None:
            call()
        await super().ack(delivery)


def test_a_server_killed_between_commit_and_ack_delivers_again_and_nothing_is_run(
    store: oncemore.Engine, broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.messaging.sources.jetstream.REPLY_TIMEOUT_S", 0.5)
    shop = Shop()
    put(url, "KILLED", "A-1")
    source = Held(url, stream="KILLED", durable="shop", ack_wait_s=0.4)
    source.before_ack = broker.kill
    inbox = Inbox(source, shop.step)
    down: list[float] = []

    def bring_back() -> None:
        if inbox.stats.unanswered and not down:
            broker.start()
            down.append(time.monotonic())

    serve(inbox, lambda: inbox.stats.duplicate >= 1, bring_back)
    assert len(shop.booked) == 1
    assert inbox.stats.unanswered >= 1
    assert asyncio.run(left(url, "KILLED")) == (0, 0)


def test_a_lost_ack_is_repeated_and_the_step_does_not_run_again(
    store: oncemore.Engine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.messaging.sources.jetstream.REPLY_TIMEOUT_S", 0.5)
    shop = Shop()
    put(url, "CUT", "A-1")
    with wire(url) as cable:
        cable.cut_at = [("in", b"+ACK")]
        inbox = jetstream(shop.step, cable.url, stream="CUT", durable="shop", ack_wait=0.4)
        serve(inbox, lambda: inbox.stats.duplicate >= 1)
    assert (cable.cuts, len(shop.booked)) == (1, 1)
    assert inbox.stats.unanswered >= 1
    assert asyncio.run(left(url, "CUT")) == (0, 0)


def test_a_missing_stream_is_created_only_with_subjects(store: oncemore.Engine, url: str) -> None:
    shop = Shop()
    inbox = jetstream(shop.step, url, stream="MADE", durable="shop")
    with pytest.raises(oncemore.UsageError, match="no stream 'MADE'"):
        inbox.drain()
    made = inbox_from_url(shop.step, f"{url}/MADE/shop?subjects=made.>&ack_wait=5")
    assert made.drain() == InboxStats()
    put(url, "MADE", "A-1")
    assert made.drain() == InboxStats(done=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "http://x"}, "url takes nats"),
        ({"stream": "a.b"}, "stream is 'a.b'"),
        ({"durable": ""}, "durable is ''"),
        ({"ack_wait": 0.0001}, "ack_wait"),
    ],
)
def test_options_are_checked_before_connecting(options: dict[str, Any], said: str) -> None:
    told = {"url": "nats://x", "stream": "S", "durable": "d", **options}
    with pytest.raises(oncemore.UsageError, match=said):
        jetstream(Shop().step, **told)


@pytest.mark.parametrize("address", ["nats://h/ONE", "nats://h/A/b?x=1", "file:x", "amqp://h/q"])
def test_an_address_that_names_no_queue_is_refused(address: str) -> None:
    with pytest.raises(oncemore.UsageError, match="the address takes nats://"):
        inbox_from_url(Shop().step, address)


def test_an_inbox_without_a_server_can_be_stopped(store: oncemore.Engine) -> None:
    shop = Shop()
    with refusing() as nobody:
        inbox = jetstream(shop.step, f"nats://127.0.0.1:{nobody.port}", stream="S", durable="d")
        began = time.monotonic()
        serve(inbox, lambda: time.monotonic() - began > 0.1)
    assert time.monotonic() - began < 4
    assert inbox.stats == InboxStats()
