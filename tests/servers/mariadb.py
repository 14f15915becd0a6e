"""A real MariaDB for the tests, without root's help and without a service of the machine.

Found in this order: the address in ONCEMORE_TEST_MYSQL (used as it is, never stopped); `mariadbd` on the
PATH or where Debian keeps it (`make servers` installs it). A server that we start keeps its data in a
temporary directory, listens on a free loopback port and is ended by its process id. Root starts it under an
unprivileged uid.
"""

from __future__ import annotations

import contextlib
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

ADDRESS = "ONCEMORE_TEST_MYSQL"
HOW_TO_GET_ONE = f"no MariaDB: set {ADDRESS}=mysql://…, or install one (make servers; Debian: mariadb-server)"
#: Seconds that starting or stopping may take.
PATIENCE = 60.0
USER = "oncemore"
#: Small files and no slow shutdown: a test has little data, and a server is started in two seconds.
OPTIONS = {
    "innodb-buffer-pool-size": "64M",
    "innodb-log-file-size": "16M",
    "innodb-fast-shutdown": "2",
    "innodb-data-file-path": "ibdata1:12M:autoextend",
    "max-connections": "300",
    "skip-name-resolve": "1",
    "bind-address": "127.0.0.1",
    "performance-schema": "0",
}


class NoMariadb(Exception):
    """No server could be found or started; the message says how to get one."""


class Server:
    """A server in a directory of its own, which can be killed and started again on the same data."""

    def __init__(self, home: Path, **options: str) -> None:
        self._home, self._user = home, unprivileged_uid("mysql", "nobody")
        self._options = {**OPTIONS, **{name.replace("_", "-"): value for name, value in options.items()}}
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            os.chown(home, self._user, -1)
        self._create_data()

    @property
    def url(self) -> str:
        """The address of the server, without a database."""
        return f"mysql://{USER}@127.0.0.1:{self.port}"

    def _create_data(self) -> None:
        program = shutil.which("mariadb-install-db")
        if program is None:
            raise NoMariadb(HOW_TO_GET_ONE)
        words = [
            "--no-defaults",
            f"--datadir={self._home / 'data'}",
            "--auth-root-authentication-method=normal",
        ]
        words += ["--skip-test-db", "--skip-name-resolve"]
        made = subprocess.run(
            [program, *words],
            user=self._user,
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        if made.returncode:
            raise NoMariadb(f"mariadb-install-db failed: {(made.stderr or made.stdout).strip()[-500:]}")
        # Read once, at the first start: a user for programs on this machine.
        self._init = self._home / "init.sql"
        self._init.write_text(
            f"create user if not exists {USER}@'127.0.0.1';\n"
            f"grant all privileges on *.* to {USER}@'127.0.0.1' with grant option;\n"
        )

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        program = find_program()
        words = [f"--{name}={value}" for name, value in self._options.items()]
        words += [
            f"--datadir={self._home / 'data'}",
            f"--port={self.port}",
            f"--socket={self._home / 'socket'}",
        ]
        words += [f"--init-file={self._init}", f"--pid-file={self._home / 'pid'}"]
        with (self._home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "--no-defaults", *words], user=self._user, cwd=self._home, stdout=log, stderr=log
            )
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < until:
            # The port opens after recovery; the greeting begins with a packet header of four bytes.
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                if len(probe.recv(5)) == 5:
                    return
            time.sleep(0.02)
        raise NoMariadb(f"MariaDB did not start: {(self._home / 'log').read_text(errors='replace')[-500:]}")

    def kill(self) -> None:
        """Kill the server as a crash would, with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """End the server in order."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()


def find_program() -> str:
    """Return the path of the server's program."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    program = shutil.which("mariadbd", path=path)
    if program is None:
        raise NoMariadb(HOW_TO_GET_ONE)
    return program


#: A file system in memory, where there is one: every commit waits for the disk, and tests kill servers, not
#: machines.
MEMORY_DISK = Path("/dev/shm")  # noqa: S108


@contextlib.contextmanager
def server(*, on_disk: bool = False, **options: str) -> Iterator[Server]:
    """Give a running server of our own, with these options."""
    find_program()
    folder = str(MEMORY_DISK) if os.access(MEMORY_DISK, os.W_OK) and not on_disk else None
    with tempfile.TemporaryDirectory(prefix="oncemore-my-", dir=folder, ignore_cleanup_errors=True) as name:
        made = Server(Path(name), **options)
        made.start()
        try:
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def database() -> Iterator[str]:
    """Give the address of a new database, in a server that this process has until `end`."""
    if not _shared:
        given = os.environ.get(ADDRESS)
        stack = contextlib.ExitStack()
        _shared.append((stack, given or stack.enter_context(server()).url))
    name = f"own_{os.getpid()}_{next(_names)}"
    create_database(_shared[0][1], name)
    yield f"{_shared[0][1].rstrip('/')}/{name}"


def create_database(url: str, name: str) -> None:
    """Create an empty database."""
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"drop database if exists {name}")
        cursor.execute(f"create database {name}")


def connect(url: str):  # type: ignore[no-untyped-def]
    """Open a connection of the driver, in autocommit, for what a test does beside the store."""
    from urllib.parse import unquote, urlsplit

    import pymysql  # here: a test without a database needs no client

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path.strip("/") or None,
        charset="utf8mb4",
        autocommit=True,
    )


def end() -> None:
    """End the server of this process, if it has one."""
    while _shared:
        _shared.pop()[0].close()


_shared: list[tuple[contextlib.ExitStack, str]] = []
_names = itertools.count(1)
