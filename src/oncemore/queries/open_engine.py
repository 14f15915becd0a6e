"""Which store is looked at, and opening it so that looking changes nothing.

A store is named as `oncemore.open` names it; without a name it is the one that steps started from this
folder would use. One that is not there is never made.
"""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from pathlib import Path

from oncemore.config import MEMORY, SQLITE, artifact_folder
from oncemore.errors import StoreError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.artifacts.backends import Folder
    from oncemore.artifacts.store import Shelf
    from oncemore.config import Settings
    from oncemore.log.store import Store
    from oncemore.steps.engine import Engine


def made(store: str | None) -> Engine:
    """Return an engine on a store: as named, or as the settings have it; one that is not there is made.

    Everything but its address is as the settings have it, also for one that was named: what seals bodies,
    who is told, where artifacts are.
    """
    from oncemore.open_engine import chosen, engine_of

    return chosen() if store is None else engine_of(told(store))


def there(store: str | None) -> Engine:
    """Return an engine on a store that exists: as named, or as the settings have it."""
    engine = made(store)
    if engine.url.startswith(SQLITE) and not Path(engine.url.removeprefix(SQLITE)).exists():
        raise _no_store(Path(engine.url.removeprefix(SQLITE)))
    return engine


def remove_companions(url: str | None) -> list[str]:
    """Remove what a database that is missing has left; return the names of what was removed."""
    from oncemore.log.sqlite import backup

    where = path_of(address(url))
    removed = [path.name for path in backup.remove_companions(where)]
    place = folder_of(str(where))
    if place is not None and place.remove_signature(f"{SQLITE}{where}"):
        removed.append(f"the mark of this store in {place.url}")
    return removed


def _no_store(where: Path) -> UsageError | StoreError:
    from oncemore.log.sqlite.backup import find_companions
    from oncemore.log.sqlite.files import companions_alone

    companions = find_companions(where)
    if companions:
        return companions_alone(where, [path.name for path in companions])
    return UsageError(
        f"there is no store at {where}; name one with --store or ONCEMORE_STORE, or go to the folder of "
        "the project"
    )


def told(url: str | None = None) -> Settings:
    """Return the settings that hold here, with the store that was named, if one was."""
    from oncemore.config import settings

    if url is None:
        return settings()
    return settings(given=("store",))._replace(store=url)


def _postgres(url: str, *, look: bool) -> Store:
    if look:
        from oncemore.log.postgres.read_only import LookedAt

        return LookedAt(url)
    from oncemore.log.postgres.store import PostgresStore

    return PostgresStore(url)


def _nats(url: str, *, look: bool) -> Store:
    if look:
        from oncemore.log.nats.read_only import LookedAt

        return LookedAt(url)
    from oncemore.log.nats.store import NatsStore

    return NatsStore(url)


#: Stores that are servers, by how their addresses begin.
SERVERS = {"postgresql": _postgres, "postgres": _postgres, "nats": _nats, "tls": _nats}


def address(url: str | None = None) -> str:
    """Return the address of the store: as it was named, or else as the settings have it."""
    # What was named needs no settings, and they take longer to load than everything else here.
    return url or os.environ.get("ONCEMORE_STORE") or told().store


@contextmanager
def looked_at(url: str | None = None) -> Iterator[Store]:
    """Open a store to look at it, and let go of it."""
    with closing(_look(address(url))) as store:
        yield store


@contextmanager
def written_to(url: str | None = None) -> Iterator[Store]:
    """Open a store that is there, to put something right in it."""
    where = address(url)
    _look(where).close()  # which makes none
    server = SERVERS.get(where.partition("://")[0])
    if server is not None:
        opened = server(where, look=False)
    else:
        from oncemore.log.sqlite.store import SqliteStore

        opened = SqliteStore(path_of(where))
    with closing(opened) as store:
        yield store


def path_of(url: str) -> Path:
    """Return the file of a store in a file; any other address is refused."""
    if url == "memory:":
        raise UsageError("memory: is a store that ends with its process; nothing of it can be seen from here")
    if "://" in url and not url.startswith(SQLITE):
        scheme = url.partition("://")[0]
        raise UsageError(
            f"{scheme}:// is no store; take sqlite:///path, postgresql://host/database or nats://host/namespace"
        )
    return Path(url.removeprefix(SQLITE)).expanduser().absolute()


def _look(url: str) -> Store:
    server = SERVERS.get(url.partition("://")[0])
    if server is not None:
        return server(url, look=True)
    path = path_of(url)
    if not path.is_file():
        raise _no_store(path)
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path}: you may not read it; look at who owns it")
    from oncemore.log.sqlite.read_only import LookedAt

    return LookedAt(path)


def shelf_of(url: str | None = None) -> Shelf:
    """Return where the artifacts of a store are, as the settings have it."""
    from oncemore import open_engine

    found = told(url)
    return open_engine.open(found.store, artifacts=found.artifacts or None).shelf


def folder_of(url: str | None = None) -> Folder | None:
    """Return the folder of a store's artifacts; None where they are not in a folder of this machine."""
    from oncemore.artifacts.backends import Folder

    found = told(url)
    is_file = found.store.partition("://")[0] not in SERVERS and found.store != MEMORY
    store = f"{SQLITE}{path_of(found.store)}" if is_file else found.store
    path = artifact_folder(store, found.artifacts)
    return None if path is None else Folder(path)
