"""A file beside the store that reserves disk space for the end of running attempts.

A disk that is full when an attempt starts does no harm: nothing has happened. One that is full when an
attempt ends does: the effect exists and cannot be recorded. So the reserve file occupies a megabyte. When
the disk is full it is deleted, and the results of running attempts are written into the freed space; new
attempts are refused until the reserve could be allocated again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from oncemore.log.sqlite.files import RESERVE_BYTES, open_private

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.store import Batch

#: States in which an attempt runs: a batch that leads to one of them needs space for a later batch.
RUNNING_STATES = ("RUNNING", "SENDING")
#: Kinds of entities whose final batches may use the reserve.
RESERVED_KINDS = ("run", "event")


class DiskReserve:
    """The reserve file of a store."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_released = False

    def allocate_file(self) -> bool:
        """Allocate the file, unless it is allocated; return whether it is."""
        try:
            file = open_private(self._path)
        except OSError:
            return False
        try:
            if os.fstat(file).st_size < RESERVE_BYTES:
                # Not truncate(): a sparse file would reserve nothing.
                os.posix_fallocate(file, 0, RESERVE_BYTES)
        except OSError:
            self._path.unlink(missing_ok=True)
            return False
        finally:
            os.close(file)
        self.is_released = False
        return True

    def release_file(self) -> bool:
        """Delete the file to free its space; return whether it existed."""
        self.is_released = True
        with suppress(OSError):
            self._path.unlink()
            return True
        return False


def begins_attempt(batch: Batch) -> bool:
    """Whether a batch creates an entity or starts an attempt, and does not end another one.

    Such a batch can be refused without loss while the reserve is used up.
    """
    starts = any(write.by.state in RUNNING_STATES or not write.expect for write in batch.writes)
    return starts and not ends_attempt(batch)


def ends_attempt(batch: Batch) -> bool:
    """Whether a batch ends an attempt: its effect has happened, so it must be recorded."""
    return any(
        write.expect and write.by.kind in RESERVED_KINDS and write.by.state not in RUNNING_STATES
        for write in batch.writes
    )
