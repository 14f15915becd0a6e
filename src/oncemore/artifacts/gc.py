"""Collecting garbage: objects that nothing refers to, and nothing under way can come to refer to.

An object stays if one of these holds:

    it is young                  published within `older_than`; publishing it again makes it young again
    a run is open since before   what a RUNNING attempt has put away is referred to when it commits: so
    it was published             nothing goes that was published after the oldest of them began
    a body mentions it           a result, an argument, a checkpoint, an event, of whatever run
    a reference names it         unless the run that it belongs to was pruned

The order makes it safe beside others at work: first who is open, then what is mentioned, then each object's
age once more in the moment of its removal. Whatever was put or committed meanwhile is young, or was open
when the first was read. A crash anywhere leaves some garbage for the next time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.log.encryption import opened
from oncemore.log.entry_codec import head_of
from oncemore.log.record import Kept, Run
from oncemore.log.store import Query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.artifacts.backends import Object, Place
    from oncemore.steps.engine import Engine

DAY_S, LEAST_S = 86_400.0, 60.0
#: How far the clocks of a place and of a store may be apart.
APART_S = 300.0
_ALL = 2**31 - 1
_MENTION = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


class Collected(Value):
    """What was removed: objects, their bytes, and the rests of writers that died."""

    objects: int
    bytes: int
    rests: int


def garbage(engines: tuple[Engine, ...], place: Place, older_than: float) -> tuple[list[Object], float]:
    """Return the objects that can go, and the time that they must not have been published since."""
    number = isinstance(older_than, int | float) and not isinstance(older_than, bool)
    if not number or not LEAST_S <= older_than < float("inf"):
        raise UsageError(f"older_than is {older_than!r}; it takes {LEAST_S:g} seconds or more")
    others = place.signed() - {engine.url for engine in engines}
    if others:
        raise UsageError(
            f"{place.url} also keeps artifacts of {', '.join(sorted(others))}; give engines on them as "
            "also=, or remove their files in logs/ if they are gone for good"
        )
    before = clocks.current.wall() - max(older_than, *(_open_for(engine) for engine in engines))
    mentioned = {digest for engine in engines for digest in _mentioned(engine)}
    old = [found for found in place.objects() if found.modified < before and found.digest not in mentioned]
    if not old:
        return [], before
    referred = {digest for engine in engines for digest in _referred(engine, {found.digest for found in old})}
    return [found for found in old if found.digest not in referred], before


def collect(engines: tuple[Engine, ...], place: Place, older_than: float) -> Collected:
    """Remove what can go; each object only if it is still as old as it was."""
    found, before = garbage(engines, place, older_than)
    gone = [each for each in found if place.remove(each.digest, before)]
    return Collected(len(gone), sum(each.size for each in gone), place.sweep(before))


def _open_for(engine: Engine) -> float:
    """Return for how long the oldest attempt has been open, clocks that are apart included; 0 if none is."""
    heads = engine.store.heads(Query("run", "RUNNING", limit=_ALL))
    began = [head_of(head.head, Run).began for head in heads]
    return engine.now() - min(began) + APART_S if began else 0.0


def _mentioned(engine: Engine) -> Iterator[str]:
    """Return the digests in every body that speaks of artifacts: rather one too many than one too few."""
    for entry in engine.store.entries():
        body = entry.body and opened(entry.body, engine.seal, entry.entity, entry.version)
        if body and (b"$artifact" in body or b'"spilled"' in body):
            yield from (digest.decode() for digest in _MENTION.findall(body))


def _referred(engine: Engine, digests: set[str]) -> Iterator[str]:
    """Return those digests that a reference names whose run was not pruned."""
    for head in engine.store.heads(Query("artifact", due_by=float("inf"), limit=_ALL)):
        kept = head_of(head.head, Kept)
        if kept.digest in digests:
            run = engine.store.head(kept.run)
            if run is None or not head_of(run.head, Run).pruned:
                yield kept.digest
