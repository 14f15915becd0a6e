"""A real rabbitmq-server for the tests, as Debian packages it, and a name server of Erlang (epmd) beside it.

Both listen on free loopback ports and keep their files in a folder of the test. Both are children of the
test process and ended by their process ids; the server can be killed and started again with its files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.nats import find_free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1"
#: The scripts of Debian's package. /usr/sbin/rabbitmq-server would start the server as another user.
FOLDERS = ("/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin")
HOW_TO_GET_ONE = "no rabbitmq-server: install Debian's package rabbitmq-server"
#: Seconds that starting or stopping may take.
PATIENCE_S = 100.0


class NoRabbitMq(Exception):
    """No server could be found or started; the message says how to get one."""


class RabbitMqServer:
    """One rabbitmq-server, with the address `url`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._epmd_port, self._port, self._dist_port = find_free_ports(3)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self.port = self._port
        self.url = f"amqp://guest:guest@{HOST}:{self._port}"

    def start(self) -> None:
        """Start the server, or start it again; return when it accepts connections."""
        script, epmd = _find_script(), shutil.which("epmd")
        if epmd is None:
            raise NoRabbitMq("no epmd, which belongs to Erlang")
        home, environment = self._home, self._make_environment()
        with (home / "log").open("ab") as log:
            if self._epmd is None:
                words = [epmd, "-port", str(self._epmd_port), "-address", HOST]
                self._epmd = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
            # A session of its own: the script starts the emulator of Erlang as its child.
            self._server = subprocess.Popen(
                [script], env=environment, cwd=home, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + PATIENCE_S
        while self._server.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self._port), 1) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                probe.settimeout(5)
                if probe.recv(1):
                    return
            time.sleep(0.02)
        raise NoRabbitMq(
            f"rabbitmq-server did not start: {(home / 'log').read_text(errors='replace')[-800:]}"
        )

    def kill(self) -> None:
        """Kill the server with SIGKILL; `start` starts it again with its files."""
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait(PATIENCE_S)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the server for a while, with its connections open."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._server.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End both processes. Nothing on its disk is needed any more, so the server is killed."""
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(PATIENCE_S)

    def _make_environment(self) -> dict[str, str]:
        home = self._home
        rabbit = {
            "NODENAME": f"oncemore{self._port}@localhost", "NODE_IP_ADDRESS": HOST,
            "NODE_PORT": self._port, "DIST_PORT": self._dist_port, "MNESIA_BASE": home / "mnesia",
            "LOG_BASE": home / "logs", "LOGS": "-", "ENABLED_PLUGINS_FILE": home / "plugins",
            "CONFIG_FILE": home / "rabbitmq", "CONF_ENV_FILE": home / "environment",
            "PID_FILE": home / "pid", "GENERATED_CONFIG_DIR": home / "config",
            "ADVANCED_CONFIG_FILE": home / "advanced",
            # One scheduler that does not spin: the tests share the machine.
            "SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
        }  # fmt: skip
        return {
            **os.environ,
            "HOME": str(home),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            **{f"RABBITMQ_{name}": str(value) for name, value in rabbit.items()},
        }


def _find_script() -> str:
    script = shutil.which("rabbitmq-server", path=os.pathsep.join(FOLDERS))
    if script is None:
        raise NoRabbitMq(HOW_TO_GET_ONE)
    return script


@contextlib.contextmanager
def running() -> Iterator[RabbitMqServer]:
    """Give a started server in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="oncemore-rabbitmq-", ignore_cleanup_errors=True) as name:
        server = RabbitMqServer(Path(name))
        try:
            server.start()
            yield server
        finally:
            server.stop()
