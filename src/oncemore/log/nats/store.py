"""A store in NATS JetStream: the log is a stream, an entity a subject, and its head the last message there.

Safety rests on one check of the server: a message is stored only if its subject's last message has the
expected sequence. Several entities are one atomic batch. No decision relies on a value that was read earlier,
on the server's duplicate window, on a consumer's acknowledgement or on a clock.

Durability is the server's, and its default is weak: it acknowledges up to two minutes before it syncs. Set
`sync_interval: always`. Only the monitoring port shows that setting, so name it in the address
(`?monitor=http://host:8222`): then a server that does not sync is refused; without it `describe_store` says
that durability is unverified.

Not supported: rows of the user in our transaction (`joins`), and proof of a worker's death other than its
lease. See `docs/guarantees.md`.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from _thread import allocate_lock
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore._platform import run_after_fork
from oncemore.errors import StoreError, UsageError
from oncemore.log.group_commit import PendingBatch
from oncemore.log.nats import messages
from oncemore.log.nats.address import parse_address
from oncemore.log.nats.append import NatsAppender
from oncemore.log.nats.connection import NatsConnection
from oncemore.log.nats.maintenance import NatsMaintenance
from oncemore.log.nats.queries import HeadProjection
from oncemore.log.nats.reader import LogPageReader, NatsLog
from oncemore.log.nats.replies import NoServerReply
from oncemore.log.nats.server_check import NatsServerInfo, prepare_stream
from oncemore.log.read_only import ReadOnlyMixin
from oncemore.log.sqlite.queries import read_all_heads
from oncemore.log.waiters import wait_in_task, wake_waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from oncemore.log.nats.append import AppendAttempt
    from oncemore.log.nats.reader import EntityChain
    from oncemore.log.nats.replies import PublishReply
    from oncemore.log.store import Batch, Conflict, Entry, Head, HeadQuery, MaintenanceStore, Stored

POLL_S = 0.03  # how often `wait_for_change` looks
CLOCK_S = 10.0  # how long the server's time is extrapolated with our own clock


class NatsWorkerLock:
    """The lock of a worker; it holds nothing, since only the lease tells other processes."""

    def close(self) -> None:
        """Do nothing."""


class NatsStore:
    """A store in a JetStream server or cluster."""

    supports_joined_writes = False
    detects_dead_workers = False
    checks_guards_late = True
    #: Whether a missing stream is created.
    creates_stream = True

    def __init__(self, url: str) -> None:
        self._address = parse_address(url)
        if not self.creates_stream:
            # A reader loses nothing by weak durability, and an operator wants to see such a store.
            self._address = self._address._replace(unsafe_ok=True)
        self.display_name = self._address.shown
        self._is_closed = False
        self._reset_state()
        try:
            self.server: NatsServerInfo = self._connection.run_in_loop(
                partial(prepare_stream, self._connection, self.log.subjects, self.creates_stream)
            )
        # A store that cannot be used must not leave its thread behind.
        except NoServerReply as error:
            self._connection.close()
            raise StoreError(f"{self._address.shown}: {error}") from None
        except BaseException:
            self._connection.close()
            raise
        _open_stores.add(self)

    def _reset_state(self) -> None:
        self._connection = NatsConnection(self._address)
        self.log = NatsLog(self._connection, messages.log_subjects(self._address.namespace))
        subjects = self.log.subjects
        self.projection = HeadProjection(self._connection, subjects.stream, f"{subjects.entities}*")
        self._appender = NatsAppender(self.log)
        self._last_now = (0.0, 0.0)  # the time that `now` returned last, and our own clock then
        self._clock_lock = allocate_lock()

    def reset_after_fork(self) -> None:
        """In a forked child: connect again, and neither use nor close the parent's connection."""
        _inherited.append((self._connection, self.projection))
        self._reset_state()

    # Appending

    def append(self, batch: Batch) -> PendingBatch:
        """Return a ticket for a batch, which is sent when the ticket is waited for."""
        if batch.joined_write is not None:
            raise UsageError("NATS has no tables; on_commit() needs SQLite, PostgreSQL or MySQL")
        messages.check_batch_size(batch)
        self._check_open()
        return PendingBatch(self, batch)

    def wait_blocking(self, op: PendingBatch) -> None:
        """Send the batch, and block until it is stored or refused."""
        op.wake_lock = allocate_lock()
        op.wake_lock.acquire()
        self._begin_append(op)
        op.wake_lock.acquire()

    async def wait_async(self, op: PendingBatch) -> None:
        """Send the batch, and wait in a task until it is stored or refused."""
        await wait_in_task(op, self._begin_append)

    def _begin_append(self, op: PendingBatch) -> None:
        self._connection.schedule_in_loop(partial(self._send_batch, op))

    def _send_batch(self, op: PendingBatch) -> Coroutine[Any, Any, None] | None:
        """Send the batch at once if all positions are known; else return a coroutine that does it."""
        try:
            if self._appender.append_now(op.batch, partial(self._on_append_reply, op)) is not None:
                return None
        except Exception as error:  # noqa: BLE001 - raised to the caller that waits
            op.error = error
            _wake_caller(op)
            return None
        return self._append_in_task(op, self._appender.append_batch(op.batch))

    def _on_append_reply(self, op: PendingBatch, attempt: AppendAttempt, reply: PublishReply) -> None:
        """Wake the caller, or find the outcome first if the reply does not say "stored"."""
        if reply.seq and attempt.late_guards:
            # The caller must not learn "stored" before the guards are known to be unchanged.
            self._appender.check_guards(attempt, reply.seq, partial(self._on_guard_check, op, attempt, reply))
        else:
            self._on_guard_check(op, attempt, reply, bool(reply.seq))

    def _on_guard_check(
        self, op: PendingBatch, attempt: AppendAttempt, reply: PublishReply, is_settled: bool | None
    ) -> None:
        """Wake the caller of a batch that is stored with unchanged guards; else find the outcome."""
        if is_settled:
            op.answer = self._appender.remember_stored(op.batch, reply.seq)
            _wake_caller(op)
        else:
            resolving = self._appender.resolve_append(attempt, reply)
            self._connection.create_task(self._append_in_task(op, resolving))

    async def _append_in_task(
        self, op: PendingBatch, appending: Coroutine[Any, Any, Stored | Conflict]
    ) -> None:
        try:
            op.answer = await appending
        except asyncio.CancelledError:
            op.error = StoreError(
                f"{self._address.shown}: interrupted; whether it is stored is not known: read it again"
            )
        except Exception as error:  # noqa: BLE001 - raised to the caller that waits
            op.error = error
        finally:
            _wake_caller(op)

    # Reading

    def ask_in_loop(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a question in the connection's loop, and repeat it until a server answers, for a while."""
        self._check_open()
        return self._connection.run_in_loop(partial(self.log.ask_with_retries, ask))

    def load_head(self, entity: str) -> Head | None:
        """Return the current state of an entity, from the stream's leader."""
        head: Head | None = self.ask_in_loop(partial(self.log.load_head, entity))
        return head

    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        """Return the heads that match a query, up to the leader's last message."""
        if query.by_creation:
            return read_all_heads(self._query_heads)

        async def ask() -> list[Head]:
            last_seq = (await self.log.stream_info())["last_seq"]
            return await self.projection.list_heads(query, last_seq, self.log.load_head)

        heads: list[Head] = self.ask_in_loop(ask)
        return iter(heads)

    def _query_heads(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return rows of the table of heads, complete up to the leader's last message."""

        async def ask() -> list[tuple[Any, ...]]:
            await self.projection.catch_up((await self.log.stream_info())["last_seq"])
            return self.projection.query_rows(sql, values)

        rows: list[tuple[Any, ...]] = self.ask_in_loop(ask)
        return rows

    def read_entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in order: of one entity after a version, or of all after a sequence."""
        if entity is not None:
            chain: EntityChain | None = self.ask_in_loop(partial(self.log.load_chain, entity))
            entries = [] if chain is None else chain.list_entries(entity)
            return (entry for entry in entries if entry.version > after)
        self._check_open()
        return self._read_all_entries(after)

    def _read_all_entries(self, after: int) -> Iterator[Entry]:
        reader = LogPageReader(self.log, self.projection, after)
        self.ask_in_loop(reader.start_reading)
        while (page := self.ask_in_loop(reader.next_page)) is not None:
            yield from page

    def now(self) -> float:
        """Return the server's time, extrapolated with our own clock between two requests.

        It always moves forward, although the next answer may come from a server whose clock is behind.
        """
        asked_at, server_time = self.log.clock
        if not asked_at or time.monotonic() - asked_at > CLOCK_S:
            self.ask_in_loop(self.log.stream_info)
            asked_at, server_time = self.log.clock
        # Several threads may ask at once; each must see a later time than the one before.
        with self._clock_lock:
            ticks = time.monotonic()
            last_now, last_ticks = self._last_now
            now = max(server_time + ticks - asked_at, last_now + ticks - last_ticks if last_now else 0.0)
            self._last_now = (now, ticks)
            return now

    def wait_for_change(self, after: int, timeout: float) -> int:
        """Poll until the log has grown beyond `after`, or until the timeout; return its last sequence."""
        deadline = time.monotonic() + timeout
        while True:
            last_seq: int = self.ask_in_loop(self.log.stream_info)["last_seq"]
            left = deadline - time.monotonic()
            if last_seq > after or left <= 0:
                return last_seq
            time.sleep(min(POLL_S, left))

    # Workers and maintenance

    def register_worker(self, worker: str) -> NatsWorkerLock:
        """Return a lock that holds nothing: other processes see the lease only."""
        return NatsWorkerLock()

    def is_worker_gone(self, worker: str) -> bool:
        """Return False: a closed connection does not prove that a worker is dead."""
        return False

    def open_maintenance(self) -> MaintenanceStore:
        """Return the maintenance operations of this store."""
        return NatsMaintenance(self)

    def close(self) -> None:
        """Close the connection after the appends in progress; acknowledged entries stay."""
        if not self._is_closed:
            self._is_closed = True
            _open_stores.discard(self)
            self._connection.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"{self._address.shown}: the store is closed")


def _wake_caller(op: PendingBatch) -> None:
    """Wake the thread or the task that waits for a batch."""
    if op.wake_lock is not None:
        op.wake_lock.release()
    else:
        wake_waiters([op])


class ReadOnlyNatsStore(ReadOnlyMixin, NatsStore):
    """A store in NATS that is opened for reading: it creates no stream and writes nothing."""

    creates_stream = False


_open_stores: weakref.WeakSet[NatsStore] = weakref.WeakSet()
_inherited: list[object] = []  # keeps the parent's connections of a forked child from being finalised


def _reset_stores_after_fork() -> None:
    for store in list(_open_stores):
        store.reset_after_fork()


run_after_fork(_reset_stores_after_fork)
