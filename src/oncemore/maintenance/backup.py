"""HOUSE: sizes, backups, what a restored copy may do, and whether the log is whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.log.entry_codec import head_of, header_of, read_body
from oncemore.log.record import Outgoing, Run
from oncemore.maintenance.prune import pages
from oncemore.maintenance.rebuild import rebuild
from oncemore.maintenance.tasks import Doing, chores, close, left_open, somebody, told
from oncemore.steps.run import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from oncemore.log.record import Chore
    from oncemore.log.store import Entry, Head, Weight
    from oncemore.maintenance.rebuild import Wrong
    from oncemore.steps.engine import Engine

#: States in which a run may have gone on elsewhere since a copy was made.
OPEN = ("PENDING", "RUNNING", "SOFT_FAIL")


class Sizes(Value):
    """How much there is, in bytes.

    kinds            by the kind of entity: how many, how many entries, how many bytes
    file, wal        of the store and of its write-ahead file
    spare            free within the store, used again by what comes next
    left             what its disk has left; None where that cannot be told
    artifacts        how many objects are kept beside the log; None where there is no place for them
    artifact_bytes   how large they are together
    """

    kinds: Mapping[str, Weight]
    file: int
    wal: int
    spare: int
    left: int | None
    artifacts: int | None
    artifact_bytes: int


class Backup(Value):
    """A copy that was made: where, how large, and how many entries and entities it was checked to hold."""

    path: str
    bytes: int
    entries: int
    entities: int


class Forgotten(Value):
    """A run whose bodies were removed: how ("pruned" or "erased"), when, by whom and why."""

    key: str
    step: str
    how: str
    at: float
    actor: str
    reason: str


class Verified(Value):
    """A log that is whole: how many entries and entities it has, and what was removed from it."""

    entries: int
    entities: int
    forgotten: tuple[Forgotten, ...]


class Doubt(Value):
    """A run that was not over when a copy was made: it may have gone on in the original."""

    key: str
    step: str
    state: str
    effect: str
    attempt: int
    created: float


def sizes(engine: Engine) -> Sizes:
    """Count what the store holds, and the room that it takes."""
    house = engine.store.house()
    room, objects = house.room(), None
    if engine.shelf.there:
        objects = [found.size for found in engine.shelf.place.objects()]
    count = None if objects is None else len(objects)
    return Sizes(house.weights(), *room[:2], house.spare(), room.left, count, sum(objects or ()))


def chores_of(engine: Engine) -> tuple[Chore, ...]:
    """Return all chores, oldest first."""
    return tuple(chore for _, chore in chores(engine))


# Backup and restore ---------------------------------------------------------------------------------


def backup(
    engine: Engine,
    path: str | os.PathLike[str],
    reason: str,
    by: str | None,
    progress: Callable[[int, int], object] | None,
) -> Backup:
    """Write a checked copy of the log to a new file."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UsageError(f"path is {path!r}; it takes the path of a new file")
    to = Path(path).expanduser().absolute()
    count = [0, 0]

    def check(entries: Iterator[Entry], heads: Iterator[Head]) -> None:
        count[:] = _whole(entries, heads)

    left = left_open(engine, "backup")
    with Doing(engine, "backup", told("reason", reason), somebody(by)) as doing:
        engine.store.house().backup(to, check, progress or (lambda done, of: None))
        close(engine, left)
        doing.done(count[1], {"backup": {"path": str(to), "entries": count[0]}})
    return Backup(str(to), to.stat().st_size, *count)


def _whole(entries: Iterator[Entry], heads: Iterator[Head]) -> tuple[int, int]:
    """Check that a copy's log verifies, and that its heads are what the log adds up to."""
    seen = [0]

    def counted() -> Iterator[Entry]:
        for entry in entries:
            seen[0] += 1
            yield entry

    last = {entity: (version, digest) for entity, (version, digest, _) in verify(counted()).items()}
    if {head.entity: (head.version, head.hash) for head in heads} != last:
        raise StoreError("the copy's heads are not what its log adds up to; nothing was kept of it")
    return seen[0], len(last)


