"""Proofs that verify without the log: of one entity's history, and of one checkpoint in another.

*Inclusion*: a text file of the C2SP format "tlog-proof", with the suffix `.tlog-proof`:

    c2sp.org/tlog-proof@v1
    extra eyJlbnRyaWVzIjpb…          base64 of {"entries": […]}: those of the entity up to the proven one
    index 17                         the position of the proven entry in the tree
    4q3+…                            the hashes from the leaf to the root, one per line
                                     an empty line
    oncemore/5f0c…                   the signed checkpoint

The entries are those of an export. Each is linked to the one before it, so that one proof shows the whole
history of a run up to that entry.

*Consistency*: a JSON file {"type": "consistency", "format": 1, "old": note, "new": note, "hashes": […]}: the
log of the new checkpoint begins with the log of the old one.
"""

from __future__ import annotations

import re
from base64 import b64encode
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value
from oncemore.errors import LedgerMismatch, StoreError, UsageError
from oncemore.governance.checkpoints import read_checkpoints
from oncemore.governance.ledger_export import decode_entry_record, encode_entry_record
from oncemore.governance.log_order import read_in_order, read_with_order
from oncemore.governance.merkle import (
    compute_root,
    hash_leaf,
    is_consistent,
    is_included,
    prove_consistency,
    prove_inclusion,
)
from oncemore.governance.signed_note import decode_base64, parse_note, verify_note
from oncemore.log.record import NOWHERE
from oncemore.steps.history import verify_chain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.governance.keys import VerifyKey
    from oncemore.governance.log_order import LogOrder
    from oncemore.log.store import Entry
    from oncemore.steps.engine import Engine

FORMAT = 1
FIRST_LINE = "c2sp.org/tlog-proof@v1"
_INDEX = re.compile(r"index (0|[1-9][0-9]{0,15})")


class ProvenHistory(Value):
    """A valid inclusion proof: the entries of an entity, and the checkpoint that covers the last one.

    entries  the JSON objects of the entries, as in an export
    """

    entity: str
    version: int
    position: int
    size: int
    origin: str
    covered_at: int
    entries: tuple[dict[str, Any], ...]


class ProvenGrowth(Value):
    """A valid consistency proof: the log of the new size begins with the log of the old size."""

    origin: str
    old_size: int
    new_size: int
    old_at: int
    new_at: int


# Inclusion ------------------------------------------------------------------------------------------


def prove_entry(engine: Engine, subject: str) -> str:
    """Return the proof of an entry: by its `seq`, or the last covered entry of an entity or of a key."""
    note = _load_newest_note(engine)
    newest = parse_note(note)[0]

    def find_leaf(order: LogOrder) -> tuple[list[bytes], int, Entry]:
        leaves: list[bytes] = []
        index, found = -1, None
        for item in islice(read_in_order(engine.store, order), newest.size):
            if not isinstance(item, bytes) and _is_subject(item, subject):
                index, found = len(leaves), item
            leaves.append(hash_leaf(item if isinstance(item, bytes) else item.hash))
        if found is None:
            raise UsageError(
                f"the newest checkpoint covers no entry {subject!r}: give a seq, a key or an entity; for a "
                "new entry make a checkpoint first (oncemore ledger checkpoint)"
            )
        return leaves, index, found

    leaves, index, entry = read_with_order(engine, find_leaf)
    # A proof of a changed log would fail at the auditor, and only say that it fails.
    if compute_root(leaves) != newest.root:
        raise LedgerMismatch("the log does not match its newest checkpoint; run oncemore ledger verify")
    entries = [
        encode_entry_record(each)
        for each in engine.store.read_entries(entry.entity)
        if each.version <= entry.version
    ]
    extra = b64encode(msgspec.json.encode({"entries": entries})).decode()
    hashes = "".join(f"{b64encode(node).decode()}\n" for node in prove_inclusion(leaves, index))
    return f"{FIRST_LINE}\nextra {extra}\nindex {index}\n{hashes}\n{note}"


def _is_subject(entry: Entry, subject: str) -> bool:
    return subject == str(entry.seq) or entry.entity in (subject, f"run/{subject}")


