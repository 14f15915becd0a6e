"""A proxy on the loopback address that cuts connections to a real server, in five ways.

before             nothing of a request arrives
in the middle      half of it arrives
just after         all of it arrives, and the connection ends before or after the reply
answer swallowed   the request is carried out, and the reply is lost
delivered late     the client sees the connection end, and the request arrives afterwards
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
import time

#: Only requests with a body are cut; only they are this long.
BODY = b"." * 3000
#: Data that is longer than this may be the first piece of such a request.
LONG = 900
WAYS = ("before", "in the middle", "just after", "answer swallowed", "delivered late")
PATIENCE = 5.0


class Proxy:
    """Forwards data until it is armed; then cuts the next long request, and counts it."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._armed: list[str] = []
        self._row = 0
        self._sockets: list[socket.socket] = []
        self.cuts = dict.fromkeys(WAYS, 0)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def arm(self, way: str) -> None:
        """Cut the next long request, but never a fourth in a row, so that requests get through."""
        if not self._armed and self._row < 3:
            self._armed.append(way)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += (client, server)
                for work in (self._requests, self._answers):
                    self._threads.append(threading.Thread(target=work, args=(client, server), daemon=True))
                    self._threads[-1].start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                if self._armed:
                    data = _read_whole(client, data)
                way = self._armed.pop() if len(data) > len(BODY) and self._armed else None
                if len(data) > len(BODY):
                    self._row = 0 if way is None else self._row + 1
                if way is None:
                    server.sendall(data)
                    continue
                self._cut(way, data, client, server)
                return
        _end(client)
        _end(server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                client.sendall(data)
        _end(client)

    def _cut(self, way: str, data: bytes, client: socket.socket, server: socket.socket) -> None:
        self.cuts[way] += 1  # before the client can notice it
        sent = {"before": 0, "in the middle": len(data) // 2, "delivered late": 0}.get(way, len(data))
        client.shutdown(socket.SHUT_RD)
        if way in ("answer swallowed", "delivered late"):
            _end(client)  # first, so that no reply reaches the client
        server.sendall(data[:sent])
        if way == "delivered late":
            time.sleep(random.uniform(0.0, 0.06))
            server.sendall(data)
        if way in ("answer swallowed", "delivered late"):
            time.sleep(0.02)
        _end(client)
        _end(server)

    def close(self) -> None:
        for open_socket in (self._listener, *self._sockets):
            _end(open_socket)
        for thread in self._threads:
            thread.join(PATIENCE)


def _read_whole(client: socket.socket, data: bytes) -> bytes:
    """Return a request that may arrive in pieces; after a long first piece, wait longer for the rest."""
    quiet_s = 0.02 if len(data) > LONG else 0.003
    with contextlib.suppress(ValueError):  # another thread has closed it
        while len(data) <= len(BODY) and select.select([client], [], [], quiet_s)[0]:
            if not (more := client.recv(1 << 20)):
                break
            data += more
    return data


def _end(open_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):
        open_socket.shutdown(socket.SHUT_RDWR)
    open_socket.close()
