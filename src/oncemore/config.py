"""Which settings hold in a folder, and where each of them comes from.

They come, in this order, from ONCEMORE_* in the environment, from `oncemore.toml` or `[tool.oncemore]` in
`pyproject.toml` of the nearest folder upwards, and from the defaults:

    store              ONCEMORE_STORE              .oncemore/log.db beside that file, or beside `.git`
    lease_s            ONCEMORE_LEASE_S            60
    max_inline_wait_s  ONCEMORE_MAX_INLINE_WAIT_S  60
    policy             ONCEMORE_POLICY             standard; of steps that name none (required: refuse them)
    artifacts          ONCEMORE_ARTIFACTS          artifacts/ beside the log's file
    notify             ONCEMORE_NOTIFY             nobody; who is told of what is held or has failed
    notify_of          ONCEMORE_NOTIFY_OF          all; or holds, or failures
    notify_every_s     ONCEMORE_NOTIFY_EVERY_S     300
    restored_copy             ONCEMORE_RESTORED_COPY             hold; what a copied or restored store may do
    codec              ONCEMORE_CODEC              none; package.module:name of what seals bodies
    warn_file_mb       ONCEMORE_WARN_FILE_MB       10240
    warn_wal_mb        ONCEMORE_WARN_WAL_MB        256
    warn_left_mb       ONCEMORE_WARN_LEFT_MB       256
    control            ONCEMORE_CONTROL            none; where else switches and approvals are kept

A file that another user controls (`file_trust.py`) is ignored with a warning. If it sets where work is
recorded, sealed or stopped, going on without it would be wrong as well: that is a `UsageError`, unless the
environment or the caller gives those settings.

Only reading them is here, without an engine: whoever looks at a store needs no more than its address.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from oncemore._file_trust import read_file
from oncemore._redact import describe_value
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.settings import (
    INLINE_WAIT_S,
    LEASE_S,
    LONGEST_LEASE_S,
    LONGEST_NOTIFY_EVERY_S,
    NOTIFY_EVERY_S,
    NOTIFY_OF,
    RESTORED_COPY_CHOICES,
    SHORTEST_LEASE_S,
    WARN_FILE_MB,
    WARN_LEFT_MB,
    WARN_WAL_MB,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

MARKS = ("oncemore.toml", "pyproject.toml", ".git")
SQLITE, MEMORY = "sqlite:///", "memory:"
#: How an address of something else than a file begins; SQLite's is one of them unless it has three slashes.
NO_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|(?i:sqlite3?|memory|postgres(?:ql)?):/{0,2}")


class EngineSettings(Value):
    """What durable steps go by unless they are told otherwise."""

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


#: What a text may be, by its setting, where not every text is allowed.
_CHOICES = {"restored_copy": RESTORED_COPY_CHOICES, "notify_of": NOTIFY_OF}

#: What a number may be, by its setting.
RANGES = {
    "lease_s": (SHORTEST_LEASE_S, LONGEST_LEASE_S),
    "max_inline_wait_s": (0.0, LONGEST_LEASE_S),
    "notify_every_s": (0.0, LONGEST_NOTIFY_EVERY_S),
    "warn_file_mb": (0.0, 1e9),
    "warn_wal_mb": (0.0, 1e9),
    "warn_left_mb": (0.0, 1e9),
}
NAMES = {field: f"ONCEMORE_{field.upper()}" for field in EngineSettings._fields}
#: Settings without which work would be recorded elsewhere, in plain text, or past its switches.
ESSENTIAL = ("store", "artifacts", "codec", "control")


def load_settings(start: Path | None = None, given: Collection[str] = ()) -> EngineSettings:
    """Return the settings that hold in a folder: environment, then file, then defaults.

    given  names of settings that the caller does not take from here
    """
    root, file = find_project_root((start or Path.cwd()).resolve())
    told = _read_settings_file(file, given) if file is not None else {}
    values: dict[str, Any] = {"store": str(root / ".oncemore" / "log.db")}
    for field, variable in NAMES.items():
        if (text := os.environ.get(variable, "")) != "":
            values[field] = _parse_value(field, text, variable)
        elif field in told and field == "notify":
            values[field] = _notify_setting(told[field], f"{file}: {field}", root)
        elif field in told:
            values[field] = _parse_value(field, told[field], f"{file}: {field}")
            if field in ("store", "artifacts"):
                values[field] = _resolve_store_url(root, values[field])
    return EngineSettings(**values)


def _notify_setting(told: Any, where: str, root: Path) -> str:
    """Return a file's sinks as the environment has them: checked, and with paths that hold everywhere."""
    import json

    from oncemore.messaging.sink_urls import parse_sinks

    parse_sinks(told, where, root)
    if isinstance(told, str):
        told = [told]
    return json.dumps([_resolve_path(each, root) for each in told])


