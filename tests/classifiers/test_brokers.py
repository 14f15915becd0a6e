"""Errors of the clients of RabbitMQ and Kafka; tests/messaging meets some of them with servers."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pika.exceptions
import pytest

from oncemore.classifiers.classify import classify


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (pika.exceptions.AMQPConnectionError(), ("transient", "no")),
        (pika.exceptions.StreamLostError("reset"), ("transient", "maybe")),
        (pika.exceptions.ConnectionClosedByBroker(320, "shutdown"), ("transient", "maybe")),
        (pika.exceptions.ConnectionClosedByBroker(530, "no such vhost"), ("permanent", "no")),
        (pika.exceptions.ChannelClosedByBroker(404, "no exchange"), ("transient", "no")),
        (pika.exceptions.ChannelClosedByBroker(403, "refused"), ("permanent", "no")),
        (pika.exceptions.ChannelClosedByBroker(999, "new"), ("transient", "maybe")),
        (pika.exceptions.UnroutableError([]), ("transient", "no")),
        (pika.exceptions.NackError([]), ("transient", "maybe")),
        (pika.exceptions.ConnectionBlockedTimeout(), ("throttled", "maybe")),
        (pika.exceptions.ProbableAuthenticationError(), ("permanent", "no")),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_errors_of_pika(error: BaseException, expected: tuple[str, str]) -> None:
    failure = classify(error, 0.0)
    assert (failure.kind, failure.sent) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (confluent_kafka.KafkaError._MSG_TIMED_OUT, ("transient", "maybe")),
        (confluent_kafka.KafkaError._ALL_BROKERS_DOWN, ("transient", "no")),
        (confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, ("transient", "no")),
        (confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE, ("permanent", "no")),
        (confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, ("permanent", "no")),
        (confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ("transient", "maybe")),
        (confluent_kafka.KafkaError.INVALID_TXN_STATE, ("permanent", "maybe")),
    ],
)
def test_errors_of_kafka(code: int, expected: tuple[str, str]) -> None:
    failure = classify(confluent_kafka.KafkaException(confluent_kafka.KafkaError(code)), 0.0)
    assert (failure.kind, failure.sent, failure.code) == (*expected, f"KAFKA_{code}")


def test_a_kafka_exception_without_a_code_is_permanent() -> None:
    arguments: list[tuple[Any, ...]] = [(), ("text",)]
    for given in arguments:
        assert classify(confluent_kafka.KafkaException(*given), 0.0).kind == "permanent"
