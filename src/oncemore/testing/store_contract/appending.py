"""Checks of `append`: atomic compare-and-set, guards, order, concurrency and tickets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from oncemore.errors import UsageError
from oncemore.log.store import Batch, Conflict, Head, HeadIndex, HeadQuery, Stored
from oncemore.testing.store_contract._helpers import (
    append_async,
    append_guarded,
    append_writes,
    make_write,
    read_verified_entries,
    require_stored,
    run_in_threads,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.testing.store_contract._helpers import Opener


def an_entity_that_was_never_written_has_no_head_and_no_entries(open_store: Opener) -> None:
    """Reading an entity that does not exist returns nothing."""
    store = open_store()
    assert store.load_head("run/none") is None
    assert list(store.read_entries("run/none")) == []
    assert list(store.list_heads(HeadQuery("run"))) == []


def what_is_written_can_be_read_back(open_store: Opener) -> None:
    """Head and entries contain what was appended, also through another handle."""
    store = open_store()
    first = make_write(
        "run/a", None, b'{"n":1}', state="PENDING", due=5.0, step="load", worker="w", dataset="d"
    )
    (seq,) = require_stored(append_writes(store, first)).seqs
    # The second handle has no cache of what was written.
    for handle in (store, open_store()):
        head = handle.load_head("run/a")
        assert head == Head("run/a", 1, first.hash, first.head, first.by, seq, body=first.body)
        (entry,) = read_verified_entries(handle, "run/a")
        assert (entry.seq, entry.header, entry.body) == (seq, first.header, first.body)


def a_stale_write_is_refused_with_the_head_that_is_there(open_store: Opener) -> None:
    """A failed compare-and-set stores nothing and returns the current head."""
    store = open_store()
    first = make_write("run/a", None)
    require_stored(append_writes(store, first))
    for stale in (first, make_write("run/a", Head("run/a", 7, b"x" * 32, b"", HeadIndex("run"), 1))):
        answer = append_writes(store, stale)
        assert isinstance(answer, Conflict)
        assert answer.entity == "run/a"
        assert answer.head == store.load_head("run/a")
    # An entity that does not exist conflicts without a head.
    missing = append_writes(store, make_write("run/b", Head("run/b", 1, b"x" * 32, b"", HeadIndex("run"), 1)))
    assert missing == Conflict("run/b", None)
    assert len(read_verified_entries(store, "run/a")) == 1


def a_head_comes_with_the_body_of_its_last_entry(open_store: Opener) -> None:
    """`load_head` and a conflict include the body; a list of heads, which may be long, does not."""
    store = open_store()
    head: Head | None = None
    for body in (b"first", b"", b"third"):
        before = head
        require_stored(append_writes(store, make_write("run/a", before, body)))
        head = store.load_head("run/a")
        assert head is not None
        assert head.body == body
    assert append_writes(store, make_write("run/a", before)) == Conflict("run/a", head)
    guarded = store.append(Batch((make_write("run/b", None),), {"run/a": 2})).wait()
    assert guarded == Conflict("run/a", head)
    (listed,) = store.list_heads(HeadQuery("run"))
    # Otherwise a list of heads would read every body.
    assert listed.body is None
    assert listed._replace(body=b"third") == head


def several_entities_are_stored_together_or_not_at_all(open_store: Opener) -> None:
    """One stale write leaves no trace of the other writes of its batch."""
    store = open_store()
    require_stored(
        append_writes(store, make_write("run/a", None), make_write("worker/w", None, kind="worker"))
    )
    a, w = store.load_head("run/a"), store.load_head("worker/w")
    require_stored(
        append_writes(store, make_write("run/a", a), make_write("worker/w", w), make_write("run/new", None))
    )
    answer = append_writes(
        store, make_write("run/b", None), make_write("run/a", a), make_write("run/c", None)
    )
    assert isinstance(answer, Conflict)
    assert answer.entity == "run/a"
    # Neither the write before the stale one nor the one after it is stored.
    assert store.load_head("run/b") is None
    assert store.load_head("run/c") is None
    assert [len(read_verified_entries(store, entity)) for entity in ("run/a", "worker/w", "run/new")] == [
        2,
        2,
        1,
    ]


def a_batch_that_contradicts_itself_is_refused(open_store: Opener) -> None:
    """A batch may name each entity once."""
    store = open_store()
    for batch in (
        Batch((make_write("run/a", None), make_write("run/a", None))),
        Batch((make_write("run/a", None),), {"run/a": 0}),
    ):
        try:
            store.append(batch).wait()
        except UsageError:
            continue
        raise AssertionError("the batch was accepted")
    assert store.load_head("run/a") is None


def seqs_rise_and_the_whole_log_is_in_their_order(open_store: Opener) -> None:
    """A reader that follows the log by seq gets every entry once."""
    store = open_store()
    seqs: list[int] = []
    for n in range(5):
        seqs += require_stored(
            append_writes(store, make_write(f"run/{n}", None), make_write(f"worker/{n}", None))
        ).seqs
    log = list(store.read_entries())
    assert [entry.seq for entry in log] == seqs == sorted(set(seqs))
    assert [entry.seq for entry in store.read_entries(after=seqs[3])] == seqs[4:]
    head = store.load_head("run/0")
    require_stored(append_writes(store, make_write("run/0", head)))
    assert [entry.version for entry in store.read_entries("run/0", after=1)] == [2]


def odd_names_and_bodies_are_stored_unchanged(open_store: Opener) -> None:
    """Any text is a valid name, any bytes are a valid body."""
    store = open_store()
    names = ["run/é\u0301\U0001f600", "run/" + "x" * 500, "run/a'b\"c;--", "run/%_*", "run/ a\tb"]
    bodies = [b"", b"\x00\xff" * 10, b"x" * 1_000_000]
    for entity in names:
        for body in bodies:
            require_stored(append_writes(store, make_write(entity, store.load_head(entity), body)))
        assert [entry.body for entry in read_verified_entries(store, entity)] == bodies


def one_of_many_racing_writers_wins(open_store: Opener) -> None:
    """Threads that race for one entity, each with its own handle, never lose or repeat a version."""
    handles = [open_store() for _ in range(8)]
    wins: list[tuple[int, bytes]] = []

    def race(number: int, turn: int) -> Callable[[], None]:
        store = handles[number]
        change = make_write("run/hot", store.load_head("run/hot"), b"%d" % number)

        def go() -> None:
            if isinstance(append_writes(store, change), Stored):
                wins.append((turn, change.body))

        return go

    run_in_threads(race, 8, 20)
    # Exactly one of the eight wins each turn.
    assert [turn for turn, _ in wins] == list(range(20))
    assert [entry.body for entry in read_verified_entries(open_store(), "run/hot")] == [
        body for _, body in wins
    ]


def batches_that_have_nothing_in_common_do_not_disturb_each_other(open_store: Opener) -> None:
    """Threads that write different entities never conflict, and each gets its own answer."""
    store = open_store()

    def work(number: int, turn: int) -> Callable[[], None]:
        entity = f"run/{number}"
        change = make_write(entity, store.load_head(entity), b"%d" % turn)

        def go() -> None:
            # Synced and unsynced batches alternate, so that both share commits.
            (seq,) = require_stored(append_writes(store, change, sync=turn % 2 == 0)).seqs
            head = store.load_head(entity)
            assert head is not None
            assert (head.version, head.seq) == (turn + 1, seq)

        return go

    run_in_threads(work, 8, 25)
    for number in range(8):
        assert [entry.body for entry in read_verified_entries(store, f"run/{number}")] == [
            b"%d" % n for n in range(25)
        ]


def tickets_can_be_awaited(open_store: Opener) -> None:
    """Tasks share commits; each gets its own answer, conflicts included."""

    async def main() -> None:
        store = open_store()
        # Four batches per entity compete, so 30 of the 40 must conflict.
        batches = [Batch((make_write(f"run/{n % 10}", None, b"%d" % n),)) for n in range(40)]
        answers = await asyncio.gather(*[append_async(store, batch) for batch in batches])
        assert sum(isinstance(answer, Stored) for answer in answers) == 10
        for answer in answers:
            assert isinstance(answer, Stored) or answer.head == store.load_head(answer.entity)

    asyncio.run(main())


def batches_that_wait_for_the_disk_and_those_that_do_not_may_mix(open_store: Opener) -> None:
    """`sync` changes when a batch is answered, never the stored entries or their order."""

    async def main() -> None:
        store = open_store()
        for turn in range(4):
            batches = [
                Batch(
                    (make_write(f"run/{n}", store.load_head(f"run/{n}"), b"%d" % turn),),
                    {},
                    (n + turn) % 3 == 0,
                )
                for n in range(12)
            ]
            for answer in await asyncio.gather(*[append_async(store, batch) for batch in batches]):
                require_stored(answer)

    asyncio.run(main())
    for n in range(12):
        assert [entry.body for entry in read_verified_entries(open_store(), f"run/{n}")] == [
            b"0",
            b"1",
            b"2",
            b"3",
        ]


def a_guard_holds_without_being_written(open_store: Opener) -> None:
    """A batch may depend on an entity that it only read; the guard does not change its version."""
    store = open_store()
    require_stored(append_writes(store, make_write("dataset/d", None, kind="dataset")))
    assert isinstance(store.append(Batch((make_write("run/a", None),), {"dataset/d": 1})).wait(), Stored)
    refused = store.append(Batch((make_write("run/b", None),), {"dataset/d": 2})).wait()
    assert refused == Conflict("dataset/d", store.load_head("dataset/d"))
    assert store.load_head("run/b") is None
    absent = store.append(Batch((make_write("run/c", None),), {"switch/off": 0})).wait()
    assert isinstance(absent, Stored)
    alone = store.append(Batch((), {"dataset/d": 1})).wait()
    assert alone == Stored(())
    assert len(read_verified_entries(store, "dataset/d")) == 1


def each_of_several_guards_is_compared(open_store: Opener) -> None:
    """One write, new or later, under two or three guards: any stale one refuses it and is named."""
    store = open_store()
    for name in ("a", "b", "c"):
        require_stored(append_writes(store, make_write(f"dataset/{name}", None, kind="dataset")))
    require_stored(append_writes(store, make_write("run/later", None)))
    for count in (2, 3):
        right = {f"dataset/{name}": 1 for name in "abc"[:count]}
        for stale in right:
            for entity in (f"run/new{count}", "run/later"):
                before = store.load_head(entity)
                write = make_write(entity, before)
                # 0: the entity must not exist, and it does.
                for version in (0, 2):
                    refused = store.append(Batch((write,), {**right, stale: version})).wait()
                    assert refused == Conflict(stale, store.load_head(stale))
                assert store.load_head(entity) == before, "nothing of a refused batch is stored"
        for entity in (f"run/new{count}", "run/later"):
            write = make_write(entity, store.load_head(entity))
            guards = {**right, "switch/off": 0} if count == 2 else right
            assert isinstance(store.append(Batch((write,), guards)).wait(), Stored)
    assert len(read_verified_entries(store, "run/later")) == 3


def a_guard_that_has_moved_refuses_the_batch(open_store: Opener) -> None:
    """A batch with an outdated guard is refused, even when the guard changes at the same moment."""
    store = open_store()
    require_stored(append_writes(store, make_write("dataset/d", None, kind="dataset")))
    require_stored(
        append_writes(store, make_write("dataset/d", store.load_head("dataset/d"), kind="dataset"))
    )
    late = store.append(Batch((make_write("run/late", None),), {"dataset/d": 1})).wait()
    assert late == Conflict("dataset/d", store.load_head("dataset/d"))
    moves: list[Stored] = []
    relied: list[tuple[int, int]] = []

    def act(number: int, turn: int) -> Callable[[], None]:
        guard = store.load_head("dataset/d")
        assert guard is not None
        # One thread per turn moves the guard while the other threads rely on it.
        if turn % 4 == number:
            change = make_write("dataset/d", guard, b"%d" % turn, kind="dataset")
            return lambda: moves.append(require_stored(append_writes(store, change)))
        return lambda: relied.extend(append_guarded(store, guard, f"run/{number}-{turn}"))

    run_in_threads(act, 4, 20)
    assert len(moves) == 20
    moved_at = {entry.version: entry.seq for entry in read_verified_entries(store, "dataset/d")}
    # Each stored batch lies between the guard's version that it relied on and the next one.
    for version, seq in relied:
        assert moved_at[version] < seq < moved_at.get(version + 1, seq + 1)
    assert len(list(store.list_heads(HeadQuery("run")))) == len(relied)


def a_late_guard_that_has_moved_is_reported(open_store: Opener) -> None:
    """A batch with late guards is never answered "stored" if one had moved; `stands` names its entries."""
    store = open_store()
    require_stored(append_writes(store, make_write("dataset/d", None, kind="dataset")))
    fits = store.append(Batch((make_write("run/fits", None),), {"dataset/d": 1}, late=True)).wait()
    assert fits == Stored((read_verified_entries(store, "run/fits")[0].seq,))
    require_stored(
        append_writes(store, make_write("dataset/d", store.load_head("dataset/d"), kind="dataset"))
    )
    moved = store.append(Batch((make_write("run/moved", None),), {"dataset/d": 1}, late=True)).wait()
    assert isinstance(moved, Conflict)
    assert (moved.entity, moved.head) == ("dataset/d", store.load_head("dataset/d"))
    assert moved.stored_seqs == tuple(entry.seq for entry in read_verified_entries(store, "run/moved"))
    # Only a store that compares guards late may leave entries behind.
    assert store.checks_guards_late or not moved.stored_seqs
    moves: list[Stored] = []
    relied: list[tuple[int, int]] = []

    def act(number: int, turn: int) -> Callable[[], None]:
        guard = store.load_head("dataset/d")
        assert guard is not None
        # One thread per turn moves the guard while the other threads rely on it.
        if turn % 4 == number:
            change = make_write("dataset/d", guard, b"%d" % turn, kind="dataset")
            return lambda: moves.append(require_stored(append_writes(store, change)))
        return lambda: relied.extend(append_guarded(store, guard, f"run/{number}-{turn}", late=True))

    run_in_threads(act, 4, 20)
    moved_at = {entry.version: entry.seq for entry in read_verified_entries(store, "dataset/d")}
    # Each "stored" batch lies between the guard's version that it relied on and the next one.
    for version, seq in relied:
        assert moved_at[version] < seq < moved_at.get(version + 1, seq + 1)
