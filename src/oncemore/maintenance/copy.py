"""Move a log from one store to another, with every hash chain intact.

A move has five stages. The source is closed by an entry in its switches, which every process that has it
open obeys. The switches are copied first, so that the target is closed as well until it is complete. All
other entries follow in their order and byte for byte. Both logs are read again and compared. An entry in
the switches of the target opens it and records the source and the Merkle root.

A killed move is safe to repeat: the target must hold a prefix of the source, and the copy continues there.
A target with any other content is refused and not changed. Artifacts are not part of a log and stay put.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control.model import SWITCHES_ENTITY, SwitchBoard, set_log_location
from oncemore.control.switches import update_switches
from oncemore.errors import InProgress, StoreError, UsageError
from oncemore.governance.identity import authorize_decider
from oncemore.governance.log_order import POSITIONS_FIELD, find_switch_positions, has_checkpoints
from oncemore.governance.merkle import TreeFrontier, hash_leaf
from oncemore.governance.role_model import REVIEWER
from oncemore.log.entry_codec import decode_head, encode_head, hash_entry
from oncemore.log.record import WorkerRecord
from oncemore.log.store import Head, HeadQuery, hash_body
from oncemore.maintenance.rebuild import index_head
from oncemore.maintenance.tasks import check_text, read_head_pages
from oncemore.steps.history import KINDS, verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Entry, Store
    from oncemore.steps.engine import Engine
    from oncemore.steps.history import FoldedHeads

    Progress = Callable[[int, int], object]

ENTRY_PAGE_SIZE, HEAD_PAGE_SIZE = 500, 1000
MAX_NAMED = 5
FAR_FUTURE = 1e15
#: A target clock that is further behind delays waiting runs noticeably, so the report mentions it.
MAX_CLOCK_LAG_S = 5.0


class CopyReport(Value):
    """The result of a move.

    entries      the number of entries in both logs
    entities     the number of entities in both logs
    root         the Merkle root of all entries
    copied       the number of entries that this call has copied
    artifacts    the number of artifacts that the log refers to; they were not copied
    clock_lag_s  how far the target's clock is behind the source's; 0 if it is not
    """

    source: str
    target: str
    entries: int
    entities: int
    root: str
    copied: int
    artifacts: int
    clock_lag_s: float


def move_log(
    source: Engine,
    target: Engine,
    *,
    reason: str,
    by: str | None = None,
    progress: Progress = lambda done, of: None,
) -> CopyReport:
    """Move the log of one engine's store to another engine's store; close the source for new attempts."""
    reason, actor = check_text("reason", reason), _authorize_move(source, by)
    _check_different_stores(source, target)
    _check_idle(source)
    is_complete = _is_copy_complete(source, target)
    if not is_complete:
        _close_source(source, target.url, reason, actor)
        # A worker may have started between the first check and the entry that closes the source.
        _check_idle(source, lambda: _reopen_source(source, target, "a worker was still running", actor))
    copied = 0 if is_complete else _copy_entries(source.store, target.store, progress)
    entries, entities, root = _compare_stores(source.store, target.store)
    if not is_complete:
        origin: dict[str, Any] = {"from": source.url, "entries": entries, "root": root}
        if has_checkpoints(source):
            # The copy has another order; with this record its tree stays that of the source.
            origin[POSITIONS_FIELD] = find_switch_positions(source, _load_switches(source.store)[0])
        decision = {"action": "arrived", "switch": source.url, "reason": reason, "actor": actor}
        update_switches(
            target, lambda board: set_log_location(board, ""), lambda head, now: decision, {"copy": origin}
        )
    lag = max(0.0, source.now() - target.now())
    return CopyReport(
        source=source.url,
        target=target.url,
        entries=entries,
        entities=entities,
        root=root,
        copied=copied,
        artifacts=sum(1 for _ in _list_heads(source.store, "artifact")),
        clock_lag_s=round(lag, 3) if lag > MAX_CLOCK_LAG_S else 0.0,
    )


def abandon_move(source: Engine, target: Engine, *, reason: str, by: str | None = None) -> None:
    """Reopen the source of a move that did not complete.

    Raise `UsageError` if the copy is complete: work may have continued in the target since then.
    """
    reason, actor = check_text("reason", reason), _authorize_move(source, by)
    moved_to = _load_switches(source.store)[1].moved_to
    if not moved_to:
        raise UsageError(f"{source.url} has not moved; there is nothing to abandon")
    if moved_to != target.url:
        raise UsageError(f"{source.url} has moved to {moved_to}, not to {target.url}")
    if _is_copy_complete(source, target):
        raise UsageError(
            f"the copy in {target.url} is complete and work may have continued there; reopening {source.url} "
            "would do that work twice"
        )
    _reopen_source(source, target, reason, actor)


def _reopen_source(source: Engine, target: Engine, reason: str, actor: str) -> None:
    decision = {"action": "stays", "switch": target.url, "reason": reason, "actor": actor}
    update_switches(source, lambda board: set_log_location(board, ""), lambda head, now: decision)


def _authorize_move(source: Engine, by: str | None) -> str:
    """Return the actor of a move; its roles are those of the source, which the target gets with the copy."""
    # A move is two decisions in two stores, and the second is known only after the copy.
    return authorize_decider(source, by, needed=REVIEWER).refuse_signature("a move").actor


# Preconditions --------------------------------------------------------------------------------------


def _check_different_stores(source: Engine, target: Engine) -> None:
    if source.url == target.url:
        raise UsageError(f"{source.url} is both source and target; give another target")
    notice = source.store.open_maintenance().copy_notice()
    if notice:
        raise UsageError(
            f"{source.url} is a copy itself ({notice}); acknowledge it first: oncemore store accept-copy"
        )
    moved_to = _load_switches(source.store)[1].moved_to
    if moved_to and moved_to != target.url:
        raise UsageError(f"{source.url} has moved to {moved_to} already; copy from there")


def _check_idle(source: Engine, on_busy: Callable[[], None] = lambda: None) -> None:
    """Raise `InProgress` while a worker is alive on the source: its next entries would not be copied."""
    alive = []
    for head in source.store.list_heads(HeadQuery("worker", due_by=FAR_FUTURE, limit=HEAD_PAGE_SIZE)):
        worker = decode_head(head.head, WorkerRecord)
        if source.leases.is_worker_alive(head.entity.removeprefix("worker/"), worker):
            alive.append(f"process {worker.pid} on {worker.host}")
    if alive:
        on_busy()
        more = f" and {len(alive) - MAX_NAMED} more" if len(alive) > MAX_NAMED else ""
        raise InProgress(
            f"{source.url} is in use by {', '.join(alive[:MAX_NAMED])}{more}; stop these processes, or "
            "wait until their leases end"
        )


def _load_switches(store: Store) -> tuple[int, SwitchBoard]:
    head = store.load_head(SWITCHES_ENTITY)
    return (0, SwitchBoard()) if head is None else (head.version, decode_head(head.head, SwitchBoard))


def _is_copy_complete(source: Engine, target: Engine) -> bool:
    """Return whether an earlier move to this target has finished and no switch was turned since.

    The entry that opens the target is the only one that its switches have more than those of the source.
    """
    (source_version, source_board), (target_version, target_board) = (
        _load_switches(source.store),
        _load_switches(target.store),
    )
    return (
        source_board.moved_to == target.url
        and target_version == source_version + 1
        and not target_board.moved_to
    )


def _close_source(source: Engine, location: str, reason: str, actor: str) -> None:
    decision = {"action": "moved", "switch": location, "reason": reason, "actor": actor}
    update_switches(source, lambda board: set_log_location(board, location), lambda head, now: decision)


# Copying --------------------------------------------------------------------------------------------


def _entries_in_copy_order(store: Store, switch_count: int) -> Iterator[Entry]:
    """Return the first entries of the switches, then all entries of every other entity in log order.

    The switches of the target continue with entries of their own; the count leaves these out.
    """
    first = islice(store.read_entries(SWITCHES_ENTITY), switch_count)
    return chain(first, (entry for entry in store.read_entries() if entry.entity != SWITCHES_ENTITY))


def _copy_entries(source: Store, target: Store, progress: Progress) -> int:
    """Copy the entries that the target lacks; return their number."""
    switch_count, copied = _load_switches(source)[0], 0
    entries = _entries_in_copy_order(source, switch_count)
    existing = _skip_existing(entries, _entries_in_copy_order(target, switch_count), target)
    while True:
        last = source.wait_for_change(0, 0.0)
        while page := list(islice(entries, ENTRY_PAGE_SIZE)):
            target.open_maintenance().import_entries(page, _build_heads(source, target, page))
            copied += len(page)
            progress(existing + copied, max(last, existing + copied))
        # The source may have grown while it was copied: a closed log still takes entries that start no work.
        if source.wait_for_change(0, 0.0) == last:
            return copied
        entries = islice(_entries_in_copy_order(source, switch_count), existing + copied, None)


def _skip_existing(entries: Iterator[Entry], existing: Iterator[Entry], target: Store) -> int:
    """Advance `entries` past those that the target has, and return their number.

    Raise `UsageError` if the target is not a prefix of the source.
    """
    count = 0
    pruned: dict[str, int] = {}
    for present in existing:
        entry = next(entries, None)
        if entry is None or (entry.entity, entry.hash) != (present.entity, present.hash):
            raise UsageError(
                f"the target holds something else: entry {present.seq} ({present.entity}) is not in the "
                "source at that place; give an empty store, or one that a copy of this source has begun to "
                "fill"
            )
        if entry.body is None and present.body is not None:
            pruned[entry.entity] = entry.version + 1  # pruned in the source after it was copied
        count += 1
    if pruned:
        target.open_maintenance().prune_bodies(pruned)
    return count


def _build_heads(source: Store, target: Store, page: list[Entry]) -> list[Head]:
    """Return the heads after a page of entries; earlier entries are in the target already."""
    known: FoldedHeads = {}
    for entry in page:
        if entry.entity not in known and entry.version > 1:
            head = target.load_head(entry.entity)
            if head is not None:
                kind = KINDS[entry.entity.partition("/")[0]]
                known[entry.entity] = head.version, head.hash, decode_head(head.head, kind), head.seq
    verify_chain(page, known)
    heads = []
    for entity in {entry.entity for entry in page}:
        version, digest, state, _ = known[entity]
        index = index_head(entity, state)
        if type(state) is WorkerRecord:
            # Whether a worker left open runs is in the index of its head only, not in its entries.
            head = source.load_head(entity)
            index = head.by if head is not None and head.version == version else index
        heads.append(Head(entity, version, digest, encode_head(state), index, 0))
    return heads


# Comparing ------------------------------------------------------------------------------------------


def _compare_stores(source: Store, target: Store) -> tuple[int, int, str]:
    """Read both logs again and compare them; return the numbers of entries and entities, and the root."""
    switch_count = _load_switches(source)[0]
    (count, root), (copied_count, copied_root) = (
        _compute_root(store, switch_count) for store in (source, target)
    )
    if (count, root) != (copied_count, copied_root):
        raise StoreError(
            f"the copy differs from the source: {count:,} entries with the root {root[:16]} in the source, "
            f"{copied_count:,} with {copied_root[:16]} in the copy; the target stays closed"
        )
    # The root covers the entries; heads are compared as well, because calls read only heads.
    entities = 0
    for kind in KINDS:
        heads, copied_heads = _list_heads(source, kind), _list_heads(target, kind)
        for head in heads:
            copied = next(copied_heads, None)
            entities += 1
            if copied is None or _comparable_fields(head) != _comparable_fields(copied):
                raise StoreError(f"the head of {head.entity} differs in the copy; the target stays closed")
        extra = next(copied_heads, None)
        if extra is not None:
            raise StoreError(f"{extra.entity} is only in the copy; the target stays closed")
    return count, entities, root


def _compute_root(store: Store, switch_count: int) -> tuple[int, str]:
    """Check the hash of every entry; return the number of entries and their Merkle root."""
    tree = TreeFrontier()
    for entry in _entries_in_copy_order(store, switch_count):
        if entry.hash != hash_entry(entry.prev, entry.header, hash_body(entry)):
            raise StoreError(f"entry {entry.seq} ({entry.entity}) was altered: its hash does not fit")
        # The entry's hash is the same with and without its body; the last byte makes a lost body visible.
        tree.add_leaf_hash(hash_leaf(entry.hash + (b"\x01" if entry.body is not None else b"\x00")))
    return tree.size, tree.compute_root().hex()


def _list_heads(store: Store, kind: str) -> Iterator[Head]:
    return chain.from_iterable(read_head_pages(store, kind, page_size=HEAD_PAGE_SIZE))


def _comparable_fields(head: Head) -> tuple[Any, ...]:
    """Return the fields of a head that a copy must preserve: all but the seq of its last entry."""
    if head.entity == SWITCHES_ENTITY:
        return (head.entity,)  # the copy's switches have an entry of their own
    kind = KINDS[head.entity.partition("/")[0]]
    return head.entity, head.version, head.hash, decode_head(head.head, kind), head.by
