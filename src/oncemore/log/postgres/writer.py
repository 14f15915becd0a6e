"""Writing to PostgreSQL: a group of batches as one call, and what to do when its answer is lost.

One call of the server carries a group of batches: one round trip, one commit, one answer per batch. Most
groups are batches of one write, of which some have the same guard, and go by a short way (`postgres_put`):
what it did not store, and all other groups, go by the server's `append`, which can say why. Arrays are packed
here in the server's binary form; the driver's own way costs up to three times the processor time of the call.

**The answer is lost** when the connection ends before it came: the statement may have been stored, may
still be on its way, or may never have arrived. Reading the head would be guessing, because a commit that
is on its way does not show yet. So the same compare-and-set is sent again, on a new connection. It waits
for the first one where that holds the row, or wins and lets it bounce; versions never go back, so what
is refused now is refused for good. A batch that is refused is then compared with what stands at its
versions: the hash covers a nonce that its writer drew, so an equal hash means that it was stored.
"""

from __future__ import annotations

import random
import struct
import time
from typing import TYPE_CHECKING, Any, Literal

from oncemore._values import make
from oncemore.log.postgres import fast_append
from oncemore.log.postgres.arrays import (
    KINDS,
    Blobs,
    Floats,
    Ints,
    Longs,
    PackedDumper,
    Texts,
    length,
    long,
    longs_of,
    pack,
    real,
)
from oncemore.log.postgres.connection import (
    called,
    connect,
    fault,
    hang_up,
    lost,
    psycopg,
)
from oncemore.log.postgres.joined import join
from oncemore.log.store import AlsoFailed, Conflict, Head, Index, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from psycopg.pq.abc import PGresult

    from oncemore.errors import StoreError
    from oncemore.log.postgres.connection import Address, Connection
    from oncemore.log.store import Batch, Write

    Answer = Stored | Conflict

#: How long to go on asking what became of a batch whose answer was lost, in seconds.
RESOLVE_S = 30.0
#: How often a lone batch that others got in the way of is sent before that counts as a fault.
TRIES = 20
#: The statement that is prepared on each line, and the types that it takes, all of them binary.
APPEND = b"oncemore_append"
TYPES = (
    *("int", "int[]", "text[]", "bigint[]", "bytea[]", "bytea[]", "bytea[]", "bytea[]"),
    *("text[]", "text[]", "float8[]", "text[]", "text[]", "text[]", "int[]", "text[]", "bigint[]", "bool"),
)
#: Others were in the way, or one batch of the group cannot be stored: each is sent for itself.
SINGLY = ("22", "23", "40", "54")


def arguments(batches: Sequence[Batch]) -> list[bytes]:
    """Return what `append` is called with: its arrays are parallel, a row for each write or guard."""
    writes = [(at, write) for at, batch in enumerate(batches, 1) for write in batch.writes]
    guards = [(at, *guard) for at, batch in enumerate(batches, 1) for guard in batch.guards.items()]
    plain = [write for _, write in writes]
    return [
        length(len(batches)),
        pack(Ints, [length(at) for at, _ in writes]),
        pack(Texts, [write.entity.encode() for write in plain]),
        pack(Longs, [long(write.expect) for write in plain]),
        pack(Blobs, [write.hash for write in plain]),
        pack(Blobs, [write.header for write in plain]),
        pack(Blobs, [write.body for write in plain]),
        pack(Blobs, [write.head for write in plain]),
        pack(Texts, [write.by.kind.encode() for write in plain]),
        pack(Texts, [write.by.state.encode() for write in plain]),
        pack(Floats, [None if write.by.due is None else real(write.by.due) for write in plain]),
        pack(Texts, [write.by.step.encode() for write in plain]),
        pack(Texts, [write.by.worker.encode() for write in plain]),
        pack(Texts, [write.by.dataset.encode() for write in plain]),
        pack(Ints, [length(at) for at, _, _ in guards]),
        pack(Texts, [entity.encode() for _, entity, _ in guards]),
        pack(Longs, [long(version) for _, _, version in guards]),
        b"\1" if any(batch.sync for batch in batches) else b"\0",
    ]


