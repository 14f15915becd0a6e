"""Check entries against checkpoints: the one check of stores, exports and proofs.

`LedgerCheck` computes the Merkle tree of the entries that it is given and compares its root at the size of
each checkpoint. It finds changes that no hash chain of a single entity shows: an entity that was deleted
whole, a chain that was rewritten with correct hashes, entries of different entities that changed places, and
a log that was cut or replaced by an older copy.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.errors import LedgerMismatch
from oncemore.governance.log_order import LeafMerger
from oncemore.governance.merkle import TreeFrontier
from oncemore.governance.signed_note import parse_note, verify_note

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncemore.governance.checkpoint_record import CheckpointRecord
    from oncemore.governance.keys import VerifyKey
    from oncemore.governance.log_order import LogOrder
    from oncemore.governance.signed_note import Checkpoint
    from oncemore.log.store import Entry


class ExpectedRoot(Value):
    """The root that the tree must have at a size; `source` names the checkpoint in messages."""

    size: int
    root: bytes
    source: str


class LedgerCheck:
    """The tree of a log that is being read, and the checkpoints that it is compared with."""

    def __init__(self, expected: Iterable[ExpectedRoot], order: LogOrder | None = None) -> None:
        # The next one to compare is the last of the list.
        self._expected = sorted(expected, key=lambda root: root.size, reverse=True)
        # Without deleted entries and without a move, the order of `seq` is the order of the tree.
        has_own_order = order is not None and (order.removed or order.switch_positions)
        self._merger = LeafMerger(order) if order is not None and has_own_order else None
        self._tree = TreeFrontier()
        self._matched_size = 0
        self._compare_roots()

    @property
    def size(self) -> int:
        """The number of leaves so far."""
        return self._tree.size

    def add_page(self, page: list[Entry]) -> None:
        """Add entries, in the order of `seq`."""
        merger = self._merger
        if merger is None:
            self.add_hashes([entry.hash for entry in page])
        else:
            self.add_hashes([leaf for entry in page for leaf in merger.place_entry(entry)])

    def add_hashes(self, hashes: list[bytes]) -> None:
        """Add entries, given as their hashes in the order of the tree; compare the roots on the way."""
        digest = sha256
        leaves = [digest(b"\x00" + entry_hash).digest() for entry_hash in hashes]
        while leaves and self._expected:
            room = self._expected[-1].size - self._tree.size
            if room > len(leaves):
                break
            self._tree.add_leaf_hashes(leaves[:room])
            leaves = leaves[room:]
            self._compare_roots()
        self._tree.add_leaf_hashes(leaves)

    def finish(self) -> None:
        """Add the leaves after the last entry; raise `LedgerMismatch` if a checkpoint covers more."""
        if self._merger is not None:
            self.add_hashes(self._merger.place_rest())
        for missing in self._expected:
            raise LedgerMismatch(
                f"{missing.source} covers {missing.size:,} entries, and the log has {self._tree.size:,}: "
                "entries were deleted, its end was cut, or it was replaced by an older copy or another log"
            )

    def _compare_roots(self) -> None:
        """Compare the root with all checkpoints of the present size."""
        while self._expected and self._expected[-1].size == self._tree.size:
            expected = self._expected.pop()
            if expected.root != self._tree.compute_root():
                raise LedgerMismatch(
                    f"the log does not match {expected.source}: among its first {expected.size:,} entries, "
                    f"some were changed, deleted, inserted or reordered (the first {self._matched_size:,} "
                    "match an earlier checkpoint)"
                )
            self._matched_size = expected.size


def check_chain_of_checkpoints(
    records: Sequence[CheckpointRecord], keys: Sequence[VerifyKey]
) -> list[ExpectedRoot]:
    """Check that checkpoints of one log follow each other; return the roots that they state.

    keys  the keys that may have signed them; without keys, signatures are not checked
    """
    expected: list[ExpectedRoot] = []
    before: Checkpoint | None = None
    for record in records:
        checkpoint = verify_note(record.note, keys) if keys else parse_note(record.note)[0]
        stated = (record.origin, record.size, record.last_seq)
        source = f"the checkpoint of size {checkpoint.size:,} in the log"
        if stated != (checkpoint.origin, checkpoint.size, checkpoint.last_seq):
            raise LedgerMismatch(f"{source} was altered: its entry says something else than its signed text")
        if before is None:
            follows = checkpoint.size == checkpoint.previous == 0
        else:
            follows = (checkpoint.origin, checkpoint.previous) == (before.origin, before.size)
            follows = follows and checkpoint.size > before.size
        if not follows:
            raise LedgerMismatch(f"{source} does not follow the one before it: checkpoints are missing")
        expected.append(ExpectedRoot(checkpoint.size, checkpoint.root, source))
        before = checkpoint
    return expected


def check_outside_note(source: str, note: str, origin: str, keys: Sequence[VerifyKey]) -> ExpectedRoot:
    """Return the root that a checkpoint from outside of the log states, after checking its signature.

    origin  the name of the log; empty if the log has no checkpoint of its own
    """
    try:
        checkpoint = verify_note(note, keys)
    except LedgerMismatch as fault:
        raise LedgerMismatch(f"{source}: {fault}") from None
    if checkpoint.origin != origin:
        own = f"this log is {origin}" if origin else "this log has no checkpoint"
        raise LedgerMismatch(
            f"{source} belongs to the log {checkpoint.origin}, and {own}: it was replaced, its checkpoints "
            "were deleted, or the file belongs to another log"
        )
    return ExpectedRoot(checkpoint.size, checkpoint.root, source)
