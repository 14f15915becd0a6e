"""What is over is forgotten when its time is up; what may come back never is; no key is done twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.log.entry_codec import body_of, head_of
from oncemore.log.head_access import seen_in, write_of
from oncemore.log.memory import MemoryStore
from oncemore.log.record import Change, Run, Worker
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, Query
from oncemore.maintenance import prune
from oncemore.maintenance.retention_rules import cannot_go
from oncemore.outbox import Relay
from oncemore.steps.entered_engine import innermost
from oncemore.steps.lease import Identity
from oncemore.steps.run import verify
from oncemore.testing import FakeClock
from tests.house.crashing import Mortal, deaths, engine_on

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@oncemore.step(effect="idempotent", name="house.pay")
def pay(order: str) -> str:
    ran.append(order)
    return f"paid {order}"


@oncemore.step(effect="idempotent", name="house.brief", retain_for=10 * DAY)
def brief(order: str) -> str:
    ran.append(order)
    return f"brief {order}"


@oncemore.step(effect="once", name="house.letter")
def letter(to: str) -> str:
    raise TimeoutError("no answer")


@oncemore.step(effect="outbox", name="house.tell")
def tell(name: str) -> str:
    oncemore.current().emit("told", {"about": name})
    oncemore.current().emit("told", {"about": name, "again": True})
    return name


@oncemore.step(effect="pure", name="house.fail")
def fail(name: str) -> str:
    ran.append(name)
    raise oncemore.PermanentError(f"{name} will not do")


def bodies(engine: oncemore.Engine, entity: str) -> list[bool]:
    return [entry.body is not None for entry in engine.store.entries(entity)]


def left(engine: oncemore.Engine, step: Any, *args: Any) -> list[bool]:
    return bodies(engine, f"run/{step.key(*args)}")


# What goes and what stays ---------------------------------------------------------------------------


def test_a_run_that_is_old_enough_is_forgotten_and_its_key_is_not_done_again(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("old")
    clock.advance(100 * DAY)
    pay("new")
    found = engine.prune(older_than=90 * DAY, reason="ninety days", by="an operator")
    assert (found.runs, found.kept) == (1, {"young": 1})
    assert left(engine, pay, "old") == [False, False, True]
    assert left(engine, pay, "new") == [True, True]
    with pytest.raises(
        oncemore.KeyExpired, match="COMPLETE and its record was pruned; it is not run a second"
    ):
        pay("old")
    assert pay("new") == "paid new"
    assert ran == ["old", "new"]


def test_a_prune_says_range_who_and_why_and_the_chain_still_verifies(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("a")
    clock.advance(DAY)
    engine.prune(older_than=3600, reason="it is in the rules", by="an operator")
    last = list(engine.store.entries(f"run/{pay.key('a')}"))[-1]
    assert last.body is not None
    told = body_of(last.body)["prune"]
    assert (told["actor"], told["reason"], told["below"]) == ("an operator", "it is in the rules", 3)
    verify(engine.store.entries())
    (forgotten,) = engine.verify().forgotten
    assert forgotten[:3] == (pay.key("a"), "house.pay", "pruned")
    assert forgotten[4:] == ("an operator", "it is in the rules")
    (chore,) = engine.chores()
    assert (chore.state, chore.what, chore.actor, chore.runs) == ("DONE", "prune", "an operator", 1)
    run = pay.last("a")
    assert run is not None
    assert "were pruned" in run.explain()
    assert "PRUNE" in [record["kind"] for record in run.wal()]


def test_without_a_time_only_steps_that_say_one_are_pruned_and_theirs_always_holds(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("a")
    brief("b")
    clock.advance(5 * DAY)
    assert engine.prune(older_than=DAY, dry_run=True).kept == {"young": 1}, "brief is inside its own time"
    assert engine.prune().kept == {"unsaid": 1, "young": 1}
    clock.advance(6 * DAY)
    assert engine.prune() == prune.Pruned(1, 0, {"unsaid": 1}, 0, 0)
    assert left(engine, brief, "b") == [False, False, True]
    assert left(engine, pay, "a") == [True, True]


def test_what_is_open_or_held_is_never_touched_however_old_it_is(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    letter.run("somebody")

    @oncemore.step(effect="idempotent", name="house.later")
    def later(name: str) -> None:
        if oncemore.current().number == 1:
            error = ConnectionError("later")
            error.retry_after = 7200.0  # type: ignore[attr-defined]
            raise oncemore.Parked("not yet", engine.now() + 10_000)

    with pytest.raises(oncemore.Parked):
        later("x")
    inside: list[prune.Pruned] = []

    @oncemore.step(effect="idempotent", name="house.busy")
    def busy() -> None:
        clock.advance(400 * DAY)
        inside.append(engine.prune(older_than=DAY))

    busy()
    assert inside == [prune.Pruned(0, 0, {"open": 3}, 0, 0)]
    assert left(engine, letter, "somebody") == [True, True]
    later("x")
    letter.settle(oncemore.applied("sent"), "somebody", reason="it was there")
    assert letter("somebody") == "sent"


def test_a_run_stays_until_all_its_events_have_arrived_and_a_dead_one_keeps_it(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    tell("a")
    tell("b")
    clock.advance(DAY)
    assert engine.prune(older_than=3600).kept == {"undelivered": 2}

    def sink(message: Any) -> None:
        if message.payload["about"] == "b" and "again" in message.payload:
            raise oncemore.PermanentError("no")

    Relay(engine, {"*": sink}).run_once()
    clock.advance(DAY)
    found = engine.prune(older_than=3600)
    assert (found.runs, found.events, found.kept) == (1, 2, {"undelivered": 1})
    events = [head.entity for head in engine.store.heads(Query("event", state="DELIVERED"))]
    gone = [name for name in events if bodies(engine, name).count(True) == 0]
    assert (len(events), len(gone)) == (3, 2)
    assert engine.verify().forgotten[0].step == "house.tell"


def test_an_event_that_is_sent_again_in_this_very_moment_keeps_its_run(clock: FakeClock) -> None:
    class Meddled(MemoryStore):
        def append(self, batch: Any) -> Any:
            if b'"PRUNE"' in batch.writes[0].header and not done:
                done.append(1)
                relay.redeliver(next(iter(batch.guards)).removeprefix("event/"), reason="lost")
            return super().append(batch)

    done: list[int] = []
    engine = engine_on(Meddled())
    with engine:
        tell("a")
        pay("b")
        relay = Relay(engine, {"*": lambda message: None})
        relay.run_once()
        clock.advance(DAY)
        found = engine.prune(older_than=3600)
        assert (found.runs, found.kept) == (1, {"moved": 1})
        assert left(engine, tell, "a") == [True, True]
        assert left(engine, pay, "b") == [False, False, True]


def test_a_run_that_moves_in_this_very_moment_stays(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(MemoryStore):
        def entries(self, entity: str | None = None, after: int = 0) -> Any:
            return (
                iter(()) if entity and entity.startswith("run/") and after else super().entries(entity, after)
            )

    with engine_on(Gone()) as engine:
        pay("a")
        clock.advance(DAY)
        assert engine.prune(older_than=3600).kept == {"moved": 1}


def test_what_is_in_quarantine_stays(engine: oncemore.Engine, clock: FakeClock, tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="house.tile", artifact="tile")
    def tile() -> oncemore.Artifact:
        return oncemore.current().put(b"bytes", name="tile")  # type: ignore[no-any-return]

    made = tile()
    place = engine.shelf.place
    if place.path(made.digest) is None:
        place.kept[made.digest] = (b"other", 0.0)  # type: ignore[attr-defined]
    else:
        path = made.path()
        path.chmod(0o600)
        path.write_bytes(b"other")
    with pytest.raises(oncemore.Error, match="was altered"):
        tile()
    clock.advance(DAY)
    assert engine.prune(older_than=3600).kept == {"open": 1}


def test_failed_work_whose_record_says_that_a_person_has_to_look_stays(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    fail.run("x")
    seen = seen_in(engine.store, f"run/{fail.key('x')}")
    change = Change(("HARD_FAIL",), seen.run, seen.run, {"quarantine": {"reason": "checksum_mismatch"}})
    engine.store.append(Batch((write_of(seen.entity, seen.version, seen.hash, change, engine.now()),))).wait()
    clock.advance(DAY)
    assert engine.prune(older_than=3600).kept == {"quarantined": 1}


def test_failed_work_is_pruned_too_and_is_not_tried_again(engine: oncemore.Engine, clock: FakeClock) -> None:
    fail.run("x")
    clock.advance(DAY)
    assert engine.prune(older_than=3600).runs == 1
    with pytest.raises(oncemore.KeyExpired, match="HARD_FAIL"):
        fail("x")
    with pytest.raises(oncemore.KeyExpired):
        fail.rerun("x", reason="again")
    assert ran == ["x"]


def test_failed_work_whose_policy_begins_anew_does_so_after_a_prune(
    engine: oncemore.Engine, clock: FakeClock, tmp_path: Path
) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text(
        'version: "1"\nprofile: mine\nafter_failure: new_run\nretry_policy:\n  max_attempts: 1\n'
    )
    tries: list[int] = []

    @oncemore.step(effect="idempotent", name="house.anew", policy=str(policy))
    def anew() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise oncemore.PermanentError("no")
        return "yes"

    anew.run()
    clock.advance(DAY)
    assert engine.prune(older_than=3600).runs == 1
    assert anew() == "yes"
    run = anew.last()
    assert run is not None
    assert (run.state.pruned, run.value) == (0.0, "yes")
    engine.verify()


def test_only_one_step_can_be_pruned_and_a_dry_run_writes_nothing(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("a")
    tell("b")
    brief("c")
    clock.advance(DAY)
    before = list(engine.store.entries())
    assert engine.prune(older_than=60, step="house.pay", dry_run=True).runs == 1
    assert list(engine.store.entries()) == before
    assert engine.prune(older_than=60, step="house.pay") == prune.Pruned(1, 0, {}, 0, 0)
    assert left(engine, pay, "a") == [False, False, True]


def test_many_runs_go_in_small_groups(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Watched(MemoryStore):
        def append(self, batch: Any) -> Any:
            sizes.append(len(batch.writes) + len(batch.guards))
            return super().append(batch)

    monkeypatch.setattr(prune, "PAGE", 7)
    monkeypatch.setattr(prune, "MOST_GUARDS", 6)
    with engine_on(Watched()) as engine:
        for n in range(20):
            tell(str(n))
        Relay(engine, {"*": lambda message: None}).run_once()
        clock.advance(DAY)
        sizes.clear()
        assert engine.prune(older_than=3600).runs == 20
    assert max(sizes) <= 4 * 3


@pytest.mark.parametrize("value", [0, 59, -1, float("nan"), float("inf"), True, "90d"])
@pytest.mark.parametrize("option", ["older_than", "forget_keys_after"])
def test_a_time_that_makes_no_sense_is_refused_by_its_name(
    engine: oncemore.Engine, option: str, value: Any
) -> None:
    with pytest.raises(oncemore.UsageError, match=f"{option} is .*; it takes 60 to"):
        engine.prune(**{option: value})


@pytest.mark.parametrize("field", ["reason", "by"])
def test_who_and_why_must_be_said_in_words(engine: oncemore.Engine, field: str) -> None:
    with pytest.raises(oncemore.UsageError, match=f"{field} is ' '; it takes a text"):
        engine.prune(**{"older_than": 60, "reason": "r", "by": "b", field: " "})


def test_who_did_it_is_the_actor_of_the_context_or_the_user(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with oncemore.context(actor="the night shift"):
        engine.prune()
    monkeypatch.setenv("LOGNAME", "a-user")
    engine.prune()

    def nobody() -> str:
        raise KeyError("no such user")

    monkeypatch.setattr("getpass.getuser", nobody)
    engine.prune()
    assert [chore.actor for chore in engine.chores()] == ["the night shift", "a-user", "somebody"]


def test_a_run_that_waits_for_a_person_is_open_whatever_its_state_is() -> None:
    for state in ("COMPLETE", "HARD_FAIL"):
        run = Run(state=state)  # type: ignore[arg-type]
        assert cannot_go(run, 1e9, 60.0) == ""
        assert cannot_go(run._replace(held_for="quarantine"), 1e9, 60.0) == "open"
    assert cannot_go(Run(state="SOFT_FAIL"), 1e9, 60.0) == "open"


# Tombstones and workers -----------------------------------------------------------------------------


def test_a_tombstone_stays_for_ever_unless_somebody_says_that_keys_are_forgotten(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    @oncemore.step(effect="idempotent", name="house.file")
    def file(name: str) -> str:
        oncemore.current().put(name.encode(), name=name)
        oncemore.current().emit("filed", name)
        return name

    file("a")
    pay("b")
    Relay(engine, {"*": lambda message: None}).run_once()
    clock.advance(DAY)
    engine.prune(older_than=3600)
    clock.advance(50 * 365 * DAY)
    assert engine.prune(older_than=3600).forgotten == 0
    with pytest.raises(oncemore.KeyExpired):
        pay("b")
    last = engine.store.changed(0, 0.0)
    found = engine.prune(forget_keys_after=DAY, reason="the contract is over", by="an operator")
    assert found.forgotten == 2
    assert not list(engine.store.heads(Query("run")))
    assert not list(engine.store.heads(Query("event", state="DELIVERED")))
    assert not list(engine.store.heads(Query("artifact", due_by=float("inf"))))
    pay("b")
    assert ran == ["b", "b"], "it says so: a forgotten key is done again"
    assert engine.store.changed(0, 0.0) > last
    engine.verify()
    notes = [
        body_of(entry.body or b"{}") for entry in engine.store.entries() if entry.entity.startswith("chore/")
    ]
    forgotten = next(note["forgotten"] for note in notes if "forgotten" in note)
    assert sorted(name.partition("/")[0] for name, _, _ in forgotten) == ["artifact", "event", "run", "run"]


def test_young_tombstones_stay_when_old_ones_go(engine: oncemore.Engine, clock: FakeClock) -> None:
    pay("old")
    clock.advance(DAY)
    engine.prune(older_than=3600)
    clock.advance(30 * DAY)
    pay("new")
    clock.advance(DAY)
    engine.prune(older_than=3600)
    assert engine.prune(forget_keys_after=10 * DAY, dry_run=True).forgotten == 1
    assert engine.prune(forget_keys_after=10 * DAY).forgotten == 1
    assert engine.prune(forget_keys_after=10 * DAY, dry_run=True).forgotten == 0
    with pytest.raises(oncemore.KeyExpired):
        pay("new")


def test_the_records_of_processes_that_are_long_gone_are_removed(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    for name in ("gone", "old"):
        Identity(engine.store, name, 60.0, engine.now).end()
    clock.advance(2 * DAY)
    Identity(engine.store, "recent", 60.0, engine.now).end()
    assert engine.prune().workers == 2
    workers = [head.entity for head in engine.store.heads(Query("worker"))]
    assert "worker/gone" not in workers
    assert "worker/recent" in workers
    engine.verify()


def test_they_stay_where_they_may_not_be_removed(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_on(MemoryStore())
    Identity(engine.store, "gone", 60.0, engine.now).end()
    clock.advance(5 * DAY)

    def refused(_entities: dict[str, int]) -> int:
        raise oncemore.StoreError("only its owner may")

    monkeypatch.setattr(engine.store, "drop", refused)
    assert engine.prune().workers == 0
    assert "the records of processes that are long gone stay: only its owner may" in caplog.text


def test_a_worker_that_was_taken_for_gone_begins_its_record_anew(clock: FakeClock) -> None:
    store = MemoryStore()
    engine = engine_on(store)
    me = Identity(store, "asleep", 60.0, engine.now)
    clock.advance(10 * DAY)
    assert engine.prune().workers == 1
    me.renew()
    head = store.head("worker/asleep")
    assert head is not None
    assert (head.version, head_of(head.head, Worker).state) == (1, "ALIVE")
    me.end()
    verify(store.entries())


# Crashes --------------------------------------------------------------------------------------------


def world() -> Mortal:
    """Make three runs that can go, one of them with events, and one that cannot."""
    store = Mortal()
    with engine_on(store):
        pay("a")
        pay("b")
        tell("c")
        Relay(innermost(), {"*": lambda message: None}).run_once()  # type: ignore[attr-defined]
        letter.run("held")
    return store


@pytest.mark.parametrize("forget", [None, 60.0], ids=["prune", "and forget keys"])
def test_a_prune_that_dies_anywhere_loses_nothing_that_may_come_back_and_is_finished_by_the_next(
    clock: FakeClock, forget: float | None
) -> None:
    def make() -> Mortal:
        store = world()
        clock.advance(DAY)
        if forget:
            with engine_on(store) as engine:
                engine.prune(older_than=3600)
            clock.advance(DAY)
        return store

    def act(store: Mortal) -> None:
        engine_on(store).prune(older_than=3600, forget_keys_after=forget)

    count = 0
    for store in deaths(make, act):
        count += 1
        ran.clear()
        with engine_on(store) as engine:
            engine.verify()
            assert bodies(engine, f"run/{letter.key('held')}") == [True, True]
            clock.advance(7200)
            engine.prune(older_than=3600, forget_keys_after=forget)
            engine.verify()
            assert all(chore.state == "DONE" for chore in engine.chores())
            kept = [
                entry
                for entry in engine.store.entries()
                if entry.body is not None and (b"paid" in entry.body or b"about" in entry.body)
            ]
            assert kept == [], "no body is left behind, however it died"
            if not forget:
                for name in ("a", "b"):
                    with pytest.raises(oncemore.KeyExpired):
                        pay(name)
                assert ran == []
    assert count >= 8


def test_a_pass_beside_another_that_is_alive_leaves_its_chore_alone(clock: FakeClock) -> None:
    store = world()
    clock.advance(DAY)
    one, other = engine_on(store), engine_on(store)
    from oncemore.maintenance.tasks import Doing

    with Doing(one, "prune", "r", "b"):
        other.prune(older_than=3600)
        assert sorted(chore.state for chore in other.chores()) == ["DONE", "OPEN"]
    one.close()
    other.prune(older_than=3600)
    assert [chore.state for chore in other.chores()] == ["DONE", "DONE", "DONE"]


def test_a_chore_that_somebody_else_writes_is_not_written_over(clock: FakeClock) -> None:
    from oncemore.maintenance.tasks import Doing, close, left_open

    store = MemoryStore()
    engine = engine_on(store)
    with Doing(engine, "prune", "r", "b") as doing:
        left = [(doing.entity, engine.chores()[0])]
        close(engine, left)
        close(engine, left)
        assert engine.chores()[0].state == "DONE"
        with pytest.raises(oncemore.StoreError, match="written by somebody else"):
            doing.done(1, {})
    assert left_open(engine, "prune") == []


def test_a_chore_whose_worker_was_retired_meanwhile_buries_it(clock: FakeClock) -> None:
    from oncemore.maintenance.tasks import Doing

    engine = engine_on(MemoryStore())
    with Doing(engine, "prune", "r", "b"):
        me = engine.identity()
        engine.retire(me)
    assert engine.store.gone(me.name)


# Beside others --------------------------------------------------------------------------------------


def test_steps_go_on_while_a_prune_is_under_way(tmp_path: Path) -> None:
    engine = oncemore.open(tmp_path / "log.db")
    with engine, FakeClock() as clock:
        for n in range(300):
            pay(f"old {n}")
        clock.advance(DAY)
        stop, done, waits = threading.Event(), [], []

        def work() -> None:
            n = 0
            while not stop.is_set():
                began = clock_of()
                pay.on(engine)(f"new {n}")
                waits.append(clock_of() - began)
                done.append(n)
                n += 1

        import time

        clock_of = time.monotonic
        thread = threading.Thread(target=work)
        thread.start()
        try:
            found = engine.prune(older_than=3600)
        finally:
            stop.set()
            thread.join(30)
        assert found.runs == 300
        assert done
        assert max(waits) < 5.0
        engine.verify()


def test_what_was_pruned_is_not_in_the_file_any_more(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "log.db"
    with oncemore.open(path) as engine:
        for n in range(50):
            pay(f"canary-{n:03}")
        clock.advance(DAY)
        engine.prune(older_than=3600)
        data = b"".join(file.read_bytes() for file in tmp_path.glob("log.db*") if file.is_file())
    assert b"canary-" not in data
    assert isinstance(engine.store, SqliteStore)
    engine.close()
