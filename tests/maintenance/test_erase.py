"""An erasure removes data from all files; the log verifies and names the actor and the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest

import oncemore
from oncemore.artifacts.backends import MemoryBackend
from oncemore.log.store import HeadQuery
from oncemore.maintenance import erase
from oncemore.outbox import OutboxRelay
from oncemore.steps.history import verify_chain
from tests.crash.harness import CrashingStore, crash_at_every_write, open_engine_on

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
    OutboxRelay(engine, {"*": lambda message: None}).run_once()


def test_no_file_holds_data_of_an_erased_run_and_the_log_verifies(tmp_path: Path, clock: FakeClock) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        for n in range(12):
            person(f"{CANARY}-{n}", note="x" * n * 170)
            person(f"other-{n}")
        deliver(engine)
        assert everything(tmp_path).count(CANARY.encode()) > 30
        clock.advance(DAY)
        for n in range(12):
            found = engine.erase(
                person.key(f"{CANARY}-{n}", note="x" * n * 170), reason="asked to", by="officer"
            )
            assert (found.events, len(found.artifacts), found.remaining) == (1, 2, ())
        assert everything(tmp_path).count(CANARY.encode()) == 0
        told = engine.verify().forgotten
        assert len(told) == 12
        assert {one[1:3] + one[4:] for one in told} == {("house.person", "erased", "officer", "asked to")}
        assert person("other-7")["name"] == "other-7"
        before = len(ran)
        with pytest.raises(
            oncemore.KeyExpired, match="COMPLETE and its record was erased; it is not run a second"
        ):
            person(f"{CANARY}-0")
        assert len(ran) == before
    assert everything(tmp_path).count(CANARY.encode()) == 0


def test_an_erased_run_can_be_shown_without_data(engine: oncemore.Engine, clock: FakeClock) -> None:
    person(CANARY)
    deliver(engine)
    clock.advance(DAY)
    run = person.last_run(CANARY)
    assert run is not None
    engine.erase(run, reason="asked to", by="officer")
    run = person.last_run(CANARY)
    assert run is not None
    assert (run.status, run.reason, run.error, run.artifacts) == ("COMPLETE", "erased", None, ())
    with pytest.raises(oncemore.KeyExpired):
        _ = run.value
    assert CANARY not in run.explain()
    assert "were erased" in run.explain()
    assert CANARY not in str(run.records())
    assert "ERASE" in [record["kind"] for record in run.records()]
    assert CANARY not in str([entry.body for entry in engine.store.read_entries()])


def test_a_pruned_run_can_be_erased_and_erasing_twice_changes_nothing(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    person(CANARY)
    deliver(engine)
    clock.advance(DAY)
    engine.prune(older_than=3600)
    engine.erase(person.key(CANARY), reason="asked to", by="officer")
    before = [entry for entry in engine.store.read_entries() if entry.entity.startswith("run/")]
    found = engine.erase(person.key(CANARY)[:12], reason="once more", by="officer")
    assert found.remaining == ()
    assert [entry for entry in engine.store.read_entries() if entry.entity.startswith("run/")] == before
    assert [task.task for task in engine.maintenance_tasks()] == ["prune", "erase", "erase"]
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
def test_an_unknown_key_is_refused(engine: oncemore.Engine, which: str, says: str) -> None:
    with pytest.raises(oncemore.UsageError, match=says):
        engine.erase(which, reason="r", by="b")
    assert engine.maintenance_tasks() == ()


def test_an_ambiguous_prefix_is_refused(clock: FakeClock) -> None:
    from tests.maintenance.test_prune import pay

    store = CrashingStore()
    with open_engine_on(store) as engine:
        pay("a")
        head = store.load_head(f"run/{pay.key('a')}")
        assert head is not None
        for end in "01":
            name = f"run/{'c' * 63}{end}"
            store._heads[name] = head._replace(entity=name)
        with pytest.raises(oncemore.UsageError, match="several keys begin with cccccccccc; give more digits"):
            engine.erase("c" * 10, reason="r", by="b")


def test_an_unfinished_run_is_not_erased(engine: oncemore.Engine, clock: FakeClock) -> None:
    from tests.maintenance.test_prune import send_once

    @oncemore.step(effect="idempotent", name="house.under-way")
    def under_way() -> None:
        with pytest.raises(oncemore.InProgress, match="is RUNNING; erase it when the run has ended"):
            engine.erase(oncemore.current().key, reason="r", by="b")

    under_way()
    send_once.run("x")
    with pytest.raises(oncemore.UsageError, match="is SOFT_FAIL, held: it needs its arguments to continue"):
        engine.erase(send_once.key("x"), reason="r", by="b")
    person(CANARY)
    with pytest.raises(oncemore.UsageError, match=r"has events that are not delivered \(registered\)"):
        engine.erase(person.key(CANARY), reason="r", by="b")
    assert engine.maintenance_tasks() == ()


def test_an_artifact_of_another_run_too_stays_and_is_reported(
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
    assert "another run refers to it" in found.remaining[0]
    found = engine.erase(twin.key("b"), reason="r", by="b")
    assert (len(found.artifacts), found.remaining) == (1, ())


def test_artifacts_in_a_shared_backend_stay_and_are_reported(tmp_path: Path, clock: FakeClock) -> None:
    with oncemore.open(tmp_path / "one.db", artifacts=tmp_path / "files"):
        person("somebody")
    with oncemore.open(tmp_path / "two.db", artifacts=tmp_path / "files") as engine:
        person(CANARY)
        deliver(engine)
        clock.advance(DAY)
        found = engine.erase(person.key(CANARY), reason="r", by="b")
        assert found.remaining[0].startswith("its artifacts: ")
        assert "also stores artifacts of" in found.remaining[0]


def test_an_engine_without_an_artifact_store_erases_the_log_only(clock: FakeClock) -> None:
    from tests.maintenance.test_prune import pay

    with open_engine_on(CrashingStore()) as engine:
        pay(CANARY)
        assert engine.erase(pay.key(CANARY), reason="r", by="b").remaining == ()
        assert CANARY not in str(list(engine.store.read_entries()))


def test_a_reader_that_keeps_the_wal_is_reported(tmp_path: Path, clock: FakeClock) -> None:
    from tests.maintenance.test_prune import pay

    path = tmp_path / "log.db"
    with oncemore.open(path) as engine:
        pay(CANARY)
        reader = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchall()
        found = engine.erase(pay.key(CANARY), reason="r", by="b")
        assert "the write-ahead file of the store: a reader holds a snapshot" in found.remaining[0]
        reader.execute("ROLLBACK")
        assert engine.erase(pay.key(CANARY), reason="again", by="b").remaining == ()
        reader.close()
        assert everything(tmp_path).count(CANARY.encode()) == 0


def test_a_run_that_changes_during_an_erasure_is_read_again(clock: FakeClock) -> None:
    from tests.maintenance.test_prune import pay

    class Meddled(CrashingStore):
        def append(self, batch: Any) -> Any:
            if b'"ERASE"' in batch.writes[0].header and not done:
                done.append(1)
                open_engine_on(self).prune(older_than=3600)
            return super().append(batch)

    done: list[int] = []
    with open_engine_on(Meddled()) as engine:
        pay(CANARY)
        clock.advance(DAY)
        engine.erase(pay.key(CANARY), reason="r", by="b")
        marks = [one.how for one in engine.verify().forgotten]
        assert marks == ["erased"]


def test_an_erasure_that_crashes_anywhere_is_finished_by_repeating_it(clock: FakeClock) -> None:
    places: dict[int, MemoryBackend] = {}

    def make() -> CrashingStore:
        store = CrashingStore()
        places[id(store)] = MemoryBackend()
        with open_engine_on(store, places[id(store)]) as engine:
            person(CANARY)
            person("other")
            deliver(engine)
        clock.advance(DAY)
        return store

    def act(store: CrashingStore) -> None:
        open_engine_on(store, places[id(store)]).erase(_key(store), reason="asked to", by="officer")

    count = 0
    for store in crash_at_every_write(make, act):
        count += 1
        place = places[id(store)]
        with open_engine_on(store, place) as engine:
            engine.verify()
            found = engine.erase(_key(store), reason="asked to", by="officer")
            assert found.remaining == ()
            assert all(task.state == "DONE" for task in engine.maintenance_tasks())
            verify_chain(store.read_entries())
            assert CANARY not in str([entry.body for entry in store.read_entries()])
            assert CANARY.encode() not in b"".join(data for data, _ in place.stored_objects.values())
            assert any(b"other" in data for data, _ in place.stored_objects.values())
            ran.clear()
            with pytest.raises(oncemore.KeyExpired):
                person(CANARY)
            assert ran == []
    assert count >= 6


def _key(store: CrashingStore) -> str:
    return person.bind(open_engine_on(store)).key(CANARY)


def test_a_missing_body_without_a_recorded_removal_is_a_fault(engine: oncemore.Engine) -> None:
    from tests.maintenance.test_prune import pay, tell

    pay("a")
    tell("b")
    engine.verify()
    (head, *_) = engine.store.list_heads(HeadQuery("event", state="PENDING"))
    engine.store.open_maintenance().prune_bodies({head.entity: 2})
    with pytest.raises(
        oncemore.StoreError, match=r"\(event/.* is missing, and no entry records who removed it"
    ):
        engine.verify()
    engine.store.open_maintenance().prune_bodies({f"run/{pay.key('a')}": 2})
    with pytest.raises(
        oncemore.StoreError, match=r"\(run/.* is missing, and no entry records who removed it"
    ):
        engine.verify()
    assert erase.MIN_KEY_LENGTH == 8
