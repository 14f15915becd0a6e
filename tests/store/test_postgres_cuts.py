"""The store in PostgreSQL when the line to it is cut: every batch is found stored, or found absent.

A proxy on the loopback address stands between the store and a real server, and cuts requests in five ways.
What the store then answers is compared with what the log has.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from oncemore.errors import StoreError
from oncemore.store import postgres_write
from oncemore.store.base import Batch, Conflict, Stored
from oncemore.store.postgres import PostgresStore
from oncemore.testing.contract import put, stored, whole, write
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.store.base import Write

names = itertools.count()

#: Only requests with a body are worth cutting, and only they are this long.
BODY = b"." * 3000
WAYS = ("before", "in the middle", "just after", "answer swallowed", "delivered late")
PATIENCE = 5.0


class Proxy:
    """Passes bytes on until it is armed; then cuts the next long request, and counts it."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._armed: list[str] = []
        self._row = 0
        self._lines: list[socket.socket] = []
        self.cuts = dict.fromkeys(WAYS, 0)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def arm(self, way: str) -> None:
        """Cut the next long request, but not a fourth in a row, or nothing would ever get through."""
        if not self._armed and self._row < 3:
            self._armed.append(way)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._lines += (client, server)
                for work in (self._requests, self._answers):
                    self._threads.append(threading.Thread(target=work, args=(client, server), daemon=True))
                    self._threads[-1].start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                way = self._armed.pop() if len(data) > len(BODY) and self._armed else None
                if len(data) > len(BODY):
                    self._row = 0 if way is None else self._row + 1
                if way is None:
                    server.sendall(data)
                    continue
                self._cut(way, data, client, server)
                return
        _end(client)
        _end(server)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                client.sendall(data)
        _end(client)

    def _cut(self, way: str, data: bytes, client: socket.socket, server: socket.socket) -> None:
        sent = {"before": 0, "in the middle": len(data) // 2, "delivered late": 0}.get(way, len(data))
        client.shutdown(socket.SHUT_RD)
        if way in ("answer swallowed", "delivered late"):
            _end(client)  # first: what the server says from now on reaches nobody
        server.sendall(data[:sent])
        if way == "delivered late":
            time.sleep(random.uniform(0.0, 0.06))
            server.sendall(data)
        if way in ("answer swallowed", "delivered late"):
            time.sleep(0.02)
        _end(client)
        _end(server)
        self.cuts[way] += 1

    def close(self) -> None:
        for line in (self._listener, *self._lines):
            _end(line)
        for thread in self._threads:
            thread.join(PATIENCE)


def _end(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.running(deadlock_timeout="50ms") as address:
            yield address
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    made = Proxy((where.hostname, where.port))
    yield made
    made.close()


class Answered(NamedTuple):
    """What a caller was told about its writes."""

    writes: tuple[Write, ...]
    answer: Stored | Conflict


def through(proxy: Proxy, url: str) -> str:
    return url.replace(str(urlsplit(url).port), str(proxy.port))


def nonced(store: PostgresStore, entity: str) -> Write:
    return write(entity, store.head(entity), secrets.token_bytes(8) + BODY)


def work(store: PostgresStore, mine: int, rounds: int, told: list[Answered], faults: list[object]) -> None:
    """Write alone, against others, and two at once; on the strength of a guard now and then."""
    try:
        for n in range(rounds):
            entities = [(f"run/{mine}",), ("run/hot",), (f"run/{mine}-{n}", f"worker/{mine}")][n % 3]
            writes = tuple(nonced(store, entity) for entity in entities)
            told.append(Answered(writes, store.append(Batch(writes, {"switch/off": 0})).wait()))
    except BaseException as fault:
        faults.append(fault)


def wrong(told: list[Answered], store: PostgresStore) -> tuple[int, int, int]:
    """Return how many writes stand twice, are missing, or stand though their caller heard otherwise."""
    standing: dict[bytes, list[int]] = {}
    for entry in store.entries():
        standing.setdefault(entry.body or b"", []).append(entry.seq)
    double = sum(len(seqs) > 1 for seqs in standing.values())
    missing = surplus = 0
    for writes, answer in told:
        for at, one in enumerate(writes):
            seqs = standing.get(one.body, [])
            if isinstance(answer, Stored):
                missing += seqs != [answer.seqs[at]]
            else:
                surplus += len(seqs)
    return double, missing, surplus


def test_after_a_cut_every_answer_is_what_the_log_says(proxy: Proxy, url: str) -> None:
    schema = f"cuts_{next(names)}"
    cut, straight = PostgresStore(through(proxy, url), schema), PostgresStore(url, schema)
    told: list[Answered] = []
    faults: list[object] = []
    args = [(cut, 0), (cut, 1), (cut, 2), (straight, 3)]
    threads = [threading.Thread(target=work, args=(*arg, 50, told, faults)) for arg in args]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        proxy.arm(random.choice(WAYS))
        time.sleep(0.005)
    assert not faults, faults
    assert sum(proxy.cuts.values()) >= 100, proxy.cuts
    assert min(proxy.cuts.values()) >= 5, proxy.cuts
    assert wrong(told, straight) == (0, 0, 0)
    assert len(told) == 200
    assert any(isinstance(answer, Conflict) for _, answer in told), "nobody was ever refused"
    for entity in {one.entity for writes, _ in told for one in writes}:
        whole(straight, entity)
    cut.close()
    straight.close()


def test_what_was_stored_is_recognised_after_others_have_gone_on(proxy: Proxy, url: str) -> None:
    """Between the lost answer and the second sending, another process moves the entity and the guard."""
    schema = f"cuts_{next(names)}"
    cut, other = PostgresStore(through(proxy, url), schema), PostgresStore(url, schema)
    stored(put(other, write("switch/s", None)))
    first = cut.append(Batch((nonced(cut, "run/a"),), {"switch/s": 1})).wait()  # the line is open
    assert isinstance(first, Stored)

    original = postgres_write._pause

    def meddle(tries: int) -> None:
        if tries == 1:
            until = time.monotonic() + PATIENCE
            while (head := other.head("run/a")) is None or head.version < 2:
                assert time.monotonic() < until
            stored(put(other, write("run/a", head)))
            stored(put(other, write("switch/s", other.head("switch/s"))))
        original(tries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_write, "_pause", meddle)
        proxy.arm("answer swallowed")
        mine = nonced(cut, "run/a")
        answer = cut.append(Batch((mine,), {"switch/s": 1})).wait()
    assert sum(proxy.cuts.values()) == 1
    entries = whole(other, "run/a")
    assert [entry.body == mine.body for entry in entries] == [False, True, False]
    assert answer == Stored((entries[1].seq,))
    cut.close()
    other.close()


def test_a_line_that_stays_dead_is_reported_as_unknown_in_bounded_time(
    proxy: Proxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_write, "RESOLVE_S", 0.3)
    store = PostgresStore(through(proxy, url), f"cuts_{next(names)}")
    one = nonced(store, "run/a")
    stored(put(store, one))
    two = nonced(store, "run/a")
    proxy.arm("before")
    proxy.close()
    began = time.monotonic()
    with pytest.raises(StoreError, match="whether it is stored is not known"):
        put(store, two)
    assert time.monotonic() - began < PATIENCE
    with pytest.raises(StoreError, match="nothing was stored"):
        put(store, two)
    store.close()


def test_sessions_that_the_server_ends_are_opened_again(url: str) -> None:
    store = PostgresStore(url, f"cuts_{next(names)}")
    told: list[Answered] = []
    faults: list[object] = []
    threads = [threading.Thread(target=work, args=(store, n, 60, told, faults)) for n in range(3)]
    for thread in threads:
        thread.start()
    ended = answered = 0
    with psycopg.connect(url, autocommit=True) as boss:
        while any(thread.is_alive() for thread in threads):
            if len(told) > answered + 1:  # something got through since
                answered = len(told)
                ended += boss.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where application_name = 'oncemore' and query like '%append%'"
                ).rowcount
            time.sleep(0.002)
    assert not faults, faults
    assert ended > 10
    assert wrong(told, store) == (0, 0, 0)
    store.close()


def test_a_read_that_finds_its_line_dead_opens_another(url: str) -> None:
    store = PostgresStore(url, f"cuts_{next(names)}")
    stored(put(store, write("run/a", store.head("run/a"))))
    with psycopg.connect(url, autocommit=True) as boss:
        for _ in range(3):
            boss.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity "
                "where application_name = 'oncemore'"
            )
            assert store.head("run/a") is not None
            stored(put(store, write("run/a", store.head("run/a"))))
    assert len(whole(store, "run/a")) == 4
    store.close()
