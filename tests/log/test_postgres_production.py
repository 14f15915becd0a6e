"""The store in PostgreSQL in production: formats, roles, TLS, connections, notifications, the clock."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import trustme

from oncemore.errors import StoreError
from oncemore.log.database.connection import ASK_S, ServerClock
from oncemore.log.postgres import notify
from oncemore.log.postgres import schema as postgres_format
from oncemore.log.postgres.connection import MAX_CONNECTIONS
from oncemore.log.postgres.store import PostgresStore
from oncemore.log.store import Batch, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

names = itertools.count()

OURS = pytest.mark.skipif(postgres.ADDRESS in os.environ, reason="changes the server, so it must be our own")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.running(wal_writer_delay="10000ms") as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture
def schema() -> str:
    return f"made_{next(names)}"


@pytest.fixture
def boss(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


# Formats


NEXT = postgres_format.FORMAT + 1


@pytest.fixture
def next_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let this process be a later version, whose migration adds a function; return the migration's file."""
    migration = tmp_path / "next.sql"
    migration.write_text("create function {schema}.added() returns int language sql as 'select {tag}';\n")
    monkeypatch.setattr(postgres_format, "SOURCES", {**postgres_format.SOURCES, NEXT: str(migration)})
    return migration


def become_later_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_format, "FORMAT", NEXT)


def functions(boss: psycopg.Connection, schema: str) -> dict[str, str]:
    rows = boss.execute(
        "select proname, pg_get_functiondef(oid) from pg_proc where pronamespace = %s::regnamespace",
        (schema,),
    ).fetchall()
    tag = str(postgres_format.lock_tag(schema))
    return {name: made.replace(schema, "schema").replace(tag, "tag") for name, made in rows}