def acknowledge(engine: Engine, reason: str, by: str | None) -> None:
    """Let a copy go on: written down first, then done; a crash in between leaves it held."""
    house = engine.store.house()
    why = house.held()
    if not why:
        raise UsageError(f"{engine.url} is not held; there is nothing to acknowledge")
    with Doing(engine, "restore", told("reason", reason), somebody(by)) as doing:
        doing.note({"restore": {"held": why}})
        house.acknowledge()
        engine.held = ""
        doing.done(0, {})


def in_doubt(engine: Engine) -> Iterator[Doubt]:
    """Return the runs of a copy that were not over, and may have gone on in the original since."""
    for page in pages(engine, "run"):
        for head in page:
            run = head_of(head.head, Run)
            if run.state in OPEN:
                key = head.entity.removeprefix("run/")
                yield Doubt(key, run.step, run.state, run.effect, run.attempt, run.created)


# Is it whole? ---------------------------------------------------------------------------------------


def verified(engine: Engine) -> Verified:
    """Check every link, and every head against its entries.

    Bodies may be gone only where an entry says who removed them.
    """
    forgotten: dict[str, tuple[int, Forgotten]] = {}
    without: dict[str, Entry] = {}
    states: dict[str, Any] = {}  # of entities with such an entry

    def follow(page: Iterable[Entry], known: dict[str, tuple[int, bytes, Any]]) -> None:
        verify(page, known)
        for entry in page:
            if entry.body is None:
                without[entry.entity] = entry
            found = _forgotten(engine, entry)
            if found is not None:
                forgotten[entry.entity] = entry.version, found
            if entry.entity in without or entry.entity in forgotten:
                states[entry.entity] = known[entry.entity][2]

    rebuilt = rebuild(engine.store, through=follow)
    for wrong in rebuilt.wrong:
        raise StoreError(_describe_wrong(wrong))
    for entity, entry in without.items():
        if not _explained(entry, states[entity], forgotten):
            raise StoreError(
                f"the body of entry {entry.seq} ({entity}) is gone, and nothing says who removed it"
            )
    named = (
        found._replace(key=entity.removeprefix("run/"), step=states[entity].step)
        for entity, (_, found) in forgotten.items()
    )
    return Verified(rebuilt.entries, rebuilt.heads, tuple(named))


def _describe_wrong(wrong: Wrong) -> str:
    """Say how a head differs from what its entries lead to."""
    how = {
        "missing": "is missing",
        "ahead": "tells of entries that are not in the log",
        "behind": "is behind its last entry",
        "different": f"differs from its entries ({', '.join(wrong.fields)})",
    }
    return (
        f"the head of {wrong.entity} {how[wrong.what]}: it was altered, or the log was; "
        "`oncemore doctor --rebuild` compares all"
    )


def _explained(entry: Entry, state: Any, forgotten: dict[str, tuple[int, Forgotten]]) -> bool:
    """Whether an entry says that the body of an earlier one, or of an event of its run, was removed."""
    if type(state) is Outgoing:
        _, found = forgotten.get(state.run, (0, None))
        return found is not None and found.at >= state.created
    return entry.version < forgotten.get(entry.entity, (0, None))[0]


def _forgotten(engine: Engine, entry: Entry) -> Forgotten | None:
    """Return what an entry says was removed."""
    header = header_of(entry.header)
    how = {"PRUNE": "pruned", "ERASE": "erased"}.get(header.marks[0])
    if how is None:
        return None
    try:
        body = read_body(entry, engine.seal)
    except UsageError:  # sealed, and the key is not here: the log can be checked all the same
        body = {}
    made = body.get("prune" if how == "pruned" else "erase", {})
    return Forgotten("", "", how, header.at, made.get("actor", ""), made.get("reason", ""))
