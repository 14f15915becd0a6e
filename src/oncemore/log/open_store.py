"""Open a store by its URL.

sqlite:///state/log.db        a file of this machine; four slashes for an absolute path
postgresql://host/database    a server, for several machines
mysql://host/database         a MySQL or MariaDB server, likewise; also mariadb://
nats://host/namespace         a JetStream server or cluster, likewise
memory:                       lost with the process; for tests
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from oncemore._platform import require_posix
from oncemore._redact import describe_value, hide_credentials
from oncemore.config import MEMORY, SQLITE, match_scheme
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.store import Store


def make_store_opener(url: str) -> tuple[Callable[[], Store], str]:
    """Return the function that opens a store, and the URL of the store without credentials."""
    if url == MEMORY:
        from oncemore.log.memory import MemoryStore

        class PersistentMemoryStore(MemoryStore):
            """Keeps its entries when its engine is closed, for an engine that is used again."""

            def close(self) -> None:
                """Keep the entries."""

        memory = PersistentMemoryStore()
        return lambda: memory, MEMORY
    open_server = find_server_opener(url)
    if open_server is _open_nats:
        from oncemore.log.nats.address import parse_address

        return lambda: _open_nats(url), parse_address(url).shown
    if open_server is not None:
        return lambda: open_server(url), hide_credentials(url, keeps_user=True)
    scheme = match_scheme(url)
    if scheme is not None and not url.startswith(SQLITE):
        raise UsageError(f"{scheme.group()} is not a store; use {STORE_FORMS} or memory:")
    name = url.removeprefix(SQLITE)
    if name == ":memory:":
        raise UsageError(f"{url!r} is SQLite's own name; use oncemore.open('memory:') for a store in memory")
    path = Path(name).expanduser().absolute()
    if not path.name or path.is_dir():
        raise UsageError(f"{describe_value(url, 500)} names no file; write sqlite:///folder/log.db")
    require_posix(
        f"{url!r} is a file, which",
        "Here, take a server (postgresql://…, mysql://…, nats://…), or memory: for tests",
    )
    return lambda: _open_sqlite(path), f"{SQLITE}{path}"


def _open_sqlite(path: Path) -> Store:
    from oncemore.log.sqlite.store import SqliteStore

    new = not path.exists()
    if new and path.parent.name == ".oncemore" and not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    store = SqliteStore(path)
    if new:
        # Imported here: commands that read a store load this module too.
        import logging

        logging.getLogger("oncemore").warning("oncemore: created a new store, %s", path)
    return store


def _open_postgres(url: str, *, read_only: bool = False) -> Store:
    if read_only:
        from oncemore.log.postgres.store import ReadOnlyPostgresStore

        return ReadOnlyPostgresStore(url)
    from oncemore.log.postgres.store import PostgresStore

    return PostgresStore(url)


def _open_mysql(url: str, *, read_only: bool = False) -> Store:
    if read_only:
        from oncemore.log.mysql.store import ReadOnlyMysqlStore

        return ReadOnlyMysqlStore(url)
    from oncemore.log.mysql.store import MysqlStore

    return MysqlStore(url)


def _open_nats(url: str, *, read_only: bool = False) -> Store:
    if read_only:
        from oncemore.log.nats.store import ReadOnlyNatsStore

        return ReadOnlyNatsStore(url)
    from oncemore.log.nats.store import NatsStore

    return NatsStore(url)


class ServerOpener(Protocol):
    """Opens a store on a server."""

    def __call__(self, url: str, *, read_only: bool = False) -> Store:
        """Open the store of a URL, which may be created unless it is only read."""


#: Functions that open a store on a server, by the scheme of its URL.
SERVER_OPENERS: dict[str, ServerOpener] = {
    **dict.fromkeys(("postgresql", "postgres"), _open_postgres),
    **dict.fromkeys(("mysql", "mariadb"), _open_mysql),
    **dict.fromkeys(("nats", "tls"), _open_nats),
}


def find_server_opener(url: str) -> ServerOpener | None:
    """Return the function that opens a store on a server; None for a file, whatever its name is."""
    scheme, separator, _ = url.partition("://")
    return SERVER_OPENERS.get(scheme) if separator else None


#: The addresses of stores that several processes can open, for messages.
STORE_FORMS = "sqlite:///path, postgresql://host/database, mysql://host/database or nats://host/namespace"
