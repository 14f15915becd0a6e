"""The record of the ledger: the last checkpoint of a log, as its entries and its head hold it."""

from __future__ import annotations

from oncemore._values import Value


class CheckpointRecord(Value):
    """The last checkpoint of the log (`governance.checkpoints`).

    state            always SIGNED
    origin           the name of the log, chosen with the first checkpoint
    size             number of entries that the checkpoint covers
    last_seq         the highest `seq` among them: the next checkpoint continues after it
    arrival_version  version of the entry of the switches that completed the last move of the log; 0: none
    subtree_roots    roots of the complete subtrees of the Merkle tree, in base64, separated by spaces
    note             the signed text; in the header, so that it is never pruned or encrypted
    """

    state: str = "SIGNED"
    origin: str = ""
    size: int = 0
    last_seq: int = 0
    arrival_version: int = 0
    subtree_roots: str = ""
    note: str = ""
