"""Verify a log: every hash link, every head, and a recorded reason for every body that is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.log.entry_codec import decode_header, read_body
from oncemore.log.record import EventRecord
from oncemore.maintenance.rebuild import rebuild_heads
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Entry, Head
    from oncemore.maintenance.rebuild import HeadMismatch
    from oncemore.steps.engine import Engine
    from oncemore.steps.history import FoldedHeads


class RemovedRun(Value):
    """A run without bodies: how they were removed ("pruned" or "erased"), when, by which actor and why."""

    key: str
    step: str
    how: str
    at: float
    actor: str
    reason: str


class VerificationReport(Value):
    """The result of a successful verification: the number of entries and entities, and the removed runs."""

    entries: int
    entities: int
    forgotten: tuple[RemovedRun, ...]


def verify_log(
    engine: Engine, on_page: Callable[[list[Entry]], object] = lambda page: None
) -> VerificationReport:
    """Check every hash link, and every head against its entries.

    Raise `StoreError` for the first fault. A missing body is a fault unless a PRUNE or ERASE entry of the
    same run names the actor that removed it.

    on_page  called with each page of entries after its links were checked
    """
    removals: dict[str, tuple[int, RemovedRun]] = {}
    without_body: dict[str, Entry] = {}
    # Only the states of entities in one of the two tables above are kept: the log may not fit into memory.
    states: dict[str, Any] = {}

    def fold_page(page: list[Entry], known: FoldedHeads) -> None:
        found: list[Entry] = []
        verify_chain(page, known, found)
        for entry in found:
            if entry.body is None:
                without_body[entry.entity] = entry
            removal = _read_removal(engine, entry)
            if removal is not None:
                removals[entry.entity] = entry.version, removal
        if without_body or removals:
            for entry in page:
                if entry.entity in without_body or entry.entity in removals:
                    states[entry.entity] = known[entry.entity][2]
        on_page(page)

    report = rebuild_heads(engine.store, fold_page=fold_page)
    # The first fault is enough; the doctor lists all of them.
    for mismatch in report.wrong:
        raise StoreError(_describe_mismatch(mismatch))
    for entity, entry in without_body.items():
        if not _is_removal_explained(entry, states[entity], removals):
            raise StoreError(
                f"the body of entry {entry.seq} ({entity}) is missing, and no entry records who removed it"
            )
    removed = (removal._replace(step=states[entity].step) for entity, (_, removal) in removals.items())
    return VerificationReport(report.entries, report.heads, tuple(removed))


def verify_copy(entries: Iterator[Entry], heads: Iterator[Head]) -> tuple[int, int]:
    """Check the chains and heads of a copied log; return its numbers of entries and entities."""
    entry_count = 0

    def count_entries() -> Iterator[Entry]:
        nonlocal entry_count
        for entry in entries:
            entry_count += 1
            yield entry

    chains = verify_chain(count_entries())
    last = {entity: (version, digest) for entity, (version, digest, _, _) in chains.items()}
    if {head.entity: (head.version, head.hash) for head in heads} != last:
        raise StoreError("the heads of the copy do not match its entries; the copy was deleted")
    return entry_count, len(last)


def _describe_mismatch(mismatch: HeadMismatch) -> str:
    """Return the error message for a head that does not match its entries."""
    fault = {
        "missing": "is missing",
        "ahead": "refers to entries that are not in the log",
        "behind": "is behind its last entry",
        "different": f"differs from its entries ({', '.join(mismatch.fields)})",
    }
    return (
        f"the head of {mismatch.entity} {fault[mismatch.what]}: the head or the log was altered; "
        "`oncemore store doctor --rebuild` compares all heads"
    )


def _is_removal_explained(entry: Entry, state: Any, removals: dict[str, tuple[int, RemovedRun]]) -> bool:
    """Return whether a later entry records the removal of this entry's body."""
    if type(state) is EventRecord:
        # The bodies of events are removed together with those of their run, by the run's entry.
        _, removal = removals.get(state.run_entity, (0, None))
        return removal is not None and removal.at >= state.created_at
    return entry.version < removals.get(entry.entity, (0, None))[0]


def _read_removal(engine: Engine, entry: Entry) -> RemovedRun | None:
    """Return the removal that a PRUNE or ERASE entry records; None for every other entry."""
    header = decode_header(entry.header)
    how = {"PRUNE": "pruned", "ERASE": "erased"}.get(header.marks[0])
    if how is None:
        return None
    try:
        body = read_body(entry, engine.cipher)
    except UsageError:
        # The body is encrypted and the key is not here. Hashes cover stored bytes and need no key.
        body = {}
    removal = body.get("prune" if how == "pruned" else "erase", {})
    return RemovedRun(
        key=entry.entity.removeprefix("run/"),
        step="",
        how=how,
        at=header.at,
        actor=removal.get("actor", ""),
        reason=removal.get("reason", ""),
    )
