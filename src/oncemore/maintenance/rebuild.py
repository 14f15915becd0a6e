"""REBUILD: all heads made anew from the log, and compared with those that are there.

The log is read once, in pages, while others go on writing: what is compared is the log up to where it ended
when this began. An entity is forgotten as soon as its head has been compared, so that memory holds no more
than what is still open in the middle of the log.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.log.entry_codec import head_bytes, head_of
from oncemore.log.head_index import index_of
from oncemore.log.record import Worker
from oncemore.log.store import Head, Index, Query
from oncemore.steps.run import KINDS, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from oncemore.log.store import Entry, Store

    #: Version, hash and state of each entity that is not compared yet.
    Known = dict[str, tuple[int, bytes, Any]]

PAGE = 2_000
#: How many heads are put right in one transaction, and how many wrong ones are kept to be told.
MENDED, MOST_WRONG = 200, 100_000
#: In how many gaps of the log heads are looked for: each takes a look at all of them.
MOST_GAPS = 20


class Wrong(Value):
    """A head that is not what its entries lead to.

    what   "missing", "behind", "ahead" of its entries, or "different", with the fields that differ
    right  the head as it should be; None where the log has too little for one
    """

    entity: str
    what: str
    fields: tuple[str, ...]
    right: Head | None


class Rebuilt(Value):
    """What came of it: entries read, heads compared, and those that are wrong; up to which seq."""

    entries: int
    heads: int
    upto: int
    wrong: tuple[Wrong, ...]


def index(entity: str, state: Any) -> Index:
    """Return what the head of any entity is looked up by."""
    if type(state) is Worker:
        # Nobody needs to look again for what one had that somebody has seen to be gone.
        until = None if state.state == "GONE" else state.until
        return Index("worker", state.state, until, "", entity.removeprefix("worker/"))
    return index_of(state)


def rebuild(
    store: Store,
    progress: Callable[[int, int], object] = lambda done, whole: None,
    through: Callable[[Iterable[Entry], Known], object] = verify,
    known: Known | None = None,
) -> Rebuilt:
    """Fold the whole log and compare every head; `StoreError` names the first entry that does not fit.

    progress  called now and then with how far it is, and how far it will be
    through   what goes through the entries, a page at a time, and keeps in `known` what they led to
    """
    upto = store.changed(0, 0.0)
    known = {} if known is None else known
    last: dict[str, int] = {}
    wrong: list[Wrong] = []
    gaps: list[tuple[int, int | None]] = []
    count = heads = at = 0
    for page in _pages(store, upto):
        through(page, known)
        numbers = [at, *(entry.seq for entry in page)]
        if numbers[-1] - at > len(page):  # a store may leave some out; then no head points there
            gaps += [(a, b) for a, b in pairwise(numbers) if b - a > 1]
        last.update((entry.entity, entry.seq) for entry in page)
        count += len(page)
        for head in _heads_in(store, at, page):
            if head.seq == last[head.entity]:
                heads += 1
                wrong += _compared(head, known.pop(head.entity), last.pop(head.entity))
        at = page[-1].seq
        progress(at, upto)
    for entity, told in known.items():  # what the pages had no head for: it is gone, or elsewhere
        head_there = store.head(entity)
        if head_there is None or head_there.seq <= upto or head_there.version <= told[0]:
            heads += head_there is not None
            wrong += _compared(head_there, told, last[entity], entity)
        else:
            heads += 1  # somebody has written since; what they wrote on was compared by the store
    for after, before in (*gaps[:MOST_GAPS], (upto, None)):
        wrong += [Wrong(head.entity, "ahead", ("version",), None) for head in _bare(store, after, before)]
    return Rebuilt(count, heads, upto, tuple(wrong[:MOST_WRONG]))


def rebuilt_head(store: Store, entity: str, told: tuple[int, bytes, Any] | None) -> tuple[Wrong, ...]:
    """Compare one entity's head with what its entries lead to; None if it has no entries."""
    head = store.head(entity)
    if told is None:
        return () if head is None else (Wrong(entity, "ahead", ("version",), None),)
    if head is not None and head.version > told[0] and any(True for _ in store.entries(entity, told[0])):
        return ()  # somebody has written since
    return _compared(head, told, 0 if head is None else head.seq, entity)


def _pages(store: Store, upto: int) -> Iterator[list[Entry]]:
    entries = store.entries()
    while page := [entry for entry in islice(entries, PAGE) if entry.seq <= upto]:
        yield page


def _heads_in(store: Store, after: int, page: list[Entry]) -> Iterator[Head]:
    """Return the heads whose last entries are in a page."""
    kinds = {entry.entity.partition("/")[0] for entry in page}
    for kind in kinds:
        query = Query(kind, newest=True, above=after, below=page[-1].seq + 1, limit=len(page))
        yield from store.heads(query)


def _bare(store: Store, after: int, before: int | None) -> Iterator[Head]:
    """Return the heads whose last entry should be where the log has nothing."""
    for kind in KINDS:
        for head in store.heads(Query(kind, above=after, below=before, limit=MOST_WRONG)):
            if not any(True for _ in store.entries(head.entity, head.version - 1)):
                yield head


def _compared(
    head: Head | None, told: tuple[int, bytes, Any], seq: int, entity: str = ""
) -> tuple[Wrong, ...]:
    """Compare a head with what its entries lead to."""
    version, digest, state = told
    name = head.entity if head is not None else entity
    right = Head(name, version, digest, head_bytes(state), index(name, state), seq)
    if head is None:
        return (Wrong(name, "missing", (), right),)
    if head.version != version:
        ahead = head.version > version
        return (Wrong(name, "ahead" if ahead else "behind", ("version",), None if ahead else right),)
    if type(state) is Worker and state.state == "ENDED" and head.by.due is None:
        right = right._replace(by=right.by._replace(due=None))  # it has left nothing: only the worker knew
    fields = [field for field in ("hash", "by", "seq") if getattr(head, field) != getattr(right, field)]
    fields += _fields(head.head, state)
    return (Wrong(name, "different", tuple(fields), right),) if fields else ()


def _fields(stored: bytes, state: Any) -> list[str]:
    """Return in which fields a stored state differs; an older one that lacks some has their defaults."""
    try:
        there = head_of(stored, type(state))
    except Exception:  # noqa: BLE001 - whatever the bytes are, they are not a state
        return ["head"]
    return [field for field in state._fields if getattr(there, field) != getattr(state, field)]


def mend(
    store: Store, found: Rebuilt, progress: Callable[[int, int], object] = lambda done, whole: None
) -> int:
    """Put heads right, some at a time; return how many were put."""
    right = [one.right for one in found.wrong if one.right is not None]
    put = 0
    for at in range(0, len(right), MENDED):
        put += store.mend(right[at : at + MENDED], found.upto)
        progress(at, len(right))
    return put
