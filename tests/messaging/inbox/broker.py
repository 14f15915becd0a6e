"""A nats-server that can be killed and restarted with its port and files, and a proxy that can be cut."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oncemore.testing import fault_proxy as wires
from tests.servers import nats as servers

if TYPE_CHECKING:
    from pathlib import Path


class Broker:
    """One nats-server process."""

    def __init__(self, home: Path) -> None:
        self._home, self._port = home, -1
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start or restart the server; return its address."""
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
                [servers.find_binary(), "-c", self._home / "nats.conf"], stdout=log, stderr=log
            )
        url = servers.read_address(self._server, self._home)
        self._port = urlsplit(url).port or -1
        return url

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self._server is not None
        self._server.kill()
        self._server.wait(servers.TIMEOUT_S)

    def stop(self) -> None:
        if self._server is not None and self._server.poll() is None:
            servers.stop_server(self._server)


class Wire(wires.FaultProxy):
    """A proxy that records the bytes sent to the server."""

    def __init__(self, port: int) -> None:
        self.sent = bytearray()  # all of it, in its order
        super().__init__(("127.0.0.1", port))

    def on_forwarded(self, way: str, data: bytes) -> None:
        if way == "in":
            self.sent += data


def wire(url: str) -> contextlib.AbstractContextManager[Wire]:
    """Start a recording proxy in front of a server."""
    return contextlib.closing(Wire(urlsplit(url).port or 0))


async def published(url: str, stream: str, *messages: tuple[str, bytes, dict[str, str]]) -> None:
    """Create a work queue with messages."""
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
        for subject, body, headers in messages:
            await js.publish(subject, body, headers=headers)
    finally:
        await client.close()


async def left(url: str, stream: str) -> Any:
    """Return the numbers of stored and of unacknowledged messages of a stream."""
    import nats

    client = await nats.connect(url)
    try:
        js = client.jetstream()
        info = await js.stream_info(stream)
        consumers = await js.consumers_info(stream)
        return info.state.messages, sum(each.num_ack_pending or 0 for each in consumers)
    finally:
        await client.close()
