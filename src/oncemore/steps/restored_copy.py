"""The check that refuses effects on a copied or restored store until an operator has acknowledged it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from oncemore.config import RESTORED_COPY_CHOICES
from oncemore.errors import RestoredCopy, UsageError

if TYPE_CHECKING:
    from oncemore.log.store import Store
    from oncemore.steps.engine import Engine

#: The notice of a store that was not opened yet, so that it is not known whether it is a copy.
NOT_CHECKED = "it was not opened yet"


class RestoredCopyCheck:
    """Refuses effects on a copied or restored store until an operator has acknowledged it.

    notice  why the store counts as a copy; empty if it does not
    """

    def __init__(self, engine: Engine, mode: str) -> None:
        if mode not in RESTORED_COPY_CHOICES:
            raise UsageError(f"restored_copy is {mode!r}; the choices are {', '.join(RESTORED_COPY_CHOICES)}")
        self._engine, self._holds = weakref.proxy(engine), mode == "hold"
        self.notice = NOT_CHECKED

    def read_notice(self, store: Store) -> None:
        """Read the notice of a store."""
        self.notice = store.open_maintenance().copy_notice() if self._holds else ""

    def check_original(self) -> None:
        """Raise `RestoredCopy` if the store is a copy that no operator has acknowledged."""
        # Read again: another process may have acknowledged it meanwhile.
        if self.notice:
            self.read_notice(self._engine.store)
        if self.notice:
            raise RestoredCopy(
                f"{self._engine.url} is a copy: {self.notice}. Work done since the copy was made would be "
                "done twice; check the runs in doubt (oncemore store accept-copy), then acknowledge the "
                "copy: oncemore store accept-copy --acknowledge, or engine.acknowledge(reason=…)"
            )
