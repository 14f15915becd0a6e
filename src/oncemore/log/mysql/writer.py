"""Writing to MySQL: a group of batches as one request of several statements.

The request is `start transaction`, the calls of our procedures, and `commit` (`log.mysql.statements`). The
server runs one statement after the other without waiting for the client, and stops at the first error. So
the log is locked for as long as the server works, and never while it waits for the network; only a joined
write holds it longer, for a second at most. A connection that fails is closed, which rolls its transaction
back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pymysql.constants import ER

from oncemore.log.database.writer import DatabaseWriter
from oncemore.log.mysql import statements
from oncemore.log.mysql.connection import pymysql
from oncemore.log.mysql.joined import run_joined_write
from oncemore.log.store import Conflict, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.log.database.writer import Answer
    from oncemore.log.mysql.connection import Connection, MysqlClient
    from oncemore.log.mysql.durable import DurablePosition
    from oncemore.log.store import Batch, EntryWrite, Head

#: Time that an append waits for the log, before it is repeated.
LOCK_WAIT_S = 10
#: The server ends a session that is silent for longer in the middle of a joined write: it holds the log.
JOINED_SILENCE_S = 5
#: Bytes of a statement beside those of its values.
MARGIN_BYTES = 1000


class MysqlWriter(DatabaseWriter["Connection"]):
    """The connection of a process that appends.

    position    the part of the log that is known to be on disk
    load_head   reads a head, for the answer of a refused batch
    max_packet  limit of bytes of a statement
    limit_sql   the statement that limits the time of the next ones
    """

    def __init__(
        self,
        client: MysqlClient,
        prefix: str,
        position: DurablePosition,
        load_head: Callable[[str], Head | None],
    ) -> None:
        super().__init__(client)
        self._mysql, self._prefix = client, prefix
        self._position, self._load_head = position, load_head
        self._published = 0
        self.max_packet = 1 << 24
        self.limit_sql = ""

    def _open_writer(self) -> Connection:
        return self._mysql.open_for_writing()

    def _prepare_connection(self, connection: Connection) -> None:
        self._client.execute_rows(connection, f"set session innodb_lock_wait_timeout = {LOCK_WAIT_S}")

    def _send_batches(self, batches: list[Batch], *, fast: bool) -> list[Answer | None]:
        synced = self._position.known
        announced = synced if synced > self._published else 0
        if batches[0].joined_write is not None:
            found = self._append_joined(batches[0], announced)  # a joined write is sent alone
        elif len(batches) == 1 and statements.is_simple(batches[0]):
            found = self._append(batches, statements.call_append_one(self._prefix, batches[0], announced))
        else:
            found = self._append(batches, statements.call_append(self._prefix, batches, announced))
        self._published = synced
        # The commit has returned, so these entries are on disk, and all that were visible before them.
        self._position.confirm(
            max((max(a.seqs, default=0) for a in found if isinstance(a, Stored)), default=0)
        )
        return [a if isinstance(a, Stored) else Conflict(a, self._load_head(a)) for a in found]

    def _append(self, batches: Sequence[Batch], sql: str) -> list[Stored | str]:
        ((answers,),) = self._execute(sql)
        return statements.read_answers(batches, answers)

    def _execute(self, sql: str) -> Sequence[tuple[str]]:
        if len(sql) > self.max_packet - MARGIN_BYTES:
            # The server would end the connection, and the outcome would seem to be unknown.
            raise pymysql.err.OperationalError(
                ER.NET_PACKET_TOO_LARGE, f"{len(sql)} bytes; max_allowed_packet is {self.max_packet}"
            )
        return self._client.execute_rows(self._writer_connection(), sql)

    def _append_joined(self, batch: Batch, synced: int) -> list[Stored | str]:
        assert batch.joined_write is not None
        prefix = self._prefix
        try:
            begin = (
                f"set session wait_timeout = {JOINED_SILENCE_S}, innodb_lock_wait_timeout = 1",
                *statements.begin_append(prefix, synced),
                *statements.call_checks(prefix, batch),
                "select @oncemore_missed",
            )
            ((missed,),) = self._execute(";".join(begin))
            if missed:
                found: list[Stored | str] = [statements.compared_entities(batch)[int(missed) - 1][0]]
                self._execute(f"rollback;{_END_JOINED}")
                return found
            run_joined_write(self._writer_connection(), self.limit_sql, batch.joined_write)
            end = (
                self.limit_sql.format(s=0, ms=0),
                *statements.call_puts(prefix, batch),
                *statements.END_APPEND,
            )
            found = self._append([batch], ";".join(end))
        except BaseException:
            self._mysql.close_connection(self._connection)  # the writer forgets it itself
            raise
        self._execute(_END_JOINED)
        return found

    def _read_hashes(self, writes: tuple[EntryWrite, ...]) -> Mapping[str, tuple[bytes, int]]:
        values = [value for write in writes for value in (write.entity.encode(), write.expect + 1)]
        sql = (
            f"select convert(entity using utf8mb4), hash, seq from {self._prefix}_log "  # noqa: S608
            f"where (entity, version) in ({','.join(['(%s, %s)'] * len(writes))})"
        )
        rows = self._client.execute_rows(self._writer_connection(), sql, values)
        # The first try may have committed without waiting for the disk yet.
        self._position.require(max((seq for _, _, seq in rows), default=0))
        return {entity: (own_hash, seq) for entity, own_hash, seq in rows}


_END_JOINED = f"set session wait_timeout = default, innodb_lock_wait_timeout = {LOCK_WAIT_S}"
