"""Heads can be thrown away and made anew; what is wrong with one is found, named and put right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest
from msgspec.json import decode, encode

import oncemore
from oncemore.errors import StoreError
from oncemore.log.memory import MemoryStore
from oncemore.log.sqlite.read_only import LookedAt
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import Batch, Head, Query, Store
from oncemore.maintenance import rebuild
from oncemore.maintenance.rebuild import Rebuilt, Wrong, mend, rebuilt_head
from oncemore.testing import store_contract
from tests.looking.forge import entity_of
from tests.looking.test_story import killed
from tests.looking.victim import repeat

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.log.record import Run


def change(path: Path, *statements: str) -> None:
    """Change a store's file behind its back."""
    connection = apsw.Connection(str(path))
    for sql in statements:
        connection.execute(sql)
    connection.close()


def rebuilt(path: Path) -> Rebuilt:
    store = SqliteStore(path)
    try:
        return rebuild.rebuild(store)
    finally:
        store.close()


def told(found: Rebuilt) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.what, one.fields) for one in found.wrong]


def mended(path: Path, found: Rebuilt) -> int:
    store = SqliteStore(path)
    try:
        return mend(store, found)
    finally:
        store.close()


@pytest.mark.parametrize("page", [1, 3, 2_000])
def test_heads_that_follow_from_the_log_are_equal(
    path: Path, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild, "PAGE", page)
    steps: list[tuple[int, int]] = []
    store = SqliteStore(path)
    found = rebuild.rebuild(store, lambda done, whole: steps.append((done, whole)))
    store.close()
    assert found.wrong == ()
    assert found.entries == found.upto == steps[-1][0] == steps[-1][1]
    assert found.heads == 17
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def known(head: Head) -> Head:
    """A head without what only its worker knew: whether one that ended has left something."""
    return head._replace(by=head.by._replace(due=None)) if head.by.kind == "worker" else head


@pytest.mark.req("WAL-1")
def test_all_heads_can_be_thrown_away_and_made_anew(path: Path) -> None:
    store = SqliteStore(path)
    kinds = ("run", "worker", "event", "artifact", "policy")
    before = [head for kind in kinds for head in store.heads(Query(kind))]
    store.close()
    change(path, "DELETE FROM head")
    found = rebuilt(path)
    assert told(found) == [("missing", ())] * len(before)
    assert mended(path, found) == len(before)
    assert told(rebuilt(path)) == []
    store = SqliteStore(path)
    after = [head for kind in kinds for head in store.heads(Query(kind))]
    assert list(map(known, after)) == list(map(known, before))
    store.close()
    with oncemore.open(path):
        from tests.looking.work import squared

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
def test_a_wrong_head_is_named_and_put_right(path: Path, sql: str, what: tuple[str, tuple[str, ...]]) -> None:
    change(path, sql)
    found = rebuilt(path)
    assert told(found) == [what]
    assert mended(path, found) == 1
    assert told(rebuilt(path)) == []


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM log WHERE seq=(SELECT seq FROM head WHERE step='halves')",
        "DELETE FROM log WHERE entity=(SELECT entity FROM head WHERE step='pay')",
        "DELETE FROM log WHERE seq>=(SELECT min(log.seq) FROM log JOIN head USING (entity) WHERE step='pay')",
    ],
    ids=["its last entry", "all of its entries", "the end of the log"],
)
def test_entries_that_were_cut_out_are_missed_and_cannot_be_made_up(path: Path, sql: str) -> None:
    change(path, sql)
    found = rebuilt(path)
    assert ("ahead", ("version",)) in told(found)
    assert all(one.right is None for one in found.wrong if one.what == "ahead")
    assert mended(path, found) == sum(one.right is not None for one in found.wrong)


@pytest.mark.req("WAL-12")
def test_an_altered_entry_stops_it_with_its_number(path: Path) -> None:
    change(path, "UPDATE log SET header=replace(header, 'INTENT', 'INTEND') WHERE seq=10")
    with pytest.raises(StoreError, match=r"entry 10 \(run/.*\) was altered"):
        rebuilt(path)


def test_a_head_of_a_younger_kind_is_missing_fields_and_equal_all_the_same(path: Path) -> None:
    # An older oncemore wrote fewer fields; those that it did not know have their defaults.
    connection = apsw.Connection(str(path))
    ((head,),) = connection.execute("SELECT head FROM head WHERE step='polite'")
    older = encode(decode(head)[:-3])
    connection.execute("UPDATE head SET head=? WHERE step='polite'", (older,))
    connection.close()
    assert told(rebuilt(path)) == []


