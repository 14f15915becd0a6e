"""Checks of guards: entities that a batch depends on without writing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.store import Batch, Conflict, HeadQuery, Stored
from oncemore.testing.store_contract._helpers import (
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
