"""Writing to PostgreSQL: batches as arrays of one statement, and what to do when its answer is lost.

One call of the server's `append` carries a group of batches: one round trip, one commit, one answer per
batch. Arrays are packed here in the server's binary form; the driver's own way costs up to three times the
processor time of the whole call.

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

from oncemore.store.base import AlsoFailed, Conflict, Head, Index, Stored
from oncemore.store.postgres_joined import join
from oncemore.store.postgres_wire import Dumper, Format, connect, fault, hang_up, lost, psycopg

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncemore.errors import StoreError
    from oncemore.store.base import Batch, Write
    from oncemore.store.postgres_wire import Address, Connection

    Answer = Stored | Conflict

#: How long to go on asking what became of a batch whose answer was lost, in seconds.
RESOLVE_S = 30.0
#: How often a lone batch that others got in the way of is sent before that counts as a fault.
TRIES = 20
#: Others were in the way, or one batch of the group cannot be stored: each is sent for itself.
SINGLY = ("22", "23", "40", "54")


class Packed(bytes):
    """An array in the server's binary form."""

    __slots__ = ()
    oid = element = 0


class Ints(Packed):
    """An int4[]."""

    oid, element = 1007, 23


class Longs(Packed):
    """An int8[]."""

    oid, element = 1016, 20


class Floats(Packed):
    """A float8[]."""

    oid, element = 1022, 701


class Texts(Packed):
    """A text[]."""

    oid, element = 1009, 25


class Blobs(Packed):
    """A bytea[]."""

    oid, element = 1001, 17


class _PackedDumper(Dumper):
    """Hands the bytes over as they are."""

    format = Format.BINARY

    def __init__(self, cls: type[Packed], context: Any = None) -> None:
        super().__init__(cls, context)
        self.oid = cls.oid

    def dump(self, obj: Packed) -> bytes:
        return obj


_length = struct.Struct(">i").pack
_long = struct.Struct(">q").pack
_float = struct.Struct(">d").pack


def pack(kind: type[Packed], items: Sequence[bytes | None]) -> Packed:
    """Return an array of elements that are in binary form already; None is NULL."""
    if not items:
        return kind(struct.pack(">iii", 0, 0, kind.element))
    parts = [struct.pack(">iiiii", 1, 1, kind.element, len(items), 1)]
    for item in items:
        if item is None:
            parts.append(b"\xff\xff\xff\xff")
        else:
            parts += (_length(len(item)), item)
    return kind(b"".join(parts))


def arguments(batches: Sequence[Batch]) -> tuple[object, ...]:
    """Return what `append` is called with: its arrays are parallel, a row for each write or guard."""
    writes = [(at, write) for at, batch in enumerate(batches, 1) for write in batch.writes]
    guards = [(at, *guard) for at, batch in enumerate(batches, 1) for guard in batch.guards.items()]
    plain = [write for _, write in writes]
    return (
        len(batches),
        pack(Ints, [_length(at) for at, _ in writes]),
        pack(Texts, [write.entity.encode() for write in plain]),
        pack(Longs, [_long(write.expect) for write in plain]),
        pack(Blobs, [write.hash for write in plain]),
        pack(Blobs, [write.header for write in plain]),
        pack(Blobs, [write.body for write in plain]),
        pack(Blobs, [write.head for write in plain]),
        pack(Texts, [write.by.kind.encode() for write in plain]),
        pack(Texts, [write.by.state.encode() for write in plain]),
        pack(Floats, [None if write.by.due is None else _float(write.by.due) for write in plain]),
        pack(Texts, [write.by.step.encode() for write in plain]),
        pack(Texts, [write.by.worker.encode() for write in plain]),
        pack(Texts, [write.by.dataset.encode() for write in plain]),
        pack(Ints, [_length(at) for at, _, _ in guards]),
        pack(Texts, [entity.encode() for _, entity, _ in guards]),
        pack(Longs, [_long(version) for _, _, version in guards]),
        any(batch.sync for batch in batches),
    )


def head_of(row: Sequence[Any]) -> Head:
    """Make a head of its columns; the body may be left out."""
    entity, version, digest, head, kind, state, due, step, worker, dataset, seq, *body = row
    return Head(entity, version, digest, head, Index(kind, state, due, step, worker, dataset), seq, *body)


def _answer(row: Sequence[Any]) -> Answer:
    missed, seqs, *head = row
    if missed is None:
        return Stored(tuple(seqs))
    return Conflict(missed, None if head[0] is None else head_of(head))


class Writer:
    """The one connection of a process that appends; whoever has the combiner's turn uses it."""

    def __init__(self, where: Address, schema: str) -> None:
        self._where = where
        self._connection: Connection | None = None
        holes = ",".join(["%b"] * 18)
        self._append = f"select * from {schema}.append({holes})".encode()  # noqa: S608 - a checked name
        self._standing = (
            f"select entity, hash, seq from {schema}.log "  # noqa: S608 - a checked name
            "where (entity, version) in (select * from unnest(%b::text[], %b::bigint[]))"
        ).encode()

    def store(self, batches: Sequence[Batch]) -> list[Answer | StoreError | AlsoFailed]:
        """Store batches; return what became of each. One that cannot be stored hurts nobody else."""
        try:
            return self._resolve(list(batches), time.monotonic() + RESOLVE_S, sent=False)
        except BaseException:
            self.close()
            raise

    def _resolve(
        self, batches: list[Batch], ends: float, *, sent: bool
    ) -> list[Answer | StoreError | AlsoFailed]:
        """Send until there is an answer; `sent` says that they were before, with an unknown end."""
        tries = 0
        while True:
            tries += 1
            try:
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
                return [self._resolve([batch], ends, sent=sent)[0] for batch in batches]
            _pause(tries)

    def _line(self) -> Connection:
        if self._connection is None:
            connection = connect(self._where)
            for kind in (Ints, Longs, Floats, Texts, Blobs):
                connection.adapters.register_dumper(kind, _PackedDumper)
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
        cursor = connection.execute(self._append, arguments(batches), prepare=True, binary=True)
        return [_answer(row) for row in cursor.fetchall()]

    def _recognise(self, batches: list[Batch], answers: Iterable[Answer]) -> list[Answer]:
        """Turn refusals of what an earlier sending stored into the answer that was lost."""
        return [
            (isinstance(answer, Conflict) and self._stored_before(batch.writes)) or answer
            for batch, answer in zip(batches, answers, strict=True)
        ]

    def _stored_before(self, writes: tuple[Write, ...]) -> Stored | None:
        keys = (
            pack(Texts, [write.entity.encode() for write in writes]),
            pack(Longs, [_long(write.expect + 1) for write in writes]),
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


def _move(error: psycopg.Error, *, many: bool, tries: int, sent: bool) -> Literal["again", "singly", "fail"]:
    """Say what follows an error; `sent` that something is on its way and there is time to ask after it."""
    state = error.sqlstate or ""
    if many and state.startswith(SINGLY):
        return "singly"
    if (sent and lost(error)) or (state.startswith("40") and tries < TRIES):
        return "again"
    return "fail"


def _pause(tries: int) -> None:
    """Wait before asking again: longer each time, up to a second, and not in step with others."""
    time.sleep(min(1.0, 0.01 * 2 ** min(tries, 10)) * random.uniform(0.5, 1.0))  # noqa: S311


def _known(*, sent: bool) -> str:
    return "; whether it is stored is not known" if sent else "; nothing was stored"
