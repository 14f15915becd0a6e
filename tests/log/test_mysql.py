"""The store in MySQL: names, durability, rights, limits, formats, forks and waiting, with a real MariaDB."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from oncemore.errors import StoreError, UsageError
from oncemore.log.mysql import schema, writer
from oncemore.log.mysql.connection import check_server, find_weaknesses, parse_address
from oncemore.log.mysql.store import MAX_POLL_S, MysqlStore, ReadOnlyMysqlStore
from oncemore.log.open_store import make_store_opener
from oncemore.log.store import Batch, Conflict, HeadQuery, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.servers import mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

names = itertools.count()


@pytest.fixture
def url(mysql_database: str) -> str:
    return f"{mysql_database}?prefix=own_{next(names)}"


@pytest.fixture
def store(url: str) -> Iterator[MysqlStore]:
    made = MysqlStore(url)
    yield made
    made.close()


def ask(url: str, sql: str) -> Any:
    """Run a statement beside the store; {} in it is the prefix of the tables."""
    with mariadb.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(sql.format(url.rpartition("=")[2]))
        return cursor.fetchall()


# Names and values


def test_names_differ_by_case_trailing_space_accent_and_emoji(store: MysqlStore) -> None:
    entities = [
        "run/a",
        "run/A",
        "run/a ",
        "run/á",
        "run/a\u0301",
        "run/\U0001f600",
        "run/\U0001f601",
        "run/a\0",
    ]
    for entity in entities:
        require_stored(append_writes(store, make_write(entity, None, entity.encode(), step=entity)))
    for entity in entities:
        head = store.load_head(entity)
        assert head is not None
        assert (head.entity, head.body, head.by.step) == (entity, entity.encode(), entity)
        assert [found.entity for found in store.list_heads(HeadQuery("run", step=entity))] == [entity]
    # By code point, as in the other stores.
    listed = [head.entity for head in store.list_heads(HeadQuery("run", after=""))]
    assert listed == sorted(entities, key=str.encode)
    assert not list(store.list_heads(HeadQuery("RUN")))


@pytest.mark.parametrize("due", [1763459999.1234567, 0.1 + 0.2, 1e-7, -1.5, 2.0**53, 5e-324, 1.7e308])
def test_due_times_are_stored_exactly(store: MysqlStore, due: float) -> None:
    require_stored(append_writes(store, make_write("run/a", None, due=due)))
    (head,) = store.list_heads(HeadQuery("run", due_by=due))
    assert head.by.due == due


@pytest.mark.parametrize(
    ("entity", "by", "message"),
    [
        ("run/" + "x" * 2000, {}, "2004 bytes long; MySQL indexes up to 2000"),
        ("run/a", {"step": "é" * 501}, "1002 bytes long; MySQL indexes up to 1000"),
        ("run/a", {"kind": "k" * 101}, "101 bytes long; MySQL indexes up to 100"),
        ("run/\ud800", {}, "half of a surrogate pair"),
        ("run/a", {"due": float("inf")}, "run/a is due at inf, and MySQL cannot store it"),
    ],
)
def test_names_that_do_not_fit_are_usage_errors(
    store: MysqlStore, entity: str, by: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        append_writes(
            store, make_write("run/b", None), make_write("run/a", None, **by)._replace(entity=entity)
        )
    require_stored(append_writes(store, make_write("run/" + "y" * 1990, None, step="s" * 1000)))


def test_a_batch_beyond_max_allowed_packet_is_refused_alone(store: MysqlStore) -> None:
    store._writer.max_packet = 100_000
    large = make_write("run/large", None, b"x" * 60_000)
    small = [Batch((make_write(f"run/{n}", None),)) for n in range(3)]
    answers = store._writer.store_batches([small[0], Batch((large,)), *small[1:]])
    assert [type(answer).__name__ for answer in answers] == ["Stored", "StoreError", "Stored", "Stored"]
    assert "max_allowed_packet is 100000" in str(answers[1])
    assert "nothing was stored" in str(answers[1])
    assert store.load_head("run/large") is None
    # Below the limit of the server the same batch is stored.
    store._writer.max_packet = store.server.max_packet
    require_stored(append_writes(store, large))


def test_groups_stay_below_the_limit_of_a_statement(store: MysqlStore) -> None:
    store._writer.max_packet = 40_000
    threads = [
        threading.Thread(target=append_writes, args=(store, make_write(f"run/{n}", None, b"x" * 9000)))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(list(store.list_heads(HeadQuery("run")))) == 12


# Durability


def test_a_read_of_a_new_entry_waits_for_the_disk_once(url: str, store: MysqlStore) -> None:
    """An entry of another process is visible before it is on disk: the first read of it makes a commit."""
    other = MysqlStore(url)

    def flushes() -> int:
        ((count,),) = ask(url, "select value from {}_counter where name = 'flushes'")
        return int(count)

    require_stored(append_writes(other, make_write("run/a", None)))
    assert other.load_head("run/a") is not None
    assert flushes() == 0, "its own append was acknowledged"
    for read in (
        lambda: store.load_head("run/a"),
        lambda: list(store.list_heads(HeadQuery("run"))),
        lambda: list(store.read_entries()),
        lambda: store.wait_for_change(0, 0.0),
    ):
        before = flushes()
        require_stored(append_writes(other, make_write("run/a", other.load_head("run/a"))))
        assert read()
        assert flushes() == before + 1
        assert read()
        assert flushes() == before + 1, "it is known to be on disk"
    # A refused append reads the head that is in its way.
    stale = make_write("run/a", store.load_head("run/a"))
    require_stored(append_writes(other, make_write("run/a", other.load_head("run/a"))))
    before = flushes()
    assert isinstance(append_writes(store, stale), Conflict)
    assert flushes() == before + 1
    other.close()


def test_an_append_publishes_what_is_on_disk_so_that_readers_need_no_commit(
    url: str, store: MysqlStore
) -> None:
    other = MysqlStore(url)
    for _ in range(2):
        require_stored(append_writes(other, make_write("run/a", other.load_head("run/a"))))
    require_stored(append_writes(other, make_write("run/b", None)))
    assert store.load_head("run/a") is not None
    assert ask(url, "select value from {}_counter where name = 'flushes'") == ((0,),)
    other.close()


@pytest.mark.parametrize(
    ("settings", "weaknesses"),
    [
        ({"innodb_flush_log_at_trx_commit": "1", "log_bin": "off", "sync_binlog": "0"}, ()),
        ({"innodb_flush_log_at_trx_commit": "3", "log_bin": "on", "sync_binlog": "1"}, ()),
        ({"innodb_flush_log_at_trx_commit": "2"}, ("innodb_flush_log_at_trx_commit=2",)),
        ({"log_bin": "on", "sync_binlog": "0"}, ("sync_binlog=0 with log_bin=on",)),
        ({"innodb_doublewrite": "off"}, ("innodb_doublewrite=off",)),
        ({"innodb_flush_method": "nosync"}, ("innodb_flush_method=nosync",)),
    ],
)
def test_settings_that_lose_commits_are_found(settings: dict[str, str], weaknesses: tuple[str, ...]) -> None:
    assert find_weaknesses(settings) == weaknesses


@contextmanager
def changed_setting(url: str, name: str, value: int, usual: int) -> Iterator[None]:
    ask(url, f"set global {name} = {value}")
    try:
        yield
    finally:
        ask(url, f"set global {name} = {usual}")


@pytest.mark.skipif(mariadb.ADDRESS in os.environ, reason="changes the server, so it must be our own")
def test_a_server_that_can_lose_acknowledged_commits_is_refused_or_reported(url: str) -> None:
    with changed_setting(url, "innodb_flush_log_at_trx_commit", 2, 1):
        with pytest.raises(StoreError, match="runs with innodb_flush_log_at_trx_commit=2: a power cut could"):
            MysqlStore(url)
        unsafe = MysqlStore(url, unsafe_ok=True)
        facts = unsafe.open_maintenance().describe_store()
        assert "power loss can take away acknowledged entries" in facts.durable
        unsafe.close()
    safe = MysqlStore(url)
    facts = safe.open_maintenance().describe_store()
    assert facts.durable.startswith("an acknowledged entry survives")
    assert facts.engine.startswith("MariaDB 1")
    assert any("no semi-synchronous replica" in note for note in facts.notes)
    assert facts.url.endswith(url.rpartition("?")[2])
    safe.close()


class FakeClient:
    """Replies of a server that is not here: of another version, or of a cluster."""

    def __init__(self, version: str, **settings: str) -> None:
        self.where = parse_address("mysql://app@db.example/shop")
        self._version, self._settings = version, {"max_allowed_packet": "1000", **settings}

    def execute_rows(self, connection: object, sql: str, values: object = ()) -> Any:
        return ((self._version,),) if "version()" in sql else tuple(self._settings.items())


def test_old_servers_and_clusters_are_refused_and_mysql_is_noted() -> None:
    nowhere: Any = None
    for version, message in (("10.5.1-MariaDB", "10.6 or newer"), ("5.7.44-log", "8.0 or newer")):
        with pytest.raises(StoreError, match=message):
            check_server(FakeClient(version), nowhere)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="Galera cluster, which is not supported"):
        check_server(FakeClient("11.4.2-MariaDB", wsrep_on="ON"), nowhere)  # type: ignore[arg-type]
    server = check_server(FakeClient("8.4.3", rpl_semi_sync_source_enabled="ON"), nowhere)  # type: ignore[arg-type]
    assert server.facts.engine.startswith("MySQL 8.4.3 (PyMySQL")
    assert server.facts.notes == ("the tests of oncemore run with MariaDB, and were never run with MySQL",)


# Concurrent transactions


def test_a_lock_of_the_log_is_waited_for_and_the_append_repeated(
    url: str, store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOCK_WAIT_S", 1)
    with mariadb.connect(url) as holder, holder.cursor() as cursor:
        cursor.execute("begin")
        prefix = url.rpartition("=")[2]
        cursor.execute(f"select value from {prefix}_counter where name = 'last_seq' for update")  # noqa: S608
        answers: list[Stored | Conflict] = []
        thread = threading.Thread(
            target=lambda: answers.append(append_writes(store, make_write("run/a", None)))
        )
        thread.start()
        thread.join(1.5)  # longer than the time limit of the lock: the first try has failed
        assert thread.is_alive()
        cursor.execute("rollback")
        thread.join(30)
    assert isinstance(answers[0], Stored)
    assert len(read_verified_entries(store, "run/a")) == 1


def test_a_lock_that_stays_is_reported(url: str, store: MysqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LOCK_WAIT_S", 1)
    monkeypatch.setattr("oncemore.log.database.writer.MAX_TRIES", 1)
    with mariadb.connect(url) as holder, holder.cursor() as cursor:
        cursor.execute("begin")
        cursor.execute(f"update {url.rpartition('=')[2]}_counter set value = value + 1")  # noqa: S608
        with pytest.raises(
            StoreError, match=r"another append has held the log for too long; .*nothing was stored"
        ):
            append_writes(store, make_write("run/a", None))
    require_stored(append_writes(store, make_write("run/a", None)))


# Set-up


def test_several_processes_may_create_the_tables_at_the_same_time(url: str) -> None:
    code = "import sys; from oncemore.log.mysql.store import MysqlStore; MysqlStore(sys.argv[1]).close()"
    started = [subprocess.Popen([sys.executable, "-c", code, url]) for _ in range(3)]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    store = MysqlStore(url)
    require_stored(append_writes(store, make_write("run/a", None)))
    store.close()


def test_a_creation_that_ended_in_the_middle_is_repeated(url: str) -> None:
    MysqlStore(url).close()
    prefix = url.rpartition("=")[2]
    ask(url, "delete from {}_meta")
    ask(url, "drop procedure {}_append_one")
    ask(url, "drop table {}_worker")
    with pytest.raises(StoreError, match=f"there is no store with the prefix {prefix}"):
        ReadOnlyMysqlStore(url)
    store = MysqlStore(url)
    require_stored(append_writes(store, make_write("run/a", None)))
    store.register_worker("w").close()
    store.close()


def test_a_later_format_is_migrated_and_a_newer_one_refused(
    url: str, store: MysqlStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    migration = tmp_path / "later.sql"
    migration.write_text("create table if not exists {prefix}_more(n int) engine = InnoDB;")
    with monkeypatch.context() as later:
        later.setattr(schema, "SOURCES", {**schema.SOURCES, 2: str(migration)})
        later.setattr(schema, "FORMAT", 2)
        newer = MysqlStore(url)
        assert newer.load_head("run/a") == store.load_head("run/a")
        assert ask(url, "select count(*) from {}_more") == ((0,),)
        newer.close()
    for kind in (MysqlStore, ReadOnlyMysqlStore):
        with pytest.raises(StoreError, match="format 2, which another version of oncemore wrote"):
            kind(url)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("create trigger {0}_t after insert on {0}_log for each row set @x = 1", "the trigger own_"),
        ("alter table {0}_meta engine = MyISAM", "_meta is not a table of InnoDB"),
    ],
)
def test_foreign_objects_on_our_tables_are_refused(url: str, sql: str, message: str) -> None:
    store = MysqlStore(url)
    ask(url, sql)
    with pytest.raises(StoreError, match=message):
        MysqlStore(url)
    assert message in store.sort_objects()[0][0]
    store.close()


@pytest.fixture
def app(mysql_database: str) -> Iterator[str]:
    """A user with the rights of a program: it may read tables and call procedures."""
    name, database = f"app_{next(names)}", mysql_database.rpartition("/")[2]
    ask(mysql_database, f"create user {name}@'127.0.0.1' identified by 'hunter2'")
    ask(mysql_database, f"grant select, execute on {database}.* to {name}@'127.0.0.1'")
    yield f"{name}:hunter2"
    ask(mysql_database, f"drop user {name}@'127.0.0.1'")


def test_a_user_with_select_and_execute_can_append_but_not_change(
    url: str, store: MysqlStore, app: str
) -> None:
    as_app = url.replace("oncemore@", f"{app}@")
    with pytest.raises(StoreError, match=r"was defined by oncemore@127.0.0.1; .*name it in the address"):
        MysqlStore(as_app)
    limited = MysqlStore(f"{as_app}&owner=oncemore@127.0.0.1")
    for n in range(2):
        require_stored(append_writes(limited, make_write("run/a", limited.load_head("run/a"), b"%d" % n)))
        require_stored(append_writes(limited, make_write(f"run/b{n}", None), make_write(f"run/c{n}", None)))
    assert store.load_head("run/a") == limited.load_head("run/a")
    limited.open_maintenance().prune_bodies({"run/a": 2})
    read_verified_entries(limited, "run/a", pruned=2)
    limited.register_worker("w").close()
    assert limited.is_worker_gone("w")
    for refused in (
        lambda: limited.open_maintenance().drop_entities({"run/a": 2}),
        lambda: limited.query_rows("update {head} set state = 'x'"),
        lambda: limited.query_rows("delete from {log}"),
    ):
        with pytest.raises(StoreError, match="this user may not do that"):
            refused()
    limited.close()


def test_errors_and_descriptions_do_not_contain_the_password(url: str, app: str, store: MysqlStore) -> None:
    wrong = url.replace("oncemore@", f"{app.partition(':')[0]}:swordfish@")
    with pytest.raises(StoreError, match="the server refused the login") as caught:
        MysqlStore(wrong)
    assert "swordfish" not in str(caught.value)
    right = MysqlStore(f"{url.replace('oncemore@', f'{app}@')}&owner=oncemore@127.0.0.1")
    shown = (repr(right._client.where), right.display_name, str(right.open_maintenance().describe_store()))
    assert not any("hunter2" in text for text in shown)
    assert "hunter2" not in make_store_opener(wrong.replace("swordfish", "hunter2"))[1]
    right.close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mysql://host", "looks like mysql://user@host:3306/database"),
        ("mysql://host:port/db", "looks like"),
        ("mysql://host/a/b", "looks like"),
        ("mysql://host/db?prefix=A", "'A' is not a prefix"),
        ("mysql://host/db?prefix=a&prefix=b", "more than one prefix"),
        ("mysql://host/db?sslmode=x", "has no option 'sslmode'; it has prefix, owner, ssl_ca"),
        ("postgresql://host/db", "begins with mysql:// or mariadb://"),
    ],
)
def test_an_address_that_cannot_be_read_is_a_usage_error(address: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_address(address)


def test_an_address_has_the_options_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYSQL_PWD", "from the environment")
    where = parse_address("mariadb://a%40b@db.example:3307/shop?ssl_ca=/ca.pem&unix_socket=/run/s&owner=o@h")
    assert where.shown == "mariadb://a%40b@db.example:3307/shop"
    assert (where.prefix, where.owner) == ("oncemore", "o@h")
    assert where.params == {
        "user": "a@b",
        "host": "db.example",
        "port": 3307,
        "database": "shop",
        "password": "from the environment",
        "ssl_ca": "/ca.pem",
        "unix_socket": "/run/s",
        "ssl_verify_cert": True,
        "ssl_verify_identity": True,
    }
    assert (
        parse_address("mysql://host/db?defaults_file=/etc/my.cnf").params["read_default_file"]
        == "/etc/my.cnf"
    )


def test_a_database_that_does_not_exist_is_named(mysql_database: str) -> None:
    with pytest.raises(StoreError, match="the database does not exist; create it first"):
        MysqlStore(f"{mysql_database}_missing")


def test_without_the_driver_the_extra_is_named() -> None:
    code = (
        "import sys\nsys.modules['pymysql'] = None\nfrom oncemore.errors import MissingExtra\n"
        "try:\n    import oncemore.log.mysql.store\nexcept MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "a store in MySQL needs PyMySQL: pip install 'oncemore[mysql]'\n"


# Use


def test_a_read_only_store_reads_and_writes_nothing(url: str, store: MysqlStore) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    reader = ReadOnlyMysqlStore(url)
    assert reader.load_head("run/a") == store.load_head("run/a")
    assert len(list(reader.read_entries())) == 1
    with pytest.raises(StoreError, match="opened read-only"):
        reader.append(Batch((make_write("run/b", None),)))
    assert ask(url, "select value from {}_counter where name = 'flushes'") == ((0,),)
    reader.close()


def test_the_clock_is_that_of_the_server(
    url: str, store: MysqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 12345.0)
    ((seconds,),) = ask(url, "select unix_timestamp(now(6))")
    assert abs(store.now() - float(seconds)) < 5.0


def test_a_waiting_reader_sees_appends_of_other_processes_within_the_interval(
    url: str, store: MysqlStore
) -> None:
    other = MysqlStore(url)
    last = store.wait_for_change(0, 0.0)
    woken: list[float] = []
    thread = threading.Thread(
        target=lambda: (store.wait_for_change(last, 60.0), woken.append(time.monotonic()))
    )
    thread.start()
    thread.join(3 * MAX_POLL_S)  # by now it polls at the longest interval
    assert thread.is_alive()
    require_stored(append_writes(other, make_write("run/a", None)))
    thread.join(30)
    assert woken
    # An append of its own wakes it at once; closing the store as well.
    thread = threading.Thread(target=store.wait_for_change, args=(store.wait_for_change(0, 0.0), 60.0))
    thread.start()
    require_stored(append_writes(store, make_write("run/b", None)))
    thread.join(30)
    assert not thread.is_alive()
    other.close()


def test_a_forked_child_uses_connections_of_its_own(store: MysqlStore) -> None:
    require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"))))
    connections = {store._writer._connection, *store._readers._idle}
    child = os.fork()
    if child == 0:
        status = 1
        try:
            require_stored(append_writes(store, make_write("run/child", store.load_head("run/child"))))
            assert not connections & {store._writer._connection, *store._readers._idle}
            store.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"))))
    assert connections == {store._writer._connection, *store._readers._idle}
    assert len(read_verified_entries(store, "run/child")) == 1


def test_a_closed_store_refuses_every_call(url: str) -> None:
    store = MysqlStore(url)
    store.close()
    store.close()
    for use in (
        lambda: store.load_head("run/a"),
        lambda: store.now(),
        lambda: list(store.read_entries()),
        lambda: store.append(Batch(())),
        lambda: store.open_maintenance().prune_bodies({"run/a": 1}),
    ):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_lists_use_the_indexes(url: str, store: MysqlStore) -> None:
    """The queries of a worker read the heads that are due, and a head is found by its name."""
    for n in range(200):
        store.append(
            Batch((make_write(f"run/{n}", None, due=float(n) if n % 20 == 0 else None, step="s"),))
        ).wait()
    prefix = url.rpartition("=")[2]
    for where in (
        "h.kind = 'run' and h.due <= 5 order by h.due, h.entity limit 10",
        "h.kind = 'run' and h.step = 's' and h.due <= 5 order by h.due, h.entity limit 10",
        "h.entity = 'run/7'",
    ):
        with mariadb.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute(f"analyze table {prefix}_head")
            cursor.execute(f"explain select * from {prefix}_head h where {where}")  # noqa: S608
            (plan,) = cursor.fetchall()
        assert plan[3] in ("range", "const"), plan
