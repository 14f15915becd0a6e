"""Garbage collection of artifacts: it removes objects without a reference, present or future.

An object stays if one of these is true:

    it is young              published within `older_than`; publishing it again makes it young again
    an attempt may use it    published after the oldest RUNNING attempt began, which refers to it at COMMIT
    a body contains it       a result, an argument, a checkpoint or an event of any run
    a reference names it     unless the run of the reference was pruned

Workers may run meanwhile, because of the order: first the running attempts, then the bodies, then the age of
each object again at its removal. An object that a worker publishes or commits meanwhile is young, or its
attempt was running at the first step. A crash leaves garbage for the next collection.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.log.encryption import decrypt_bytes
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import ArtifactRecord, RunRecord
from oncemore.log.store import HeadQuery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.artifacts.backends import ArtifactBackend, StoredObject
    from oncemore.steps.engine import Engine

DAY_S, MIN_AGE_S = 86_400.0, 60.0
#: Largest difference between the clocks of a backend and of a store, in seconds.
MAX_CLOCK_SKEW_S = 300.0
_NO_LIMIT = 2**31 - 1
_DIGEST_PATTERN = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


class GarbageReport(Value):
    """The number of removed objects, their bytes, and the leftovers of writers that died."""

    objects: int
    bytes: int
    leftovers: int


def find_garbage(
    engines: tuple[Engine, ...], backend: ArtifactBackend, older_than: float
) -> tuple[list[StoredObject], float]:
    """Return the objects to remove, and the time before which each must have been published."""
    is_number = isinstance(older_than, int | float) and not isinstance(older_than, bool)
    if not is_number or not MIN_AGE_S <= older_than < float("inf"):
        raise UsageError(f"older_than is {older_than!r}; it takes {MIN_AGE_S:g} seconds or more")
    # References in a log that is not read here would be missed, and their objects removed.
    other_logs = backend.registered_logs() - {engine.url for engine in engines}
    if other_logs:
        raise UsageError(
            f"{backend.url} also stores artifacts of {', '.join(sorted(other_logs))}; pass engines on these "
            "logs as also=, or remove their files in logs/ if the logs no longer exist"
        )
    before = clocks.current.wall() - max(older_than, *(_oldest_attempt_age(engine) for engine in engines))
    mentioned = {digest for engine in engines for digest in _mentioned_digests(engine)}
    old = [
        stored
        for stored in backend.list_objects()
        if stored.modified < before and stored.digest not in mentioned
    ]
    # Usually there is none, and reading the references is then not needed.
    if not old:
        return [], before
    referenced = {
        digest
        for engine in engines
        for digest in _referenced_digests(engine, {stored.digest for stored in old})
    }
    return [stored for stored in old if stored.digest not in referenced], before


def collect_garbage(
    engines: tuple[Engine, ...], backend: ArtifactBackend, older_than: float
) -> GarbageReport:
    """Remove garbage; the backend checks the age of each object again."""
    garbage, before = find_garbage(engines, backend, older_than)
    removed = [stored for stored in garbage if backend.remove_object(stored.digest, before)]
    size = sum(stored.size for stored in removed)
    return GarbageReport(len(removed), size, backend.remove_leftovers(before))


def _oldest_attempt_age(engine: Engine) -> float:
    """Return the age of the oldest running attempt, plus the clock skew; 0 if none is running."""
    heads = engine.store.list_heads(HeadQuery("run", "RUNNING", limit=_NO_LIMIT))
    starts = [decode_head(head.head, RunRecord).started_at for head in heads]
    return engine.now() - min(starts) + MAX_CLOCK_SKEW_S if starts else 0.0


def _mentioned_digests(engine: Engine) -> Iterator[str]:
    """Return the digests in every body with artifacts."""
    # Any 64 hex digits count: a false match keeps an object, a missed one would lose it.
    for entry in engine.store.read_entries():
        body = entry.body and decrypt_bytes(entry.body, engine.cipher, entry.entity, entry.version)
        if body and (b"$artifact" in body or b'"spilled"' in body):
            yield from (digest.decode() for digest in _DIGEST_PATTERN.findall(body))


def _referenced_digests(engine: Engine, digests: set[str]) -> Iterator[str]:
    """Return those digests that have a reference of a run that was not pruned."""
    for head in engine.store.list_heads(HeadQuery("artifact", due_by=float("inf"), limit=_NO_LIMIT)):
        reference = decode_head(head.head, ArtifactRecord)
        if reference.digest in digests:
            run = engine.store.load_head(reference.run_entity)
            if run is None or not decode_head(run.head, RunRecord).pruned_at:
                yield reference.digest
