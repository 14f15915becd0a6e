"""Write a log as one file, and verify such a file with nothing but the public key.

The file is JSON lines, one object per line, in the order of the Merkle tree:

    {"type": "ledger", "format": 1, "origin": …, "checkpoints": [note, …]}    the first line
    {"type": "entry", "entity": …, "version": …, "hash": hex, "header": text, "body": text}
    {"type": "removed", "hash": hex}                                          an entry that a prune deleted
    {"type": "end", "size": …}                                                the last line

`header` and `body` are the stored bytes. A body that is not text (encrypted ones are not) is given as
{"base64": …}; one that was pruned, erased or left out is null, with its SHA-256 in "body_digest". The hash of
an entry covers the digest of its body, so a file without bodies verifies as well.

The file ends with the newest checkpoint: entries after it have no signature and are not written. Each
checkpoint is checked against the entries before it, and each must be signed by a given key. The entries in
which prunes recorded deletions are always written with their bodies, and each removed line must be recorded
in one of them; if those bodies are encrypted, the number of such lines is reported instead.
"""

from __future__ import annotations

from base64 import b64encode
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._replace_file import open_replacement
from oncemore._values import Value
from oncemore.errors import LedgerMismatch, StoreError, UsageError
from oncemore.governance.checkpoint_record import CheckpointRecord
from oncemore.governance.checkpoints import read_checkpoints
from oncemore.governance.ledger_check import (
    LedgerCheck,
    check_chain_of_checkpoints,
    check_outside_note,
)
from oncemore.governance.log_order import LEAVES_FIELD, LEDGER_ENTITY, read_in_order, read_with_order
from oncemore.governance.signed_decisions import DecisionVerifier, describe_fault
from oncemore.governance.signed_note import decode_base64, parse_note
from oncemore.log.entry_codec import decode_header
from oncemore.log.record import NOWHERE
from oncemore.log.store import Entry, hash_body
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from oncemore.governance.keys import VerifyKey
    from oncemore.governance.log_order import LogOrder
    from oncemore.steps.engine import Engine
    from oncemore.steps.history import FoldedHeads

FORMAT = 1
PAGE_SIZE = 1000
TASK_PREFIX = "maintenance/"
#: The largest line of a file: a body of 64 MiB, as the largest that a store takes, in base64.
MAX_LINE_BYTES = 100 * 1024 * 1024
_ENTRY_FIELDS = {"type", "entity", "version", "hash", "header", "body"}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class ExportReport(Value):
    """The result of an export: the number of entries with deleted ones, and the newest checkpoint."""

    size: int
    origin: str
    checkpoints: int
    note: str


class ExportVerification(Value):
    """The result of verifying an exported file.

    entries      the number of entries in the file
    removed      the number of entries that a prune deleted
    unexplained  the number of those with an encrypted record, unreadable here
    bodies       the number of entries with a body
    covered_at   when the newest checkpoint was made, in POSIX seconds
    key_ids      the keys by which signatures were checked
    outside      the number of checkpoints from outside that the file was compared with
    decisions    the number of decisions whose signatures were checked
    """

    origin: str
    entries: int
    removed: int
    unexplained: int
    bodies: int
    entities: int
    checkpoints: int
    covered_at: int
    key_ids: tuple[str, ...]
    outside: int
    decisions: int = 0


# Writing --------------------------------------------------------------------------------------------


def export_ledger(engine: Engine, file: BinaryIO, *, with_bodies: bool = True) -> ExportReport:
    """Write the log up to its newest checkpoint; raise `UsageError` if it has none."""

    def write_file(order: LogOrder) -> ExportReport:
        # A repeated pass begins at the start of the file.
        file.seek(0)
        file.truncate()
        return _write_lines(engine, file, order, with_bodies)

    return read_with_order(engine, write_file)


def export_to_path(engine: Engine, path: Path, *, with_bodies: bool = True) -> ExportReport:
    """Write the log to a file that gets its name only when it is complete."""
    with open_replacement(path) as file:
        return export_ledger(engine, file, with_bodies=with_bodies)


