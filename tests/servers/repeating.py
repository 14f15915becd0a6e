"""A proxy on the loopback address that delivers requests to a nats-server twice, at once or late.

The repetition uses a connection of its own and has the same bytes and the same reply subject. It arrives
while other requests are made or after them, and both are answered.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import TYPE_CHECKING

from tests.servers.cutting import BODY, PATIENCE, _end

if TYPE_CHECKING:
    import random

_COMMAND = re.compile(rb"(H?)PUB \S+ (?:\S+ )?(?:\d+ )?(\d+)\r\n")


class Repeater:
    """Forwards data; repeats a part of the long requests, each after a random delay."""

    def __init__(self, port: int, chance: random.Random, part: float = 0.5, latest_s: float = 0.5) -> None:
        self._port, self._chance, self._part, self._latest_s = port, chance, part, latest_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._closed = threading.Event()
        self._repeating: list[threading.Thread] = []
        self.repeated: list[float] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:  # it was killed: the client tries another server
                    _end(client)
                    continue
                self._sockets += (client, server)
                for args in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._forward, args=args, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                target.sendall(data)
                if (
                    is_request
                    and len(data) > len(BODY)
                    and is_complete(data)
                    and self._chance.random() < self._part
                ):
                    late = self._chance.choice((0.0, self._chance.uniform(0.0, self._latest_s)))
                    self._repeating.append(threading.Thread(target=self._repeat, args=(data, late)))
                    self._repeating[-1].start()
        _end(source)
        _end(target)

    def _repeat(self, data: bytes, late: float) -> None:
        """Send the same bytes once more."""
        self._closed.wait(late)
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), 5) as connection,
        ):
            connection.settimeout(PATIENCE)
            reply = connection.recv(1 << 16)
            assert reply.startswith(b"INFO ")
            connection.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
            connection.sendall(data + b"PING\r\n")
            while b"PONG\r\n" not in reply:  # then everything before it has been processed
                reply += connection.recv(1 << 16) or b"PONG\r\n"
            self.repeated.append(late)

    def close(self) -> None:
        """Wait for the repetitions to come, and close every connection."""
        for thread in self._repeating:
            thread.join(PATIENCE)
        self._closed.set()
        for open_socket in (self._listener, *self._sockets):
            _end(open_socket)


def is_complete(data: bytes) -> bool:
    """Whether data consists of complete publish commands only."""
    while data:
        command = _COMMAND.match(data)
        if command is None:
            return False
        end = command.end() + int(command[2]) + 2
        if data[end - 2 : end] != b"\r\n":
            return False
        data = data[end:]
    return True
