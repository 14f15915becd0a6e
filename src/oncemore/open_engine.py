"""Which store a durable step uses, and with which settings.

    oncemore.open("sqlite:///state/log.db")     a file of this machine; four slashes for an absolute path
    oncemore.open("postgresql://host/database") a server, for several machines
    oncemore.open("nats://host/namespace")      a JetStream server or cluster, likewise
    oncemore.open("memory:")                    forgotten with the process; for tests

Without an engine of its own (`work.on(engine)`, `with engine:`) a step uses the engine of the settings.
`configured.py` says where those come from.
"""

from __future__ import annotations

import atexit
import os
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._redact import describe_value, hide_credentials
from oncemore.artifacts.backends import Folder, Memory
from oncemore.config import (
    MEMORY,
    NAMES,
    NO_PATH,
    SQLITE,
    Settings,
    artifact_folder,
    number,
    root_of,
    settings,
)
from oncemore.errors import PolicyError, UsageError
from oncemore.maintenance.size_warning import LIMITS, Limits
from oncemore.settings import INLINE_WAIT_S, LEASE_S, NOTIFY_EVERY_S, POLICY_REQUIRED
from oncemore.steps.engine import Engine, log
from oncemore.steps.entered_engine import innermost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.artifacts.backends import Place
    from oncemore.audit.events import Event
    from oncemore.control.notifications import Notices
    from oncemore.log.encryption import Codec
    from oncemore.log.store import Store


def open(  # noqa: A001 - read as oncemore.open
    url: str | os.PathLike[str],
    *,
    lease_s: float | None = None,
    max_inline_wait_s: float | None = None,
    on_event: Callable[[Event], object] | None = None,
    artifacts: str | os.PathLike[str] | None = None,
    notify: Sequence[Any] | Mapping[str, Any] | str | None = None,
    notify_every_s: float | None = None,
    notify_of: str = "all",
    codec: Codec | Sequence[Codec] | None = None,
    copies: str = "hold",
    warn_file_mb: float | None = None,
    warn_wal_mb: float | None = None,
    warn_left_mb: float | None = None,
    control: Any = None,
) -> Engine:
    """Return an engine on a store; nothing is opened or created before it is used.

    url                what kind of store, and where; a path stands for a SQLite file
    lease_s            how long this process keeps its runs after its last sign of life (60)
    max_inline_wait_s  the longest wait that a call sits out; what is due later raises `Parked` (60)
    on_event           called with each event about a call that is worth knowing (`config_drift`, `circuit`)
    artifacts          where the files that steps put away go: a folder (artifacts/ beside the log's file), or
                       object storage (s3://bucket/prefix)
    notify             who is told of what is held for a person and of every run that fails for good: sinks,
                       or their addresses (`messaging.sink_urls`)
    notify_every_s     the stretch in which each is told twice at most of one step and reason (300; 0: always)
    notify_of          what they are told of: "all", "holds" or "failures"
    codec              what seals arguments, results, errors and events in the store: an object with an `id`,
                       `encode(bytes)` and `decode(bytes)`; of several, the first one writes; with
                       `EarlierBodies()` among them plain bodies are read too
    copies             "hold": on a store that was copied or restored nothing but `pure` steps runs before
                       somebody has acknowledged it; "trust": it is taken for the original
    warn_…_mb          say once when the store is larger than this (10240), when its write-ahead file is and
                       cannot be emptied (256), when the disk has less left (256); 0 for never
    control            where switches and approvals are kept besides the store: nats://host:port/bucket; it is
                       asked before every attempt, and what it cannot answer means no
    """
    if not isinstance(url, str | os.PathLike):
        raise UsageError(f"url is {describe_value(url)}; it takes a text or a path")
    opens, told = _store(str(os.fspath(url)))
    place = _place(told, artifacts)
    engine = Engine(
        _with_artifacts(opens, told, place),
        told,
        lease_s=LEASE_S if lease_s is None else number("lease_s", lease_s, "lease_s"),
        inline_wait_s=INLINE_WAIT_S
        if max_inline_wait_s is None
        else number("max_inline_wait_s", max_inline_wait_s, "max_inline_wait_s"),
        on_event=None if on_event is None else _listener(on_event),
        place=place,
        notices=_notices(notify, NOTIFY_EVERY_S if notify_every_s is None else notify_every_s, notify_of),
        codec=codec,
        copies=copies,
        warn=Limits(
            *(
                limit if told is None else number(f"warn_{name}_mb", told, f"warn_{name}_mb")
                for name, limit, told in zip(
                    Limits._fields, LIMITS, (warn_file_mb, warn_wal_mb, warn_left_mb), strict=True
                )
            )
        ),
        control=_elsewhere(control),
    )
    if told != MEMORY:
        where = None if artifacts is None else _lasting(str(os.fspath(artifacts)))
        engine.opened = told if told.startswith(SQLITE) else str(url), {
            "lease_s": lease_s, "max_inline_wait_s": max_inline_wait_s, "artifacts": where, "notify": notify,
            "notify_every_s": notify_every_s, "notify_of": notify_of, "codec": codec, "copies": copies,
            "warn_file_mb": warn_file_mb, "warn_wal_mb": warn_wal_mb, "warn_left_mb": warn_left_mb,
            "control": control,
        }  # fmt: skip
        engine.reopen = partial(open, engine.opened[0], **engine.opened[1])
    return engine


