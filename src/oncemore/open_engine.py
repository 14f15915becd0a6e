"""`oncemore.open`, and the engine that a step uses without one.

    oncemore.open("sqlite:///state/log.db")     a file of this machine; four slashes for an absolute path
    oncemore.open("postgresql://host/database") a server, for several machines
    oncemore.open("mysql://host/database")      a MySQL or MariaDB server, likewise
    oncemore.open("nats://host/namespace")      a JetStream server or cluster, likewise
    oncemore.open("memory:")                    forgotten with the process; for tests

A step without its own engine (`work.bind(engine)`, `with engine:`) uses the engine of the settings
(`oncemore.config`).
"""

from __future__ import annotations

import atexit
import os
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from oncemore._redact import describe_value
from oncemore.artifacts.backends import FolderBackend, MemoryBackend
from oncemore.audit.recorder import make_step_listener
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
    parse_number,
)
from oncemore.errors import PolicyError, UsageError, log_warning
from oncemore.log.open_store import make_store_opener
from oncemore.maintenance.size_warning import DEFAULT_LIMITS, SizeLimits
from oncemore.steps.engine import Engine
from oncemore.steps.entered_engine import current_engine
from oncemore.telemetry.energy import parse_model
from oncemore.telemetry.meter import TelemetrySettings
from oncemore.telemetry.signal_sources import describe_sources, parse_sources

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
    notify_of: Literal["all", "holds", "failures"] = "all",
    codec: Codec | Sequence[Codec] | None = None,
    restored_copy: Literal["hold", "trust"] = "hold",
    warn_file_mb: float | None = None,
    warn_wal_mb: float | None = None,
    warn_left_mb: float | None = None,
    control: Any = None,
    energy: Mapping[str, Any] | str | None = None,
    signals: Mapping[str, Any] | None = None,
) -> Engine:
    """Return an engine on a store, for a `with` block; nothing is opened or created before it is used.

    url                the address of the store; a path stands for a SQLite file
    lease_s            how long this process holds its runs after its last heartbeat (60)
    max_inline_wait_s  the longest wait that a call sits out; a run that is due later raises `Deferred` (60)
    on_event           called with each event of interest about a call (`config_drift`, `circuit`)
    artifacts          the folder of artifacts (artifacts/ beside the log's file), or s3://bucket/prefix
    notify             receivers of notifications about quarantined runs and permanent failures: sinks, or
                       their addresses (`messaging.sink_urls`)
    notify_every_s     the time window in which a receiver gets at most two notifications about one step and
                       reason (300; 0: no limit)
    notify_of          "all", "holds" or "failures"
    codec              encrypts arguments, results, errors and events in the store: an object with an `id`,
                       `encode(bytes)` and `decode(bytes)`; of several, the first one encrypts; with
                       `EarlierBodies()` among them, plain bodies are read too
    restored_copy      "hold": on a copied or restored store only `pure` steps run before an operator has
                       acknowledged it; "trust": the copy counts as the original
    warn_…_mb          sizes at which a warning is logged once: the store, its write-ahead file, the free disk
                       space (10240, 256, 256); 0 for no warning
    control            a second source of switches and approvals: nats://host:port/bucket; it is asked before
                       every attempt, and an attempt does not begin without its answer
    energy, signals    how energy is measured, and sources of grid intensity, price and load: tables
    """
    if not isinstance(url, str | os.PathLike):
        raise UsageError(f"url is {describe_value(url)}; it takes a text or a path")
    opens, shown_url = make_store_opener(str(os.fspath(url)))
    place = _artifact_opener(shown_url, artifacts)
    _unused.add(shown_url)
    engine = Engine(
        _with_artifacts(opens, shown_url, place),
        shown_url,
        lease_s=_parse_seconds("lease_s", lease_s, LEASE_S),
        inline_wait_s=_parse_seconds("max_inline_wait_s", max_inline_wait_s, INLINE_WAIT_S),
        on_event=None if on_event is None else make_step_listener(on_event),
        place=place,
        notices=_make_notifier(
            notify, NOTIFY_EVERY_S if notify_every_s is None else notify_every_s, notify_of
        ),
        codec=codec,
        restored_copy=restored_copy,
        warn=SizeLimits(
            *(
                limit if given is None else parse_number(f"warn_{name}_mb", given, f"warn_{name}_mb")
                for name, limit, given in zip(
                    SizeLimits._fields, DEFAULT_LIMITS, (warn_file_mb, warn_wal_mb, warn_left_mb), strict=True
                )
            )
        ),
        control=_open_external_switches(control),
        telemetry=TelemetrySettings(parse_model(energy), parse_sources(signals)),
    )
    if shown_url != MEMORY:
        where = None if artifacts is None else _absolute_artifact_url(str(os.fspath(artifacts)))
        engine.open_arguments = (
            shown_url if shown_url.startswith(SQLITE) else str(url),
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
                "energy": energy,
                "signals": describe_sources(engine.telemetry.signals),
            },
        )
        engine.reopen = partial(open, engine.open_arguments[0], **engine.open_arguments[1])
    return engine


def _parse_seconds(name: str, given: float | None, default: float) -> float:
    return default if given is None else parse_number(name, given, name)


def _absolute_artifact_url(place: str) -> str:
    """Return the address of an artifact storage that is valid in any working directory."""
    return place if place == MEMORY or "://" in place else str(Path(place).expanduser().absolute())


