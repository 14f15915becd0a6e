"""What a durable step costs, beside DBOS on SQLite, beside raw apsw and beside code written by hand.

    python bench/steps.py                  the tables, and a verdict for each goal of docs/design.md §9
    python bench/steps.py --runs 1000000   the same with a million stored runs (3 GB of disk for a while)
    python bench/steps.py --quick          the same in a few seconds, too noisy to believe
    python bench/steps.py --json           the same for a machine

Method: `_measure.py`; what waits for a disk is wall-clock time. The subjects: `_durable.py`. Files are made
in the folder it is started from, so that this is the disk that is measured, and removed at the end; "in
memory" is /dev/shm. Without DBOS (`make bench` installs it) its rows and goals are left out.
"""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from collections import deque
from contextlib import ExitStack, closing, contextmanager, suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import msgspec
from _durable import (
    AT_ONCE,
    BY_HAND,
    DBOS,
    DBOS_TASKS,
    DBOS_THREADS,
    FDATASYNC,
    LIMIT,
    LIMIT_STDLIB,
    OURS,
    PURE,
    RAW,
    SAME_ROWS,
    SELECT,
    SELECT_STDLIB,
    TASKS,
    THREADS,
    ByHand,
    Dbos,
    WithStdlib,
    at_once,
    by_hand,
    cpu,
    engine_at,
    fdatasync,
    has_dbos,
    ours,
    parked,
    pure,
    raw,
    same_rows,
    timed,
    wall,
    work,
)
from _filled import fill
from _measure import (
    Effort,
    Goal,
    Group,
    Row,
    Subject,
    calls,
    command,
    interleaved,
    number,
    ratios,
    spread,
)
from _syncs import Syncs, opened

import oncemore
from oncemore.log.sqlite.store import SqliteStore
from oncemore.log.store import HeadQuery
from oncemore.maintenance.replay import LogReplay
from oncemore.steps.history import verify_chain
from oncemore.testing import instant_waits

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from _measure import Spread

    from oncemore.log.store import Entry, Store

    Costs = dict[str, list[float]]
    Found = tuple[list[Group], list[Goal]]


class Scale(NamedTuple):
    """How much is measured.

    disk, memory, many  one at a time on disk and in memory; 32 at once
    warm_up             turns before a log is taken as warm, at most
    counted             steps whose syncs and bytes are counted
    stored              runs that a large store holds
    dbos_least          workflows of DBOS at once, at least, in one turn
    """

    disk: Effort
    memory: Effort
    many: Effort
    warm_up: int
    counted: int
    stored: int
    dbos_least: int


FULL = Scale(
    disk=Effort(rounds=31, batch_ns=100_000_000, most_s=30),
    memory=Effort(rounds=31, batch_ns=30_000_000, most_s=15),
    many=Effort(rounds=15, batch_ns=250_000_000, most_s=40),
    warm_up=50,
    counted=2_000,
    stored=100_000,
    dbos_least=2 * AT_ONCE,
)
QUICK = Scale(
    disk=Effort(rounds=2, batch_ns=5_000_000),
    memory=Effort(rounds=2, batch_ns=2_000_000),
    many=Effort(rounds=2, batch_ns=5_000_000),
    warm_up=1,
    counted=200,
    stored=2_000,
    dbos_least=AT_ONCE,
)
FEW, DUE = 1_000, 100
SLOW_S = 0.002
FULL_LOG = 1_000 * 4_096
US, MS = 1e3, 1e6


class Place(NamedTuple):
    """Where a part of the benchmark makes its files, and who is closed at its end."""

    disk: Path
    memory: Path
    stack: ExitStack

    def engine(self, name: str, folder: Path | None = None) -> oncemore.Engine:
        """Return an engine on a file of its own."""
        return engine_at((folder or self.disk) / f"{name}.db", self.stack)


@contextmanager
def place() -> Iterator[Place]:
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as disk,
        tempfile.TemporaryDirectory(prefix="bench-", dir=memory if memory.is_dir() else None) as quick,
        ExitStack() as stack,
    ):
        yield Place(Path(disk), Path(quick), stack)


# Costs, in ns, to tables and goals.


