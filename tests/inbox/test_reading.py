"""How a letter becomes a call."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

import oncemore
from oncemore.errors import CoolingDown
from oncemore.messaging.inbox_message import Reader, Unreadable, id_in
from oncemore.messaging.inbox_step import Taker, _ended
from tests.inbox.world import Shop, letter


def work(
    order: str, price: Decimal = Decimal(1), rest: list[int] | set[int] | None = None, **more: int
) -> None: ...


def read(content: Any, same: Any = None, arguments: Any = None, **headers: str) -> Any:
    return Reader(work, 0, same, arguments).call_of(letter("m", content, **headers))


def test_arguments_are_held_to_annotations() -> None:
    called = read({"order": "A", "price": "1.50", "extra": 7})
    assert called.arguments == {"order": "A", "price": Decimal("1.50"), "extra": 7}
    assert read({"order": "A", "rest": [1]}).arguments["rest"] == [1]  # nobody can say which is meant
    for wrong in ({"order": 1}, {"order": "A", "price": []}, {}):
        with pytest.raises(Unreadable):
            read(wrong)


def test_a_cloud_event_holds_its_data_and_says_what_it_belongs_to() -> None:
    event = {"specversion": "1.0", "id": "1", "data": {"order": "A"}, "correlationid": "c-1"}
    called = read(event, content_type="application/cloudevents+json; charset=utf-8")
    assert (called.arguments, called.correlation_id) == ({"order": "A"}, "c-1")
    called = read({"order": "A"}, ce_id="1", ce_source="/s", ce_correlationid="c%201")
    assert (called.arguments, called.correlation_id) == ({"order": "A"}, "c 1")
    assert id_in({"ce-id": "1", "ce-source": "/s"}) == "2:/s 1"
    assert id_in({}) == ""


def test_functions_of_the_content_that_fail_make_an_unreadable_letter() -> None:
    assert read({"a": {"order": "A"}}, arguments=lambda content: content["a"]).arguments == {"order": "A"}
    with pytest.raises(Unreadable, match="arguments= failed on it with KeyError"):
        read({}, arguments=lambda content: content["a"])
    with pytest.raises(Unreadable, match="key= failed on it with KeyError"):
        read({"order": "A"}, same=lambda content: content["a"])


def test_what_is_left_alone_is_put_off_done_or_kept_by_the_outcome_of_its_cooldown() -> None:
    for outcome, what in (
        ("SKIPPED_BACKOFF", "later"),
        ("SKIPPED_DUPLICATE", "seen"),
        ("SKIPPED_TERMINAL", "failed"),
    ):
        assert _ended(CoolingDown("no", outcome, "r", 5.0)).what == what
    with pytest.raises(oncemore.UsageError):
        _ended(oncemore.UsageError("ours"))


def test_work_with_a_secret_cannot_be_handed_in_and_a_strange_letter_is_told(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="pure", name="secret", ignore="token")
    def secret(order: str, token: str) -> None: ...

    taker = Taker.of(secret, engine, None, None)
    called: Any = taker.read(letter("m", {"order": "A", "token": "t"}))
    with pytest.raises(oncemore.UsageError, match="does not keep token"):
        taker.hand_in(called)
    shop = Shop(tenant=lambda order, amount=1: {}[order])
    taker = Taker.of(shop.step, engine, None, None)
    called = taker.read(letter("m", {"order": "A"}))
    assert taker.hand_in(called).what == "unreadable"


def test_a_step_that_got_another_name_does_not_do_letters_again(engine: oncemore.Engine) -> None:
    old, new = Shop(name="shop.old"), Shop(name="shop.new", aliases="shop.old")
    other = Shop(name="shop.old", aliases="shop.ancient")
    for shop, what in ((old, "done"), (new, "seen"), (other, "seen")):
        taker = Taker.of(shop.step, engine, None, None)
        called: Any = taker.read(letter("m", {"order": "A"}))
        assert taker.call(called).what == what
