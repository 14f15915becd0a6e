"""A TCP proxy on the loopback address that loses chosen messages of a real server.

    with wire(("127.0.0.1", 4222)) as proxy:
        proxy.cut("out", b'"stream":"AUDIT"')     # the acknowledgement of a publish is lost, once
        ...
        proxy.dark = True                         # from now on no connection gets through

Data is forwarded unchanged until it contains the bytes of the next cut: then this piece is lost, and both
sides see their connection end, as they do when a network switch fails.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    #: "in" is towards the server, "out" towards the client.
    Direction = Literal["in", "out"]

CONNECT_TIMEOUT_S = 5.0


@contextmanager
def wire(*to: tuple[str, int]) -> Iterator[FaultProxy]:
    """Run a proxy in front of a server; given several, each connection goes to the first that answers."""
    proxy = FaultProxy(*to)
    try:
        yield proxy
    finally:
        proxy.close()


class FaultProxy:
    """Forwards connections, and cuts them at chosen bytes.

    cut_at  the cuts to come, in order: direction ("in" to the server, "out" of it) and bytes
    cuts    the number of cuts so far
    dark    while it is set, connections are closed and new ones refused
    """

    def __init__(self, *to: tuple[str, int]) -> None:
        self._servers = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self.cut_at: list[tuple[Direction, bytes]] = []
        self.cuts = 0
        self._dark = False
        self._lock = threading.Lock()
        self._open_sockets: list[socket.socket] = []
        threading.Thread(target=self._accept_connections, name="oncemore-wire", daemon=True).start()

    def cut(self, direction: Direction, at: bytes) -> None:
        """Add a cut, which happens after those added before."""
        self.cut_at.append((direction, at))

    @property
    def dark(self) -> bool:
        """Whether all connections are closed and refused."""
        return self._dark

    @dark.setter
    def dark(self, is_dark: bool) -> None:
        # Under the lock, or a connection that is being accepted would escape.
        with self._lock:
            self._dark = is_dark
            to_close, self._open_sockets = (self._open_sockets, []) if is_dark else ([], self._open_sockets)
        _close_sockets(*to_close)

    def on_forwarded(self, direction: Direction, data: bytes) -> None:
        """Do nothing; a subclass may override it to see the forwarded data."""

    def close(self) -> None:
        """Close all connections and the listening socket."""
        self.dark = True
        self._listening.close()

    def _accept_connections(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = None if self._dark else self._connect_server()
                with self._lock:
                    # `dark` may have been set while connecting.
                    if self._dark or server is None:
                        _close_sockets(client, server)
                        continue
                    self._open_sockets += [client, server]
                for args in ((client, server, "in"), (server, client, "out")):
                    threading.Thread(target=self._forward_data, args=args, daemon=True).start()

    def _connect_server(self) -> socket.socket | None:
        for address in self._servers:
            with suppress(OSError):
                return socket.create_connection(address, CONNECT_TIMEOUT_S)
        return None

    def _forward_data(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        with suppress(OSError):
            source.settimeout(None)  # create_connection left its timeout on the socket
            while data := source.recv(65536):
                if self._should_cut(direction, data):
                    break
                self.on_forwarded(direction, data)
                target.sendall(data)
        _close_sockets(source, target)

    def _should_cut(self, direction: Direction, data: bytes) -> bool:
        with self._lock:
            if not self.cut_at or self.cut_at[0][0] != direction or self.cut_at[0][1] not in data:
                return False
            self.cut_at.pop(0)
            self.cuts += 1
            return True


def _close_sockets(*sockets: socket.socket | None) -> None:
    for open_socket in sockets:
        if open_socket is not None:
            # close() alone would not wake a thread that blocks in recv().
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()
