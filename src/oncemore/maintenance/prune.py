"""RETENTION: forgetting what is over, so that a log stays of a bounded size.

For each run that may go (`maintenance.retention_rules`) two things happen, in this order:

    1  PRUNE is appended to it: from now on a call of its key is answered `KeyExpired`
    2  the bodies below it are forgotten, those of its events too; hashes and headers stay, the chain verifies

A crash between them leaves a pruned run with bodies. The chore that it happened in stays OPEN, so that the
next pass knows since when to look for such runs, and does the second again. Runs go in small groups, each one
transaction, and every PRUNE is a compare-and-set on the run and on its events: one that moves meanwhile
stays.

What is left of a run is its tombstone: key, state, hashes. Tombstones stay for ever, because they are all
that keeps a key from being done twice; `forget_keys_after` removes them, and says in the log which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.log.entry_codec import head_of, header_of, read_body
from oncemore.log.head_access import write_of
from oncemore.log.record import Change, Kept, Outgoing, Run, Worker
from oncemore.log.store import Batch, Conflict, Query, Stored
from oncemore.maintenance.retention_rules import LEAST_S, cannot_go, is_young
from oncemore.maintenance.tasks import Doing, chores, close, left_open, somebody, told
from oncemore.policy.canonical_json import event_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

DAY_S = 86_400.0
PAGE = 100
MOST_GUARDS = 1000
LONGEST_S = 100 * 366 * DAY_S


class Pruned(Value):
    """What retention did, or would do.

    runs       how many runs were pruned
    events     how many delivered events went with them
    kept       how many runs stay, by why: open, quarantined, undelivered, young, unsaid, moved
    forgotten  how many tombstones were removed: those keys could be done again
    workers    how many records of processes that are long gone were removed
    """

    runs: int
    events: int
    kept: Mapping[str, int]
    forgotten: int
    workers: int


class Doomed(NamedTuple):
    """A run that can go, as it was read, and its events with the versions they must still have."""

    head: Head
    run: Run
    events: dict[str, int]


class Tally:
    """Counts what a pass comes to."""

    def __init__(self) -> None:
        self.runs = self.events = self.forgotten = self.workers = 0
        self.kept: dict[str, int] = {}

    def stays(self, why: str) -> None:
        """Count a run that stays."""
        self.kept[why] = self.kept.get(why, 0) + 1

    def went(self, doomed: Doomed) -> None:
        """Count a run that goes."""
        self.runs += 1
        self.events += len(doomed.events)

    def told(self) -> Pruned:
        """Return what it came to."""
        return Pruned(self.runs, self.events, self.kept, self.forgotten, self.workers)


def prune(
    engine: Engine,
    older_than: float | None,
    step: str | None,
    reason: str,
    by: str | None,
    forget_keys_after: float | None,
) -> Pruned:
    """Forget what may be forgotten; return what that came to."""
    _seconds("older_than", older_than)
    _seconds("forget_keys_after", forget_keys_after)
    tally, left = Tally(), left_open(engine, "prune")
    since = min((chore.began for _, chore in left), default=float("inf"))
    with Doing(engine, "prune", told("reason", reason), somebody(by)) as doing:
        for group in _groups(engine, doing.began, older_than, step, tally, since, doing):
            _prune(engine, doing, group, tally)
        if forget_keys_after is not None:
            _forget_keys(engine, doing, step, doing.began - forget_keys_after, tally)
        _forget_workers(engine, doing, tally)
        close(engine, left)
        found = tally.told()
        asked = {"older_than_s": older_than, "step": step, "forget_keys_after_s": forget_keys_after}
        doing.done(tally.runs, {"asked": asked, "pruned": found._asdict()})
    return found


def would_prune(
    engine: Engine, older_than: float | None, step: str | None, forget_keys_after: float | None = None
) -> Pruned:
    """Return what `prune` would come to; nothing is written."""
    _seconds("older_than", older_than)
    _seconds("forget_keys_after", forget_keys_after)
    tally = Tally()
    if forget_keys_after is not None:
        before = engine.now() - forget_keys_after
        tally.forgotten = sum(
            _is_forgettable(head, before) for page in pages(engine, "run", step) for head in page
        )
    for group in _groups(engine, engine.now(), older_than, step, tally):
        for doomed in group:
            tally.went(doomed)
    return tally.told()


def _seconds(field: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and LEAST_S <= value <= LONGEST_S):
        raise UsageError(f"{field} is {value!r}; it takes {LEAST_S:g} to {LONGEST_S:g} seconds")


# What can go ----------------------------------------------------------------------------------------


def pages(engine: Engine, kind: str, step: str | None = None) -> Iterator[list[Head]]:
    """Go through all heads of a kind, page by page, in the order of their names."""
    after = ""
    while page := list(engine.store.heads(Query(kind, None, None, step, limit=PAGE, after=after))):
        yield page
        after = page[-1].entity


def _groups(
    engine: Engine,
    now: float,
    older_than: float | None,
    step: str | None,
    tally: Tally,
    since: float = float("inf"),
    doing: Doing | None = None,
) -> Iterator[list[Doomed]]:
    """Return runs that can go, some at a time; finish what a killed pass left on the way."""
    for page in pages(engine, "run", step):
        group: list[Doomed] = []
        again: dict[str, int] = {}
        for head in page:
            run = head_of(head.head, Run)
            if run.pruned:
                if run.pruned >= since:
                    again.update({head.entity: head.version, **_bodies(events_of(engine, head.entity, run))})
                continue
            why = cannot_go(run, now, older_than) or _still_needed(engine, head, run, now, older_than)
            if why:
                tally.stays(why)
                continue
            events = _delivered(engine, head.entity, run)
            if events is None:
                tally.stays("undelivered")
                continue
            group.append(Doomed(head, run, events))
            if sum(len(doomed.events) for doomed in group) > MOST_GUARDS:
                yield group
                group = []
        if again and doing is not None:
            engine.store.prune(again)
        if group:
            yield group


def _still_needed(engine: Engine, head: Head, run: Run, now: float, older_than: float | None) -> str:
    """Return why a run that is over stays, as far as its last entry tells."""
    for entry in engine.store.entries(head.entity, head.version - 1):
        if run.state == "HARD_FAIL" and "quarantine" in read_body(entry, engine.seal):
            return "quarantined"
        return is_young(run, header_of(entry.header).at, now, older_than)
    return "moved"


def events_of(engine: Engine, entity: str, run: Run) -> dict[str, tuple[int, Outgoing]]:
    """Return the events that all runs of a key gave away, with their versions."""
    found: dict[str, tuple[int, Outgoing]] = {}
    for life in range(1, run.runs + 1):
        ordinal = 0
        while True:
            name = f"event/{event_id_of(entity, life, ordinal)}"
            head = engine.store.head(name)
            if head is None:
                break
            found[name] = head.version, head_of(head.head, Outgoing)
            ordinal += 1
    return found


def _delivered(engine: Engine, entity: str, run: Run) -> dict[str, int] | None:
    """Return the events of a key with their versions; None if one of them may still be sent."""
    events = events_of(engine, entity, run)
    if any(event.state != "DELIVERED" for _, event in events.values()):
        return None
    return {name: version for name, (version, _) in events.items()}


def _bodies(events: dict[str, tuple[int, Outgoing]]) -> dict[str, int]:
    """Return up to which version the bodies of events go: all of them."""
    return {name: version + 1 for name, (version, _) in events.items()}


# Letting it go --------------------------------------------------------------------------------------


def _prune(engine: Engine, doing: Doing, group: list[Doomed], tally: Tally) -> None:
    """Write PRUNE to a group of runs, then forget their bodies; what has moved meanwhile stays."""
    body = {"prune": doing.record}
    for doomed in mark(engine, "PRUNE", group, body, tally):
        tally.went(doomed)


def mark(engine: Engine, what: str, group: list[Doomed], body: dict[str, Any], tally: Tally) -> list[Doomed]:
    """Append a mark to runs that are still as they were seen, then forget their bodies; return which."""
    marks: Any = (what,)
    while group:
        now = engine.now()
        writes = []
        for head, run, _ in group:
            after = run._replace(pruned=now)
            if what == "ERASE":
                after = after._replace(reason="erased")
            told = {name: {**value, "below": head.version + 1} for name, value in body.items()}
            change = Change(marks, run, after, told)
            writes.append(write_of(head.entity, head.version, head.hash, change, now, engine.seal))
        guards = {name: version for doomed in group for name, version in doomed.events.items()}
        answer = engine.store.append(Batch(tuple(writes), guards)).wait()
        if isinstance(answer, Stored):
            forget(engine, group)
            return group
        group = _without(answer, group, tally)
    return []


def _without(answer: Conflict, group: list[Doomed], tally: Tally) -> list[Doomed]:
    """Return a group without the run that is not as it was seen, or whose event is not."""
    tally.stays("moved")
    return [one for one in group if answer.entity != one.head.entity and answer.entity not in one.events]


def forget(engine: Engine, group: list[Doomed]) -> None:
    """Forget the bodies of runs below their last mark, and all those of their events."""
    bodies = {doomed.head.entity: doomed.head.version + 1 for doomed in group}
    engine.store.prune(
        {**bodies, **{name: version + 1 for doomed in group for name, version in doomed.events.items()}}
    )


# Keys and workers that nobody asks for any more -----------------------------------------------------


def _forget_keys(engine: Engine, doing: Doing, step: str | None, before: float, tally: Tally) -> None:
    """Remove tombstones whole; which ones is written down first, so that the log's last entry stays."""
    files = _references(engine)
    for page in pages(engine, "run", step):
        gone: dict[str, tuple[int, str]] = {}
        count = 0
        for head in page:
            if _is_forgettable(head, before):
                run = head_of(head.head, Run)
                gone[head.entity] = head.version, head.hash.hex()
                count += 1
                for name in (*events_of(engine, head.entity, run), *files.get(head.entity, ())):
                    other = engine.store.head(name)
                    assert other is not None
                    gone[name] = other.version, other.hash.hex()
        if gone:
            doing.note({"forgotten": [[name, *last] for name, last in gone.items()]})
            engine.store.drop({name: version for name, (version, _) in gone.items()})
            tally.forgotten += count