def _lasting(place: str) -> str:
    """Return the address of a place for artifacts as it holds in any working directory."""
    return place if place == MEMORY or "://" in place else str(Path(place).expanduser().absolute())


def _elsewhere(control: Any) -> Any:
    if not control:
        return None
    from oncemore.control.nats_switches import control_of

    return control_of(control)


def _notices(notify: Any, every_s: float, about: str) -> Notices | None:
    """Return who is told of what is held or has failed, or None."""
    every_s = number("notify_every_s", every_s, "notify_every_s")
    if not notify:
        return None
    from oncemore.audit.neutral import neutral
    from oncemore.classifiers.classify import classify, ready
    from oncemore.control.notifications import Notices
    from oncemore.messaging.sink_urls import sinks_of

    ready()
    return Notices(sinks_of(notify), classify=classify, describe=neutral, every_s=every_s, about=about)


def _store(url: str) -> tuple[Callable[[], Store], str]:
    """Return what opens a store, and what it is called."""
    if url == MEMORY:
        from oncemore.log.memory import MemoryStore

        class Lasting(MemoryStore):
            """Stays when its engine is closed: an engine that is used again finds what it had."""

            def close(self) -> None:
                """Forget nothing."""

        memory = Lasting()
        return lambda: memory, MEMORY
    if url.startswith(("postgresql://", "postgres://")):
        return lambda: _postgres(url), hide_credentials(url, keeps_user=True)
    if url.startswith(("nats://", "tls://")):
        from oncemore.log.nats.address import address

        return lambda: _nats(url), address(url).shown
    scheme = NO_PATH.match(url)
    if scheme is not None and not url.startswith(SQLITE):
        raise UsageError(
            f"{scheme.group()} is no store; take sqlite:///path, postgresql://host/database, "
            "nats://host/namespace or memory:"
        )
    name = url.removeprefix(SQLITE)
    if name == ":memory:":
        raise UsageError(f"{url!r} is SQLite's word; oncemore.open('memory:') is a store that is forgotten")
    path = Path(name).expanduser().absolute()
    if not path.name or path.is_dir():
        raise UsageError(f"{describe_value(url, 500)} names no file; write sqlite:///folder/log.db")
    _check_file_locks(url)
    return lambda: _sqlite(path), f"{SQLITE}{path}"


