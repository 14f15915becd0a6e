"""The store in MySQL with cut connections and a killed server: the outcome of every batch is resolved.

`make test` kills the server twice, `make torture` forty times.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pymysql
import pytest

from oncemore.errors import StoreError
from oncemore.log.mysql.store import MysqlStore
from oncemore.log.store import Batch, Conflict, HeadQuery, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.log import database_cuts
from tests.log.database_cuts import Answered, nonced, work, wrong
from tests.servers import mariadb
from tests.servers.processes import processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import EntryWrite
    from tests.servers.cutting import Proxy

names = itertools.count()
TORTURE = os.environ.get("ONCEMORE_TORTURE") == "1"
KILLS = 40 if TORTURE else 2
WRITERS = 8


@pytest.fixture
def proxy(mysql_database: str) -> Iterator[Proxy]:
    yield from database_cuts.make_proxy(mysql_database)


@pytest.fixture
def open_at() -> Callable[[str], MysqlStore]:
    prefix = f"cuts_{next(names)}"
    return lambda url: MysqlStore(f"{url}?prefix={prefix}")


def test_after_a_cut_every_answer_agrees_with_the_log(
    proxy: Proxy, mysql_database: str, open_at: Callable[[str], MysqlStore]
) -> None:
    database_cuts.check_every_answer_agrees_with_the_log(proxy, mysql_database, open_at)


def test_a_stored_batch_is_recognised_after_later_entries(
    proxy: Proxy, mysql_database: str, open_at: Callable[[str], MysqlStore]
) -> None:
    database_cuts.check_a_stored_batch_is_recognised(proxy, mysql_database, open_at)


def test_a_connection_that_stays_down_is_reported_as_unknown_in_bounded_time(
    proxy: Proxy,
    mysql_database: str,
    open_at: Callable[[str], MysqlStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database_cuts.check_an_unknown_outcome_is_reported_in_bounded_time(
        proxy, mysql_database, open_at, monkeypatch
    )


def test_sessions_killed_by_the_server_are_opened_again(
    mysql_database: str, open_at: Callable[[str], MysqlStore]
) -> None:
    store = open_at(mysql_database)
    told: list[Answered] = []
    faults: list[object] = []
    threads = [threading.Thread(target=work, args=(store, n, 40, told, faults)) for n in range(3)]
    for thread in threads:
        thread.start()
    killed = answered = 0
    with mariadb.connect(mysql_database) as boss, boss.cursor() as cursor:
        while any(thread.is_alive() for thread in threads):
            session = store._writer._connection
            if len(told) > answered + 1 and session is not None:  # something got through since
                answered = len(told)
                with suppress(pymysql.Error):  # it may have ended by itself
                    cursor.execute(f"kill {session.thread_id()}")
                    killed += 1
            time.sleep(0.002)
    assert not faults, faults
    assert killed > 3
    assert wrong(told, store) == (0, 0, 0)
    store.close()


class Reading(NamedTuple):
    """An entry that a reader has seen."""

    seq: int
    entity: str
    version: int
    own_hash: bytes


class Clients:
    """Threads that append and threads that read, each with a store of its own, while the server dies."""

    def __init__(self, url: str) -> None:
        self.answered: list[tuple[tuple[EntryWrite, ...], Stored | Conflict | StoreError]] = []
        self.readings: list[Reading] = []
        self.errors: list[BaseException] = []
        self._followed = 0
        self._over = threading.Event()
        self._stores = [MysqlStore(url) for _ in range(WRITERS + 2)]
        work = [(self._append, n) for n in range(WRITERS)] + [(self._follow, -2), (self._look, -1)]
        self._threads = [threading.Thread(target=self._run, args=(do, self._stores[n], n)) for do, n in work]
        for thread in self._threads:
            thread.start()

    def _run(self, do: Callable[[MysqlStore, int], None], store: MysqlStore, mine: int) -> None:
        try:
            while not self._over.is_set():
                try:
                    do(store, mine)
                except StoreError:  # the server is away
                    self._over.wait(0.05)
        except BaseException as error:
            self.errors.append(error)

    def _append(self, store: MysqlStore, mine: int) -> None:
        for n in itertools.count():
            entities = [(f"run/{mine}",), ("run/hot",), (f"run/{mine}-{n}", f"worker/{mine}")][n % 3]
            writes = tuple(nonced(store, entity) for entity in entities)
            try:
                answer: Stored | Conflict | StoreError = store.append(Batch(writes, {"switch/off": 0})).wait()
            except StoreError as error:
                answer = error
            self.answered.append((writes, answer))
            if isinstance(answer, StoreError) or self._over.is_set():
                return

    def _follow(self, store: MysqlStore, mine: int) -> None:
        """Follow the log by its numbers."""
        after = self._followed
        while not self._over.is_set():
            store.wait_for_change(after, 0.2)
            for entry in store.read_entries(after=after):
                self.readings.append(Reading(entry.seq, entry.entity, entry.version, entry.hash))
                after = self._followed = entry.seq

    def _look(self, store: MysqlStore, mine: int) -> None:
        """Read one head again and again, as the callers of a finished run do."""
        while not self._over.is_set():
            head = store.load_head("run/hot")
            if head is not None:
                self.readings.append(Reading(head.seq, head.entity, head.version, head.hash))

    def wait_for_answers(self, many: int) -> None:
        before, until = len(self.answered), time.monotonic() + 100
        while len(self.answered) < before + many:
            assert not self.errors, self.errors
            assert time.monotonic() < until, "the writers make no progress"
            time.sleep(0.01)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(100)
            assert not thread.is_alive(), "a thread is stuck"
        assert not self.errors, self.errors
        for store in self._stores:
            store.close()


@pytest.mark.timeout(1800 if TORTURE else 240)
def test_a_killed_server_loses_nothing_that_was_acknowledged_or_read() -> None:
    seed = os.environ.get("ONCEMORE_SEED", str(random.SystemRandom().randrange(10**12)))
    print(f"\nONCEMORE_SEED={seed}")
    chance = random.Random(seed)
    try:
        # On a real disk: in memory, there is hardly a moment between a commit and its being on disk.
        with mariadb.server(on_disk=True) as server:
            mariadb.create_database(server.url, "killed")
            url = f"{server.url}/killed"
            MysqlStore(url).close()
            clients = Clients(url)
            for _ in range(KILLS):
                clients.wait_for_answers(60)
                time.sleep(chance.uniform(0.0, 0.03))  # the moment of the crash, not a wait for an event
                server.kill()
                server.start()
            clients.wait_for_answers(30)
            clients.stop()
            check_log(url, clients)
    except mariadb.NoMariadb as reason:
        pytest.skip(str(reason))


def check_log(url: str, clients: Clients) -> None:
    """Compare what clients were told and have read with the log."""
    store = MysqlStore(url)
    log = list(store.read_entries())
    assert [entry.seq for entry in log] == list(range(1, len(log) + 1)), "numbers have no gaps"
    stored = {(entry.entity, entry.version): (entry.seq, entry.hash) for entry in log}
    kinds: dict[str, int] = {}
    for writes, answer in clients.answered:
        kinds[type(answer).__name__] = kinds.get(type(answer).__name__, 0) + 1
        for position, write in enumerate(writes):
            seq, own_hash = stored.get((write.entity, write.expect + 1), (0, b""))
            if isinstance(answer, Stored):
                assert (seq, own_hash) == (answer.seqs[position], write.hash), "an acknowledged entry is gone"
            elif isinstance(answer, Conflict) or "nothing was stored" in str(answer):
                assert own_hash != write.hash, f"a refused entry is stored: {answer}"
    for one in clients.readings:
        assert stored.get((one.entity, one.version)) == (one.seq, one.own_hash), (
            "an entry that was read is gone"
        )
    for entity in {entry.entity for entry in log}:
        read_verified_entries(store, entity)
    assert len(list(store.list_heads(HeadQuery("run", limit=len(log))))) == len({e.entity for e in log})
    print(f"{KILLS} kills: {kinds}, {len(log)} entries, {len(clients.readings)} readings")
    assert kinds["Stored"] > 40
    assert kinds.get("Conflict"), "nobody was ever refused"
    store.close()


WRITER = """
    import sys
    from oncemore.log.mysql.store import MysqlStore
    from oncemore.testing.store_contract import append_writes as put, make_write as write
    store = MysqlStore(sys.argv[1])
    print("open", flush=True)
    sys.stdin.readline()
    n = 0
    while True:
        entity = f"run/{sys.argv[2]}-{n % 5}"
        answer = put(store, write(entity, store.load_head(entity)), write(f"once/{sys.argv[2]}-{n}", None))
        print(*answer.seqs, flush=True)
        n += 1
"""


def test_a_reader_by_seq_sees_every_acknowledged_entry_of_eight_killed_writers(mysql_database: str) -> None:
    """Eight processes append and are killed; a reader of the log has every number once, in order."""
    url = f"{mysql_database}?prefix=eight_{next(names)}"
    store = MysqlStore(url)
    seen: list[int] = []
    with processes(WRITER, *((url, n) for n in range(WRITERS))) as writers:
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        while len(seen) < 400:
            store.wait_for_change(seen[-1] if seen else 0, 10.0)
            seen += [entry.seq for entry in store.read_entries(after=seen[-1] if seen else 0)]
        told = []
        for writer in writers:
            writer.kill()
            assert writer.stdout is not None
            told += [int(seq) for seq in writer.stdout.read().split()]
    seen += [entry.seq for entry in store.read_entries(after=seen[-1])]
    assert seen == list(range(1, len(seen) + 1))
    assert set(told) <= set(seen)
    assert len(told) > 200
    require_stored(append_writes(store, make_write("run/after", None)))
    store.close()
