"""A store in memory: for tests and simulations; it forgets everything when the process ends.

It is the protocol written as plainly as it can be, so that it also serves as the model that other
stores are compared with.
"""

from __future__ import annotations

import time
from threading import Condition
from typing import TYPE_CHECKING

from oncemore.core.key import fingerprint
from oncemore.core.record import NOWHERE
from oncemore.errors import StoreError, UsageError
from oncemore.store.base import Conflict, Entry, Facts, Head, Stored, check_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from oncemore.store.base import Batch, Query, Write


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

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._log: list[Entry] = []
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
            conflict = self._conflict(batch)
            if conflict is not None:
                return Settled(conflict)
            seqs = tuple(self._write(write) for write in batch.writes)
            self._changed.notify_all()
            return Settled(Stored(seqs))

    def _conflict(self, batch: Batch) -> Conflict | None:
        expected = {write.entity: write.expect for write in batch.writes}
        for entity, version in {**batch.guards, **expected}.items():
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
        return None if head is None else head._replace(body=self._log[head.seq - 1].body)

    def heads(self, query: Query) -> Iterator[Head]:
        """Return the heads that a query asks for."""
        with self._changed:
            self._check_open()
            found = [head for head in self._heads.values() if _matches(head, query)]
        found.sort(key=lambda head: (head.by.due is None, head.by.due or 0.0, head.entity))
        return iter(found[: query.limit])

    def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in their order."""
        with self._changed:
            self._check_open()
            log = list(self._log)
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

    def prune(self, entity: str, before: int) -> None:
        """Forget bodies; digests stay."""
        with self._changed:
            self._check_open()
            for at, entry in enumerate(self._log):
                if entry.entity == entity and entry.version < before:
                    self._log[at] = entry._replace(body=None)

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

    def close(self) -> None:
        """Refuse everything from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


def _matches(head: Head, query: Query) -> bool:
    by = head.by
    if by.kind != query.kind or (query.due_by is not None and (by.due is None or by.due > query.due_by)):
        return False
    wanted = (query.state, query.step, query.worker, query.dataset)
    return all(
        want is None or want == have
        for want, have in zip(wanted, (by.state, by.step, by.worker, by.dataset), strict=True)
    )
