"""The shared store: a schema in a PostgreSQL server, written through psycopg.

Writes go through one connection per process, in group commits (`log.group_commit`): each is one call of the
server, in which every batch stands alone. `postgres_put` has the call that most groups are, `postgres_write`
the one for all others, and how a lost answer is found again; `postgres_wire` says how the server is reached.
Reads share a few connections.

**Order.** Numbers are drawn when an entry is written and become visible when it is committed, and other
processes' commits may overtake. One lock for all appends would set this right and make commits wait for each
other (8 processes, a commit of 3 ms: 179 steps/s instead of 1,191). Instead each append publishes the number
it begins at, and `entries` and `changed` stop below the lowest that is still at work: whoever follows the
log by seq meets every entry once. An entry may so be in its head a moment before it is in the log; to begin
following, take a number from `changed` or from an entry, not from a head.

**Guards** hold until the commit: an append that writes an entity which was ever a guard has the log for
itself, all others share it. So moving a switch waits for the appends at work, and they for it; nothing else.

**Durability.** A server with `fsync`, `full_page_writes` off or `data_sync_retry` on answers "stored" for
what a power cut takes away, so it is refused, unless one opens it with `unsafe_ok=True`; `facts()` then says
so. Batches that ask for `sync` have `synchronous_commit` at `on` or more, whatever the session has.

**Rights.** Whoever opens the store first makes the schema and owns it. A program needs no more than

    grant usage on schema oncemore to app;
    grant select on all tables in schema oncemore to app;
    grant execute on all functions in schema oncemore to app;

and can then append and prune, but neither change nor delete. It names the owner in its address,
postgresql://app@host/database?owner=ROLE, unless that is a superuser or a role that it is a member of: a
schema that any other role owns is refused (`postgres_owner`).
"""

from __future__ import annotations

import os
import re
import secrets
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from oncemore.errors import StoreError, UsageError
from oncemore.log.group_commit import Combiner
from oncemore.log.postgres import owner_check, queries, schema
from oncemore.log.postgres.clock import ServerClock
from oncemore.log.postgres.connection import Readers, address, check_text, connect, fault, hang_up, psycopg
from oncemore.log.postgres.notify import Bell
from oncemore.log.postgres.writer import Writer, head_of, read_head
from oncemore.log.record import NOWHERE
from oncemore.log.store import Entry, Facts, Room, Stored, Weight, check_batch
from oncemore.policy.canonical_json import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from oncemore.log.group_commit import Op
    from oncemore.log.postgres.connection import Connection, Rows
    from oncemore.log.store import Batch, Checked, Head, Query

T = TypeVar("T")
OLDEST_SERVER = 14
PAGE = 500
LOOK_S = 0.02  # how often `changed` looks while an append at work holds it back
MOST_BYTES = 16_000_000  # of one statement, as long as it has more than one batch

_ENTRY = "l.seq, l.entity, l.version, p.hash, l.hash, l.header, l.body, l.digest"


class Presence:
    """A worker of this process; see `log.store`."""

    def __init__(self, store: PostgresStore, worker: str) -> None:
        self._store = store
        self._worker, self._token, self._process = worker, secrets.token_hex(8), os.getpid()
        store.tell("select {schema}.presence(%s, %s, true)", (worker, self._token))

    def close(self) -> None:
        """Say goodbye, once; if somebody has entered by the same name since, that one stays.

        A forked child says nothing for its parent. Who cannot reach the server is found by its lease.
        """
        if self._process == os.getpid():
            self._process = 0
            with suppress(StoreError):
                self._store.tell("select {schema}.presence(%s, %s, false)", (self._worker, self._token))


