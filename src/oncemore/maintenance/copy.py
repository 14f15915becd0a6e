"""COPYING: a log moves house, from one store to another, with every chain intact.

    the source is closed      an entry in its switches says where it is now: no attempt begins there, nothing
                              is handed in any more, also by who has had it open for days
    the switches come first   so that the target is closed too, until all of it is there
    then all other entries    in their order, as they are: headers, hashes, bodies, and what is pruned of them
    both are read again       every link, every head; as many entries, under the same root
    the target is opened      by an entry of its own, which says what has come, and from where

A copy that was killed is safe to begin again: how far it had come is what the target holds, which must be the
beginning of the source, entry by entry. Whatever else a target holds, it is not touched.

Files that steps have put away are no part of a log; they stay where they are.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control.model import CONTROL, Control, moved_to
from oncemore.control.switches import turn
from oncemore.errors import InProgress, StoreError, UsageError
from oncemore.log.entry_codec import head_bytes, head_of, linked
from oncemore.log.record import Worker
from oncemore.log.store import Head, Query
from oncemore.maintenance.merkle import Tree
from oncemore.maintenance.rebuild import index
from oncemore.maintenance.tasks import somebody, told
from oncemore.policy.canonical_json import fingerprint
from oncemore.steps.run import KINDS, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Entry, Store
    from oncemore.steps.engine import Engine

    Progress = Callable[[int, int], object]

PAGE, HEADS = 500, 1000
MOST_NAMED = 5
EVER = 1e15
#: A clock that is behind by more makes what waits wait longer.
CLOCK_S = 5.0


class Copied(Value):
    """What has come.

    entries    how many the source has, and now the target
    entities   how many they are about
    root       of all entries, in both
    taken      how many of them were copied this time
    artifacts  how many files the log refers to: they were not copied
    behind_s   how far the target's clock is behind the source's; 0 if it is not
    """

    source: str
    target: str
    entries: int
    entities: int
    root: str
    taken: int
    artifacts: int
    behind_s: float


def copy(
    source: Engine,
    target: Engine,
    *,
    reason: str,
    by: str | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Move the log of one engine's store to that of another; from then on nothing begins in the first."""
    why, who = told("reason", reason), somebody(by)
    _check_apart(source, target)
    _check_idle(source)
    done = _arrived(source, target)
    if not done:
        _close(source, target.url, why, who)
        _check_idle(source, lambda: abandon(source, target, reason="somebody still worked here", by=who))
    taken = 0 if done else _filled(source.store, target.store, progress or _nothing)
    entries, entities, root = _compared(source.store, target.store)
    if not done:
        came = {"from": source.url, "entries": entries, "root": root}
        decision = {"what": "arrived", "switch": source.url, "reason": why, "actor": who}
        turn(target, lambda control: moved_to(control, ""), decision, {"copy": came})
    artifacts = sum(1 for _ in _heads(source.store, "artifact"))
    behind = max(0.0, source.now() - target.now())
    return Copied(
        source.url, target.url, entries, entities, root, taken, artifacts,
        round(behind, 3) if behind > CLOCK_S else 0.0,
    )  # fmt: skip


def abandon(source: Engine, target: Engine, *, reason: str, by: str | None = None) -> None:
    """Let a log stay where it was, whose copy has not come to its end."""
    why, who = told("reason", reason), somebody(by)
    moved = _control(source.store)[1].moved
    if not moved:
        raise UsageError(f"{source.url} has not moved; there is nothing to abandon")
    if moved != target.url:
        raise UsageError(f"{source.url} has moved to {moved}, not to {target.url}")
    if _arrived(source, target):
        raise UsageError(
            f"the copy in {target.url} is whole and may have gone on; what was done there would be done twice"
        )
    decision = {"what": "stays", "switch": target.url, "reason": why, "actor": who}
    turn(source, lambda control: moved_to(control, ""), decision)


def _nothing(done: int, of: int) -> None:
    """Show nothing."""


# May it be copied? ----------------------------------------------------------------------------------


def _check_apart(source: Engine, target: Engine) -> None:
    if source.url == target.url:
        raise UsageError(f"{source.url} is both source and target; give another target")
    held = source.store.house().held()
    if held:
        raise UsageError(f"{source.url} is a copy itself ({held}); acknowledge it first: oncemore restore")
    moved = _control(source.store)[1].moved
    if moved and moved != target.url:
        raise UsageError(f"{source.url} has moved to {moved} already; copy from there")


def _check_idle(source: Engine, otherwise: Callable[[], None] = lambda: None) -> None:
    """Refuse while somebody works on the source: what they write would be left behind."""
    alive = []
    for head in source.store.heads(Query("worker", due_by=EVER, limit=HEADS)):
        lease = head_of(head.head, Worker)
        if source.lives(head.entity.removeprefix("worker/"), lease):
            alive.append(f"process {lease.pid} on {lease.host}")
    if alive:
        otherwise()
        more = f" and {len(alive) - MOST_NAMED} more" if len(alive) > MOST_NAMED else ""
        raise InProgress(
            f"somebody works on {source.url}: {', '.join(alive[:MOST_NAMED])}{more}; stop them, or "
            "wait until their leases end"
        )


