"""Writing to PostgreSQL: a group of batches as one call of a server function.

Most groups take the fast path (`log.postgres.statements`); batches that it did not store, and all other
groups, go through the server function `append`, because that returns conflicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore._values import make
from oncemore.log.database.writer import DatabaseWriter
from oncemore.log.postgres import statements
from oncemore.log.postgres.connection import PostgresClient, execute_prepared
from oncemore.log.postgres.joined import run_joined_write
from oncemore.log.postgres.statements import APPEND, append_arguments, read_answer
from oncemore.log.store import Stored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg.pq.abc import PGresult

    from oncemore.log.database.writer import Answer
    from oncemore.log.postgres.connection import Connection, PostgresAddress
    from oncemore.log.store import Batch, EntryWrite


class PostgresWriter(DatabaseWriter["Connection"]):
    """The connection of a process that appends."""

    def __init__(self, where: PostgresAddress, schema: str) -> None:
        super().__init__(PostgresClient(where))
        self._prepare = (statements.prepare_append(schema), *statements.prepare_statements(schema))
        self._select_entries = (
            f"select entity, hash, seq from {schema}.log "  # noqa: S608 - a checked name
            "where (entity, version) in (select * from unnest(%s::text[], %s::bigint[]))"
        )

    def _prepare_connection(self, connection: Connection) -> None:
        connection.execute("set jit = off")  # for the fast path; `append` sets it itself
        connection.execute("set lock_timeout = '30s'")
        for statement in self._prepare:
            connection.execute(statement)

    def _send_batches(self, batches: list[Batch], *, fast: bool) -> list[Answer | None]:
        statement = statements.choose_statement(batches) if fast else None
        if statement is None:
            return [*self._append_batches(self._writer_connection(), batches)]
        numbers = statements.read_sequence_numbers(
            self._execute_statement(self._writer_connection(), *statement)
        )
        return [make(Stored, ((number,),)) if number else None for number in numbers]

    def _append_batches(self, connection: Connection, batches: list[Batch]) -> list[Answer]:
        joined_write = batches[0].joined_write
        if joined_write is None:
            return self._call_append(connection, batches)
        with connection.transaction():
            answers = self._call_append(connection, batches)  # one batch: a joined write is sent alone
            if isinstance(answers[0], Stored):
                run_joined_write(connection, joined_write)
        return answers

    def _call_append(self, connection: Connection, batches: list[Batch]) -> list[Answer]:
        result = self._execute_statement(connection, APPEND, append_arguments(batches))
        return [read_answer(result, row) for row in range(result.ntuples)]

    def _execute_statement(
        self, connection: Connection, name: bytes, values: Sequence[bytes | None]
    ) -> PGresult:
        return execute_prepared(connection, name, values)

    def _read_hashes(self, writes: tuple[EntryWrite, ...]) -> Mapping[str, tuple[bytes, int]]:
        keys = ([write.entity for write in writes], [write.expect + 1 for write in writes])
        rows = self._client.execute_rows(self._writer_connection(), self._select_entries, keys)
        return {entity: (own_hash, seq) for entity, own_hash, seq in rows}
