"""Mixin for read-only stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from oncemore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from oncemore.log.store import Batch, Entry, Head


class ReadOnlyMixin(ABC):
    """Mixin that makes a store read-only: every mutating method raises `StoreError`.

    It must come before the store in the list of base classes.
    """

    @property
    @abstractmethod
    def display_name(self) -> str:
        """The address of the store for messages, without secrets."""

    def append(self, batch: Batch) -> NoReturn:
        """Raise `StoreError`."""
        self._raise_read_only()

    def prune_bodies(self, before: Mapping[str, int]) -> NoReturn:
        """Raise `StoreError`."""
        self._raise_read_only()

    def drop_entities(self, at: Mapping[str, int]) -> NoReturn:
        """Raise `StoreError`."""
        self._raise_read_only()

    def replace_heads(self, heads: Sequence[Head], upto: int) -> NoReturn:
        """Raise `StoreError`."""
        self._raise_read_only()

    def import_entries(self, entries: Sequence[Entry], heads: Sequence[Head]) -> NoReturn:
        """Raise `StoreError`."""
        self._raise_read_only()

    def register_worker(self, worker: str) -> NoReturn:
        """Raise `StoreError`."""
        self._raise_read_only()

    def _raise_read_only(self) -> NoReturn:
        raise StoreError(f"{self.display_name}: the store was opened read-only; nothing is written")
