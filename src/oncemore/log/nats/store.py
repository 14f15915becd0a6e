"""A store in NATS JetStream: the log is a stream, an entity a subject, a head the last message of it.

**Safety** rests on one thing: a message is stored only if its subject's last message has the sequence that
it expects, which the server checks. Several entities are one atomic batch. Nothing is decided by what was
read, by a window of duplicates, by an acknowledgement of a consumer or by a clock.

    nats_frames   what a message holds                  nats_append   appending, lost answers
    nats_wire     the connection and its requests       nats_log      reading
    nats_server   what a server must be                 nats_list     lists of heads
    nats_address  where it is                           nats_forget   prune, drop, mend, tidy
    nats_adopt    taking over another log's entries     nats_crowd    batches with guards, together
    nats_late     guards that are looked at afterwards

**Durability** is what the server gives, and by default it gives little: it acknowledges before it syncs, up
to two minutes before. Set `sync_interval: always`. No client can see that setting; only the monitoring port
tells, so name it (`?monitor=http://host:8222`): a server that does not sync is refused then, and without it
`facts()` says that nobody has checked.

Not here: rows of the user's own in our transaction (`joins`), and proof that a worker is gone other than its
lease. See `docs/guarantees.md`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import weakref
from _thread import allocate_lock
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError, UsageError
from oncemore.log.group_commit import Op, asleep, release
from oncemore.log.nats import import_entries, messages
from oncemore.log.nats import prune as nats_forget
from oncemore.log.nats.address import address
from oncemore.log.nats.append import Appender
from oncemore.log.nats.connection import Line, Unanswered
from oncemore.log.nats.prune import Forgetter
from oncemore.log.nats.queries import Projection
from oncemore.log.nats.reader import Log, Reader
from oncemore.log.nats.server_check import Server, prepare
from oncemore.log.store import Room, Weight, check_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.nats.append import Try
    from oncemore.log.nats.connection import Answer
    from oncemore.log.nats.reader import Chain
    from oncemore.log.store import Batch, Checked, Conflict, Entry, Facts, Head, Query, Stored

LOOK_S = 0.03  # how often `changed` looks
CLOCK_S = 10.0  # how long the server's time is reckoned with our own clock before it is asked again


class Present:
    """A worker that is here. Nothing but its lease tells others."""

    def close(self) -> None:
        """Leave."""


class NatsStore:
    """A store in a JetStream server or cluster."""

    joins = False
    sees_deaths = False
    looks_late = True
    #: Whether a stream is made where there is none; who does not make one does not write either.
    makes = True

    def __init__(self, url: str) -> None:
        self._where = address(url)
        if not self.makes:
            self._where = self._where._replace(unsafe_ok=True)
        self._closed = False
        self._fresh()
        try:
            self._server: Server = self._line.do(partial(prepare, self._line, self._log.where, self.makes))
        except Unanswered as error:
            self._line.close()
            raise StoreError(f"{self._where.shown}: {error}") from None
        except BaseException:
            self._line.close()
            raise
        _open_stores.add(self)

    def _fresh(self) -> None:
        self._line = Line(self._where)
        self._log = Log(self._line, messages.subjects(self._where.namespace))
        self._projection = Projection(self._line, self._log.where.stream, f"{self._log.where.entities}*")
        self._appender = Appender(self._log)
        self._forgetter = Forgetter(self._log, self._projection)
        self._reckoned = (0.0, 0.0)  # the time that was told last, and our own clock then
        self._reckoning = allocate_lock()

    def forked(self) -> None:
        """In a forked child: leave what was inherited alone, and make everything anew."""
        _left_alone.append((self._line, self._projection))
        self._fresh()

    # Appending.

    def append(self, batch: Batch) -> Op:
        """Ask for a batch to be stored."""
        check_batch(batch)
        if batch.also is not None:
            raise UsageError("NATS has no tables; on_commit() needs SQLite or PostgreSQL")
        messages.check(batch)
        self._check_open()
        return Op(self, batch)

    def wait(self, op: Op) -> None:
        """Send it, and block until it is stored or refused."""
        op.gate = allocate_lock()
        op.gate.acquire()
        self._begin(op)
        op.gate.acquire()

    async def wait_in_loop(self, op: Op) -> None:
        """Send it, and wait in a task."""
        await asleep(op, self._begin)

    def _begin(self, op: Op) -> None:
        self._line.begin(partial(self._serve, op))

    def _serve(self, op: Op) -> Coroutine[Any, Any, None] | None:
        """Send it at once if all is known that must be; else in a task."""
        try:
            if self._appender.at_once(op.batch, partial(self._heard, op)) is not None:
                return None
        except Exception as error:  # noqa: BLE001 - told to who asked
            op.error = error
            release([op])
            return None
        return self._slowly(op, self._appender.append(op.batch))

    def _heard(self, op: Op, one: Try, answer: Answer) -> None:
        """Tell who waits; or find out, if the answer does not say that it is stored."""
        if answer.seq and one.late:
            self._appender.look(one, answer.seq, partial(self._looked, op, one, answer))
        elif answer.seq:
            op.answer = self._appender.stored(op.batch, answer.seq)
            release([op])
        else:
            self._line.go_on(self._slowly(op, self._appender.finish(one, answer)))

    def _looked(self, op: Op, one: Try, answer: Answer, held: bool | None) -> None:
        """Tell who waits, if what it relied on was as it had been seen; else find out."""
        if held:
            op.answer = self._appender.stored(op.batch, answer.seq)
            release([op])
        else:
            self._line.go_on(self._slowly(op, self._appender.finish(one, answer)))

    async def _slowly(self, op: Op, appending: Coroutine[Any, Any, Stored | Conflict]) -> None:
        try:
            op.answer = await appending
        except asyncio.CancelledError:
            op.error = StoreError(f"{self._where.shown}: interrupted; what was stored must be read again")
        except Exception as error:  # noqa: BLE001 - told to who asked
            op.error = error
        finally:
            release([op])

    # Reading.

    def _ask(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._check_open()
        return self._line.do(partial(self._log.patiently, ask))

    def head(self, entity: str) -> Head | None:
        """Return the current state of an entity, as the leader of the stream says."""
        found: Head | None = self._ask(partial(self._log.head, entity))
        return found

    def heads(self, query: Query) -> Iterator[Head]:
        """Return the heads that a query asks for, as far as the leader has come."""

        async def ask() -> list[Head]:
            last = (await self._log.info())["last_seq"]
            return await self._projection.heads(query, last, self._log.head)

        found: list[Head] = self._ask(ask)
        return iter(found)

    def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in their order."""
        if entity is not None:
            chain: Chain | None = self._ask(partial(self._log.chain, entity))
            found = [] if chain is None else chain.entries(entity)
            return (entry for entry in found if entry.version > after)
        self._check_open()
        return self._whole(after)

    def _whole(self, after: int) -> Iterator[Entry]:
        reader = Reader(self._log, self._projection, after)
        self._ask(reader.begin)
        while (page := self._ask(reader.page)) is not None:
            yield from page

    def now(self) -> float:
        """Return the server's time, reckoned with our own clock between two looks.

        It never goes back and never stands still: who asks next may be answered by a server whose clock is
        behind.
        """
        asked, then = self._log.clock
        if not asked or time.monotonic() - asked > CLOCK_S:
            self._ask(self._log.info)
            asked, then = self._log.clock
        with self._reckoning:
            mine = time.monotonic()
            told, when = self._reckoned
            now = max(then + mine - asked, told + mine - when if told else 0.0)
            self._reckoned = (now, mine)
            return now

    def changed(self, after: int, timeout: float) -> int:
        """Wait until the log has grown; it is looked for."""
        ends = time.monotonic() + timeout
        while True:
            last: int = self._ask(self._log.info)["last_seq"]
            left = ends - time.monotonic()
            if last > after or left <= 0:
                return last
            time.sleep(min(LOOK_S, left))

    # Forgetting and mending.

    def prune(self, before: Mapping[str, int]) -> None:
        """Forget bodies; digests stay. Of up to 300 entities, all or none."""
        names = list(before)
        for first in range(0, len(names), nats_forget.MOST):
            group = {name: before[name] for name in names[first : first + nats_forget.MOST]}
            self._ask(partial(self._forgetter.prune, group))

    def drop(self, at: Mapping[str, int]) -> int:
        """Remove entities that are at these versions, one after the other."""
        done = 0
        for entity, version in at.items():
            done += self._ask(partial(self._forgetter.drop, entity, version, secrets.token_hex(16)))
        return done

    def mend(self, heads: Sequence[Head], upto: int) -> int:
        """Put heads in the place of what is there; up to 300 at once, all or none."""
        groups = [heads[at : at + nats_forget.MOST] for at in range(0, len(heads), nats_forget.MOST)]
        return sum(self._ask(partial(self._forgetter.mend, group, upto)) for group in groups)

    def adopt(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Take over entries of another log, as one atomic batch of at most 1,000 messages."""
        self._check_open()
        self._line.do(partial(import_entries.adopt, self._log, entries, heads))

    # The rest.

    def enter(self, worker: str) -> Present:
        """Say that a worker is here, which nobody hears: its lease tells."""
        return Present()

    def gone(self, worker: str) -> bool:
        """Return False: a connection that ended is no proof."""
        return False

    def facts(self) -> Facts:
        """Say which server writes, and what survives what."""
        return self._server.facts(self._where.shown)

    def house(self) -> NatsHouse:
        """Return what keeps house here."""
        return NatsHouse(self)

    def info(self) -> dict[str, Any]:
        """Return the state of the stream, as its leader tells it."""
        state: dict[str, Any] = self._ask(self._log.info)
        return state

    def tidy(self) -> None:
        """Purge what nobody needs any more."""
        self._ask(partial(self._forgetter.tidy, self.now()))

    def close(self) -> None:
        """Let go of everything, once what was begun is done; what was acknowledged stays."""
        if not self._closed:
            self._closed = True
            _open_stores.discard(self)
            self._line.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._where.shown}: the store is closed")


class NatsHouse:
    """The house of a store in NATS, most of which is the server's own affair."""

    def __init__(self, store: NatsStore) -> None:
        self._store = store

    def held(self) -> str:
        """Return nothing: a restored stream cannot be told from the one it was made of."""
        return ""

    def acknowledge(self) -> None:
        """Do nothing: nothing is held."""

    def weights(self) -> dict[str, Weight]:
        """Count everything, by reading all of it."""
        found: dict[str, Weight] = {}
        entities: set[str] = set()
        for entry in self._store.entries():
            kind = entry.entity.partition("/")[0]
            so_far = found.get(kind, Weight())
            size = len(entry.header) + len(entry.body or b"")
            new = entry.entity not in entities
            entities.add(entry.entity)
            found[kind] = Weight(so_far.entities + new, so_far.entries + 1, so_far.bytes + size)
        return found

    def room(self) -> Room:
        """Return the size of the stream; what the server's disk has left it does not say."""
        return Room(int(self._store.info()["bytes"]))

    def spare(self) -> int:
        """Return 0: only the server knows."""
        return 0

    def tidy(self) -> str:
        """Purge what nobody needs any more."""
        self._store.tidy()
        return ""

    def backup(self, to: Path, check: Checked, progress: Callable[[int, int], object]) -> None:
        """Refuse, and say what does it."""
        raise UsageError(
            "a store in NATS is backed up by the server's own tools: nats stream backup; or copied into "
            "another store: oncemore copy"
        )


_open_stores: weakref.WeakSet[NatsStore] = weakref.WeakSet()
_left_alone: list[object] = []


def _after_fork() -> None:
    """In the child: what was inherited is neither used nor closed, and everything is made anew."""
    for store in list(_open_stores):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
