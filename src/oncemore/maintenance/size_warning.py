"""WATCH: saying once that a store grows large, that its write-ahead file cannot shrink, that the disk fills
up.

Looked at with every heartbeat, off the way of all calls. Each limit is told when it is passed, in the log and
to `on_event`, and not again before it was kept for a while: a tenth below the limit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.errors import Error
from oncemore.settings import WARN_FILE_MB, WARN_LEFT_MB, WARN_WAL_MB

if TYPE_CHECKING:
    from oncemore.log.store import House, Store
    from oncemore.steps.engine import Engine

MB = 1024 * 1024
log = logging.getLogger("oncemore")


class Limits(Value):
    """At which sizes to say something, in MiB; 0 for never.

    file  the store is larger than this
    wal   its write-ahead file is, and cannot be emptied
    left  the disk has less than this left
    """

    file: float = WARN_FILE_MB
    wal: float = WARN_WAL_MB
    left: float = WARN_LEFT_MB


LIMITS = Limits()


class Passed(Value):
    """A limit that was passed: which, how many bytes there are, how many were meant, and what to do."""

    what: str
    bytes: int
    limit: int
    advice: str


class Watch:
    """Remembers what was said."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._said: set[str] = set()

    def look(self, engine: Engine, store: Store) -> None:
        """Look at the sizes, and say what is new about them."""
        try:
            passed = self._passed(store.house())
        except Error as error:  # the store cannot be asked: calls will say so, this need not
            log.debug("oncemore: the size of the store is not known: %s", error)
            return
        for one in passed:
            log.warning(
                "oncemore: %s: %s is %d MiB, and %d were meant; %s",
                *(engine.url, one.what, one.bytes // MB, one.limit // MB, one.advice),
            )
            engine.tell("store_size", one)

    def _passed(self, house: House) -> list[Passed]:
        room, limits = house.room(), self._limits
        found = []
        if self._is_news("the store", room.file, limits.file):
            advice = "prune what is over (oncemore prune), and look at oncemore sizes"
            found.append(Passed("the store", room.file, int(limits.file * MB), advice))
        if limits.wal and room.wal > limits.wal * MB:
            why = house.tidy()
            size = house.room().wal
            if self._is_news("its write-ahead file", size, limits.wal) and why:
                found.append(Passed("its write-ahead file", size, int(limits.wal * MB), why))
        else:
            self._said.discard("its write-ahead file")
        if room.left is not None and self._is_news("what the disk has left", -room.left, -limits.left):
            advice = "when nothing is left, nothing can be stored: make room"
            found.append(Passed("what the disk has left", room.left, int(limits.left * MB), advice))
        return found

    def _is_news(self, what: str, size: float, limit_mb: float) -> bool:
        """Whether a size has passed its limit since it was last well below."""
        limit = limit_mb * MB
        if limit and size > limit and what not in self._said:
            self._said.add(what)
            return True
        if size <= limit - 0.1 * abs(limit):
            self._said.discard(what)
        return False
