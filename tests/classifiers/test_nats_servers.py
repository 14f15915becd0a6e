"""Addresses with several NATS servers: connecting to any server that answers."""

from __future__ import annotations

import asyncio

import pytest

from oncemore.control.nats_switches import NatsSwitches
from oncemore.errors import UsageError
from oncemore.log.nats.servers import connect_first, hide_credentials, parse_servers
from oncemore.messaging.sources.jetstream import JetStreamSource as Letters
from oncemore.outbox import JetStreamSink
from oncemore.testing.nats import find_free_ports
from tests.servers import nats


def test_each_server_of_an_address_gets_the_credentials_and_messages_hide_them() -> None:
    url = "nats://agent:secret@a:1,b,c:3"
    assert parse_servers(url) == [
        "nats://agent:secret@a:1",
        "nats://agent:secret@b",
        "nats://agent:secret@c:3",
    ]
    assert hide_credentials(parse_servers(url)) == "nats://a:1,b:4222,c:3"
    for made in (repr(JetStreamSink(url)), NatsSwitches(url, "control").url):
        assert "a:1,b:4222,c:3" in made
        assert "secret" not in made


@pytest.mark.parametrize(
    "wrong", ["http://a:1", "nats://", "nats://a:1,,b:2", "nats://a:x", "nats://a:0", "nats://a/b"]
)
def test_an_invalid_address_is_refused(wrong: str) -> None:
    for make in (JetStreamSink, lambda url: Letters(url, stream="s", durable="d")):
        with pytest.raises(UsageError, match="a cluster's with commas"):
            make(wrong)


def test_a_stopped_server_is_skipped_and_the_last_error_is_raised() -> None:
    gone = [f"nats://127.0.0.1:{port}" for port in find_free_ports(2)]

    async def ask(servers: list[str]) -> str:
        line = await connect_first(servers, 3.0)
        try:
            return str(line.connected_url.netloc)
        finally:
            await line.close()

    with nats.running(jetstream=False) as (url, _):
        assert asyncio.run(ask([gone[0], url])) == url.removeprefix("nats://")
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(ask(gone))
