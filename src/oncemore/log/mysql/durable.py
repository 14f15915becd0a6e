"""The part of the log that is known to be on the server's disk.

InnoDB makes a commit visible, and releases its locks, before it waits for the disk: this is how commits of
several sessions share one write of the disk. So a reader can see an entry that the crash of the server, a
moment later, takes away again. A program must not act on such an entry: the result of a finished run would
be returned to a caller, and then be computed anew.

So each process knows a number up to which all entries are on disk: the highest of its own acknowledged
appends. Entries become visible in the order of their numbers, and InnoDB writes its log in that order too;
if an entry is on disk, so are all before it. A read that meets a higher number asks for the number that
other processes have published with their appends. If that is too low as well, it commits a transaction of
its own: when that is on disk, everything that was visible before it is. Almost no read needs that.

With a binary log, commits become visible after they are on disk; the check is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class DurablePosition:
    """The highest sequence number up to which this process knows all entries to be on disk.

    read_published  returns the number that other processes have published
    flush           commits a transaction that changes nothing of the log
    """

    def __init__(self, read_published: Callable[[], int], flush: Callable[[], object]) -> None:
        self.known = 0
        self._read_published, self._flush = read_published, flush

    def confirm(self, seq: int) -> None:
        """Note that the entries up to a number are on disk."""
        # Two threads may overwrite each other's number: a lower one costs a question more.
        self.known = max(self.known, seq)

    def require(self, seq: int) -> None:
        """Return when the entries up to a number, which are visible, are on disk."""
        if seq <= self.known:
            return
        self.confirm(self._read_published())
        if seq > self.known:
            self._flush()
            self.confirm(seq)
