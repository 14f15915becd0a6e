"""Read the checkpoints of a log and the decisions of people in it, for the page about the ledger."""

from __future__ import annotations

import threading
from collections import deque

from oncemore._values import Value
from oncemore.queries.entries import read_body

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.governance.keys import VerifyKey
    from oncemore.governance.ledger_verify import LedgerReport
    from oncemore.log.store import Entry
    from oncemore.steps.engine import Engine

#: The number of decisions that are kept, and of log entries that are searched for them at the start.
MAX_DECISIONS, MAX_ENTRIES = 100, 20_000


class CheckpointRow(Value):
    """A checkpoint: its time, the number of entries that it covers, its root, and the hashes of its keys."""

    at: float
    size: int
    root: str
    origin: str
    signers: tuple[str, ...]


class RecordedDecision(Value):
    """A decision of a person, as its entry holds it: who, when and why."""

    at: float
    by: str
    action: str
    reason: str
    entity: str
    seq: int


def list_checkpoints(engine: Engine) -> list[CheckpointRow]:
    """Return the checkpoints of a log, oldest first."""
    from oncemore.governance.checkpoints import read_checkpoints
    from oncemore.governance.signed_note import parse_note

    rows = []
    for record in read_checkpoints(engine):
        # The first entry of a ledger chooses its name, and signs nothing yet.
        if record.note:
            checkpoint, _, signatures = parse_note(record.note)
            rows.append(
                CheckpointRow(
                    at=float(checkpoint.at),
                    size=record.size,
                    root=checkpoint.root.hex(),
                    origin=record.origin,
                    signers=tuple(each.key_hash.hex() for each in signatures),
                )
            )
    return rows


class DecisionList:
    """The last decisions of people in a log; reads every entry once."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._lock = engine, threading.Lock()
        self._position = max(0, engine.store.wait_for_change(0, 0.0) - MAX_ENTRIES)
        self._decisions: deque[RecordedDecision] = deque(maxlen=MAX_DECISIONS)

    def read_decisions(self) -> list[RecordedDecision]:
        """Return the last decisions, newest first."""
        with self._lock:
            for entry in self._engine.store.read_entries(after=self._position):
                self._position = entry.seq
                # Most entries are no decisions; the search in bytes is cheaper than decoding them.
                if entry.body and b'"decision"' in entry.body:
                    self._add_entry(entry)
            return list(self._decisions)[::-1]

    def _add_entry(self, entry: Entry) -> None:
        from oncemore.log.entry_codec import decode_header

        decision = read_body(entry).get("decision")
        if isinstance(decision, dict):
            self._decisions.append(
                RecordedDecision(
                    at=decode_header(entry.header).at,
                    by=str(decision.get("actor", "")),
                    action=str(decision.get("action", "")),
                    reason=str(decision.get("reason", "")),
                    entity=entry.entity,
                    seq=entry.seq,
                )
            )


def load_ledger_keys() -> list[VerifyKey]:
    """Return the public key of the setting `ledger_key`; an empty list if there is none."""
    from pathlib import Path

    from oncemore.governance.keys import load_verify_key, public_file_of
    from oncemore.queries.stores import settings_for

    private = settings_for().ledger_key
    public = public_file_of(Path(private)) if private else None
    return [load_verify_key(public)] if public is not None and public.exists() else []


def verify_now(
    engine: Engine, keys: Sequence[VerifyKey], progress: Callable[[int, int], object]
) -> LedgerReport:
    """Verify every chain, head and checkpoint of a log; raise the first fault.

    progress  called with the number of entries that were verified, and of all entries
    """
    from oncemore.governance.ledger_verify import verify_ledger

    total, verified = engine.store.wait_for_change(0, 0.0), 0

    def count_page(page: list[Entry]) -> None:
        nonlocal verified
        verified += len(page)
        # Entries that came since then are verified too.
        progress(min(verified, total), total)

    return verify_ledger(engine, keys, on_page=count_page)
