"""Settings: their names, defaults and bounds, and how they are read.

Settings of durable steps come, in this order, from ONCEMORE_* in the environment, from `oncemore.toml` or
`[tool.oncemore]` in `pyproject.toml` of the nearest parent folder, and from the defaults in `EngineSettings`.
Arguments of `oncemore.open` override all of them.

    store              ONCEMORE_STORE              .oncemore/log.db beside that file, or beside `.git`
    lease_s            ONCEMORE_LEASE_S            60
    max_inline_wait_s  ONCEMORE_MAX_INLINE_WAIT_S  60
    policy             ONCEMORE_POLICY             standard; required: refuse steps without a policy
    artifacts          ONCEMORE_ARTIFACTS          artifacts/ beside the log's file
    notify             ONCEMORE_NOTIFY             none; receivers of notifications about held and failed runs
    notify_of          ONCEMORE_NOTIFY_OF          all; or holds, or failures
    notify_every_s     ONCEMORE_NOTIFY_EVERY_S     300
    restored_copy      ONCEMORE_RESTORED_COPY      hold; or trust: treatment of a copied or restored store
    codec              ONCEMORE_CODEC              none; package.module:name of the encryption of bodies
    warn_file_mb       ONCEMORE_WARN_FILE_MB       10240
    warn_wal_mb        ONCEMORE_WARN_WAL_MB        256
    warn_left_mb       ONCEMORE_WARN_LEFT_MB       256
    control            ONCEMORE_CONTROL            none; the address of external switches and approvals
    policy_signers     ONCEMORE_POLICY_SIGNERS     none; the file of the keys that may sign policy files
    policy_threshold   ONCEMORE_POLICY_THRESHOLD   1; how many different keys must have signed one
    policy_sigstore    ONCEMORE_POLICY_SIGSTORE    none; the file of identities that may sign by Sigstore
    ledger_key         ONCEMORE_LEDGER_KEY         none; the file of the private key that signs checkpoints
    ledger_copy        ONCEMORE_LEDGER_COPY        none; the second place of checkpoints
    ledger_every_s     ONCEMORE_LEDGER_EVERY_S     3600; the interval at which a worker makes checkpoints
    energy             ONCEMORE_ENERGY             cpu_time; how energy is measured; or a table
    signals            ONCEMORE_SIGNALS            none; a table of the sources of signals

Two settings concern `oncemore.retry` and policy files too, and come from the environment only:

    ONCEMORE_RETRY        on | off   "off": `oncemore.retry` makes one attempt and does not wait
    ONCEMORE_POLICY_ROOT  a folder   its *.yaml, and those in retry-loop/policies below it, are known by name

A settings file that another user controls (`_file_trust.py`) is ignored with a warning. If it sets where work
is recorded, encrypted or stopped, it is a `UsageError`, unless the environment or the caller gives those
settings: to continue without them would be wrong as well.

`oncemore.retry` imports this module: everything else than the standard library's `os` is imported at first
use.
"""

from __future__ import annotations

import os

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Collection
    from pathlib import Path
    from typing import Any

LEASE_S, SHORTEST_LEASE_S, LONGEST_LEASE_S = 60.0, 0.05, 86_400.0
#: Renewals of a lease within its length: two may fail before it expires.
HEARTBEATS_PER_LEASE = 3
INLINE_WAIT_S = 60.0
RESTORED_COPY_CHOICES = ("hold", "trust")
NOTIFY_EVERY_S, LONGEST_NOTIFY_EVERY_S = 300.0, 86_400.0
NOTIFY_OF = ("all", "holds", "failures")
LEDGER_EVERY_S, SHORTEST_LEDGER_S, LONGEST_LEDGER_S = 3600.0, 1.0, 30 * 86_400.0
#: Sizes in MiB at which a warning is logged: of the store, of its write-ahead file, of the free disk space.
WARN_FILE_MB, WARN_WAL_MB, WARN_LEFT_MB = 10_240.0, 256.0, 256.0
MAX_POLICY_THRESHOLD = 16.0
#: The value of the setting `policy` that refuses steps without a policy of their own (PROD-10).
POLICY_REQUIRED = "required"