def _control(store: Store) -> tuple[int, Control]:
    head = store.head(CONTROL)
    return (0, Control()) if head is None else (head.version, head_of(head.head, Control))


def _arrived(source: Engine, target: Engine) -> bool:
    """Whether all of it has come before: the target has said so, and nobody has turned a switch since."""
    (there, closed), (here, control) = _control(source.store), _control(target.store)
    return closed.moved == target.url and here == there + 1 and not control.moved


def _close(source: Engine, where: str, why: str, who: str) -> None:
    decision = {"what": "moved", "switch": where, "reason": why, "actor": who}
    turn(source, lambda control: moved_to(control, where), decision)


# The entries ----------------------------------------------------------------------------------------


def _ordered(store: Store, control: int) -> Iterator[Entry]:
    """Return the entries of a log in the order of a copy: so many about its switches, then all others."""
    first = islice(store.entries(CONTROL), control)
    return chain(first, (entry for entry in store.entries() if entry.entity != CONTROL))


def _filled(source: Store, target: Store, progress: Progress) -> int:
    """Bring over what the target lacks, until the source has no more; return how many entries."""
    control, taken = _control(source)[0], 0
    entries = _ordered(source, control)
    there = _skipped(entries, _ordered(target, control), target)
    while True:
        last = source.changed(0, 0.0)
        while page := list(islice(entries, PAGE)):
            target.adopt(page, _heads_after(source, target, page))
            taken += len(page)
            progress(there + taken, max(last, there + taken))
        if source.changed(0, 0.0) == last:
            return taken
        entries = islice(_ordered(source, control), there + taken, None)


def _skipped(entries: Iterator[Entry], there: Iterator[Entry], target: Store) -> int:
    """Pass over what the target has already, which must be the same; return how many."""
    count = 0
    pruned: dict[str, int] = {}
    for found in there:
        entry = next(entries, None)
        if entry is None or (entry.entity, entry.hash) != (found.entity, found.hash):
            raise UsageError(
                f"the target holds something else: entry {found.seq} ({found.entity}) is not in the source "
                "at that place; give an empty store, or one that a copy of this source has begun to fill"
            )
        if entry.body is None and found.body is not None:
            pruned[entry.entity] = entry.version + 1  # in the source, since it was copied
        count += 1
    if pruned:
        target.prune(pruned)
    return count


def _heads_after(source: Store, target: Store, page: list[Entry]) -> list[Head]:
    """Return the heads that entries lead to; what came before them is in the target already."""
    known: dict[str, tuple[int, bytes, Any]] = {}
    for entry in page:
        if entry.entity not in known and entry.version > 1:
            head = target.head(entry.entity)
            if head is not None:
                kind = KINDS[entry.entity.partition("/")[0]]
                known[entry.entity] = head.version, head.hash, head_of(head.head, kind)
    verify(page, known)
    made = []
    for entity in {entry.entity for entry in page}:
        version, digest, state = known[entity]
        by = index(entity, state)
        if type(state) is Worker:  # whether it has left anything, only the worker knew
            head = source.head(entity)
            by = head.by if head is not None and head.version == version else by
        made.append(Head(entity, version, digest, head_bytes(state), by, 0))
    return made


# Is it the same? ------------------------------------------------------------------------------------


def _compared(source: Store, target: Store) -> tuple[int, int, str]:
    """Read both again, all of them; return how many entries and entities there are, and their root."""
    control = _control(source)[0]
    (here, root), (there, other) = (_root(store, control) for store in (source, target))
    if (here, root) != (there, other):
        raise StoreError(
            f"the copy is not the same: {here:,} entries with the root {root[:16]}, and {there:,} with "
            f"{other[:16]}; the target stays closed"
        )
    entities = 0
    for kind in KINDS:
        ours, theirs = _heads(source, kind), _heads(target, kind)
        for head in ours:
            copied = next(theirs, None)
            entities += 1
            if copied is None or _shown(head) != _shown(copied):
                raise StoreError(f"the head of {head.entity} differs in the copy; the target stays closed")
        extra = next(theirs, None)
        if extra is not None:
            raise StoreError(f"{extra.entity} is only in the copy; the target stays closed")
    return here, entities, root


def _root(store: Store, control: int) -> tuple[int, str]:
    tree = Tree()
    for entry in _ordered(store, control):
        digest = entry.body_digest if entry.body is None else fingerprint(entry.body)
        if entry.hash != linked(entry.prev, entry.header, digest):
            raise StoreError(f"entry {entry.seq} ({entry.entity}) was altered: its hash does not fit")
        tree.add(entry.hash + (b"\x01" if entry.body is not None else b"\x00"))
    return tree.count, tree.root.hex()


def _heads(store: Store, kind: str) -> Iterator[Head]:
    after = ""
    while page := list(store.heads(Query(kind, limit=HEADS, after=after))):
        yield from page
        after = page[-1].entity


def _shown(head: Head) -> tuple[Any, ...]:
    """Return what must be the same: all but its place in the log. The switches of a copy go on alone."""
    if head.entity == CONTROL:
        return (head.entity,)
    kind = KINDS[head.entity.partition("/")[0]]
    return head.entity, head.version, head.hash, head_of(head.head, kind), head.by
