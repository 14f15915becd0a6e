"""A store in PostgreSQL that is only looked at: no schema is made, nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.log.postgres import schema
from oncemore.log.postgres.owner_check import check_owners
from oncemore.log.postgres.store import PostgresStore
from oncemore.log.read_only import ForEyesOnly

if TYPE_CHECKING:
    from oncemore.log.postgres.connection import Connection


class LookedAt(ForEyesOnly, PostgresStore):
    """The store in a server, for eyes only."""

    def __init__(self, url: str) -> None:
        super().__init__(url, unsafe_ok=True)  # what is unsafe about it is a part of what one sees

    def _set_up(self, connection: Connection) -> None:
        """Check that there is a store; none is made."""
        check_owners(connection, self._where, self._schema)
        found = schema.found(connection, self._schema)
        if found is None:
            raise StoreError(f"{self._where.shown}: there is no store in the schema {self._schema}")
        schema.check(self._where, self._schema, found)

    @property
    def shown(self) -> str:
        """Its address, without what is secret in it."""
        return self._where.shown