def with_dbos(
    subjects: list[Subject], dbos: dict[str, str], effort: Effort, folder: Path, **told: Any
) -> Costs:
    """Measure subjects in turns, and DBOS among them if it is there."""
    if not has_dbos():
        return interleaved(subjects, effort)
    with Dbos(folder / "dbos", told.get("least", 1)) as process:
        theirs = [process.subject(name, what, told.get("clock", wall)) for name, what in dbos.items()]
        return interleaved([*subjects, *theirs], effort)


def table_of(name: str, unit: str, over: str, costs: Costs, per: float = US, note: str = "") -> Group:
    against = ratios(costs, over)
    rows = [
        Row(subject, spread([one / per for one in own]), against[subject]) for subject, own in costs.items()
    ]
    return Group(name, unit, over, rows, note)


def rate(costs: Costs, one: str, of: str) -> Spread:
    """Return the rate of one subject over that of another, formed round by round."""
    return spread([other / own for own, other in zip(costs[one], costs[of], strict=True)])


def over(costs: Costs, one: str, of: str) -> Spread:
    """Return the cost of one subject over that of another, formed round by round."""
    return rate(costs, of, one)


def at_least(row: str, what: str, found: Spread, floor: float, aim: float | None = None) -> Goal:
    return Goal(row, what, found, floor, aim, most=False)


def on_this_disk(costs: Costs) -> str:
    rates = spread([1e9 / cost for cost in costs[FDATASYNC]])
    quartiles = f"{number(rates.low)}-{number(rates.high)}"
    rounds = len(costs[FDATASYNC])
    return f"{rounds} rounds; raw fdatasync meanwhile: {number(rates.median)} a second ({quartiles})"


def told(synced: dict[str, float]) -> str:
    return "syncs of a step, counted: " + "; ".join(f"{name} {number(each)}" for name, each in synced.items())


# 5: one at a time.


def alone(scale: Scale, at: Place) -> Found:
    with opened() as connections:
        mine = [ours(at.engine("ours")), ours(at.engine("pure"), PURE, pure)]
        warm(mine, at.disk, 1)
    by_others = [
        raw(at.disk / "raw.db"),
        same_rows(at.disk / "same.db"),
        fdatasync(at.disk / "raw", at.stack),
    ]
    warm([*mine, *by_others], at.disk, scale.warm_up)
    costs = with_dbos([*mine, *by_others], {DBOS: "one"}, scale.disk, at.disk)
    syncs = Syncs(connections)
    synced = {subject.name: syncs.each(subject.run, scale.counted) for subject in mine}
    goals = [
        at_least("5", "a step ÷ raw, two commits", rate(costs, OURS, RAW), 0.5, 0.6),
        at_least("5", "… ÷ raw, the same rows", rate(costs, OURS, SAME_ROWS), 0.6, 0.75),
        *([at_least("5", "… ÷ DBOS", rate(costs, OURS, DBOS), 10, 15)] if DBOS in costs else []),
        Goal("5", "… syncs, with checkpoints", spread([synced[OURS]]), 2.05, None, ""),
        Goal("5", "… of pure work", spread([synced[PURE]]), 1.05, None, ""),
    ]
    note = f"{on_this_disk(costs)}; {told(synced)}"
    return [table_of("a step at a time, on disk", "µs", RAW, costs, note=note)], goals


def warm(subjects: list[Subject], folder: Path, turns: int) -> None:
    """Run until every write-ahead log of a folder was once as long as it gets.

    While it grows, the file system has more to write down than the data, and a commit costs up to twice as
    much; from its first checkpoint on it is overwritten. Those who write little would grow for longest.
    """
    for _ in range(turns):
        for subject in subjects:
            subject.run(2 * AT_ONCE)
        if all(log.stat().st_size >= FULL_LOG for log in folder.glob("*.db-wal")):
            break


# 6: CPU.


def computing(scale: Scale, at: Place) -> Found:
    subjects = [
        ours(at.engine("ours", at.memory), clock=cpu),
        ours(at.engine("pure", at.memory), PURE, pure, cpu),
        by_hand(at.memory / "hand.db", cpu),
        Subject(LIMIT_STDLIB, timed(WithStdlib(at.memory / "stdlib.db").call, cpu)),
        raw(at.memory / "raw.db", cpu),
        same_rows(at.memory / "same.db", cpu),
    ]
    costs = with_dbos(subjects, {DBOS: "one"}, scale.memory, at.memory, clock=cpu)
    group = table_of("a step at a time, in memory", "µs CPU", LIMIT, costs)
    goals = [
        Goal("6", "CPU of a step ÷ by hand, in memory", group.of(OURS).ratio, 9, 5),
        Goal("6", "… ÷ by hand, standard library", over(costs, OURS, LIMIT_STDLIB), 5, 3),
    ]
    return [group], goals


