"""A wire before a real server, on the loopback address, that can be cut at the worst moment.

    with wire(("127.0.0.1", 4222)) as cable:
        cable.cut("out", b'"stream":"AUDIT"')     # the acknowledgement of a publish is lost, once
        ...
        cable.dark = True                         # from now on nobody is let through

What goes by is forwarded as it is, until something does that it was told to cut at: that part is lost, and
both sides see their connection end, as they do when a switch in between dies.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    Way = Literal["in", "out"]

CONNECT_S = 5.0


@contextmanager
def wire(*to: tuple[str, int]) -> Iterator[Wire]:
    """Put a wire before a server, or before several of which the first that answers will do."""
    made = Wire(*to)
    try:
        yield made
    finally:
        made.close()


class Wire:
    """Forwards every connection, and cuts where it is told to.

    cut_at  what to cut at, one after the other: on the way "in" to the server or "out" of it, and which bytes
    cuts    how often it did
    dark    while it is set no connection gets through, nor stays
    """

    def __init__(self, *to: tuple[str, int]) -> None:
        self._to = to
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self.cut_at: list[tuple[Way, bytes]] = []
        self.cuts = 0
        self._dark = False
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, name="oncemore-wire", daemon=True).start()

    def cut(self, way: Way, at: bytes) -> None:
        """Cut once more, when this goes by after what was told before."""
        self.cut_at.append((way, at))

    @property
    def dark(self) -> bool:
        """Whether nobody is let through."""
        return self._dark

    @dark.setter
    def dark(self, told: bool) -> None:
        with self._lock:
            self._dark = told
            ends, self._open = (self._open, []) if told else ([], self._open)
        for end in ends:
            _hang_up(end)

    def passed(self, way: Way, data: bytes) -> None:
        """Hear what goes by uncut; for a wire of one's own that wants to know."""

    def close(self) -> None:
        """Let go of everything."""
        self.dark = True
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = None if self._dark else self._reached()
                with self._lock:
                    if self._dark or far is None:
                        _hang_up(near, far)
                        continue
                    self._open += [near, far]
                for one, other, way in ((near, far, "in"), (far, near, "out")):
                    threading.Thread(target=self._forward, args=(one, other, way), daemon=True).start()

    def _reached(self) -> socket.socket | None:
        for address in self._to:
            with suppress(OSError):
                return socket.create_connection(address, CONNECT_S)
        return None

    def _forward(self, one: socket.socket, other: socket.socket, way: Way) -> None:
        with suppress(OSError):
            one.settimeout(None)
            while data := one.recv(65536):
                if self._cuts(way, data):
                    break
                self.passed(way, data)
                other.sendall(data)
        _hang_up(one, other)

    def _cuts(self, way: Way, data: bytes) -> bool:
        with self._lock:
            if not self.cut_at or self.cut_at[0][0] != way or self.cut_at[0][1] not in data:
                return False
            self.cut_at.pop(0)
            self.cuts += 1
            return True


def _hang_up(*ends: socket.socket | None) -> None:
    for end in ends:
        if end is not None:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
