"""The store protocol: an append-only log of entries, and the head of every entity.

A store keeps, for each *entity* (a run, a worker, a breaker…), a chain of *entries* and one *head*: its
current state. `append` is the only operation of a running step that changes anything: an atomic
compare-and-set over one or several entities. Every store keeps these promises, and the contract suite
(`oncemore.testing.store_contract`) checks them:

* **Atomicity.** A batch is stored whole or not at all. If the version of an entity or of a guard differs from
  the expected one (0: it must not exist), nothing is stored and the reply is a `Conflict` with the current
  head. A conflict of one batch never affects another batch.
* **One winner.** Of all batches that expect the same version of an entity, from any number of threads and
  processes, one is stored.
* **Durability.** Once a ticket returns `Stored`, the batch survives the death of the process and, if it asked
  for `sync`, the loss of power as far as `describe_store()` says.
* **Fail-stop.** After a storage error no caller of that commit gets `Stored`: all of them get the error, and
  must read the state again.
* **Late guards.** A store with `checks_guards_late` may store a batch that allows it (`Batch.late`) before it
  compares the guards. If one of them has moved by then, the reply is a `Conflict` with the sequence numbers
  of the stored entries; the caller must undo the batch before it acts on it.
* **Order.** `seq` rises in the order in which batches became visible and is never reused; the entries of an
  entity have the versions 1, 2, 3, …

The caller builds bytes and hashes from the head it read, outside of any transaction: a successful
compare-and-set proves that the link is right. `seq` is not hashed.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.log.record import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    CopyCheck = Callable[[Iterator["Entry"], Iterator["Head"]], object]

#: Time limit of `Batch.joined_write`, in seconds: all other writers wait for it.
JOINED_WRITE_LIMIT_S = 1.0


class HeadIndex(Value):
    """The columns by which a store finds heads; computed from the record of the head (`build_index`).

    due  time at which a worker must look at the entity again; None: never
    """

    kind: str
    state: str = ""
    due: float | None = None
    step: str = ""
    worker: str = ""
    dataset: str = ""


class EntryWrite(Value):
    """One entry to append to one entity, and the new head of the entity."""

    entity: str
    expect: int
    header: bytes
    body: bytes
    hash: bytes
    head: bytes
    by: HeadIndex


class Batch(Value):
    """Writes that are stored together or not at all.

    guards        entities that the batch only read, and the version each must still have (0: must not exist)
    sync          whether the reply must wait until the entries are on disk
    joined_write  called with a `StoreTransaction` after all versions were compared, to write the user's own
                  tables in the same transaction; if it raises, nothing is stored. Only for stores with
                  `supports_joined_writes`. It may be called again if the store has to repeat the transaction
    late          whether a store with `checks_guards_late` may compare the guards after it stored the batch
    """

    writes: tuple[EntryWrite, ...]
    guards: Mapping[str, int] = {}
    sync: bool = True
    joined_write: Callable[[StoreTransaction], object] | None = None
    late: bool = False


class Head(Value):
    """The current state of an entity, as its last entry left it.

    body  body of the entity's last entry, because most callers need it next; None if it was pruned, and in
          the heads of `list_heads`
    """

    entity: str
    version: int
    hash: bytes
    head: bytes
    by: HeadIndex
    seq: int
    body: bytes | None = None


class Entry(Value):
    """One entry of the log.

    body         None if it was pruned or erased
    body_digest  digest of a body that was pruned or erased; None while the body is stored (`hash_body`)
    """

    seq: int
    entity: str
    version: int
    prev: bytes
    hash: bytes
    header: bytes
    body: bytes | None
    body_digest: bytes | None


def hash_body(entry: Entry) -> bytes:
    """Return the digest of an entry's body: of the stored bytes, or the one that a pruned body left."""
    digest = entry.body_digest if entry.body is None else sha256(entry.body).digest()
    if digest is None:
        raise StoreError(f"entry {entry.seq} ({entry.entity}) was altered: its body has left no digest")
    return digest


class Stored(Value):
    """The batch is stored; `seqs` are the sequence numbers of its entries, in the order of its writes."""

    seqs: tuple[int, ...]


class Conflict(Value):
    """The batch is refused: `entity` has another version than expected; `head` is its current head.

    stored_seqs  sequence numbers of the entries of a `late` batch that was stored before the conflict was
                 found; empty: nothing was stored
    """

    entity: str
    head: Head | None
    stored_seqs: tuple[int, ...] = ()


