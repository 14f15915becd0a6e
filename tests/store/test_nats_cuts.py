"""The store in NATS when the line to it is cut: every batch is found stored, or found absent.

A proxy on the loopback address stands between the store and a real server, and cuts requests in five ways.
What the store then answers is compared with the messages of the stream, read by the client alone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from oncemore.errors import StoreError
from oncemore.log.nats import append, connection, reader
from oncemore.log.nats.store import NatsStore
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import put, stored, whole, write
from tests.servers import nats
from tests.servers.cutting import BODY, WAYS, Proxy
from tests.store.nats_judge import MOVES, Answered, misled, nonced, raw, work, wrong

if TYPE_CHECKING:
    from collections.abc import Iterator


names = itertools.count()
TORTURE = os.environ.get("ONCEMORE_TORTURE") == "1"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with nats.node(sync="") as node:
            yield node.url
    except nats.NoNats as reason:
        pytest.skip(str(reason))


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    made = Proxy((where.hostname, where.port))
    yield made
    made.close()


def test_after_a_cut_every_answer_is_what_the_log_says(proxy: Proxy, url: str) -> None:
    namespace, rounds = f"cuts_{next(names)}", 600 if TORTURE else 25
    cut = [NatsStore(f"nats://127.0.0.1:{proxy.port}/{namespace}") for _ in range(5)]
    straight = NatsStore(f"{url}/{namespace}")
    told: list[Answered] = []
    faults: list[object] = []
    stores = [*cut, straight]
    args = [(store, n, rounds, told, faults) for n, store in enumerate(stores)]
    threads = [threading.Thread(target=work, args=arg) for arg in args]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        proxy.arm(random.choice(WAYS))
        time.sleep(0.003)
    assert not faults, faults
    print(f"{len(told)} batches, cuts: {proxy.cuts}")
    assert sum(proxy.cuts.values()) >= 100, proxy.cuts
    assert min(proxy.cuts.values()) >= 5, proxy.cuts
    assert wrong(told, raw(url, namespace)) == (0, 0, 0, 0)
    assert misled(told, [entry.seq for entry in whole(straight, MOVES)]) == 0
    assert any(isinstance(answer, Stored) for _, answer, relied in told if relied >= 0)
    assert len(told) == len(stores) * rounds
    assert any(isinstance(answer, Conflict) for _, answer, _ in told), "nobody was ever refused"
    for entity in {one.entity for writes, _, _ in told for one in writes}:
        whole(straight, entity)
    for store in stores:
        store.close()


# What happens between the lost answer and the look for it


@pytest.fixture
def pair(proxy: Proxy, url: str) -> Iterator[tuple[NatsStore, NatsStore, str]]:
    """A store whose line can be cut, and another on the same log."""
    namespace = f"cuts_{next(names)}"
    cut, other = NatsStore(f"nats://127.0.0.1:{proxy.port}/{namespace}"), NatsStore(f"{url}/{namespace}")
    yield cut, other, namespace
    cut.close()
    other.close()


def meddling(patch: pytest.MonkeyPatch, meddle: Any) -> None:
    """Have something done after the answer was lost, before anybody looks for it."""
    original = append.Appender._look
    done: list[bool] = []

    async def look(self: Any, one: Any) -> Any:
        if not done:
            done.append(True)
            await asyncio.get_running_loop().run_in_executor(None, meddle)
        return await original(self, one)

    patch.setattr(append.Appender, "_look", look)


def there(store: NatsStore, entity: str, version: int) -> Any:
    """Wait until an entity has come to a version: the server has what was sent."""
    until = time.monotonic() + 5
    while (head := store.head(entity)) is None or head.version < version:
        assert time.monotonic() < until
    return head


@pytest.mark.parametrize("room", [1_000_000, 1000], ids=["whole", "in parts"])
@pytest.mark.parametrize("meddler", ["moves", "prunes", "drops", "mends", "drops and makes anew"])
@pytest.mark.parametrize("began", [0, 2])
def test_what_was_stored_is_recognised_whatever_others_did_meanwhile(
    pair: tuple[NatsStore, NatsStore, str],
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    meddler: str,
    began: int,
    room: int,
) -> None:
    cut, other, _ = pair
    monkeypatch.setattr(connection.Line, "largest", room)
    stored(put(other, write("switch/s", None)))
    for _ in range(began):
        stored(put(cut, nonced(cut, "run/a")))
    mine = write("run/a", cut.head("run/a"), secrets.token_bytes(8) + BODY)
    assert cut.head("switch/s") is not None
    seqs: list[int] = []

    def meddle() -> None:
        head = there(other, "run/a", began + 1)
        assert head.body == mine.body
        seqs.append(head.seq)
        stored(put(other, write("switch/s", other.head("switch/s"))))
        if meddler == "moves":
            stored(put(other, write("run/a", head)))
        elif meddler == "prunes":
            other.prune({"run/a": 99})
        elif meddler == "mends":
            assert other.mend([head._replace(head=b"another")], other.changed(0, 0.0)) == 1
        else:
            assert other.drop({"run/a": began + 1}) == 1
        if meddler == "drops and makes anew":
            stored(put(other, write("run/a", None)))

    meddling(monkeypatch, meddle)
    proxy.arm("answer swallowed")
    answer = cut.append(Batch((mine,), {"switch/s": 1})).wait()
    assert sum(proxy.cuts.values()) == 1
    assert answer == Stored((seqs[0],))
    left = {"drops": 0, "drops and makes anew": 1, "moves": began + 2}.get(meddler, began + 1)
    assert len(list(other.entries("run/a"))) == left


def test_a_pair_that_was_stored_is_recognised_when_one_of_it_was_dropped(
    pair: tuple[NatsStore, NatsStore, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, other, _ = pair
    writes = (write("run/a", None, b"." * 4000), write("run/b", None, b"." * 4000))

    def meddle() -> None:
        there(other, "run/b", 1)
        assert other.drop({"run/a": 1}) == 1

    meddling(monkeypatch, meddle)
    proxy.arm("answer swallowed")
    answer = cut.append(Batch(writes)).wait()
    assert isinstance(answer, Stored)
    (entry,) = whole(other, "run/b")
    assert answer.seqs == (entry.seq - 1, entry.seq)


def test_what_was_not_stored_is_refused_when_somebody_else_came_first(
    pair: tuple[NatsStore, NatsStore, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, other, _ = pair
    mine = write("run/a", cut.head("run/a"), b"mine" + BODY)
    meddling(monkeypatch, lambda: stored(put(other, write("run/a", None, b"theirs"))))
    proxy.arm("before")
    assert cut.append(Batch((mine,))).wait() == Conflict("run/a", other.head("run/a"))
    assert [entry.body for entry in whole(other, "run/a")] == [b"theirs"]


def test_what_was_not_stored_is_refused_when_its_guard_has_moved(
    pair: tuple[NatsStore, NatsStore, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, other, _ = pair
    assert cut.head("run/a") is None
    meddling(monkeypatch, lambda: stored(put(other, write("switch/s", None))))
    proxy.arm("before")
    answer = cut.append(Batch((write("run/a", None, BODY + BODY),), {"switch/s": 0})).wait()
    assert answer == Conflict("switch/s", other.head("switch/s"))
    assert other.head("run/a") is None


def test_a_server_that_stays_away_is_reported_as_unknown_in_bounded_time(
    pair: tuple[NatsStore, NatsStore, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "GIVE_UP_S", 0.6)
    monkeypatch.setattr(reader, "PATIENCE_S", 0.6)
    cut, _, _ = pair
    stored(put(cut, nonced(cut, "run/a")))
    two = nonced(cut, "run/a")
    proxy.arm("before")
    proxy.close()
    began = time.monotonic()
    with pytest.raises(StoreError, match="whether it is stored is not known"):
        put(cut, two)
    with pytest.raises(StoreError, match="does not answer"):
        cut.head("run/a")
    assert time.monotonic() - began < 6
