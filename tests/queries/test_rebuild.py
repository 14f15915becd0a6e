"""Heads can be deleted and rebuilt; wrong heads are found, reported and repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw
import pytest
from msgspec.json import decode, encode

import oncemore
from oncemore.errors import StoreError
from oncemore.log.memory import MemoryStore
from oncemore.log.sqlite import queries
from oncemore.log.sqlite.maintenance import SqliteMaintenance
from oncemore.log.sqlite.store import ReadOnlySqliteStore, SqliteStore
from oncemore.log.store import Batch, Head, HeadQuery, Store
from oncemore.maintenance import rebuild
from oncemore.maintenance.rebuild import HeadMismatch, RebuildReport, check_head, repair_heads
from oncemore.testing import store_contract
from tests.queries.forge import entity_of
from tests.queries.test_run_timeline import kill_process
from tests.queries.victim import repeat

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.record import RunRecord


def change(path: Path, *statements: str) -> None:
    """Change a store's file with another connection."""
    connection = apsw.Connection(str(path))
    for sql in statements:
        connection.execute(sql)
    connection.close()


def rebuild_store(path: Path) -> RebuildReport:
    store = SqliteStore(path)
    try:
        return rebuild.rebuild_heads(store)
    finally:
        store.close()


def told(found: RebuildReport) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.what, one.fields) for one in found.wrong]


def repair_store(path: Path, found: RebuildReport) -> int:
    store = SqliteStore(path)
    try:
        return repair_heads(store, found)
    finally:
        store.close()


@pytest.mark.parametrize("page", [1, 3, 2_000])
def test_heads_that_follow_from_the_log_are_equal(
    path: Path, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "PAGE_SIZE", page)
    steps: list[tuple[int, int]] = []
    store = SqliteStore(path)
    found = rebuild.rebuild_heads(store, lambda done, whole: steps.append((done, whole)))
    store.close()
    assert found.wrong == ()
    assert found.entries == found.upto == steps[-1][0] == steps[-1][1]
    assert found.heads == 17
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def known(head: Head) -> Head:
    """Return a head without the due time of an ended worker, which entries do not hold."""
    return head._replace(by=head.by._replace(due=None)) if head.by.kind == "worker" else head


@pytest.mark.req("WAL-1")
def test_all_heads_can_be_deleted_and_rebuilt(path: Path) -> None:
    store = SqliteStore(path)
    kinds = ("run", "worker", "event", "artifact", "policy")
    before = [head for kind in kinds for head in store.list_heads(HeadQuery(kind))]
    store.close()
    change(path, "DELETE FROM head")
    found = rebuild_store(path)
    assert told(found) == [("missing", ())] * len(before)
    assert repair_store(path, found) == len(before)
    assert told(rebuild_store(path)) == []
    store = SqliteStore(path)
    after = [head for kind in kinds for head in store.list_heads(HeadQuery(kind))]
    assert list(map(known, after)) == list(map(known, before))
    store.close()
    with oncemore.open(path):
        from tests.queries.work import squared

        assert squared(2) == 4


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("UPDATE head SET state='COMPLETE', due=NULL WHERE step='polite'", ("different", ("by",))),
        ("UPDATE head SET hash=zeroblob(32) WHERE step='polite'", ("different", ("hash",))),
        ("UPDATE head SET seq=seq-1 WHERE step='polite'", ("different", ("seq",))),
        ("UPDATE head SET head=zeroblob(3) WHERE step='polite'", ("different", ("head",))),
        (
            "UPDATE head SET head=replace(head, 'SOFT_FAIL', 'HARD_FAIL') WHERE step='polite'",
            ("different", ("state",)),
        ),
        ("UPDATE head SET version=1 WHERE step='polite'", ("behind", ("version",))),
        ("DELETE FROM head WHERE step='polite'", ("missing", ())),
    ],
)
def test_a_wrong_head_is_reported_and_repaired(
    path: Path, sql: str, what: tuple[str, tuple[str, ...]]
) -> None:
    change(path, sql)
    found = rebuild_store(path)
    assert told(found) == [what]
    assert repair_store(path, found) == 1
    assert told(rebuild_store(path)) == []


def test_a_head_without_entries_is_reported_although_its_kind_is_not_known(path: Path) -> None:
    change(
        path,
        "INSERT INTO head SELECT NULL, 'other/x', version, hash, head, 'other', state, due, step, worker, "
        "dataset, (SELECT max(seq) + 5 FROM log) FROM head WHERE step='pay' LIMIT 1",
    )
    found = rebuild_store(path)
    assert [(one.entity, one.what) for one in found.wrong] == [("other/x", "ahead")]