def _resolve_path(each: Any, root: Path) -> Any:
    if isinstance(each, str) and each.startswith("file:"):
        each = {"file": each.removeprefix("file://").removeprefix("file:")}
    if isinstance(each, dict) and "file" in each:
        return {**each, "file": str(root / Path(each["file"]).expanduser())}
    if isinstance(each, dict) and "signing_key" in each:
        told = each["signing_key"]
        places = [_root_key(place, root) for place in (told if isinstance(told, list) else [told])]
        return {**each, "signing_key": places}
    return each


def _root_key(place: str, root: Path) -> str:
    """Return where a key is, with a path that holds in every working folder."""
    if not place.startswith("file:"):
        return place
    return f"file:{root / Path(place.removeprefix('file:')).expanduser()}"


def is_store_configured(start: Path | None = None) -> bool:
    """Whether somebody chose a store: the environment or a file names one."""
    if os.environ.get(NAMES["store"], "") != "":
        return True
    file = find_project_root((start or Path.cwd()).resolve())[1]
    return file is not None and "store" in _read_settings_file(file, NAMES.keys() - {"store"})


def find_project_root(start: Path) -> tuple[Path, Path | None]:
    """Return the nearest folder upwards that is a project's, and its file of settings."""
    for folder in (start, *start.parents):
        for mark in MARKS:
            if (folder / mark).exists():
                return folder, folder / mark if mark.endswith(".toml") else None
    return start, None


def _read_settings_file(file: Path, given: Collection[str] = ()) -> dict[str, Any]:
    fault = ""
    try:
        content, fault = read_file(file)
        told = _parse_settings(file, content)
    except UsageError:
        if not fault:
            raise
        told = {}
        _warn_once(f"{file} is ignored, because {fault}.")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if fault and told:
        _ignore_settings(file, told, fault, given)
        return {}
    return told


def _parse_settings(file: Path, content: bytes) -> dict[str, Any]:
    """Return the settings in a file; refuse a file that is not TOML, or that sets an unknown name."""
    import tomllib

    try:
        told: dict[str, Any] = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if file.name == "pyproject.toml":
        tools = told.get("tool", {})
        told = tools.get("oncemore", {}) if isinstance(tools, dict) else {}
        if not isinstance(told, dict):
            raise UsageError(f"{file}: tool.oncemore is {describe_value(told)}; it takes a table of settings")
    for name in told:
        if name not in EngineSettings._fields:
            raise UsageError(
                f"{file}: oncemore has no setting {name!r}; it has {', '.join(EngineSettings._fields)}"
            )
    return told


def _ignore_settings(file: Path, told: dict[str, Any], fault: str, given: Collection[str]) -> None:
    """Warn that a file is ignored; refuse to go on without a setting that protects something."""
    remedy = (
        f"Give {file} and the folders above it to yourself or to root and take away the permission of other "
        "users to write to them (chown, chmod go-w), or set ONCEMORE_* variables instead."
    )
    absent = [name for name in ESSENTIAL if name not in given and not os.environ.get(NAMES[name])]
    needed = [name for name in absent if name in told]
    if needed:
        variables = ", ".join(NAMES[name] for name in needed)
        raise UsageError(
            f"{file} is not used, because {fault}; it sets {', '.join(needed)}, and without that work "
            f"would not be recorded or protected as before. {remedy} Needed here: {variables}."
        )
    _warn_once(f"{file} is ignored ({', '.join(told)}), because {fault}. {remedy}")


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        import logging

        logging.getLogger("oncemore").warning("oncemore: %s", text)


def artifact_folder(store: str, artifacts: str) -> Path | None:
    """Return the folder of a store's artifacts; None where they are in memory, in a bucket or nowhere."""
    if artifacts == MEMORY or (not artifacts and not store.startswith(SQLITE)):
        return None
    folder = artifacts.removeprefix("file://") or str(Path(store.removeprefix(SQLITE)).parent / "artifacts")
    return None if "://" in folder else Path(folder).expanduser().absolute()


def _resolve_store_url(root: Path, url: str) -> str:
    """Return an address as it is meant in a file: relative to the file's folder."""
    if NO_PATH.match(url) is not None and not url.startswith(SQLITE):
        return url
    return str(root / Path(url.removeprefix(SQLITE)).expanduser())


def _parse_value(field: str, value: Any, where: str) -> Any:
    if field not in RANGES:
        if not isinstance(value, str):
            raise UsageError(f"{where} is {describe_value(value)}; it takes a text")
        choices = _CHOICES.get(field)
        if choices is not None and value not in choices:
            raise UsageError(f"{where} is {value!r}; the choices are {', '.join(choices)}")
        return value
    try:
        told = float(value) if isinstance(value, str) else value
    except ValueError:
        told = value
    return parse_number(field, told, where)


def parse_number(field: str, value: Any, where: str) -> float:
    """Return a number that a setting may be; any other is refused by where it stands."""
    least, most = RANGES[field]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        unit = "seconds" if field.endswith("_s") else "MiB"
        raise UsageError(f"{where} is {value!r}; it takes {least:g} to {most:g} {unit}, as a number")
    return float(value)