#: Files that mark the root of a project, in this order.
MARKS = ("oncemore.toml", "pyproject.toml", ".git")
SQLITE, MEMORY = "sqlite:///", "memory:"


class EngineSettings(Value):
    """The settings of an engine, with their defaults."""

    store: str
    lease_s: float = LEASE_S
    max_inline_wait_s: float = INLINE_WAIT_S
    policy: str = "standard"
    artifacts: str = ""
    notify: str = ""
    notify_every_s: float = NOTIFY_EVERY_S
    notify_of: str = "all"
    restored_copy: str = "hold"
    codec: str = ""
    warn_file_mb: float = WARN_FILE_MB
    warn_wal_mb: float = WARN_WAL_MB
    warn_left_mb: float = WARN_LEFT_MB
    control: str = ""
    policy_signers: str = ""
    policy_threshold: float = 1.0
    policy_sigstore: str = ""
    ledger_key: str = ""
    ledger_copy: str = ""
    ledger_every_s: float = LEDGER_EVERY_S
    energy: str = ""
    signals: str = ""


#: The allowed texts of a setting, where not every text is allowed.
_CHOICES = {"restored_copy": RESTORED_COPY_CHOICES, "notify_of": NOTIFY_OF}

#: The smallest and the largest value of a setting that is a number.
RANGES = {
    "lease_s": (SHORTEST_LEASE_S, LONGEST_LEASE_S),
    "max_inline_wait_s": (0.0, LONGEST_LEASE_S),
    "notify_every_s": (0.0, LONGEST_NOTIFY_EVERY_S),
    "ledger_every_s": (SHORTEST_LEDGER_S, LONGEST_LEDGER_S),
    "warn_file_mb": (0.0, 1e9),
    "warn_wal_mb": (0.0, 1e9),
    "warn_left_mb": (0.0, 1e9),
    "policy_threshold": (1.0, MAX_POLICY_THRESHOLD),
}
NAMES = {field: f"ONCEMORE_{field.upper()}" for field in EngineSettings._fields}
#: Settings without which work would be recorded elsewhere, in plain text, past its switches, or under a
#: policy that too few keys have signed.
ESSENTIAL = ("store", "artifacts", "codec", "control", "policy_threshold")

_SWITCH = {"": True, "on": True, "off": False}


def are_retries_enabled() -> bool:
    """Return False if ONCEMORE_RETRY is off: `oncemore.retry` then makes one attempt."""
    value = os.environ.get("ONCEMORE_RETRY")
    if value is None:
        return True
    try:
        return _SWITCH[value.strip().lower()]
    except KeyError:
        raise UsageError(f"ONCEMORE_RETRY is {value!r}; it must be on or off") from None


def policy_root() -> str | None:
    """Return the folder of policy files that are known by name (ONCEMORE_POLICY_ROOT), or None."""
    return os.environ.get("ONCEMORE_POLICY_ROOT") or None


def load_settings(start: Path | None = None, given: Collection[str] = ()) -> EngineSettings:
    """Return the settings of a folder: environment, then file, then defaults.

    given  names of settings that the caller gives itself
    """
    from pathlib import Path

    root, file = find_project_root((start or Path.cwd()).resolve())
    in_file = _read_settings_file(file, given) if file is not None else {}
    values: dict[str, Any] = {"store": str(root / ".oncemore" / "log.db")}
    for field, variable in NAMES.items():
        if (text := os.environ.get(variable, "")) != "":
            values[field] = _parse_value(field, text, variable)
        elif field in in_file and field == "notify":
            values[field] = _notify_setting(in_file[field], f"{file}: {field}", root)
        elif field in in_file and field in ("energy", "signals"):
            values[field] = _table_setting(field, in_file[field], f"{file}: {field}", root)
        elif field in in_file:
            values[field] = _parse_value(field, in_file[field], f"{file}: {field}")
            # Paths in a file are relative to it, and not to the working directory.
            if field in ("store", "artifacts", "ledger_key", "ledger_copy"):
                values[field] = _resolve_store_url(root, values[field])
            elif field in ("policy_signers", "policy_sigstore") and values[field]:
                values[field] = str(root / Path(values[field]).expanduser())
    return EngineSettings(**values)


