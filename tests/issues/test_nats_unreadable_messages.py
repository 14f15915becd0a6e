"""From a real nats-server, messages that cannot be read become dead letters and are not delivered again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import oncemore
from oncemore.inbox import InboxStats, jetstream
from tests.issues.hostile_messages import BODIES, GOOD, make_step
from tests.messaging.inbox.broker import Broker, left, published

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_from_jetstream_each_of_them_is_answered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncemore.messaging.sources.jetstream.POLL_S", 0.2)
    broker = Broker(tmp_path)
    broker.start()
    try:
        url = f"nats://127.0.0.1:{broker._port}"
        sent = [("bad.new", body, {}) for body in (*BODIES.values(), GOOD)]
        asyncio.run(published(url, "BAD", *sent))
        booked: list[str] = []
        with oncemore.open(tmp_path / "log.db"):
            inbox = jetstream(make_step(booked), url, stream="BAD", durable="d")
            inbox.drain()
            assert (booked, inbox.stats) == (["A-1"], InboxStats(done=1, dead=len(BODIES)))
            assert len(inbox.dead_letters()) == len(BODIES)
        assert asyncio.run(left(url, "BAD")) == (0, 0)
    finally:
        broker.stop()