def test_others_may_go_on_writing_meanwhile(path: Path) -> None:
    writer = SqliteStore(path)
    entity = entity_of(writer, "polite")

    class Busy(SqliteStore):
        written = 0

        def heads(self, query: Query):  # type: ignore[no-untyped-def]
            if not Busy.written:
                Busy.written = 1
                for one in (entity, "run/new"):
                    head = writer.head(one)
                    before = head or None
                    write = store_contract.write(one, before, kind="run", state="RUNNING")
                    writer.append(Batch((write,))).wait()
            return super().heads(query)

    store = Busy(path)
    found = rebuild.rebuild(store)
    assert found.wrong == ()
    assert store.changed(0, 0.0) == found.upto + 2
    store.close()
    writer.close()


def test_one_head_is_compared_alone(path: Path) -> None:
    store = SqliteStore(path)
    entity = entity_of(store, "flaky")
    known: dict[str, tuple[int, bytes, Run]] = {}
    rebuild.verify(store.entries(entity), known)
    version, digest, state = known[entity]
    assert rebuilt_head(store, entity, known[entity]) == ()
    assert rebuilt_head(store, "run/nobody", None) == ()
    assert rebuilt_head(store, entity, None)[0].what == "ahead"
    assert rebuilt_head(store, entity, (version - 1, digest, state)) == (), "somebody has written since"
    store.close()


def test_memory_is_mended_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    store, parts = MemoryStore(), list[int]()
    heads = []
    for n in range(5):
        store_contract.stored(store_contract.put(store, store_contract.write(f"run/{n}", None)))
        head = store.head(f"run/{n}")
        assert head is not None
        heads.append(head)
    monkeypatch.setattr(rebuild, "MENDED", 2)

    class Counting(MemoryStore):
        def mend(self, heads: list[Head], upto: int) -> int:  # type: ignore[override]
            parts.append(len(heads))
            return len(heads)

    wrong = tuple(Wrong(head.entity, "missing", (), head) for head in heads)
    assert mend(Counting(), Rebuilt(5, 5, 5, (*wrong, Wrong("run/x", "ahead", (), None)))) == 5
    assert parts == [2, 2, 1]


def test_a_repair_that_is_cut_off_has_done_whole_parts_and_is_gone_on_with(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(path, "DELETE FROM head WHERE kind='run'")
    found = rebuilt(path)
    monkeypatch.setattr(rebuild, "MENDED", 4)

    class Dies(SqliteStore):
        parts = 0

        def mend(self, heads: list[Head], upto: int) -> int:  # type: ignore[override]
            self.parts += 1
            if self.parts == 3:
                raise KeyboardInterrupt
            return super().mend(heads, upto)

    store = Dies(path)
    with pytest.raises(KeyboardInterrupt):
        mend(store, found)
    store.close()
    left = rebuilt(path)
    assert len(left.wrong) == len(found.wrong) - 8
    assert mended(path, left) == len(left.wrong)
    assert told(rebuilt(path)) == []


def test_a_write_that_was_torn_off_is_forgotten_whole(path: Path) -> None:
    # The last frames of SQLite's write-ahead log are cut as a power loss may leave them.
    store = SqliteStore(path)
    for n in range(3):
        store_contract.stored(store_contract.put(store, store_contract.write(f"run/{n}", None)))
    torn = path.with_name("torn.db")
    torn.write_bytes(path.read_bytes())
    log = path.with_name("log.db-wal").read_bytes()
    torn.with_name("torn.db-wal").write_bytes(log[:-100])
    last = store.changed(0, 0.0)
    store.close()
    looks = LookedAt(torn)
    assert looks.changed(0, 0.0) < last
    heads = {head.entity: head.version for kind in ("run", "worker") for head in looks.heads(Query(kind))}
    entries = [
        entry for entry in looks.entries() if entry.header[:1] == b"{"
    ]  # those of the contract are no JSON
    looks.close()
    assert heads.keys() >= {entry.entity for entry in entries if entry.entity[:4] in ("run/", "work")}


def test_the_store_is_any_store(seen: Path) -> None:
    store: Store = MemoryStore()
    assert rebuild.rebuild(store) == Rebuilt(0, 0, 0, ())


def test_a_dead_process_that_a_worker_has_seen_to_be_gone_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    killed(path, "repeat")
    with oncemore.open(path) as engine:
        repeat("2026-11-16")
        oncemore.Worker(engine, [repeat]).run_until_idle()
        assert [head.by.due for head in engine.store.heads(Query("worker", state="GONE"))] == [None]
    assert rebuilt(path).wrong == ()
