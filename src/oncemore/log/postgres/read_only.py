"""A read-only store in PostgreSQL: it creates no schema and writes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.log.postgres import schema
from oncemore.log.postgres.owner_check import check_owners
from oncemore.log.postgres.store import PostgresStore
from oncemore.log.read_only import ReadOnlyMixin

if TYPE_CHECKING:
    from oncemore.log.postgres.connection import Connection


class ReadOnlyPostgresStore(ReadOnlyMixin, PostgresStore):
    """A store in PostgreSQL that cannot be written."""

    def __init__(self, url: str) -> None:
        # An unsafe server is reported by `describe_store`, not refused: an operator must be able to look.
        super().__init__(url, unsafe_ok=True)

    def _set_up(self, connection: Connection) -> None:
        """Check that the schema is a store of this format; create nothing."""
        check_owners(connection, self._where, self._schema)
        stored_format = schema.schema_format(connection, self._schema)
        if stored_format is None:
            raise StoreError(f"{self._where.shown}: there is no store in the schema {self._schema}")
        schema.check_format(self._where, self._schema, stored_format)

    @property
    def display_name(self) -> str:
        """The address of the store, without the password."""
        return self._where.shown