def _open_external_switches(control: Any) -> Any:
    if not control:
        return None
    from oncemore.control.nats_switches import make_external_switches

    return make_external_switches(control)


def _make_notifier(notify: Any, every_s: float, about: str) -> Notifier | None:
    """Return the notifier of quarantined and failed runs, or None."""
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


def _artifact_opener(
    store: str, artifacts: str | os.PathLike[str] | None
) -> Callable[[], ArtifactBackend] | None:
    """Return the function that opens the artifact storage; None if there is none."""
    if artifacts is not None and not isinstance(artifacts, str | os.PathLike):
        raise UsageError(
            f"artifacts is {describe_value(artifacts)}; it takes a folder or the address of object storage"
        )
    address = "" if artifacts is None else str(os.fspath(artifacts))
    if address == MEMORY or (not address and store == MEMORY):
        memory = MemoryBackend()
        return lambda: memory
    if not address and not store.startswith(SQLITE):
        return None
    path = artifact_folder(store, address)
    if path is not None:
        return lambda: FolderBackend(path)
    from oncemore.artifacts.object_store import BucketBackend

    bucket = BucketBackend(address)
    return lambda: bucket


def _with_artifacts(
    opens: Callable[[], Store], url: str, place: Callable[[], ArtifactBackend] | None
) -> Callable[[], Store]:
    """Return the function that opens a store; it refuses to create one whose artifacts exist already."""

    def checked() -> Store:
        _unused.discard(url)
        folder = place() if place is not None and url.startswith(SQLITE) else None
        if isinstance(folder, FolderBackend) and folder.is_registered(url):
            path = Path(url.removeprefix(SQLITE))
            if not path.exists():
                from oncemore.log.sqlite.files import companions_alone

                raise companions_alone(path, [folder.root.name])
        return opens()

    return checked


# Which engine ------------------------------------------------------------------------------------------

_lock = Lock()
_known: dict[tuple[Any, ...], Engine] = {}
#: The stores that `open` was called for and that no call has used yet.
_unused: set[str] = set()


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
                unused = sorted(_unused)
                engine = _known[where] = engine_from_settings(load_settings())
                if unused and engine.url not in unused:
                    log_warning(
                        f"oncemore.open() was called for {', '.join(unused)} and not used, so this call uses "
                        f"{engine.url}; write `with oncemore.open(...):` around the calls"
                    )
    return engine


def engine_from_settings(settings: EngineSettings) -> Engine:
    """Return the engine of settings: one per store in this process."""
    new = open(
        settings.store,
        codec=_load_codec(settings.codec) if settings.codec else None,
        lease_s=settings.lease_s,
        max_inline_wait_s=settings.max_inline_wait_s,
        artifacts=settings.artifacts or None,
        notify=_parse_notify(settings.notify),
        notify_every_s=settings.notify_every_s,
        notify_of=settings.notify_of,  # type: ignore[arg-type] # checked below, as all settings are
        restored_copy=settings.restored_copy,  # type: ignore[arg-type]
        warn_file_mb=settings.warn_file_mb,
        warn_wal_mb=settings.warn_wal_mb,
        warn_left_mb=settings.warn_left_mb,
        control=settings.control or None,
        energy=_parse_table(settings.energy, "energy"),
        signals=_parse_table(settings.signals, "signals"),
    )
    for engine in _known.values():
        if _engine_cache_key(engine) == _engine_cache_key(new):
            return engine
    return new


def _load_codec(address: str) -> Any:
    """Return the codec at package.module:name, or the result of calling it; it may be several."""
    from importlib import import_module

    module, colon, name = address.partition(":")
    try:
        found = getattr(import_module(module), name) if module and colon and name else None
    except (ImportError, AttributeError) as fault:
        raise UsageError(f"codec is {address!r}, which cannot be imported: {fault}") from fault
    if found is None:
        raise UsageError(f"codec is {address!r}; it takes package.module:name")
    return found() if callable(found) and not hasattr(found, "encode") else found


def _engine_cache_key(engine: Engine) -> tuple[Any, ...]:
    """Return the values by which two engines of the settings are the same."""
    place = engine.artifact_store.backend.url if engine.artifact_store.is_configured else ""
    notifier = engine.notifier
    notified = notifier and (tuple(notifier.sinks), notifier.every_s, notifier.about)
    codecs = engine.cipher and engine.cipher.all_codecs
    external_id = engine.permissions.external_id
    identity = (engine.url, engine.lease_s, engine.inline_wait_s, place, notified, codecs, external_id)
    return *identity, engine.telemetry


def _parse_notify(setting: str) -> Any:
    """Return the sinks of a setting: one address, or a list in JSON."""
    if not setting.lstrip().startswith("["):
        return setting
    import json

    try:
        return json.loads(setting)
    except ValueError as fault:
        raise UsageError(f"{NAMES['notify']} is not a list in JSON: {fault}") from None


def _parse_table(setting: str, field: str) -> Any:
    """Return the table of a setting in JSON, or the text itself."""
    if not setting.lstrip().startswith("{"):
        return setting
    import json

    try:
        return json.loads(setting)
    except ValueError as fault:
        raise UsageError(f"{NAMES[field]} is not a table in JSON: {fault}") from None


def default_policy() -> str:
    """Return the policy of steps that name none; refuse an unknown one with the setting that names it."""
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
