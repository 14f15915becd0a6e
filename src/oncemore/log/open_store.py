"""Open a store by its URL.

sqlite:///state/log.db        a file of this machine; four slashes for an absolute path
postgresql://host/database    a server, for several machines
nats://host/namespace         a JetStream server or cluster, likewise
memory:                       lost with the process; for tests
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore._platform import require_posix
from oncemore._redact import describe_value, hide_credentials
from oncemore.config import MEMORY, SQLITE, match_scheme
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.log.store import Store

log = logging.getLogger("oncemore")


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
    if url.startswith(("postgresql://", "postgres://")):
        return lambda: _open_postgres(url), hide_credentials(url, keeps_user=True)
    if url.startswith(("nats://", "tls://")):
        from oncemore.log.nats.address import parse_address

        return lambda: _open_nats(url), parse_address(url).shown
    scheme = match_scheme(url)
    if scheme is not None and not url.startswith(SQLITE):
        raise UsageError(
            f"{scheme.group()} is not a store; use sqlite:///path, postgresql://host/database, "
            "nats://host/namespace or memory:"
        )
    name = url.removeprefix(SQLITE)
    if name == ":memory:":
        raise UsageError(f"{url!r} is SQLite's own name; use oncemore.open('memory:') for a store in memory")
    path = Path(name).expanduser().absolute()
    if not path.name or path.is_dir():
        raise UsageError(f"{describe_value(url, 500)} names no file; write sqlite:///folder/log.db")
    require_posix(
        f"{url!r} is a file, which", "Here, take a server (postgresql://…, nats://…), or memory: for tests"
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
        log.warning("oncemore: created a new store, %s", path)
    return store


def _open_postgres(url: str) -> Store:
    from oncemore.log.postgres.store import PostgresStore

    return PostgresStore(url)


def _open_nats(url: str) -> Store:
    from oncemore.log.nats.store import NatsStore

    return NatsStore(url)