class PostgresStore:
    """A store in a server that processes on many machines share."""

    joins = True
    sees_deaths = False
    looks_late = False

    def __init__(self, url: str, schema: str | None = None, *, unsafe_ok: bool = False) -> None:
        self._where = address(url)
        self._schema = schema = self._where.schema if schema is None else schema
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
            raise UsageError(f"{schema!r} is not a schema's name: lower-case letters, digits and _, up to 63")
        self._closed = False
        columns = ", c.".join(queries.HEAD)
        head = (
            f"prepare oncemore_head(text) as select c.{columns}, l.body from {schema}.head c "  # noqa: S608
            f"join {schema}.log l on l.entity = c.entity and l.version = c.version where c.entity = $1"
        )
        self._head = b"oncemore_head", head.encode()
        self._here: weakref.WeakSet[Presence] = weakref.WeakSet()
        self._fresh()
        self._version, self._weak, self._alone = self._prepare()
        if self._weak and not unsafe_ok:
            raise StoreError(
                f"{self._where.shown} runs with {', '.join(self._weak)}: a power cut could take away what it "
                "says is stored. Set it right, or open the store with unsafe_ok=True"
            )
        _open_stores.add(self)

    def _fresh(self) -> None:
        """Have no connection, no queue and no turn yet: at first, and in a forked child."""
        self._writer = Writer(self._where, self._schema)
        self._readers = Readers(self._where)
        self._combiner = Combiner(self._transact)
        self._clock = ServerClock(self._asked_time)
        self._bell = Bell(self._where, self._schema)

    def forked(self) -> None:
        """In a forked child: leave what was inherited alone, and make everything anew."""
        _left_alone.append((self._writer, self._readers, self._combiner, self._bell))
        self._fresh()

    def append(self, batch: Batch) -> Op:
        """Ask for a batch to be stored."""
        check_batch(batch)
        check_text(*batch.guards)
        for write in batch.writes:
            by = write.by
            check_text(write.entity, by.kind, by.state, by.step, by.worker, by.dataset)
        return self._combiner.submit(batch)

    def _transact(self, ops: list[Op]) -> None:
        """Store what queued batches ask for; in the order of entities, so that processes rarely collide."""
        self._check_open()
        self._combiner.tell()
        for group in _groups(sorted(ops, key=_first_entity)):
            answers = self._writer.store([op.batch for op in group])
            for op, answer in zip(group, answers, strict=True):
                if isinstance(answer, Exception):
                    op.error = answer
                else:
                    op.answer = answer
            if any(isinstance(answer, Stored) for answer in answers):
                self._bell.ring()

    def tell(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return the rows of a statement that may be repeated: one that reads, or one of ours."""
        self._check_open()
        return self._readers.read(sql.format(schema=self._schema), values)

    def head(self, entity: str) -> Head | None:
        """Return the current state of an entity."""
        check_text(entity)
        self._check_open()
        result = self._readers.result(*self._head, [entity.encode()])
        return read_head(result, 0) if result.ntuples else None

    def heads(self, query: Query) -> Iterator[Head]:
        """Return the heads that a query asks for."""
        return (head_of(row) for row in queries.rows(query, self.tell))

    def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in their order; of all, up to the first that is not yet sure to be the next."""
        if entity is None:
            return self._pages("l.seq > %s and l.seq <= %s", (self._last_seq(),), "seq", after)
        check_text(entity)
        return self._pages("l.version > %s and l.entity = %s", (entity,), "version", after)

    def _pages(self, where: str, values: tuple[Any, ...], by: str, after: int) -> Iterator[Entry]:
        sql = (
            f"select {_ENTRY} from {{schema}}.log l left join {{schema}}.log p "  # noqa: S608
            f"on p.entity = l.entity and p.version = l.version - 1 where {where} order by l.{by} limit {PAGE}"
        )
        while rows := self.tell(sql, (after, *values)):
            for row in rows:
                entry = _entry(row)
                yield entry
            after = getattr(entry, by)

    def now(self) -> float:
        """Return the server's time, which all processes share; see `postgres_clock`."""
        self._check_open()
        return self._clock.now()

    def _asked_time(self) -> float:
        ((now,),) = self.tell("select extract(epoch from clock_timestamp())::float8")
        return float(now)

    def changed(self, after: int, timeout: float) -> int:
        """Wait until the log has grown; other processes' writes are heard of, or seen by looking."""
        ends = time.monotonic() + timeout
        while True:
            heard = self._bell.heard
            ((top,),) = self.tell("select coalesce(max(seq), 0) from {schema}.log")
            left = ends - time.monotonic()
            if top > after or left <= 0:
                last = self._last_seq()
                if last > after or left <= 0:
                    return last
                time.sleep(min(LOOK_S, left))  # something is at work below it, and will be done soon
            else:
                self._bell.wait(heard, left)

    def _last_seq(self) -> int:
        ((last,),) = self.tell("select {schema}.last_seq()")
        return int(last)

    def prune(self, before: Mapping[str, int]) -> None:
        """Forget bodies; digests stay. The server's own files keep them until it vacuums the table."""
        check_text(*before)
        self.tell(
            "select {schema}.prune(t.entity, t.before) "
            "from unnest(%s::text[], %s::bigint[]) t(entity, before)",
            (list(before), list(before.values())),
        )

    def drop(self, at: Mapping[str, int]) -> int:
        """Remove entities that are at these versions; only who owns the schema may."""
        check_text(*at)
        rows = self.tell(
            "with gone as (delete from {schema}.head h using unnest(%s::text[], %s::bigint[]) "
            "t(entity, version) where h.entity = t.entity and h.version = t.version returning h.entity), "
            "entries as (delete from {schema}.log l using gone g where l.entity = g.entity) "
            "select count(*) from gone",
            (list(at), list(at.values())),
        )
        return int(rows[0][0])

    def mend(self, heads: Sequence[Head], upto: int) -> int:
        """Put heads in the place of what is there; only the owner of the schema may."""
        return self._as_owner(lambda line: queries.mend(line, self._schema, heads, upto))

    def _as_owner(self, do: Callable[[Connection], T]) -> T:
        """Do something rare in one transaction, on a connection of its own."""
        self._check_open()
        connection: Connection | None = None
        try:
            connection = connect(self._where)
            with connection.transaction():
                return do(connection)
        except psycopg.Error as error:
            raise fault(self._where, error) from error
        finally:
            hang_up(connection)

    def adopt(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Take over entries of another log; only the owner of the schema may."""
        self._as_owner(lambda line: queries.adopt(line, self._schema, entries, heads))

    def enter(self, worker: str) -> Presence:
        """Note that a worker of this name is here until it leaves."""
        check_text(worker)
        presence = Presence(self, worker)
        self._here.add(presence)
        return presence

    def gone(self, worker: str) -> bool:
        """Whether a worker has left by its own word.

        Nothing else is proof here: that a session ended, and with it any lock it held, may be the network's
        doing while the worker goes on. Whoever was killed is found by its lease.
        """
        check_text(worker)
        rows = self.tell("select left_at is not null from {schema}.worker where name = %s", (worker,))
        return bool(rows and rows[0][0])

    def facts(self) -> Facts:
        """Say which server writes, and what survives what; the address without its password."""
        sure = (
            "an acknowledged entry survives the death of the process; with sync, the server's crash and "
            "power loss too, if its disk honours flushes"
        )
        weak = f"power loss can take away what was acknowledged: {', '.join(self._weak)}"
        alone = "no synchronous standby: failing over to a replica can lose what was acknowledged last"
        return Facts(
            f"{self._where.shown}?schema={self._schema}",
            f"PostgreSQL {self._version} (psycopg {psycopg.__version__})",
            weak if self._weak else sure,
            (*((weak,) if self._weak else ()), *((alone,) if self._alone else ())),
        )

    def sort_objects(self) -> tuple[list[str], list[str]]:
        """Return foreign objects that touch our tables, and the tables of others in the schema."""
        sql, values = owner_check.find_objects(self._schema)
        return owner_check.sort_objects(self.tell(sql, values))

    def house(self) -> PostgresHouse:
        """Return what keeps house here."""
        return PostgresHouse(self, self._schema)

    def close(self) -> None:
        """Let go of everything; what was acknowledged stays."""
        if not self._closed:
            for presence in list(self._here):
                presence.close()
            self._combiner.stop(self._let_go)

    def _let_go(self) -> None:
        self._closed = True
        self._bell.close()
        self._writer.close()
        self._readers.end()
        _open_stores.discard(self)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self._where.shown}: the store is closed")

    def _prepare(self) -> tuple[str, tuple[str, ...], bool]:
        """Check the server and make or check the schema; return version, weaknesses, lack of a standby."""
        connection: Connection | None = None
        try:
            connection = connect(self._where)
            told = _settings(connection)
            self._check_server(told)
            self._set_up(connection)
        except psycopg.Error as error:
            raise fault(self._where, error) from error
        finally:
            hang_up(connection)
        weak = tuple(
            f"{name}={bad}"
            for name, bad in (("fsync", "off"), ("full_page_writes", "off"), ("data_sync_retry", "on"))
            if told[name] == bad
        )
        return told["server_version"].split(" ")[0], weak, not told["synchronous_standby_names"]

    def _check_server(self, told: dict[str, str]) -> None:
        if int(told["server_version_num"]) < OLDEST_SERVER * 10_000:
            raise StoreError(
                f"{self._where.shown} is PostgreSQL {told['server_version']}; {OLDEST_SERVER} is needed"
            )
        if told["server_encoding"] != "UTF8":
            raise StoreError(
                f"{self._where.shown} keeps text as {told['server_encoding']}; make a database in UTF8"
            )

    def _set_up(self, connection: Connection) -> None:
        """Make the schema, or bring it to our format."""
        schema.bring_up(connection, self._where, self._schema)


class PostgresHouse:
    """The house of a store in a server, most of which is the server's own affair."""

    def __init__(self, store: PostgresStore, schema: str) -> None:
        self._store, self._schema = store, schema

    def held(self) -> str:
        """Return nothing: a restored database cannot be told from the one it was made of."""
        return ""

    def acknowledge(self) -> None:
        """Do nothing: nothing is held."""

    def weights(self) -> dict[str, Weight]:
        """Count everything."""
        rows = self._store.tell(
            "select split_part(entity, '/', 1), sum(n)::bigint, sum(m)::bigint, sum(size)::bigint from ("
            "select entity, 1 n, 0 m, octet_length(head) size from {schema}.head union all "
            "select entity, 0, 1, octet_length(header) + coalesce(octet_length(body), 0) from {schema}.log"
            ") every group by 1 order by 1"
        )
        return {kind: Weight(*counted) for kind, *counted in rows}

    def room(self) -> Room:
        """Return the size of tables and indexes; what the server's disk has left it does not say."""
        ((size,),) = self._store.tell(
            "select pg_total_relation_size('{schema}.head') + pg_total_relation_size('{schema}.log')"
        )
        return Room(int(size))

    def spare(self) -> int:
        """Return 0: only the server knows."""
        return 0

    def tidy(self) -> str:
        """Do nothing: the server does."""
        return ""

    def backup(self, to: Path, check: Checked, progress: Callable[[int, int], object]) -> None:
        """Refuse, and say what does it."""
        raise UsageError(
            "a store in PostgreSQL is backed up by the server's own tools: "
            f"pg_dump --schema={self._schema} "
            "for a copy, pg_basebackup with archived WAL to go back to any moment"
        )


def _settings(connection: Connection) -> dict[str, str]:
    names = (
        *("server_version", "server_version_num", "server_encoding", "fsync", "full_page_writes"),
        *("data_sync_retry", "synchronous_standby_names"),
    )
    row = connection.execute(f"select {','.join(f'current_setting({name!r})' for name in names)}".encode())
    return dict(zip(names, row.fetchone() or (), strict=True))


def _first_entity(op: Op) -> str:
    return op.batch.writes[0].entity if op.batch.writes else ""


def _groups(ops: list[Op]) -> Iterator[list[Op]]:
    """Cut what waits into statements of a bounded size; what is larger, or not alone, has one for itself."""
    group: list[Op] = []
    room = MOST_BYTES
    for op in ops:
        size = sum(len(write.body) + len(write.header) + len(write.head) for write in op.batch.writes)
        if op.batch.also is not None:
            yield [op]
            continue
        if group and size > room:
            yield group
            group, room = [], MOST_BYTES
        group.append(op)
        room -= size
    if group:
        yield group


def _entry(row: tuple[Any, ...]) -> Entry:
    seq, entity, version, prev, digest, header, body, kept = row
    body_digest = fingerprint(body) if body is not None else kept
    return Entry(seq, entity, version, prev or NOWHERE, digest, header, body, body_digest)


_open_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
_left_alone: list[object] = []


def _after_fork() -> None:
    """In the child: what was inherited is neither used nor closed, and everything is made anew."""
    for store in list(_open_stores):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
