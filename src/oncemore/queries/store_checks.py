"""Checks of a store itself: durability, files, permissions, clocks, schema and hash chains.

Each check returns `ok`, `warn` or `bad`, the observation, and advice. They read little: the files, the facts
that the store reports, and the end of the log.
"""

from __future__ import annotations

import time
from itertools import islice

from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.policy.explain import format_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.artifacts.backends import FolderBackend
    from oncemore.log.store import Store

OK, WARN, BAD = "ok", "warn", "bad"
MAX_HEADS = 10_000
CHAIN_ENTRIES = 2_000
#: Clocks that differ by more than this get a warning.
CLOCK_TOLERANCE_S = 5.0
LOW_DISK_BYTES, LARGE_WAL_BYTES = 1 << 30, 256 << 20

#: Notes of a store that deserve a warning: words in the note → the name of the check, and advice.
_NOTE_ADVICE = {
    "synchronous standby": ("standby", "set synchronous_standby_names, if you fail over to replicas"),
    "semi-synchronous replica": ("replica", "set rpl_semi_sync_master_enabled, if you fail over to replicas"),
    "never run with MySQL": ("server", "try your work with it first, or use MariaDB"),
    "one replica": ("replicas", "keep the log on three servers: ?replicas=3, in a cluster of three or more"),
    "were asked how they sync": ("monitoring", "?monitor=http://a:8222,http://b:8222,http://c:8222"),
}


class DoctorCheck(Value):
    """The result of one check: its name, its status, the observation, advice, and some examples."""

    name: str
    status: str
    observation: str
    advice: str = ""
    examples: tuple[str, ...] = ()


def format_count(count: int, singular: str, plural: str = "") -> str:
    """Return a count with its noun, such as "1 run" or "2,000 runs"."""
    return f"1 {singular}" if count == 1 else f"{count:,} {plural or singular + 's'}"


def check_storage(store: Store, artifacts: FolderBackend | None) -> Iterator[DoctorCheck]:
    """Yield all checks of this module."""
    yield from _check_durability(store)
    yield from _check_file(store)
    yield from _check_artifact_modes(artifacts)
    yield from _check_clock(store)
    yield from _check_schema(store)
    yield _check_chain(store)


def _check_durability(store: Store) -> Iterator[DoctorCheck]:
    facts = store.open_maintenance().describe_store()
    read_pragma = getattr(store, "read_pragma", None)  # only SQLite has it
    if read_pragma is not None:
        mode = read_pragma("journal_mode")
        if mode == "wal":
            yield DoctorCheck(
                "sync mode", OK, "write-ahead log; every INTENT and COMMIT waits for the disk (FULL)"
            )
        else:
            yield DoctorCheck(
                "sync mode",
                BAD,
                f"the journal mode is {mode}, not wal",
                "open the store once with a program that uses oncemore: it sets the mode, or reports why it "
                "cannot",
            )
        return
    # These words come from `describe_store` of the stores on servers.
    is_weak, is_unknown = "power loss can take away" in facts.durable, "unverified" in facts.durable
    advice = "correct this setting on the server" if is_weak else ""
    if is_unknown:
        advice = "name the server's monitoring port: ?monitor=http://host:8222"
    yield DoctorCheck("sync mode", BAD if is_weak else WARN if is_unknown else OK, facts.durable, advice)
    for note in facts.notes:
        for words, (name, note_advice) in _NOTE_ADVICE.items():
            if words in note:
                yield DoctorCheck(name, WARN, note, note_advice)


def _check_file(store: Store) -> Iterator[DoctorCheck]:
    path = getattr(store, "path", None)
    if path is None:
        return
    import os

    from oncemore.log.sqlite import machine
    from oncemore.log.sqlite.backup import COMPANIONS, find_companions
    from oncemore.log.sqlite.files import check_links

    file_system = machine.file_system_type(path.parent) or "unknown"
    disk = os.statvfs(path.parent)
    free = disk.f_bavail * disk.f_frsize
    observation = f"{file_system}, {free / (1 << 30):.1f} GB free"
    if free < LOW_DISK_BYTES:
        advice = "free some space: a full disk stops every step, but loses nothing"
        yield DoctorCheck("file system", WARN, observation, advice)
    else:
        yield DoctorCheck("file system", OK, observation)
    # A second hard link would give one database two sets of locks and write-ahead files.
    for suffix in ("", *COMPANIONS):
        try:
            check_links(path.with_name(path.name + suffix))
        except StoreError as error:
            yield DoctorCheck("links", BAD, str(error))
    exposed = [file for file in (path, *find_companions(path)) if file.stat().st_mode & 0o077]
    if exposed:
        yield DoctorCheck(
            "rights",
            WARN,
            f"users other than the owner may read or write {', '.join(file.name for file in exposed)}",
            f"{_chmod_command(exposed)}: these files hold arguments and results",
        )
    elif not os.access(path, os.W_OK):
        yield DoctorCheck(
            "rights",
            WARN,
            f"you may read {path.name}, but not write it",
            "repair it as the owner of the file",
        )
    space = store.open_maintenance().measure_space()
    observation = f"{space.file / 1e6:,.1f} MB, and {space.wal / 1e6:,.1f} MB in its write-ahead log"
    if space.wal > LARGE_WAL_BYTES:
        # SQLite cannot reset the write-ahead log while a reader still needs its pages.
        advice = "a process that keeps reading prevents emptying the write-ahead log; end that process"
        yield DoctorCheck("size", WARN, observation, advice)
    else:
        yield DoctorCheck("size", OK, observation)


