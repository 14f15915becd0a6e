"""The store protocol: an append-only log of entries, and the head of every entity.

A store keeps, for each *entity* (a run, a worker, a breaker…), a chain of *entries* and one *head*: its
current state. The one thing that changes anything is `append`: an atomic compare-and-set over one or
several entities. What a store promises, and what the contract suite (`oncemore.testing.store_contract`) holds
every store to:

* **All or nothing.** A batch is stored whole or not at all. If an entity is not at the version that the
  batch expects of it (0: it must not exist), or a guard is not, nothing is stored and the answer is a
  `Conflict` with the head that is there. One batch's conflict never hurts another's.
* **One winner.** Of any number of batches that expect the same version of an entity, from any threads
  and processes, one is stored.
* **Acknowledged is durable.** When a ticket says `Stored`, the batch survives the death of the process,
  and, if it asked for `sync`, the loss of power as far as `facts()` says.
* **A failed store stops.** After a storage error nobody is told that something is stored; the error goes
  to all that waited for it, and the state is read anew.
* **A late look is told.** A store that `looks_late` may store a batch that allows it (`Batch.late`) before it
  compares its guards. If one of them has moved by then, the answer is a `Conflict` that says that the batch
  `stands`: whoever asked for it takes it back, before anything follows from it.
* **Order.** `seq` rises in the order in which batches became visible, without ever being reused; an
  entity's entries have versions 1, 2, 3, …

Bytes and hashes are made by the caller, from the head it read, outside of any transaction: that the
compare-and-set succeeds is the proof that the link is right. `seq` is not part of what is hashed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.log.record import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    Checked = Callable[[Iterator["Entry"], Iterator["Head"]], object]


class Index(Value):
    """What a store can look heads up by; a pure function of the head that is written with it.

    due      when somebody must look at it again; None when nobody has to
    """

    kind: str
    state: str = ""
    due: float | None = None
    step: str = ""
    worker: str = ""
    dataset: str = ""


class Write(Value):
    """One entry to append to one entity, and the head that then stands."""

    entity: str
    expect: int
    header: bytes
    body: bytes
    hash: bytes
    head: bytes
    by: Index


class Batch(Value):
    """What is stored together or not at all.

    guards  entities that are only read, and the version each must still have (0: must not exist)
    sync    whether the answer must wait until the disk has it
    also    what else is written in the same transaction, in the user's own tables beside ours; it is called
            with a `Joined` once all versions fit, and if it raises, nothing is stored. Only where a store
            `joins`; it may be called again if the store has to send the whole again
    late    whether guards may be compared right after it is stored, where a store `looks_late`
    """

    writes: tuple[Write, ...]
    guards: Mapping[str, int] = {}
    sync: bool = True
    also: Callable[[Joined], object] | None = None
    late: bool = False


class Head(Value):
    """The current state of an entity: what was written last, and where it stands in the log.

    body  that of the entity's last entry, which a caller most often wants next; `heads` leaves it out,
          and it is None when it was pruned
    """

    entity: str
    version: int
    hash: bytes
    head: bytes
    by: Index
    seq: int
    body: bytes | None = None


class Entry(Value):
    """One record of the log. `body` is None when it was pruned or erased; its digest stays."""

    seq: int
    entity: str
    version: int
    prev: bytes
    hash: bytes
    header: bytes
    body: bytes | None
    body_digest: bytes


class Stored(Value):
    """The batch is stored; `seqs` are the numbers of its entries, in the order of its writes."""

    seqs: tuple[int, ...]


class Conflict(Value):
    """The batch is not stored: `entity` has another version than expected; `head` is what is there.

    stands  of a batch that was `late`, where that was seen too late: the numbers of its entries, which stand
    """

    entity: str
    head: Head | None
    stands: tuple[int, ...] = ()


class Query(Value):
    """Which heads to list; every field that is given must match. In the order of due, then of entity.

    after  only entities that come after this one, in the order of entities alone: to go through all of
           them page by page, `after` is the last one seen, and at first the empty text

    For people who look, not for work on its way: what no index has is found by reading all heads of a kind.

    begins   how the entity's name begins
    newest   in the order of their last entries instead, the newest first
    above    only those whose last entry comes after that seq …
    below    … or before that one
    holds    bytes that the head has somewhere; what they mean is for the caller to see
    tells    bytes that the body of its last entry has somewhere; found so, heads come with that body
    """

    kind: str
    state: str | None = None
    due_by: float | None = None
    step: str | None = None
    worker: str | None = None
    dataset: str | None = None
    limit: int = 1000
    after: str | None = None
    begins: str = ""
    newest: bool = False
    above: int = 0
    below: int | None = None
    holds: bytes = b""
    tells: bytes = b""


class Weight(Value):
    """How much there is of one kind of entity: entities, entries, and the bytes of both."""

    entities: int = 0
    entries: int = 0
    bytes: int = 0


class Room(Value):
    """How much room a store takes and has left, told without counting; 0 where it has no such thing.

    file  the bytes of the store itself
    wal   those of its write-ahead file
    left  how many the disk has left; None where that cannot be told
    """

    file: int = 0
    wal: int = 0
    left: int | None = None


class Facts(Value):
    """What a store really gives, for people and for `doctor`."""

    url: str
    engine: str
    durable: str
    notes: tuple[str, ...] = ()


def check_batch(batch: Batch) -> None:
    """Refuse a batch that writes an entity twice, or guards what it writes: it would contradict itself."""
    written = [write.entity for write in batch.writes]
    if len(set(written)) < len(written) or batch.guards.keys() & set(written):
        raise UsageError("a batch may name each entity once, as a write or as a guard")


def check_next(
    entries: Sequence[Entry], heads: Sequence[Head], standing: dict[str, tuple[int, bytes]]
) -> None:
    """Refuse entries that are not the next of their entities, and heads that are not what they lead to.

    standing  version and hash of what is there, by entity; afterwards, of what will be
    """
    for entry in entries:
        version, last = standing.get(entry.entity, (0, NOWHERE))
        if entry.version != version + 1 or entry.prev != last:
            raise StoreError(
                f"entry {entry.seq} ({entry.entity}, version {entry.version}) is not the next of what is "
                f"here, which is version {version}; nothing was taken over"
            )
        standing[entry.entity] = entry.version, entry.hash
    led = {entity: standing[entity] for entity in {entry.entity for entry in entries}}
    if {head.entity: (head.version, head.hash) for head in heads} != led:
        raise StoreError("the heads are not what the entries lead to; nothing was taken over")


#: How long `Batch.also` may take: everybody else who writes waits for it.
ALSO_S = 1.0


class Joined(Protocol):
    """The transaction that carries a batch, as far as others may write in it.

    dialect  "sqlite", with ? for values, or "postgresql", with %s
    """

    dialect: str

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run a statement and return its rows."""


