"""A proxy on the loopback address that lets requests to a nats-server arrive twice, at once or late.

The repeat comes over a line of its own, as from a router that had lost its way: the same bytes, the same
address to answer to. What was sent arrives once more, while or after others have gone on; both answers come.
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

_LINE = re.compile(rb"(H?)PUB \S+ (?:\S+ )?(?:\d+ )?(\d+)\r\n")


class Repeater:
    """Passes bytes on; repeats a part of the long requests, each after a time of its own."""

    def __init__(self, port: int, chance: random.Random, part: float = 0.5, latest_s: float = 0.5) -> None:
        self._port, self._chance, self._part, self._latest_s = port, chance, part, latest_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lines: list[socket.socket] = []
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
                except OSError:  # it was killed: whoever asks goes elsewhere
                    _end(client)
                    continue
                self._lines += (client, server)
                for one, other, there in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=(one, other, there), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, there: bool) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 20):
                other.sendall(data)
                if there and len(data) > len(BODY) and whole(data) and self._chance.random() < self._part:
                    late = self._chance.choice((0.0, self._chance.uniform(0.0, self._latest_s)))
                    self._repeating.append(threading.Thread(target=self._repeat, args=(data, late)))
                    self._repeating[-1].start()
        _end(one)
        _end(other)

    def _repeat(self, data: bytes, late: float) -> None:
        """Have the same arrive once more."""
        self._closed.wait(late)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 5) as line:
            line.settimeout(PATIENCE)
            told = line.recv(1 << 16)
            assert told.startswith(b"INFO ")
            line.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
            line.sendall(data + b"PING\r\n")
            while b"PONG\r\n" not in told:  # all before it has been taken
                told += line.recv(1 << 16) or b"PONG\r\n"
            self.repeated.append(late)

    def close(self) -> None:
        """Wait for what is still to be repeated, and end every line."""
        for thread in self._repeating:
            thread.join(PATIENCE)
        self._closed.set()
        for line in (self._listener, *self._lines):
            _end(line)


def whole(data: bytes) -> bool:
    """Whether bytes are publishes and nothing else, from the first to the last of them."""
    while data:
        line = _LINE.match(data)
        if line is None:
            return False
        end = line.end() + int(line[2]) + 2
        if data[end - 2 : end] != b"\r\n":
            return False
        data = data[end:]
    return True
