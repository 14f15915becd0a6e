"""Rebuild all heads from the log, compare them with the stored heads, and repair wrong ones.

The log is read once, in pages, up to its last entry at the start; other processes may write meanwhile. An
entity is released from memory as soon as its head has been compared, so that memory holds only the entities
that have later entries.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from oncemore._values import Value, make
from oncemore.log.entry_codec import build_index, decode_head, encode_head
from oncemore.log.record import RunRecord, WorkerRecord
from oncemore.log.store import Head, HeadIndex, HeadQuery
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Entry, Store
    from oncemore.steps.history import FoldedHead, FoldedHeads

PAGE_SIZE = 2_000
#: The number of heads repaired in one transaction, and the number of mismatches that a report holds.
REPAIR_BATCH, MAX_MISMATCHES = 200, 100_000
#: The number of gaps in the log that are searched for heads: each search reads all heads.
MAX_GAPS = 20


class HeadMismatch(Value):
    """A stored head that does not match its entries.

    what   "missing", "behind" or "ahead" of its entries, or "different"
    fields the fields that differ
    right  the correct head; None if the log lacks the entries for one
    """

    entity: str
    what: str
    fields: tuple[str, ...]
    right: Head | None


class RebuildReport(Value):
    """The result of a rebuild: entries read, heads compared, the last seq, and the mismatches."""

    entries: int
    heads: int
    upto: int
    wrong: tuple[HeadMismatch, ...]


def index_head(entity: str, state: Any) -> HeadIndex:
    """Return the index of an entity's head."""
    if type(state) is WorkerRecord:
        # A worker in GONE was taken over: no other worker has to search for its runs again.
        until = None if state.state == "GONE" else state.lease_until
        return HeadIndex("worker", state.state, until, "", entity.removeprefix("worker/"))
    return build_index(state)


def rebuild_heads(
    store: Store,
    progress: Callable[[int, int], object] = lambda done, whole: None,
    fold_page: Callable[[list[Entry], FoldedHeads], object] = verify_chain,
    known: FoldedHeads | None = None,
) -> RebuildReport:
    """Fold the whole log and compare every head; raise `StoreError` for the first entry that does not fit.

    progress   called after every page with the last seq read and the last seq of the log
    fold_page  called with every page; it verifies the entries and stores their results in `known`
    known      the entities whose heads are not compared yet; the caller's table, or a new one
    """
    upto = store.wait_for_change(0, 0.0)
    known = {} if known is None else known
    wrong: list[HeadMismatch] = []
    gaps: list[tuple[int, int | None]] = []
    count = heads = at = 0
    for page in _read_pages(store, upto):
        fold_page(page, known)
        # A store may skip numbers, for example after a rollback. A head that points into a gap has lost its
        # entries, so the gaps are searched below.
        if page[-1].seq - at > len(page):
            numbers = [at, *[entry.seq for entry in page]]
            gaps += [(a, b) for a, b in pairwise(numbers) if b - a > 1]
        count += len(page)
        for head in _list_page_heads(store, at, page):
            folded = known.get(head.entity)
            if folded is None:
                # The head of an entity without entries, which names an entry of another entity.
                wrong.append(HeadMismatch(head.entity, "ahead", ("version",), None))
            elif head.seq == folded[3]:
                heads += 1
                del known[head.entity]
                wrong += _compare_head(head, folded)
        at = page[-1].seq
        progress(at, upto)
    # The index had no head at the last entry of these entities: it is missing, wrong, or newer.
    for entity, folded in known.items():
        stored = store.load_head(entity)
        if stored is None or stored.seq <= upto or stored.version <= folded[0]:
            heads += stored is not None
            wrong += _compare_head(stored, folded, entity)
        else:
            heads += 1  # written since the start; the store's compare-and-set has checked the old head
    for after, before in (*gaps[:MAX_GAPS], (upto, None)):
        wrong += [
            HeadMismatch(head.entity, "ahead", ("version",), None)
            for head in _list_heads_without_entry(store, after, before)
        ]
    return RebuildReport(count, heads, upto, tuple(wrong[:MAX_MISMATCHES]))


