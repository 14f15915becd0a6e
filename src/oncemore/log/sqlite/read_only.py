"""A SQLite store that is only looked at: nothing is written, nobody is waited for.

An operator looks when something is wrong: the file may not be writable for them, and a stopped process may
hold the door. So nothing here takes the door, makes a file, moves a clock or tidies up; what would write is
refused.
"""

from __future__ import annotations

import time

from oncemore.errors import StoreError
from oncemore.log.read_only import ForEyesOnly
from oncemore.log.sqlite import machine
from oncemore.log.sqlite.store import FORMAT, SqliteStore


class LookedAt(ForEyesOnly, SqliteStore):
    """The store in a file, for eyes only."""

    def _prepare(self) -> None:
        """Check that there is a store in the file, and which time it goes by."""
        if not self.path.is_file():
            raise StoreError(f"{self.path}: there is no store here")
        tables = {name for (name,) in self._read("SELECT name FROM sqlite_master")}
        if not tables >= {"meta", "head", "log"}:
            raise StoreError(f"{self.path}: this is not a store of oncemore")
        known = dict(self._read("SELECT name, value FROM meta"))
        if known["format"] > FORMAT:
            raise StoreError(
                f"{self.path} has format {known['format']}, which a newer oncemore wrote; "
                f"this one reads up to {FORMAT}: install the newer one"
            )
        self.name = str(known.get("name", ""))
        here = machine.boot_id() and known.get("boot") == machine.boot_id()
        now = max(time.time(), known.get("mark", 0.0))
        self._wall_at_boot = float(known["wall"] if here else now - machine.since_boot())

    def gone(self, worker: str) -> bool:
        """Whether nobody holds the lock of a worker's file; it is asked for, never taken."""
        return machine.is_unlocked(self._workers / worker)

    @property
    def shown(self) -> str:
        """Its path."""
        return str(self.path)

    def pragma(self, name: str) -> object:
        """Return what the engine says of the file."""
        return self._read(f"PRAGMA {name}")[0][0]

    def size(self) -> tuple[int, int]:
        """Return the bytes of the file, and of its write-ahead log."""
        log = self.path.with_name(self.path.name + "-wal")
        return self.path.stat().st_size, log.stat().st_size if log.exists() else 0
