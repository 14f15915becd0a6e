"""The store in PostgreSQL under faults: many processes, kills, crashes, forks, rights, secrets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from oncemore.errors import StoreError, UsageError
from oncemore.log.database import queries as database_queries
from oncemore.log.database import writer as database_writer
from oncemore.log.database.connection import READERS
from oncemore.log.postgres import writer as postgres_write
from oncemore.log.postgres.connection import parse_address
from oncemore.log.postgres.store import PostgresStore
from oncemore.log.store import Batch, Conflict, EntryWrite, HeadIndex, HeadQuery, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.servers import postgres
from tests.servers.processes import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.log.store import Entry

names = itertools.count()

OURS = pytest.mark.skipif(postgres.ADDRESS in os.environ, reason="changes the server, so it must be our own")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        # The writer of the log sleeps long, so that what nobody waited for is not on disk by chance.
        with postgres.running(deadlock_timeout="50ms", wal_writer_delay="10000ms") as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture
def schema() -> str:
    return f"store_{next(names)}"


@pytest.fixture
def store(url: str, schema: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url, schema)
    yield made
    made.close()


@pytest.fixture
def boss(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def appended(boss: psycopg.Connection, schema: str, *writes: EntryWrite) -> list[int]:
    """Append in a transaction of the test, so that the test can leave it open."""
    writer = postgres_write.PostgresWriter(parse_address("postgresql://"), schema)
    boss.execute("deallocate all")
    boss.execute(writer._prepare[0])
    (answer,) = writer._call_append(boss, [Batch(writes)])
    assert isinstance(answer, Stored)
    return list(answer.seqs)


# Order


WRITER = """
    import sys, threading
    from oncemore.log.postgres.store import PostgresStore
    from oncemore.testing.store_contract import append_writes as put, make_write as write
    store = PostgresStore(sys.argv[1], sys.argv[2])

    def work(mine):
        n = 0
        while True:
            entity = f"run/{mine}-{n % 5}"
            answer = put(store, write(entity, store.load_head(entity)), write(f"once/{mine}-{n}", None))
            sys.stdout.write("".join(f"{seq} " for seq in answer.seqs) + "\\n")
            sys.stdout.flush()
            n += 1

    store.now()
    print("open", flush=True)
    sys.stdin.readline()
    for thread in range(2):
        threading.Thread(target=work, args=(f"{sys.argv[3]}-{thread}",), daemon=True).start()
    sys.stdin.read()
"""


def test_a_reader_by_seq_sees_every_acknowledged_entry_of_eight_writers(
    store: PostgresStore, url: str, schema: str
) -> None:
    followed: list[Entry] = []

    def follow() -> None:
        last = followed[-1].seq if followed else 0
        store.wait_for_change(last, 0.05)
        followed.extend(store.read_entries(after=last))

    acknowledged: set[int] = set()
    with processes(WRITER, *((url, schema, n) for n in range(8))) as writers:
        for one in writers:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            follow()
        for one in writers:
            one.send_signal(signal.SIGKILL)
        for one in writers:
            out = one.communicate(timeout=20)[0]
            acknowledged.update(
                int(seq) for line in out.splitlines(True) if line[-1] == "\n" for seq in line.split()
            )
    time.sleep(0.1)  # a statement of a process that was killed may still commit
    follow()
    there = [entry.seq for entry in store.read_entries()]
    assert [entry.seq for entry in followed] == there == sorted(set(there))
    assert acknowledged <= set(there)
    assert len(acknowledged) > 200, len(acknowledged)
    for entity in {entry.entity for entry in followed if entry.entity.startswith("run/")}:
        read_verified_entries(store, entity)


def test_a_running_append_holds_back_readers_until_its_commit(
    store: PostgresStore, boss: psycopg.Connection, schema: str
) -> None:
    with boss.transaction():
        (slow,) = appended(boss, schema, make_write("run/slow", None))
        (quick,) = require_stored(append_writes(store, make_write("run/quick", None))).seqs
        assert slow < quick
        assert list(store.read_entries()) == []
        assert store.wait_for_change(0, 0.05) == 0
        assert store.load_head("run/quick") is not None
    assert [entry.seq for entry in store.read_entries()] == [slow, quick]
    assert store.wait_for_change(0, 0.05) == quick


@OURS
def test_a_visible_sequence_number_is_not_reused_after_a_crash(
    store: PostgresStore, boss: psycopg.Connection
) -> None:
    require_stored(append_writes(store, make_write("run/kept", None)))
    seen = [
        require_stored(append_writes(store, make_write(f"run/lost-{n}", None), sync=False)).seqs[0]
        for n in range(100)
    ]
    boss.execute("set application_name = 'victim'")
    os.kill(boss.info.backend_pid, signal.SIGKILL)  # the server ends every session and recovers
    until = time.monotonic() + 20
    while True:
        with suppress(StoreError):
            if store.load_head("run/kept") is not None:
                break
        assert time.monotonic() < until
        time.sleep(0.05)
    lost = [n for n in range(100) if store.load_head(f"run/lost-{n}") is None]
    assert lost, "the crash took nothing, so nothing is shown"
    (after,) = require_stored(append_writes(store, make_write("run/after", None))).seqs
    assert after > max(seen)
    assert [entry.entity for entry in store.read_entries(after=max(seen))] == ["run/after"]


# Guards, collisions


RELYING = """
    import sys
    from oncemore.log.store import Batch, Stored
    from oncemore.log.postgres.store import PostgresStore
    from oncemore.testing.store_contract import make_write as write
    store = PostgresStore(sys.argv[1], sys.argv[2])
    print("open", flush=True)
    sys.stdin.readline()
    n = 0
    while True:
        seen = store.load_head("switch/s").version
        batch = Batch((write(f"run/{sys.argv[3]}-{n}", None),), {"switch/s": seen, "switch/none": 0})
        answer = store.append(batch).wait()
        if isinstance(answer, Stored):
            print(seen, answer.seqs[0], flush=True)
        n += 1
