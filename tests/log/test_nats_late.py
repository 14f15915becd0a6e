"""Late guards in NATS: which replies count, and the answer when a guard has moved or cannot be read."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import NotPermitted, StoreError
from oncemore.log.nats import append, connection
from oncemore.log.nats.store import NatsStore
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.servers import nats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

names = itertools.count()
SWITCH = "switch/s"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    try:
        with nats.node() as made:
            yield made.url
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture
def url(server: str) -> str:
    return f"{server}/late_{next(names)}"


@pytest.fixture
def store(url: str) -> Iterator[NatsStore]:
    made = NatsStore(url)
    yield made
    made.close()


@pytest.fixture
def other(url: str, store: NatsStore) -> Iterator[NatsStore]:
    made = NatsStore(url)
    yield made
    made.close()


def claim(entity: str, version: int, **more: Any) -> Batch:
    return Batch((make_write(entity, None),), {SWITCH: version}, late=True, **more)


def count_messages(store: NatsStore) -> int:
    return int(store.ask_in_loop(store.log.stream_info)["messages"])


def move_switch(store: NatsStore) -> None:
    require_stored(append_writes(store, make_write(SWITCH, store.load_head(SWITCH))))


def intercept_reads(patch: pytest.MonkeyPatch, *handlers: Callable[..., Any]) -> list[list[str]]:
    """Let a handler replace each of the first guard reads; return the requested lists."""
    reads: list[list[str]] = []
    original = connection.NatsConnection.request_last_now
    left = list(handlers)

    def last_now(self: Any, stream: str, subjects: list[str], on_replies: Any) -> bool:
        reads.append(subjects)
        if left:
            answer: bool = left.pop(0)(lambda: original(self, stream, subjects, on_replies), on_replies)
            return answer
        return original(self, stream, subjects, on_replies)

    patch.setattr(connection.NatsConnection, "request_last_now", last_now)
    return reads


def test_a_claim_is_one_message_and_its_guard_is_read_afterwards(
    store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = intercept_reads(monkeypatch)
    before = count_messages(store)
    assert isinstance(store.append(claim("run/new", 0)).wait(), Stored)
    assert count_messages(store) == before + 1, "no batch, no message that is only a guard"
    assert reads == [[store.log.subjects.entity_subject(name) for name in ("run/new", SWITCH)]]
    move_switch(store)
    assert isinstance(store.append(claim("run/next", 1)).wait(), Stored)


def test_a_guard_moved_by_another_process_is_a_conflict(store: NatsStore, other: NatsStore) -> None:
    move_switch(store)
    move_switch(other)
    answer = store.append(claim("run/a", 1)).wait()
    assert answer == Conflict(
        SWITCH, other.load_head(SWITCH), (read_verified_entries(other, "run/a")[0].seq,)
    )
    assert isinstance(store.append(claim("run/b", 2)).wait(), Stored)


def test_a_guard_that_was_dropped_and_created_again_is_a_conflict(store: NatsStore, other: NatsStore) -> None:
    move_switch(store)
    other.open_maintenance().drop_entities({SWITCH: 1})
    require_stored(append_writes(other, make_write(SWITCH, None, b"another")))
    answer = store.append(claim("run/a", 1)).wait()
    assert isinstance(answer, Conflict)
    assert answer.stored_seqs


def test_a_pruned_guard_is_unchanged(store: NatsStore, other: NatsStore) -> None:
    move_switch(store)
    move_switch(store)
    other.open_maintenance().prune_bodies({SWITCH: 2})
    assert isinstance(store.append(claim("run/a", 2)).wait(), Stored)


class Part:
    """A message as a replica returns it."""

    data = b""

    def __init__(self, subject: str, seq: int) -> None:
        self.headers = {"Nats-Subject": subject, "Nats-Sequence": str(seq)}


def test_a_reply_of_a_replica_that_lags_behind_is_ignored(
    store: NatsStore, other: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reports no switch, which is true for the older state that it has."""
    require_stored(append_writes(store, make_write("run/old", None)))
    old = read_verified_entries(store, "run/old")[0].seq
    subject = store.log.subjects.entity_subject("run/a")
    reads = intercept_reads(
        monkeypatch,
        lambda go, on_replies: bool(move_switch(other)) or on_replies([], "") or True,
        lambda go, on_replies: on_replies([Part(subject, old)], "") or True,
    )
    answer = store.append(claim("run/a", 0)).wait()
    assert isinstance(answer, Conflict)
    assert (answer.entity, len(answer.stored_seqs)) == (SWITCH, 1)
    assert len(reads) >= 2


