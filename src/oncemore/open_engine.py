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
from oncemore.artifacts.backends import FolderBackend, MemoryBackend
from oncemore.config import (
    INLINE_WAIT_S,
    LEASE_S,
    MEMORY,
    NAMES,
    NOTIFY_EVERY_S,
    POLICY_REQUIRED,
    SQLITE,
    EngineSettings,
    artifact_folder,
    find_project_root,
    load_settings,
    match_scheme,
    parse_number,
)
from oncemore.errors import PolicyError, UsageError
from oncemore.maintenance.size_warning import DEFAULT_LIMITS, SizeLimits
from oncemore.steps.engine import Engine, log
from oncemore.steps.entered_engine import current_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.artifacts.backends import ArtifactBackend
    from oncemore.audit.events import AuditEvent
    from oncemore.control.notifications import Notifier
    from oncemore.log.encryption import Codec
    from oncemore.log.store import Store


def open(  # noqa: A001 - read as oncemore.open
    url: str | os.PathLike[str],
    *,
    lease_s: float | None = None,
    max_inline_wait_s: float | None = None,
    on_event: Callable[[AuditEvent], object] | None = None,
    artifacts: str | os.PathLike[str] | None = None,
    notify: Sequence[Any] | Mapping[str, Any] | str | None = None,
    notify_every_s: float | None = None,
    notify_of: str = "all",
    codec: Codec | Sequence[Codec] | None = None,
    restored_copy: str = "hold",
    warn_file_mb: float | None = None,
    warn_wal_mb: float | None = None,
    warn_left_mb: float | None = None,
    control: Any = None,
) -> Engine:
    """Return an engine on a store; nothing is opened or created before it is used.

    url                what kind of store, and where; a path stands for a SQLite file
    lease_s            how long this process keeps its runs after its last sign of life (60)
    max_inline_wait_s  the longest wait that a call sits out; what is due later raises `Deferred` (60)
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
    restored_copy      "hold": on a store that was copied or restored nothing but `pure` steps runs before
                       somebody has acknowledged it; "trust": it is taken for the original
    warn_…_mb          say once when the store is larger than this (10240), when its write-ahead file is and
                       cannot be emptied (256), when the disk has less left (256); 0 for never
    control            where switches and approvals are kept besides the store: nats://host:port/bucket; it is
                       asked before every attempt, and what it cannot answer means no
    """
    if not isinstance(url, str | os.PathLike):
        raise UsageError(f"url is {describe_value(url)}; it takes a text or a path")
    opens, told = _store_opener(str(os.fspath(url)))
    place = _artifact_opener(told, artifacts)
    engine = Engine(
        _with_artifacts(opens, told, place),
        told,
        lease_s=LEASE_S if lease_s is None else parse_number("lease_s", lease_s, "lease_s"),
        inline_wait_s=INLINE_WAIT_S
        if max_inline_wait_s is None
        else parse_number("max_inline_wait_s", max_inline_wait_s, "max_inline_wait_s"),
        on_event=None if on_event is None else _event_listener(on_event),
        place=place,
        notices=_make_notifier(
            notify, NOTIFY_EVERY_S if notify_every_s is None else notify_every_s, notify_of
        ),
        codec=codec,
        restored_copy=restored_copy,
        warn=SizeLimits(
            *(
                limit if told is None else parse_number(f"warn_{name}_mb", told, f"warn_{name}_mb")
                for name, limit, told in zip(
                    SizeLimits._fields, DEFAULT_LIMITS, (warn_file_mb, warn_wal_mb, warn_left_mb), strict=True
                )
            )
        ),
        control=_open_external_switches(control),
    )
    if told != MEMORY:
        where = None if artifacts is None else _absolute_artifact_url(str(os.fspath(artifacts)))
        engine.open_arguments = (
            told if told.startswith(SQLITE) else str(url),
            {
                "lease_s": lease_s,
                "max_inline_wait_s": max_inline_wait_s,
                "artifacts": where,
                "notify": notify,
                "notify_every_s": notify_every_s,
                "notify_of": notify_of,
                "codec": codec,
                "restored_copy": restored_copy,
                "warn_file_mb": warn_file_mb,
                "warn_wal_mb": warn_wal_mb,
                "warn_left_mb": warn_left_mb,
                "control": control,
            },
        )
        engine.reopen = partial(open, engine.open_arguments[0], **engine.open_arguments[1])
    return engine