class HeadQuery(Value):
    """A query for heads: every given field must match. The result is ordered by due time, then by entity.

    kind   empty: all kinds
    after  only entities after this one, ordered by entity alone. To read all pages, start with the empty
           string and pass the last entity of each page

    The fields below serve operators: no index has them, so the store reads all heads of a kind.
    prefix         start of the entity's name
    newest_first   order by the last entry instead, newest first
    after_seq      only heads whose last entry has a higher sequence number
    before_seq     only heads whose last entry has a lower sequence number
    head_contains  bytes that occur in the head; the caller checks their meaning
    body_contains  bytes that occur in the body of the last entry; such heads come with that body
    by_creation    all heads, about in the order of their first entries, read in pages while the caller
                   iterates: for a pass over the log. No other field counts
    """

    kind: str
    state: str | None = None
    due_by: float | None = None
    step: str | None = None
    worker: str | None = None
    dataset: str | None = None
    limit: int = 1000
    after: str | None = None
    prefix: str = ""
    newest_first: bool = False
    after_seq: int = 0
    before_seq: int | None = None
    head_contains: bytes = b""
    body_contains: bytes = b""
    by_creation: bool = False


class EntitySizes(Value):
    """The number of entities and entries of one kind, and the bytes of both."""

    entities: int = 0
    entries: int = 0
    bytes: int = 0


class StorageSpace(Value):
    """The disk space that a store uses.

    file   bytes of the store itself; 0 for a store without a file
    wal    bytes of its write-ahead log
    left   free bytes of its disk; None if the store cannot find out
    spare  unused bytes inside the store; counted in detail only, as `kinds`
    kinds  sizes by kind of entity
    """

    file: int = 0
    wal: int = 0
    left: int | None = None
    spare: int = 0
    kinds: Mapping[str, EntitySizes] = {}


class StoreFacts(Value):
    """The engine and the durability of a store, for operators and for `oncemore store doctor`."""

    url: str
    engine: str
    durable: str
    notes: tuple[str, ...] = ()


def check_batch(batch: Batch) -> None:
    """Refuse a batch that contradicts itself: it names an entity twice, as a write or as a guard."""
    written = [write.entity for write in batch.writes]
    if len(set(written)) < len(written) or batch.guards.keys() & set(written):
        raise UsageError("a batch may name each entity once, as a write or as a guard")


def check_next(
    entries: Sequence[Entry], heads: Sequence[Head], current: dict[str, tuple[int, bytes]]
) -> None:
    """Refuse imported entries that do not continue their entities, and heads that do not match them.

    current  version and hash of each entity; updated to the state after the import
    """
    for entry in entries:
        version, last_hash = current.get(entry.entity, (0, NOWHERE))
        # Both: the version finds gaps, the hash finds another history.
        if entry.version != version + 1 or entry.prev != last_hash:
            raise StoreError(
                f"entry {entry.seq} ({entry.entity}, version {entry.version}) does not follow version "
                f"{version} of this store; nothing was imported"
            )
        current[entry.entity] = entry.version, entry.hash
    expected = {entity: current[entity] for entity in {entry.entity for entry in entries}}
    if {head.entity: (head.version, head.hash) for head in heads} != expected:
        raise StoreError("the heads do not match the last entries of their entities; nothing was imported")