def _write_lines(engine: Engine, file: BinaryIO, order: LogOrder, with_bodies: bool) -> ExportReport:
    notes = [record.note for record in read_checkpoints(engine)]
    if not notes:
        raise UsageError("the log has no checkpoint; make one first: oncemore ledger checkpoint")
    newest = parse_note(notes[-1])[0]
    first = {"type": "ledger", "format": FORMAT, "origin": newest.origin, "checkpoints": notes}
    file.write(_encode(first) + b"\n")
    size = 0
    records: set[bytes] = set()
    needed: set[bytes] = set()
    for item in islice(read_in_order(engine.store, order), newest.size):
        if isinstance(item, bytes):
            needed.add(order.removed[size].recorded_in)
            line = _encode({"type": "removed", "hash": item.hex()})
        else:
            is_task = item.entity.startswith(TASK_PREFIX)
            if is_task:
                records.add(item.hash)
            line = _encode(encode_entry_record(item, with_bodies=with_bodies or is_task))
        file.write(line + b"\n")
        size += 1
    if not needed <= records:
        raise UsageError(
            "a prune has deleted entries since the newest checkpoint; make one first: oncemore ledger "
            "checkpoint"
        )
    file.write(_encode({"type": "end", "size": size}) + b"\n")
    return ExportReport(size, newest.origin, len(notes), notes[-1])


def encode_entry_record(entry: Any, *, with_bodies: bool = True) -> dict[str, Any]:
    """Return an entry as a JSON object."""
    body = entry.body if with_bodies else None
    record: dict[str, Any] = {
        "type": "entry",
        "entity": entry.entity,
        "version": entry.version,
        "hash": entry.hash.hex(),
        "header": entry.header.decode(),
        "body": None if body is None else _encode_bytes(body),
    }
    if body is None:
        record["body_digest"] = hash_body(entry).hex()
    return record


def _encode_bytes(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode()}


# Reading --------------------------------------------------------------------------------------------


