"""Tests of the doctor's checks and of the four health criteria."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import apsw
import pytest

import oncemore
from oncemore.errors import StoreError, UsageError
from oncemore.log.memory import MemoryStore
from oncemore.log.sqlite.store import ReadOnlySqliteStore
from oncemore.log.store import Batch, StoreFacts
from oncemore.maintenance.rebuild import repair_heads
from oncemore.queries import doctor, store_checks
from oncemore.queries.doctor import check_rebuild
from oncemore.queries.health import judge_store
from oncemore.queries.replay import replay_all, replay_window
from oncemore.queries.run_timeline import load_timeline
from oncemore.queries.runs import RunFilter, find_run, list_runs
from oncemore.queries.stores import artifact_store_of, open_for_repair, open_read_only
from oncemore.queries.tail import EntryFilter, LogTailer
from oncemore.testing import FakeClock
from tests.queries.test_rebuild import change
from tests.queries.test_run_timeline import kill_process

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.store import Store
    from oncemore.queries.store_checks import DoctorCheck


def checks(store: Store, known: list[str] | None = None) -> dict[str, DoctorCheck]:
    return {check.name: check for check in doctor.check_store(store, known).checks}


def test_a_healthy_store_is_ok_except_for_held_runs(store: Store) -> None:
    found = doctor.check_store(store)
    assert found.worst == "warn"
    # Waits of its making ended at once, so that some entries are ahead of their time.
    bad = {check.name: check for check in found.checks if check.status != "ok" and "clock" not in check.name}
    assert bad.keys() == {"held runs"}
    assert bad["held runs"].examples[0].startswith("pay ")
    assert {"engine", "sync mode", "file system", "chain", "clock", "leases", "stuck runs", "code"} <= {
        check.name for check in found.checks
    }


def test_runs_of_dead_workers_and_overdue_runs_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    kill_process(path, "repeat")
    with open_read_only(str(path)) as store:
        found = checks(store)
        assert found["workers"].observation == "0 workers alive, 1 lost (did not shut down)"
        assert found["leases"].status == "warn"
        assert found["leases"].observation == "1 run is RUNNING although its worker is gone"
        assert found["leases"].examples[0].startswith("victim.repeat ")
    slow = oncemore.Policy("slow", schedule=oncemore.backoff.fixed(100, 200), jitter=oncemore.Jitter("none"))

    @oncemore.step(effect="idempotent", name="late", policy=slow)
    def late() -> None:
        raise ConnectionResetError("first")

    with oncemore.open(path), pytest.raises(oncemore.Deferred):
        late()
    with open_read_only(str(path)) as store:
        assert checks(store)["stuck runs"].observation == "1 run waits for its time, none overdue"
        monkeypatch.setattr(store, "now", lambda: time.time() + 1000.0)
        stuck = checks(store)["stuck runs"]
        assert (stuck.status, stuck.examples[0][:5]) == ("warn", "late ")
        assert "1 run has been due for up to" in stuck.observation


def test_a_worker_that_is_alive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    @oncemore.step(effect="pure", name="looks")
    def looks() -> list[str]:
        with open_read_only(str(path)) as store:
            found = checks(store)
            assert found["leases"].observation == "1 run is RUNNING, all under a live lease"
            return list(found["workers"].examples)

    with oncemore.open(path):
        (worker,) = looks()
    assert f"process {os.getpid()}" in worker


def test_wrong_clocks_are_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_read_only(str(path)) as store:
        real = store.now
        monkeypatch.setattr(store, "now", lambda: real() + 60.0)
        found = checks(store)["clock"]
        assert found.status == "warn"
        assert "ahead of this machine's" in found.observation
        monkeypatch.setattr(store, "now", lambda: real() - 6000.0)
        assert "behind this machine's" in checks(store)["clock"].observation
        assert checks(store)["clock of the log"].status == "warn"
        monkeypatch.setattr(store, "now", lambda: real() - 7000.0)
        assert "events" not in checks(store)


def test_a_lease_that_lasts_too_long_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    @oncemore.step(effect="pure", name="quick")
    def quick() -> None:
        pass

    with FakeClock() as clock:
        engine = oncemore.open(path)
        clock.advance(5000)
        quick.bind(engine)()
        with open_read_only(str(path)) as store:
            assert checks(store)["clocks of workers"].observation == "1 lease lasts too long"
        engine.close()


def test_overdue_events_are_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_read_only(str(path)) as store:
        assert "events" not in checks(store)
        monkeypatch.setattr(store, "now", lambda: time.time() + 1000.0)
        assert checks(store)["events"].observation.startswith("1 event has waited")


def test_steps_that_no_module_defines_are_reported(store: Store) -> None:
    assert checks(store, ["pay", "polite"])["code"].status == "ok"
    lost = checks(store, ["pay"])["code"]
    assert (lost.status, lost.observation) == ("warn", "no named module defines polite")
    assert lost.examples[0].startswith("polite ")
    empty = MemoryStore()
    assert "code" not in checks(empty)


def test_exposed_files_full_disks_and_large_wals_are_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.chmod(0o644)
    monkeypatch.setattr(store_checks, "LOW_DISK_BYTES", 1 << 60)
    monkeypatch.setattr(store_checks, "LARGE_WAL_BYTES", -1)
    with open_read_only(str(path)) as store:
        found = checks(store)
    assert found["rights"].advice.startswith("chmod 600")
    assert "free some space" in found["file system"].advice
    assert found["size"].status == "warn"


def test_a_file_in_another_mode_is_bad(path: Path) -> None:
    change(path, "PRAGMA journal_mode=DELETE")
    with open_read_only(str(path)) as store:
        found = checks(store)["sync mode"]
    assert (found.status, found.observation) == ("bad", "the journal mode is delete, not wal")


def test_a_server_that_may_lose_entries_is_bad() -> None:
    class Weak(MemoryStore):
        def describe_store(self) -> StoreFacts:
            return StoreFacts(
                "x", "y", "power loss can take away what was acknowledged", ("no synchronous standby: z",)
            )

    found = checks(Weak())
    assert found["sync mode"].status == "bad"
    assert found["standby"].status == "warn"


@pytest.mark.req("WAL-12")
def test_a_flipped_byte_is_found_with_its_number_quickly_and_in_the_whole_log(path: Path) -> None:
    connection = apsw.Connection(str(path))
    ((body,),) = connection.execute("SELECT body FROM log WHERE seq=11")
    flipped = body[:40] + bytes([body[40] ^ 1]) + body[41:]
    connection.execute("UPDATE log SET body=? WHERE seq=11", (flipped,))
    connection.close()
    with open_read_only(str(path)) as store:
        chain = checks(store)["chain"]
        assert chain.status == "bad"
        assert "entry 11 (run/" in chain.observation
        assert "was altered" in chain.observation
        check, found = check_rebuild(store)
        assert (check.status, found) == ("bad", None)
        assert "entry 11 (run/" in check.observation


def test_heads_are_rebuilt_compared_and_repaired_only_on_request(path: Path) -> None:
    with open_read_only(str(path)) as store:
        check, _ = check_rebuild(store)
        assert (check.status, check.observation) == ("ok", "48 entries, 17 heads compared, all equal")
    change(path, "DELETE FROM head WHERE step='flaky'", "UPDATE head SET state='PENDING' WHERE step='pay'")
    with open_read_only(str(path)) as store:
        check, found = check_rebuild(store)
        assert check.status == "bad"
        assert check.observation.endswith("2 heads are wrong")
        assert "--rebuild --write" in check.advice
        assert found is not None
        with pytest.raises(StoreError, match="opened read-only"):
            repair_heads(store, found)
    with open_for_repair(str(path)) as store:
        assert repair_heads(store, found) == 2
    with open_read_only(str(path)) as store:
        assert check_rebuild(store)[0].status == "ok"
    change(path, "DELETE FROM log WHERE seq=(SELECT seq FROM head WHERE step='chart')")
    with open_read_only(str(path)) as store:
        check, _ = check_rebuild(store)
        assert "the log was truncated" in check.advice


# Looking.


@pytest.mark.req("REPLAY-5")
def test_reading_changes_no_byte(path: Path) -> None:
    def bytes_of() -> dict[str, bytes]:
        kept = sorted(path.parent.rglob("*"))
        files = [file for file in kept if file.is_file() and "-shm" not in file.name]
        return {str(file): data for file in files if (data := file.read_bytes())}  # an empty one says nothing

    before = bytes_of()
    with open_read_only(str(path)) as store:
        checks(store)
        check_rebuild(store)
        judge_store(store, artifact_store_of(str(path)))
        assert replay_all(store).all_agree
        assert replay_window(store, 0.0, 9e9).all_agree
        for row in list_runs(store, RunFilter()):
            load_timeline(store, find_run(store, row.run_id))
        LogTailer(store, EntryFilter()).read_last_lines(100)
    assert bytes_of() == before


def test_a_read_only_store_refuses_writes(path: Path) -> None:
    store = ReadOnlySqliteStore(path)
    for use in (
        lambda: store.append(Batch(())),
        lambda: store.open_maintenance().prune_bodies({"run/a": 1}),
        lambda: store.open_maintenance().drop_entities({"run/a": 1}),
        lambda: store.open_maintenance().replace_heads([], 1),
        lambda: store.register_worker("me"),
    ):
        with pytest.raises(StoreError, match="nothing is written"):
            use()
    store.close()


def test_live_workers_are_found_without_taking_their_locks(tmp_path: Path) -> None:
    from oncemore.log.sqlite.store import SqliteStore

    path = tmp_path / "log.db"
    writer = SqliteStore(path)
    here = writer.register_worker("me")
    looks = ReadOnlySqliteStore(path)
    assert not looks.is_worker_gone("me"), "our own is never opened a second time"
    assert looks.is_worker_gone("nobody")
    child = os.fork()
    if not child:  # pragma: no cover - another process asks
        os._exit(0 if not ReadOnlySqliteStore(path).is_worker_gone("me") else 1)
    assert os.waitpid(child, 0)[1] == 0
    here.close()
    assert looks.is_worker_gone("me")
    left = path.with_name("log.db-workers") / "dead"
    left.touch()
    assert looks.is_worker_gone("dead")
    assert left.exists(), "nothing is tidied up"
    left.chmod(0)
    looks.close()
    writer.close()


def test_a_missing_store_is_never_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, told in (
        (str(tmp_path / "no.db"), r"there is no store at .*no\.db; name one with --store"),
        (str(tmp_path), "there is no store at"),
        ("memory:", "a store inside one process"),
        ("redis://x", "redis:// is not a store"),
    ):
        with pytest.raises(UsageError, match=told), open_read_only(url):
            pass
    other = tmp_path / "other.db"
    change(other, "CREATE TABLE t(x)")
    with pytest.raises(StoreError, match="not a store of oncemore"), open_read_only(str(other)):
        pass
    (tmp_path / "text.db").write_text("hello, this is no database at all" * 50)
    with pytest.raises(StoreError, match="not a store"), open_read_only(str(tmp_path / "text.db")):
        pass
    with pytest.raises(StoreError, match="there is no store here"):
        ReadOnlySqliteStore(tmp_path / "gone.db")
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "env.db"))
    with pytest.raises(UsageError, match=r"no store at .*env\.db"), open_read_only():
        pass
    monkeypatch.delenv("ONCEMORE_STORE")
    with pytest.raises(UsageError, match=r"no store at .*\.oncemore/log\.db"), open_read_only():
        pass
    assert not (tmp_path / ".oncemore").exists()


def test_a_store_of_a_newer_version_is_refused(path: Path) -> None:
    change(path, "UPDATE meta SET value=99 WHERE name='format'")
    with (
        pytest.raises(StoreError, match="format 99, which a newer oncemore wrote"),
        open_read_only(str(path)),
    ):
        pass


# Health.


@pytest.mark.req("TEST-6")
def test_the_four_criteria_are_judged_and_each_can_fail(path: Path, seen: Path) -> None:
    with open_read_only(str(path)) as store:
        found = judge_store(store, artifact_store_of(str(path)))
        assert found.healthy
        assert [one.number for one in found.criteria] == [1, 2, 3, 4]
        assert "1 artifacts read and verified" in found.criteria[0].observation
        assert "not read" in judge_store(store).criteria[0].observation
    change(path, "UPDATE head SET state='PENDING' WHERE step='pay'")
    (artifact,) = (file for file in path.parent.joinpath("artifacts").rglob("*") if file.stat().st_size == 20)
    artifact.chmod(0o600)
    artifact.write_bytes(b"chart of somewhere.\n")
    with open_read_only(str(path)) as store:
        found = judge_store(store, artifact_store_of(str(path)))
    assert [one.holds for one in found.criteria] == [False, False, True, True]
    assert not found.healthy
    assert found.criteria[0].examples == ("chart.txt of chart: altered",)
    change(path, "UPDATE log SET body='{}' WHERE seq=5")
    with open_read_only(str(path)) as store:
        found = judge_store(store)
    assert [one.holds for one in found.criteria] == [False] * 4
    assert all("entry 5" in one.observation for one in found.criteria)


def test_a_recomputed_run_with_another_result_is_unhealthy(tmp_path: Path) -> None:
    drawn = [1, 2]

    @oncemore.step(effect="pure", name="draws")
    def draws(day: str) -> int:
        return drawn.pop()

    path = tmp_path / "log.db"
    with oncemore.open(path) as engine:
        draws("a")
        entity = f"run/{draws.key('a')}"
        # As a bug would do it: the finished run is begun anew under the same configuration.
        head = engine.store.load_head(entity)
        assert head is not None
        from oncemore.log.entry_codec import build_write, decode_head
        from oncemore.log.record import RecordChange

        run = decode_head(head.head)
        anew = run._replace(
            state="RUNNING",
            run_number=2,
            attempt=2,
            attempt_count=1,
            fence=2,
            run_id=run.run_id[:-1] + ("0" if run.run_id[-1] != "0" else "1"),
        )
        engine.store.append(
            Batch(
                (
                    build_write(
                        entity, 2, head.hash, RecordChange(("PENDING", "RUNNING", "INTENT"), run, anew), 0.0
                    ),
                )
            )
        ).wait()
        claim = engine.store.load_head(entity)
        assert claim is not None
        over = anew._replace(state="COMPLETE", commit_version=4)
        commit = RecordChange(("COMMIT", "COMPLETE"), anew, over, {"result": 99})
        engine.store.append(Batch((build_write(entity, 3, claim.hash, commit, 0.0),))).wait()
    with open_read_only(str(path)) as store:
        found = judge_store(store)
    assert [one.holds for one in found.criteria] == [False, True, False, True]
    assert found.criteria[2].examples[0].startswith("draws ")
    assert "1 keys computed again" in found.criteria[2].observation


def test_a_decision_that_its_proof_does_not_explain_is_unhealthy(store: Store) -> None:
    from tests.queries.forge import entity_of, forge_store
    from tests.queries.test_replay import proof

    entity = entity_of(store, "wrong")
    found = judge_store(forge_store(store, entity, lambda h, b: proof(b, sentence="because.")))
    assert not found.criteria[3].holds
    assert "wrong" in found.criteria[3].examples[0]
    missing = judge_store(forge_store(store, entity, lambda h, b: b.pop("proof", None)))
    assert not missing.criteria[3].holds


def test_a_quarantined_run_is_explained_by_its_proof(tmp_path: Path) -> None:
    @oncemore.step(effect="idempotent", name="judge")
    def judge(order: str) -> str:
        raise oncemore.NeedsReview("AMBIGUOUS_NAME")

    with oncemore.open(tmp_path / "log.db") as engine:
        with pytest.raises(oncemore.Quarantined):
            judge("A-1")
        found = judge_store(engine.store)
    assert found.healthy, found
    assert "1 decisions computed again" in found.criteria[3].observation


WRITES = {
    "append": (Batch(()),),
    "prune_bodies": ({},),
    "drop_entities": ({},),
    "replace_heads": ((), 0),
    "import_entries": ((), ()),
    "register_worker": ("w",),
}


def test_nothing_is_written_to_a_store_opened_for_reading(path: Path) -> None:
    with open_read_only(str(path)) as store:
        for name, told in WRITES.items():
            with pytest.raises(StoreError, match=r"log\.db: the store was opened read-only; "):
                getattr(store if hasattr(store, name) else store.open_maintenance(), name)(*told)
