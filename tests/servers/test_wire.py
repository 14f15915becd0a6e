"""A wire before a real server: it forwards, cuts once where it is told to, and goes dark."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from oncemore.testing.fault_proxy import Wire, wire
from oncemore.testing.nats import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that says what it hears."""
    listening = socket.create_server(("127.0.0.1", 0))

    def say(line: socket.socket) -> None:
        with line, suppress(OSError):
            while data := line.recv(1024):
                line.sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=say, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()
    listening.close()


def said(cable: Wire, *words: bytes) -> list[bytes]:
    """What comes back for each word; nothing where the connection has ended."""
    found = []
    with socket.create_connection(("127.0.0.1", cable.port), 5) as line:
        for word in words:
            try:
                line.sendall(word)
                found.append(line.recv(1024))
            except OSError:
                found.append(b"")
    return found


def test_it_forwards_until_it_is_told_to_cut_and_then_again(echo: tuple[str, int]) -> None:
    with wire(("127.0.0.1", free_ports(1)[0]), echo) as cable:
        assert said(cable, b"one", b"two") == [b"one", b"two"]
        cable.cut("in", b"two")
        cable.cut("out", b"four")
        assert said(cable, b"one", b"two") == [b"one", b""]
        assert said(cable, b"three", b"four") == [b"three", b""]
        assert said(cable, b"two", b"four") == [b"two", b"four"]
        assert cable.cuts == 2


def test_in_the_dark_nobody_gets_through_or_stays(echo: tuple[str, int]) -> None:
    with wire(echo) as cable, socket.create_connection(("127.0.0.1", cable.port), 5) as line:
        line.sendall(b"one")
        assert line.recv(1024) == b"one"
        cable.dark = True
        assert cable.dark
        assert line.recv(1024) == b""
        assert said(cable, b"two") == [b""]
        cable.dark = False
        assert said(cable, b"three") == [b"three"]
    with wire(("127.0.0.1", free_ports(1)[0])) as nowhere:
        assert said(nowhere, b"one") == [b""]
