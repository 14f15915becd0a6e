"""The fast path of PostgreSQL: it stores and refuses as `append` does, and keeps the order."""

from __future__ import annotations

import itertools
import random
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from oncemore.log.postgres import statements
from oncemore.log.postgres import writer as postgres_write
from oncemore.log.postgres.connection import parse_address
from oncemore.log.postgres.store import PostgresStore
from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import append_writes, make_write, read_verified_entries, require_stored
from tests.servers import postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oncemore.log.store import EntryWrite, Head

names = itertools.count()
SWITCH = "switch/s"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    try:
        with postgres.database() as made:
            yield made
    except postgres.NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.fixture
def schema() -> str:
    return f"put_{next(names)}"


@pytest.fixture
def store(url: str, schema: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url, schema)
    yield made
    made.close()


def next_of(store: PostgresStore, entity: str, body: bytes = b"") -> EntryWrite:
    return make_write(entity, store.load_head(entity), body)


def record_statements(patch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the names of the statements that are sent from now on."""
    sent: list[bytes] = []
    original = postgres_write.PostgresWriter._execute_statement

    def _exec(self: Any, connection: Any, name: bytes, values: Sequence[Any]) -> Any:
        sent.append(name)
        return original(self, connection, name, values)

    patch.setattr(postgres_write.PostgresWriter, "_execute_statement", _exec)
    return sent


def test_single_and_grouped_batches_take_the_fast_path_and_refused_ones_append(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = record_statements(monkeypatch)
    require_stored(append_writes(store, make_write("run/a", None)))
    a = store.load_head("run/a")
    require_stored(append_writes(store, next_of(store, "run/a", b"second")))
    assert sent == [statements.PUT_ONE] * 2
    assert append_writes(store, make_write("run/a", a)) == Conflict("run/a", store.load_head("run/a"))
    assert append_writes(store, make_write("run/a", None)) == Conflict("run/a", store.load_head("run/a"))
    assert sent[2:] == [statements.PUT_ONE, statements.APPEND] * 2
    del sent[:]
    fresh = store.load_head("run/a")
    answers = store._writer.store_batches(
        [
            Batch((make_write("run/a", a, b"stale"),)),
            Batch((make_write("run/a", fresh, b"first"),)),
            Batch((make_write("run/a", fresh, b"second of two that want the same"),)),
            Batch((make_write("run/b", None, b"made"),)),
            Batch((make_write("run/b", None, b"made twice"),)),
            Batch((make_write("run/c", None),), sync=False),
            Batch((make_write("run/d", _elsewhere("run/d")),)),
        ]
    )
    assert sent == [statements.PUT_MANY, statements.APPEND]
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds[0] == "Conflict"
    assert sorted(kinds[1:3]) == sorted(kinds[3:5]) == ["Conflict", "Stored"]
    assert kinds[5:] == ["Stored", "Conflict"]
    assert answers[6] == Conflict("run/d", None)
    for entity in ("run/a", "run/b", "run/c"):
        log = read_verified_entries(store, entity)
        head = store.load_head(entity)
        assert head is not None
        assert (head.version, head.hash, head.seq) == (len(log), log[-1].hash, log[-1].seq)
        given = [answer.seqs for answer in answers if isinstance(answer, Stored)]
        assert (log[-1].seq,) in given
    bodies = {entry.body for entry in read_verified_entries(store, "run/b")}
    which = b"made" if kinds[3] == "Stored" else b"made twice"
    assert bodies == {which}, "who was told so is who stands there"


def _elsewhere(entity: str) -> Head:
    """Return the head of an entity that does not exist."""
    from oncemore.log.memory import MemoryStore

    other = MemoryStore()
    append_writes(other, make_write(entity, None))
    head = other.load_head(entity)
    assert head is not None
    return head


def test_a_moved_guard_refuses_only_the_batches_that_have_it(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_stored(append_writes(store, make_write(SWITCH, None)))
    first = Batch((make_write("run/first", None),), {SWITCH: 1})
    sent = record_statements(monkeypatch)
    assert isinstance(store.append(first).wait(), Stored)
    assert sent == [statements.PUT_ONE, statements.APPEND], "a guard that nobody has named is made one"
    assert isinstance(store.append(Batch((make_write("run/second", None),), {SWITCH: 1})).wait(), Stored)
    assert sent[2:] == [statements.PUT_ONE]
    require_stored(append_writes(store, next_of(store, SWITCH)))
    assert sent[3:] == [statements.PUT_ONE, statements.APPEND], "who moves a guard has the log for itself"
    late = store.append(Batch((make_write("run/late", None),), {SWITCH: 1})).wait()
    assert late == Conflict(SWITCH, store.load_head(SWITCH))
    del sent[:]
    mixed = [Batch((make_write(f"run/{n}", None),), {SWITCH: 1} if n % 2 else {}) for n in range(6)]
    answers = store._writer.store_batches(mixed)
    assert [type(answer).__name__ for answer in answers] == ["Stored", "Conflict"] * 3
    assert sent == [statements.PUT_MANY, statements.APPEND]
    assert store.load_head("run/1") is None
    fits = [Batch((make_write(f"fits/{n}", None),), {SWITCH: 2} if n % 2 else {}) for n in range(6)]
    assert all(isinstance(answer, Stored) for answer in store._writer.store_batches(fits))
    unseen = [Batch((make_write(f"unseen/{n}", None),), {"switch/unseen": 0}) for n in range(3)]
    assert all(isinstance(answer, Stored) for answer in store._writer.store_batches(unseen))
    moving = [Batch((next_of(store, SWITCH),)), Batch((make_write("run/beside", None),))]
    assert all(isinstance(answer, Stored) for answer in store._writer.store_batches(moving))


def test_batches_without_a_fast_path() -> None:
    one = Batch((make_write("run/a", None),))
    assert statements.choose_statement([one]) is not None
    for other in (
        Batch((make_write("run/b", None), make_write("run/c", None))),
        Batch((), {SWITCH: 1}),
        Batch((make_write("run/b", None),), {SWITCH: 1, "switch/t": 1}),
        Batch((make_write("run/b", None),), joined_write=lambda joined: None),
    ):
        assert statements.choose_statement([other]) is None
        assert statements.choose_statement([one, other]) is None
    guarded = [Batch((make_write(f"run/{n}", None),), {SWITCH: n}) for n in (1, 2)]
    assert statements.choose_statement([one, guarded[0]]) is not None
    assert statements.choose_statement(guarded) is None, "they do not rely on the same"


@pytest.mark.parametrize("many", [1, 3])
def test_a_reader_by_seq_does_not_pass_a_running_append(
    store: PostgresStore, url: str, schema: str, many: int
) -> None:
    """Numbers are published before they are drawn; else a reader by seq would miss them."""
    require_stored(append_writes(store, make_write("run/before", None)))
    at = store.wait_for_change(0, 0.0)
    batches = [Batch((make_write(f"run/slow{n}", None),)) for n in range(many)]
    way = statements.choose_statement(batches)
    assert way is not None
    with psycopg.connect(url) as slow:
        for statement in statements.prepare_statements(schema):
            slow.execute(statement)
        writer = postgres_write.PostgresWriter(parse_address(url), schema)
        numbers = statements.read_sequence_numbers(writer._execute_statement(slow, *way))
        assert all(numbers)
        require_stored(append_writes(store, make_write("run/quick", None)))
        assert store.wait_for_change(at, 0.05) == at, "what came later is not shown before it"
        assert [entry.entity for entry in store.read_entries(after=at)] == []
        slow.commit()
    shown = [entry.entity for entry in store.read_entries(after=at)]
    assert shown == [*(f"run/slow{n}" for n in range(many)), "run/quick"]


def test_after_a_crash_of_the_server_the_fast_path_waits_until_numbers_are_safe(
    store: PostgresStore, url: str, schema: str
) -> None:
    require_stored(append_writes(store, make_write("run/a", None)))
    before = store.wait_for_change(0, 0.0)
    with psycopg.connect(url, autocommit=True) as boss:
        boss.execute(f"delete from {schema}.alive")  # noqa: S608 - what recovery does
    answers = store._writer.store_batches([Batch((make_write(f"run/{n}", None),)) for n in range(3)])
    assert all(isinstance(answer, Stored) and answer.seqs[0] > before + 100_000 for answer in answers)


@pytest.mark.parametrize("where", ["before", "after"])
def test_stored_batches_are_reported_if_the_call_for_the_rest_is_cut(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    require_stored(append_writes(store, make_write("run/taken", None)))
    original = postgres_write.PostgresWriter._append_batches
    cuts: list[bool] = []

    def _ask(self: Any, connection: Any, batches: list[Batch]) -> Any:
        if not cuts:
            cuts.append(True)
            if where == "after":
                original(self, connection, batches)
            raise psycopg.OperationalError("cut")
        return original(self, connection, batches)

    monkeypatch.setattr(postgres_write.PostgresWriter, "_append_batches", _ask)
    batches = [Batch((make_write(entity, None, b"ours"),)) for entity in ("run/a", "run/taken", "run/z")]
    answers = store._writer.store_batches(batches)
    assert cuts
    assert [type(answer).__name__ for answer in answers] == ["Stored", "Conflict", "Stored"]
    assert [len(read_verified_entries(store, entity)) for entity in ("run/a", "run/taken", "run/z")] == [
        1,
        1,
        1,
    ]


def test_groups_on_the_same_entities_do_not_deadlock(url: str, schema: str) -> None:
    """Sessions that create and update the same entities: one winner each, and no deadlock."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    stores = [PostgresStore(url, schema) for _ in range(4)]
    faults: list[BaseException] = []
    told: list[tuple[Batch, object]] = []

    def work(store: PostgresStore, mine: int) -> None:
        dice = random.Random(seed + mine)
        try:
            for turn in range(40):
                picked = dice.sample(range(12), 6)
                batches = [Batch((next_of(store, f"run/{n:02}", b"%d-%d" % (mine, turn)),)) for n in picked]
                batches.sort(key=lambda batch: batch.writes[0].entity)
                told.extend(zip(batches, store._writer.store_batches(batches), strict=True))
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(store, n)) for n, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "somebody waits for ever"
    assert not faults, faults
    kept = {
        entry.hash: entry.seq for n in range(12) for entry in read_verified_entries(stores[0], f"run/{n:02}")
    }
    for batch, answer in told:
        assert isinstance(answer, Stored | Conflict), answer
        at = kept.get(batch.writes[0].hash)
        assert at == (answer.seqs[0] if isinstance(answer, Stored) else None)
    assert len(kept) == sum(isinstance(answer, Stored) for _, answer in told)
    with psycopg.connect(url) as boss:
        row = boss.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone()
        assert row == (0,)
    for store in stores:
        store.close()


