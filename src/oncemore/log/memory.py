"""A store in memory, for tests and simulations: everything is lost when the process ends.

It implements the protocol as simply as possible, so that it also serves as the model for the other stores.
"""

from __future__ import annotations

import time
from threading import Condition
from typing import TYPE_CHECKING

from oncemore.errors import StoreError, UsageError
from oncemore.log.record import NOWHERE
from oncemore.log.store import (
    Conflict,
    EntitySizes,
    Entry,
    FilelessMaintenance,
    Head,
    StorageSpace,
    Stored,
    StoreFacts,
    check_batch,
    check_next,
    hash_body,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.store import Batch, CopyCheck, EntryWrite, HeadQuery


class CompletedTicket:
    """A ticket whose answer is known."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Stored | Conflict) -> None:
        self._answer = answer

    def wait(self) -> Stored | Conflict:
        """Return the answer at once."""
        return self._answer

    def __await__(self) -> Generator[object, object, Stored | Conflict]:
        yield from ()
        return self._answer


class MemoryWorkerLock:
    """The lock of a worker of this process."""

    __slots__ = ("_live_workers", "_worker")

    def __init__(self, live_workers: set[str], worker: str) -> None:
        self._live_workers = live_workers
        self._worker = worker

    def close(self) -> None:
        """Release the lock: the worker is gone from now on."""
        self._live_workers.discard(self._worker)


class MemoryStore(FilelessMaintenance):
    """A store of entries in a list and heads in a dictionary, under one lock."""

    supports_joined_writes = False
    detects_dead_workers = True

    def __init__(self, now: Callable[[], float] = time.time, *, checks_guards_late: bool = False) -> None:
        self._now = now
        self.checks_guards_late = checks_guards_late
        # The entry with `seq` n is at n - 1. A dropped entry leaves None, so that no number is reused.
        self._log: list[Entry | None] = []
        self._heads: dict[str, Head] = {}
        self._changed = Condition()
        self._closed = False
        self._live_workers: set[str] = set()

    def append(self, batch: Batch) -> CompletedTicket:
        """Store a batch, or return the conflict that prevents it."""
        check_batch(batch)
        if batch.joined_write is not None:
            raise UsageError("a store in memory has no tables; on_commit() needs SQLite, PostgreSQL or MySQL")
        with self._changed:
            self._check_open()
            # The late comparison of guards is for simulations of stores that do it, such as NATS.
            late = batch.late and self.checks_guards_late
            expected = {write.entity: write.expect for write in batch.writes}
            conflict = self._find_conflict(expected if late else {**batch.guards, **expected})
            if conflict is not None:
                return CompletedTicket(conflict)
            seqs = tuple(self._apply_write(write) for write in batch.writes)
            self._changed.notify_all()
            # A moved guard is reported after the batch is stored: the caller must undo it.
            moved = self._find_conflict(batch.guards) if late else None
            return CompletedTicket(Stored(seqs) if moved is None else moved._replace(stored_seqs=seqs))

    def _find_conflict(self, expected: Mapping[str, int]) -> Conflict | None:
        for entity, version in expected.items():
            head = self._heads.get(entity)
            if (0 if head is None else head.version) != version:
                return Conflict(entity, self._with_body(head))
        return None

    def _apply_write(self, write: EntryWrite) -> int:
        before = self._heads.get(write.entity)
        seq = len(self._log) + 1
        self._log.append(
            Entry(
                seq=seq,
                entity=write.entity,
                version=write.expect + 1,
                prev=NOWHERE if before is None else before.hash,
                hash=write.hash,
                header=write.header,
                body=write.body,
                body_digest=None,
            )
        )
        self._heads[write.entity] = Head(
            write.entity, write.expect + 1, write.hash, write.head, write.by, seq
        )
        return seq

    def load_head(self, entity: str) -> Head | None:
        """Return the head of an entity with the body of its last entry."""
        with self._changed:
            self._check_open()
            return self._with_body(self._heads.get(entity))

    def _with_body(self, head: Head | None) -> Head | None:
        if head is None:
            return None
        # The last entry of an entity is dropped only together with its head.
        last = self._log[head.seq - 1]
        assert last is not None
        return head._replace(body=last.body)

    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        """Return the heads that match a query."""
        with self._changed:
            self._check_open()
            if query.by_creation:
                return iter(list(self._heads.values()))
            heads = [head for head in self._heads.values() if _matches_query(head, query)]
            if query.body_contains:
                with_bodies = [self._with_body(head) or head for head in heads]
                heads = [head for head in with_bodies if query.body_contains in (head.body or b"")]
        if query.after is not None:
            heads.sort(key=lambda head: head.entity)
        elif query.newest_first:
            heads.sort(key=lambda head: -head.seq)
        else:
            heads.sort(key=lambda head: (head.by.due is None, head.by.due or 0.0, head.entity))
        return iter(heads[: query.limit])

    def read_entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in order: of one entity after a version, or of all entities after a `seq`."""
        with self._changed:
            self._check_open()
            # A copy, because the caller reads it without the lock.
            log = self._sorted_entries()
        if entity is None:
            return (entry for entry in log if entry.seq > after)
        return (entry for entry in log if entry.entity == entity and entry.version > after)

    def now(self) -> float:
        """Return the time of the clock that the store was given."""
        return self._now()

    def wait_for_change(self, after: int, timeout: float) -> int:
        """Wait until the log has grown."""
        with self._changed:
            # Also woken by close(), or a waiting thread would sleep until its timeout.
            self._changed.wait_for(lambda: len(self._log) > after or self._closed, timeout)
            return len(self._log)

    def prune_bodies(self, before: Mapping[str, int]) -> None:
        """Delete the bodies below a version; keep the digests."""
        with self._changed:
            self._check_open()
            for entry in self._sorted_entries():
                if entry.version < before.get(entry.entity, 0):
                    self._log[entry.seq - 1] = entry._replace(body=None, body_digest=hash_body(entry))

    def drop_entities(self, at: Mapping[str, int]) -> int:
        """Delete entities that have these versions; return how many."""
        with self._changed:
            self._check_open()
            dropped = {head.entity for head in self._heads.values() if at.get(head.entity) == head.version}
            for entity in dropped:
                del self._heads[entity]
            for entry in self._sorted_entries():
                if entry.entity in dropped:
                    self._log[entry.seq - 1] = None
            return len(dropped)

    def _sorted_entries(self) -> list[Entry]:
        return [entry for entry in self._log if entry is not None]

    def replace_heads(self, heads: Sequence[Head], upto: int) -> int:
        """Replace heads, except those of entities with entries after `upto`; return how many."""
        with self._changed:
            self._check_open()
            # A head with later entries is newer than the rebuilt one.
            later = {entry.entity for entry in self._sorted_entries() if entry.seq > upto}
            replaced = {head.entity: head._replace(body=None) for head in heads if head.entity not in later}
            self._heads.update(replaced)
            return len(replaced)

    def import_entries(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Append entries of another log under new sequence numbers."""
        with self._changed:
            self._check_open()
            names = {entry.entity for entry in entries} & self._heads.keys()
            current = {name: (self._heads[name].version, self._heads[name].hash) for name in names}
            # All checks come before the first change: all entries are imported or none.
            check_next(entries, heads, current)
            last_seq = {}
            for entry in entries:
                last_seq[entry.entity] = seq = len(self._log) + 1
                self._log.append(entry._replace(seq=seq))
            for head in heads:
                self._heads[head.entity] = head._replace(seq=last_seq[head.entity], body=None)
            self._changed.notify_all()

    def register_worker(self, worker: str) -> MemoryWorkerLock:
        """Report a worker of this process as alive until its lock is closed."""
        with self._changed:
            self._live_workers.add(worker)
        return MemoryWorkerLock(self._live_workers, worker)

    def is_worker_gone(self, worker: str) -> bool:
        """Whether a worker has closed its lock: all workers are in this process."""
        with self._changed:
            return worker not in self._live_workers

    def open_maintenance(self) -> MemoryStore:
        """Return this store: it has the maintenance operations itself."""
        return self

    def describe_store(self) -> StoreFacts:
        """Return that nothing survives the process."""
        return StoreFacts("memory:", "memory", "nothing survives the process")

    def measure_space(self, in_detail: bool = False) -> StorageSpace:
        """Return the sizes of entities and entries; the store uses no disk."""
        if not in_detail:
            return StorageSpace()
        kinds: dict[str, EntitySizes] = {}
        with self._changed:
            self._check_open()
            sizes = [(head.entity, 1, 0, len(head.head)) for head in self._heads.values()]
            sizes += [
                (entry.entity, 0, 1, len(entry.header) + len(entry.body or b""))
                for entry in self._sorted_entries()
            ]
        for name, entities, entries, size in sizes:
            kind = name.partition("/")[0]
            total = kinds.get(kind, EntitySizes())
            kinds[kind] = EntitySizes(total.entities + entities, total.entries + entries, total.bytes + size)
        return StorageSpace(kinds=kinds)

    def write_backup(self, to: Path, check: CopyCheck, progress: Callable[[int, int], object]) -> None:
        """Refuse: there is no file to copy."""
        raise UsageError("a store in memory ends with its process; there is nothing to back up")

    def close(self) -> None:
        """Refuse all further calls."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


def _matches_query(head: Head, query: HeadQuery) -> bool:
    index = head.by
    if query.after is not None and head.entity <= query.after:
        return False
    if query.kind not in ("", index.kind):
        return False
    # A head without a due time is never due.
    if query.due_by is not None and (index.due is None or index.due > query.due_by):
        return False
    if not head.entity.startswith(query.prefix) or query.head_contains not in head.head:
        return False
    if head.seq <= query.after_seq or (query.before_seq is not None and head.seq >= query.before_seq):
        return False
    columns = ("state", "step", "worker", "dataset")
    return all(getattr(query, name) in (None, getattr(index, name)) for name in columns)
