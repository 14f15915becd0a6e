"""Warn when a store grows large, when its write-ahead log cannot shrink, and when the disk fills up.

The sizes are checked with every heartbeat, outside of all calls. A warning is logged and sent to `on_event`
once, when a limit is passed, and again only after the size was a tenth below the limit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.config import WARN_FILE_MB, WARN_LEFT_MB, WARN_WAL_MB
from oncemore.errors import Error
from oncemore.events import StoreSizeExceeded

if TYPE_CHECKING:
    from oncemore.log.store import MaintenanceStore, Store
    from oncemore.steps.engine import Engine

MB = 1024 * 1024
STORE_SIZE, WAL_SIZE, FREE_SPACE = "the store", "its write-ahead file", "the free space of the disk"
log = logging.getLogger("oncemore")


class SizeLimits(Value):
    """The sizes that cause a warning, in MiB; 0 disables a warning.

    file  the store is larger
    wal   its write-ahead log is larger and cannot be emptied
    left  the disk has less free space
    """

    file: float = WARN_FILE_MB
    wal: float = WARN_WAL_MB
    left: float = WARN_LEFT_MB


DEFAULT_LIMITS = SizeLimits()


class SizeMonitor:
    """Compares sizes with their limits, and remembers the warnings that were given."""

    def __init__(self, limits: SizeLimits) -> None:
        self._limits = limits
        self._warned: set[str] = set()

    def check_sizes(self, engine: Engine, store: Store) -> None:
        """Log a warning for every limit that was passed since the last check."""
        try:
            warnings = self._find_exceeded(store.open_maintenance())
        except Error as error:
            # A store that cannot be reached fails the calls too, and they report it.
            log.debug("oncemore: the size of the store is not known: %s", error)
            return
        for warning in warnings:
            sizes = (warning.size_bytes // MB, warning.limit_bytes // MB)
            log.warning(
                "oncemore: %s: %s is %d MiB, the limit is %d MiB; %s",
                *(engine.url, warning.what, *sizes, warning.advice),
            )
            engine.listener.notify(warning)

    def _find_exceeded(self, maintenance: MaintenanceStore) -> list[StoreSizeExceeded]:
        space, limits = maintenance.measure_space(), self._limits
        warnings = []
        if self._is_newly_exceeded(STORE_SIZE, space.file, limits.file):
            advice = (
                "prune finished runs (oncemore store prune); oncemore store sizes shows the largest kinds"
            )
            warnings.append(StoreSizeExceeded(STORE_SIZE, space.file, int(limits.file * MB), advice))
        if limits.wal and space.wal > limits.wal * MB:
            # A large write-ahead log is normal under load; warn only if it cannot be emptied.
            obstacle = maintenance.checkpoint_wal()
            size = maintenance.measure_space().wal
            if self._is_newly_exceeded(WAL_SIZE, size, limits.wal) and obstacle:
                warnings.append(StoreSizeExceeded(WAL_SIZE, size, int(limits.wal * MB), obstacle))
        else:
            self._warned.discard(WAL_SIZE)
        # Free space has a lower limit; with both signs turned it is compared like the other sizes.
        if space.left is not None and self._is_newly_exceeded(FREE_SPACE, -space.left, -limits.left):
            advice = "free some space: without it nothing can be stored"
            warnings.append(StoreSizeExceeded(FREE_SPACE, space.left, int(limits.left * MB), advice))
        return warnings

    def _is_newly_exceeded(self, what: str, size: float, limit_mb: float) -> bool:
        """Return whether a size has passed its limit since it was last a tenth below."""
        limit = limit_mb * MB
        if limit and size > limit and what not in self._warned:
            self._warned.add(what)
            return True
        if size <= limit - 0.1 * abs(limit):
            self._warned.discard(what)
        return False