def test_no_table_is_scanned_after_it_has_grown(store: PostgresStore, url: str, schema: str) -> None:
    """The server keeps a plan that it made while the table was small."""
    for n in range(12):  # plans are kept for all values after some
        assert isinstance(store._writer.store_batches([Batch((make_write(f"few/{n}", None),))])[0], Stored)
        store._writer.store_batches([Batch((make_write(f"few/{n}-{m}", None),)) for m in range(5)])
    with psycopg.connect(url, autocommit=True) as boss:
        scans = "select sum(seq_tup_read) from pg_stat_user_tables where schemaname = %s"

        def read() -> int:
            boss.execute("select pg_stat_clear_snapshot()")
            row = boss.execute(scans, (schema,)).fetchone()
            assert row is not None
            return int(row[0])

        for n in range(40):
            store._writer.store_batches([Batch((make_write(f"many/{n}-{m}", None),)) for m in range(50)])
        before = read()
        moved = [Batch((next_of(store, f"many/1-{m}"),)) for m in range(20)]
        assert all(isinstance(answer, Stored) for answer in store._writer.store_batches(moved))
        assert isinstance(store._writer.store_batches([Batch((make_write("many/one", None),))])[0], Stored)
        store._writer.close()  # a session tells what it has read when it ends, at the latest
        assert read() - before < 500, "of 2,000 rows"