def _absolute_artifact_url(place: str) -> str:
    """Return the address of a place for artifacts as it holds in any working directory."""
    return place if place == MEMORY or "://" in place else str(Path(place).expanduser().absolute())


def _open_external_switches(control: Any) -> Any:
    if not control:
        return None
    from oncemore.control.nats_switches import make_external_switches

    return make_external_switches(control)


def _make_notifier(notify: Any, every_s: float, about: str) -> Notifier | None:
    """Return who is told of what is held or has failed, or None."""
    every_s = parse_number("notify_every_s", every_s, "notify_every_s")
    if not notify:
        return None
    from oncemore.audit.error_record import error_to_record
    from oncemore.classifiers.classify import classify, ensure_plugins_loaded
    from oncemore.control.notifications import Notifier
    from oncemore.messaging.sink_urls import parse_sinks

    ensure_plugins_loaded()
    return Notifier(
        parse_sinks(notify), classify=classify, describe=error_to_record, every_s=every_s, about=about
    )


def _store_opener(url: str) -> tuple[Callable[[], Store], str]:
    """Return what opens a store, and what it is called."""
    if url == MEMORY:
        from oncemore.log.memory import MemoryStore

        class PersistentMemoryStore(MemoryStore):
            """Stays when its engine is closed: an engine that is used again finds what it had."""

            def close(self) -> None:
                """Forget nothing."""

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
    return lambda: _open_sqlite(path), f"{SQLITE}{path}"