class StoreTransaction(Protocol):
    """The transaction of a batch, as far as the user's function may write in it.

    dialect  "sqlite", with ? for values; "postgresql" or "mysql", with %s
    """

    dialect: str

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run a statement and return its rows."""


class JoinedWriteFailed(Exception):
    """The joined write of a batch failed, so nothing of the batch is stored. The cause is its exception."""


def joined_write_timeout() -> TimeoutError:
    """Return the error of a joined write that took longer than its limit."""
    return TimeoutError(
        f"on_commit() took longer than {JOINED_WRITE_LIMIT_S:g} s, and all writers of the store wait for it; "
        "compute in the step, and only write in on_commit()"
    )


def transaction_over_error() -> UsageError:
    """Return the error of a function that used its `StoreTransaction` after it had returned."""
    return UsageError("the transaction of on_commit() is over; use it only until the function returns")


class Ticket(Protocol):
    """The reply to an append: call `wait()`, or await the ticket."""

    def wait(self) -> Stored | Conflict:
        """Block until the batch is stored or refused; raise `StoreError` if the outcome is not known."""

    def __await__(self) -> Generator[object, object, Stored | Conflict]: ...


class WorkerLock(Protocol):
    """Proof that the process of a worker is alive, until `close()` or the end of the process."""

    def close(self) -> None:
        """Release the lock: from now on the store reports the worker as gone, if it can."""


class MaintenanceStore(Protocol):
    """The operations of a store that running work does not need: for operators and maintenance tasks."""

    def describe_store(self) -> StoreFacts:
        """Return the engine, the address and the durability of the store."""

    def measure_space(self, in_detail: bool = False) -> StorageSpace:
        """Return the disk space that the store uses; `in_detail` also counts all entities and entries."""

    def prune_bodies(self, before: Mapping[str, int]) -> None:
        """Delete the bodies of entries below a version, for all given entities or none; keep the digests.

        As far as the store can ensure it, the deleted bytes cannot be recovered from its files.
        """

    def drop_entities(self, at: Mapping[str, int]) -> int:
        """Delete entities with all their entries, each if it has the given version; return how many.

        The store keeps no trace of them: the caller must record the deletion in the log first.
        """

    def replace_heads(self, heads: Sequence[Head], upto: int) -> int:
        """Replace heads by ones that were rebuilt from the log up to `upto`; return how many were replaced.

        All or none. The head of an entity with entries after `upto` is kept: it is newer than the rebuilt
        one.
        """

    def import_entries(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Append entries of another log unchanged and in order, all or none, under new sequence numbers.

        Each entry must continue its entity, by version and previous hash, else `StoreError`. A body that was
        pruned in the other log stays pruned. `heads` are the new heads, one for each entity.
        """

    def copy_notice(self) -> str:
        """Return the reason why this store counts as a copy of another one; empty if it does not.

        The original of a copy may have continued, so the copy must not run work before it is acknowledged.
        """

    def acknowledge_copy(self) -> None:
        """Accept this copy as the store from now on."""

    def checkpoint_wal(self) -> str:
        """Move the write-ahead log into the store; return the reason if that is not possible now, or ""."""

    def write_backup(self, to: Path, check: CopyCheck, progress: Callable[[int, int], object]) -> None:
        """Write a consistent copy to a new file; the copy is marked as one.

        check     called with the entries and heads of the copy before it gets its name; raises if they are
                  wrong
        progress  called with the number of copied pages and of all pages
        """


class FilelessMaintenance:
    """Base of the maintenance of stores without a file of their own: no copies, no write-ahead log."""

    def copy_notice(self) -> str:
        """Return "": a restored database or stream cannot be distinguished from its original."""
        return ""

    def acknowledge_copy(self) -> None:
        """Do nothing: the store is never held as a copy."""

    def checkpoint_wal(self) -> str:
        """Do nothing: a server makes its own checkpoints."""
        return ""


class Store(Protocol):
    """A log of entries with heads. A new store is one class that passes the contract suite."""

    #: Whether a batch may have a `joined_write`.
    supports_joined_writes: bool
    #: Whether `is_worker_gone` detects a dead process at once, because all processes are on one machine.
    detects_dead_workers: bool
    #: Whether the guards of a `late` batch are compared after it is stored, because that is cheaper here.
    checks_guards_late: bool

    def append(self, batch: Batch) -> Ticket:
        """Submit a batch; the ticket returns `Stored` or `Conflict`."""

    def load_head(self, entity: str) -> Head | None:
        """Return the head of an entity with the body of its last entry, or None if it does not exist."""

    def list_heads(self, query: HeadQuery) -> Iterator[Head]:
        """Return the heads that match a query."""

    def read_entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in order: of one entity after a version, or of all entities after a `seq`."""

    def now(self) -> float:
        """Return the time of the store's clock in POSIX seconds: all processes that share it agree on it."""

    def wait_for_change(self, after: int, timeout: float) -> int:
        """Wait until the last `seq` is above `after`, or the timeout; return the last `seq`."""

    def register_worker(self, worker: str) -> WorkerLock:
        """Return a lock that proves that this process, as the worker of that name, is alive."""

    def is_worker_gone(self, worker: str) -> bool:
        """Whether the process of a worker is provably dead; False if the store cannot know."""

    def open_maintenance(self) -> MaintenanceStore:
        """Return the maintenance operations of this store."""

    def close(self) -> None:
        """Release all resources; acknowledged batches remain stored."""
