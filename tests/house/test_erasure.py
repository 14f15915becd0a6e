"""What the law wants gone is gone, from the files too; the log verifies, and says who had it done and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import oncemore
from oncemore.artifacts.backends import Memory
from oncemore.log.store import Query
from oncemore.maintenance import erase
from oncemore.outbox import Relay
from oncemore.steps.run import verify
from tests.house.crashing import Mortal, deaths, engine_on

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock

CANARY = "canary-7f3a"
DAY = 86_400.0
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@oncemore.step(effect="idempotent", name="house.person")
def person(name: str, note: str = "") -> dict[str, Any]:
    ran.append(name)
    oncemore.current().checkpoint({"so far": f"checkpoint of {name}"})
    if oncemore.current().number == 1:
        raise ConnectionError(f"no line to {name}")
    oncemore.current().emit("registered", {"who": name})
    oncemore.current().put(f"file of {name}".encode(), name="letter")
    return {"name": name, "large": name * 40_000}


def everything(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file())


def deliver(engine: oncemore.Engine) -> None:
    Relay(engine, {"*": lambda message: None}).run_once()


def test_nothing_of_an_erased_run_is_left_in_any_file_and_the_log_still_verifies(
    tmp_path: Path, clock: FakeClock
) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        for n in range(40):
            person(f"{CANARY}-{n}", note="x" * n * 50)
            person(f"other-{n}")
        deliver(engine)
        assert everything(tmp_path).count(CANARY.encode()) > 100
        clock.advance(DAY)
        for n in range(40):
            found = engine.erase(
                person.key(f"{CANARY}-{n}", note="x" * n * 50), reason="asked to", by="officer"
            )
            assert (found.events, len(found.artifacts), found.left) == (1, 2, ())
        assert everything(tmp_path).count(CANARY.encode()) == 0
        told = engine.verify().forgotten
        assert len(told) == 40
        assert {one[1:3] + one[4:] for one in told} == {("house.person", "erased", "officer", "asked to")}
        assert person("other-7")["name"] == "other-7"
        before = len(ran)
        with pytest.raises(
            oncemore.KeyExpired, match="COMPLETE and its record was erased; it is not run a second"
        ):
            person(f"{CANARY}-0")
        assert len(ran) == before
    assert everything(tmp_path).count(CANARY.encode()) == 0


def test_an_erased_run_can_be_looked_at_and_has_nothing_to_tell(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    person(CANARY)
    deliver(engine)
    clock.advance(DAY)
    run = person.last(CANARY)
    assert run is not None
    engine.erase(run, reason="asked to", by="officer")
    run = person.last(CANARY)
    assert run is not None
    assert (run.status, run.reason, run.error, run.artifacts) == ("COMPLETE", "erased", None, ())
    with pytest.raises(oncemore.KeyExpired):
        _ = run.value
    assert CANARY not in run.explain()
    assert "were erased" in run.explain()
    assert CANARY not in str(run.wal())
    assert "ERASE" in [record["kind"] for record in run.wal()]
    assert CANARY not in str([entry.body for entry in engine.store.entries()])


def test_a_pruned_run_can_be_erased_and_erasing_twice_changes_nothing(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    person(CANARY)
    deliver(engine)
    clock.advance(DAY)
    engine.prune(older_than=3600)
    engine.erase(person.key(CANARY), reason="asked to", by="officer")
    before = [entry for entry in engine.store.entries() if entry.entity.startswith("run/")]
    found = engine.erase(person.key(CANARY)[:12], reason="once more", by="officer")
    assert found.left == ()
    assert [entry for entry in engine.store.entries() if entry.entity.startswith("run/")] == before
    assert [chore.what for chore in engine.chores()] == ["prune", "erase", "erase"]
    engine.verify()


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("f" * 64, "there is no run with the key 'ffff"),
        ("ffffffffff", "there is no run"),
        ("abc", "give the key, or 8 or more of its first digits"),
        ("no key", "there is no run with the key 'no key'"),
    ],
)
def test_a_key_that_is_not_there_is_refused(engine: oncemore.Engine, which: str, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        engine.erase(which, reason="r", by="b")
    assert engine.chores() == ()


def test_digits_that_several_keys_begin_with_are_refused(clock: FakeClock) -> None:
    from tests.house.test_retention import pay

    store = Mortal()
    with engine_on(store) as engine:
        pay("a")
        head = store.head(f"run/{pay.key('a')}")
        assert head is not None
        for end in "01":
            name = f"run/{'c' * 63}{end}"
            store._heads[name] = head._replace(entity=name)
        with pytest.raises(oncemore.UsageError, match="several keys begin with cccccccccc; give more digits"):
            engine.erase("c" * 10, reason="r", by="b")


def test_what_may_still_go_on_is_not_erased(engine: oncemore.Engine, clock: FakeClock) -> None:
    from tests.house.test_retention import letter

    @oncemore.step(effect="idempotent", name="house.under-way")
    def under_way() -> None:
        with pytest.raises(oncemore.InProgress, match="is being worked on; erase it when it is over"):
            engine.erase(oncemore.current().key, reason="r", by="b")

    under_way()
    letter.run("x")
    with pytest.raises(oncemore.UsageError, match="is SOFT_FAIL, held: it needs its arguments to go on"):
        engine.erase(letter.key("x"), reason="r", by="b")
    person(CANARY)
    with pytest.raises(oncemore.UsageError, match=r"has events that are not delivered \(registered\)"):
        engine.erase(person.key(CANARY), reason="r", by="b")
    assert engine.chores() == ()


def test_an_object_that_somebody_else_refers_to_stays_and_is_told(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="house.twin")
    def twin(name: str) -> str:
        oncemore.current().put(b"the same bytes", name="it")
        return name

    twin("a")
    twin("b")
    clock.advance(DAY)
    found = engine.erase(twin.key("a"), reason="r", by="b")
    assert found.artifacts == ()
    assert "something else refers to it" in found.left[0]
    found = engine.erase(twin.key("b"), reason="r", by="b")
    assert (len(found.artifacts), found.left) == (1, ())


def test_a_place_that_other_logs_use_too_is_left_alone_and_told(tmp_path: Path, clock: FakeClock) -> None:
    with oncemore.open(tmp_path / "one.db", artifacts=tmp_path / "files"):
        person("somebody")
    with oncemore.open(tmp_path / "two.db", artifacts=tmp_path / "files") as engine:
        person(CANARY)
        deliver(engine)
        clock.advance(DAY)
        found = engine.erase(person.key(CANARY), reason="r", by="b")
        assert found.left[0].startswith("its artifacts: ")
        assert "also keeps artifacts of" in found.left[0]


def test_an_engine_without_a_place_for_files_erases_what_there_is(clock: FakeClock) -> None:
    from tests.house.test_retention import pay

    with engine_on(Mortal()) as engine:
        pay(CANARY)
        assert engine.erase(pay.key(CANARY), reason="r", by="b").left == ()
        assert CANARY not in str(list(engine.store.entries()))


def test_somebody_who_reads_keeps_the_write_ahead_file_and_that_is_told(
    tmp_path: Path, clock: FakeClock
) -> None:
    from tests.house.test_retention import pay

    path = tmp_path / "log.db"
    with oncemore.open(path) as engine:
        pay(CANARY)
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchall()
        found = engine.erase(pay.key(CANARY), reason="r", by="b")
        assert "the write-ahead file of the store: somebody has been reading since" in found.left[0]
        reader.execute("ROLLBACK")
        assert engine.erase(pay.key(CANARY), reason="again", by="b").left == ()
        reader.close()
        assert everything(tmp_path).count(CANARY.encode()) == 0


def test_a_run_that_moves_while_it_is_erased_is_looked_at_again(clock: FakeClock) -> None:
    from tests.house.test_retention import pay

    class Meddled(Mortal):
        def append(self, batch: Any) -> Any:
            if b'"ERASE"' in batch.writes[0].header and not done:
                done.append(1)
                engine_on(self).prune(older_than=3600)
            return super().append(batch)

    done: list[int] = []
    with engine_on(Meddled()) as engine:
        pay(CANARY)
        clock.advance(DAY)
        engine.erase(pay.key(CANARY), reason="r", by="b")
        marks = [one.how for one in engine.verify().forgotten]
        assert marks == ["erased"]


def test_an_erasure_that_dies_anywhere_is_finished_by_repeating_it(clock: FakeClock) -> None:
    places: dict[int, Memory] = {}

    def make() -> Mortal:
        store = Mortal()
        places[id(store)] = Memory()
        with engine_on(store, places[id(store)]) as engine:
            person(CANARY)
            person("other")
            deliver(engine)
        clock.advance(DAY)
        return store

    def act(store: Mortal) -> None:
        engine_on(store, places[id(store)]).erase(_key(store), reason="asked to", by="officer")

    count = 0
    for store in deaths(make, act):
        count += 1
        place = places[id(store)]
        with engine_on(store, place) as engine:
            engine.verify()
            found = engine.erase(_key(store), reason="asked to", by="officer")
            assert found.left == ()
            assert all(chore.state == "DONE" for chore in engine.chores())
            verify(store.entries())
            assert CANARY not in str([entry.body for entry in store.entries()])
            assert CANARY.encode() not in b"".join(data for data, _ in place.kept.values())
            assert any(b"other" in data for data, _ in place.kept.values())
            ran.clear()
            with pytest.raises(oncemore.KeyExpired):
                person(CANARY)
            assert ran == []
    assert count >= 6


def _key(store: Mortal) -> str:
    return person.on(engine_on(store)).key(CANARY)


def test_a_body_that_is_gone_without_a_word_is_noticed(engine: oncemore.Engine) -> None:
    from tests.house.test_retention import pay, tell

    pay("a")
    tell("b")
    engine.verify()
    (head, *_) = engine.store.heads(Query("event", state="PENDING"))
    engine.store.prune({head.entity: 2})
    with pytest.raises(oncemore.StoreError, match=r"\(event/.* is gone, and nothing says who removed it"):
        engine.verify()
    engine.store.prune({f"run/{pay.key('a')}": 2})
    with pytest.raises(oncemore.StoreError, match=r"\(run/.* is gone, and nothing says who removed it"):
        engine.verify()
    assert erase.SHORTEST_KEY == 8
