"""Rebuild all heads from the log, compare them with the stored heads, and repair wrong ones.

The log is read once, in pages, up to its last entry at the start, and beside it all heads; other processes
may write meanwhile. An entity is released from memory as soon as its head has been compared, so that memory
holds only the entities that have later entries.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import chain, islice
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

# Every stage passes over the page again: small ones stay in the processor's cache (ADR 0097).
PAGE_SIZE = 250
#: The number of heads repaired in one transaction, and the number of mismatches that a report holds.
REPAIR_BATCH, MAX_MISMATCHES = 200, 100_000


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
    comparison = HeadComparison(store, known, upto)
    count = 0
    for page in _read_pages(store, upto):
        fold_page(page, known)
        count += len(page)
        comparison.compare_page(page)
        progress(page[-1].seq, upto)
    comparison.finish()
    return RebuildReport(count, comparison.head_count, upto, tuple(comparison.wrong[:MAX_MISMATCHES]))


class HeadComparison:
    """The comparison of all heads with the entries that are being folded.

    The store lists heads about in the order in which the entities were created, so that a head is read close
    to the entries of its entity. The one that is read first waits for the other: a head in `_waiting`, by the
    number of its last entry, and an entity in `known`. So memory holds the entities that have later entries.
    """

    def __init__(self, store: Store, known: FoldedHeads, upto: int) -> None:
        self._store, self._known, self._upto = store, known, upto
        self._heads = iter(store.list_heads(HeadQuery("", by_creation=True)))
        self._waiting: list[tuple[int, str, Head]] = []
        #: Heads whose last entry was not found where they say it is.
        self._unmatched: list[Head] = []
        self.head_count = 0
        self.wrong: list[HeadMismatch] = []

    def compare_page(self, page: list[Entry]) -> None:
        """Compare the heads whose last entry is in this page or before it; the page is folded already."""
        at = page[-1].seq
        created = [entry.version for entry in page].count(1)
        for head in islice(self._heads, created):
            if head.seq <= at:
                self._compare(head)
            else:
                heappush(self._waiting, (head.seq, head.entity, head))
        while self._waiting and self._waiting[0][0] <= at:
            self._compare(heappop(self._waiting)[2])

    def _compare(self, head: Head) -> None:
        folded = self._known.get(head.entity)
        if folded is None:
            self._unmatched.append(head)
        # Else the head is wrong, or newer: it is loaded by name at the end.
        elif folded[3] == head.seq:
            self.head_count += 1
            del self._known[head.entity]
            self.wrong += _compare_head(head, folded)

    def finish(self) -> None:
        """Compare the rest after the last page."""
        for head in chain(self._heads, (head for _, _, head in self._waiting)):
            if head.seq <= self._upto:
                self._compare(head)
            else:
                self._unmatched.append(head)
        # No head was read for the last entry of these entities: it is missing, wrong, or newer.
        for entity, folded in self._known.items():
            stored = self._store.load_head(entity)
            self.head_count += stored is not None
            # A newer head was written since the start; the store's compare-and-set has checked the old one.
            if stored is None or stored.seq <= self._upto or stored.version <= folded[0]:
                self.wrong += _compare_head(stored, folded, entity)
        for head in self._unmatched:
            if _lacks_entry(self._store, head):
                self.wrong.append(HeadMismatch(head.entity, "ahead", ("version",), None))


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
    while page := _drop_newer(list(islice(entries, PAGE_SIZE)), upto):
        yield page


def _drop_newer(page: list[Entry], upto: int) -> list[Entry]:
    """Return the entries of a page up to a number; most pages have no later ones."""
    return [entry for entry in page if entry.seq <= upto] if page and page[-1].seq > upto else page


def _lacks_entry(store: Store, head: Head) -> bool:
    """Whether the last entry of a head is not in the log, although the store still has the head."""
    current = store.load_head(head.entity)
    # A prune may have deleted the entity since the head was read, and other processes may have appended.
    if current is None:
        return False
    last = (current.entity, current.version)
    entries = store.read_entries(current.entity, current.version - 1)
    return all((entry.entity, entry.version) != last for entry in entries)


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