def _check_file_locks(url: str) -> None:
    """Refuse a file store on a platform whose file locks this package cannot use."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        raise UsageError(
            f"{url!r} is a file, and a file store needs POSIX file locks (the module fcntl): it is supported "
            "on Linux. Here, take a server (postgresql://…, nats://…), or memory: for tests"
        ) from None


def _artifact_opener(
    store: str, artifacts: str | os.PathLike[str] | None
) -> Callable[[], ArtifactBackend] | None:
    """Return what opens the place of artifacts; None where a store has no folder and nobody named one."""
    if artifacts is not None and not isinstance(artifacts, str | os.PathLike):
        raise UsageError(
            f"artifacts is {describe_value(artifacts)}; it takes a folder or the address of object storage"
        )
    told = "" if artifacts is None else str(os.fspath(artifacts))
    if told == MEMORY or (not told and store == MEMORY):
        memory = MemoryBackend()
        return lambda: memory
    if not told and not store.startswith(SQLITE):
        return None
    path = artifact_folder(store, told)
    if path is not None:
        return lambda: FolderBackend(path)
    from oncemore.artifacts.object_store import BucketBackend

    bucket = BucketBackend(told)
    return lambda: bucket


def _with_artifacts(
    opens: Callable[[], Store], url: str, place: Callable[[], ArtifactBackend] | None
) -> Callable[[], Store]:
    """Return what opens a store, and refuses to create one whose artifacts are there already."""

    def checked() -> Store:
        folder = place() if place is not None and url.startswith(SQLITE) else None
        if isinstance(folder, FolderBackend) and folder.is_registered(url):
            path = Path(url.removeprefix(SQLITE))
            if not path.exists():
                from oncemore.log.sqlite.files import companions_alone

                raise companions_alone(path, [folder.root.name])
        return opens()

    return checked


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


def _event_listener(on_event: Callable[[AuditEvent], object]) -> Callable[[str, Any], object]:
    """Return who makes an event of what a call tells."""

    def hear(what: str, seen: Any) -> object:
        from oncemore.audit.events import CircuitChanged, ConfigDrift, StoreSize, format_rfc3339

        if what == StoreSize.event_type:
            return on_event(
                StoreSize(
                    retry_category="STORE",
                    operation=seen.what,
                    size_bytes=seen.bytes,
                    limit_bytes=seen.limit,
                    advice=seen.advice,
                    tenant_id=None,
                    correlation_id=None,
                    trace_id=None,
                    timestamp=format_rfc3339(clocks.current.wall()),
                )
            )
        if what.startswith("circuit_"):
            at = seen.record
            shut = at.state != "CLOSED"
            return on_event(
                CircuitChanged(
                    retry_category="BREAKER",
                    operation=at.name,
                    what=what,
                    state=at.state,
                    circuit_open=shut,
                    failures=at.failures,
                    opens=at.open_count,
                    error_class=at.last_error_code,
                    until=format_rfc3339(at.open_until) if shut else None,
                    tenant_id=None,
                    correlation_id=None,
                    trace_id=None,
                    timestamp=format_rfc3339(clocks.current.wall()),
                )
            )
        assert what == ConfigDrift.event_type
        run, key = seen.record, seen.entity.removeprefix("run/")
        return on_event(
            ConfigDrift(
                retry_category="STEP",
                operation=run.step,
                idempotency_key=key,
                stored_cfg_hash=run.cfg_hash,
                tenant_id=run.tenant or None,
                correlation_id=run.correlation_id or None,
                trace_id=None,
                timestamp=format_rfc3339(clocks.current.wall()),
                policy=run.policy or None,
            )
        )

    return hear


# Which engine ------------------------------------------------------------------------------------------

_lock = Lock()
_known: dict[tuple[Any, ...], Engine] = {}


def find_engine(engine: Engine | None = None) -> Engine:
    """Return the engine of a call: its own, that of the innermost `with engine:`, or that of the settings."""
    return engine or current_engine() or _default_engine()


def _default_engine() -> Engine:
    where = (os.getcwd(), *map(os.environ.get, NAMES.values()))  # noqa: PTH109 - a Path costs more than all else here
    engine = _known.get(where)
    if engine is None:
        with _lock:
            engine = _known.get(where)
            if engine is None:
                engine = _known[where] = engine_from_settings(load_settings())
    return engine


def engine_from_settings(told: EngineSettings) -> Engine:
    """Return the engine of settings: one per store, wherever it is asked for from."""
    made = open(
        told.store,
        codec=_load_codec(told.codec) if told.codec else None,
        lease_s=told.lease_s,
        max_inline_wait_s=told.max_inline_wait_s,
        artifacts=told.artifacts or None,
        notify=_parse_notify(told.notify),
        notify_every_s=told.notify_every_s,
        notify_of=told.notify_of,
        restored_copy=told.restored_copy,
        warn_file_mb=told.warn_file_mb,
        warn_wal_mb=told.warn_wal_mb,
        warn_left_mb=told.warn_left_mb,
        control=told.control or None,
    )
    for engine in _known.values():
        if _engine_cache_key(engine) == _engine_cache_key(made):
            return engine
    return made


def _load_codec(address: str) -> Any:
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


def _engine_cache_key(engine: Engine) -> tuple[Any, ...]:
    """Return what makes two engines of the settings one."""
    place = engine.artifact_store.backend.url if engine.artifact_store.is_configured else ""
    notices = engine.notifier
    told = notices and (tuple(notices.sinks), notices.every_s, notices.about)
    seal = engine.cipher and engine.cipher.all_codecs
    return engine.url, engine.lease_s, engine.inline_wait_s, place, told, seal, engine.permissions.external_id


def _parse_notify(told: str) -> Any:
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
    name = load_settings(given=NAMES.keys() - {"policy"}).policy
    if name not in (EngineSettings._field_defaults["policy"], POLICY_REQUIRED):
        from oncemore.policy.files.loader import load_policy_no_warnings

        try:
            load_policy_no_warnings(name)
        except PolicyError as error:
            variable, file = NAMES["policy"], find_project_root(Path.cwd().resolve())[1]
            raise PolicyError(f"{variable if os.environ.get(variable) else file}: {error}") from None
    return name


def _close_engines() -> None:
    for engine in set(_known.values()):
        engine.close()


atexit.register(_close_engines)