def _check_file_locks(url: str) -> None:
    """Refuse a file store on a platform whose file locks this package cannot use."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise UsageError(
            f"{url!r} is a file, and a file store needs POSIX file locks (the module fcntl): it is supported "
            "on Linux. Here, take a server (postgresql://…, nats://…), or memory: for tests"
        ) from None


def _place(store: str, artifacts: str | os.PathLike[str] | None) -> Callable[[], Place] | None:
    """Return what opens the place of artifacts; None where a store has no folder and nobody named one."""
    if artifacts is not None and not isinstance(artifacts, str | os.PathLike):
        raise UsageError(
            f"artifacts is {describe_value(artifacts)}; it takes a folder or the address of object storage"
        )
    told = "" if artifacts is None else str(os.fspath(artifacts))
    if told == MEMORY or (not told and store == MEMORY):
        memory = Memory()
        return lambda: memory
    if not told and not store.startswith(SQLITE):
        return None
    path = artifact_folder(store, told)
    if path is not None:
        return lambda: Folder(path)
    from oncemore.artifacts.object_store import Bucket

    bucket = Bucket(told)
    return lambda: bucket


def _with_artifacts(
    opens: Callable[[], Store], url: str, place: Callable[[], Place] | None
) -> Callable[[], Store]:
    """Return what opens a store, and refuses to create one whose artifacts are there already."""

    def checked() -> Store:
        folder = place() if place is not None and url.startswith(SQLITE) else None
        if isinstance(folder, Folder) and folder.has_signature(url):
            path = Path(url.removeprefix(SQLITE))
            if not path.exists():
                from oncemore.log.sqlite.files import companions_alone

                raise companions_alone(path, [folder.root.name])
        return opens()

    return checked


def _sqlite(path: Path) -> Store:
    from oncemore.log.sqlite.store import SqliteStore

    new = not path.exists()
    if new and path.parent.name == ".oncemore" and not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    store = SqliteStore(path)
    if new:
        log.warning("oncemore: created a new store, %s", path)
    return store


def _postgres(url: str) -> Store:
    from oncemore.log.postgres.store import PostgresStore

    return PostgresStore(url)


def _nats(url: str) -> Store:
    from oncemore.log.nats.store import NatsStore

    return NatsStore(url)


def _listener(on_event: Callable[[Event], object]) -> Callable[[str, Any], object]:
    """Return who makes an event of what a call tells."""

    def hear(what: str, seen: Any) -> object:
        from oncemore.audit.events import CircuitChanged, ConfigDrift, StoreSize, rfc3339

        if what == StoreSize.event_type:
            about = (seen.what, seen.bytes, seen.limit, seen.advice)
            return on_event(StoreSize("STORE", *about, None, None, None, rfc3339(clocks.current.wall())))
        if what.startswith("circuit_"):
            at = seen.run
            shut = at.state != "CLOSED"
            told = (at.name, what, at.state, shut, at.failures, at.opens, at.code)
            until = rfc3339(at.until) if shut else None
            return on_event(
                CircuitChanged("BREAKER", *told, until, None, None, None, rfc3339(clocks.current.wall()))
            )
        assert what == ConfigDrift.event_type
        run, key = seen.run, seen.entity.removeprefix("run/")
        ids = (run.tenant or None, run.correlation_id or None, None)
        return on_event(
            ConfigDrift(
                "STEP",
                run.step,
                key,
                run.cfg_hash,
                *ids,
                rfc3339(clocks.current.wall()),
                policy=run.policy or None,
            )
        )

    return hear


# Which engine ------------------------------------------------------------------------------------------

_lock = Lock()
_known: dict[tuple[Any, ...], Engine] = {}


def chosen(engine: Engine | None = None) -> Engine:
    """Return the engine of a call: its own, that of the innermost `with engine:`, or that of the settings."""
    return engine or innermost() or _default()


def _default() -> Engine:
    where = (os.getcwd(), *map(os.environ.get, NAMES.values()))  # noqa: PTH109 - a Path costs more than all else here
    engine = _known.get(where)
    if engine is None:
        with _lock:
            engine = _known.get(where)
            if engine is None:
                engine = _known[where] = engine_of(settings())
    return engine


def engine_of(told: Settings) -> Engine:
    """Return the engine of settings: one per store, wherever it is asked for from."""
    made = open(
        told.store,
        codec=_codec(told.codec) if told.codec else None,
        lease_s=told.lease_s,
        max_inline_wait_s=told.max_inline_wait_s,
        artifacts=told.artifacts or None,
        notify=_read_notify(told.notify),
        notify_every_s=told.notify_every_s,
        notify_of=told.notify_of,
        copies=told.copies,
        warn_file_mb=told.warn_file_mb,
        warn_wal_mb=told.warn_wal_mb,
        warn_left_mb=told.warn_left_mb,
        control=told.control or None,
    )
    for engine in _known.values():
        if _same(engine) == _same(made):
            return engine
    return made


def _codec(address: str) -> Any:
    """Return the codec, or several, that package.module:name is, or that it returns when it is called."""
    from importlib import import_module

    module, colon, name = address.partition(":")
    try:
        found = getattr(import_module(module), name) if module and colon and name else None
    except (ImportError, AttributeError) as fault:
        raise UsageError(f"codec is {address!r}, which cannot be had: {fault}") from fault
    if found is None:
        raise UsageError(f"codec is {address!r}; it takes package.module:name")
    return found() if callable(found) and not hasattr(found, "encode") else found


def _same(engine: Engine) -> tuple[Any, ...]:
    """Return what makes two engines of the settings one."""
    place = engine.shelf.place.url if engine.shelf.there else ""
    notices = engine.notices
    told = notices and (tuple(notices.sinks), notices.every_s, notices.about)
    seal = engine.seal and engine.seal.codecs
    return engine.url, engine.lease_s, engine.inline_wait_s, place, told, seal, engine.controls.where


def _read_notify(told: str) -> Any:
    """Return the sinks of a setting: one address, or a list in JSON."""
    if not told.lstrip().startswith("["):
        return told
    import json

    try:
        return json.loads(told)
    except ValueError as fault:
        raise UsageError(f"{NAMES['notify']} is no list in JSON: {fault}") from None


def default_policy() -> str:
    """Return the policy of steps that name none; one that does not exist is refused by who named it."""
    name = settings(given=NAMES.keys() - {"policy"}).policy
    if name not in (Settings._field_defaults["policy"], POLICY_REQUIRED):
        from oncemore.policy.files.loader import quiet_policy

        try:
            quiet_policy(name)
        except PolicyError as error:
            variable, file = NAMES["policy"], root_of(Path.cwd().resolve())[1]
            raise PolicyError(f"{variable if os.environ.get(variable) else file}: {error}") from None
    return name


def _close_all() -> None:
    for engine in set(_known.values()):
        engine.close()


atexit.register(_close_all)
