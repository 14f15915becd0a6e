"""A store in PostgreSQL that is only looked at: no schema is made, nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.store import postgres_format
from oncemore.store.postgres import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from oncemore.store.base import Batch, Entry, Head
    from oncemore.store.postgres_wire import Connection


class LookedAt(PostgresStore):
    """The store in a server, for eyes only."""

    def __init__(self, url: str) -> None:
        super().__init__(url, unsafe_ok=True)  # what is unsafe about it is a part of what one sees

    def _set_up(self, connection: Connection) -> None:
        """Check that there is a store; none is made."""
        found = postgres_format.found(connection, self._schema)
        if found is None:
            raise StoreError(f"{self._where.shown}: there is no store in the schema {self._schema}")
        postgres_format.check(self._where, self._schema, found)

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
        raise StoreError(f"{self._where.shown}: it was opened to be looked at; nothing is written")