def test_a_guard_read_without_reply_is_repeated(store: NatsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = intercept_reads(
        monkeypatch,
        lambda go, on_replies: False,
        lambda go, on_replies: on_replies(None, "no answer in time") or True,
        lambda go, on_replies: on_replies([], "") or True,
    )
    assert isinstance(store.append(claim("run/a", 0)).wait(), Stored)
    assert len(reads) == 4


@pytest.mark.req("AUTO-8")
def test_a_claim_whose_guards_cannot_be_read_is_not_reported_as_stored(
    store: NatsStore, other: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "GIVE_UP_S", 0.1)
    monkeypatch.setattr(
        connection.NatsConnection, "request_last_now", lambda self, stream, subjects, on_replies: False
    )
    with pytest.raises(StoreError, match="it must be taken back"):
        store.append(claim("run/a", 0)).wait()
    assert other.load_head("run/a") is not None


def test_a_guard_message_of_another_entity_is_ignored(
    store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two entities share a subject, by chance or on purpose."""
    move_switch(store)
    alike = store.log.subjects.entity_subject(SWITCH)
    monkeypatch.setattr(append, "GIVE_UP_S", 0.1)
    original = type(store.log.subjects).entity_subject
    monkeypatch.setattr(
        type(store.log.subjects),
        "entity_subject",
        lambda self, name: alike if name == "switch/t" else original(self, name),
    )
    store.log.remember_position("switch/t", append.EntityPosition(1, 1, b"1"))
    with pytest.raises(StoreError, match="have one subject"):
        store.append(Batch((make_write("run/a", None),), {"switch/t": 1}, late=True)).wait()


@pytest.mark.parametrize("moves", [False, True])
def test_a_claim_with_a_lost_acknowledgement_is_found_and_its_guards_are_read(
    store: NatsStore, other: NatsStore, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    original = connection.NatsConnection.publish_now
    lost: list[bool] = []

    def publish_now(self: Any, sent: Any, on_reply: Any) -> bool:
        if lost:
            return original(self, sent, on_reply)
        lost.append(True)
        return original(self, sent, lambda message, why: on_reply(None, "lost"))

    monkeypatch.setattr(connection.NatsConnection, "publish_now", publish_now)
    move_switch(other)
    if moves:
        move_switch(other)
    store.log.remember_position(
        SWITCH, store.log.known_position(SWITCH, 1) or append.EntityPosition(1, 1, _first_hash(other))
    )
    answer = store.append(claim("run/a", 1)).wait()
    seqs = (read_verified_entries(other, "run/a")[0].seq,)
    assert answer == (Conflict(SWITCH, other.load_head(SWITCH), seqs) if moves else Stored(seqs))


def _first_hash(store: NatsStore) -> bytes:
    return read_verified_entries(store, SWITCH)[0].hash


def test_a_few_claims_are_sent_alone_and_share_guard_reads_and_many_are_one_batch(
    store: NatsStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = intercept_reads(monkeypatch)

    async def claim_all(name: str, many: int) -> list[Any]:
        async def one(n: int) -> Any:
            return await store.append(claim(f"run/{name}{n}", 0))

        return await asyncio.gather(*[one(n) for n in range(many)])

    before = count_messages(store)
    assert all(isinstance(answer, Stored) for answer in asyncio.run(claim_all("few", 10)))
    assert count_messages(store) == before + 10
    assert 1 <= len(reads) <= 10
    earlier = len(reads)
    answers = asyncio.run(claim_all("many", 200))
    assert {answer.seqs for answer in answers} == {
        (read_verified_entries(store, f"run/many{n}")[0].seq,) for n in range(200)
    }
    assert count_messages(store) > before + 210, "with guards among them"
    assert len(reads) - earlier < 100


@pytest.mark.req("AUTO-7")
@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_switch_set_by_another_process_stops_the_next_attempt(url: str, kind: str) -> None:
    calls: list[int] = []

    @oncemore.step(effect="idempotent", name="late.nats")
    def work(n: int) -> int:
        calls.append(n)
        return n

    @oncemore.step(effect="once", name="late.nats.task")
    async def task(n: int) -> int:
        calls.append(n)
        return n

    def call(n: int) -> Any:
        return work.bind(ours)(n) if kind == "blocking" else asyncio.run(task.bind(ours)(n))  # type: ignore[arg-type]

    with oncemore.open(url) as ours, oncemore.open(url) as theirs:
        assert call(1) == 1
        theirs.switches.on(reason="stop")
        with pytest.raises(NotPermitted, match="stop"):
            call(2)
        assert calls == [1]
        theirs.switches.off(reason="go on")
        assert call(2) == 2
        run = (work if kind == "blocking" else task).bind(ours).last_run(2)
        assert run is not None
        assert (run.status, [attempt.number for attempt in run.attempts]) == ("COMPLETE", [1, 2])
