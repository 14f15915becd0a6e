"""The private members of nats-py that `log.nats.direct_io` uses are there and behave as it expects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import nats as client
import pytest

from oncemore.log.nats import direct_io
from oncemore.log.nats.direct_io import install_header_parser, subscribe_directly, write_messages
from tests.servers import nats

if TYPE_CHECKING:
    from collections.abc import Iterator

CHANGED = "nats-py has changed: adapt oncemore/log/nats/direct_io.py, or use publish() and subscribe(cb=)"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with nats.running(jetstream=False) as (address, _):
            yield address
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


def test_the_installed_header_parser_is_called(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def parse(raw: bytes) -> dict[str, str]:
        parsed.append(raw)
        return {"Parsed": "here"}

    async def check() -> Any:
        connection = client.NATS()
        assert hasattr(connection, "_parse_header_lines"), CHANGED
        install_header_parser(connection)
        await connection.connect(url)
        subscription = await connection.subscribe("headers")
        await connection.publish("headers", headers={"Name": "1"})
        message = await subscription.next_msg(timeout=5)
        await connection.close()
        return message

    monkeypatch.setattr(direct_io, "parse_header_lines", parse)
    assert asyncio.run(check()).headers == {"Parsed": "here"}, CHANGED
    assert parsed == [b"Name: 1\r\n\r\n"], CHANGED


def test_a_connected_client_has_the_members_that_are_used(url: str) -> None:
    async def check() -> None:
        connection = await client.connect(url)
        assert callable(getattr(getattr(connection, "_transport", None), "writelines", None)), CHANGED
        assert isinstance(getattr(connection, "_pending", None), list), CHANGED
        assert isinstance(getattr(connection, "_pending_data_size", None), int), CHANGED
        await connection.close()

    asyncio.run(check())


@pytest.mark.parametrize("buffered", [False, True])
def test_messages_arrive_whole_and_in_order_and_replies_are_delivered(url: str, buffered: bool) -> None:
    """With and without commands that the client has buffered, which must reach the server first."""

    async def check() -> list[Any]:
        received: list[Any] = []
        connection = await client.connect(url)
        await subscribe_directly(connection, "direct.*", received.append)
        if not buffered:
            await connection.flush()
            assert connection._pending == [], CHANGED
        outgoing = [("direct.a", b"one", {"Name": "1"}), ("direct.b", b"two\r\n", {}), ("direct.c", b"", {})]
        write_messages(connection, outgoing, "direct.reply")
        await connection.publish("direct.reply", b"reply")
        # flush() may return at the PONG of an earlier PING, so wait for the messages themselves.
        async with asyncio.timeout(60):
            while len(received) < 4:
                await connection.flush()
        await connection.close()
        return received

    messages = asyncio.run(check())
    assert [(message.subject, message.data, message.reply) for message in messages] == [
        ("direct.a", b"one", ""),
        ("direct.b", b"two\r\n", ""),
        ("direct.c", b"", "direct.reply"),
        ("direct.reply", b"reply", ""),
    ], CHANGED
    assert messages[0].headers == {"Name": "1"}
