"""What refuses to write, for stores that are only looked at: each of them has it before its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from oncemore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from oncemore.log.store import Batch, Entry, Head


class ForEyesOnly(ABC):
    """Refuses whatever would change a store; `shown` says which store that is."""

    @property
    @abstractmethod
    def shown(self) -> str:
        """Where it is, as a person may see it."""

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

    def _only_looked_at(self) -> NoReturn:
        raise StoreError(f"{self.shown}: it was opened to be looked at; nothing is written")