def check_head(store: Store, entity: str, folded: FoldedHead | None) -> tuple[HeadMismatch, ...]:
    """Compare one entity's head with its folded entries (None if it has no entries)."""
    head = store.load_head(entity)
    if folded is None:
        return () if head is None else (HeadMismatch(entity, "ahead", ("version",), None),)
    if (
        head is not None
        and head.version > folded[0]
        and any(True for _ in store.read_entries(entity, folded[0]))
    ):
        return ()  # another process has appended since the entries were folded
    return _compare_head(head, folded, entity)


def _read_pages(store: Store, upto: int) -> Iterator[list[Entry]]:
    entries = store.read_entries()
    # Another process may have appended since the rebuild began: a page without older entries is the end.
    while page := [entry for entry in islice(entries, PAGE_SIZE) if entry.seq <= upto]:
        yield page


def _list_page_heads(store: Store, after: int, page: list[Entry]) -> Iterator[Head]:
    """Return the heads that point to an entry of a page, of all kinds."""
    query = HeadQuery("", newest_first=True, after_seq=after, before_seq=page[-1].seq + 1, limit=len(page))
    return store.list_heads(query)


def _list_heads_without_entry(store: Store, after: int, before: int | None) -> Iterator[Head]:
    """Yield the heads that point into a gap of the log and have no last entry."""
    # One query for all kinds: no index has the number of the last entry, so that each query reads all heads.
    query = HeadQuery("", after_seq=after, before_seq=before, limit=MAX_MISMATCHES)
    for head in store.list_heads(query):
        if not any(True for _ in store.read_entries(head.entity, head.version - 1)):
            yield head


def _compare_head(head: Head | None, folded: FoldedHead, entity: str = "") -> tuple[HeadMismatch, ...]:
    """Compare a stored head with the folded entries; `entity` names it if the head is missing."""
    version, digest, state, seq = folded
    name = head.entity if head is not None else entity
    index = build_index(state) if type(state) is RunRecord else index_head(name, state)
    fields = (name, version, digest, encode_head(state), index, seq)
    # The common case first: the body, which lists of heads lack, is the only field that is not compared.
    if head is not None and head[:6] == fields:
        return ()
    right = make(Head, (*fields, None))
    if head is None:
        return (HeadMismatch(name, "missing", (), right),)
    if head.version != version:
        ahead = head.version > version
        return (HeadMismatch(name, "ahead" if ahead else "behind", ("version",), None if ahead else right),)
    if type(state) is WorkerRecord and state.state == "ENDED" and head.by.due is None:
        # An ended worker without open runs has no due time. Only its own last write knew that.
        right = right._replace(by=right.by._replace(due=None))
    wrong = [field for field in ("hash", "by", "seq") if getattr(head, field) != getattr(right, field)]
    wrong += _find_different_fields(head.head, state)
    return (HeadMismatch(name, "different", tuple(wrong), right),) if wrong else ()


def _find_different_fields(stored: bytes, state: Any) -> list[str]:
    """Return the fields in which a stored state differs; fields that an older state lacks have defaults."""
    try:
        decoded = decode_head(stored, type(state))
    except Exception:  # noqa: BLE001 - damaged bytes can raise anything
        return ["head"]
    return [field for field in state._fields if getattr(decoded, field) != getattr(state, field)]


def repair_heads(
    store: Store, report: RebuildReport, progress: Callable[[int, int], object] = lambda done, whole: None
) -> int:
    """Replace wrong heads by the rebuilt ones, in batches; return the number of replaced heads."""
    right = [mismatch.right for mismatch in report.wrong if mismatch.right is not None]
    replaced = 0
    for start in range(0, len(right), REPAIR_BATCH):
        # The store leaves out heads that were written after the rebuild ended.
        replaced += store.open_maintenance().replace_heads(right[start : start + REPAIR_BATCH], report.upto)
        progress(start, len(right))
    return replaced