# 7: many at once.


def together(scale: Scale, at: Place) -> Found:
    with opened() as connections:
        mine = [ours(at.engine("ours")), *at_once(at.disk, at.stack)]
        warm(mine, at.disk, scale.warm_up)
    dbos = {DBOS_TASKS: "tasks", DBOS_THREADS: "threads"}
    subjects = [*mine, fdatasync(at.disk / "raw", at.stack)]
    costs = with_dbos(subjects, dbos, scale.many, at.disk, minimum_calls=scale.dbos_least)
    syncs = Syncs(connections)
    synced = {subject.name: syncs.each(subject.run, scale.counted) for subject in mine}
    goals = [
        *over_one(costs, synced, "", (3, 4), (2, 3)),
        *([over_dbos(costs)] if has_dbos() else []),
    ]
    note = f"{on_this_disk(costs)}; {told(synced)}"
    return [table_of(f"{AT_ONCE} at once, on disk", "µs each", OURS, costs, note=note)], goals


def together_slowly(scale: Scale, at: Place) -> Found:
    with opened() as connections:
        subjects = [ours(at.engine("ours", at.memory)), *at_once(at.memory, at.stack)]
        warm(subjects, at.memory, 1)
    slow = Syncs(connections, SLOW_S)
    costs = interleaved(subjects, scale.many)
    synced = {subject.name: slow.each(subject.run, scale.counted // 4) for subject in subjects}
    name = f"{AT_ONCE} at once, a sync takes 2 ms"
    return [table_of(name, "µs each", OURS, costs, note=told(synced))], over_one(
        costs, synced, ", slow disk", (12, 15), (10, 10)
    )


def over_one(
    costs: Costs,
    synced: dict[str, float],
    where: str,
    tasks: tuple[float, float],
    threads: tuple[float, float],
) -> list[Goal]:
    """Return the goals of many at once over one at a time; each is a floor and an aim."""
    return [
        at_least("7", f"{AT_ONCE} tasks ÷ one at a time{where}", rate(costs, TASKS, OURS), *tasks),
        at_least("7", f"{AT_ONCE} threads ÷ one at a time{where}", rate(costs, THREADS, OURS), *threads),
        Goal("7", f"… syncs of each{where}", spread([max(synced[TASKS], synced[THREADS])]), 0.5, None, ""),
    ]


def over_dbos(costs: Costs) -> Goal:
    """Compare with DBOS in tasks or in threads, whichever was quicker in a round."""
    quickest = [min(both) for both in zip(costs[DBOS_TASKS], costs[DBOS_THREADS], strict=True)]
    found = rate({**costs, DBOS: quickest}, TASKS, DBOS)
    return at_least("7", f"{AT_ONCE} tasks ÷ DBOS, {AT_ONCE} at once", found, 50, 100)


# 8: the second call.


def second_call(scale: Scale, at: Place) -> Found:
    hand, step = ByHand(at.disk / "hand.db"), work.bind(at.engine("ours"))
    stdlib = WithStdlib(at.disk / "stdlib.db")
    for n in range(scale.counted):
        hand.call(n)
        stdlib.call(n)
        step(n)
    key, same = sha256(msgspec.json.encode({"n": 7})).digest(), sha256(b'{"n": 7}').digest()
    subjects = [
        calls(SELECT, hand.select, key),
        calls(SELECT_STDLIB, stdlib.select, same),
        calls(BY_HAND, hand.again),
        calls(OURS, step),
    ]
    costs = with_dbos(subjects, {DBOS: "again"}, scale.memory, at.disk, clock=cpu)
    group = table_of("a call of finished work", "µs CPU", SELECT, costs)
    goals = [
        Goal("8", "a second call ÷ a select by key", group.of(OURS).ratio, 6, 3),
        Goal("8", "… ÷ a select, standard library", over(costs, OURS, SELECT_STDLIB), 5, 3),
    ]
    return [group], goals


# 9: many stored.


def growth(scale: Scale, at: Place) -> Found:
    few, many = f"{FEW:,} stored", f"{scale.stored:,} stored"
    begun = time.perf_counter()
    for name, runs in ((few, FEW), (many, scale.stored)):
        fill(at.disk / f"{name}.db", runs, DUE)
    filling = f"filling took {time.perf_counter() - begun:.0f} s"
    engines = {name: at.engine(name) for name in (few, many)}
    steps = [ours(engine, name) for name, engine in engines.items()]
    warm(steps, at.disk, scale.warm_up)
    costs = interleaved([*steps, fdatasync(at.disk / "raw", at.stack)], scale.disk)
    listed = interleaved([listing(engine, name) for name, engine in engines.items()], scale.memory)
    lists = table_of(f"listing {DUE} runs that are due", "ms", few, listed, MS)
    goals = [
        at_least("9", f"rate with {many} ÷ {few}", rate(costs, many, few), 0.85, 1),
        Goal("9", f"… listing {DUE} that are due", lists.of(many).cost, 5, None, " ms"),
    ]
    note = f"{on_this_disk(costs)}; {filling}"
    return [table_of("a step at a time, many stored", "µs", few, costs, note=note), lists], goals


def listing(engine: oncemore.Engine, name: str) -> Subject:
    """List what is due, of which both files have the same."""

    def listed(_: int) -> None:
        found = list(engine.store.list_heads(HeadQuery("run", due_by=engine.now())))
        assert len(found) == DUE

    return Subject(name, timed(listed, wall))


# 9 and last: the size of a run.

PARKED = "oncemore, parked"


def sizes(scale: Scale, at: Place) -> Found:
    hand, memory = ByHand(at.memory / "hand.db"), at.memory
    for n in range(scale.counted):
        hand.call(n)
    each = {
        LIMIT: [hand.size() / scale.counted],
        OURS: [grown(memory / "ours.db", work, scale.counted)],
        PARKED: [grown(memory / "parked.db", parked, scale.counted)],
    }
    held = held_by_parked(memory / "held.db", scale.counted)
    goals = [
        Goal("9", "a run of one attempt, on disk", spread(each[OURS]), 2500, 1500, " B"),
        Goal("last", "a parked run, in memory", spread([held]), 300, None, " B"),
    ]
    note = f"a parked run is a row: in memory it holds {number(held)} B"
    return [table_of("size of a run", "bytes on disk", LIMIT, each, 1, note)], goals


def grown(path: Path, step: oncemore.Step, runs: int) -> float:
    """Return by how much a file is larger for each run."""
    sizes = []
    for first, last in ((0, AT_ONCE), (AT_ONCE, AT_ONCE + runs)):
        with closing(oncemore.open(path, max_inline_wait_s=0)) as engine:
            begin(step.bind(engine), range(first, last))
        sizes.append(path.stat().st_size)
    return (sizes[1] - sizes[0]) / runs


def begin(step: oncemore.Step, numbers: range) -> None:
    for n in numbers:
        with suppress(oncemore.Deferred):
            step(n)


def held_by_parked(path: Path, runs: int) -> float:
    """Return the bytes of the interpreter's memory that a parked run keeps."""
    with closing(oncemore.open(path, max_inline_wait_s=0)) as engine:
        step, held = parked.bind(engine), []
        tracemalloc.start()
        try:
            for first, last in ((0, AT_ONCE), (AT_ONCE, AT_ONCE + runs)):
                begin(step, range(first, last))
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    return max(0.0, (held[1] - held[0]) / runs)


# 10: reading back.

SCAN, VERIFY = "scan of all entries", "rebuild: every link checked, every state folded"
REPLAY = "replay: … and every decision computed again"
BY_HAND_READ = "by hand: the same rows, hashed and decoded"
# The same times as a quarter and a tenth of the scan of the day when the floors were set, rounded up.
REBUILD_FLOOR, REPLAY_FLOOR, DECISIONS_FLOOR = 0.45, 0.2, 0.2


def reading(scale: Scale, at: Place) -> Found:
    engine = at.engine("log", at.memory)
    step, store = work.bind(engine), engine.store
    for n in range(scale.counted):
        step(n)
    subjects = [
        read_by_hand(store),
        passes(SCAN, store, lambda entries: deque(entries, 0)),
        passes(VERIFY, store, verify_chain),
        passes(REPLAY, store, told_again),
    ]
    costs = interleaved(subjects, scale.memory)
    decided, rows = decisions(scale, at)
    # Not against our own scan: that made a cheaper scan look like a dearer rebuild.
    goals = [
        at_least("10", "rebuild ÷ rows by hand", rate(costs, VERIFY, BY_HAND_READ), REBUILD_FLOOR),
        at_least("10", "replay ÷ rows by hand", rate(costs, REPLAY, BY_HAND_READ), REPLAY_FLOOR),
        at_least(
            "10",
            "… where every other entry is a decision",
            rate(decided, REPLAY, BY_HAND_READ),
            DECISIONS_FLOOR,
        ),
    ]
    return [table_of("reading back", "µs CPU an entry", BY_HAND_READ, costs), rows], goals


def read_by_hand(store: Store) -> Subject:
    """Read the rows of the log through apsw, hash every header and body, and decode them: the least there is.

    Whatever checks the chain and computes the states has to do this much.
    """
    assert isinstance(store, SqliteStore)
    with closing(apsw.Connection(str(store.path))) as connection:
        ((whole,),) = connection.execute("SELECT count(*) FROM log")
    decode = msgspec.json.decode

    def run(n: int) -> int:
        begun, left = cpu(), n
        with closing(apsw.Connection(str(store.path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            while left > 0:
                rows = connection.execute("SELECT * FROM log ORDER BY seq LIMIT ?", (left,))
                for _, _, _, _, _, header, body, _ in rows:
                    sha256(header).digest()
                    sha256(body).digest()
                    decode(header)
                    decode(body)
                left -= whole
        return cpu() - begun

    return Subject(BY_HAND_READ, run)


def told_again(entries: Iterator[Entry]) -> None:
    """Replay entries; what does not agree would end the benchmark."""
    for told in LogReplay().replay_entries(entries):
        assert not told.differences


def decisions(scale: Scale, at: Place) -> tuple[Costs, Group]:
    """Read a log back in which every other entry is a decision: the dearest there is."""
    engine = at.engine("failing", at.memory)
    with instant_waits():
        for n in range(scale.counted // 5):
            failing.bind(engine).run(n)
    store = engine.store
    subjects = [
        read_by_hand(store),
        passes(SCAN, store, lambda entries: deque(entries, 0)),
        passes(REPLAY, store, told_again),
    ]
    costs = interleaved(subjects, scale.memory)
    return costs, table_of("reading decisions back", "µs CPU an entry", BY_HAND_READ, costs)


@oncemore.step(effect="idempotent", name="bench.failing", policy=oncemore.Policy("failing", max_attempts=5))
def failing(n: int) -> None:
    raise ConnectionResetError("peer went away")


def passes(name: str, store: Store, read: Callable[[Iterator[Entry]], object]) -> Subject:
    """Read so many entries, from the first on as often as needed."""
    whole = sum(1 for _ in store.read_entries())

    def run(n: int) -> int:
        begun, left = cpu(), n
        while left > 0:
            read(islice(store.read_entries(), left))
            left -= whole
        return cpu() - begun

    return Subject(name, run)


# The whole.

PARTS = (alone, computing, together, together_slowly, second_call, growth, sizes, reading)
PACKAGES = ("oncemore", "apsw", "msgspec", *(["dbos"] if has_dbos() else []))


def measured(options: Namespace, goals: list[Goal]) -> Iterator[Group]:
    scale = QUICK if options.quick else FULL
    if options.runs:
        scale = scale._replace(stored=options.runs)
    for part in PARTS:
        with place() as at:
            groups, reached = part(scale, at)
        goals += reached
        yield from groups


if __name__ == "__main__":
    reached: list[Goal] = []
    command(
        __doc__,
        PACKAGES,
        lambda options: measured(options, reached),
        lambda groups: sorted(reached, key=lambda goal: (goal.row == "last", goal.row.zfill(2))),
        {"runs": f"how many runs the large store holds ({FULL.stored:,})"},
    )
