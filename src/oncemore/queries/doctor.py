"""DOCTOR: what is wrong with a store, or soon will be, each with the next step.

Every check is one function that looks and answers ok, warn or bad; one that cannot look says so. All but the
rebuild are quick: they read what is due, what runs, who lives and the end of the log.
"""

from __future__ import annotations

import time
from itertools import islice

from oncemore._time_spans import seconds
from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.queries.runs import HELD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from typing import Any

    from oncemore.artifacts.backends import Folder
    from oncemore.log.record import Run
    from oncemore.log.store import Head, Store
    from oncemore.maintenance.rebuild import Rebuilt

    Progress = Callable[[int, int], object]

OK, WARN, BAD = "ok", "warn", "bad"
MOST = 10_000
LATEST = 2_000
#: Clocks that differ by more are worth a look; a run that is due for longer has nobody who comes for it.
CLOCK_S, OVERDUE_S = 5.0, 300.0
LOW_DISK, LARGE_LOG = 1 << 30, 256 << 20


class Check(Value):
    """One check: its name, how it came out, what was seen, and what to do next if anything is to be done."""

    name: str
    status: str
    seen: str
    next: str = ""
    examples: tuple[str, ...] = ()


class Checkup(Value):
    """All checks of a store."""

    url: str
    engine: str
    checks: tuple[Check, ...]

    @property
    def worst(self) -> str:
        """The worst that was found."""
        found = {check.status for check in self.checks}
        return next(status for status in (BAD, WARN, OK) if status in found or status == OK)


def checkup(
    store: Store, known_steps: Iterable[str] | None = None, artifacts: Folder | None = None
) -> Checkup:
    """Look a store over.

    known_steps  names of the steps that workers know, where somebody can tell
    artifacts    the folder of its artifacts, if they are in one
    """
    facts = store.facts()
    running, waiting = _runs(store, state="RUNNING"), _waiting(store)
    checks = [
        Check("engine", OK, facts.engine),
        *_durability(store),
        *_place(store),
        *_artifacts(artifacts),
        *_clock(store),
        *_schema(store),
        _chain(store),
        *_leases(store, running),
        _stuck(store, waiting),
        _held(waiting),
        _switches(store),
        *_events(store),
        *_code(running, waiting, known_steps),
    ]
    return Checkup(facts.url, facts.engine, tuple(checks))


def _plural(count: int, one: str, many: str = "") -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {many or one + 's'}"


def _runs(store: Store, **query: Any) -> list[tuple[Head, Run]]:
    from oncemore.log.entry_codec import head_of
    from oncemore.log.store import Query

    return [(head, head_of(head.head)) for head in store.heads(Query("run", limit=MOST, **query))]


def _waiting(store: Store) -> list[tuple[Head, Run]]:
    """Return what waits: for its time, by the index of what is due, or for a person, who is not in it."""
    waits = _runs(store, due_by=float("inf"))
    return waits + _runs(store, state=HELD)


def _names(runs: Iterable[tuple[Head, Run]]) -> tuple[str, ...]:
    return tuple(f"{run.step} {run.run_id}" for _, run in islice(runs, 5))


# Where it is ----------------------------------------------------------------------------------------


#: What a store says of itself that is worth a warning: by words in it, what it is about and what to do.
_NOTES = {
    "synchronous standby": ("standby", "set synchronous_standby_names, if you fail over to replicas"),
    "one replica": ("replicas", "keep the log on three servers: ?replicas=3, in a cluster of three or more"),
    "were asked how they sync": ("monitoring", "?monitor=http://a:8222,http://b:8222,http://c:8222"),
}


