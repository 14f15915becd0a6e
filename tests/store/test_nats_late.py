"""Guards that NATS looks at when a claim is stored: what counts as a look, and what is told when it fails."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.errors import Blocked, StoreError
from oncemore.log.nats import append, connection
from oncemore.log.nats.store import NatsStore
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import put, stored, whole, write
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
    except nats.NoNats as reason:
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
    return Batch((write(entity, None),), {SWITCH: version}, late=True, **more)


def messages(store: NatsStore) -> int:
    return int(store.info()["messages"])


def move(store: NatsStore) -> None:
    stored(put(store, write(SWITCH, store.head(SWITCH))))


def meddling(patch: pytest.MonkeyPatch, *meddle: Callable[..., Any]) -> list[list[str]]:
    """Have something done instead of each of the first looks; return what was looked at."""
    looked: list[list[str]] = []
    original = connection.Line.last_now
    left = list(meddle)

    def last_now(self: Any, stream: str, subjects: list[str], hear: Any) -> bool:
        looked.append(subjects)
        if left:
            answer: bool = left.pop(0)(lambda: original(self, stream, subjects, hear), hear)
            return answer
        return original(self, stream, subjects, hear)

    patch.setattr(connection.Line, "last_now", last_now)
    return looked


def test_a_claim_is_one_message_and_its_guard_is_looked_at(
    store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = meddling(monkeypatch)
    before = messages(store)
    assert isinstance(store.append(claim("run/new", 0)).wait(), Stored)
    assert messages(store) == before + 1, "no batch, no message that is only a guard"
    assert looked == [[store._log.where.entity(name) for name in ("run/new", SWITCH)]]
    move(store)
    assert isinstance(store.append(claim("run/next", 1)).wait(), Stored)


def test_what_somebody_else_moved_is_seen(store: NatsStore, other: NatsStore) -> None:
    move(store)
    move(other)
    answer = store.append(claim("run/a", 1)).wait()
    assert answer == Conflict(SWITCH, other.head(SWITCH), (whole(other, "run/a")[0].seq,))
    assert isinstance(store.append(claim("run/b", 2)).wait(), Stored)


def test_what_was_dropped_and_made_anew_is_not_what_it_was(store: NatsStore, other: NatsStore) -> None:
    move(store)
    other.drop({SWITCH: 1})
    stored(put(other, write(SWITCH, None, b"another")))
    answer = store.append(claim("run/a", 1)).wait()
    assert isinstance(answer, Conflict)
    assert answer.stands


def test_what_was_only_forgotten_is_what_it_was(store: NatsStore, other: NatsStore) -> None:
    move(store)
    move(store)
    other.prune({SWITCH: 2})
    assert isinstance(store.append(claim("run/a", 2)).wait(), Stored)


class Part:
    """A message as a replica gives it."""

    data = b""

    def __init__(self, subject: str, seq: int) -> None:
        self.headers = {"Nats-Subject": subject, "Nats-Sequence": str(seq)}


def test_a_replica_that_has_not_come_so_far_proves_nothing(
    store: NatsStore, other: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that there is no switch, which is true of the time that it has come to."""
    stored(put(store, write("run/old", None)))
    old = whole(store, "run/old")[0].seq
    subject = store._log.where.entity("run/a")
    looked = meddling(
        monkeypatch,
        lambda go, hear: bool(move(other)) or hear([], "") or True,
        lambda go, hear: hear([Part(subject, old)], "") or True,
    )
    answer = store.append(claim("run/a", 0)).wait()
    assert isinstance(answer, Conflict)
    assert (answer.entity, len(answer.stands)) == (SWITCH, 1)
    assert len(looked) >= 2


