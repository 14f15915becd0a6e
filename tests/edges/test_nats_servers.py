"""Addresses of NATS that name a whole cluster, and a line to whichever of its servers answers."""

from __future__ import annotations

import asyncio

import pytest

from oncemore.control.nats_switches import NatsControl
from oncemore.errors import UsageError
from oncemore.log.nats.servers import connected, servers_of, shown
from oncemore.messaging.sources.jetstream import JetStream as Letters
from oncemore.outbox import JetStream
from oncemore.testing.nats import free_ports
from tests.servers import nats


def test_each_server_of_an_address_gets_who_we_are_and_nobody_sees_it() -> None:
    url = "nats://agent:secret@a:1,b,c:3"
    assert servers_of(url) == ["nats://agent:secret@a:1", "nats://agent:secret@b", "nats://agent:secret@c:3"]
    assert shown(servers_of(url)) == "nats://a:1,b:4222,c:3"
    for made in (repr(JetStream(url)), NatsControl(url, "control").url):
        assert "a:1,b:4222,c:3" in made
        assert "secret" not in made


@pytest.mark.parametrize(
    "wrong", ["http://a:1", "nats://", "nats://a:1,,b:2", "nats://a:x", "nats://a:0", "nats://a/b"]
)
def test_an_address_that_cannot_be_meant_is_refused(wrong: str) -> None:
    for make in (JetStream, lambda url: Letters(url, stream="s", durable="d")):
        with pytest.raises(UsageError, match="a cluster's with commas"):
            make(wrong)


def test_a_server_that_is_gone_is_passed_over_and_the_last_one_says_why_none_answers() -> None:
    gone = [f"nats://127.0.0.1:{port}" for port in free_ports(2)]

    async def ask(servers: list[str]) -> str:
        line = await connected(servers, 3.0)
        try:
            return str(line.connected_url.netloc)
        finally:
            await line.close()

    with nats.running(jetstream=False) as (url, _):
        assert asyncio.run(ask([gone[0], url])) == url.removeprefix("nats://")
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(ask(gone))
