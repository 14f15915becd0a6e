"""Old finished runs are pruned, open ones never, and no key is done twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.governance.identity import Decider
from oncemore.log.entry_codec import build_write, decode_body, decode_head, load_head
from oncemore.log.memory import MemoryStore
from oncemore.log.record import RecordChange, RunRecord, WorkerRecord
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, HeadQuery
from oncemore.maintenance import prune, tasks
from oncemore.maintenance.retention_rules import find_keep_reason
from oncemore.outbox import OutboxRelay
from oncemore.steps.entered_engine import current_engine
from oncemore.steps.history import verify_chain
from oncemore.steps.lease import WorkerIdentity
from oncemore.testing import FakeClock
from tests.crash.harness import CrashingStore, crash_at_every_write, open_engine_on

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
def send_once(to: str) -> str:
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
    return [entry.body is not None for entry in engine.store.read_entries(entity)]


def list_bodies(engine: oncemore.Engine, step: Any, *args: Any) -> list[bool]:
    return bodies(engine, f"run/{step.key(*args)}")


# What goes and what stays ---------------------------------------------------------------------------


def test_an_old_run_is_pruned_and_its_key_is_not_done_again(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("old")
    clock.advance(100 * DAY)
    pay("new")
    found = engine.prune(older_than=90 * DAY, reason="ninety days", by="an operator")
    assert (found.runs, found.kept_runs) == (1, {"young": 1})
    assert list_bodies(engine, pay, "old") == [False, False, True]
    assert list_bodies(engine, pay, "new") == [True, True]
    with pytest.raises(
        oncemore.KeyExpired, match="COMPLETE and its record was pruned; it is not run a second"
    ):
        pay("old")
    assert pay("new") == "paid new"
    assert ran == ["old", "new"]


def test_a_prune_records_range_actor_and_reason_and_the_chain_verifies(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("a")
    clock.advance(DAY)
    engine.prune(older_than=3600, reason="it is in the rules", by="an operator")
    last = list(engine.store.read_entries(f"run/{pay.key('a')}"))[-1]
    assert last.body is not None
    told = decode_body(last.body)["prune"]
    assert (told["actor"], told["reason"], told["below"]) == ("an operator", "it is in the rules", 3)
    verify_chain(engine.store.read_entries())
    (forgotten,) = engine.verify().forgotten
    assert forgotten[:3] == (pay.key("a"), "house.pay", "pruned")
    assert forgotten[4:] == ("an operator", "it is in the rules")
    (task,) = engine.maintenance_tasks()
    assert (task.state, task.task, task.actor, task.run_count) == ("DONE", "prune", "an operator", 1)
    run = pay.last_run("a")
    assert run is not None
    assert "were pruned" in run.explain()
    assert "PRUNE" in [record["kind"] for record in run.records()]


def test_without_an_age_only_runs_with_a_retention_time_are_pruned(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("a")
    brief("b")
    clock.advance(5 * DAY)
    assert engine.prune(older_than=DAY, dry_run=True).kept_runs == {"young": 1}, (
        "brief is inside its own time"
    )
    assert engine.prune().kept_runs == {"unsaid": 1, "young": 1}
    clock.advance(6 * DAY)
    assert engine.prune() == prune.PruneReport(1, 0, {"unsaid": 1}, 0, 0)
    assert list_bodies(engine, brief, "b") == [False, False, True]
    assert list_bodies(engine, pay, "a") == [True, True]


def test_open_and_held_runs_are_never_pruned(engine: oncemore.Engine, clock: FakeClock) -> None:
    send_once.run("somebody")

    @oncemore.step(effect="idempotent", name="house.deferred")
    def later(name: str) -> None:
        if oncemore.current().number == 1:
            error = ConnectionError("deferred")
            error.retry_after = 7200.0  # type: ignore[attr-defined]
            raise oncemore.Deferred("not yet", engine.now() + 10_000)

    with pytest.raises(oncemore.Deferred):
        later("x")
    inside: list[prune.PruneReport] = []

    @oncemore.step(effect="idempotent", name="house.busy")
    def busy() -> None:
        clock.advance(400 * DAY)
        inside.append(engine.prune(older_than=DAY))

    busy()
    assert inside == [prune.PruneReport(0, 0, {"open": 3}, 0, 0)]
    assert list_bodies(engine, send_once, "somebody") == [True, True]
    later("x")
    send_once.settle(oncemore.applied("sent"), "somebody", reason="it was there")
    assert send_once("somebody") == "sent"


def test_a_run_is_kept_until_all_its_events_are_delivered(engine: oncemore.Engine, clock: FakeClock) -> None:
    tell("a")
    tell("b")
    clock.advance(DAY)
    assert engine.prune(older_than=3600).kept_runs == {"undelivered": 2}

    def sink(message: Any) -> None:
        if message.payload["about"] == "b" and "again" in message.payload:
            raise oncemore.PermanentError("no")

    OutboxRelay(engine, {"*": sink}).run_once()
    clock.advance(DAY)
    found = engine.prune(older_than=3600)
    assert (found.runs, found.events, found.kept_runs) == (1, 2, {"undelivered": 1})
    events = [head.entity for head in engine.store.list_heads(HeadQuery("event", state="DELIVERED"))]
    gone = [name for name in events if bodies(engine, name).count(True) == 0]
    assert (len(events), len(gone)) == (3, 2)
    assert engine.verify().forgotten[0].step == "house.tell"


def test_an_event_sent_again_during_a_prune_keeps_its_run(clock: FakeClock) -> None:
    class Meddled(MemoryStore):
        def append(self, batch: Any) -> Any:
            if b'"PRUNE"' in batch.writes[0].header and not done:
                done.append(1)
                relay.redeliver(next(iter(batch.guards)).removeprefix("event/"), reason="lost")
            return super().append(batch)

    done: list[int] = []
    engine = open_engine_on(Meddled())
    with engine:
        tell("a")
        pay("b")
        relay = OutboxRelay(engine, {"*": lambda message: None})
        relay.run_once()
        clock.advance(DAY)
        found = engine.prune(older_than=3600)
        assert (found.runs, found.kept_runs) == (1, {"moved": 1})
        assert list_bodies(engine, tell, "a") == [True, True]
        assert list_bodies(engine, pay, "b") == [False, False, True]


def test_a_run_that_changes_during_a_prune_is_kept(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(MemoryStore):
        def read_entries(self, entity: str | None = None, after: int = 0) -> Any:
            return (
                iter(())
                if entity and entity.startswith("run/") and after
                else super().read_entries(entity, after)
            )

    with open_engine_on(Gone()) as engine:
        pay("a")
        clock.advance(DAY)
        assert engine.prune(older_than=3600).kept_runs == {"moved": 1}


def test_a_quarantined_run_is_kept(engine: oncemore.Engine, clock: FakeClock, tmp_path: Path) -> None:
    @oncemore.step(effect="pure", name="house.tile", artifact="tile")
    def tile() -> oncemore.Artifact:
        return oncemore.current().put(b"bytes", name="tile")  # type: ignore[no-any-return]

    made = tile()
    place = engine.artifact_store.backend
    if place.object_path(made.digest) is None:
        place.stored_objects[made.digest] = (b"other", 0.0)  # type: ignore[attr-defined]
    else:
        path = made.path()
        path.chmod(0o600)
        path.write_bytes(b"other")
    with pytest.raises(oncemore.Error, match="was altered"):
        tile()
    clock.advance(DAY)
    assert engine.prune(older_than=3600).kept_runs == {"open": 1}


def test_a_failed_run_that_needs_a_person_is_kept(engine: oncemore.Engine, clock: FakeClock) -> None:
    fail.run("x")
    seen = load_head(engine.store, f"run/{fail.key('x')}")
    change = RecordChange(
        ("HARD_FAIL",), seen.record, seen.record, {"quarantine": {"reason": "checksum_mismatch"}}
    )
    engine.store.append(
        Batch((build_write(seen.entity, seen.version, seen.hash, change, engine.now()),))
    ).wait()
    clock.advance(DAY)
    assert engine.prune(older_than=3600).kept_runs == {"quarantined": 1}


def test_a_failed_run_is_pruned_and_not_tried_again(
    engine: oncemore.Engine, clock: FakeClock, tmp_path: Path
) -> None:
    policy = tmp_path / "mine.yaml"
    policy.write_text('version: "1"\nprofile: mine\nafter_failure: raise\nretry_policy:\n  max_attempts: 1\n')

    @oncemore.step(effect="pure", name="house.fail", policy=str(policy))
    def fail(name: str) -> str:
        ran.append(name)
        raise oncemore.PermanentError(f"{name} will not do")

    fail.run("x")
    clock.advance(DAY)
    assert engine.prune(older_than=3600).runs == 1
    with pytest.raises(oncemore.KeyExpired, match="HARD_FAIL"):
        fail("x")
    with pytest.raises(oncemore.KeyExpired):
        fail.rerun("x", reason="again")
    assert ran == ["x"]


def test_a_failed_run_whose_policy_permits_a_new_run_starts_one_after_a_prune(
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
    run = anew.last_run()
    assert run is not None
    assert (run.state.pruned_at, run.value) == (0.0, "yes")
    engine.verify()


def test_only_one_step_can_be_pruned_and_a_dry_run_writes_nothing(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("a")
    tell("b")
    brief("c")
    clock.advance(DAY)
    before = list(engine.store.read_entries())
    assert engine.prune(older_than=60, step="house.pay", dry_run=True).runs == 1
    assert list(engine.store.read_entries()) == before
    assert engine.prune(older_than=60, step="house.pay") == prune.PruneReport(1, 0, {}, 0, 0)
    assert list_bodies(engine, pay, "a") == [False, False, True]


def test_many_runs_are_pruned_in_small_groups(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Watched(MemoryStore):
        def append(self, batch: Any) -> Any:
            sizes.append(len(batch.writes) + len(batch.guards))
            return super().append(batch)

    monkeypatch.setattr(tasks, "PAGE_SIZE", 7)
    monkeypatch.setattr(prune, "MAX_GUARDS", 6)
    with open_engine_on(Watched()) as engine:
        for n in range(20):
            tell(str(n))
        OutboxRelay(engine, {"*": lambda message: None}).run_once()
        clock.advance(DAY)
        sizes.clear()
        assert engine.prune(older_than=3600).runs == 20
    assert max(sizes) <= 4 * 3


@pytest.mark.parametrize("value", [0, 59, -1, float("nan"), float("inf"), True, "90d"])
@pytest.mark.parametrize("option", ["older_than", "forget_keys_after"])
def test_an_invalid_age_is_refused_by_its_name(engine: oncemore.Engine, option: str, value: Any) -> None:
    with pytest.raises(oncemore.UsageError, match=f"{option} is .*; it takes 60 to"):
        engine.prune(**{option: value})


@pytest.mark.parametrize("field", ["reason", "by"])
def test_actor_and_reason_must_be_texts(engine: oncemore.Engine, field: str) -> None:
    with pytest.raises(oncemore.UsageError, match=f"{field} is ' '; it takes a text"):
        engine.prune(**{"older_than": 60, "reason": "r", "by": "b", field: " "})


def test_the_actor_is_that_of_the_context_or_the_user(
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
    assert [task.actor for task in engine.maintenance_tasks()] == [
        "the night shift",
        "a-user",
        "unknown user",
    ]


def test_a_held_run_counts_as_open_in_every_state() -> None:
    for state in ("COMPLETE", "HARD_FAIL"):
        run = RunRecord(state=state)  # type: ignore[arg-type]
        assert find_keep_reason(run, 1e9, 60.0) == ""
        assert find_keep_reason(run._replace(held_for="quarantine"), 1e9, 60.0) == "open"
    assert find_keep_reason(RunRecord(state="SOFT_FAIL"), 1e9, 60.0) == "open"


# Tombstones and workers -----------------------------------------------------------------------------


def test_tombstones_are_kept_unless_the_caller_drops_keys(engine: oncemore.Engine, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="house.file")
    def file(name: str) -> str:
        oncemore.current().put(name.encode(), name=name)
        oncemore.current().emit("filed", name)
        return name

    file("a")
    pay("b")
    OutboxRelay(engine, {"*": lambda message: None}).run_once()
    clock.advance(DAY)
    engine.prune(older_than=3600)
    clock.advance(50 * 365 * DAY)
    assert engine.prune(older_than=3600).dropped_keys == 0
    with pytest.raises(oncemore.KeyExpired):
        pay("b")
    last = engine.store.wait_for_change(0, 0.0)
    found = engine.prune(forget_keys_after=DAY, reason="the contract is over", by="an operator")
    assert found.dropped_keys == 2
    assert not list(engine.store.list_heads(HeadQuery("run")))
    assert not list(engine.store.list_heads(HeadQuery("event", state="DELIVERED")))
    assert not list(engine.store.list_heads(HeadQuery("artifact", due_by=float("inf"))))
    pay("b")
    assert ran == ["b", "b"], "it says so: a forgotten key is done again"
    assert engine.store.wait_for_change(0, 0.0) > last
    engine.verify()
    notes = [
        decode_body(entry.body or b"{}")
        for entry in engine.store.read_entries()
        if entry.entity.startswith("maintenance/")
    ]
    forgotten = next(note["forgotten"] for note in notes if "forgotten" in note)
    assert sorted(name.partition("/")[0] for name, _, _ in forgotten) == ["artifact", "event", "run", "run"]


def test_young_tombstones_are_kept_when_old_ones_are_dropped(
    engine: oncemore.Engine, clock: FakeClock
) -> None:
    pay("old")
    clock.advance(DAY)
    engine.prune(older_than=3600)
    clock.advance(30 * DAY)
    pay("new")
    clock.advance(DAY)
    engine.prune(older_than=3600)
    assert engine.prune(forget_keys_after=10 * DAY, dry_run=True).dropped_keys == 1
    assert engine.prune(forget_keys_after=10 * DAY).dropped_keys == 1
    assert engine.prune(forget_keys_after=10 * DAY, dry_run=True).dropped_keys == 0
    with pytest.raises(oncemore.KeyExpired):
        pay("new")


def test_records_of_dead_processes_are_removed(engine: oncemore.Engine, clock: FakeClock) -> None:
    for name in ("gone", "old"):
        WorkerIdentity(engine.store, name, 60.0, engine.now).end_lease()
    clock.advance(2 * DAY)
    WorkerIdentity(engine.store, "recent", 60.0, engine.now).end_lease()
    assert engine.prune().workers == 2
    workers = [head.entity for head in engine.store.list_heads(HeadQuery("worker"))]
    assert "worker/gone" not in workers
    assert "worker/recent" in workers
    engine.verify()


def test_records_of_dead_processes_stay_without_the_permission(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_engine_on(MemoryStore())
    WorkerIdentity(engine.store, "gone", 60.0, engine.now).end_lease()
    clock.advance(5 * DAY)

    def refused(_entities: dict[str, int]) -> int:
        raise oncemore.StoreError("only its owner may")

    monkeypatch.setattr(engine.store, "drop_entities", refused)
    assert engine.prune().workers == 0
    assert "the records of dead processes could not be removed: only its owner may" in caplog.text


def test_a_worker_whose_record_was_removed_starts_a_new_one(clock: FakeClock) -> None:
    store = MemoryStore()
    engine = open_engine_on(store)
    me = WorkerIdentity(store, "asleep", 60.0, engine.now)
    clock.advance(10 * DAY)
    assert engine.prune().workers == 1
    me.renew_lease()
    head = store.load_head("worker/asleep")
    assert head is not None
    assert (head.version, decode_head(head.head, WorkerRecord).state) == (1, "ALIVE")
    me.end_lease()
    verify_chain(store.read_entries())


# Crashes --------------------------------------------------------------------------------------------


def make_store() -> CrashingStore:
    """Create three runs that may be pruned, one of them with events, and one that may not."""
    store = CrashingStore()
    with open_engine_on(store):
        pay("a")
        pay("b")
        tell("c")
        OutboxRelay(current_engine(), {"*": lambda message: None}).run_once()  # type: ignore[attr-defined]
        send_once.run("held")
    return store


@pytest.mark.parametrize("forget", [None, 60.0], ids=["prune", "and forget keys"])
def test_a_prune_that_crashes_anywhere_keeps_open_runs_and_is_finished_by_the_next(
    clock: FakeClock, forget: float | None
) -> None:
    def make() -> CrashingStore:
        store = make_store()
        clock.advance(DAY)
        if forget:
            with open_engine_on(store) as engine:
                engine.prune(older_than=3600)
            clock.advance(DAY)
        return store

    def act(store: CrashingStore) -> None:
        open_engine_on(store).prune(older_than=3600, forget_keys_after=forget)

    count = 0
    for store in crash_at_every_write(make, act):
        count += 1
        ran.clear()
        with open_engine_on(store) as engine:
            engine.verify()
            assert bodies(engine, f"run/{send_once.key('held')}") == [True, True]
            clock.advance(7200)
            engine.prune(older_than=3600, forget_keys_after=forget)
            engine.verify()
            assert all(task.state == "DONE" for task in engine.maintenance_tasks())
            kept = [
                entry
                for entry in engine.store.read_entries()
                if entry.body is not None and (b"paid" in entry.body or b"about" in entry.body)
            ]
            assert kept == [], "no body is left behind, however it died"
            if not forget:
                for name in ("a", "b"):
                    with pytest.raises(oncemore.KeyExpired):
                        pay(name)
                assert ran == []
    assert count >= 8


def test_a_prune_does_not_close_the_task_of_a_live_one(clock: FakeClock) -> None:
    store = make_store()
    clock.advance(DAY)
    one, other = open_engine_on(store), open_engine_on(store)
    from oncemore.maintenance.tasks import MaintenanceTask

    with MaintenanceTask(one, "prune", "r", Decider("b")):
        other.prune(older_than=3600)
        assert sorted(task.state for task in other.maintenance_tasks()) == ["DONE", "OPEN"]
    one.close()
    other.prune(older_than=3600)
    assert [task.state for task in other.maintenance_tasks()] == ["DONE", "DONE", "DONE"]


def test_a_task_written_by_another_process_is_not_overwritten(clock: FakeClock) -> None:
    from oncemore.maintenance.tasks import MaintenanceTask, close_abandoned_tasks, find_abandoned_tasks

    store = MemoryStore()
    engine = open_engine_on(store)
    with MaintenanceTask(engine, "prune", "r", Decider("b")) as task:
        abandoned = [(task.entity, engine.maintenance_tasks()[0])]
        close_abandoned_tasks(engine, abandoned)
        close_abandoned_tasks(engine, abandoned)
        assert engine.maintenance_tasks()[0].state == "DONE"
        with pytest.raises(oncemore.StoreError, match="written by another process"):
            task.mark_done(1, {})
    assert find_abandoned_tasks(engine, "prune") == []


def test_a_task_closes_its_retired_worker(clock: FakeClock) -> None:
    from oncemore.maintenance.tasks import MaintenanceTask

    engine = open_engine_on(MemoryStore())
    with MaintenanceTask(engine, "prune", "r", Decider("b")):
        me = engine.leases.current_identity()
        engine.leases.retire_worker(me)
    assert engine.store.is_worker_gone(me.name)


# Beside others --------------------------------------------------------------------------------------


def test_steps_run_during_a_prune(tmp_path: Path) -> None:
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
                pay.bind(engine)(f"new {n}")
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


def test_pruned_data_is_not_in_the_file(tmp_path: Path, clock: FakeClock) -> None:
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