def _int(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _due(value: bytes | None) -> float | None:
    return None if value is None else float(struct.unpack(">d", value)[0])


def _same(value: bytes | None) -> bytes | None:
    return value


#: How the columns of a head are read from the server's binary form, from its entity to its body.
READ: tuple[Callable[[Any], Any], ...] = (
    *(bytes.decode, _int, _same, _same, bytes.decode, bytes.decode, _due),
    *(bytes.decode, bytes.decode, bytes.decode, _int, _same),
)


def head_of(row: Sequence[Any]) -> Head:
    """Make a head of its columns; the body may be left out."""
    entity, version, digest, head, kind, state, due, step, worker, dataset, seq, *body = row
    return Head(entity, version, digest, head, Index(kind, state, due, step, worker, dataset), seq, *body)


def read_head(result: PGresult, row: int, first: int = 0) -> Head:
    """Read a head with its body, whose columns begin at one of a result's."""
    found = [result.get_value(row, column) for column in range(first, first + len(READ))]
    return head_of([read(it) for read, it in zip(READ, found, strict=True)])


def _answer(result: PGresult, row: int) -> Answer:
    """Read what became of a batch: the entity that was in the way and its head, or the numbers it got."""
    value = result.get_value
    missed = value(row, 0)
    if missed is None:
        seqs = value(row, 1)
        assert seqs is not None
        return Stored(longs_of(seqs))
    if value(row, 2) is None:
        return Conflict(missed.decode(), None)
    return Conflict(missed.decode(), read_head(result, row, 2))


class Writer:
    """The one connection of a process that appends; whoever has the combiner's turn uses it."""

    def __init__(self, where: Address, schema: str) -> None:
        self._where = where
        self._connection: Connection | None = None
        holes = ",".join(f"${at}" for at in range(1, len(TYPES) + 1))
        append = (
            f"prepare {APPEND.decode()}({','.join(TYPES)}) as "  # noqa: S608 - a checked name
            f"select * from {schema}.append({holes})"
        )
        self._prepare = (append.encode(), *fast_append.prepared(schema))
        self._standing = (
            f"select entity, hash, seq from {schema}.log "  # noqa: S608 - a checked name
            "where (entity, version) in (select * from unnest(%b::text[], %b::bigint[]))"
        ).encode()

    def store(self, batches: Sequence[Batch]) -> list[Answer | StoreError | AlsoFailed]:
        """Store batches; return what became of each. One that cannot be stored hurts nobody else."""
        try:
            return self._resolve(list(batches), time.monotonic() + RESOLVE_S, sent=False, short=True)
        except BaseException:
            self.close()
            raise

    def _resolve(
        self, batches: list[Batch], ends: float, *, sent: bool, short: bool
    ) -> list[Answer | StoreError | AlsoFailed]:
        """Send until there is an answer, by the short way if that is asked for and there is one.

        sent  whether they were sent before, with an unknown end
        """
        tries = 0
        way = fast_append.way(batches) if short else None
        while True:
            tries += 1
            try:
                if way is not None:
                    numbers = fast_append.numbers(self._exec(self._line(), *way))
                    return self._rest(batches, numbers, ends, sent=sent)
                answers = self._ask(self._line(), batches)
                return [*(self._recognise(batches, answers) if sent else answers)]
            except AlsoFailed as error:
                return [error]
            except psycopg.Error as error:
                sent = sent or (lost(error) and self._connection is not None)
                self.close()
                move = _move(error, many=len(batches) > 1, tries=tries, sent=sent and time.monotonic() < ends)
                if move == "fail":
                    return [fault(self._where, error, _known(sent=sent))] * len(batches)
            if move == "singly":
                return [self._resolve([batch], ends, sent=sent, short=False)[0] for batch in batches]
            _pause(tries)

    def _rest(
        self, batches: list[Batch], numbers: tuple[int, ...], ends: float, *, sent: bool
    ) -> list[Answer | StoreError | AlsoFailed]:
        """Return what became of batches by their numbers; those that have none are sent by `append`."""
        left = [batch for batch, number in zip(batches, numbers, strict=True) if not number]
        others = iter(self._resolve(left, ends, sent=sent, short=False) if left else ())
        return [make(Stored, ((number,),)) if number else next(others) for number in numbers]

    def _line(self) -> Connection:
        if self._connection is None:
            connection = connect(self._where)
            for kind in KINDS:
                connection.adapters.register_dumper(kind, PackedDumper)
            try:
                connection.execute("set jit = off")  # for the short way, as `append` has it for itself
                connection.execute("set lock_timeout = '30s'")
                for statement in self._prepare:
                    connection.execute(statement)
            except BaseException:
                hang_up(connection)
                raise
            self._connection = connection
        return self._connection

    def _ask(self, connection: Connection, batches: list[Batch]) -> list[Answer]:
        also = batches[0].also
        if also is None:
            return self._call(connection, batches)
        with connection.transaction():
            answers = self._call(connection, batches)  # one: what brings something along comes alone
            if isinstance(answers[0], Stored):
                join(connection, also)
        return answers

    def _call(self, connection: Connection, batches: list[Batch]) -> list[Answer]:
        result = self._exec(connection, APPEND, arguments(batches))
        return [_answer(result, row) for row in range(result.ntuples)]

    def _exec(self, connection: Connection, name: bytes, values: Sequence[bytes | None]) -> PGresult:
        return called(connection, name, values)

    def _recognise(self, batches: list[Batch], answers: Iterable[Answer]) -> list[Answer]:
        """Turn refusals of what an earlier sending stored into the answer that was lost."""
        return [
            (isinstance(answer, Conflict) and self._stored_before(batch.writes)) or answer
            for batch, answer in zip(batches, answers, strict=True)
        ]

    def _stored_before(self, writes: tuple[Write, ...]) -> Stored | None:
        keys = (
            pack(Texts, [write.entity.encode() for write in writes]),
            pack(Longs, [long(write.expect + 1) for write in writes]),
        )
        rows = self._line().execute(self._standing, keys, binary=True).fetchall()
        standing = {entity: (digest, seq) for entity, digest, seq in rows}
        found = [standing.get(write.entity, (b"", 0)) for write in writes]
        if not writes or any(write.hash != digest for write, (digest, _) in zip(writes, found, strict=True)):
            return None
        return Stored(tuple(seq for _, seq in found))

    def close(self) -> None:
        """Hang up; the next batch opens a new line."""
        connection, self._connection = self._connection, None
        hang_up(connection)


#: Errors after which the same may be sent again at once: others were in the way, or the driver has let go of
#: our prepared statement, as it does after every rollback.
AGAIN = ("40", "26000")


def _move(error: psycopg.Error, *, many: bool, tries: int, sent: bool) -> Literal["again", "singly", "fail"]:
    """Say what follows an error; `sent` that something is on its way and there is time to ask after it."""
    state = error.sqlstate or ""
    if many and state.startswith(SINGLY):
        return "singly"
    if (sent and lost(error)) or (state.startswith(AGAIN) and tries < TRIES):
        return "again"
    return "fail"


def _pause(tries: int) -> None:
    """Wait before asking again: longer each time, up to a second, and not in step with others."""
    time.sleep(min(1.0, 0.01 * 2 ** min(tries, 10)) * random.uniform(0.5, 1.0))  # noqa: S311


def _known(*, sent: bool) -> str:
    return "; whether it is stored is not known" if sent else "; nothing was stored"