def _notify_setting(sinks: Any, where: str, root: Path) -> str:
    """Return the sinks of a file in the form of ONCEMORE_NOTIFY: checked, as JSON, with absolute paths."""
    import json

    from oncemore.messaging.sink_urls import parse_sinks

    parse_sinks(sinks, where, root)
    if isinstance(sinks, str):
        sinks = [sinks]
    return json.dumps([_resolve_path(each, root) for each in sinks])


def _table_setting(field: str, table: Any, where: str, root: Path) -> str:
    """Return a table of a file in the form of its variable: checked, as JSON, with absolute paths."""
    import json

    from oncemore.telemetry.energy import parse_model
    from oncemore.telemetry.signal_sources import describe_sources, parse_sources

    if field == "energy":
        return json.dumps(parse_model(table, where)._asdict())
    return json.dumps(describe_sources(parse_sources(table, where, root)))


def _resolve_path(sink: Any, root: Path) -> Any:
    """Return a sink with absolute paths of its file and its signing keys."""
    from pathlib import Path

    if isinstance(sink, str) and sink.startswith("file:"):
        sink = {"file": sink.removeprefix("file://").removeprefix("file:")}
    if isinstance(sink, dict) and "file" in sink:
        return {**sink, "file": str(root / Path(sink["file"]).expanduser())}
    if isinstance(sink, dict) and "signing_key" in sink:
        keys = sink["signing_key"]
        places = [_resolve_key(place, root) for place in (keys if isinstance(keys, list) else [keys])]
        return {**sink, "signing_key": places}
    return sink


def _resolve_key(place: str, root: Path) -> str:
    """Return the place of a signing key with an absolute path; `env:` places stay as they are."""
    from pathlib import Path

    if not place.startswith("file:"):
        return place
    return f"file:{root / Path(place.removeprefix('file:')).expanduser()}"


def is_store_configured(start: Path | None = None) -> bool:
    """Return whether the environment or a settings file names a store."""
    from pathlib import Path

    if os.environ.get(NAMES["store"], "") != "":
        return True
    file = find_project_root((start or Path.cwd()).resolve())[1]
    return file is not None and "store" in _read_settings_file(file, NAMES.keys() - {"store"})


def find_project_root(start: Path) -> tuple[Path, Path | None]:
    """Return the nearest parent folder with one of `MARKS`, and its settings file if it has one."""
    for folder in (start, *start.parents):
        for mark in MARKS:
            if (folder / mark).exists():
                return folder, folder / mark if mark.endswith(".toml") else None
    return start, None