def _is_forgettable(head: Head, before: float) -> bool:
    """Whether a head is a tombstone of a run that was pruned before a time."""
    return 0.0 < head_of(head.head, Run).pruned < before


def _references(engine: Engine) -> dict[str, list[str]]:
    """Return the references to artifacts, by the run whose they are."""
    found: dict[str, list[str]] = {}
    for page in pages(engine, "artifact"):
        for head in page:
            found.setdefault(head_of(head.head, Kept).run, []).append(head.entity)
    return found


def _forget_workers(engine: Engine, doing: Doing, tally: Tally) -> None:
    """Remove the leases of processes that have been gone for a day, and that nothing names any more."""
    needed = {chore.worker for _, chore in chores(engine, state="OPEN")}
    for kind, state in (("run", "RUNNING"), ("event", "SENDING")):
        query = Query(kind, state, limit=2**31 - 1)
        needed |= {head.by.worker for head in engine.store.heads(query)}
    for page in pages(engine, "worker"):
        gone = {
            head.entity: head.version
            for head in page
            if head_of(head.head, Worker).until < doing.began - DAY_S
            and head.entity.partition("/")[2] not in needed
        }
        if gone:
            doing.note({"workers": list(gone)})
            try:
                tally.workers += engine.store.drop(gone)
            except StoreError as error:  # not worth failing for: in a server, only an owner may
                engine.grumble(f"the records of processes that are long gone stay: {error}")
                return