def _durability(store: Store) -> Iterator[Check]:
    facts = store.facts()
    pragma = getattr(store, "pragma", None)
    if pragma is not None:
        mode = pragma("journal_mode")
        if mode == "wal":
            yield Check("sync mode", OK, "write-ahead log; every INTENT and COMMIT waits for the disk (FULL)")
        else:
            yield Check(
                "sync mode", BAD, f"the journal mode is {mode}, not wal",
                "let a program that uses oncemore open it once: it sets the mode, or says why it cannot",
            )  # fmt: skip
        return
    weak, unknown = "power loss can take away" in facts.durable, "unverified" in facts.durable
    advice = "set it right on the server" if weak else ""
    if unknown:
        advice = "name the server's monitoring port: ?monitor=http://host:8222"
    yield Check("sync mode", BAD if weak else WARN if unknown else OK, facts.durable, advice)
    for note in facts.notes:
        for words, (name, do) in _NOTES.items():
            if words in note:
                yield Check(name, WARN, note, do)


def _place(store: Store) -> Iterator[Check]:
    path = getattr(store, "path", None)
    if path is None:
        return
    import os

    from oncemore.log.sqlite import machine
    from oncemore.log.sqlite.backup import COMPANIONS, find_companions
    from oncemore.log.sqlite.files import check_links

    kind = machine.file_system(path.parent) or "unknown"
    disk = os.statvfs(path.parent)
    free = disk.f_bavail * disk.f_frsize
    room = f"{kind}, {free / (1 << 30):.1f} GB free"
    if free < LOW_DISK:
        yield Check(
            "file system", WARN, room, "make room: a full disk stops every step, though nothing is lost"
        )
    else:
        yield Check("file system", OK, room)
    for suffix in ("", *COMPANIONS):
        try:
            check_links(path.with_name(path.name + suffix))
        except StoreError as fault:
            yield Check("links", BAD, str(fault))
    opened = [each for each in (path, *find_companions(path)) if each.stat().st_mode & 0o077]
    if opened:
        yield Check(
            "rights", WARN,
            f"others than its owner may read or write {', '.join(each.name for each in opened)}",
            f"{_closed_by(opened)}: arguments and results are in it",
        )  # fmt: skip
    elif not os.access(path, os.W_OK):
        yield Check("rights", WARN, f"you may read {path.name}, not write it", "look as its owner to repair")
    size, log = store.size()  # type: ignore[attr-defined]
    told = f"{size / 1e6:,.1f} MB, and {log / 1e6:,.1f} MB in its write-ahead log"
    if log > LARGE_LOG:
        yield Check("size", WARN, told, "a reader that stays keeps the log from being emptied; end it")
    else:
        yield Check("size", OK, told)


def _closed_by(paths: list[Path]) -> str:
    """Return the command that takes the rights of other users away."""
    modes = {"700": [str(path) for path in paths if path.is_dir()]}
    modes["600"] = [str(path) for path in paths if not path.is_dir()]
    return " && ".join(f"chmod {mode} {' '.join(names)}" for mode, names in sorted(modes.items()) if names)


def _artifacts(folder: Folder | None) -> Iterator[Check]:
    """Check the rights of what steps have put away, large results and captured output among it."""
    if folder is not None:
        opened = list(islice(folder.find_open_paths(), MOST))
        if opened:
            yield Check(
                "rights of artifacts", WARN,
                f"others than their owner may read {_plural(len(opened), 'path')} in {folder.url}",
                f"chmod -R go= {folder.url}", tuple(map(str, opened[:5])),
            )  # fmt: skip


def _clock(store: Store) -> Iterator[Check]:
    from oncemore.log.entry_codec import header_of

    now = store.now()
    off = now - time.time()
    way = "ahead of" if off > 0 else "behind"
    if abs(off) > CLOCK_S:
        yield Check(
            "clock", WARN, f"the store's time is {seconds(abs(off))} {way} this machine's",
            "look at the clock of the machine" + ("" if hasattr(store, "path") else " and of the server")
            + "; what waits goes by the store's",
        )  # fmt: skip
    else:
        yield Check("clock", OK, f"within {CLOCK_S:g} s of this machine's")
    last = store.changed(0, 0.0)
    late = [
        entry
        for entry in store.entries(after=max(0, last - 100))
        if header_of(entry.header).at > now + CLOCK_S
    ]
    if late:
        ahead = max(header_of(entry.header).at for entry in late) - now
        yield Check(
            "clock of the log", WARN, f"the last entries are up to {seconds(ahead)} in the future",
            "a clock that wrote them ran ahead; what it let wait will wait longer",
        )  # fmt: skip


