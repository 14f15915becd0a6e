"""Writing to PostgreSQL: a group of batches as one call, and the resolution of a lost reply.

One call of the server carries a group of batches: one round trip, one commit, one reply per batch. Most
groups take the fast path (`log.postgres.statements`); batches that it did not store, and all other groups, go
through the server function `append`, because that returns conflicts.

**A lost reply.** If the connection ends before the reply, the statement may have been stored, may still be
running, or may never have arrived. Reading the head would be a guess, because a running commit is not visible
yet. So the same compare-and-set is sent again, on a new connection. It waits for the first one if that holds
the row, or wins and makes it fail; versions never go back, so a refusal now is final. A refused batch is then
compared with the entries at its versions: the hash covers a random nonce of the writer, so an equal hash
proves that the batch was stored.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Literal

from oncemore._values import make
from oncemore.log.postgres import statements
from oncemore.log.postgres.connection import (
    build_store_error,
    close_connection,
    execute_prepared,
    is_connection_lost,
    open_connection,
    psycopg,
)
from oncemore.log.postgres.joined import run_joined_write
from oncemore.log.postgres.statements import APPEND, append_arguments, read_answer
from oncemore.log.store import Conflict, JoinedWriteFailed, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psycopg.pq.abc import PGresult

    from oncemore.errors import StoreError
    from oncemore.log.group_commit import PendingBatch
    from oncemore.log.postgres.connection import Connection, PostgresAddress
    from oncemore.log.store import Batch, EntryWrite

    Answer = Stored | Conflict

#: Time limit for the resolution of a lost reply, in seconds.
RESOLVE_S = 30.0
#: Limit of bytes of one statement with more than one batch.
MAX_STATEMENT_BYTES = 16_000_000
#: Limit of tries of a batch that fails because of concurrent transactions.
MAX_TRIES = 20
#: Classes of errors after which each batch of a group is sent by itself: a concurrent transaction was in the
#: way, or one batch cannot be stored.
SEND_SINGLY = ("22", "23", "40", "54")


class PostgresWriter:
    """The connection of a process that appends; only the thread with the turn of the group commit uses it."""

    def __init__(self, where: PostgresAddress, schema: str) -> None:
        self._where = where
        self._connection: Connection | None = None
        self._prepare = (statements.prepare_append(schema), *statements.prepare_statements(schema))
        self._select_entries = (
            f"select entity, hash, seq from {schema}.log "  # noqa: S608 - a checked name
            "where (entity, version) in (select * from unnest(%s::text[], %s::bigint[]))"
        ).encode()

    def store_batches(self, batches: Sequence[Batch]) -> list[Answer | StoreError | JoinedWriteFailed]:
        """Store batches; return the reply or the error of each. An invalid batch does not affect the rest."""
        try:
            return self._send_until_answered(
                list(batches), time.monotonic() + RESOLVE_S, was_sent=False, fast=True
            )
        except BaseException:
            self.close()
            raise

    def _send_until_answered(
        self, batches: list[Batch], ends_at: float, *, was_sent: bool, fast: bool
    ) -> list[Answer | StoreError | JoinedWriteFailed]:
        """Send batches until there is a reply, on the fast path if `fast` and the batches allow it.

        was_sent  whether they were sent before with an unknown outcome
        """
        tries = 0
        statement = statements.choose_statement(batches) if fast else None
        while True:
            tries += 1
            try:
                if statement is not None:
                    numbers = statements.read_sequence_numbers(
                        self._execute_statement(self._writer_connection(), *statement)
                    )
                    return self._append_remaining(batches, numbers, ends_at, was_sent=was_sent)
                answers = self._append_batches(self._writer_connection(), batches)
                return [*(self._recognise_stored(batches, answers) if was_sent else answers)]
            except JoinedWriteFailed as error:
                return [error]
            except psycopg.Error as error:
                # Without a connection nothing was sent, so the outcome is known.
                was_sent = was_sent or (is_connection_lost(error) and self._connection is not None)
                self.close()
                action = _next_action(
                    error,
                    is_group=len(batches) > 1,
                    tries=tries,
                    is_unresolved=was_sent and time.monotonic() < ends_at,
                )
                if action == "fail":
                    outcome = _describe_outcome(was_sent=was_sent)
                    return [build_store_error(self._where, error, outcome)] * len(batches)
            if action == "singly":
                return [
                    self._send_until_answered([batch], ends_at, was_sent=was_sent, fast=False)[0]
                    for batch in batches
                ]
            _wait_before_retry(tries)

    def _append_remaining(
        self, batches: list[Batch], numbers: tuple[int, ...], ends_at: float, *, was_sent: bool
    ) -> list[Answer | StoreError | JoinedWriteFailed]:
        """Return the replies of batches by their sequence numbers; send those without one by `append`."""
        remaining = [batch for batch, number in zip(batches, numbers, strict=True) if not number]
        answers = iter(
            self._send_until_answered(remaining, ends_at, was_sent=was_sent, fast=False) if remaining else ()
        )
        return [make(Stored, ((number,),)) if number else next(answers) for number in numbers]

    def _writer_connection(self) -> Connection:
        if self._connection is None:
            connection = open_connection(self._where)
            try:
                connection.execute("set jit = off")  # for the fast path; `append` sets it itself
                connection.execute("set lock_timeout = '30s'")
                for statement in self._prepare:
                    connection.execute(statement)
            except BaseException:
                close_connection(connection)
                raise
            self._connection = connection
        return self._connection

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

    def _recognise_stored(self, batches: list[Batch], answers: Iterable[Answer]) -> list[Answer]:
        """Replace conflicts of batches that an earlier try stored by the reply that was lost."""
        return [
            (isinstance(answer, Conflict) and self._stored_before(batch.writes)) or answer
            for batch, answer in zip(batches, answers, strict=True)
        ]

    def _stored_before(self, writes: tuple[EntryWrite, ...]) -> Stored | None:
        keys = ([write.entity for write in writes], [write.expect + 1 for write in writes])
        # On the same connection, after the refusal: no running commit can add these versions later.
        rows = self._writer_connection().execute(self._select_entries, keys, binary=True).fetchall()
        stored = {entity: (own_hash, seq) for entity, own_hash, seq in rows}
        entries = [stored.get(write.entity, (b"", 0)) for write in writes]
        if not writes or [write.hash for write in writes] != [own_hash for own_hash, _ in entries]:
            return None
        return Stored(tuple(seq for _, seq in entries))

    def close(self) -> None:
        """Close the connection; the next batch opens a new one."""
        connection, self._connection = self._connection, None
        close_connection(connection)


#: Errors after which the same call is repeated: a concurrent transaction was in the way, or the driver has
#: deallocated our prepared statement, as it does after every rollback.
REPEAT = ("40", "26000")


def _next_action(
    error: psycopg.Error, *, is_group: bool, tries: int, is_unresolved: bool
) -> Literal["again", "singly", "fail"]:
    """Return the next action after an error.

    is_unresolved  whether a try with an unknown outcome can still be resolved within the time limit
    """
    state = error.sqlstate or ""
    if is_group and state.startswith(SEND_SINGLY):
        return "singly"
    if (is_unresolved and is_connection_lost(error)) or (state.startswith(REPEAT) and tries < MAX_TRIES):
        return "again"
    return "fail"


def _wait_before_retry(tries: int) -> None:
    """Sleep before the next try: longer each time, up to a second, with jitter."""
    time.sleep(min(1.0, 0.01 * 2 ** min(tries, 10)) * random.uniform(0.5, 1.0))  # noqa: S311


def _describe_outcome(*, was_sent: bool) -> str:
    return "; whether it is stored is not known" if was_sent else "; nothing was stored"


def _first_entity(op: PendingBatch) -> str:
    return op.batch.writes[0].entity if op.batch.writes else ""


def split_groups(ops: list[PendingBatch]) -> Iterator[list[PendingBatch]]:
    """Split pending batches into statements of bounded size, ordered by entity.

    A joined write gets a statement of its own. The order makes collisions with other processes rare.
    """
    group: list[PendingBatch] = []
    space = MAX_STATEMENT_BYTES
    for op in sorted(ops, key=_first_entity):
        size = sum(len(write.body) + len(write.header) + len(write.head) for write in op.batch.writes)
        if op.batch.joined_write is not None:
            yield [op]
            continue
        if group and size > space:
            yield group
            group, space = [], MAX_STATEMENT_BYTES
        group.append(op)
        space -= size
    if group:
        yield group