"""


def test_a_guard_moves_in_bounded_time_and_later_batches_are_refused(
    store: PostgresStore, url: str, schema: str
) -> None:
    require_stored(append_writes(store, make_write("switch/s", None)))
    slowest = 0.0
    with processes(RELYING, *((url, schema, n) for n in range(4))) as crowd:
        for one in crowd:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        for _ in range(15):
            time.sleep(0.05)
            began = time.monotonic()
            require_stored(append_writes(store, make_write("switch/s", store.load_head("switch/s"))))
            slowest = max(slowest, time.monotonic() - began)
        for one in crowd:
            one.send_signal(signal.SIGKILL)
        lines = [line for one in crowd for line in one.communicate(timeout=20)[0].splitlines(True)]
    relied = [tuple(map(int, line.split())) for line in lines if line[-1] == "\n"]
    moved = {entry.version: entry.seq for entry in read_verified_entries(store, "switch/s")}
    assert len(relied) > 20
    assert len(moved) == 16
    for version, seq in relied:
        assert moved[version] < seq < moved.get(version + 1, seq + 1)
    assert slowest < 5, slowest


@pytest.mark.parametrize("end", ["commit", "rollback", "deadlock"])
def test_a_pair_that_loses_one_entity_stores_nothing_and_affects_no_other_batch(
    store: PostgresStore, boss: psycopg.Connection, url: str, schema: str, end: str
) -> None:
    """Another session has inserted run/b without a commit; the pair waits for it and holds run/a."""
    pair, alone = (
        Batch((make_write("run/a", None), make_write("run/b", None))),
        Batch((make_write("run/z", None),)),
    )
    answers: list[object] = []
    with boss.transaction() as transaction:
        appended(boss, schema, make_write("run/b", None, b"theirs"))
        thread = threading.Thread(target=lambda: answers.extend(store._writer.store_batches([pair, alone])))
        thread.start()
        with psycopg.connect(url, autocommit=True) as watch:
            until = time.monotonic() + 20
            while watch.execute("select from pg_locks where not granted").fetchone() is None:
                assert time.monotonic() < until
        if end == "deadlock":
            with suppress(psycopg.errors.DeadlockDetected), boss.transaction():
                appended(boss, schema, make_write("run/a", None, b"theirs"))
        if end == "rollback":
            raise psycopg.Rollback(transaction)
    thread.join(20)
    theirs = [entity for entity in ("run/a", "run/b") if _body(store, entity) == b"theirs"]
    assert isinstance(answers[1], Stored)
    if end == "rollback":
        assert isinstance(answers[0], Stored)
    else:
        assert "run/b" in theirs
        assert answers[0] == Conflict(theirs[0], store.load_head(theirs[0]))
        assert (store.load_head("run/a") is None) == (theirs == ["run/b"])


def _body(store: PostgresStore, entity: str) -> bytes | None:
    head = store.load_head(entity)
    return None if head is None else head.body


def test_pairs_created_in_both_orders_have_one_winner_each(url: str, schema: str) -> None:
    stores = [PostgresStore(url, schema) for _ in range(4)]
    wins: list[str] = []
    faults: list[BaseException] = []
    line = threading.Barrier(8)

    def race(mine: int) -> None:
        try:
            for n in range(15):
                pair = [
                    make_write(f"run/{n}-a", None, b"%d" % mine),
                    make_write(f"run/{n}-b", None, b"%d" % mine),
                ]
                line.wait(30)
                if isinstance(append_writes(stores[mine % 4], *pair[:: 1 if mine % 2 else -1]), Stored):
                    wins.append(f"{n}:{mine}")
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=race, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults, faults
    assert sorted(int(win.split(":")[0]) for win in wins) == list(range(15))
    for n in range(15):
        (a,), (b,) = (
            read_verified_entries(stores[0], f"run/{n}-a"),
            read_verified_entries(stores[0], f"run/{n}-b"),
        )
        assert a.body == b.body
        assert f"{n}:{(a.body or b'').decode()}" in wins
    for store in stores:
        store.close()


def test_an_invalid_batch_does_not_affect_the_rest_of_its_group(store: PostgresStore) -> None:
    """The third batch has a hash that the table rejects; all five are sent as one group."""
    good = [Batch((make_write(f"run/{n}", None),)) for n in range(5)]
    bad = good[2].writes[0]._replace(hash=None)  # type: ignore[arg-type]
    answers = store._writer.store_batches([*good[:2], Batch((bad,)), *good[3:]])
    assert [type(answer).__name__ for answer in answers] == [
        "Stored",
        "Stored",
        "StoreError",
        "Stored",
        "Stored",
    ]
    assert "nothing was stored" in str(answers[2])
    assert store.load_head("run/2") is None
    assert len(list(store.read_entries())) == 4


def test_callers_share_commits_and_large_groups_are_split(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    original = postgres_write.PostgresWriter.store_batches

    def noted(self: postgres_write.PostgresWriter, batches: list[Batch]) -> list[object]:
        sizes.append(len(batches))
        return original(self, batches)  # type: ignore[return-value]

    monkeypatch.setattr(postgres_write.PostgresWriter, "store_batches", noted)

    async def main(bodies: list[bytes]) -> None:
        batches = [Batch((make_write(f"run/{len(sizes)}-{n}", None, body),)) for n, body in enumerate(bodies)]
        await asyncio.gather(*[_awaited(store, batch) for batch in batches])

    asyncio.run(main([b"x"] * 100))
    assert sum(sizes) == 100
    assert len(sizes) < 20
    sizes.clear()
    monkeypatch.setattr(database_writer, "MAX_STATEMENT_BYTES", 10_000)
    asyncio.run(main([b"x" * 4_000] * 20 + [b"x" * 40_000]))
    assert sum(sizes) == 21
    assert max(sizes) == 2


async def _awaited(store: PostgresStore, batch: Batch) -> Stored | Conflict:
    return await store.append(batch)


# Durability


def end_of_log(boss: psycopg.Connection) -> str:
    row = boss.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def flushed_beyond(boss: psycopg.Connection, place: str) -> bool:
    """Whether the server has flushed its WAL beyond a position; it also writes records of its own."""
    row = boss.execute("select pg_current_wal_flush_lsn() > %s::pg_lsn", (place,)).fetchone()
    assert row is not None
    return bool(row[0])


@OURS
@pytest.mark.parametrize("session", ["on", "off", "local", "remote_write"])
def test_a_synced_batch_is_on_disk_when_it_is_acknowledged(
    url: str, schema: str, boss: psycopg.Connection, session: str
) -> None:
    store = PostgresStore(f"{url}?options=-csynchronous_commit%3D{session}", schema)
    unsynced = 0
    for n in range(5):
        place = end_of_log(boss)
        require_stored(append_writes(store, make_write(f"run/b{n}", None), sync=False))
        unsynced += not flushed_beyond(boss, place)
        place = end_of_log(boss)
        require_stored(append_writes(store, make_write(f"run/a{n}", None)))
        assert flushed_beyond(boss, place)
    assert unsynced, "what nobody waited for was on disk too, so nothing is shown"
    store.close()


@OURS
@pytest.mark.parametrize(
    ("setting", "bad", "good"), [("fsync", "off", "on"), ("full_page_writes", "off", "on")]
)
def test_a_server_that_can_lose_acknowledged_commits_is_refused_or_reported(
    url: str, schema: str, boss: psycopg.Connection, setting: str, bad: str, good: str
) -> None:
    def turn(value: str) -> None:
        boss.execute(f"alter system set {setting} = {value}")
        boss.execute("select pg_reload_conf()")
        until = time.monotonic() + 10
        while boss.execute(f"show {setting}").fetchone() != (value,):
            assert time.monotonic() < until
            time.sleep(0.01)

    try:
        turn(bad)
        with pytest.raises(StoreError, match=f"{setting}={bad}.*unsafe_ok"):
            PostgresStore(url, schema)
        store = PostgresStore(url, schema, unsafe_ok=True)
        assert f"{setting}={bad}" in store.open_maintenance().describe_store().durable
        assert any(setting in note for note in store.open_maintenance().describe_store().notes)
        store.close()
    finally:
        turn(good)
        boss.execute(f"alter system reset {setting}")
    store = PostgresStore(url, schema)
    assert "power loss too" in store.open_maintenance().describe_store().durable
    assert any("standby" in note for note in store.open_maintenance().describe_store().notes)
    store.close()


# Opening


OPENER = """
    import sys
    from oncemore.log.postgres.store import PostgresStore
    from oncemore.testing.store_contract import append_writes as put, make_write as write
    print("open", flush=True)
    sys.stdin.readline()
    store = PostgresStore(sys.argv[1], sys.argv[2])
    print(type(put(store, write(f"run/{sys.argv[3]}", None))).__name__)
    store.close()
