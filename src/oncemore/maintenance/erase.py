"""ERASURE: what the law wants gone is gone, and the log still verifies and says who had it done, and why.

ERASE is appended to the run, then the bodies of all its entries and of its events are forgotten: arguments,
results, errors, checkpoints, payloads. Headers and hashes stay, and so does the key: a later call is answered
`KeyExpired` and nothing is run a second time. Objects that it put away are removed if nothing else refers to
them. A crash anywhere leaves a chore OPEN and, at most, something that the same call removes when repeated.

What is not erased, because it is hashed for good: the key, the names of step, dataset, tenant and artifacts,
the correlation id, times and digests. Copies of the log are others' affair: backups, replicas, archives.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.artifacts.gc import LEAST_S, garbage
from oncemore.errors import InProgress, UsageError
from oncemore.log.entry_codec import head_of
from oncemore.log.record import Kept, Run
from oncemore.log.store import Query
from oncemore.maintenance.prune import Doomed, Tally, events_of, forget, mark, pages
from oncemore.maintenance.retention_rules import OVER
from oncemore.maintenance.tasks import Doing, close, left_open, somebody, told

if TYPE_CHECKING:
    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

SHORTEST_KEY = 8
#: How long to wait for readers, so that nothing is left in the store's write-ahead file.
TIDY_TRIES, TIDY_S = 20, 0.1


class Erased(Value):
    """What an erasure did.

    key        of the run
    events     how many of its events lost their payloads
    artifacts  digests of the objects that were removed
    left       what could not be removed now, with why; empty if nothing is left
    """

    key: str
    events: int
    artifacts: tuple[str, ...]
    left: tuple[str, ...]


def erase(engine: Engine, which: Any, reason: str, by: str | None) -> Erased:
    """Erase the bodies of a key's runs; safe to repeat, also to remove what was left the first time."""
    why, who = told("reason", reason), somebody(by)
    head = find(engine, which)
    left = left_open(engine, "erase")
    _over(engine, head)
    with Doing(engine, "erase", why, who) as doing:
        head, events = _marked(engine, doing, head)
        artifacts, rests = _objects(engine, head.entity)
        rests += _tidied(engine)
        close(engine, left)
        found = Erased(head.entity.removeprefix("run/"), events, artifacts, rests)
        doing.done(
            1, {"erased": {"run": head.entity, "events": events, "artifacts": artifacts, "left": rests}}
        )
    return found


def find(engine: Engine, which: Any) -> Head:
    """Return the head of a run: by itself, by its key, or by its first digits if one alone has them."""
    text = str(getattr(which, "key", which)).removeprefix("run/")
    head = engine.store.head(f"run/{text}")
    if head is not None:
        return head
    if re.fullmatch(r"[0-9a-f]+", text) and len(text) >= SHORTEST_KEY:
        listed = engine.store.heads(Query("run", limit=2, after=f"run/{text}"))
        found = [head for head in listed if head.entity.startswith(f"run/{text}")]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"several keys begin with {text}; give more digits")
    raise UsageError(
        f"there is no run with the key {text!r:.80} in {engine.url}; give the key, or {SHORTEST_KEY} "
        "or more of its first digits (step.key(*args) shows it)"
    )


def _over(engine: Engine, head: Head) -> dict[str, int]:
    """Refuse a run that may still go on, or whose events may; return its events."""
    run, which = head_of(head.head, Run), head.entity.removeprefix("run/")[:12]
    if run.state == "RUNNING":
        raise InProgress(f"{run.step}: key {which} is being worked on; erase it when it is over", run.worker)
    if run.state not in OVER or run.held_for:
        raise UsageError(
            f"{run.step}: key {which} is {run.state}{', held' if run.held_for else ''}: it needs its "
            "arguments to go on; let it end or settle it, then erase it"
        )
    events = events_of(engine, head.entity, run)
    waiting = sorted({event.topic for _, event in events.values() if event.state in ("PENDING", "SENDING")})
    if waiting:
        raise UsageError(
            f"{run.step}: key {which} has events that are not delivered ({', '.join(waiting)}); let a "
            "relay deliver them or give them up, then erase it"
        )
    return {name: version for name, (version, _) in events.items()}


def _marked(engine: Engine, doing: Doing, head: Head) -> tuple[Head, int]:
    """Write ERASE to the run, unless it says so already, and forget its bodies; return it as it then is."""
    while True:
        events = _over(engine, head)
        run = head_of(head.head, Run)
        doomed = Doomed(head, run, events)
        if run.reason == "erased":
            forget(engine, [doomed._replace(head=head._replace(version=head.version - 1))])
            return head, len(events)
        if mark(engine, "ERASE", [doomed], {"erase": doing.record}, Tally()):
            return find(engine, head.entity), len(events)
        head = find(engine, head.entity)  # somebody pruned it, or sent an event again, in this very moment


def _objects(engine: Engine, entity: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove the objects that only this key refers to; return what went, and what is left with why."""
    if not engine.shelf.there:
        return (), ()
    mine = {
        kept.digest
        for page in pages(engine, "artifact")
        for kept in (head_of(head.head, Kept) for head in page)
        if kept.run == entity
    }
    if not mine:
        return (), ()
    place = engine.shelf.place
    try:
        free, before = garbage((engine,), place, LEAST_S)
    except UsageError as shared:
        return (), (f"its artifacts: {shared}",)
    gone = {found.digest for found in free if found.digest in mine and place.remove(found.digest, before)}
    there = {found.digest for found in place.objects()}
    left = tuple(
        f"artifact {digest}: something else refers to it, or it is too young; collect() removes it "
        "when it can go"
        for digest in sorted((mine - gone) & there)
    )
    return tuple(sorted(gone)), left


def _tidied(engine: Engine) -> tuple[str, ...]:
    """Leave nothing in the store's write-ahead file; readers are waited for, for a while."""
    house = engine.store.house()
    why = house.tidy()
    for _ in range(TIDY_TRIES):
        if not why:
            return ()
        clocks.current.sleep(TIDY_S)
        why = house.tidy()
    return (f"the write-ahead file of the store: {why}",)
