"""The doctor sees what is wrong with a store and says what to do; health judges it by four criteria."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import apsw
import pytest

import oncemore
from oncemore.errors import StoreError, UsageError
from oncemore.log.memory import MemoryStore
from oncemore.log.sqlite.read_only import LookedAt
from oncemore.log.store import Batch, Facts
from oncemore.maintenance.rebuild import mend
from oncemore.queries import doctor
from oncemore.queries.doctor import Check, rebuilt
from oncemore.queries.health import health
from oncemore.queries.open_engine import looked_at, shelf_of, written_to
from oncemore.queries.replay import whole, window
from oncemore.queries.run_timeline import story
from oncemore.queries.runs import Asked, find, runs
from oncemore.queries.tail import Tail, Wanted
from oncemore.testing import FakeClock, store_contract
from tests.looking.test_rebuild import change
from tests.looking.test_story import killed

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.store import Store


def checks(store: Store, known: list[str] | None = None) -> dict[str, Check]:
    return {check.name: check for check in doctor.checkup(store, known).checks}


def test_a_store_in_order_is_ok_but_for_who_waits_for_a_person(store: Store) -> None:
    found = doctor.checkup(store)
    assert found.worst == "warn"
    # Waits of its making ended at once, so that some entries are ahead of their time.
    bad = {check.name: check for check in found.checks if check.status != "ok" and "clock" not in check.name}
    assert bad.keys() == {"held runs"}
    assert bad["held runs"].examples[0].startswith("pay ")
    assert {"engine", "sync mode", "file system", "chain", "clock", "leases", "stuck runs", "code"} <= {
        check.name for check in found.checks
    }


def test_runs_of_dead_workers_and_overdue_ones_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    killed(path, "repeat")
    with looked_at(str(path)) as store:
        found = checks(store)
        assert found["workers"].seen == "0 workers alive, 1 gone without a word"
        assert found["leases"].status == "warn"
        assert found["leases"].seen == "1 run is RUNNING whose worker is gone"
        assert found["leases"].examples[0].startswith("victim.repeat ")
    slow = oncemore.Policy("slow", schedule=oncemore.fixed(100, 200), jitter=oncemore.Jitter("none"))

    @oncemore.step(effect="idempotent", name="late", policy=slow)
    def late() -> None:
        raise ConnectionResetError("first")

    with oncemore.open(path), pytest.raises(oncemore.Parked):
        late()
    with looked_at(str(path)) as store:
        assert checks(store)["stuck runs"].seen == "1 run waits for its time, none overdue"
        monkeypatch.setattr(store, "now", lambda: time.time() + 1000.0)
        stuck = checks(store)["stuck runs"]
        assert (stuck.status, stuck.examples[0][:5]) == ("warn", "late ")
        assert "1 run has been due for up to" in stuck.seen


def test_a_worker_that_is_alive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    @oncemore.step(effect="pure", name="looks")
    def looks() -> list[str]:
        with looked_at(str(path)) as store:
            found = checks(store)
            assert found["leases"].seen == "1 run is RUNNING, all of them held"
            return list(found["workers"].examples)

    with oncemore.open(path):
        (worker,) = looks()
    assert f"process {os.getpid()}" in worker


def test_clocks_that_are_off_are_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with looked_at(str(path)) as store:
        real = store.now
        monkeypatch.setattr(store, "now", lambda: real() + 60.0)
        found = checks(store)["clock"]
        assert found.status == "warn"
        assert "ahead of this machine's" in found.seen
        monkeypatch.setattr(store, "now", lambda: real() - 6000.0)
        assert "behind this machine's" in checks(store)["clock"].seen
        assert checks(store)["clock of the log"].status == "warn"
        monkeypatch.setattr(store, "now", lambda: real() - 7000.0)
        assert "events" not in checks(store)


def test_a_lease_that_lasts_too_long_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    @oncemore.step(effect="pure", name="quick")
    def quick() -> None:
        pass

    with FakeClock() as clock:
        engine = oncemore.open(path)
        clock.advance(5000)
        quick.on(engine)()
        with looked_at(str(path)) as store:
            assert checks(store)["clocks of workers"].seen == "1 lease lasts too long"
        engine.close()


def test_events_that_nobody_takes_are_seen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with looked_at(str(path)) as store:
        assert "events" not in checks(store)
        monkeypatch.setattr(store, "now", lambda: time.time() + 1000.0)
        assert checks(store)["events"].seen.startswith("1 event has waited")


def test_code_that_nobody_knows_is_seen(store: Store) -> None:
    assert checks(store, ["pay", "polite"])["code"].status == "ok"
    lost = checks(store, ["pay"])["code"]
    assert (lost.status, lost.seen) == ("warn", "no module that was named knows polite")
    assert lost.examples[0].startswith("polite ")
    empty = MemoryStore()
    assert "code" not in checks(empty)


def test_files_of_others_full_disks_and_long_logs_are_seen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.chmod(0o644)
    monkeypatch.setattr(doctor, "LOW_DISK", 1 << 60)
    monkeypatch.setattr(doctor, "LARGE_LOG", -1)
    with looked_at(str(path)) as store:
        found = checks(store)
    assert found["rights"].next.startswith("chmod 600")
    assert "make room" in found["file system"].next
    assert found["size"].status == "warn"


def test_a_file_in_another_mode_is_bad(path: Path) -> None:
    change(path, "PRAGMA journal_mode=DELETE")
    with looked_at(str(path)) as store:
        found = checks(store)["sync mode"]
    assert (found.status, found.seen) == ("bad", "the journal mode is delete, not wal")


def test_a_server_that_forgets_is_bad() -> None:
    class Weak(MemoryStore):
        def facts(self) -> Facts:
            return Facts(
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
    with looked_at(str(path)) as store:
        chain = checks(store)["chain"]
        assert chain.status == "bad"
        assert "entry 11 (run/" in chain.seen
        assert "was altered" in chain.seen
        check, found = rebuilt(store)
        assert (check.status, found) == ("bad", None)
        assert "entry 11 (run/" in check.seen


def test_heads_are_rebuilt_compared_and_put_right_only_when_asked(path: Path) -> None:
    with looked_at(str(path)) as store:
        check, _ = rebuilt(store)
        assert (check.status, check.seen) == ("ok", "48 entries, 17 heads compared, all equal")
    change(path, "DELETE FROM head WHERE step='flaky'", "UPDATE head SET state='PENDING' WHERE step='pay'")
    with looked_at(str(path)) as store:
        check, found = rebuilt(store)
        assert check.status == "bad"
        assert check.seen.endswith("2 heads are wrong")
        assert "--rebuild --write" in check.next
        assert found is not None
        with pytest.raises(StoreError, match="opened to be looked at"):
            mend(store, found)
    with written_to(str(path)) as store:
        assert mend(store, found) == 2
    with looked_at(str(path)) as store:
        assert rebuilt(store)[0].status == "ok"
    change(path, "DELETE FROM log WHERE seq=(SELECT seq FROM head WHERE step='chart')")
    with looked_at(str(path)) as store:
        check, _ = rebuilt(store)
        assert "the log was cut" in check.next


# Looking.


@pytest.mark.req("REPLAY-5")
def test_looking_changes_not_one_byte(path: Path) -> None:
    def bytes_of() -> dict[str, bytes]:
        kept = sorted(path.parent.rglob("*"))
        files = [file for file in kept if file.is_file() and "-shm" not in file.name]
        return {str(file): data for file in files if (data := file.read_bytes())}  # an empty one says nothing

    before = bytes_of()
    with looked_at(str(path)) as store:
        checks(store)
        rebuilt(store)
        health(store, shelf_of(str(path)))
        assert whole(store).agrees
        assert window(store, 0.0, 9e9).agrees
        for row in runs(store, Asked()):
            story(store, find(store, row.run_id))
        Tail(store, Wanted()).last(100)
    assert bytes_of() == before


def test_what_would_write_is_refused(path: Path) -> None:
    store = LookedAt(path)
    for use in (
        lambda: store.append(store_contract.Batch(())),
        lambda: store.prune({"run/a": 1}),
        lambda: store.drop({"run/a": 1}),
        lambda: store.mend([], 1),
        lambda: store.enter("me"),
    ):
        with pytest.raises(StoreError, match="nothing is written"):
            use()
    store.close()


def test_who_is_there_is_asked_without_taking_anything(tmp_path: Path) -> None:
    from oncemore.log.sqlite.store import SqliteStore

    path = tmp_path / "log.db"
    writer = SqliteStore(path)
    here = writer.enter("me")
    looks = LookedAt(path)
    assert not looks.gone("me"), "our own is never opened a second time"
    assert looks.gone("nobody")
    child = os.fork()
    if not child:  # pragma: no cover - another process asks
        os._exit(0 if not LookedAt(path).gone("me") else 1)
    assert os.waitpid(child, 0)[1] == 0
    here.close()
    assert looks.gone("me")
    left = path.with_name("log.db-workers") / "dead"
    left.touch()
    assert looks.gone("dead")
    assert left.exists(), "nothing is tidied up"
    left.chmod(0)
    looks.close()
    writer.close()


def test_a_store_that_is_not_there_is_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, told in (
        (str(tmp_path / "no.db"), r"there is no store at .*no\.db; name one with --store"),
        (str(tmp_path), "there is no store at"),
        ("memory:", "ends with its process"),
        ("redis://x", "redis:// is no store"),
    ):
        with pytest.raises(UsageError, match=told), looked_at(url):
            pass
    other = tmp_path / "other.db"
    change(other, "CREATE TABLE t(x)")
    with pytest.raises(StoreError, match="not a store of oncemore"), looked_at(str(other)):
        pass
    (tmp_path / "text.db").write_text("hello, this is no database at all" * 50)
    with pytest.raises(StoreError, match="not a store"), looked_at(str(tmp_path / "text.db")):
        pass
    with pytest.raises(StoreError, match="there is no store here"):
        LookedAt(tmp_path / "gone.db")
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "env.db"))
    with pytest.raises(UsageError, match=r"no store at .*env\.db"), looked_at():
        pass
    monkeypatch.delenv("ONCEMORE_STORE")
    with pytest.raises(UsageError, match=r"no store at .*\.oncemore/log\.db"), looked_at():
        pass
    assert not (tmp_path / ".oncemore").exists()


def test_a_store_of_the_future_is_refused(path: Path) -> None:
    change(path, "UPDATE meta SET value=99 WHERE name='format'")
    with pytest.raises(StoreError, match="format 99, which a newer oncemore wrote"), looked_at(str(path)):
        pass


# Health.


@pytest.mark.req("TEST-6")
def test_the_four_criteria_are_judged_and_each_can_fail(path: Path, seen: Path) -> None:
    with looked_at(str(path)) as store:
        found = health(store, shelf_of(str(path)))
        assert found.healthy
        assert [one.number for one in found.criteria] == [1, 2, 3, 4]
        assert "1 artifacts read and verified" in found.criteria[0].seen
        assert "not read" in health(store).criteria[0].seen
    change(path, "UPDATE head SET state='PENDING' WHERE step='pay'")
    (artifact,) = (file for file in path.parent.joinpath("artifacts").rglob("*") if file.stat().st_size == 20)
    artifact.chmod(0o600)
    artifact.write_bytes(b"chart of somewhere.\n")
    with looked_at(str(path)) as store:
        found = health(store, shelf_of(str(path)))
    assert [one.holds for one in found.criteria] == [False, False, True, True]
    assert not found.healthy
    assert found.criteria[0].examples == ("chart.txt of chart: altered",)
    change(path, "UPDATE log SET body='{}' WHERE seq=5")
    with looked_at(str(path)) as store:
        found = health(store)
    assert [one.holds for one in found.criteria] == [False] * 4
    assert all("entry 5" in one.seen for one in found.criteria)


def test_work_that_is_computed_again_and_leaves_something_else_is_unhealthy(tmp_path: Path) -> None:
    drawn = [1, 2]

    @oncemore.step(effect="pure", name="draws")
    def draws(day: str) -> int:
        return drawn.pop()

    path = tmp_path / "log.db"
    with oncemore.open(path) as engine:
        draws("a")
        entity = f"run/{draws.key('a')}"
        # As a bug would do it: the finished run is begun anew under the same configuration.
        head = engine.store.head(entity)
        assert head is not None
        from oncemore.log.entry_codec import head_of
        from oncemore.log.head_access import write_of
        from oncemore.log.record import Change

        run = head_of(head.head)
        anew = run._replace(
            state="RUNNING",
            runs=2,
            attempt=2,
            tried=1,
            fence=2,
            run_id=run.run_id[:-1] + ("0" if run.run_id[-1] != "0" else "1"),
        )
        engine.store.append(
            store_contract.Batch(
                (write_of(entity, 2, head.hash, Change(("PENDING", "RUNNING", "INTENT"), run, anew), 0.0),)
            )
        ).wait()
        claim = engine.store.head(entity)
        assert claim is not None
        over = anew._replace(state="COMPLETE", committed=4)
        commit = Change(("COMMIT", "COMPLETE"), anew, over, {"result": 99})
        engine.store.append(store_contract.Batch((write_of(entity, 3, claim.hash, commit, 0.0),))).wait()
    with looked_at(str(path)) as store:
        found = health(store)
    assert [one.holds for one in found.criteria] == [False, True, False, True]
    assert found.criteria[2].examples[0].startswith("draws ")
    assert "1 keys computed again" in found.criteria[2].seen


def test_a_decision_that_its_proof_does_not_explain_is_unhealthy(store: Store) -> None:
    from tests.looking.forge import entity_of, forged
    from tests.looking.test_replay import proof

    entity = entity_of(store, "wrong")
    found = health(forged(store, entity, lambda h, b: proof(b, sentence="because.")))
    assert not found.criteria[3].holds
    assert "wrong" in found.criteria[3].examples[0]
    missing = health(forged(store, entity, lambda h, b: b.pop("proof", None)))
    assert not missing.criteria[3].holds


def test_work_that_was_put_into_quarantine_is_explained_by_its_proof(tmp_path: Path) -> None:
    @oncemore.step(effect="idempotent", name="judge")
    def judge(order: str) -> str:
        raise oncemore.NeedsReview("AMBIGUOUS_NAME")

    with oncemore.open(tmp_path / "log.db") as engine:
        with pytest.raises(oncemore.Quarantined):
            judge("A-1")
        found = health(engine.store)
    assert found.healthy, found
    assert "1 decisions computed again" in found.criteria[3].seen


WRITES = {
    "append": (Batch(()),),
    "prune": ({},),
    "drop": ({},),
    "mend": ((), 0),
    "adopt": ((), ()),
    "enter": ("w",),
}


def test_nothing_is_written_to_what_is_only_looked_at(path: Path) -> None:
    with looked_at(str(path)) as store:
        for name, told in WRITES.items():
            with pytest.raises(StoreError, match=r"log\.db: it was opened to be looked at; "):
                getattr(store, name)(*told)
