"""RESERVE: room that is kept for the end of what was begun.

A disk that is full when work begins is harmless: nothing has happened. One that is full when work ends is
not: the effect is there and cannot be written down. So a file beside the store keeps a megabyte taken. When
the disk is full it is given up, and what was under way is written into its room; new work does not begin
before the reserve could be made again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from oncemore.log.sqlite.files import open_private

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.store import Batch

BYTES = 1024 * 1024
#: States that begin something: a batch that leads to one of them waits until there is room for its end.
BEGINS = ("RUNNING", "SENDING")
#: Kinds of entities whose ends the reserve is for.
ENDS = ("run", "event")


class Reserve:
    """A file that takes room, to give it up in need."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.given = False

    def make(self) -> bool:
        """Take the room, unless it is taken; return whether it is."""
        try:
            file = open_private(self._path)
        except OSError:
            return False
        try:
            if os.fstat(file).st_size < BYTES:
                os.posix_fallocate(file, 0, BYTES)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        finally:
            os.close(file)
        self.given = False
        return True

    def give(self) -> bool:
        """Give the room up; return whether there was any."""
        self.given = True
        with suppress(OSError):
            self._path.unlink()
            return True
        return False


def begins(batch: Batch) -> bool:
    """Whether a batch begins something that will have to be ended."""
    return any(write.by.state in BEGINS or not write.expect for write in batch.writes)


def ends(batch: Batch) -> bool:
    """Whether a batch ends an attempt: what has happened must be written down."""
    return any(
        write.expect and write.by.kind in ENDS and write.by.state not in BEGINS for write in batch.writes
    )
