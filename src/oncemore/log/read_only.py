"""Read-only stores: a mixin for the store, and a wrapper for its maintenance operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import NoReturn

    from oncemore.log.store import Batch, CopyCheck, Entry, Head, MaintenanceStore, StorageSpace, StoreFacts


class ReadOnlyMixin:
    """Mixin that makes a store read-only: every mutating method raises `StoreError`.

    It must come before the store in the list of base classes.
    """

    #: The address of the store for messages, without secrets; the store sets it.
    display_name: str

    def append(self, batch: Batch) -> NoReturn:
        """Raise `StoreError`."""
        raise_read_only(self.display_name)

    def register_worker(self, worker: str) -> NoReturn:
        """Raise `StoreError`."""
        raise_read_only(self.display_name)

    def open_maintenance(self) -> ReadOnlyMaintenance:
        """Return the maintenance operations, of which only the reading ones work."""
        return ReadOnlyMaintenance(super().open_maintenance(), self.display_name)  # type: ignore[misc]


class ReadOnlyMaintenance:
    """The maintenance operations of a read-only store: the mutating ones raise `StoreError`."""

    def __init__(self, maintenance: MaintenanceStore, name: str) -> None:
        self._maintenance, self._name = maintenance, name

    def describe_store(self) -> StoreFacts:
        """Return the engine, the address and the durability of the store."""
        return self._maintenance.describe_store()

    def measure_space(self, in_detail: bool = False) -> StorageSpace:
        """Return the disk space that the store uses."""
        return self._maintenance.measure_space(in_detail)

    def copy_notice(self) -> str:
        """Return the reason why the store counts as a copy."""
        return self._maintenance.copy_notice()

    def write_backup(self, to: Path, check: CopyCheck, progress: Callable[[int, int], object]) -> None:
        """Write a copy: that only reads the store."""
        self._maintenance.write_backup(to, check, progress)

    def prune_bodies(self, before: Mapping[str, int]) -> NoReturn:
        """Raise `StoreError`."""
        raise_read_only(self._name)

    def drop_entities(self, at: Mapping[str, int]) -> NoReturn:
        """Raise `StoreError`."""
        raise_read_only(self._name)

    def replace_heads(self, heads: Sequence[Head], upto: int) -> NoReturn:
        """Raise `StoreError`."""
        raise_read_only(self._name)

    def import_entries(self, entries: Sequence[Entry], heads: Sequence[Head]) -> NoReturn:
        """Raise `StoreError`."""
        raise_read_only(self._name)

    def acknowledge_copy(self) -> NoReturn:
        """Raise `StoreError`."""
        raise_read_only(self._name)

    def checkpoint_wal(self) -> NoReturn:
        """Raise `StoreError`."""
        raise_read_only(self._name)


def raise_read_only(name: str) -> NoReturn:
    """Raise the error of a write to a read-only store."""
    raise StoreError(f"{name}: the store was opened read-only; nothing is written")
