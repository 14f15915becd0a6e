"""Three servers of NATS, killed, frozen and told to step down while others write: nothing is lost or doubled.

`make test` kills the leader; `make torture` does the rest too, three times each.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from typing import TYPE_CHECKING

import nats as client
import pytest

from oncemore.errors import StoreError
from oncemore.store.base import Batch, Conflict, Query, Stored
from oncemore.store.nats import NatsStore
from oncemore.testing import contract
from oncemore.testing.contract import whole
from tests.servers import nats
from tests.store.nats_judge import Answered, nonced, raw, wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.store.base import Store

names = itertools.count()
TORTURE = os.environ.get("ONCEMORE_TORTURE") == "1"
#: What a cluster could do wrong where a single server does not.
RACES = (
    contract.what_is_written_can_be_read_back,
    contract.a_guard_that_has_moved_refuses_the_batch,
    contract.heads_that_were_rebuilt_can_be_put_in_their_places,
    contract.of_many_that_expect_the_same_version_one_wins,
    contract.pruned_bodies_are_gone_and_the_chain_still_verifies,
    contract.what_is_dropped_is_gone_if_it_is_as_it_was_seen,
)
ROUNDS = 3 if TORTURE else 1
#: What is done to the servers; each leaves all three running.
WOES = ("leader", *(("all", "follower", "frozen leader", "step down") if TORTURE else ()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[nats.Cluster]:
    try:
        with nats.cluster() as made:
            yield made
    except nats.NoNats as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("check", contract.CHECKS if TORTURE else RACES, ids=contract.name)
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
    """Threads that write until they are told to stop: half of them one entry at a time, half three."""

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
                entities = (f"run/{mine}", f"once/{mine}-{n}", "run/hot")[: 3 if mine % 2 else 1]
                writes = tuple(nonced(store, entity) for entity in entities)
                answer: Stored | Conflict | StoreError
                try:
                    answer = store.append(Batch(writes)).wait()
                except StoreError as error:
                    answer = error
                self.told.append(Answered(writes, answer))
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
    if woe == "frozen leader":
        leader.freeze()
        time.sleep(12)
        leader.thaw()
        return
    followers = [one for one in cluster.nodes if one is not leader]
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
def test_what_three_servers_acknowledged_is_there_once_whatever_befalls_them(cluster: nats.Cluster) -> None:
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
    frames = raw(cluster.url.split(",")[0], namespace)
    kinds: dict[str, int] = {}
    for _, answer in writers.told:
        kinds[type(answer).__name__] = kinds.get(type(answer).__name__, 0) + 1
    print(f"{kinds}; seconds until they went on: {pauses}; {len(frames)} frames")
    assert wrong(writers.told, frames) == (0, 0, 0, 0)
    unknown = [str(answer) for _, answer in writers.told if isinstance(answer, StoreError)]
    assert all("is not known" in text for text in unknown), unknown
    assert kinds["Stored"] > 30
    straight = NatsStore(address)
    for n in range(8):
        whole(straight, f"run/{n}")
    log = list(straight.entries())
    assert [entry.seq for entry in log] == [seq for seq, _, _ in frames]
    last = {entry.entity: entry.version for entry in log}
    listed = {head.entity: head.version for head in straight.heads(Query("run", limit=len(last)))}
    assert listed == last
    for store in (*stores, straight):
        store.close()