def _chmod_command(paths: list[Path]) -> str:
    """Return the shell command that takes all permissions from other users."""
    modes = {"700": [str(path) for path in paths if path.is_dir()]}
    modes["600"] = [str(path) for path in paths if not path.is_dir()]
    return " && ".join(f"chmod {mode} {' '.join(names)}" for mode, names in sorted(modes.items()) if names)


def _check_artifact_modes(folder: FolderBackend | None) -> Iterator[DoctorCheck]:
    """Check the permissions of artifacts: large results and captured output are among them."""
    if folder is not None:
        exposed = list(islice(folder.find_open_paths(), MAX_HEADS))
        if exposed:
            yield DoctorCheck(
                "rights of artifacts",
                WARN,
                f"users other than the owner may read {format_count(len(exposed), 'path')} in {folder.url}",
                f"chmod -R go= {folder.url}",
                tuple(map(str, exposed[:5])),
            )


def _check_clock(store: Store) -> Iterator[DoctorCheck]:
    from oncemore.log.entry_codec import decode_header

    now = store.now()
    offset = now - time.time()
    direction = "ahead of" if offset > 0 else "behind"
    if abs(offset) > CLOCK_TOLERANCE_S:
        clocks = "of this machine" if hasattr(store, "path") else "of this machine and of the server"
        yield DoctorCheck(
            "clock",
            WARN,
            f"the store's time is {format_seconds(abs(offset))} {direction} this machine's",
            f"check the clock {clocks}; waiting runs become due by the store's time",
        )
    else:
        yield DoctorCheck("clock", OK, f"within {CLOCK_TOLERANCE_S:g} s of this machine's")
    # A hundred entries are enough: a clock that is ahead writes into the newest ones.
    last = store.wait_for_change(0, 0.0)
    times = [decode_header(entry.header).at for entry in store.read_entries(after=max(0, last - 100))]
    newest = max(times, default=now)
    if newest > now + CLOCK_TOLERANCE_S:
        yield DoctorCheck(
            "clock of the log",
            WARN,
            f"the last entries are up to {format_seconds(newest - now)} in the future",
            "the clock of their writer was ahead; the runs that it deferred will wait longer",
        )


def _check_schema(store: Store) -> Iterator[DoctorCheck]:
    """Check for tables, triggers and views that another program has created."""
    sort_objects = getattr(store, "sort_objects", None)
    if sort_objects is None:
        return
    foreign, unrelated = sort_objects()
    if foreign:
        advice = "another program has created this: remove it, then verify the log"
        yield DoctorCheck("schema", BAD, "; ".join(foreign[:5]), advice)
    else:
        more = f"; unrelated tables: {', '.join(unrelated[:5])}" if unrelated else ""
        yield DoctorCheck("schema", OK, f"no foreign object touches the tables of oncemore{more}")


def _check_chain(store: Store) -> DoctorCheck:
    """Verify the entities with the newest entries, each from its first entry on."""
    from oncemore.steps.history import verify_chain

    last = store.wait_for_change(0, 0.0)
    newest = store.read_entries(after=max(0, last - CHAIN_ENTRIES))
    entities = list(dict.fromkeys(entry.entity for entry in newest))
    for entity in entities:
        try:
            verify_chain(store.read_entries(entity))
        except StoreError as error:
            return DoctorCheck(
                "chain",
                BAD,
                str(error),
                "stop writing to this store; restore a backup, and keep this file as evidence",
            )
    # A whole log may take minutes, and this check is meant to be quick.
    rest = "" if last <= CHAIN_ENTRIES else "; --rebuild checks all of them"
    count = format_count(len(entities), "entity", "entities")
    return DoctorCheck("chain", OK, f"the hash chains of the last {count} verify{rest}")
