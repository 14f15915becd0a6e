"""The order of the entries in the Merkle tree of a log.

The leaves of the tree are the hashes of the entries, in the order of `seq`. Two operations of maintenance
change the content of a store without changing that order:

* `prune` deletes the entries of forgotten keys and of dead workers. Before it does, it records the position
  and the hash of each of them in its own entry, under "leaves" (`LeafPositions`). They stay in the tree.
* a moved log has other numbers, and the entries of its switches come first. The entry that completes the
  move records under "switch_positions" where they were (`find_switch_positions`).

So the tree stays the same over both, and a checkpoint that was made before still holds. Both records are only
written if the log has a checkpoint. A body that is pruned or erased changes nothing: hashes cover its digest.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import DecodeError

from oncemore._values import Value
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import InProgress, StoreError
from oncemore.governance.checkpoint_record import CheckpointRecord
from oncemore.log.entry_codec import load_head, read_body
from oncemore.maintenance.tasks import list_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from oncemore.log.record import LoadedHead
    from oncemore.log.store import Entry, Store
    from oncemore.steps.engine import Engine

T = TypeVar("T")
#: The entity of the checkpoints; each entry is one checkpoint.
LEDGER_ENTITY = "ledger/checkpoints"
#: The fields of bodies that the two operations write.
LEAVES_FIELD, POSITIONS_FIELD = "leaves", "switch_positions"
#: How often a pass over the log is repeated because a prune has deleted entries meanwhile.
MAX_READS = 20


class RemovedLeaf(Value):
    """An entry that a prune has deleted.

    hash         its hash
    recorded_in  the hash of the entry in which the prune recorded it
    """

    hash: bytes
    recorded_in: bytes
    task: str
    actor: str
    reason: str


class LogOrder(Value):
    """The deletions and the move that the order of the leaves depends on besides `seq`.

    arrival_version   version of the entry of the switches that completed the last move; 0: none
    switch_positions  the positions of the first entries of the switches
    removed           deleted entries by their position
    """

    arrival_version: int = 0
    switch_positions: tuple[int, ...] = ()
    removed: Mapping[int, RemovedLeaf] = {}


def load_ledger_head(engine: Engine) -> LoadedHead:
    """Return the head of the checkpoints; its record is None if the log has no checkpoint."""
    return load_head(engine.store, LEDGER_ENTITY, engine.cipher, CheckpointRecord)


def has_checkpoints(engine: Engine) -> bool:
    """Whether the log has a checkpoint."""
    return engine.store.load_head(LEDGER_ENTITY) is not None


def load_order(engine: Engine) -> LogOrder:
    """Read the deleted entries and the last move from the log."""
    # Prunes are few, and only they delete entries.
    removed: dict[int, RemovedLeaf] = {}
    for entity, task in list_tasks(engine, "prune"):
        for entry in engine.store.read_entries(entity):
            for position, entry_hash in _read_field(engine, entry, LEAVES_FIELD):
                leaf = RemovedLeaf(
                    hash=bytes.fromhex(entry_hash),
                    recorded_in=entry.hash,
                    task=entity,
                    actor=task.actor,
                    reason=task.reason,
                )
                removed[position] = leaf
    arrival_version, positions = 0, ()
    for entry in engine.store.read_entries(SWITCHES_ENTITY):
        found = tuple(_read_field(engine, entry, "copy", POSITIONS_FIELD))
        if found:
            arrival_version, positions = entry.version, found
    return LogOrder(arrival_version, positions, removed)


def _read_field(engine: Engine, entry: Entry, *names: str) -> Any:
    """Return a field of a body, given as a path of names; nothing if the body does not have it.

    A damaged body is no reason to stop here: the check of its hash names the entry.
    """
    try:
        value: Any = read_body(entry, engine.cipher)
    except DecodeError:
        return ()
    for name in names:
        value = value.get(name, {})
    return value


def read_in_order(
    store: Store, order: LogOrder, position: int = 0, after_seq: int = 0
) -> Iterator[Entry | bytes]:
    """Return the entries in the order of the tree; a deleted entry is given as its hash.

    position, after_seq  start here: the number of leaves before, and the highest `seq` among them
    """
    entries = store.read_entries(after=after_seq)
    if not order.removed and not order.switch_positions:
        return entries
    return _merge_entries(store, entries, order, position)


def _merge_entries(
    store: Store, entries: Iterator[Entry], order: LogOrder, position: int
) -> Iterator[Entry | bytes]:
    count = len(order.switch_positions)
    first_switches = islice(store.read_entries(SWITCHES_ENTITY), count)
    # A moved log has these entries first; each is put back to its former position.
    switches = dict(zip(order.switch_positions, first_switches, strict=False))
    others = (entry for entry in entries if entry.entity != SWITCHES_ENTITY or entry.version > count)
    entry = next(others, None)
    while True:
        removed = order.removed.get(position)
        if position in switches:
            yield switches[position]
        # A recorded deletion may not have happened yet, or never: then the entry itself comes next.
        elif removed is not None and (entry is None or entry.hash != removed.hash):
            yield removed.hash
        elif entry is None:
            return
        else:
            yield entry
            entry = next(others, None)
        position += 1


def read_with_order(engine: Engine, read: Callable[[LogOrder], T]) -> T:
    """Return the result of a function that reads the log in its order; repeat it if the order has changed.

    A prune may delete entries while the function reads. It has recorded them before, so that an unchanged
    record means that the function has met all entries.
    """
    for _ in range(MAX_READS):
        order = load_order(engine)
        fault = None
        try:
            result = read(order)
        except StoreError as error:
            fault = error
        if load_order(engine) == order:
            if fault is not None:
                raise fault
            return result
    raise InProgress(f"prunes have changed {engine.url} {MAX_READS} times while it was read; try again later")


class LeafMerger:
    """Puts the hashes of entries into the order of the tree; the entries come in the order of `seq`."""

    def __init__(self, order: LogOrder) -> None:
        self._order, self._position = order, 0
        self._switches: dict[int, bytes] = {}

    def place_entry(self, entry: Entry) -> list[bytes]:
        """Return the hashes of the next leaves, up to this entry."""
        positions = self._order.switch_positions
        # The entries of the switches come first in a moved log; they wait for their turn.
        if entry.entity == SWITCHES_ENTITY and entry.version <= len(positions):
            self._switches[positions[entry.version - 1]] = entry.hash
            return []
        hashes = self._take_recorded(entry.hash)
        self._position += 1
        return [*hashes, entry.hash]

    def place_rest(self) -> list[bytes]:
        """Return the hashes of the leaves after the last entry."""
        return self._take_recorded(None)

    def _take_recorded(self, next_hash: bytes | None) -> list[bytes]:
        """Return the hashes at the next positions that are switches or deleted entries."""
        hashes: list[bytes] = []
        while True:
            removed = self._order.removed.get(self._position)
            if self._position in self._switches:
                hashes.append(self._switches.pop(self._position))
            elif removed is not None and removed.hash != next_hash:
                hashes.append(removed.hash)
            else:
                return hashes
            self._position += 1


def find_switch_positions(engine: Engine, count: int) -> list[int]:
    """Return the positions of the first entries of the switches in the tree."""

    def read_positions(order: LogOrder) -> list[int]:
        return [
            position
            for position, item in enumerate(read_in_order(engine.store, order))
            if not isinstance(item, bytes) and item.entity == SWITCHES_ENTITY and item.version <= count
        ]

    return read_with_order(engine, read_positions)


class LeafPositions:
    """The positions of entries in the tree; they are found by one pass over the log, at first use."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Two arrays instead of a dict: 16 bytes for each entry of a log that may be large.
        self._seqs, self._positions = array("q"), array("q")

    def describe_entities(self, entities: Iterable[str]) -> list[tuple[int, str]]:
        """Return position and hash of all entries of entities, for the record of their deletion."""
        return [
            (self._find_position(entry), entry.hash.hex())
            for entity in entities
            for entry in self._engine.store.read_entries(entity)
        ]

    def _find_position(self, entry: Entry) -> int:
        index = bisect_left(self._seqs, entry.seq)
        if index == len(self._seqs) or self._seqs[index] != entry.seq:
            read_with_order(
                self._engine, self._scan_log
            )  # at first use, and for an entry that was written after the last pass
            index = bisect_left(self._seqs, entry.seq)
            if index == len(self._seqs) or self._seqs[index] != entry.seq:
                raise StoreError(f"entry {entry.seq} ({entry.entity}) is not in the log; verify the log")
        return self._positions[index]

    def _scan_log(self, order: LogOrder) -> None:
        self._seqs, self._positions = array("q"), array("q")
        for position, item in enumerate(read_in_order(self._engine.store, order)):
            # The switches are never deleted, and their first entries are not in the order of `seq`.
            if not isinstance(item, bytes) and item.entity != SWITCHES_ENTITY:
                self._seqs.append(item.seq)
                self._positions.append(position)