def verify_entry_proof(text: str, keys: Sequence[VerifyKey]) -> ProvenHistory:
    """Verify an inclusion proof with nothing but public keys; raise `LedgerMismatch` if it fails."""
    proof, separator, note = text.partition("\n\n")
    lines = proof.split("\n")
    match = _INDEX.fullmatch(lines[2]) if len(lines) > 2 else None
    if not separator or lines[0] != FIRST_LINE or not lines[1].startswith("extra ") or match is None:
        raise LedgerMismatch("this is not a proof: its first lines have another form")
    checkpoint = verify_note(note, keys)
    try:
        extra = msgspec.json.decode(decode_base64(lines[1][6:]), type=dict[str, Any])
        records = extra["entries"]
        hashes = [decode_base64(line) for line in lines[3:]]
    except (KeyError, ValueError, msgspec.MsgspecError) as fault:
        raise LedgerMismatch(f"the proof is damaged: {fault}") from None
    # The proof is of the last entry; the hash of each entry covers the one before it.
    last = _verify_history(records)
    position = int(match[1])
    if not is_included(hash_leaf(last.hash), position, checkpoint.size, hashes, checkpoint.root):
        raise LedgerMismatch(
            f"the proof fails: the checkpoint of size {checkpoint.size:,} does not have this entry at "
            f"position {position}"
        )
    return ProvenHistory(
        entity=last.entity,
        version=last.version,
        position=position,
        size=checkpoint.size,
        origin=checkpoint.origin,
        covered_at=checkpoint.at,
        entries=tuple(records),
    )


def _verify_history(records: Any) -> Entry:
    """Verify the chain of an entity from its first entry on; return the last entry."""
    entry, prev = None, NOWHERE
    known: dict[str, Any] = {}
    for record in records if isinstance(records, list) else ():
        if not isinstance(record, dict):
            raise LedgerMismatch("the proof is damaged: an entry is not an object")
        entry = decode_entry_record(record, prev, len(known))
        try:
            verify_chain([entry], known)
        except StoreError as fault:
            raise LedgerMismatch(str(fault)) from None
        prev = entry.hash
    if entry is None or len(known) != 1:
        raise LedgerMismatch("the proof is damaged: it takes the entries of one entity")
    return entry


# Consistency ----------------------------------------------------------------------------------------


def prove_growth(engine: Engine, old_note: str) -> str:
    """Return the proof that the log of the newest checkpoint begins with that of an old one."""
    old, note = parse_note(old_note)[0], _load_newest_note(engine)
    new = parse_note(note)[0]
    if old.origin != new.origin or old.size > new.size:
        raise LedgerMismatch(
            f"the old checkpoint covers {old.size:,} entries of {old.origin}, and the newest of this log "
            f"{new.size:,} of {new.origin}: the log was cut or replaced, or the file is of another log"
        )

    def read_leaves(order: LogOrder) -> list[bytes]:
        items = islice(read_in_order(engine.store, order), new.size)
        return [hash_leaf(item if isinstance(item, bytes) else item.hash) for item in items]

    leaves = read_with_order(engine, read_leaves)
    hashes = prove_consistency(leaves, old.size) if old.size <= len(leaves) else []
    if not is_consistent(old.size, new.size, old.root, new.root, hashes):
        raise LedgerMismatch(
            f"the log does not begin with the {old.size:,} entries of the old checkpoint: they were changed"
        )
    document = {
        "type": "consistency",
        "format": FORMAT,
        "old": old_note,
        "new": note,
        "hashes": [b64encode(node).decode() for node in hashes],
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def verify_growth_proof(text: str, keys: Sequence[VerifyKey]) -> ProvenGrowth:
    """Verify a consistency proof with nothing but public keys; raise `LedgerMismatch` if it fails."""
    try:
        document = msgspec.json.decode(text, type=dict[str, Any])
        if (document["type"], document["format"]) != ("consistency", FORMAT):
            raise ValueError("another type or format")
        old_note, new_note = str(document["old"]), str(document["new"])
        hashes = [decode_base64(line) for line in document["hashes"]]
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as fault:
        raise LedgerMismatch(f"this is not a consistency proof: {fault}") from None
    old, new = verify_note(old_note, keys), verify_note(new_note, keys)
    if old.origin != new.origin or not is_consistent(old.size, new.size, old.root, new.root, hashes):
        raise LedgerMismatch(
            f"the proof fails: the log of {new.size:,} entries does not begin with the {old.size:,} of the "
            "old checkpoint"
        )
    return ProvenGrowth(new.origin, old.size, new.size, old.at, new.at)


def _load_newest_note(engine: Engine) -> str:
    note = ""
    for record in read_checkpoints(engine):
        note = record.note
    if not note:
        raise UsageError("the log has no checkpoint; make one first: oncemore ledger checkpoint")
    return note
