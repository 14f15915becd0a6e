"""A store in memory: for tests and simulations; it forgets everything when the process ends.

It is the protocol written as plainly as it can be, so that it also serves as the model that other
stores are compared with.
"""

from __future__ import annotations

import time
from threading import Condition
from typing import TYPE_CHECKING

from oncemore.errors import StoreError, UsageError
from oncemore.log.record import NOWHERE
from oncemore.log.store import Conflict, Entry, Facts, Head, Room, Stored, Weight, check_batch, check_next
from oncemore.policy.canonical_json import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.store import Batch, Checked, Query, Write


class Settled:
    """A ticket whose answer is there already."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Stored | Conflict) -> None:
        self._answer = answer

    def wait(self) -> Stored | Conflict:
        """Return the answer."""
        return self._answer

    def __await__(self) -> Generator[object, object, Stored | Conflict]:
        yield from ()
        return self._answer


class Here:
    """A worker of this process; see `Presence`."""

    __slots__ = ("_all", "_worker")

    def __init__(self, everybody: set[str], worker: str) -> None:
        self._all = everybody
        self._worker = worker

    def close(self) -> None:
        """Leave."""
        self._all.discard(self._worker)


class MemoryStore:
    """Entries in a list, heads in a dictionary, one lock."""

    joins = False
    sees_deaths = True

    def __init__(self, now: Callable[[], float] = time.time, *, looks_late: bool = False) -> None:
        self._now = now
        self.looks_late = looks_late
        self._log: list[Entry | None] = []  # by seq, from 1; None for what was dropped: no number comes twice
        self._heads: dict[str, Head] = {}
        self._changed = Condition()
        self._closed = False
        self._here: set[str] = set()

    def append(self, batch: Batch) -> Settled:
        """Store a batch, or say what stands in its way."""
        check_batch(batch)
        if batch.also is not None:
            raise UsageError("a store in memory has no tables; on_commit() needs SQLite or PostgreSQL")
        with self._changed:
            self._check_open()
            late = batch.late and self.looks_late
            expected = {write.entity: write.expect for write in batch.writes}
            conflict = self._conflict(expected if late else {**batch.guards, **expected})
            if conflict is not None:
                return Settled(conflict)
            seqs = tuple(self._write(write) for write in batch.writes)
            self._changed.notify_all()
            moved = self._conflict(batch.guards) if late else None
            return Settled(Stored(seqs) if moved is None else moved._replace(stands=seqs))

    def _conflict(self, expected: Mapping[str, int]) -> Conflict | None:
        for entity, version in expected.items():
            head = self._heads.get(entity)
            if (0 if head is None else head.version) != version:
                return Conflict(entity, self._whole(head))
        return None

    def _write(self, write: Write) -> int:
        before = self._heads.get(write.entity)
        seq = len(self._log) + 1
        self._log.append(
            Entry(
                seq,
                write.entity,
                write.expect + 1,
                NOWHERE if before is None else before.hash,
                write.hash,
                write.header,
                write.body,
                fingerprint(write.body),
            )
        )
        self._heads[write.entity] = Head(
            write.entity, write.expect + 1, write.hash, write.head, write.by, seq
        )
        return seq

    def head(self, entity: str) -> Head | None:
        """Return the current state of an entity."""
        with self._changed:
            self._check_open()
            return self._whole(self._heads.get(entity))

    def _whole(self, head: Head | None) -> Head | None:
        if head is None:
            return None
        last = self._log[head.seq - 1]
        assert last is not None
        return head._replace(body=last.body)

    def heads(self, query: Query) -> Iterator[Head]:
        """Return the heads that a query asks for."""
        with self._changed:
            self._check_open()
            found = [head for head in self._heads.values() if _matches(head, query)]
            if query.tells:
                whole = [self._whole(head) or head for head in found]
                found = [head for head in whole if query.tells in (head.body or b"")]
        if query.after is not None:
            found.sort(key=lambda head: head.entity)
        elif query.newest:
            found.sort(key=lambda head: -head.seq)
        else:
            found.sort(key=lambda head: (head.by.due is None, head.by.due or 0.0, head.entity))
        return iter(found[: query.limit])

    def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in their order."""
        with self._changed:
            self._check_open()
            log = self._there()
        if entity is None:
            return (entry for entry in log if entry.seq > after)
        return (entry for entry in log if entry.entity == entity and entry.version > after)

    def now(self) -> float:
        """Return the time."""
        return self._now()

    def changed(self, after: int, timeout: float) -> int:
        """Wait until the log has grown."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._log) > after or self._closed, timeout)
            return len(self._log)

    def prune(self, before: Mapping[str, int]) -> None:
        """Forget bodies; digests stay."""
        with self._changed:
            self._check_open()
            for entry in self._there():
                if entry.version < before.get(entry.entity, 0):
                    self._log[entry.seq - 1] = entry._replace(body=None)

    def drop(self, at: Mapping[str, int]) -> int:
        """Remove entities that are at these versions."""
        with self._changed:
            self._check_open()
            gone = {head.entity for head in self._heads.values() if at.get(head.entity) == head.version}
            for entity in gone:
                del self._heads[entity]
            for entry in self._there():
                if entry.entity in gone:
                    self._log[entry.seq - 1] = None
            return len(gone)

    def _there(self) -> list[Entry]:
        return [entry for entry in self._log if entry is not None]

    def mend(self, heads: Sequence[Head], upto: int) -> int:
        """Put heads in the place of what is there."""
        with self._changed:
            self._check_open()
            later = {entry.entity for entry in self._there() if entry.seq > upto}
            put = {head.entity: head._replace(body=None) for head in heads if head.entity not in later}
            self._heads.update(put)
            return len(put)

    def adopt(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Take over entries of another log."""
        with self._changed:
            self._check_open()
            names = {entry.entity for entry in entries}
            standing = {name: self._heads[name] for name in names if name in self._heads}
            check_next(entries, heads, {name: (head.version, head.hash) for name, head in standing.items()})
            at = {}
            for entry in entries:
                at[entry.entity] = seq = len(self._log) + 1
                self._log.append(entry._replace(seq=seq))
            self._heads.update({head.entity: head._replace(seq=at[head.entity], body=None) for head in heads})
            self._changed.notify_all()

    def enter(self, worker: str) -> Here:
        """Count a worker of this process as alive until it leaves."""
        with self._changed:
            self._here.add(worker)
        return Here(self._here, worker)

    def gone(self, worker: str) -> bool:
        """Whether a worker has left: all of them are in this process."""
        with self._changed:
            return worker not in self._here

    def facts(self) -> Facts:
        """Say that nothing of it lasts."""
        return Facts("memory:", "memory", "nothing survives the process")

    def house(self) -> MemoryHouse:
        """Return what keeps house here."""
        return MemoryHouse(self)

    def all(self) -> tuple[list[Head], list[Entry]]:
        """Return all heads and all entries."""
        with self._changed:
            self._check_open()
            return list(self._heads.values()), self._there()

    def close(self) -> None:
        """Refuse everything from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


class MemoryHouse:
    """The house of a store that has no file: nothing is copied, nothing is left behind."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def held(self) -> str:
        """Return that it is no copy."""
        return ""

    def acknowledge(self) -> None:
        """Do nothing."""

    def weights(self) -> dict[str, Weight]:
        """Count everything."""
        found: dict[str, Weight] = {}
        heads, entries = self._store.all()
        for name, entities, logged, size in (
            *((head.entity, 1, 0, len(head.head)) for head in heads),
            *((entry.entity, 0, 1, len(entry.header) + len(entry.body or b"")) for entry in entries),
        ):
            kind = name.partition("/")[0]
            so_far = found.get(kind, Weight())
            found[kind] = Weight(so_far.entities + entities, so_far.entries + logged, so_far.bytes + size)
        return found

    def room(self) -> Room:
        """Return that it takes no room of any disk."""
        return Room()

    def spare(self) -> int:
        """Return that nothing is free."""
        return 0

    def tidy(self) -> str:
        """Do nothing."""
        return ""

    def backup(self, to: Path, check: Checked, progress: Callable[[int, int], object]) -> None:
        """Refuse: there is nothing that lasts."""
        raise UsageError("a store in memory is forgotten with its process; there is nothing to back up")


def _matches(head: Head, query: Query) -> bool:
    by = head.by
    if query.after is not None and head.entity <= query.after:
        return False
    if by.kind != query.kind or (query.due_by is not None and (by.due is None or by.due > query.due_by)):
        return False
    if not head.entity.startswith(query.begins) or query.holds not in head.head:
        return False
    if head.seq <= query.above or (query.below is not None and head.seq >= query.below):
        return False
    wanted = (query.state, query.step, query.worker, query.dataset)
    return all(
        want is None or want == have
        for want, have in zip(wanted, (by.state, by.step, by.worker, by.dataset), strict=True)
    )
