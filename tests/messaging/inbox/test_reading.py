"""How a message is turned into a call of the step."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

import oncemore
from oncemore.errors import CoolingDown
from oncemore.messaging.inbox_message import MessageReader, UnreadableMessage, find_message_id
from oncemore.messaging.inbox_step import MessageStep, _make_error_outcome
from tests.messaging.inbox.fake_queue import Shop, make_message


def work(
    order: str, price: Decimal = Decimal(1), rest: list[int] | set[int] | None = None, **more: int
) -> None: ...


def read(content: Any, same: Any = None, arguments: Any = None, **headers: str) -> Any:
    return MessageReader(work, 0, same, arguments).make_call(make_message("m", content, **headers))


def test_arguments_are_converted_to_annotations() -> None:
    called = read({"order": "A", "price": "1.50", "extra": 7})
    assert called.arguments == {"order": "A", "price": Decimal("1.50"), "extra": 7}
    assert read({"order": "A", "rest": [1]}).arguments["rest"] == [1]  # nobody can say which is meant
    for wrong in ({"order": 1}, {"order": "A", "price": []}, {}):
        with pytest.raises(UnreadableMessage):
            read(wrong)


def test_the_data_and_correlation_id_of_a_cloud_event_are_read() -> None:
    event = {"specversion": "1.0", "id": "1", "data": {"order": "A"}, "correlationid": "c-1"}
    called = read(event, content_type="application/cloudevents+json; charset=utf-8")
    assert (called.arguments, called.correlation_id) == ({"order": "A"}, "c-1")
    called = read({"order": "A"}, ce_id="1", ce_source="/s", ce_correlationid="c%201")
    assert (called.arguments, called.correlation_id) == ({"order": "A"}, "c 1")
    assert find_message_id({"ce-id": "1", "ce-source": "/s"}) == "2:/s 1"
    assert find_message_id({}) == ""


def test_a_failing_user_function_makes_a_message_unreadable() -> None:
    assert read({"a": {"order": "A"}}, arguments=lambda content: content["a"]).arguments == {"order": "A"}
    with pytest.raises(UnreadableMessage, match="arguments= failed with KeyError"):
        read({}, arguments=lambda content: content["a"])
    with pytest.raises(UnreadableMessage, match="key= failed with KeyError"):
        read({"order": "A"}, same=lambda content: content["a"])


def test_the_outcome_of_a_cooldown_decides_on_the_message() -> None:
    for outcome, what in (
        ("SKIPPED_BACKOFF", "deferred"),
        ("SKIPPED_DUPLICATE", "duplicate"),
        ("SKIPPED_TERMINAL", "failed"),
    ):
        assert _make_error_outcome(CoolingDown("no", outcome, "r", 5.0)).outcome == what
    with pytest.raises(oncemore.UsageError):
        _make_error_outcome(oncemore.UsageError("ours"))


def test_a_step_with_a_secret_cannot_be_submitted(
    engine: oncemore.Engine,
) -> None:
    @oncemore.step(effect="pure", name="secret", ignore="token")
    def secret(order: str, token: str) -> None: ...

    taker = MessageStep.create_from(secret, engine, None, None)
    called: Any = taker.read_message(make_message("m", {"order": "A", "token": "t"}))
    with pytest.raises(oncemore.UsageError, match="does not store the arguments token"):
        taker.submit_call(called)
    shop = Shop(tenant=lambda order, amount=1: {}[order])
    taker = MessageStep.create_from(shop.step, engine, None, None)
    called = taker.read_message(make_message("m", {"order": "A"}))
    assert taker.submit_call(called).outcome == "unreadable"


def test_a_renamed_step_does_not_process_messages_again(engine: oncemore.Engine) -> None:
    old, new = Shop(name="shop.old"), Shop(name="shop.new", aliases="shop.old")
    other = Shop(name="shop.old", aliases="shop.ancient")
    for shop, what in ((old, "done"), (new, "duplicate"), (other, "duplicate")):
        taker = MessageStep.create_from(shop.step, engine, None, None)
        called: Any = taker.read_message(make_message("m", {"order": "A"}))
        assert taker.call_step(called).outcome == what
