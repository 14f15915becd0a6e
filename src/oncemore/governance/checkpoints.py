"""Make checkpoints: signed roots of the Merkle tree over all entries of a log.

A checkpoint is an entry of the entity `ledger/checkpoints`, so that each one is linked to the one before it
and is covered by the next. Its entry holds the roots of the complete subtrees as well: the next checkpoint
reads only the entries after it. The order of the writes, and the meaning of a crash between them:

    1. the entry in the log          before it: nothing happened; the next call makes the checkpoint
    2. the copy in the second place  before it: the next call copies the checkpoint of the log first

So the newest copy is always one of the checkpoints of the log. If it is not, the log was cut, changed or
replaced: `LedgerMismatch`, and nothing is signed.

Entries of running appends have no place in the order yet. Every store returns only the entries below them
(`Store.read_entries`), so that concurrent writers never change the entries that a checkpoint covers.
"""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import InProgress, LedgerMismatch, UsageError
from oncemore.governance.checkpoint_copies import CheckpointPlace, open_place
from oncemore.governance.checkpoint_record import CheckpointRecord
from oncemore.governance.keys import load_signing_key
from oncemore.governance.log_order import LEDGER_ENTITY, load_ledger_head, read_in_order, read_with_order
from oncemore.governance.merkle import EMPTY_ROOT, TreeFrontier, hash_leaf
from oncemore.governance.signed_note import Checkpoint, is_signed_by, parse_note, sign_checkpoint
from oncemore.log.entry_codec import build_write, decode_header, hash_entry
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch, Stored, hash_body
from oncemore.maintenance.tasks import find_abandoned_tasks, list_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.governance.keys import SigningKey
    from oncemore.governance.log_order import LogOrder
    from oncemore.log.record import LoadedHead
    from oncemore.log.store import Entry
    from oncemore.steps.engine import Engine

MARKS: tuple[Any, ...] = ("LEDGER",)


class CheckpointReport(Value):
    """The result of `make_checkpoint`.

    note    the newest checkpoint of the log, as a signed note
    is_new  whether this call has made it; otherwise the log had no new entries, or another process was faster
    copied  the address of the second place; empty if there is none
    """

    note: str
    is_new: bool
    copied: str = ""

    @property
    def checkpoint(self) -> Checkpoint:
        """The statement of the checkpoint."""
        return parse_note(self.note)[0]


class LedgerSigner(Value):
    """The private key that signs checkpoints, and their second place if there is one."""

    key: SigningKey
    place: CheckpointPlace | None = None


def load_signer(key_file: str, copy_address: str = "") -> LedgerSigner:
    """Return the signer of the settings `ledger_key` and `ledger_copy`."""
    if not key_file:
        raise UsageError(
            "no key signs the checkpoints: make one with `oncemore policy keygen FILE`, and set ledger_key "
            "(ONCEMORE_LEDGER_KEY) to the file, or give --key"
        )
    return LedgerSigner(load_signing_key(key_file), open_place(copy_address) if copy_address else None)


def make_checkpoint(engine: Engine, signer: LedgerSigner) -> CheckpointReport:
    """Sign the log as it is now and copy the checkpoint to the second place.

    A log without new entries gets no new checkpoint; the last one is copied if its copy is missing.
    """
    # Before anything is signed: a checkpoint of a replaced log would hide the replacement.
    head = load_ledger_head(engine)
    check_newest_copy(engine, head, signer.place)
    if head.record is None:
        head = _begin_ledger(engine, head, signer.key)
    _refuse_running_prunes(engine, head)
    new_record = _extend_record(engine, head.record, signer.key)
    is_new = False
    if new_record is not None:
        is_new = _append_record(engine, head, new_record)
        # After a conflict the checkpoint of the other process is as good: it covers the same entries.
        head = load_ledger_head(engine)
    note = head.record.note
    if signer.place is not None:
        signer.place.write_note(head.record.size, note)
    return CheckpointReport(note, is_new, "" if signer.place is None else signer.place.url)


def check_newest_copy(engine: Engine, head: LoadedHead, place: CheckpointPlace | None) -> None:
    """Raise `LedgerMismatch` unless the newest copy is one of the checkpoints of the log."""
    sizes = [] if place is None else place.list_sizes()
    if place is None or not sizes:
        return
    # The newest alone: each was checked when it was the newest, and `verify` compares all.
    note = place.read_note(sizes[-1])
    if head.record is not None and head.record.note == note:
        return
    copied = parse_note(note)[0]
    for record in read_checkpoints(engine):
        if record.note == note:
            return
    own = "no checkpoint" if head.record is None else f"{head.record.size:,} entries of {head.record.origin}"
    raise LedgerMismatch(
        f"the newest checkpoint in {place.url} covers {copied.size:,} entries of {copied.origin}, and the "
        f"log does not have it (it has {own}): the log was cut, changed, or replaced by an older copy or "
        "another log. Nothing was signed"
    )


def read_checkpoints(engine: Engine) -> Iterator[CheckpointRecord]:
    """Yield all checkpoints of the log, oldest first."""
    for entry in engine.store.read_entries(LEDGER_ENTITY):
        yield CheckpointRecord(**decode_header(entry.header).sets)


# The steps of a checkpoint --------------------------------------------------------------------------