class AlsoFailed(Exception):
    """What a batch was to write besides could not be written: nothing of it is stored. Its cause says why."""


def too_long() -> TimeoutError:
    """Return the error of an `also` that others have waited for long enough."""
    return TimeoutError(
        f"on_commit() took longer than {ALSO_S:g} s, which everybody waits for who writes to the store; "
        "prepare in the step, and write only there"
    )


def over() -> UsageError:
    """Return the error of one that kept its `Joined`."""
    return UsageError("what on_commit() was given is over; it holds while the function runs")


class Ticket(Protocol):
    """The answer to an append: `wait()` for it, or await it."""

    def wait(self) -> Stored | Conflict:
        """Block until the batch is stored or refused; raise `StoreError` when neither is known."""

    def __await__(self) -> Generator[object, object, Stored | Conflict]: ...


class Presence(Protocol):
    """Proof that a worker's process lives; it ends with `close()` or with the process."""

    def close(self) -> None:
        """End it: the worker counts as gone from now on, where a store can tell."""


class House(Protocol):
    """The house of a store: what is there besides the log."""

    def held(self) -> str:
        """Say why this store is taken for a copy whose original may have gone on; empty if it is not."""

    def acknowledge(self) -> None:
        """Take this copy for the store from now on."""

    def weights(self) -> dict[str, Weight]:
        """Return how much there is, by the kind of entity; counts all of it."""

    def room(self) -> Room:
        """Return how much room the store takes and has left."""

    def spare(self) -> int:
        """Return how many bytes of the store are free, to be used again."""

    def tidy(self) -> str:
        """Empty the write-ahead file into the store; say why that cannot be done now, or nothing."""

    def backup(self, to: Path, check: Checked, progress: Callable[[int, int], object]) -> None:
        """Write a whole and consistent copy to a new file, which says of itself that it is one.

        check     called with the copy's entries and heads before it gets its name; raises if they are wrong
        progress  called with how many pages are done, and of how many
        """


class Store(Protocol):
    """A log of entries with heads. A new store is one class that passes the contract suite."""

    #: Whether a batch may bring what else is written in its transaction.
    joins: bool
    #: Whether `gone` knows at once that a process has died, because all of them are on one machine.
    sees_deaths: bool
    #: Whether the guards of a batch that is `late` are compared after it is stored, which is cheaper here.
    looks_late: bool

    def append(self, batch: Batch) -> Ticket:
        """Ask for a batch to be stored."""

    def head(self, entity: str) -> Head | None:
        """Return the current state of an entity, or None when there is none."""

    def heads(self, query: Query) -> Iterator[Head]:
        """Return the heads that a query asks for."""

    def entries(self, entity: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Return entries in their order: of one entity after a version, or of all after a seq."""

    def now(self) -> float:
        """Return the time that this store goes by, in POSIX seconds."""

    def changed(self, after: int, timeout: float) -> int:
        """Wait until the log has grown beyond `after`, or time is up; return its last seq."""

    def prune(self, before: Mapping[str, int]) -> None:
        """Forget the bodies of entities' entries with a version below the one given; their digests stay.

        All of them or none. What is forgotten cannot be had again by reading the store's files, as far as
        the store can see to that.
        """

    def drop(self, at: Mapping[str, int]) -> int:
        """Remove entities whole, with all their entries, each if it is at the version given; return how many.

        Nothing tells afterwards that they were there: whoever asks says so in the log before.
        """

    def mend(self, heads: Sequence[Head], upto: int) -> int:
        """Put heads in the place of what is there, all or none; return how many were put.

        For heads that were rebuilt from the log up to the seq `upto`. One whose entity has entries after
        that is left alone: whoever wrote them knew better.
        """

    def adopt(self, entries: Sequence[Entry], heads: Sequence[Head]) -> None:
        """Take over entries of another log as they are, in their order, all or none, under new numbers.

        Each must be the next of its entity: its version, and what it is linked to; else it is a `StoreError`.
        A body that was pruned there is so here. `heads` are those that then stand, one for each entity.
        """

    def enter(self, worker: str) -> Presence:
        """Hold proof that this process, as a worker of that name, lives."""

    def gone(self, worker: str) -> bool:
        """Whether a worker's process is provably dead; False where that cannot be known."""

    def facts(self) -> Facts:
        """Return what this store really gives."""

    def house(self) -> House:
        """Return what keeps house here: sizes, backups, what a copy may do."""

    def close(self) -> None:
        """Let go of everything; what was acknowledged stays."""
