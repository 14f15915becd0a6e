"""Checks of a store in a database server with cut connections: the outcome of every batch is resolved.

A proxy on the loopback address stands between the store and a real server, and cuts requests in five ways.
What the store then answers is compared with what the log has. `test_postgres_cuts.py` and
`test_mysql_cuts.py` run the checks.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pytest

from oncemore.errors import StoreError
from oncemore.log.database import writer
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.servers.cutting import BODY, PATIENCE, WAYS, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import EntryWrite, Store

    Open = Callable[[str], Store]


def make_proxy(url: str) -> Iterator[Proxy]:
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    made = Proxy((where.hostname, where.port))
    yield made
    made.close()


#: How many batches each of four callers writes while connections are cut; more in `make torture`.
ROUNDS = 50 if os.environ.get("ONCEMORE_TORTURE") else 20


class Answered(NamedTuple):
    """The writes of a caller and the answer that it got."""

    writes: tuple[EntryWrite, ...]
    answer: Stored | Conflict


def through(proxy: Proxy, url: str) -> str:
    return url.replace(str(urlsplit(url).port), str(proxy.port))


def nonced(store: Store, entity: str) -> EntryWrite:
    return make_write(entity, store.load_head(entity), secrets.token_bytes(8) + BODY)


def work(store: Store, mine: int, rounds: int, told: list[Answered], faults: list[object]) -> None:
    """Write single entities, contended ones and pairs; some of the batches have a guard."""
    try:
        for n in range(rounds):
            entities = [(f"run/{mine}",), ("run/hot",), (f"run/{mine}-{n}", f"worker/{mine}")][n % 3]
            writes = tuple(nonced(store, entity) for entity in entities)
            told.append(Answered(writes, store.append(Batch(writes, {"switch/off": 0})).wait()))
    except BaseException as fault:
        faults.append(fault)


def wrong(told: list[Answered], store: Store) -> tuple[int, int, int]:
    """Return how many writes are stored twice, are missing, or are stored though they were refused."""
    standing: dict[bytes, list[int]] = {}
    for entry in store.read_entries():
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


def check_every_answer_agrees_with_the_log(proxy: Proxy, url: str, open_store: Open) -> None:
    cut, straight = open_store(through(proxy, url)), open_store(url)
    told: list[Answered] = []
    faults: list[object] = []
    args = [(cut, 0), (cut, 1), (cut, 2), (straight, 3)]
    threads = [threading.Thread(target=work, args=(*arg, ROUNDS, told, faults)) for arg in args]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        proxy.arm(random.choice(WAYS))
        time.sleep(0.005)
    assert not faults, faults
    assert sum(proxy.cuts.values()) >= 2 * ROUNDS, proxy.cuts
    assert min(proxy.cuts.values()) >= ROUNDS // 10, proxy.cuts
    assert wrong(told, straight) == (0, 0, 0)
    assert len(told) == 4 * ROUNDS
    assert any(isinstance(answer, Conflict) for _, answer in told), "nobody was ever refused"
    for entity in {one.entity for writes, _ in told for one in writes}:
        read_verified_entries(straight, entity)
    cut.close()
    straight.close()


def check_a_stored_batch_is_recognised(proxy: Proxy, url: str, open_store: Open) -> None:
    """Between the lost answer and the second try, another process moves the entity and the guard."""
    cut, other = open_store(through(proxy, url)), open_store(url)
    require_stored(append_writes(other, make_write("switch/s", None)))
    first = cut.append(Batch((nonced(cut, "run/a"),), {"switch/s": 1})).wait()  # the line is open
    assert isinstance(first, Stored)

    original = writer.wait_before_retry

    def meddle(tries: int) -> None:
        if tries == 1:
            until = time.monotonic() + PATIENCE
            while (head := other.load_head("run/a")) is None or head.version < 2:
                assert time.monotonic() < until
            require_stored(append_writes(other, make_write("run/a", head)))
            require_stored(append_writes(other, make_write("switch/s", other.load_head("switch/s"))))
        original(tries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "wait_before_retry", meddle)
        proxy.arm("answer swallowed")
        mine = nonced(cut, "run/a")
        answer = cut.append(Batch((mine,), {"switch/s": 1})).wait()
    assert sum(proxy.cuts.values()) == 1
    entries = read_verified_entries(other, "run/a")
    assert [entry.body == mine.body for entry in entries] == [False, True, False]
    assert answer == Stored((entries[1].seq,))
    cut.close()
    other.close()


def check_an_unknown_outcome_is_reported_in_bounded_time(
    proxy: Proxy, url: str, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RESOLVE_S", 0.3)
    store = open_store(through(proxy, url))
    one = nonced(store, "run/a")
    require_stored(append_writes(store, one))
    two = nonced(store, "run/a")
    proxy.arm("before")
    proxy.close()
    began = time.monotonic()
    with pytest.raises(StoreError, match="whether it is stored is not known"):
        append_writes(store, two)
    assert time.monotonic() - began < PATIENCE
    with pytest.raises(StoreError, match="nothing was stored"):
        append_writes(store, two)
    store.close()
