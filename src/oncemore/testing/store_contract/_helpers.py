"""Helpers of the contract checks: building writes, appending them and verifying chains."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncemore.errors import StoreError
from oncemore.log.entry_codec import hash_entry
from oncemore.log.record import NOWHERE
from oncemore.log.store import Batch, Conflict, Entry, EntryWrite, Head, HeadIndex, Stored, hash_body
from oncemore.policy.canonical_json import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oncemore.log.store import Store

    #: Opens a handle on the store under test; every call opens the same data.
    Opener = Callable[[], Store]


def check_name(check: Callable[[Opener], None]) -> str:
    """Return a check's name as a sentence, for the id of a test."""
    return check.__name__.replace("_", " ")


def make_write(entity: str, before: Head | None, body: bytes = b"{}", **by: Any) -> EntryWrite:
    """Return the next entry of an entity, linked to the head that was read."""
    version = 0 if before is None else before.version
    header = f"{entity}:{version + 1}".encode()
    prev = NOWHERE if before is None else before.hash
    index, head = HeadIndex(**{"kind": "run", **by}), b"head of " + header
    return EntryWrite(
        entity=entity,
        expect=version,
        header=header,
        body=body,
        hash=hash_entry(prev, header, hash_bytes(body)),
        head=head,
        by=index,
    )


def append_writes(store: Store, *writes: EntryWrite, sync: bool = True) -> Stored | Conflict:
    """Append one batch and wait for its answer."""
    return store.append(Batch(writes, {}, sync)).wait()


async def append_async(store: Store, batch: Batch) -> Stored | Conflict:
    return await store.append(batch)


def append_guarded(store: Store, guard: Head, entity: str, *, late: bool = False) -> list[tuple[int, int]]:
    """Write an entity guarded by another; return the guard's version and the seq, or [] after a conflict."""
    answer = store.append(Batch((make_write(entity, None),), {guard.entity: guard.version}, late=late)).wait()
    if isinstance(answer, Stored):
        return [(guard.version, answer.seqs[0])]
    assert answer.entity == guard.entity
    assert answer.head is not None
    assert answer.head.version > guard.version
    return []


def require_stored(answer: Stored | Conflict) -> Stored:
    """Return an answer that must be `Stored`."""
    assert isinstance(answer, Stored), f"refused: {answer}"
    return answer


def read_verified_entries(store: Store, entity: str, pruned: int = 0) -> list[Entry]:
    """Return the entries of an entity after checking its whole chain.

    Bodies must be missing below the version `pruned`, and only there may the store give a digest.
    """
    prev, entries = NOWHERE, list(store.read_entries(entity))
    for version, entry in enumerate(entries, 1):
        assert (entry.entity, entry.version, entry.prev) == (entity, version, prev)
        assert (entry.body is None) == (version < pruned)
        assert (entry.body is None) == (entry.body_digest is not None)
        assert entry.hash == hash_entry(prev, entry.header, hash_body(entry))
        prev = entry.hash
    head = store.load_head(entity)
    assert (head.version if head else 0) == len(entries)
    assert (head.hash if head else NOWHERE) == prev
    assert head is None or (head.seq, head.body) == (entries[-1].seq, entries[-1].body)
    return entries


@contextmanager
def expect_store_error() -> Iterator[None]:
    try:
        yield
    except StoreError:
        return
    raise AssertionError("no StoreError was raised")


def run_in_threads(act: Callable[[int, int], Callable[[], None]], thread_count: int, turns: int) -> None:
    """Let each thread prepare its turn, then start all turns at the same moment."""
    barrier, errors = threading.Barrier(thread_count, timeout=60), list[BaseException]()

    def run(number: int) -> None:
        try:
            for turn in range(turns):
                go = act(number, turn)
                # Without it a fast thread would finish before the other threads have read anything.
                barrier.wait()
                go()
                barrier.wait()
        except BaseException as error:  # noqa: BLE001 - reported by the check
            errors.append(error)
            # The other threads must not wait for this one.
            barrier.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread is stuck"
    assert not errors, errors