def _schema(store: Store) -> Iterator[Check]:
    """Check what other programs have put among our tables."""
    sort_objects = getattr(store, "sort_objects", None)
    if sort_objects is None:
        return
    foreign, others = sort_objects()
    if foreign:
        yield Check(
            "schema", BAD, "; ".join(foreign[:5]), "another program has put it there: remove it, then verify"
        )
    else:
        more = f"; tables of others: {', '.join(others[:5])}" if others else ""
        yield Check("schema", OK, f"no foreign object touches our tables{more}")


def _chain(store: Store) -> Check:
    """Check the newest runs, each from its first entry on; the whole log is for --rebuild."""
    from oncemore.steps.run import verify

    last = store.changed(0, 0.0)
    seen = list(dict.fromkeys(entry.entity for entry in store.entries(after=max(0, last - LATEST))))
    count = 0
    for entity in seen:
        try:
            verify(store.entries(entity))
            count += 1
        except StoreError as fault:
            return Check(
                "chain", BAD, str(fault),
                "do not write to it any more; restore a backup, and keep this file: it is evidence",
            )  # fmt: skip
    whole = "" if last <= LATEST else "; --rebuild checks all of them"
    return Check("chain", OK, f"the links of the last {_plural(count, 'entity', 'entities')} fit{whole}")


# Who is there, and what waits -----------------------------------------------------------------------


def _leases(store: Store, running: list[tuple[Head, Run]]) -> Iterator[Check]:
    from oncemore.log.entry_codec import head_of
    from oncemore.log.record import Worker
    from oncemore.log.store import Query

    now = store.now()
    heads = list(store.heads(Query("worker", state="ALIVE", limit=MOST)))
    workers = {head.by.worker: head_of(head.head, Worker) for head in heads}
    alive = [name for name, worker in workers.items() if worker.until > now and not store.gone(name)]
    lost_words = len(workers) - len(alive)
    yield Check(
        "workers", OK, f"{_plural(len(alive), 'worker')} alive, {lost_words} gone without a word",
        examples=tuple(f"{name}, {workers[name].host} process {workers[name].pid}" for name in alive[:5]),
    )  # fmt: skip
    lost = [(head, run) for head, run in running if run.worker not in alive]
    if lost:
        yield Check(
            "leases", WARN, f"{_plural(len(lost), 'run is', 'runs are')} RUNNING whose worker is gone",
            "call the step again, or start a worker: it closes the attempt and goes on by the effect's class",
            _names(lost),
        )  # fmt: skip
    else:
        yield Check("leases", OK, f"{_plural(len(running), 'run is', 'runs are')} RUNNING, all of them held")
    ahead = [name for name, worker in workers.items() if worker.until - now > worker.lease_s + CLOCK_S]
    if ahead:
        yield Check(
            "clocks of workers", WARN, f"{_plural(len(ahead), 'lease lasts', 'leases last')} too long",
            "a clock was ahead, or was set back; runs of these workers are free later than they should be",
            tuple(ahead[:5]),
        )  # fmt: skip


def _stuck(store: Store, waiting: list[tuple[Head, Run]]) -> Check:
    now = store.now()
    open_ = [(head, run) for head, run in waiting if not run.held_for]
    over = [(head, run) for head, run in open_ if run.not_before < now - OVERDUE_S]
    if over:
        oldest = max(now - (run.not_before or run.created) for _, run in over)
        return Check(
            "stuck runs", WARN,
            f"{_plural(len(over), 'run has', 'runs have')} been due for up to {seconds(oldest)}; nobody came",
            "call the step again, or start a worker that knows it", _names(over),
        )  # fmt: skip
    return Check(
        "stuck runs",
        OK,
        f"{_plural(len(open_), 'run waits for its', 'runs wait for their')} time, none overdue",
    )