def _begin_ledger(engine: Engine, head: LoadedHead, key: SigningKey) -> LoadedHead:
    """Write the first checkpoint, of an empty tree; it gives the log its name.

    From this entry on, every prune records the entries that it deletes (`governance.log_order`).
    """
    origin = f"oncemore/{secrets.token_hex(16)}"
    checkpoint = Checkpoint(origin, 0, EMPTY_ROOT, at=int(engine.now()))
    record = CheckpointRecord(origin=origin, note=sign_checkpoint(checkpoint, key))
    # After a conflict another process has begun it, under its name.
    _append_record(engine, head, record)
    return load_ledger_head(engine)


def _refuse_running_prunes(engine: Engine, head: LoadedHead) -> None:
    """Raise `InProgress` if a prune that began before the first checkpoint may still delete entries."""
    # Later ones have seen the first checkpoint, and record all entries that they delete.
    if head.record.size:
        return
    running = dict(list_tasks(engine, "prune", "OPEN"))
    for entity, _ in find_abandoned_tasks(engine, "prune"):
        running.pop(entity)
    if running:
        raise InProgress(
            f"a prune is running ({', '.join(running)}); make the first checkpoint after it has ended"
        )


def _extend_record(engine: Engine, record: CheckpointRecord, key: SigningKey) -> CheckpointRecord | None:
    """Return the record of the next checkpoint; None if the log has no new entries."""

    def extend_tree(order: LogOrder) -> tuple[LogOrder, TreeFrontier, int, int]:
        return order, *_extend_tree(engine, record, order, key)

    order, tree, last_seq, own_entries = read_with_order(engine, extend_tree)
    # The entry of the last checkpoint itself is no reason for another one.
    if tree.size - record.size <= own_entries:
        return None
    checkpoint = Checkpoint(
        origin=record.origin,
        size=tree.size,
        root=tree.compute_root(),
        at=int(engine.now()),
        last_seq=last_seq,
        previous=record.size,
    )
    return CheckpointRecord(
        origin=record.origin,
        size=tree.size,
        last_seq=last_seq,
        arrival_version=order.arrival_version,
        subtree_roots=encode_roots(tree),
        note=sign_checkpoint(checkpoint, key),
    )


def _extend_tree(
    engine: Engine, record: CheckpointRecord, order: LogOrder, key: SigningKey
) -> tuple[TreeFrontier, int, int]:
    """Return the tree of the whole log, its last `seq`, and how many new entries are checkpoints."""
    tree, last_seq = TreeFrontier(), 0
    if _can_extend(record, order, key):
        tree, last_seq = restore_tree(record), record.last_seq
    own_entries = 0
    for item in read_in_order(engine.store, order, tree.size, last_seq):
        if tree.size == record.size:
            _check_root(record, tree)
        if isinstance(item, bytes):
            tree.add_leaf_hash(hash_leaf(item))
            continue
        if not _has_right_hash(item):
            raise LedgerMismatch(
                f"entry {item.seq} ({item.entity}) was altered: its hash does not fit. Nothing was signed"
            )
        own_entries += item.entity == LEDGER_ENTITY and tree.size >= record.size
        tree.add_leaf_hash(hash_leaf(item.hash))
        last_seq = max(last_seq, item.seq)
    if tree.size < record.size:
        raise LedgerMismatch(
            f"the last checkpoint covers {record.size:,} entries, and the log has {tree.size:,}: entries "
            "were deleted. Nothing was signed"
        )
    if tree.size == record.size:
        _check_root(record, tree)
    return tree, last_seq, own_entries


def _has_right_hash(entry: Entry) -> bool:
    try:
        return entry.hash == hash_entry(entry.prev, entry.header, hash_body(entry))
    except TypeError:  # a column holds text instead of bytes
        return False


def _can_extend(record: CheckpointRecord, order: LogOrder, key: SigningKey) -> bool:
    """Whether the stored tree may be continued; otherwise the tree is computed from the first entry.

    It is signed through its root, so a checkpoint of another key is not trusted. A moved log has other
    sequence numbers than those that its last checkpoint names.
    """
    return order.arrival_version == record.arrival_version and is_signed_by(record.note, key.public)


def _check_root(record: CheckpointRecord, tree: TreeFrontier) -> None:
    """Raise `LedgerMismatch` unless the tree has the root that the last checkpoint signs."""
    checkpoint = parse_note(record.note)[0]
    stated = (checkpoint.origin, checkpoint.size, checkpoint.last_seq, checkpoint.root)
    if stated != (record.origin, tree.size, record.last_seq, tree.compute_root()):
        raise LedgerMismatch(
            f"the log does not match its last checkpoint, of size {record.size:,}: entries were changed, "
            "deleted or reordered, or the checkpoint itself was. Nothing was signed"
        )


def _append_record(engine: Engine, head: LoadedHead, record: CheckpointRecord) -> bool:
    """Append a checkpoint to the log; return False if another process has appended one since."""
    # Every entry has all fields: a checkpoint can be read without the ones before it.
    change = RecordChange(MARKS, CheckpointRecord(state=""), record)
    write = build_write(head.entity, head.version, head.hash, change, engine.now(), engine.cipher)
    return isinstance(engine.store.append(Batch((write,))).wait(), Stored)


def encode_roots(tree: TreeFrontier) -> str:
    """Return the roots of the complete subtrees as text."""
    return " ".join(b64encode(root).decode() for root in tree.subtree_roots)


def restore_tree(record: CheckpointRecord) -> TreeFrontier:
    """Return the tree of a checkpoint; raise `LedgerMismatch` if its text is damaged."""
    try:
        return TreeFrontier(record.size, map(b64decode, record.subtree_roots.split()))
    except ValueError as error:
        raise LedgerMismatch(f"the last checkpoint was altered: {error}. Nothing was signed") from None
