"""Relays to queues: a real nats-server whose answers are lost, and messages as CloudEvents."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.messaging.message import encode_binary, encode_structured
from oncemore.messaging.sink_urls import parse_sinks
from oncemore.outbox import EventMessage, JetStreamSink, OutboxRelay, WebhookSink
from tests.messaging.inbox.broker import wire
from tests.messaging.outbox.simulation import events
from tests.servers import nats

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE = EventMessage(
    "e" * 32, "orders.new", {"order": "A-1"}, "c-1", "t", 1_700_000_000.25, "lane", 1001, 1
)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with nats.running(jetstream=True) as (url, _):
        yield url


@pytest.fixture
def url(server: str) -> Iterator[str]:
    asyncio.run(_on(server, "add_stream", name="EVENTS", subjects=["orders.>", "alerts"]))
    yield server
    asyncio.run(_on(server, "delete_stream", "EVENTS"))


async def _on(url: str, what: str, *told: Any, **named: Any) -> Any:
    import nats as library

    client = await library.connect(url)
    try:
        return await getattr(client.jetstream(), what)(*told, **named)
    finally:
        await client.close()


def stored(url: str) -> list[Any]:
    count = asyncio.run(_on(url, "stream_info", "EVENTS")).state.messages
    return [asyncio.run(_on(url, "get_msg", "EVENTS", n)) for n in range(1, count + 1)]


@oncemore.step(effect="outbox", name="gives")
def give(order: str) -> None:
    oncemore.current().emit("orders.new", {"order": order})


@pytest.mark.req("MSG-6", "IDEM-15")
def test_a_publish_repeated_after_a_lost_acknowledgement_is_stored_once(
    engine: oncemore.Engine, clock: Any, url: str
) -> None:
    with oncemore.context(correlation_id="c-1"):
        give("A-1")
    with wire(url) as cable:
        cable.cut_at = [("out", b'"stream":"EVENTS"')]
        sink = JetStreamSink(cable.url, timeout=0.5)
        relay = OutboxRelay(engine, {"orders.*": sink})
        assert relay.run_once().failed == 1
        for _ in range(20):  # until it is connected again
            clock.advance(3600)
            if relay.run_once().delivered:
                break
        sink.close()
    assert cable.cuts == 1
    assert [event.state for event in events(engine).values()] == ["DELIVERED"]
    (found,) = stored(url)
    body = json.loads(found.data)
    assert body["payload"] == {"order": "A-1"}
    assert found.headers["Nats-Msg-Id"] == body["id"]
    assert (found.headers["Correlation-Id"], found.headers["Oncemore-Attempt"]) == ("c-1", "1")
    assert give.key("A-1") not in found.data.decode() + str(found.headers)


def test_a_duplicate_is_accepted_only_if_the_stream_has_or_had_the_event(url: str) -> None:
    sink = JetStreamSink(url, subject="alerts")
    sink(MESSAGE)
    sink(MESSAGE._replace(attempt=2))
    assert len(stored(url)) == 1
    asyncio.run(_on(url, "delete_msg", "EVENTS", 1))
    sink(MESSAGE)  # somebody has had it
    sink.close()
    with pytest.raises(oncemore.TransientError, match=r"calls e+ a duplicate"):
        asyncio.run(_other(sink))


async def _other(sink: JetStreamSink) -> None:
    class Streams:
        async def get_msg(self, stream: str, seq: int) -> Any:
            return type("Found", (), {"headers": {"Nats-Msg-Id": "other"}})

    told = type("Told", (), {"stream": "EVENTS", "seq": 1})
    await sink._check_duplicate(Streams(), told, MESSAGE.id)


def test_a_relay_accepts_addresses_as_sinks(engine: oncemore.Engine, url: str) -> None:
    give("A-1")
    relay = OutboxRelay(engine, {"orders.*": url, "rest": "file:rest.jsonl"})
    assert relay.run_once().delivered == 1
    relay.close()
    assert len(stored(url)) == 1
    with pytest.raises(oncemore.UsageError, match=r"the sink of 'x' is 'ftp://h'; it takes https"):
        OutboxRelay(engine, {"x": "ftp://h"})


def test_a_subject_contains_no_wildcards_of_the_topic(url: str) -> None:
    sink = JetStreamSink(url, subject="orders.{topic}")
    sink(MESSAGE._replace(topic="new *> order"))
    sink.close()
    (found,) = stored(url)
    assert found.subject == "orders.new____order"


def test_an_event_is_the_same_bytes_in_every_attempt_in_both_modes() -> None:
    for form in (encode_structured, encode_binary):
        assert form(MESSAGE, "/shop") == form(MESSAGE._replace(attempt=7), "/shop")
    fields, body = encode_structured(MESSAGE, "/shop")
    assert fields == {"Content-Type": "application/cloudevents+json"}
    told = json.loads(body)
    assert told == {
        "specversion": "1.0", "id": MESSAGE.id, "source": "/shop", "type": "orders.new",
        "time": "2023-11-14T22:13:20.250000Z", "datacontenttype": "application/json",
        "correlationid": "c-1", "partitionkey": "lane", "sequence": "00000000000000001001", "tenant": "t",
        "data": {"order": "A-1"},
    }  # fmt: skip
    fields, body = encode_binary(MESSAGE._replace(topic='a "b" %ü'), "/shop")
    assert body == b'{"order":"A-1"}'
    assert fields["Content-Type"] == "application/json"
    assert fields["ce-type"] == "a%20%22b%22%20%25%C3%BC"
    assert {name.removeprefix("ce-") for name in fields} - {"Content-Type"} == told.keys() - {
        "data", "datacontenttype",
    }  # fmt: skip


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(oncemore.PermanentError, match="cannot be encoded as plain JSON"):
        encode_structured(MESSAGE._replace(payload={1j: 2}), "/shop")
    for wrong, said in (({"form": "xml"}, "form is 'xml'"), ({"source": "a b"}, "source is 'a b'")):
        with pytest.raises(oncemore.UsageError, match=said):
            WebhookSink("https://example.org", **wrong)
    with pytest.raises(oncemore.UsageError, match="header 'ce-id' is set"):
        WebhookSink("https://example.org", headers={"ce-id": "1"})
    for told, said in (({"url": "http://x"}, "url takes nats"), ({"timeout": 0}, "timeout is 0")):
        with pytest.raises(oncemore.UsageError, match=said):
            JetStreamSink(**{"url": "nats://x", **told})


def test_notifications_can_go_to_queues() -> None:
    found = parse_sinks(
        [
            "nats://u:secret@host:4222",
            {"jetstream": "nats://host:4222", "subject": "alerts", "name": "ops"},
            "sqs:https://sqs.eu-central-1.amazonaws.com/1/alerts.fifo",
            JetStreamSink("nats://other"),
        ]
    )
    assert [repr(sink) for sink in found.values()] == [
        "<oncemore.JetStreamSink nats://host:4222/{topic}>",
        "<oncemore.JetStreamSink nats://host:4222/alerts>",
        "<oncemore.SqsSink https://sqs.eu-central-1.amazonaws.com/1/alerts.fifo>",
        "<oncemore.JetStreamSink nats://other:4222/{topic}>",
    ]
    assert "ops" in found