def _held(waiting: list[tuple[Head, Run]]) -> Check:
    held = [(head, run) for head, run in waiting if run.held_for]
    if not held:
        return Check("held runs", OK, "nothing waits for a person")
    return Check(
        "held runs", WARN, f"{_plural(len(held), 'run waits', 'runs wait')} for a person",
        "`oncemore quarantine list` has them, `oncemore quarantine show ID` what is known and can be decided",
        _names(held),
    )  # fmt: skip


def _switches(store: Store) -> Check:
    from oncemore.queries.control import control_of, why

    control = control_of(store)
    if control.moved:
        return Check(
            "switches", WARN, f"this log has moved to {control.moved}; nothing begins here any more",
            "use that one; `oncemore copy` says how to come back",
        )  # fmt: skip
    if control.on:
        return Check(
            "switches", WARN, f"{_plural(len(control.on), 'switch is', 'switches are')} on: work waits",
            "`oncemore switch off` releases it", tuple(why(control, name) for name in list(control.on)[:5]),
        )  # fmt: skip
    return Check("switches", OK, "none is on in this log")


def _events(store: Store) -> Iterator[Check]:
    from oncemore.log.store import Query

    now = store.now()
    overdue = list(store.heads(Query("event", due_by=now - OVERDUE_S, limit=MOST)))
    if overdue:
        yield Check(
            "events", WARN, f"{_plural(len(overdue), 'event has', 'events have')} waited for {OVERDUE_S:g} s",
            "start a relay, or look why it cannot deliver",
            tuple(f"{head.by.step} {head.entity}" for head in overdue[:5]),
        )  # fmt: skip


def _code(
    running: list[tuple[Head, Run]], waiting: list[tuple[Head, Run]], known: Iterable[str] | None
) -> Iterator[Check]:
    """Say which open runs belong to steps that nobody knows any more."""
    steps = {run.step for _, run in (*running, *waiting)}
    if known is None:
        if steps:
            yield Check(
                "code", OK, f"open runs belong to {', '.join(sorted(steps)[:5])}",
                "name the modules of your steps with --module, to see whether all of them are known",
            )  # fmt: skip
        return
    lost = sorted(steps - set(known))
    if lost:
        yield Check(
            "code", WARN, f"no module that was named knows {', '.join(lost[:5])}",
            "bring the step back under its name, or end its runs by a person's decision",
            _names((head, run) for head, run in (*running, *waiting) if run.step in lost),
        )  # fmt: skip
    else:
        yield Check("code", OK, "every open run belongs to a step that is known")


# The whole log --------------------------------------------------------------------------------------


def rebuilt(store: Store, progress: Progress = lambda done, whole: None) -> tuple[Check, Rebuilt | None]:
    """Make all heads anew from the log and compare them; return the check, and what can be put right."""
    from oncemore.maintenance.rebuild import rebuild

    try:
        found = rebuild(store, progress)
    except StoreError as fault:
        return Check(
            "rebuild", BAD, str(fault),
            "do not write to it any more; restore a backup, and keep this file: it is evidence",
        ), None  # fmt: skip
    told = f"{_plural(found.entries, 'entry', 'entries')}, {_plural(found.heads, 'head')} compared"
    if not found.wrong:
        return Check("rebuild", OK, f"{told}, all equal"), found
    lost = [one for one in found.wrong if one.right is None]
    examples = tuple(
        f"{one.entity}: {one.what}{' in ' + ', '.join(one.fields) if one.fields else ''}"
        for one in found.wrong[:5]
    )
    if lost:
        return Check(
            "rebuild", BAD, f"{told}; {_plural(len(lost), 'head tells', 'heads tell')} of lost entries",
            "the log was cut: restore a backup, and keep this file: it is evidence", examples,
        ), found  # fmt: skip
    return Check(
        "rebuild", BAD, f"{told}; {_plural(len(found.wrong), 'head is', 'heads are')} wrong",
        "oncemore doctor --rebuild --write puts them right from the log", examples,
    ), found  # fmt: skip
