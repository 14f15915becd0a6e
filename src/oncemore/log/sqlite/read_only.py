"""A read-only SQLite store: it writes nothing and waits for no lock.

An operator reads the store when something is wrong: the file may not be writable for the operator, and a
stopped process may hold the store's lock. So this store takes no lock, creates no file, moves no clock and
removes nothing; every mutating method raises `StoreError`.
"""

from __future__ import annotations

import time

from oncemore.errors import StoreError
from oncemore.log.entry_codec import unreadable_format
from oncemore.log.read_only import ReadOnlyMixin
from oncemore.log.sqlite import machine
from oncemore.log.sqlite.schema import FORMAT
from oncemore.log.sqlite.store import SqliteStore


class ReadOnlySqliteStore(ReadOnlyMixin, SqliteStore):
    """A SQLite store that cannot be written."""

    def _prepare_file(self) -> None:
        """Check that the file is a store of this format, and read its clock."""
        if not self.path.is_file():
            raise StoreError(f"{self.path}: there is no store here")
        tables = {name for (name,) in self._read_rows("SELECT name FROM sqlite_master")}
        if not tables >= {"meta", "head", "log"}:
            raise StoreError(f"{self.path}: this is not a store of oncemore")
        meta = dict(self._read_rows("SELECT name, value FROM meta"))
        if meta["format"] != FORMAT:
            raise unreadable_format(str(self.path), meta["format"])
        self.name = str(meta.get("name", ""))
        # After a reboot the clock is set as a writer would set it, but not stored.
        same_boot = machine.boot_id() and meta.get("boot") == machine.boot_id()
        now = max(time.time(), meta.get("mark", 0.0))
        self._wall_at_boot = float(meta["wall"] if same_boot else now - machine.seconds_since_boot())

    def is_worker_gone(self, worker: str) -> bool:
        """Whether no process holds the lock of a worker's file; queries the lock without taking it."""
        # Taking the lock, as a writer does, would make a starting worker fail.
        return machine.is_unlocked(self._workers / worker)

    @property
    def display_name(self) -> str:
        """The path of the file."""
        return str(self.path)

    def read_pragma(self, name: str) -> object:
        """Return the value of a PRAGMA."""
        return self._read_rows(f"PRAGMA {name}")[0][0]

    def file_sizes(self) -> tuple[int, int]:
        """Return the sizes of the file and of its write-ahead log."""
        wal = self.path.with_name(self.path.name + "-wal")
        return self.path.stat().st_size, wal.stat().st_size if wal.exists() else 0
