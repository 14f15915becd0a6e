"""What a step may emit: never a key, and never without its COMMIT."""

from __future__ import annotations

from typing import Any

import pytest

import oncemore
from oncemore.log.store import HeadQuery


def payload(kind: str, key: str) -> tuple[str, Any]:
    return {
        "whole": ("topic", key),
        "part": ("topic", {"ref": f"orders/{key}/1"}),
        "name": ("topic", {key: 1}),
        "deep": ("topic", [({"a": (1, {key})},)]),
        "topic": (f"topic.{key}", None),
    }[kind]


@pytest.mark.req("IDEM-15")
@pytest.mark.parametrize("kind", ["whole", "part", "name", "deep", "topic"])
def test_an_event_that_contains_its_key_is_refused(engine: oncemore.Engine, kind: str) -> None:
    @oncemore.step(effect="outbox", name="leak")
    def leak(x: int) -> None:
        oncemore.current().emit("fine", x)
        oncemore.current().emit(*payload(kind, oncemore.current().key))

    with pytest.raises(oncemore.PermanentFailure, match="holds the idempotency key of leak"):
        leak(1)
    assert list(engine.store.list_heads(HeadQuery("event"))) == []


@pytest.mark.req("IDEM-15")
def test_an_event_that_contains_the_key_of_the_outer_step_is_refused(engine: oncemore.Engine) -> None:
    @oncemore.step(effect="outbox", name="inner")
    def inner(key: str) -> None:
        oncemore.current().emit("topic", key)

    @oncemore.step(effect="outbox", name="outer")
    def outer() -> None:
        inner(oncemore.current().key)

    with pytest.raises(oncemore.Error, match="holds the idempotency key of outer"):
        outer()