def test_a_head_that_names_the_entry_of_another_entity_is_reported() -> None:
    with oncemore.open("memory:") as engine:
        store: Any = engine.store

        @oncemore.step(effect="pure", name="echo")
        def echo(x: str) -> str:
            return x

        echo.bind(engine)("a")
        (head,) = store.list_heads(HeadQuery("run"))
        store._heads["run/other"] = head._replace(entity="run/other")
        found = rebuild.rebuild_heads(store)
        assert [(one.entity, one.what) for one in found.wrong] == [("run/other", "ahead")]


def test_a_head_that_names_the_entry_of_another_entity_is_reported_on_sqlite(path: Path) -> None:
    change(
        path,
        "INSERT INTO head SELECT NULL, 'run/other', version, hash, head, kind, state, due, step, worker, "
        "dataset, seq FROM head WHERE step='pay' LIMIT 1",
    )
    found = rebuild_store(path)
    assert [(one.entity, one.what) for one in found.wrong] == [("run/other", "ahead")]


@pytest.mark.parametrize("page", [1, 3, 2_000])
@pytest.mark.parametrize("order", ["-id", "id + 1000 * (id % 3)", "id"])
def test_heads_may_come_in_any_order(
    path: Path, order: str, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "PAGE_SIZE", page)
    monkeypatch.setattr(queries, "HEAD_PAGE", 2)
    change(path, f"UPDATE head SET id=100000 + {order}")  # noqa: S608
    found = rebuild_store(path)
    assert (found.wrong, found.heads) == ((), 17)
    change(path, "UPDATE head SET hash=zeroblob(32) WHERE step='polite'")
    assert told(rebuild_store(path)) == [("different", ("hash",))]


def test_an_entity_that_is_deleted_while_its_head_waits_is_not_a_mismatch(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "log.db")
    with oncemore.open(tmp_path / "log.db") as engine:

        @oncemore.step(effect="pure", name="echo")
        def echo(x: int) -> int:
            return x

        for x in range(3):
            echo.bind(engine)(x)
        last = store.list_heads(HeadQuery("run", newest_first=True, limit=1))
        (deleted,) = last
        comparison = rebuild.HeadComparison(store, {}, deleted.seq)
        waiting = next(head for head in comparison._heads if head.entity == deleted.entity)
        comparison._unmatched.append(waiting)
        store.open_maintenance().drop_entities({deleted.entity: deleted.version})
        comparison.finish()
        assert comparison.wrong == []
    store.close()


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM log WHERE seq=(SELECT seq FROM head WHERE step='halves')",
        "DELETE FROM log WHERE entity=(SELECT entity FROM head WHERE step='pay')",
        "DELETE FROM log WHERE seq>=(SELECT min(log.seq) FROM log JOIN head USING (entity) WHERE step='pay')",
    ],
    ids=["its last entry", "all of its entries", "the end of the log"],
)
def test_missing_entries_are_reported_and_cannot_be_rebuilt(path: Path, sql: str) -> None:
    change(path, sql)
    found = rebuild_store(path)
    assert ("ahead", ("version",)) in told(found)
    assert all(one.right is None for one in found.wrong if one.what == "ahead")
    assert repair_store(path, found) == sum(one.right is not None for one in found.wrong)


@pytest.mark.req("WAL-12")
def test_an_altered_entry_stops_the_rebuild_with_its_number(path: Path) -> None:
    change(path, "UPDATE log SET header=replace(header, 'INTENT', 'INTEND') WHERE seq=10")
    with pytest.raises(StoreError, match=r"entry 10 \(run/.*\) was altered"):
        rebuild_store(path)


def test_a_head_of_an_older_version_lacks_fields_and_is_still_equal(path: Path) -> None:
    # An older oncemore wrote fewer fields; those that it did not know have their defaults.
    connection = apsw.Connection(str(path))
    ((head,),) = connection.execute("SELECT head FROM head WHERE step='polite'")
    older = encode(decode(head)[:-3])
    connection.execute("UPDATE head SET head=? WHERE step='polite'", (older,))
    connection.close()
    assert told(rebuild_store(path)) == []