def _read_settings_file(file: Path, given: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings in a file; those of an untrusted file are ignored or refused."""
    from oncemore._file_trust import read_file

    fault = ""
    try:
        content, fault = read_file(file)
        values = _parse_settings(file, content)
    except UsageError:
        # An error in a trusted file is the user's; in an untrusted one it must not stop the program.
        if not fault:
            raise
        values = {}
        _warn_once(f"{file} is ignored, because {fault}.")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if fault and values:
        _ignore_settings(file, values, fault, given)
        return {}
    return values


def _parse_settings(file: Path, content: bytes) -> dict[str, Any]:
    """Return the settings in a file; refuse a file that is not TOML, or that sets an unknown name."""
    import tomllib

    from oncemore._redact import describe_value

    try:
        values: dict[str, Any] = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if file.name == "pyproject.toml":
        tools = values.get("tool", {})
        values = tools.get("oncemore", {}) if isinstance(tools, dict) else {}
        if not isinstance(values, dict):
            raise UsageError(
                f"{file}: tool.oncemore is {describe_value(values)}; it takes a table of settings"
            )
        # The table `tool.oncemore.lint` belongs to the linter, which reads it by itself.
        values = {name: value for name, value in values.items() if name != "lint"}
    for name in values:
        if name not in EngineSettings._fields:
            raise UsageError(
                f"{file}: oncemore has no setting {name!r}; it has {', '.join(EngineSettings._fields)}"
            )
    return values


def _ignore_settings(file: Path, values: dict[str, Any], fault: str, given: Collection[str]) -> None:
    """Warn that a file is ignored; raise `UsageError` if it has an essential setting."""
    remedy = (
        f"Give {file} and the folders above it to yourself or to root and take away the permission of other "
        "users to write to them (chown, chmod go-w), or set ONCEMORE_* variables instead."
    )
    absent = [name for name in ESSENTIAL if name not in given and not os.environ.get(NAMES[name])]
    needed = [name for name in absent if name in values]
    if needed:
        variables = ", ".join(NAMES[name] for name in needed)
        raise UsageError(
            f"{file} is not used, because {fault}; it sets {', '.join(needed)}, and without that work "
            f"would not be recorded or protected as before. {remedy} Needed here: {variables}."
        )
    _warn_once(f"{file} is ignored ({', '.join(values)}), because {fault}. {remedy}")


#: Warnings that were logged: settings are read at every call of a step.
_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        import logging

        logging.getLogger("oncemore").warning("oncemore: %s", text)


def artifact_folder(store: str, artifacts: str) -> Path | None:
    """Return the folder of a store's artifacts; None if they are in memory or in a bucket, or unset."""
    from pathlib import Path

    if artifacts == MEMORY or (not artifacts and not store.startswith(SQLITE)):
        return None
    folder = artifacts.removeprefix("file://") or str(Path(store.removeprefix(SQLITE)).parent / "artifacts")
    return None if "://" in folder else Path(folder).expanduser().absolute()


def _resolve_store_url(root: Path, url: str) -> str:
    """Return a store's address with an absolute path, relative to the folder of the settings file."""
    from pathlib import Path

    if match_scheme(url) is not None and not url.startswith(SQLITE):
        return url
    return str(root / Path(url.removeprefix(SQLITE)).expanduser())


def match_scheme(url: str) -> re.Match[str] | None:
    """Return the match of an address that is not a file path: a scheme, or a misspelt `sqlite:`."""
    import re

    return re.match(
        r"[A-Za-z][A-Za-z0-9+.-]+://|(?i:sqlite3?|memory|postgres(?:ql)?|mysql|mariadb):/{0,2}", url
    )


def _parse_value(field: str, value: Any, where: str) -> Any:
    """Return a checked value; `where` names its variable or its place in a file."""
    if field not in RANGES:
        if not isinstance(value, str):
            from oncemore._redact import describe_value

            raise UsageError(f"{where} is {describe_value(value)}; it takes a text")
        choices = _CHOICES.get(field)
        if choices is not None and value not in choices:
            raise UsageError(f"{where} is {value!r}; the choices are {', '.join(choices)}")
        return value
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = value
    return parse_number(field, number, where)


def parse_number(field: str, value: Any, where: str) -> float:
    """Return the value as a float; raise `UsageError` unless it is a number in the setting's range."""
    least, most = RANGES[field]
    # `bool` is a subclass of `int`: `true` in a file must not be read as 1.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        unit = " seconds" if field.endswith("_s") else " MiB" if field.endswith("_mb") else ""
        raise UsageError(f"{where} is {value!r}; it takes {least:g} to {most:g}{unit}, as a number")
    return float(value)
