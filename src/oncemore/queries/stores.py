"""Find and open the store that a command is about.

A store is named by the same URL as in `oncemore.open`; without a URL it is the store that steps in this
folder use. Read-only access changes nothing in a store and never creates one.
"""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from pathlib import Path

from oncemore._platform import require_posix
from oncemore.config import MEMORY, SQLITE, artifact_folder
from oncemore.errors import StoreError, UsageError
from oncemore.log.open_store import STORE_FORMS, find_server_opener

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.artifacts.backends import FolderBackend
    from oncemore.artifacts.store import ArtifactStore
    from oncemore.config import EngineSettings
    from oncemore.log.store import Store
    from oncemore.steps.engine import Engine


def open_or_create(store: str | None) -> Engine:
    """Return an engine on a store, which is created if it does not exist.

    All other settings hold for a named store too: encryption, notifications, artifacts.
    """
    from oncemore.open_engine import engine_from_settings, find_engine

    return find_engine() if store is None else engine_from_settings(settings_for(store))


def open_existing(store: str | None) -> Engine:
    """Return an engine on a store; raise `UsageError` if the store does not exist."""
    engine = open_or_create(store)
    # Only a file can be missing here; a server is created or refused when it is connected.
    if engine.url.startswith(SQLITE) and not Path(engine.url.removeprefix(SQLITE)).exists():
        raise _store_missing(Path(engine.url.removeprefix(SQLITE)))
    return engine


def open_for_viewing(store: str | None) -> Engine:
    """Return an engine on an existing store that is open for reading: nothing can write through it."""
    engine = open_or_create(store)
    # An engine opens its store for writing; with one that is open already, it never does.
    engine.opened_store = _open_read_only_store(store_address(store))
    return engine


def remove_companions(url: str | None) -> list[str]:
    """Remove the companion files of a missing database, and return their names."""
    from oncemore.log.sqlite import backup

    path = store_path(store_address(url))
    removed = [companion.name for companion in backup.remove_companions(path)]
    backend = folder_of(str(path))
    if backend is not None and backend.unregister_log(f"{SQLITE}{path}"):
        removed.append(f"the mark of this store in {backend.url}")
    return removed


def _store_missing(path: Path) -> UsageError | StoreError:
    from oncemore.log.sqlite.backup import find_companions
    from oncemore.log.sqlite.files import companions_alone

    # Companion files without a database mean that the database was deleted, not that it never existed.
    companions = find_companions(path)
    if companions:
        return companions_alone(path, [companion.name for companion in companions])
    return UsageError(
        f"there is no store at {path}; name one with --store or ONCEMORE_STORE, or go to the folder of "
        "the project"
    )


def settings_for(url: str | None = None) -> EngineSettings:
    """Return the settings of this folder, with another store if one is named."""
    from oncemore.config import load_settings

    if url is None:
        return load_settings()
    return load_settings(given=("store",))._replace(store=url)


def store_address(url: str | None = None) -> str:
    """Return the URL of a store: the given one, or the one of the settings."""
    # Loading the settings takes longer than everything else here, so they are loaded only if needed.
    return url or os.environ.get("ONCEMORE_STORE") or settings_for().store


@contextmanager
def open_read_only(url: str | None = None) -> Iterator[Store]:
    """Open a store for reading, and close it at the end of the block."""
    with closing(_open_read_only_store(store_address(url))) as store:
        yield store


@contextmanager
def open_for_repair(url: str | None = None) -> Iterator[Store]:
    """Open an existing store for writing, and close it at the end of the block."""
    address = store_address(url)
    # Opening for writing would create a missing store; opening for reading refuses it.
    _open_read_only_store(address).close()
    open_server = find_server_opener(address)
    if open_server is not None:
        opened = open_server(address, read_only=False)
    else:
        from oncemore.log.sqlite.store import SqliteStore

        opened = SqliteStore(store_path(address))
    with closing(opened) as store:
        yield store


def store_path(url: str) -> Path:
    """Return the file of an SQLite store; raise `UsageError` for every other URL."""
    if url == "memory:":
        raise UsageError("memory: is a store inside one process; another process cannot read it")
    if "://" in url and not url.startswith(SQLITE):
        scheme = url.partition("://")[0]
        raise UsageError(f"{scheme}:// is not a store; use {STORE_FORMS}")
    return Path(url.removeprefix(SQLITE)).expanduser().absolute()


def _open_read_only_store(url: str) -> Store:
    open_server = find_server_opener(url)
    if open_server is not None:
        return open_server(url, read_only=True)
    path = store_path(url)
    require_posix(f"{path} is a file, which", "Here, name a server with --store or ONCEMORE_STORE")
    if not path.is_file():
        raise _store_missing(path)
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path}: you may not read it; check its owner and permissions")
    from oncemore.log.sqlite.store import ReadOnlySqliteStore

    return ReadOnlySqliteStore(path)


def artifact_store_of(url: str | None = None) -> ArtifactStore:
    """Return the artifact store that the settings name for a store."""
    from oncemore import open_engine

    settings = settings_for(url)
    return open_engine.open(settings.store, artifacts=settings.artifacts or None).artifact_store


def folder_of(url: str | None = None) -> FolderBackend | None:
    """Return the local folder of a store's artifacts; None if they are stored elsewhere."""
    from oncemore.artifacts.backends import FolderBackend

    settings = settings_for(url)
    is_file = find_server_opener(settings.store) is None and settings.store != MEMORY
    store = f"{SQLITE}{store_path(settings.store)}" if is_file else settings.store
    path = artifact_folder(store, settings.artifacts)
    return None if path is None else FolderBackend(path)