"""


def test_several_processes_may_create_the_schema_at_the_same_time(url: str, schema: str) -> None:
    with processes(OPENER, *((url, schema, n) for n in range(6))) as openers:
        for one in openers:
            assert one.stdin is not None
            one.stdin.write("\n")
            one.stdin.flush()
        assert [one.communicate(timeout=30)[0] for one in openers] == ["Stored\n"] * 6
    store = PostgresStore(url, schema)
    assert len(list(store.read_entries())) == 6
    store.close()


def test_a_newer_format_is_refused(
    store: PostgresStore, url: str, schema: str, boss: psycopg.Connection
) -> None:
    boss.execute(f"update {schema}.meta set value = '99' where name = 'format'")  # noqa: S608
    with pytest.raises(StoreError, match="format 99, which a newer oncemore wrote"):
        PostgresStore(url, schema)


@pytest.mark.parametrize("name", ["", "Upper", "a-b", 'x"; drop table y', "pg_x", "x" * 64, "é"])
def test_an_invalid_schema_name_is_refused(url: str, name: str) -> None:
    with pytest.raises(UsageError, match="is not a schema's name"):
        PostgresStore(url, name)


def test_an_address_can_name_the_schema_and_the_store_reports_it(url: str, schema: str) -> None:
    with contextlib.closing(PostgresStore(f"{url}?connect_timeout=5&schema={schema}")) as made:
        require_stored(append_writes(made, make_write("run/a", None)))
        told = made.open_maintenance().describe_store().url
    assert told.endswith(f"?schema={schema}")
    for store in (PostgresStore(url, schema), PostgresStore(told)):
        with contextlib.closing(store):
            assert store.load_head("run/a") is not None
    with contextlib.closing(PostgresStore(f"{url}?schema=other_{schema}", schema)) as store:
        assert store.load_head("run/a") is not None, "who names one in Python means that"
    with pytest.raises(UsageError, match="more than one schema"):
        PostgresStore(f"{url}?schema=a&schema=b")
    for name in ("A-b", ""):
        with pytest.raises(UsageError, match=f"'{name}' is not a schema's name"):
            PostgresStore(f"{url}?schema={name}")


def test_a_database_that_is_not_in_utf8_is_refused(url: str, boss: psycopg.Connection) -> None:
    name = f"latin_{next(names)}"
    boss.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
    with pytest.raises(StoreError, match="UTF8"):
        PostgresStore(url.rpartition("/")[0] + f"/{name}")


def test_without_the_driver_the_extra_is_named() -> None:
    source = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from oncemore.errors import MissingExtra\n"
        "try:\n    import oncemore.log.postgres.store\nexcept MissingExtra as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "pip install 'oncemore[postgres]'" in run.stdout


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
def test_a_stricter_isolation_level_of_the_role_has_no_effect(url: str, schema: str, level: str) -> None:
    strict = f"{url}?options=-cdefault_transaction_isolation%3D{level.replace(' ', '%5C%20')}"
    store = PostgresStore(strict, schema)
    require_stored(append_writes(store, make_write("run/a", None)))
    assert isinstance(append_writes(store, make_write("run/a", None)), Conflict)
    store.close()


# Rights, secrets, names


def test_a_role_with_select_and_execute_can_append_but_not_change(
    store: PostgresStore, url: str, schema: str, boss: psycopg.Connection
) -> None:
    role = f"app_{next(names)}"
    boss.execute(f"create role {role} login")
    boss.execute(f"grant usage on schema {schema} to {role}")
    boss.execute(f"grant select on all tables in schema {schema} to {role}")
    limited = url.replace("oncemore@", f"{role}@")
    without = PostgresStore(limited, schema)
    with pytest.raises(StoreError, match="this role may not do that"):
        append_writes(without, make_write("run/a", None))
    without.close()
    boss.execute(f"grant execute on all functions in schema {schema} to {role}")
    app = PostgresStore(limited, schema)
    require_stored(app.append(Batch((make_write("run/a", None),), {"switch/off": 0})).wait())
    require_stored(append_writes(app, make_write("run/a", app.load_head("run/a"))))
    app.open_maintenance().prune_bodies({"run/a": 2})
    app.register_worker("w").close()
    assert (
        len(read_verified_entries(app, "run/a", pruned=2))
        == len(list(app.read_entries()))
        == app.wait_for_change(0, 0)
        == 2
    )
    app.close()
    with psycopg.connect(limited, autocommit=True) as connection:
        for forbidden in (
            f"delete from {schema}.log",  # noqa: S608
            f"truncate {schema}.log",
            f"update {schema}.head set version = 9",  # noqa: S608
            f"insert into {schema}.guarded values ('x')",  # noqa: S608
            f"select setval('{schema}.seq', 1)",
            f"create table {schema}.mine()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden)


CANARY = "c4n4ry%40pass"


@pytest.mark.parametrize(
    "form",
    [
        f"postgresql://user:{CANARY}@127.0.0.1:{{port}}/postgres",
        f"postgresql://user:{CANARY}@127.0.0.1:{{port}}/postgres?sslmode=require",
        f"postgresql://user:{CANARY}@127.0.0.1:1/postgres",
        f"postgresql://127.0.0.1:1/postgres?user=u&password={CANARY}",
        f"postgresql://user:{CANARY}@127.0.0.1:{{port}}/postgres?nonsense=1",
        f"postgresql://user:{CANARY}%zz@host/",
        f"postgresql://user:{CANARY}@[::1/db",
        f"postgresql+psycopg://user:{CANARY}@host/db",
        f"host=127.0.0.1 password={CANARY}",
    ],
)
def test_errors_do_not_contain_the_password(url: str, form: str) -> None:
    port = url.rpartition(":")[2].partition("/")[0]
    with pytest.raises((StoreError, UsageError)) as caught:
        PostgresStore(form.replace("{port}", port))
    told = "".join(traceback.format_exception(caught.value, chain=True))
    told = told.replace(repr(form), "")  # pytest's own frames are not in it, but keep it so
    assert "c4n4ry" not in str(caught.value)
    assert "c4n4ry" not in told


def test_descriptions_of_the_store_do_not_contain_the_password(url: str, schema: str) -> None:
    store = PostgresStore(url.replace("oncemore@", f"oncemore:{CANARY}@"), schema)
    facts = store.open_maintenance().describe_store()
    assert facts.url == f"{url}?schema={schema}"
    assert "PostgreSQL" in facts.engine
    assert "c4n4ry" not in repr((facts, store, store._where))
    store.close()


@pytest.mark.parametrize("bad", ["run/a\0b", "run/\ud800", "run/" + "é" * 1000])
def test_names_that_postgresql_cannot_store_are_usage_errors(store: PostgresStore, bad: str) -> None:
    for wrong in (
        make_write("run/a", None)._replace(entity=bad),
        make_write("run/a", None)._replace(by=HeadIndex("run", step=bad)),
    ):
        with pytest.raises(UsageError):
            store.append(Batch((wrong,)))
    for ask in (
        lambda: store.append(Batch((), {bad: 0})),
        lambda: store.load_head(bad),
        lambda: store.read_entries(bad),
        lambda: store.list_heads(HeadQuery("run", step=bad)),
        lambda: store.open_maintenance().prune_bodies({bad: 1}),
        lambda: store.register_worker(bad),
        lambda: store.is_worker_gone(bad),
    ):
        with pytest.raises(UsageError):
            ask()


# Presence, time, connections


HERE = """
    import sys
    from oncemore.log.postgres.store import PostgresStore
    store = PostgresStore(sys.argv[1], sys.argv[2])
    store.register_worker("killed")
    store.register_worker("left").close()
    print("open", flush=True)
    sys.stdin.read()
