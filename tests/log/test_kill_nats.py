"""A cluster of three NATS servers with faults while threads write: no entry is lost or stored twice.

The same holds for requests that arrive twice, or late. `make test` kills the leader, stops it for a moment
and makes it step down; `make torture` adds the other faults, three times each.
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
from oncemore.log.store import Batch, Conflict, HeadQuery, Stored
from oncemore.testing import store_contract
from oncemore.testing.store_contract import read_verified_entries
from tests.log.nats_judge import (
    MOVES,
    AnsweredBatch,
    count_errors,
    count_missed_moves,
    make_unique_write,
    read_stream,
)
from tests.servers import nats
from tests.servers.repeating import Repeater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Store

names = itertools.count()
TORTURE = os.environ.get("ONCEMORE_TORTURE") == "1"
#: Checks that a cluster could fail where a single server does not.
RACES = (
    store_contract.what_is_written_can_be_read_back,
    store_contract.a_guard_that_has_moved_refuses_the_batch,
    store_contract.a_late_guard_that_has_moved_is_reported,
    store_contract.rebuilt_heads_can_be_put_in_place,
    store_contract.one_of_many_racing_writers_wins,
    store_contract.pruned_bodies_are_gone_and_the_chain_still_verifies,
    store_contract.unchanged_entities_can_be_dropped,
)
ROUNDS = 3 if TORTURE else 1
#: Faults of the servers; after each one all three are running.
MORE = ("all", "follower", "frozen leader", "frozen follower", "paused follower")
FAULTS = ("leader", "paused leader", "step down", *(MORE if TORTURE else ()))
#: How long a server is stopped: for a moment, or until the other two have chosen another leader.
PAUSED_S, FROZEN_S = 1.0, 12.0
#: How many requests arrive twice.
REPEATS = 1000 if TORTURE else 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[nats.NatsCluster]:
    try:
        with nats.cluster() as made:
            yield made
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("check", store_contract.CHECKS if TORTURE else RACES, ids=store_contract.check_name)
def test_three_replicas_keep_the_contract(
    check: Callable[[Callable[[], Store]], None], cluster: nats.NatsCluster
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
    """Threads that write until `stop()`: half of them one entry at a time, half three.

    The first thread moves a switch; threads with one entry have it as a late guard.
    """

    def __init__(self, stores: list[NatsStore], many: int) -> None:
        self.answered: list[AnsweredBatch] = []
        self.errors: list[BaseException] = []
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
                writes, expected_version = tuple(make_unique_write(store, entity) for entity in entities), -1
                if mine and len(writes) == 1:
                    head = store.load_head(MOVES)
                    expected_version = 0 if head is None else head.version
                batch = Batch(
                    writes,
                    {MOVES: expected_version} if expected_version >= 0 else {},
                    late=expected_version >= 0,
                )
                answer: Stored | Conflict | StoreError
                try:
                    answer = store.append(batch).wait()
                except StoreError as error:
                    answer = error
                self.answered.append(AnsweredBatch(writes, answer, expected_version))
                if self._over.is_set():
                    return
        except BaseException as fault:
            self.errors.append(fault)

    def wait_for_answers(self, many: int = 40) -> None:
        """Wait for so many more answers."""
        before, until = len(self.answered), time.monotonic() + 60
        while len(self.answered) < before + many:
            assert not self.errors, self.errors
            assert time.monotonic() < until, "the writers make no progress"
            time.sleep(0.01)

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a writer is stuck"
        assert not self.errors, self.errors


def inject_fault(cluster: nats.NatsCluster, stream: str, fault: str) -> None:
    leader = cluster.leader(stream)
    if fault == "step down":
        asyncio.run(_step_down(cluster.url, stream))
        return
    followers = [one for one in cluster.nodes if one is not leader]
    how, _, who = fault.partition(" ")
    if how in ("frozen", "paused"):
        victim = leader if who == "leader" else followers[0]
        victim.freeze()
        try:
            time.sleep(FROZEN_S if how == "frozen" else PAUSED_S)
        finally:
            victim.thaw()
        return
    victims = {"leader": [leader], "follower": followers[:1], "all": cluster.nodes}[fault]
    for one in victims:
        one.kill()
    if fault == "leader":
        cluster.leader(stream, leader)
    for one in victims:
        cluster.start(one)
    for one in victims:
        one.wait_ready()


async def _step_down(url: str, stream: str) -> None:
    connection = await client.connect(url.removeprefix("nats://").split(","))
    await connection.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}", b"", timeout=5)
    await connection.close()


@pytest.mark.timeout(600)
def test_acknowledged_entries_survive_faults_of_a_cluster_exactly_once(
    cluster: nats.NatsCluster, record_property: Callable[[str, object], None]
) -> None:
    namespace = f"trio_{next(names)}"
    address = f"{cluster.url}/{namespace}?replicas=3&monitor={cluster.monitor_urls}"
    stores = [NatsStore(address) for _ in range(3)]
    assert "power loss" in stores[0].open_maintenance().describe_store().durable
    writers = Writers(stores, 8)
    pauses: dict[str, list[float]] = {}
    for fault in FAULTS * ROUNDS:
        writers.wait_for_answers()
        began = time.monotonic()
        inject_fault(cluster, f"{namespace}_LOG", fault)
        writers.wait_for_answers(10)
        pauses.setdefault(fault, []).append(round(time.monotonic() - began, 1))
    writers.stop()
    summary = check_answers(cluster, namespace, address, writers)
    record_property("NATS cluster", f"{summary}; seconds until they went on: {pauses}")
    for store in stores:
        store.close()


@pytest.mark.timeout(900)
def test_requests_that_reach_a_cluster_twice_or_late_are_stored_once(
    cluster: nats.NatsCluster, record_property: Callable[[str, object], None]
) -> None:
    seed = os.environ.get("ONCEMORE_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_SEED={seed}")
    namespace = f"trio_{next(names)}"
    straight = f"{cluster.url}/{namespace}?replicas=3"
    ways = [Repeater(one.port, random.Random(f"{seed}/{one.name}")) for one in cluster.nodes]
    hosts = [f"127.0.0.1:{way.port}" for way in ways]
    # One proxy per store: servers tell clients the addresses of the cluster, which bypass the proxies.
    stores = [NatsStore(f"nats://{host}/{namespace}?replicas=3") for host in hosts]
    writers = Writers(stores, 8)
    until, step_downs = time.monotonic() + (600 if TORTURE else 60), 0
    while sum(len(way.repeated) for way in ways) < REPEATS:
        assert time.monotonic() < until, "too few requests arrive twice"
        writers.wait_for_answers(20)
        if TORTURE and step_downs < 10:
            step_downs += 1
            asyncio.run(_step_down(cluster.url, f"{namespace}_LOG"))
    writers.stop()
    for way in ways:
        way.close()
    repeated = [after for way in ways for after in way.repeated]
    summary = check_answers(cluster, namespace, straight, writers)
    late = sum(after > 0.05 for after in repeated)
    record_property("NATS repeats", f"{len(repeated)} requests arrived twice, {late} of them late; {summary}")
    assert late
    for store in stores:
        store.close()


def check_answers(cluster: nats.NatsCluster, namespace: str, address: str, writers: Writers) -> str:
    """Compare the answers of writers with the stream; return a summary."""
    frames = read_stream(cluster.url.split(",")[0], namespace)
    kinds: dict[str, int] = {}
    for _, answer, _ in writers.answered:
        kinds[type(answer).__name__] = kinds.get(type(answer).__name__, 0) + 1
    summary = f"{kinds}, {len(frames)} frames"
    print(summary)
    assert count_errors(writers.answered, frames) == (0, 0, 0, 0)
    unknown = [str(answer) for _, answer, _ in writers.answered if isinstance(answer, StoreError)]
    assert all("is not known" in text or "taken back" in text for text in unknown), unknown
    assert kinds["Stored"] > 30
    straight = NatsStore(address)
    assert (
        count_missed_moves(writers.answered, [entry.seq for entry in read_verified_entries(straight, MOVES)])
        == 0
    )
    assert any(
        isinstance(answer, Stored)
        for _, answer, expected_version in writers.answered
        if expected_version >= 0
    )
    for n in range(8):
        read_verified_entries(straight, f"run/{n}")
    log = list(straight.read_entries())
    assert [entry.seq for entry in log] == [seq for seq, _, _ in frames]
    last = {entry.entity: entry.version for entry in log}
    listed = {head.entity: head.version for head in straight.list_heads(HeadQuery("run", limit=len(last)))}
    assert listed == last
    straight.close()
    return summary
