"""The store in NATS when its connection is cut: every batch is found stored, or found absent.

A proxy on the loopback address between the store and a real server cuts requests in five ways. The answers of
the store are compared with the messages of the stream, read with nats-py alone.
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
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.log.nats_judge import (
    MOVES,
    AnsweredBatch,
    count_errors,
    count_missed_moves,
    make_unique_write,
    read_stream,
    work,
)
from tests.servers import nats
from tests.servers.cutting import BODY, WAYS, Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator


names = itertools.count()
TORTURE = os.environ.get("ONCEMORE_TORTURE") == "1"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with nats.node(sync="") as node:
            yield node.url
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    where = urlsplit(url)
    assert where.hostname
    assert where.port
    made = Proxy((where.hostname, where.port))
    yield made
    made.close()


def test_after_a_cut_every_answer_agrees_with_the_log(proxy: Proxy, url: str) -> None:
    namespace, rounds = f"cuts_{next(names)}", 600 if TORTURE else 25
    cut = [NatsStore(f"nats://127.0.0.1:{proxy.port}/{namespace}") for _ in range(5)]
    straight = NatsStore(f"{url}/{namespace}")
    answered: list[AnsweredBatch] = []
    errors: list[object] = []
    stores = [*cut, straight]
    args = [(store, n, rounds, answered, errors) for n, store in enumerate(stores)]
    threads = [threading.Thread(target=work, args=arg) for arg in args]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        proxy.arm(random.choice(WAYS))
        time.sleep(0.003)
    assert not errors, errors
    print(f"{len(answered)} batches, cuts: {proxy.cuts}")
    assert sum(proxy.cuts.values()) >= 100, proxy.cuts
    assert min(proxy.cuts.values()) >= 5, proxy.cuts
    assert count_errors(answered, read_stream(url, namespace)) == (0, 0, 0, 0)
    assert count_missed_moves(answered, [entry.seq for entry in read_verified_entries(straight, MOVES)]) == 0
    assert any(
        isinstance(answer, Stored) for _, answer, expected_version in answered if expected_version >= 0
    )
    assert len(answered) == len(stores) * rounds
    assert any(isinstance(answer, Conflict) for _, answer, _ in answered), "no batch ever conflicted"
    for entity in {one.entity for writes, _, _ in answered for one in writes}:
        read_verified_entries(straight, entity)
    for store in stores:
        store.close()


# Changes between the lost acknowledgement and the lookup


@pytest.fixture
def pair(proxy: Proxy, url: str) -> Iterator[tuple[NatsStore, NatsStore, str]]:
    """A store whose connection can be cut, and another one on the same log."""
    namespace = f"cuts_{next(names)}"
    cut, other = NatsStore(f"nats://127.0.0.1:{proxy.port}/{namespace}"), NatsStore(f"{url}/{namespace}")
    yield cut, other, namespace
    cut.close()
    other.close()


def change_before_lookup(patch: pytest.MonkeyPatch, make_change: Any) -> None:
    """Call a function after the acknowledgement was lost, and before the outcome is looked up."""
    original = append.NatsAppender._find_outcome
    done: list[bool] = []

    async def look(self: Any, one: Any) -> Any:
        if not done:
            done.append(True)
            await asyncio.get_running_loop().run_in_executor(None, make_change)
        return await original(self, one)

    patch.setattr(append.NatsAppender, "_find_outcome", look)


def wait_for_version(store: NatsStore, entity: str, version: int) -> Any:
    """Wait until an entity has a version: then the server has stored the batch."""
    until = time.monotonic() + 5
    while (head := store.load_head(entity)) is None or head.version < version:
        assert time.monotonic() < until
    return head


@pytest.mark.parametrize("room", [1_000_000, 1000], ids=["whole", "in parts"])
@pytest.mark.parametrize("change", ["moves", "prunes", "drops", "mends", "drops and creates"])
@pytest.mark.parametrize("began", [0, 2])
def test_a_stored_batch_is_recognised_after_changes_by_another_process(
    pair: tuple[NatsStore, NatsStore, str],
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    began: int,
    room: int,
) -> None:
    cut, other, _ = pair
    monkeypatch.setattr(connection.NatsConnection, "max_payload", room)
    require_stored(append_writes(other, make_write("switch/s", None)))
    for _ in range(began):
        require_stored(append_writes(cut, make_unique_write(cut, "run/a")))
    mine = make_write("run/a", cut.load_head("run/a"), secrets.token_bytes(8) + BODY)
    assert cut.load_head("switch/s") is not None
    seqs: list[int] = []

    def make_change() -> None:
        head = wait_for_version(other, "run/a", began + 1)
        assert head.body == mine.body
        seqs.append(head.seq)
        require_stored(append_writes(other, make_write("switch/s", other.load_head("switch/s"))))
        if change == "moves":
            require_stored(append_writes(other, make_write("run/a", head)))
        elif change == "prunes":
            other.open_maintenance().prune_bodies({"run/a": 99})
        elif change == "mends":
            assert (
                other.open_maintenance().replace_heads(
                    [head._replace(head=b"another")], other.wait_for_change(0, 0.0)
                )
                == 1
            )
        else:
            assert other.open_maintenance().drop_entities({"run/a": began + 1}) == 1
        if change == "drops and creates":
            require_stored(append_writes(other, make_write("run/a", None)))

    change_before_lookup(monkeypatch, make_change)
    proxy.arm("answer swallowed")
    answer = cut.append(Batch((mine,), {"switch/s": 1})).wait()
    assert sum(proxy.cuts.values()) == 1
    assert answer == Stored((seqs[0],))
    left = {"drops": 0, "drops and creates": 1, "moves": began + 2}.get(change, began + 1)
    assert len(list(other.read_entries("run/a"))) == left


def test_a_stored_pair_is_recognised_when_one_of_its_entities_was_dropped(
    pair: tuple[NatsStore, NatsStore, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, other, _ = pair
    writes = (make_write("run/a", None, b"." * 4000), make_write("run/b", None, b"." * 4000))

    def make_change() -> None:
        wait_for_version(other, "run/b", 1)
        assert other.open_maintenance().drop_entities({"run/a": 1}) == 1

    change_before_lookup(monkeypatch, make_change)
    proxy.arm("answer swallowed")
    answer = cut.append(Batch(writes)).wait()
    assert isinstance(answer, Stored)
    (entry,) = read_verified_entries(other, "run/b")
    assert answer.seqs == (entry.seq - 1, entry.seq)


def test_a_lost_batch_conflicts_when_another_process_wrote_first(
    pair: tuple[NatsStore, NatsStore, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, other, _ = pair
    mine = make_write("run/a", cut.load_head("run/a"), b"mine" + BODY)
    change_before_lookup(
        monkeypatch, lambda: require_stored(append_writes(other, make_write("run/a", None, b"theirs")))
    )
    proxy.arm("before")
    assert cut.append(Batch((mine,))).wait() == Conflict("run/a", other.load_head("run/a"))
    assert [entry.body for entry in read_verified_entries(other, "run/a")] == [b"theirs"]


def test_a_lost_batch_conflicts_when_its_guard_has_moved(
    pair: tuple[NatsStore, NatsStore, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut, other, _ = pair
    assert cut.load_head("run/a") is None
    change_before_lookup(
        monkeypatch, lambda: require_stored(append_writes(other, make_write("switch/s", None)))
    )
    proxy.arm("before")
    answer = cut.append(Batch((make_write("run/a", None, BODY + BODY),), {"switch/s": 0})).wait()
    assert answer == Conflict("switch/s", other.load_head("switch/s"))
    assert other.load_head("run/a") is None


def test_an_outcome_is_reported_as_unknown_in_bounded_time(
    pair: tuple[NatsStore, NatsStore, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "GIVE_UP_S", 0.6)
    monkeypatch.setattr(reader, "GIVE_UP_S", 0.6)
    cut, _, _ = pair
    require_stored(append_writes(cut, make_unique_write(cut, "run/a")))
    two = make_unique_write(cut, "run/a")
    proxy.arm("before")
    proxy.close()
    began = time.monotonic()
    with pytest.raises(StoreError, match="whether it is stored is not known"):
        append_writes(cut, two)
    with pytest.raises(StoreError, match="does not answer"):
        cut.load_head("run/a")
    assert time.monotonic() - began < 6