def test_an_older_format_is_migrated_once_while_open_stores_continue(
    url: str, schema: str, boss: psycopg.Connection, next_format: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = PostgresStore(url, schema)
    require_stored(append_writes(old, make_write("run/a", None)))
    become_later_version(monkeypatch)
    opened: list[PostgresStore] = []
    faults: list[BaseException] = []

    def open_it() -> None:
        try:
            opened.append(PostgresStore(url, schema))
        except BaseException as fault:
            faults.append(fault)

    with psycopg.connect(url) as holder:  # it holds the lock of a migration: the others wait
        holder.execute("select pg_advisory_xact_lock(%s, 0)", (postgres_format.lock_tag(schema),))
        threads = [threading.Thread(target=open_it) for _ in range(4)]
        for thread in threads:
            thread.start()
        waiting = "select count(*) from pg_locks where not granted and classid = %s and objid = 0"
        ends = time.monotonic() + 20
        while boss.execute(waiting, (postgres_format.lock_tag(schema),)).fetchone() != (4,):
            assert time.monotonic() < ends
            time.sleep(0.01)
        assert postgres_format.schema_format(boss, schema) == NEXT - 1
        require_stored(append_writes(old, make_write("run/a", old.load_head("run/a"))))
    for thread in threads:
        thread.join(30)
    assert not faults, faults
    assert postgres_format.schema_format(boss, schema) == NEXT
    # The process of the earlier version has the store open, and continues.
    require_stored(append_writes(old, make_write("run/a", old.load_head("run/a"))))
    require_stored(append_writes(opened[0], make_write("run/a", opened[0].load_head("run/a"))))
    assert len(read_verified_entries(opened[0], "run/a")) == 4
    PostgresStore(url, f"{schema}_new").close()
    migrated = functions(boss, schema)
    assert "added" in migrated
    assert migrated == functions(boss, f"{schema}_new"), "a migrated schema differs from a new one"
    for store in (old, *opened):
        store.close()


def test_a_failed_migration_leaves_the_former_format(
    url: str, schema: str, boss: psycopg.Connection, next_format: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = PostgresStore(url, schema)
    next_format.write_text(next_format.read_text() + "this is not SQL;\n")
    become_later_version(monkeypatch)
    with pytest.raises(StoreError, match="42601"):
        PostgresStore(url, schema)
    assert postgres_format.schema_format(boss, schema) == NEXT - 1
    assert "added" not in functions(boss, schema), "the first half of the migration stayed"
    require_stored(append_writes(old, make_write("run/a", None)))
    old.close()


def test_a_role_that_does_not_own_an_older_schema_is_refused_with_the_remedy(
    url: str, schema: str, boss: psycopg.Connection, next_format: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PostgresStore(url, schema).close()
    become_later_version(monkeypatch)
    role = f"app_{schema}"
    boss.execute(f"create role {role} login")
    boss.execute(f"grant usage on schema {schema} to {role}")
    boss.execute(f"grant select on all tables in schema {schema} to {role}")
    boss.execute(f"grant execute on all functions in schema {schema} to {role}")
    limited = url.replace("oncemore@", f"{role}@")
    with pytest.raises(
        StoreError, match=f"has format {NEXT - 1}, and this oncemore needs {NEXT}; open the store once as the"
    ):
        PostgresStore(limited, schema)
    PostgresStore(url, schema).close()
    app = PostgresStore(limited, schema)  # the grants that it had are enough afterwards
    require_stored(append_writes(app, make_write("run/a", None)))
    batches = [Batch((make_write(f"run/{n}", None),)) for n in range(3)]
    assert all(isinstance(answer, Stored) for answer in app._writer.store_batches(batches))
    app.close()
    boss.execute(f"create role other_{schema} login")
    may = "select has_function_privilege(%s, oid, 'execute') from pg_proc where proname like 'put%%'"
    assert boss.execute(may, (f"other_{schema}",)).fetchall().count((True,)) == 0


def test_a_format_that_is_no_longer_read_is_refused_and_unchanged(
    url: str, schema: str, boss: psycopg.Connection
) -> None:
    PostgresStore(url, schema).close()
    boss.execute(f"update {schema}.meta set value = '2' where name = 'format'")  # noqa: S608
    before = functions(boss, schema)
    with pytest.raises(StoreError, match="has format 2, which this oncemore no longer reads"):
        PostgresStore(url, schema)
    assert postgres_format.schema_format(boss, schema) == 2
    assert functions(boss, schema) == before


# Disk


@OURS
@pytest.mark.parametrize("setting", ["off", "local"])
def test_a_synced_batch_is_synced_under_every_setting_of_the_role(
    url: str, schema: str, boss: psycopg.Connection, setting: str
) -> None:
    role = f"lax_{schema}"
    boss.execute(f"create role {role} login superuser")
    boss.execute(f"alter role {role} set synchronous_commit = {setting}")
    store = PostgresStore(url.replace("oncemore@", f"{role}@"), schema)
    assert store.query_rows("show synchronous_commit") == [(setting,)]
    for n in range(5):
        before = boss.execute("select pg_current_wal_insert_lsn()").fetchone()
        assert before is not None
        require_stored(append_writes(store, make_write(f"run/{n}", None)))
        flushed = boss.execute("select pg_current_wal_flush_lsn() > %s::pg_lsn", before).fetchone()
        assert flushed == (True,)
    store.close()


# Connections


def test_a_store_keeps_its_limit_of_connections(
    url: str, schema: str, boss: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"counted_{schema}"
    store = PostgresStore(f"{url}?application_name={name}", schema)
    most, stop = 0, threading.Event()

    def work(mine: int) -> None:
        while not stop.is_set():
            require_stored(
                append_writes(store, make_write(f"run/{mine}", store.load_head(f"run/{mine}")), sync=False)
            )
            store.wait_for_change(1 << 40, 0.05)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3 * MAX_CONNECTIONS)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        row = boss.execute("select count(*) from pg_stat_activity where application_name = %s", (name,))
        most = max(most, (row.fetchone() or (0,))[0])
    stop.set()
    for thread in threads:
        thread.join(30)
    assert MAX_CONNECTIONS - 2 <= most <= MAX_CONNECTIONS
    store.close()
    ends = time.monotonic() + 10
    while boss.execute("select from pg_stat_activity where application_name = %s", (name,)).fetchone():
        assert time.monotonic() < ends, "a closed store keeps a connection"
        time.sleep(0.02)


# TLS


@OURS
def test_with_verify_full_the_certificate_must_match_the_server(tmp_path: Path, schema: str) -> None:
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    issued = authority.issue_cert("localhost")
    owner = postgres._unprivileged()
    with postgres.tempfile.TemporaryDirectory(prefix="tls-") as folder:
        key, chain = postgres.Path(folder) / "key.pem", postgres.Path(folder) / "cert.pem"
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(chain)
        key.chmod(0o600)
        if owner is not None:
            for path in (postgres.Path(folder), key, chain):
                os.chown(path, owner, -1)
        try:
            server = postgres.running(ssl="on", ssl_cert_file=str(chain), ssl_key_file=str(key))
            with server as url:
                sure = (
                    url.replace("127.0.0.1", "localhost")
                    + "?sslmode=verify-full&hostaddr=127.0.0.1&sslrootcert="
                )
                store = PostgresStore(f"{sure}{tmp_path / 'ca.pem'}", schema)
                require_stored(append_writes(store, make_write("run/a", None)))
                assert store.query_rows("select ssl from pg_stat_ssl where pid = pg_backend_pid()") == [
                    (True,)
                ]
                store.close()
                with pytest.raises(StoreError, match="certificate verify failed"):
                    PostgresStore(f"{sure}{tmp_path / 'other.pem'}", schema)
                wrong = sure.replace("localhost", "elsewhere.example")
                with pytest.raises(StoreError, match="does not match host name"):
                    PostgresStore(f"{wrong}{tmp_path / 'ca.pem'}", schema)
        except postgres.NoPostgres as reason:
            pytest.skip(f"this build of the server has no TLS: {reason}")


# Notices


def woken(store: PostgresStore, after: int, within: float) -> tuple[threading.Thread, list[float]]:
    told: list[float] = []

    def wait() -> None:
        if store.wait_for_change(after, within) > after:
            told.append(time.monotonic())

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, told


def listening(store: PostgresStore, *but: float | None) -> float:
    """Wait for changes until the store listens on a new connection; return the time since then."""
    ends = time.monotonic() + 20
    while store._notifier._listening_since in (None, *but):
        store.wait_for_change(1 << 40, 0.05)
        assert time.monotonic() < ends
    assert store._notifier._listening_since is not None
    return store._notifier._listening_since


def test_a_waiting_reader_is_notified_by_another_process_and_polls_without_notifications(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LOOK_S", 0.05)
    monkeypatch.setattr(notify, "SURE_S", 60.0)
    waiter, writer = PostgresStore(url, schema), PostgresStore(url, schema)
    last = require_stored(append_writes(writer, make_write("run/0", None))).seqs[0]
    listening(waiter)
    waiter.wait_for_change(last, 0.5)  # everybody knows by now
    thread, told = woken(waiter, last, 30.0)
    time.sleep(0.3)
    assert not told
    last = require_stored(append_writes(writer, make_write("run/1", None))).seqs[0]
    thread.join(15)
    assert told, "no notice came"
    monkeypatch.setattr(notify, "SURE_S", 0.2)
    # As if the notifier had died after its commit.
    monkeypatch.setattr(writer._notifier, "announce_append", lambda: None)
    thread, told = woken(waiter, last, 30.0)
    require_stored(append_writes(writer, make_write("run/2", None)))
    thread.join(15)
    assert told, "it only listened"
    waiter.close()
    writer.close()


def test_one_notification_covers_many_appends_and_none_is_sent_without_listeners(
    url: str, schema: str, boss: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LOOK_S", 0.02)
    monkeypatch.setattr(notify, "EVERY_S", 0.1)
    tag = postgres_format.lock_tag(schema)
    store = PostgresStore(url, schema)
    boss.execute(f"listen oncemore_{tag}")
    for n in range(20):
        require_stored(append_writes(store, make_write(f"run/{n}", None), sync=False))
    assert list(boss.notifies(timeout=0.3)) == []
    boss.execute("select pg_advisory_lock_shared(%s, 2)", (tag,))
    began = time.monotonic()
    for n in range(20, 220):
        require_stored(append_writes(store, make_write(f"run/{n}", None), sync=False))
    heard = [*boss.notifies(timeout=20, stop_after=1), *boss.notifies(timeout=0.5)]
    assert 1 <= len(heard) <= (time.monotonic() - began) / 0.1 + 1 < 100
    store.close()


def test_a_listener_reconnects_after_a_cut(
    url: str, schema: str, boss: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "RECONNECT_S", 0.02)
    store = PostgresStore(url, schema)
    first = listening(store)
    boss.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where query like 'listen%'")
    listening(store, first)
    require_stored(append_writes(store, make_write("run/a", None)))
    assert store.wait_for_change(0, 5.0) > 0
    store.close()


def test_unused_threads_and_connections_end(url: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "IDLE_S", 0.05)
    store = PostgresStore(url, schema)
    require_stored(append_writes(store, make_write("run/a", None)))
    store.wait_for_change(1 << 40, 0.1)
    ends = time.monotonic() + 20
    while store._notifier._is_sending or store._notifier._is_listening:
        assert time.monotonic() < ends
        time.sleep(0.02)
    monkeypatch.setattr(notify, "IDLE_S", 10.0)
    thread, told = woken(store, 1, 20.0)
    require_stored(append_writes(store, make_write("run/b", None)))
    thread.join(20)
    assert told
    store.close()


# Time


class Ticking:
    """A server whose clock and network are set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mine, self.theirs, self.there, self.back = 100.0, 5000.0, 0.0, 0.0
        self.asked = 0
        monkeypatch.setattr(time, "clock_gettime", lambda clock: self.mine)

    def ask(self) -> float:
        self.asked += 1
        self.pass_(self.there)
        told = self.theirs
        self.pass_(self.back)
        return told

    def pass_(self, seconds: float) -> None:
        self.mine += seconds
        self.theirs += seconds


def test_the_server_is_asked_for_its_time_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Ticking(monkeypatch)
    clock = ServerClock(world.ask)
    for _ in range(100):
        assert clock.now() == pytest.approx(world.theirs)
        world.pass_(ASK_S / 50)
    assert 2 <= world.asked <= 4


def test_time_goes_back_with_the_servers_clock_but_not_after_a_slow_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Ticking(monkeypatch)
    clock = ServerClock(world.ask)
    clock.now()
    world.pass_(2 * ASK_S)
    world.back = 3.0  # the answer takes three seconds: what it says is old when it comes
    before = clock.now()
    assert before == pytest.approx(world.theirs)
    world.back = 0.0
    world.theirs -= 1000.0
    world.pass_(2 * ASK_S)
    assert clock.now() == pytest.approx(world.theirs)
    world.theirs += 5000.0
    world.pass_(2 * ASK_S)
    assert clock.now() == pytest.approx(world.theirs)


def test_threads_use_the_extrapolated_time_while_one_asks_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Ticking(monkeypatch)
    asking, go_on = threading.Event(), threading.Event()

    def ask() -> float:
        if world.asked:
            asking.set()
            assert go_on.wait(10)
        return world.ask()

    clock = ServerClock(ask)
    clock.now()
    world.pass_(2 * ASK_S)
    slow = threading.Thread(target=clock.now)
    slow.start()
    assert asking.wait(10)
    assert clock.now() == pytest.approx(world.theirs)
    go_on.set()
    slow.join(10)


def test_a_failed_request_for_the_time_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Ticking(monkeypatch)
    answers: Any = iter([StoreError("away"), 7.0])

    def ask() -> float:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return float(answer)

    clock = ServerClock(ask)
    with pytest.raises(StoreError, match="away"):
        clock.now()
    assert clock.now() == 7.0
    assert world.asked == 0
