"""A message: its schema, the same bytes in every attempt, and no key in anything that is published."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import jsonschema_rs
import pytest

import oncemore
from oncemore.log.tagged_json import TaggedEncoder
from oncemore.outbox import SCHEMA, EventMessage, JsonLinesSink, OutboxRelay, WebhookSink
from tests.messaging.outbox.consumer import open_shop
from tests.messaging.outbox.simulation import POLICY, Consumer, events

SCHEMA_TEXT = SCHEMA.read_text(encoding="utf-8")
FITS = jsonschema_rs.validator_for(json.loads(SCHEMA_TEXT))
MESSAGE = EventMessage("0" * 32, "topic", {"a": 1}, "c-1", "", 1000.5, "1" * 32, 1000, 1)


@pytest.mark.req("MSG-7")
def test_the_schema_requires_a_correlation_id_and_has_no_field_for_a_key() -> None:
    schema = json.loads(SCHEMA_TEXT)
    assert "correlation_id" in schema["required"]
    assert schema["additionalProperties"] is False
    assert not [name for name in schema["properties"] if "key" in name or "idempot" in name]
    assert FITS.is_valid(MESSAGE.to_dict())
    without = MESSAGE.to_dict()
    del without["correlation_id"]
    assert not FITS.is_valid(without)
    assert not FITS.is_valid({**MESSAGE.to_dict(), "correlation_id": ""})
    for name in ("idempotency_key", "key", "dedupe_key"):
        assert not FITS.is_valid({**MESSAGE.to_dict(), name: "0" * 64})


def test_the_schema_lists_the_fields_of_a_message() -> None:
    assert set(json.loads(SCHEMA_TEXT)["properties"]) == set(EventMessage._fields)
    assert set(json.loads(MESSAGE.to_json_line())) == set(EventMessage._fields)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, None),
        ((1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (2.0, 2.0),
        (2**70, 2**70),
        (b"hi", "aGk="),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 11, 15, 12, tzinfo=UTC), "2026-11-15T12:00:00Z"),
        (date(2026, 11, 15), "2026-11-15"),
        (time(12, 30), "12:30:00"),
        (timedelta(minutes=1), "PT60S"),
        (Path("a") / "b", "a/b"),
        ({"$odd": {"a": 1}}, {"$odd": {"a": 1}}),
    ],
    ids=str,
)
def test_a_payload_is_written_as_plain_json(value: Any, written: Any) -> None:
    from oncemore.log.record import EventRecord
    from oncemore.messaging.message import make_message

    event = EventRecord("SENDING", "t", "0" * 32, "run/x", 3, 1.0, correlation_id="c", attempt=1)
    message = make_message(event, 2, TaggedEncoder().tag_value(value, "it"))
    assert message.payload == value
    assert type(message.payload) is type(value)
    assert json.loads(message.to_json())["payload"] == written
    assert FITS.is_valid(json.loads(message.to_json()))
    assert message.sequence == 2003


@pytest.mark.parametrize("name", [1, (1, 2), None])
def test_a_payload_that_json_cannot_encode_is_permanently_refused(name: object) -> None:
    with pytest.raises(oncemore.PermanentError, match="cannot be encoded as plain JSON"):
        MESSAGE._replace(payload={name: 3}).to_json()


def test_a_message_is_the_same_bytes_in_every_attempt() -> None:
    assert MESSAGE.to_json() == MESSAGE._replace(attempt=2).to_json()
    sets = MESSAGE._replace(payload={"b", "a", "c"}), MESSAGE._replace(payload={"c", "b", "a"})
    assert sets[0].to_json() == sets[1].to_json()


def everything(engine: oncemore.Engine, folder: Path, consumer: Consumer) -> tuple[list[str], list[bytes]]:
    """Emit all kinds of events and publish them with every sink; return all keys and published bytes."""
    keys: list[str] = []

    @oncemore.step(effect="outbox", name="talk")
    def talk(x: Any, topic: str) -> None:
        keys.append(oncemore.current().key)
        for n in range(3):
            oncemore.current().emit(f"{topic}.{n}", {"x": x, "attempt": oncemore.current().number})

    @oncemore.step(effect="idempotent", name="chosen", key=["order"], tenant="acme")
    def chosen(order: str) -> None:
        keys.append(oncemore.current().key)
        oncemore.current().emit("web.chosen", order)
        talk(order, "file")

    for x in (1, "zwei", (3, None)):
        talk(x, "web")
    with oncemore.context(tenant="acme", correlation_id="c-42"):
        chosen("order-17")
    with open_shop() as shop:
        sinks = {"web.*": WebhookSink(shop.url), "file.*": JsonLinesSink(folder / "out.jsonl")}
        OutboxRelay(engine, sinks, policy=POLICY).run_once()
        for event in events(engine).values():
            OutboxRelay(engine, sinks).redeliver(event.event_id, reason="to scan callables too")
        OutboxRelay(engine, {"*": consumer}, policy=POLICY).run_once()
        published = [*shop.server.requests, (folder / "out.jsonl").read_bytes()]
        published += [json.dumps(one["headers"]).encode() + one["bytes"] for one in shop.received]
    published += [repr(message).encode() for message in consumer.got]
    return keys, published


@pytest.mark.req("IDEM-15", "MSG-7")
def test_no_published_event_contains_a_key_or_a_part_of_one(engine: oncemore.Engine, tmp_path: Path) -> None:
    consumer = Consumer()
    keys, published = everything(engine, tmp_path, consumer)
    runs = {key.partition("/")[2] for key in {event.run_entity for event in events(engine).values()}}
    assert runs == set(keys)
    assert len(keys) == 5
    assert len(published) > 20
    scanned = [*published, SCHEMA_TEXT.encode()]
    for key in keys:
        assert re.fullmatch("[0-9a-f]{64}", key)
        parts = {key[at : at + 16].encode() for at in range(49)}
        assert not [text for text in scanned for part in parts if part in text]
    names = re.compile(rb'"[^"]*(?:idempot|dedupe|_key)[^"]*":')
    assert not [text for text in scanned if names.search(text)]


@pytest.mark.req("MSG-7")
def test_every_published_event_matches_the_schema_and_has_its_runs_correlation_id(
    engine: oncemore.Engine, tmp_path: Path
) -> None:
    consumer = Consumer()
    everything(engine, tmp_path, consumer)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for plain in [*lines, *(message.to_dict() for message in consumer.got)]:
        assert FITS.is_valid(plain), plain
    by_run = {event.event_id: event for event in events(engine).values()}
    for message in consumer.got:
        run = oncemore.Run(engine, by_run[message.id].run_entity)
        assert message.correlation_id == run.correlation_id != ""
    assert {line["correlation_id"] for line in lines} == {"c-42"}
