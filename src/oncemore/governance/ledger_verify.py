"""Verify a whole log: every chain, every head, every checkpoint, every signature, every copy outside.

Whether finding a fault needs a checkpoint that is kept outside of the store:

    a changed, deleted, duplicated or exchanged entry     no: chains and signed checkpoints show it
    a rewritten chain with correct hashes                 no, if a checkpoint in the log covers it
    a deleted entity                                      no, if a checkpoint in the log covers it
    the end of the log cut together with its checkpoints  yes
    all checkpoints deleted, and the log rewritten        yes
    an older copy, or another log, in place of the log    yes

Entries after the last checkpoint have their chains only: a writer of the store can rewrite them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.governance.checkpoint_copies import read_all_notes
from oncemore.governance.checkpoints import read_checkpoints
from oncemore.governance.ledger_check import LedgerCheck, check_chain_of_checkpoints, check_outside_note
from oncemore.governance.log_order import read_with_order
from oncemore.governance.signed_decisions import count_signed_decisions
from oncemore.maintenance.verify import verify_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from oncemore.governance.checkpoint_copies import CheckpointPlace
    from oncemore.governance.keys import VerifyKey
    from oncemore.governance.log_order import LogOrder, RemovedLeaf
    from oncemore.log.store import Entry
    from oncemore.maintenance.verify import RemovedRun
    from oncemore.steps.engine import Engine


class RemovedEntries(Value):
    """Entries that a prune has deleted and recorded: how many, by which task and actor, and why."""

    entry_count: int
    task: str
    actor: str
    reason: str


class LedgerReport(Value):
    """The result of a successful verification.

    entries      the number of entries in the log
    entities     the number of entities
    origin       the name of the log; empty if it has no checkpoint
    covered      the number of entries, with deleted ones, that the newest checkpoint covers
    covered_at   when the newest checkpoint was made, in POSIX seconds; 0 if there is none
    uncovered    the number of entries after it
    checkpoints  the number of checkpoints in the log
    outside      the number of checkpoints from outside that the log was compared with
    key_ids      the keys by which signatures were checked; empty: they were not checked
    removed      deletions of entries by prunes
    forgotten    runs with pruned or erased bodies
    decisions    the number of decisions whose signatures were checked
    """

    entries: int
    entities: int
    origin: str
    covered: int
    covered_at: int
    uncovered: int
    checkpoints: int
    outside: int
    key_ids: tuple[str, ...]
    removed: tuple[RemovedEntries, ...]
    forgotten: tuple[RemovedRun, ...]
    decisions: int = 0


def verify_ledger(
    engine: Engine,
    keys: Sequence[VerifyKey] = (),
    against: Sequence[tuple[str, str]] = (),
    place: CheckpointPlace | None = None,
    *,
    on_page: Callable[[list[Entry]], object] = lambda page: None,
) -> LedgerReport:
    """Verify the log of an engine; raise `StoreError` or `LedgerMismatch` for the first fault.

    keys     the public keys that may have signed the checkpoints
    against  checkpoints from outside: the name of each for messages, and its text
    place    the second place; all of its checkpoints are compared as well
    on_page  called with each page of entries after it was checked, to show the progress
    """
    outside = [*against, *(read_all_notes(place) if place is not None else ())]
    if outside and not keys:
        raise UsageError("a checkpoint from outside is only as good as its signature; give the public key")
    return read_with_order(engine, lambda order: _verify_in_order(engine, order, keys, outside, on_page))


def _verify_in_order(
    engine: Engine,
    order: LogOrder,
    keys: Sequence[VerifyKey],
    outside: list[tuple[str, str]],
    on_page: Callable[[list[Entry]], object],
) -> LedgerReport:
    # Read before the log: the log then has all entries that they cover.
    records = list(read_checkpoints(engine))
    origin = records[0].origin if records else ""
    expected = check_chain_of_checkpoints(records, keys)
    expected += [check_outside_note(source, note, origin, keys) for source, note in outside]
    check = LedgerCheck(expected, order)

    def check_page(page: list[Entry]) -> None:
        check.add_page(page)
        on_page(page)

    report = verify_log(engine, check_page)
    check.finish()
    covered = records[-1].size if records else 0
    return LedgerReport(
        entries=report.entries,
        entities=report.entities,
        origin=origin,
        covered=covered,
        covered_at=_checkpoint_time(records[-1].note) if records else 0,
        uncovered=check.size - covered,
        checkpoints=len(records),
        outside=len(outside),
        key_ids=tuple(key.key_id for key in keys),
        removed=_count_removed(order.removed.values()),
        forgotten=report.forgotten,
        decisions=count_signed_decisions(engine.store, engine.cipher),
    )


def _checkpoint_time(note: str) -> int:
    from oncemore.governance.signed_note import parse_note

    return parse_note(note)[0].at


def _count_removed(leaves: Iterable[RemovedLeaf]) -> tuple[RemovedEntries, ...]:
    """Return the deletions of each task."""
    counts: dict[tuple[str, str, str], int] = {}
    for leaf in leaves:
        task = (leaf.task, leaf.actor, leaf.reason)
        counts[task] = counts.get(task, 0) + 1
    return tuple(RemovedEntries(count, *task) for task, count in counts.items())
