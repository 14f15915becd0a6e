"""Events to Kafka.

The broker is the one that librdkafka has for tests: it speaks Kafka's protocol over TCP and keeps everything
in memory. It is not Apache Kafka, of which no package index has a current version.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest

import oncemore
from oncemore.messaging.sink_urls import parse_sinks
from oncemore.outbox import KafkaSink, OutboxRelay
from tests.messaging.outbox.simulation import events
from tests.messaging.outbox.test_queues import MESSAGE
from tests.servers.faults import refusing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Broker:
    """The broker of librdkafka for tests, which lives inside of a producer."""

    def __init__(self) -> None:
        quiet = {"test.mock.num.brokers": 1, "log_level": 0}
        self.producer = confluent_kafka.Producer(quiet)
        (node,) = self.producer.list_topics(timeout=30).brokers.values()
        self.servers = f"{node.host}:{node.port}"

    def read(self, topic: str, count: int) -> list[Any]:
        """Return messages from the beginning, without a group."""
        settings = {"bootstrap.servers": self.servers, "group.id": "reader", "log_level": 0}
        consumer = confluent_kafka.Consumer(settings)
        numbers = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in numbers])
        found: list[Any] = []
        until = time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < until
            found += consumer.consume(count, 0.2)
        consumer.close()
        return found


@pytest.fixture(scope="module")
def broker() -> Broker:
    return Broker()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


@oncemore.step(effect="outbox", name="gives")
def give(order: str) -> None:
    oncemore.current().emit("orders.new", {"order": order})
    oncemore.current().emit("orders.new", {"order": f"{order}!"})


def test_events_of_one_key_are_in_one_partition_under_their_ids(
    engine: oncemore.Engine, broker: Broker
) -> None:
    with oncemore.context(correlation_id="c-1"):
        give("A-1")
    relay = OutboxRelay(engine, {"orders.*": f"kafka://{broker.servers}"})
    assert relay.run_once().delivered == 2
    relay.close()
    found = broker.read("orders.new", 2)
    assert [json.loads(message.value())["payload"]["order"] for message in found] == ["A-1", "A-1!"]
    assert len({(message.key(), message.partition()) for message in found}) == 1
    headers = {name: value.decode() for name, value in found[0].headers()}
    assert headers == {
        "content-type": "application/json", "oncemore-id": json.loads(found[0].value())["id"],
        "oncemore-attempt": "1", "correlation-id": "c-1",
    }  # fmt: skip
    assert give.key("A-1") not in str(headers) + str([message.value() for message in found])
    sink = KafkaSink(broker.servers, topic="{topic}", form="cloudevents-binary")
    sink(MESSAGE._replace(topic="orders new"))
    sink.close()
    (binary,) = broker.read("orders_new", 1)
    assert dict(binary.headers())["ce_id"] == MESSAGE.id.encode()


def test_an_unreachable_broker_fails_within_the_time_limit(engine: oncemore.Engine) -> None:
    give("A-1")
    with refusing() as refused:
        sink = KafkaSink(f"127.0.0.1:{refused.port}", timeout=0.5, options={"log_level": 0})
        with pytest.raises(confluent_kafka.KafkaException, match="_MSG_TIMED_OUT"):
            sink(MESSAGE)
        assert OutboxRelay(engine, {"*": sink}).run_once().failed == 1
    assert [event.state for event in events(engine).values()] == ["PENDING", "PENDING"]
    sink.close()


# Without a broker -----------------------------------------------------------------------------------


def test_bad_options_are_refused() -> None:
    for servers in ("", "user@host", "host:9092/topic", "a,,b"):
        with pytest.raises(oncemore.UsageError, match=r"servers takes host:9092.* credentials into options"):
            KafkaSink(servers)
    with pytest.raises(oncemore.UsageError, match=r"timeout is 0; it takes 0\.1 to 600 s"):
        KafkaSink("host", timeout=0)
    found = parse_sinks(["kafka://host:9092", {"kafka": "a:1,b:2", "topic": "t", "name": "x"}])
    assert [repr(sink) for sink in found.values()] == [
        "<oncemore.KafkaSink host:9092/{topic}>",
        "<oncemore.KafkaSink a:1,b:2/t>",
    ]


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(oncemore.MissingExtra, match=r"pip install 'oncemore\[kafka\]'"):
        KafkaSink("host")(MESSAGE)
