"""A nats-server that can be killed and started again on its port and files, and a wire that can be cut."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.servers import nats as servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Broker:
    """One server."""

    def __init__(self, home: Path) -> None:
        self._home, self._port = home, -1
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start it, or start it again; return its address."""
        ports = self._home / "ports"
        ports.mkdir(exist_ok=True)
        for old in ports.iterdir():
            old.unlink()
        (self._home / "nats.conf").write_text(
            f'listen: "127.0.0.1:{self._port}"\nports_file_dir: "{ports}"\n'
            f'jetstream {{ store_dir: "{self._home / "store"}" }}\n'
        )
        with (self._home / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [servers.binary(), "-c", self._home / "nats.conf"], stdout=log, stderr=log
            )
        url = servers.address_of(self._server, self._home)
        self._port = urlsplit(url).port or -1
        return url

    def kill(self) -> None:
        """Let it be gone at once, as by kill -9."""
        assert self._server is not None
        self._server.kill()
        self._server.wait(servers.PATIENCE)

    def stop(self) -> None:
        if self._server is not None and self._server.poll() is None:
            servers.stop(self._server)


@contextlib.contextmanager
def wire(url: str) -> Iterator[Wire]:
    """Put a wire before a server."""
    made = Wire(urlsplit(url).port or 0)
    try:
        yield made
    finally:
        made.close()


class Wire:
    """Forwards every connection, until something goes by that it is told to cut at: that is lost, and both
    sides see the connection end."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"nats://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cut_at: list[tuple[str, bytes]] = []
        self.cuts = 0
        self.sent = bytearray()  # all that went to the server, in its order
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                for one, other, way in ((near, far, "in"), (far, near, "out")):
                    threading.Thread(target=self._forward, args=(one, other, way), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if self.cut_at and self.cut_at[0][0] == way and self.cut_at[0][1] in data:
                    self.cut_at.pop(0)
                    self.cuts += 1
                    break
                if way == "in":
                    self.sent += data
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in (self._listening, *self._open):
            each.close()


async def published(url: str, stream: str, *letters: tuple[str, bytes, dict[str, str]]) -> None:
    """Make a work queue, and put letters into it."""
    import nats
    from nats.js.api import RetentionPolicy, StreamConfig

    client = await nats.connect(url)
    try:
        js = client.jetstream()
        config = StreamConfig(
            name=stream, subjects=[f"{stream.lower()}.>"], retention=RetentionPolicy.WORK_QUEUE
        )
        with contextlib.suppress(Exception):
            await js.add_stream(config)
        for subject, body, headers in letters:
            await js.publish(subject, body, headers=headers)
    finally:
        await client.close()


async def left(url: str, stream: str) -> Any:
    """Return how many messages a stream still has, and how many are out unanswered."""
    import nats

    client = await nats.connect(url)
    try:
        js = client.jetstream()
        info = await js.stream_info(stream)
        consumers = await js.consumers_info(stream)
        return info.state.messages, sum(each.num_ack_pending or 0 for each in consumers)
    finally:
        await client.close()
