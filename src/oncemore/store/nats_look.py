"""A store in NATS that is only looked at: no stream is made, nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.store.nats import NatsStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from oncemore.store.base import Batch, Entry, Head


class LookedAt(NatsStore):
    """The store in a server, for eyes only; what is unsafe about it is a part of what one sees."""

    makes = False

    def append(self, batch: Batch) -> NoReturn:
        """Refuse."""
        self._only_looked_at()

    def prune(self, before: Mapping[str, int]) -> NoReturn:
        """Refuse."""
        self._only_looked_at()

    def drop(self, at: Mapping[str, int]) -> NoReturn:
        """Refuse."""
        self._only_looked_at()

    def mend(self, heads: Sequence[Head], upto: int) -> NoReturn:
        """Refuse."""
        self._only_looked_at()

    def adopt(self, entries: Sequence[Entry], heads: Sequence[Head]) -> NoReturn:
        """Refuse."""
        self._only_looked_at()

    def enter(self, worker: str) -> NoReturn:
        """Refuse."""
        self._only_looked_at()

    def tidy(self) -> NoReturn:
        """Refuse."""
        self._only_looked_at()

    def _only_looked_at(self) -> NoReturn:
        raise StoreError(f"{self._where.shown}: it was opened to be looked at; nothing is written")