"""


def test_only_an_unregistered_worker_is_gone(store: PostgresStore, url: str, schema: str) -> None:
    with processes(HERE, (url, schema)) as (one,):
        assert not store.is_worker_gone("killed")
        assert store.is_worker_gone("left")
        one.kill()
        one.wait(20)
        assert not store.is_worker_gone("killed"), "that a session ended is no proof"
    back = store.register_worker("left")
    assert not store.is_worker_gone("left")
    again = store.register_worker("left")
    back.close()
    assert not store.is_worker_gone("left"), "the name belongs to who entered last"
    again.close()
    again.close()
    assert store.is_worker_gone("left")


def test_closing_a_store_unregisters_its_workers_but_not_in_a_forked_child(
    store: PostgresStore, url: str, schema: str
) -> None:
    other = PostgresStore(url, schema)
    here = other.register_worker("w")
    child = os.fork()
    if child == 0:
        here.close()
        other.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert not store.is_worker_gone("w")
    other.close()
    assert store.is_worker_gone("w")
    here.close()


def test_the_clock_is_that_of_the_server(
    store: PostgresStore, boss: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 12345.0)
    row = boss.execute("select extract(epoch from clock_timestamp())::float8").fetchone()
    assert row is not None
    assert 0 <= store.now() - row[0] < 10


def test_many_threads_read_through_few_connections(
    store: PostgresStore, boss: psycopg.Connection, schema: str
) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    faults: list[BaseException] = []
    boss.execute(f"alter table {schema}.head rename to away")
    boss.execute(f"create view {schema}.head as select a.* from {schema}.away a, pg_sleep(0.05)")  # noqa: S608

    def read() -> None:
        try:
            assert store.load_head("run/a") is not None
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=read) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not faults, faults
    assert 1 < len(store._readers._idle) <= READERS


def test_a_forked_child_uses_connections_of_its_own(store: PostgresStore) -> None:
    require_stored(append_writes(store, make_write("run/parent", store.load_head("run/parent"))))
    lines = {store._writer._connection, *store._readers._idle}
    assert len(lines) == 2
    child = os.fork()
    if child == 0:
        fine = False
        try:
            fine = isinstance(append_writes(store, make_write("run/child", None)), Stored)
            fine = fine and store.load_head("run/parent") is not None
            store.close()
        finally:
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    require_stored(append_writes(store, make_write("run/parent", store.load_head("run/parent"))))
    assert lines == {store._writer._connection, *store._readers._idle}, "the child hung up the parent's lines"
    assert store.load_head("run/child") is not None


def test_a_closed_postgres_store_refuses_every_call(store: PostgresStore) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    ticket = store.append(Batch((make_write("run/b", None),)))
    store.close()
    store.close()
    for use in (ticket.wait, lambda: store.append(Batch(())), lambda: store.load_head("run/a"), store.now):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_entries_are_read_page_by_page_without_gaps(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_queries, "PAGE", 3)
    head = None
    for _ in range(7):
        require_stored(append_writes(store, make_write("run/a", head)))
        head = store.load_head("run/a")
    assert len(read_verified_entries(store, "run/a")) == 7
    assert [entry.version for entry in store.read_entries()] == [1, 2, 3, 4, 5, 6, 7]
    assert [entry.version for entry in store.read_entries("run/a", after=2)] == [3, 4, 5, 6, 7]
    assert isinstance(next(store.read_entries()).header, bytes)
    assert isinstance(make_write("run/a", None), EntryWrite)
