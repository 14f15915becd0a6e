"""Three servers of NATS, killed, frozen and told to step down while others write: nothing is lost or doubled.

Nor where what is written arrives at them twice, or late. `make test` kills the leader, stops it for a moment
and has it step down; `make torture` does the rest too, three times each.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import time
from typing import TYPE_CHECKING

import nats as client
import pytest

from oncemore.errors import StoreError
from oncemore.log.nats.store import NatsStore
from oncemore.log.store import Batch, Conflict, Query, Stored
from oncemore.testing import store_contract
from oncemore.testing.store_contract import whole
from tests.servers import nats
from tests.servers.repeating import Repeater
from tests.store.nats_judge import MOVES, Answered, misled, nonced, raw, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Store

names = itertools.count()
TORTURE = os.environ.get("ONCEMORE_TORTURE") == "1"
#: What a cluster could do wrong where a single server does not.
RACES = (
    store_contract.what_is_written_can_be_read_back,
    store_contract.a_guard_that_has_moved_refuses_the_batch,
    store_contract.a_guard_that_may_be_looked_at_late_is_told_of_all_the_same,
    store_contract.heads_that_were_rebuilt_can_be_put_in_their_places,
    store_contract.of_many_that_expect_the_same_version_one_wins,
    store_contract.pruned_bodies_are_gone_and_the_chain_still_verifies,
    store_contract.what_is_dropped_is_gone_if_it_is_as_it_was_seen,
)
ROUNDS = 3 if TORTURE else 1
#: What is done to the servers; each leaves all three running.
MORE = ("all", "follower", "frozen leader", "frozen follower", "paused follower")
WOES = ("leader", "paused leader", "step down", *(MORE if TORTURE else ()))
#: How long a server is stopped: for a moment, or until the others have chosen another leader.
PAUSED_S, FROZEN_S = 1.0, 12.0
#: How many requests arrive twice.
REPEATS = 1000 if TORTURE else 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[nats.Cluster]:
    try:
        with nats.cluster() as made:
            yield made
    except nats.NoNats as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("check", store_contract.CHECKS if TORTURE else RACES, ids=store_contract.name)
def test_three_replicas_keep_the_contract(
    check: Callable[[Callable[[], Store]], None], cluster: nats.Cluster
) -> None:
    opened: list[NatsStore] = []
    namespace = f"trio_{next(names)}"

    def open_store() -> Store:
        opened.append(NatsStore(f"{cluster.url}/{namespace}?replicas=3"))
        return opened[-1]

    try:
        check(open_store)
    finally:
        for store in opened:
            store.close()


class Writers:
    """Threads that write until they are told to stop: half of them one entry at a time, half three.

    The first moves a switch, and those with one entry rely on it, to be looked at late.
    """

    def __init__(self, stores: list[NatsStore], many: int) -> None:
        self.told: list[Answered] = []
        self.faults: list[BaseException] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(stores[n % len(stores)], n)) for n in range(many)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, store: NatsStore, mine: int) -> None:
        try:
            for n in itertools.count():
                own = MOVES if not mine and n % 4 == 0 else f"run/{mine}"
                entities = (own, f"once/{mine}-{n}", "run/hot")[: 3 if mine % 2 else 1]
                writes, relied = tuple(nonced(store, entity) for entity in entities), -1
                if mine and len(writes) == 1:
                    head = store.head(MOVES)
                    relied = 0 if head is None else head.version
                batch = Batch(writes, {MOVES: relied} if relied >= 0 else {}, late=relied >= 0)
                answer: Stored | Conflict | StoreError
                try:
                    answer = store.append(batch).wait()
                except StoreError as error:
                    answer = error
                self.told.append(Answered(writes, answer, relied))
                if self._over.is_set():
                    return
        except BaseException as fault:
            self.faults.append(fault)

    def go_on(self, many: int = 40) -> None:
        """Wait until so many more were stored."""
        before, until = len(self.told), time.monotonic() + 60
        while len(self.told) < before + many:
            assert not self.faults, self.faults
            assert time.monotonic() < until, "nobody gets on"
            time.sleep(0.01)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a writer is stuck"
        assert not self.faults, self.faults


def hurt(cluster: nats.Cluster, stream: str, woe: str) -> None:
    leader = cluster.leader(stream)
    if woe == "step down":
        asyncio.run(_step_down(cluster.url, stream))
        return
    followers = [one for one in cluster.nodes if one is not leader]
    how, _, who = woe.partition(" ")
    if how in ("frozen", "paused"):
        victim = leader if who == "leader" else followers[0]
        victim.freeze()
        try:
            time.sleep(FROZEN_S if how == "frozen" else PAUSED_S)
        finally:
            victim.thaw()
        return
    victims = {"leader": [leader], "follower": followers[:1], "all": cluster.nodes}[woe]
    for one in victims:
        one.kill()
    if woe == "leader":
        cluster.leader(stream, leader)
    for one in victims:
        cluster.start(one)
    for one in victims:
        one.ready()


async def _step_down(url: str, stream: str) -> None:
    connection = await client.connect(url.removeprefix("nats://").split(","))
    await connection.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", b"", timeout=5)
    await connection.close()


@pytest.mark.timeout(600)
def test_what_three_servers_acknowledged_is_there_once_whatever_befalls_them(
    cluster: nats.Cluster, record_property: Callable[[str, object], None]
) -> None:
    namespace = f"trio_{next(names)}"
    address = f"{cluster.url}/{namespace}?replicas=3&monitor={cluster.monitors}"
    stores = [NatsStore(address) for _ in range(3)]
    assert "power loss" in stores[0].facts().durable
    writers = Writers(stores, 8)
    pauses: dict[str, list[float]] = {}
    for woe in WOES * ROUNDS:
        writers.go_on()
        began = time.monotonic()
        hurt(cluster, f"{namespace}_LOG", woe)
        writers.go_on(10)
        pauses.setdefault(woe, []).append(round(time.monotonic() - began, 1))
    writers.stop()
    told = judged(cluster, namespace, address, writers)
    record_property("NATS cluster", f"{told}; seconds until they went on: {pauses}")
    for store in stores:
        store.close()


@pytest.mark.timeout(900)
def test_what_arrives_twice_or_late_at_three_servers_is_stored_once(
    cluster: nats.Cluster, record_property: Callable[[str, object], None]
) -> None:
    seed = os.environ.get("ONCEMORE_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_SEED={seed}")
    namespace = f"trio_{next(names)}"
    straight = f"{cluster.url}/{namespace}?replicas=3"
    ways = [Repeater(one.port, random.Random(f"{seed}/{one.name}")) for one in cluster.nodes]
    hosts = [f"127.0.0.1:{way.port}" for way in ways]
    # Each by a way of its own: servers tell clients of each other, who may then go straight.
    stores = [NatsStore(f"nats://{host}/{namespace}?replicas=3") for host in hosts]
    writers = Writers(stores, 8)
    until, woes = time.monotonic() + (600 if TORTURE else 60), 0
    while sum(len(way.repeated) for way in ways) < REPEATS:
        assert time.monotonic() < until, "hardly anything arrives twice"
        writers.go_on(20)
        if TORTURE and woes < 10:
            woes += 1
            asyncio.run(_step_down(cluster.url, f"{namespace}_LOG"))
    writers.stop()
    for way in ways:
        way.close()
    repeated = [after for way in ways for after in way.repeated]
    told = judged(cluster, namespace, straight, writers)
    late = sum(after > 0.05 for after in repeated)
    record_property("NATS repeats", f"{len(repeated)} requests arrived twice, {late} of them late; {told}")
    assert late
    for store in stores:
        store.close()


def judged(cluster: nats.Cluster, namespace: str, address: str, writers: Writers) -> str:
    """Compare what writers were told with what the servers have; return it in words."""
    frames = raw(cluster.url.split(",")[0], namespace)
    kinds: dict[str, int] = {}
    for _, answer, _ in writers.told:
        kinds[type(answer).__name__] = kinds.get(type(answer).__name__, 0) + 1
    told = f"{kinds}, {len(frames)} frames"
    print(told)
    assert wrong(writers.told, frames) == (0, 0, 0, 0)
    unknown = [str(answer) for _, answer, _ in writers.told if isinstance(answer, StoreError)]
    assert all("is not known" in text or "taken back" in text for text in unknown), unknown
    assert kinds["Stored"] > 30
    straight = NatsStore(address)
    assert misled(writers.told, [entry.seq for entry in whole(straight, MOVES)]) == 0
    assert any(isinstance(answer, Stored) for _, answer, relied in writers.told if relied >= 0)
    for n in range(8):
        whole(straight, f"run/{n}")
    log = list(straight.entries())
    assert [entry.seq for entry in log] == [seq for seq, _, _ in frames]
    last = {entry.entity: entry.version for entry in log}
    listed = {head.entity: head.version for head in straight.heads(Query("run", limit=len(last)))}
    assert listed == last
    straight.close()
    return told