def test_a_look_that_has_no_answer_is_repeated(store: NatsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = meddling(
        monkeypatch,
        lambda go, hear: False,
        lambda go, hear: hear(None, "no answer in time") or True,
        lambda go, hear: hear([], "") or True,
    )
    assert isinstance(store.append(claim("run/a", 0)).wait(), Stored)
    assert len(looked) == 4


@pytest.mark.req("AUTO-8")
def test_what_cannot_be_read_is_not_said_to_be_stored(
    store: NatsStore, other: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append, "GIVE_UP_S", 0.1)
    monkeypatch.setattr(connection.Line, "last_now", lambda self, stream, subjects, hear: False)
    with pytest.raises(StoreError, match="it must be taken back"):
        store.append(claim("run/a", 0)).wait()
    assert other.head("run/a") is not None


def test_what_makes_no_sense_is_no_look(store: NatsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subject that two entities share, which cannot be but by chance or malice."""
    move(store)
    alike = store._log.where.entity(SWITCH)
    monkeypatch.setattr(append, "GIVE_UP_S", 0.1)
    original = type(store._log.where).entity
    monkeypatch.setattr(
        type(store._log.where),
        "entity",
        lambda self, name: alike if name == "switch/t" else original(self, name),
    )
    store._log.remember("switch/t", append.At(1, 1, b"1"))
    with pytest.raises(StoreError, match="have one subject"):
        store.append(Batch((write("run/a", None),), {"switch/t": 1}, late=True)).wait()


@pytest.mark.parametrize("moves", [False, True])
def test_a_claim_whose_answer_is_lost_is_found_and_looked_at(
    store: NatsStore, other: NatsStore, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    original = connection.Line.publish_now
    lost: list[bool] = []

    def publish_now(self: Any, sent: Any, hear: Any) -> bool:
        if lost:
            return original(self, sent, hear)
        lost.append(True)
        return original(self, sent, lambda message, why: hear(None, "lost"))

    monkeypatch.setattr(connection.Line, "publish_now", publish_now)
    move(other)
    if moves:
        move(other)
    store._log.remember(SWITCH, store._log.known(SWITCH, 1) or append.At(1, 1, _first(other)))
    answer = store.append(claim("run/a", 1)).wait()
    seqs = (whole(other, "run/a")[0].seq,)
    assert answer == (Conflict(SWITCH, other.head(SWITCH), seqs) if moves else Stored(seqs))


def _first(store: NatsStore) -> bytes:
    return whole(store, SWITCH)[0].hash


def test_few_go_by_themselves_and_share_looks_and_many_go_as_one(
    store: NatsStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = meddling(monkeypatch)

    async def all_of(name: str, many: int) -> list[Any]:
        async def one(n: int) -> Any:
            return await store.append(claim(f"run/{name}{n}", 0))

        return await asyncio.gather(*[one(n) for n in range(many)])

    before = messages(store)
    assert all(isinstance(answer, Stored) for answer in asyncio.run(all_of("few", 10)))
    assert messages(store) == before + 10
    assert 1 <= len(looked) <= 10
    looks = len(looked)
    answers = asyncio.run(all_of("many", 200))
    assert {answer.seqs for answer in answers} == {(whole(store, f"run/many{n}")[0].seq,) for n in range(200)}
    assert messages(store) > before + 210, "with guards among them"
    assert len(looked) - looks < 100


@pytest.mark.req("AUTO-7")
@pytest.mark.parametrize("kind", ["blocking", "awaiting"])
def test_a_switch_that_another_process_threw_stops_the_next_attempt(url: str, kind: str) -> None:
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
        return work.on(ours)(n) if kind == "blocking" else asyncio.run(task.on(ours)(n))  # type: ignore[arg-type]

    with oncemore.open(url) as ours, oncemore.open(url) as theirs:
        assert call(1) == 1
        theirs.switch.on(reason="stop")
        with pytest.raises(Blocked, match="stop"):
            call(2)
        assert calls == [1]
        theirs.switch.off(reason="go on")
        assert call(2) == 2
        run = (work if kind == "blocking" else task).on(ours).last(2)
        assert run is not None
        assert (run.status, [attempt.number for attempt in run.attempts]) == ("COMPLETE", [1, 2])
