"""A real consumer: an HTTP server on loopback that applies a message once, by its id."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.servers.faults import Behaviour, Server, answers, read_request, serve

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


@dataclass
class Shop:
    """The received messages and their effects; `says` are the next responses."""

    server: Server
    received: list[dict[str, Any]] = field(default_factory=list)
    applied: dict[str, dict[str, Any]] = field(default_factory=dict)
    says: list[Behaviour] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self.server.url + "hook"

    def take(self, request: bytes) -> None:
        """Apply a message with a new id."""
        head, _, body = request.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        message = json.loads(body)
        with self.lock:
            self.received.append({"line": lines[0], "headers": headers, "message": message, "bytes": body})
            assert headers["oncemore-id"] == message["id"]
            self.applied.setdefault(message["id"], message)

    @property
    def attempts(self) -> list[int]:
        return [int(one["headers"]["oncemore-attempt"]) for one in self.received]


def whole(request: bytes) -> bool:
    head, _, body = request.partition(b"\r\n\r\n")
    told = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(told) and len(body) == int(told[0].partition(b":")[2])


@contextlib.contextmanager
def open_shop(*says: Behaviour) -> Iterator[Shop]:
    """Serve a shop; each entry of `says` answers one request instead of the shop."""
    shops: list[Shop] = []

    def behave(conn: socket.socket, server: Server) -> None:
        (shop,) = shops
        with shop.lock:
            turn = shop.says.pop(0) if shop.says else None
        if turn is not None:
            turn(conn, server)
            return
        request = read_request(conn)
        if whole(request):  # its sender may have been killed in the middle
            shop.take(request)
            conn.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    with serve(behave) as server:
        shops.append(Shop(server, says=list(says)))
        yield shops[0]


def takes_and(then: Behaviour) -> Any:
    """Return a behaviour that applies the message and does not respond normally."""

    def behaviour(shop: Shop) -> Behaviour:
        def behave(conn: socket.socket, server: Server) -> None:
            before = len(server.requests)
            then(conn, server)
            shop.take(server.requests[before])

        return behave

    return behaviour


__all__ = ["Shop", "answers", "open_shop", "takes_and"]
