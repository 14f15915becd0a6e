"""The fault proxy forwards data, cuts connections at chosen bytes, and refuses connections while dark."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from oncemore.testing.fault_proxy import FaultProxy, wire
from oncemore.testing.nats import find_free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that returns the data that it receives."""
    listening = socket.create_server(("127.0.0.1", 0))

    def echo_data(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(1024):
                connection.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=echo_data, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()
    listening.close()


def send_words(proxy: FaultProxy, *words: bytes) -> list[bytes]:
    """Send words and return the replies; b"" after the connection has ended."""
    replies = []
    with socket.create_connection(("127.0.0.1", proxy.port), 5) as connection:
        for word in words:
            try:
                connection.sendall(word)
                replies.append(connection.recv(1024))
            except OSError:
                replies.append(b"")
    return replies


def test_data_is_forwarded_except_for_each_cut(echo: tuple[str, int]) -> None:
    with wire(("127.0.0.1", find_free_ports(1)[0]), echo) as proxy:
        assert send_words(proxy, b"one", b"two") == [b"one", b"two"]
        proxy.cut("in", b"two")
        proxy.cut("out", b"four")
        assert send_words(proxy, b"one", b"two") == [b"one", b""]
        assert send_words(proxy, b"three", b"four") == [b"three", b""]
        assert send_words(proxy, b"two", b"four") == [b"two", b"four"]
        assert proxy.cuts == 2


def test_connections_are_closed_and_refused_while_dark(echo: tuple[str, int]) -> None:
    with wire(echo) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 5) as connection:
        connection.sendall(b"one")
        assert connection.recv(1024) == b"one"
        proxy.dark = True
        assert proxy.dark
        assert connection.recv(1024) == b""
        assert send_words(proxy, b"two") == [b""]
        proxy.dark = False
        assert send_words(proxy, b"three") == [b"three"]
    with wire(("127.0.0.1", find_free_ports(1)[0])) as nowhere:
        assert send_words(nowhere, b"one") == [b""]