def test_other_processes_may_write_during_a_rebuild(path: Path) -> None:
    writer = SqliteStore(path)
    entity = entity_of(writer, "polite")

    class Busy(SqliteStore):
        written = 0

        def list_heads(self, query: HeadQuery):  # type: ignore[no-untyped-def]
            if not Busy.written:
                Busy.written = 1
                for one in (entity, "run/new"):
                    head = writer.load_head(one)
                    before = head or None
                    write = store_contract.make_write(one, before, kind="run", state="RUNNING")
                    writer.append(Batch((write,))).wait()
            return super().list_heads(query)

    store = Busy(path)
    found = rebuild.rebuild_heads(store)
    assert found.wrong == ()
    assert store.wait_for_change(0, 0.0) == found.upto + 2
    store.close()
    writer.close()


def test_a_single_head_is_compared(path: Path) -> None:
    store = SqliteStore(path)
    entity = entity_of(store, "flaky")
    known: dict[str, tuple[int, bytes, RunRecord, int]] = {}
    rebuild.verify_chain(store.read_entries(entity), known)
    version, digest, state, seq = known[entity]
    assert check_head(store, entity, known[entity]) == ()
    assert check_head(store, "run/nobody", None) == ()
    assert check_head(store, entity, None)[0].what == "ahead"
    assert check_head(store, entity, (version - 1, digest, state, seq)) == (), "somebody has written since"
    store.close()


def test_heads_are_repaired_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    store, parts = MemoryStore(), list[int]()
    heads = []
    for n in range(5):
        store_contract.require_stored(
            store_contract.append_writes(store, store_contract.make_write(f"run/{n}", None))
        )
        head = store.load_head(f"run/{n}")
        assert head is not None
        heads.append(head)
    monkeypatch.setattr(rebuild, "REPAIR_BATCH", 2)

    class Counting(MemoryStore):
        def replace_heads(self, heads: list[Head], upto: int) -> int:  # type: ignore[override]
            parts.append(len(heads))
            return len(heads)

    wrong = tuple(HeadMismatch(head.entity, "missing", (), head) for head in heads)
    assert (
        repair_heads(Counting(), RebuildReport(5, 5, 5, (*wrong, HeadMismatch("run/x", "ahead", (), None))))
        == 5
    )
    assert parts == [2, 2, 1]


def test_an_interrupted_repair_has_done_whole_batches_and_can_be_repeated(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(path, "DELETE FROM head WHERE kind='run'")
    found = rebuild_store(path)
    monkeypatch.setattr(rebuild, "REPAIR_BATCH", 4)

    parts, replace_heads = [0], SqliteMaintenance.replace_heads

    def die_at_third(self: SqliteMaintenance, heads: list[Head], upto: int) -> int:
        parts[0] += 1
        if parts[0] == 3:
            raise KeyboardInterrupt
        return replace_heads(self, heads, upto)

    store = SqliteStore(path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(SqliteMaintenance, "replace_heads", die_at_third)
        repair_heads(store, found)
    store.close()
    left = rebuild_store(path)
    assert len(left.wrong) == len(found.wrong) - 8
    assert repair_store(path, left) == len(left.wrong)
    assert told(rebuild_store(path)) == []


def test_a_torn_write_is_discarded_completely(path: Path) -> None:
    # The last frames of SQLite's write-ahead log are cut as a power loss may leave them.
    store = SqliteStore(path)
    for n in range(3):
        store_contract.require_stored(
            store_contract.append_writes(store, store_contract.make_write(f"run/{n}", None))
        )
    torn = path.with_name("torn.db")
    torn.write_bytes(path.read_bytes())
    log = path.with_name("log.db-wal").read_bytes()
    torn.with_name("torn.db-wal").write_bytes(log[:-100])
    last = store.wait_for_change(0, 0.0)
    store.close()
    looks = ReadOnlySqliteStore(torn)
    assert looks.wait_for_change(0, 0.0) < last
    heads = {
        head.entity: head.version for kind in ("run", "worker") for head in looks.list_heads(HeadQuery(kind))
    }
    entries = [
        entry for entry in looks.read_entries() if entry.header[:1] == b"{"
    ]  # those of the contract are no JSON
    looks.close()
    assert heads.keys() >= {entry.entity for entry in entries if entry.entity[:4] in ("run/", "work")}


def test_a_rebuild_works_on_every_store(seen: Path) -> None:
    store: Store = MemoryStore()
    assert rebuild.rebuild_heads(store) == RebuildReport(0, 0, 0, ())


def test_a_worker_that_was_marked_gone_is_not_a_mismatch(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    kill_process(path, "repeat")
    with oncemore.open(path) as engine:
        repeat("2026-11-16")
        oncemore.Worker(engine, [repeat]).run_until_idle()
        assert [head.by.due for head in engine.store.list_heads(HeadQuery("worker", state="GONE"))] == [None]
    assert rebuild_store(path).wrong == ()