def decode_entry_record(record: dict[str, Any], prev: bytes, position: int) -> Entry:
    """Return the entry of a JSON object; raise `LedgerMismatch` for any other object.

    prev      the hash of the entity's previous entry
    position  its number for messages: the `seq` of the store is not part of the evidence
    """
    try:
        body = record["body"]
        # Nothing may be in the file that the hash does not cover.
        is_complete = (body is None) == ("body_digest" in record) and record["type"] == "entry"
        if record.keys() - {"body_digest"} != _ENTRY_FIELDS or not is_complete:
            raise ValueError(f"it has the fields {', '.join(record)}")
        if isinstance(body, dict):
            body = decode_base64(body["base64"])
        elif body is not None:
            body = body.encode()
        digest = _decode_hex(record["body_digest"]) if body is None else None
        entry = Entry(
            seq=position,
            entity=record["entity"],
            version=record["version"],
            prev=prev,
            hash=_decode_hex(record["hash"]),
            header=record["header"].encode(),
            body=body,
            body_digest=digest,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise LedgerMismatch(f"entry {position} of the file is damaged: {fault!r:.200}") from None
    return entry


def _decode_hex(text: str) -> bytes:
    data = bytes.fromhex(text)
    if data.hex() != text:
        raise ValueError("hexadecimal digits are lower-case here")
    return data


def read_records(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON lines; raise `LedgerMismatch` with the number of a damaged line."""
    number = 0
    # A limit, because the file comes from a stranger: a line without an end must not fill the memory.
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        try:
            yield _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise LedgerMismatch(f"line {number} of the file cannot be read: {fault}") from None


class ExportedLedger:
    """An exported file that is being verified: the checkpoints of its first line, and the counts."""

    def __init__(self, records: Iterator[dict[str, Any]]) -> None:
        first = next(records, {})
        if first.get("type") != "ledger" or not isinstance(first.get("checkpoints"), list):
            raise LedgerMismatch("the file is not an exported ledger: its first line says something else")
        if first.get("format") != FORMAT:
            raise LedgerMismatch(
                f"the file has format {first.get('format')!r:.20}, and this oncemore reads format {FORMAT}: "
                "use the version that wrote it"
            )
        if first.keys() != {"type", "format", "origin", "checkpoints"}:
            raise LedgerMismatch(f"the first line of the file has the fields {', '.join(first)}")
        self._records = records
        self.origin = first["origin"]
        self.notes = [str(note) for note in first["checkpoints"]]
        self.entries = self.bodies = 0
        self.decisions = DecisionVerifier()
        # By position: the lines about removed entries, and the records of prunes.
        self.removed: dict[int, str] = {}
        self._recorded: dict[int, str] = {}
        self._has_unreadable_record = False
        self.stated_size = -1
        # Version, hash and state of each entity.
        self.known: FoldedHeads = {}

    def read_pages(self) -> Iterator[list[bytes]]:
        """Verify the chains of the entries; yield the hashes of the leaves in pages."""
        page: list[bytes] = []
        for record in self._records:
            if record.get("type") == "end":
                self.stated_size = record.get("size", -1)
                break
            page.append(self._read_leaf(record))
            if len(page) == PAGE_SIZE:
                yield page
                page = []
        yield page
        if self.stated_size != self._size or next(self._records, None) is not None:
            raise LedgerMismatch("the file is not complete: its last line does not state its number of lines")

    @property
    def _size(self) -> int:
        return self.entries + len(self.removed)

    def count_unexplained(self) -> int:
        """Return the number of removed entries without a readable record; refuse them if all are readable."""
        unexplained = [at for at, entry_hash in self.removed.items() if self._recorded.get(at) != entry_hash]
        if unexplained and not self._has_unreadable_record:
            raise LedgerMismatch(
                f"{len(unexplained):,} entries are missing, the first at position {unexplained[0]}, and no "
                "entry records who removed them"
            )
        return len(unexplained)

    def _read_leaf(self, record: dict[str, Any]) -> bytes:
        if record.get("type") == "removed":
            try:
                leaf = _decode_hex(record["hash"])
            except (KeyError, TypeError, ValueError):
                raise LedgerMismatch("a line about a removed entry is damaged") from None
            self.removed[self._size] = leaf.hex()
            return leaf
        known = self.known.get(str(record.get("entity")))
        entry = decode_entry_record(record, NOWHERE if known is None else known[1], self._size)
        try:
            verify_chain([entry], self.known)
        except StoreError as fault:
            raise LedgerMismatch(str(fault)) from None
        if entry.entity == LEDGER_ENTITY:
            note = CheckpointRecord(**decode_header(entry.header).sets).note
            if note not in self.notes:
                raise LedgerMismatch(f"entry {entry.seq} has a checkpoint that the first line does not list")
        if entry.entity.startswith(TASK_PREFIX):
            self._read_record(entry)
        for unsigned in self.decisions.check_entry(entry):
            raise LedgerMismatch(describe_fault(unsigned))
        self.entries += 1
        self.bodies += entry.body is not None
        return entry.hash

    def _read_record(self, entry: Entry) -> None:
        """Read the entries that a prune has recorded as deleted."""
        try:
            leaves = _decode(entry.body or b"").get(LEAVES_FIELD, ())
            self._recorded.update({int(position): str(entry_hash) for position, entry_hash in leaves})
        except (msgspec.MsgspecError, TypeError, ValueError):
            self._has_unreadable_record = True


def verify_export(
    file: BinaryIO, keys: Sequence[VerifyKey], against: Iterable[tuple[str, str]] = ()
) -> ExportVerification:
    """Verify an exported file; raise `LedgerMismatch` for the first fault.

    keys     the public keys that may have signed the checkpoints
    against  checkpoints from elsewhere: the name of each for messages, and its text
    """
    if not keys:
        raise UsageError("give the public key of the log: without it nothing proves who made the file")
    # The checkpoints are in the first line, so that the file is read once and never held in memory.
    exported = ExportedLedger(read_records(file))
    records = [_restore_record(note) for note in exported.notes]
    expected = check_chain_of_checkpoints(records, keys)
    if not expected or exported.origin != records[0].origin:
        raise LedgerMismatch("the file has no checkpoint of the log that its first line names")
    outside = [check_outside_note(source, note, records[0].origin, keys) for source, note in against]
    check = LedgerCheck([*expected, *outside])
    for page in exported.read_pages():
        check.add_hashes(page)
    check.finish()
    # Entries after the newest checkpoint would have no signature.
    newest = parse_note(exported.notes[-1])[0]
    if check.size != newest.size:
        raise LedgerMismatch(f"the file has {check.size - newest.size:,} entries after its newest checkpoint")
    return ExportVerification(
        origin=newest.origin,
        entries=exported.entries,
        removed=len(exported.removed),
        unexplained=exported.count_unexplained(),
        bodies=exported.bodies,
        entities=len(exported.known),
        checkpoints=len(exported.notes),
        covered_at=newest.at,
        key_ids=tuple(key.key_id for key in keys),
        outside=len(outside),
        decisions=exported.decisions.checked,
    )


def _restore_record(note: str) -> CheckpointRecord:
    """Return the record of a checkpoint, made from its text alone."""
    checkpoint = parse_note(note)[0]
    return CheckpointRecord(
        origin=checkpoint.origin, size=checkpoint.size, last_seq=checkpoint.last_seq, note=note
    )
