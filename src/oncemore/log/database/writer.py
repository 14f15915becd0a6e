"""Writing to a database server: groups of batches, and the resolution of a lost reply.

One call of the server carries a group of batches: one round trip, one commit, one reply per batch.

**A lost reply.** If the connection ends before the reply, the call may have been stored, may still be
running, or may never have arrived. Reading the head would be a guess, because a running commit is not visible
yet. So the same compare-and-set is sent again, on a new connection. It waits for the first one if that holds
the row, or wins and makes it fail; versions never go back, so a refusal now is final. A refused batch is then
compared with the entries at its versions: the hash covers a random nonce of the writer, so an equal hash
proves that the batch was stored.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from oncemore.log.store import Conflict, JoinedWriteFailed, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from oncemore.errors import StoreError
    from oncemore.log.database.connection import DatabaseClient
    from oncemore.log.group_commit import PendingBatch
    from oncemore.log.store import Batch, EntryWrite

    Answer = Stored | Conflict
    Reply = Answer | StoreError | JoinedWriteFailed

C = TypeVar("C")

#: Time limit for the resolution of a lost reply, in seconds.
RESOLVE_S = 30.0
#: Limit of bytes of one statement with more than one batch.
MAX_STATEMENT_BYTES = 16_000_000
#: Limit of tries of a batch that fails because of concurrent transactions.
MAX_TRIES = 20


class DatabaseWriter(Generic[C]):
    """The connection of a process that appends; only the thread with the turn of the group commit uses it."""

    def __init__(self, client: DatabaseClient[C]) -> None:
        self._client = client
        self._connection: C | None = None

    def store_batches(self, batches: Sequence[Batch]) -> list[Reply]:
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
    ) -> list[Reply]:
        """Send batches until there is a reply.

        was_sent  whether they were sent before with an unknown outcome
        fast      whether the server may leave a batch to a second, slower call
        """
        tries = 0
        while True:
            tries += 1
            try:
                answers = self._send_batches(batches, fast=fast)
                if None in answers:
                    return self._send_rest(batches, answers, ends_at, was_sent=was_sent)
                return [*self._recognise_stored(batches, answers, was_sent=was_sent)]
            except JoinedWriteFailed as error:
                return [error]
            except self._client.error as error:
                # Without a connection nothing was sent, so the outcome is known.
                was_sent = was_sent or (
                    self._client.is_connection_lost(error) and self._connection is not None
                )
                self.close()
                action = self._next_action(
                    error,
                    is_group=len(batches) > 1,
                    tries=tries,
                    is_unresolved=was_sent and time.monotonic() < ends_at,
                )
                if action == "fail":
                    outcome = _describe_outcome(was_sent=was_sent)
                    return [self._client.build_store_error(error, outcome)] * len(batches)
            if action == "singly":
                return [
                    self._send_until_answered([batch], ends_at, was_sent=was_sent, fast=False)[0]
                    for batch in batches
                ]
            wait_before_retry(tries)

    def _send_rest(
        self, batches: list[Batch], answers: list[Answer | None], ends_at: float, *, was_sent: bool
    ) -> list[Reply]:
        """Return the replies, after sending the batches without one by the slower call."""
        remaining = [batch for batch, answer in zip(batches, answers, strict=True) if answer is None]
        rest = iter(self._send_until_answered(remaining, ends_at, was_sent=was_sent, fast=False))
        return [next(rest) if answer is None else answer for answer in answers]

    def _next_action(
        self, error: Exception, *, is_group: bool, tries: int, is_unresolved: bool
    ) -> Literal["again", "singly", "fail"]:
        """Return the next action after an error.

        is_unresolved  whether a try with an unknown outcome can still be resolved within the time limit
        """
        client = self._client
        if is_group and client.may_be_one_batch(error):
            return "singly"
        if (is_unresolved and client.is_connection_lost(error)) or (
            client.is_transient(error) and tries < MAX_TRIES
        ):
            return "again"
        return "fail"

    def _writer_connection(self) -> C:
        if self._connection is None:
            connection = self._open_writer()
            try:
                self._prepare_connection(connection)
            except BaseException:
                self._client.close_connection(connection)
                raise
            self._connection = connection
        return self._connection

    def _open_writer(self) -> C:
        """Open the connection for appends."""
        return self._client.open_connection()

    def _prepare_connection(self, connection: C) -> None:
        """Set up a new connection for appends."""
        raise NotImplementedError

    def _send_batches(self, batches: list[Batch], *, fast: bool) -> list[Answer | None]:
        """Send a group in one call; a batch without an answer is sent again with `fast` off."""
        raise NotImplementedError

    def _read_hashes(self, writes: tuple[EntryWrite, ...]) -> Mapping[str, tuple[bytes, int]]:
        """Return, by entity, hash and seq of the entries that have the versions of these writes."""
        raise NotImplementedError

    def _recognise_stored(
        self, batches: list[Batch], answers: Iterable[Any], *, was_sent: bool
    ) -> Iterable[Answer]:
        """Replace conflicts of batches that an earlier try stored by the reply that was lost."""
        if not was_sent:
            return answers
        return [
            (isinstance(answer, Conflict) and self._stored_before(batch.writes)) or answer
            for batch, answer in zip(batches, answers, strict=True)
        ]

    def _stored_before(self, writes: tuple[EntryWrite, ...]) -> Stored | None:
        # On the same connection, after the refusal: no running commit can add these versions later.
        stored = self._read_hashes(writes) if writes else {}
        entries = [stored.get(write.entity, (b"", 0)) for write in writes]
        if not writes or [write.hash for write in writes] != [own_hash for own_hash, _ in entries]:
            return None
        return Stored(tuple(seq for _, seq in entries))

    def close(self) -> None:
        """Close the connection; the next batch opens a new one."""
        connection, self._connection = self._connection, None
        self._client.close_connection(connection)


def wait_before_retry(tries: int) -> None:
    """Sleep before the next try: longer each time, up to a second, with jitter."""
    time.sleep(min(1.0, 0.01 * 2 ** min(tries, 10)) * random.uniform(0.5, 1.0))  # noqa: S311


def _describe_outcome(*, was_sent: bool) -> str:
    return "; whether it is stored is not known" if was_sent else "; nothing was stored"


def _first_entity(op: PendingBatch) -> str:
    return op.batch.writes[0].entity if op.batch.writes else ""


def measure_batch(batch: Batch) -> int:
    """Return the number of bytes that a batch stores."""
    return sum(len(write.body) + len(write.header) + len(write.head) for write in batch.writes)


def split_groups(ops: list[PendingBatch], max_bytes: int) -> Iterator[list[PendingBatch]]:
    """Split pending batches into statements of bounded size, ordered by entity.

    A joined write gets a statement of its own. The order makes collisions with other processes rare.
    """
    group: list[PendingBatch] = []
    space = max_bytes
    for op in sorted(ops, key=_first_entity):
        size = measure_batch(op.batch)
        if op.batch.joined_write is not None:
            yield [op]
            continue
        if group and size > space:
            yield group
            group, space = [], max_bytes
        group.append(op)
        space -= size
    if group:
        yield group
