"""Checks of pruning, dropping, replaced heads, imports, sizes and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.store import HeadIndex, HeadQuery, hash_body
from oncemore.testing.store_contract._helpers import (
    append_writes,
    expect_store_error,
    make_write,
    read_verified_entries,
    require_stored,
)

if TYPE_CHECKING:
    from oncemore.testing.store_contract._helpers import Opener


def rebuilt_heads_can_be_put_in_place(open_store: Opener) -> None:
    """Replaced heads are read as if they had been written; entities with newer entries are skipped."""
    store = open_store()
    for entity in ("run/a", "run/b"):
        require_stored(append_writes(store, make_write(entity, None, state="PENDING")))
    a, b = store.load_head("run/a"), store.load_head("run/b")
    assert a is not None
    assert b is not None
    upto = store.wait_for_change(0, 0.0)
    wrong = [
        head._replace(head=b"wrong", by=HeadIndex("run", "COMPLETE", 7.0, "s", "w", "d")) for head in (a, b)
    ]
    assert store.open_maintenance().replace_heads(wrong, upto) == 2
    assert store.load_head("run/a") == wrong[0]
    assert [head.entity for head in open_store().list_heads(HeadQuery("run", due_by=8.0))] == [
        "run/a",
        "run/b",
    ]
    # An entry after `upto` is newer than the rebuilt head.
    require_stored(append_writes(store, make_write("run/b", b)))
    moved = store.load_head("run/b")
    assert store.open_maintenance().replace_heads([a, b], upto) == 1
    assert (store.load_head("run/a"), store.load_head("run/b")) == (a, moved)
    assert store.open_maintenance().replace_heads([], upto) == 0
    require_stored(append_writes(store, make_write("run/a", a)))
    assert len(read_verified_entries(store, "run/a")) == 2


def entries_of_another_log_are_imported_unchanged(open_store: Opener) -> None:
    """Versions, links, bodies and pruned bodies are kept; later appends continue from there."""
    from oncemore.log.memory import MemoryStore

    source, store = MemoryStore(), open_store()
    # An entity of the target log, so that the imported entries get other seqs than in the source.
    require_stored(append_writes(store, make_write("run/here", None)))
    for number in range(3):
        for entity in ("run/a", "run/b"):
            require_stored(
                append_writes(
                    source,
                    make_write(entity, source.load_head(entity), b"%d" % number, state=f"S{number}", due=5.0),
                )
            )
    source.open_maintenance().prune_bodies({"run/a": 2})
    log = list(source.read_entries())
    for page in (log[:4], log[4:]):
        last = {entry.entity: entry for entry in page}
        heads = [
            head._replace(version=last[head.entity].version, hash=last[head.entity].hash)
            for head in source.list_heads(HeadQuery("run"))
        ]
        store.open_maintenance().import_entries(page, heads)
    for entity, pruned in (("run/a", 2), ("run/b", 1)):
        imported, originals = read_verified_entries(store, entity, pruned), list(source.read_entries(entity))
        # The seq belongs to the store; everything else is hashed.
        assert [entry._replace(seq=0) for entry in imported] == [entry._replace(seq=0) for entry in originals]
        head, original = store.load_head(entity), source.load_head(entity)
        assert head is not None
        assert original is not None
        assert head._replace(seq=0) == original._replace(seq=0)
        require_stored(append_writes(store, make_write(entity, head, b"deferred")))
    assert [entry.entity for entry in store.read_entries()][1:7] == [entry.entity for entry in log]
    seqs = [entry.seq for entry in open_store().read_entries()]
    assert seqs == sorted(set(seqs))


def entries_out_of_order_are_not_imported(open_store: Opener) -> None:
    """An import out of order, repeated, or on top of other entries stores nothing."""
    from oncemore.log.memory import MemoryStore

    source, store = MemoryStore(), open_store()
    for number in range(2):
        require_stored(append_writes(source, make_write("run/a", source.load_head("run/a"), b"%d" % number)))
    require_stored(append_writes(source, make_write("run/b", None)))
    one, two, other = source.read_entries()
    a, b = source.load_head("run/a"), source.load_head("run/b")
    assert a is not None
    assert b is not None
    first = a._replace(version=1, hash=one.hash)
    for entries, heads in (
        ([two], [a]),
        ([other, two], [a, b]),
        ([one, one], [first]),
        ([one._replace(prev=b"x" * 32)], [first]),
        ([one, two], [first]),
        ([one, two], []),
        ([one], [first, b]),
    ):
        with expect_store_error():
            store.open_maintenance().import_entries(entries, heads)
        assert list(store.read_entries()) == []
        assert store.load_head("run/a") is None
    # The same entries in order are accepted, once.
    store.open_maintenance().import_entries([one], [first])
    with expect_store_error():
        store.open_maintenance().import_entries([one], [first])
    store.open_maintenance().import_entries([two], [a])
    assert len(read_verified_entries(store, "run/a")) == 2


def pruned_bodies_are_gone_and_the_chain_still_verifies(open_store: Opener) -> None:
    """Digests, headers, the head and the bodies of other entities stay; new entries link as before."""
    store = open_store()
    for entity in ("run/a", "run/b"):
        for n in range(4):
            require_stored(
                append_writes(store, make_write(entity, store.load_head(entity), b"secret %d" % n))
            )
    before, head = read_verified_entries(store, "run/a"), store.load_head("run/a")
    store.open_maintenance().prune_bodies({"run/a": 3})
    # A later call with a lower version must not bring anything back.
    store.open_maintenance().prune_bodies({"run/a": 2})
    for handle in (store, open_store()):
        after = read_verified_entries(handle, "run/a", pruned=3)
        assert [entry.body for entry in after] == [None, None, b"secret 2", b"secret 3"]
        pruned = [entry._replace(body=None, body_digest=hash_body(entry)) for entry in before[:2]]
        assert after == pruned + before[2:]
        assert handle.load_head("run/a") == head
        assert len(read_verified_entries(handle, "run/b")) == 4
        assert [entry for entry in handle.read_entries() if entry.entity == "run/a"] == after
    require_stored(append_writes(store, make_write("run/a", head, b"next")))
    store.open_maintenance().prune_bodies({"run/a": 99})
    read_verified_entries(store, "run/a", pruned=99)
    require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"), b"last")))
    assert read_verified_entries(store, "run/a", pruned=6)[-1].body == b"last"


def pruning_what_is_not_there_changes_nothing(open_store: Opener) -> None:
    """An unknown entity, version 0 and version 1 are no errors."""
    store = open_store()
    require_stored(append_writes(store, make_write("run/a", None)))
    for entity, version in (("run/none", 9), ("run/a", 0), ("run/a", 1)):
        store.open_maintenance().prune_bodies({entity: version})
    assert len(read_verified_entries(store, "run/a")) == 1
    assert store.load_head("run/none") is None


def bodies_of_several_entities_are_pruned_together(open_store: Opener) -> None:
    """Each entity is pruned up to its own version; an unknown one among them changes nothing."""
    store = open_store()
    for entity in ("run/a", "run/b", "run/c"):
        for n in range(3):
            require_stored(
                append_writes(store, make_write(entity, store.load_head(entity), b"secret %d" % n))
            )
    store.open_maintenance().prune_bodies({"run/a": 2, "run/none": 9, "run/b": 4})
    for handle in (store, open_store()):
        assert [
            len(read_verified_entries(handle, name, pruned=at)) for name, at in (("run/a", 2), ("run/b", 4))
        ] == [3, 3]
        assert len(read_verified_entries(handle, "run/c")) == 3
    store.open_maintenance().prune_bodies({})


def unchanged_entities_can_be_dropped(open_store: Opener) -> None:
    """Head and entries go together, other entities stay, no seq is reused, and the name is free again."""
    store = open_store()
    for entity in ("run/a", "run/b", "run/c"):
        for _ in range(2):
            require_stored(append_writes(store, make_write(entity, store.load_head(entity))))
    require_stored(append_writes(store, make_write("maintenance/last", None, kind="maintenance")))
    last = list(store.read_entries())[-1].seq
    assert store.open_maintenance().drop_entities({"run/a": 2, "run/b": 1, "run/none": 1}) == 1
    for handle in (store, open_store()):
        assert handle.load_head("run/a") is None
        assert list(handle.read_entries("run/a")) == []
        assert {entry.entity for entry in handle.read_entries()} == {"run/b", "run/c", "maintenance/last"}
        assert len(read_verified_entries(handle, "run/b")) == len(read_verified_entries(handle, "run/c")) == 2
    assert store.open_maintenance().drop_entities({"run/a": 2}) == 0
    (seq,) = require_stored(append_writes(store, make_write("run/a", None, b"new"))).seqs
    # A follower that has read up to `last` must not miss the new entry.
    assert seq > last
    assert [entry.body for entry in read_verified_entries(store, "run/a")] == [b"new"]


def maintenance_reports_sizes(open_store: Opener) -> None:
    """Sizes are reported by kind, pruned bodies count less, and an original store is not taken for a copy."""
    store = open_store()
    require_stored(append_writes(store, make_write("run/a", None, b"x" * 5000)))
    require_stored(append_writes(store, make_write("run/a", store.load_head("run/a"))))
    require_stored(append_writes(store, make_write("worker/w", None, kind="worker")))
    maintenance = store.open_maintenance()
    sizes = maintenance.measure_space(in_detail=True).kinds
    assert {kind: size[:2] for kind, size in sizes.items()} == {"run": (1, 2), "worker": (1, 1)}
    assert 5000 < sizes["run"].bytes < 6000
    store.open_maintenance().prune_bodies({"run/a": 2})
    assert maintenance.measure_space(in_detail=True).kinds["run"].bytes < 1000
    space = maintenance.measure_space()
    assert space.file >= 0
    assert space.wal >= 0
    assert maintenance.measure_space(in_detail=True).spare >= 0
    # An original store has nothing to acknowledge; the call is allowed all the same.
    assert maintenance.copy_notice() == ""
    maintenance.acknowledge_copy()
    assert maintenance.checkpoint_wal() == ""


def a_registered_worker_is_not_gone(open_store: Opener) -> None:
    """No handle reports a worker as gone before it leaves; a store that detects dead workers does later."""
    store, other = open_store(), open_store()
    first, second = store.register_worker("worker-1"), store.register_worker("worker-2")
    for handle in (store, other, open_store()):
        assert not handle.is_worker_gone("worker-1")
        assert not handle.is_worker_gone("worker-2")
    # Closing twice is allowed.
    first.close()
    first.close()
    assert other.is_worker_gone("worker-1") or not store.detects_dead_workers
    assert not other.is_worker_gone("worker-2")
    assert not store.is_worker_gone("worker-2")
    second.close()


def asking_for_an_unknown_worker_is_no_error(open_store: Opener) -> None:
    """`is_worker_gone` answers for a name that was never registered, also twice."""
    store = open_store()
    assert store.is_worker_gone("unknown") in (True, False)
    assert store.is_worker_gone("unknown") in (True, False)
