"""WORKER: takes runs that are due, and those of dead workers, of the steps that it knows.

Any number of workers, in threads, processes or on machines, may share a store. A worker takes nothing in
advance: a run is claimed by the same script as that of any call (`flow.run_step`), so that two that reach for
one run cannot both have it. Between looks a worker sleeps until the log grows or the next run is due.

What is due is found by an index of step and time, and costs the same however much else waits. How a worker
knows of others, of what the dead had and of which share of the work is its own, is told in `sweeping`.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from oncemore._values import Value
from oncemore.control import permits
from oncemore.control.model import CLEAR, NEEDED, SWITCHED, Control, stops
from oncemore.errors import (
    Blocked,
    CoolingDown,
    Error,
    Failed,
    InProgress,
    LeaseLost,
    Parked,
    Quarantined,
    ResultUnavailable,
    StoreError,
    Uncertain,
    UsageError,
)
from oncemore.log.head_access import seen_in
from oncemore.log.store import Query
from oncemore.steps.context import CONTEXT, Context
from oncemore.steps.driver import awaiting, blocking
from oncemore.steps.engine import log
from oncemore.steps.entered_engine import inside
from oncemore.steps.ops import Save
from oncemore.workers.fairness import Sharing
from oncemore.workers.takeover import EVER, MOST_LISTED, Sweep, turn_of
from oncemore.workers.thread_pool import Crew
from oncemore.workers.turns import Turn, in_turn
from oncemore.workers.worker_report import Worked, list_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from oncemore.log.store import Head
    from oncemore.steps.call_in_progress import Job
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script, Seen
    from oncemore.workers.worker_report import Leftover

#: How many runs one look lists of a step at first, how many are counted.
PAGE, MOST_COUNTED = 16, 100_000
#: How old a list may be before it is made anew, how long a worker rests between looks, how long it is deaf.
STALE_S, REST_S, DEAF_S = 0.05, 0.01, 0.2
#: How long cancelled work has to write down that it was.
CUT_S = 5.0
#: How many runs of a step are remembered that cannot go on here; with more, the step is set aside.
MOST_REFUSED = 10_000
#: How long a worker leaves a run alone that it could not find out about whether it may begin.
ASK_AGAIN_S = 1.0
#: A list is longer the more processes share it, up to so many times.
MOST_SHARES = 16
#: How many times further a worker looks for what is in its own share, before it takes what is in others'.
FAR = 16
#: For how many looks a worker that met another takes runs out of their order.
CROWDED = 50


class Resumed(NamedTuple):
    """What goes on with a run: its job and script, and who asked for it."""

    job: Job
    script: Script
    actor: str


class Hand(NamedTuple):
    """A step, as a worker knows it.

    names   what its runs are found under: its name, and those that it had before
    resume  returns what goes on with a run, or refuses one that cannot go on here
    """

    names: tuple[str, ...]
    awaits: bool
    resume: Callable[[Engine, Seen], Resumed]
    pipeline: str = ""


class Pulse(Value):
    """Whether a worker works, for whoever watches it.

    turned_s  how long ago its loop went round; None before it has begun and after it has ended
    looked_s  how long ago it last saw in the store what is due; None if it never has
    stopping  it was told to stop, and takes nothing more
    """

    turned_s: float | None
    looked_s: float | None
    stopping: bool


#: What an error says about a run that a worker has taken. The first that fits counts.
_CAME_TO: tuple[tuple[Any, str], ...] = (
    ((Parked, CoolingDown), "later"),
    ((InProgress, LeaseLost), "taken"),
    (ResultUnavailable, "done"),
    ((Uncertain, Quarantined), "held"),
    (Failed, "failed"),
    (Blocked, "blocked"),
    (StoreError, "trouble"),
    (Error, "refused"),
    (Exception, "trouble"),
    (BaseException, "later"),
)


class Worker:
    """Does runs of the steps it knows; any number of workers may share a store."""

    def __init__(
        self,
        engine: Engine,
        hands: Sequence[Hand],
        *,
        concurrency: int = 5,
        poll_s: float = 1.0,
        grace_s: float = 30.0,
    ) -> None:
        _check("concurrency", concurrency, 1, 1000)
        _check("poll_s", poll_s, 0.01, 3600)
        _check("grace_s", grace_s, 0, 86_400)
        self._engine, self._hands = engine, _by_name(hands)
        engine.paces.most = max(engine.paces.most, int(concurrency))
        self._concurrency, self._poll_s, self._grace_s = concurrency, poll_s, grace_s
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = self._trouble = self._slowed = False
        self._busy: dict[str, str] = {}
        self._had: frozenset[str] = frozenset()
        self._counts: dict[str, int] = {}
        self._turns: list[Turn] = []
        self._looked = 0.0
        self._turned: float | None = None
        self._saw: float | None = None
        self._next = EVER
        self._last, self._crowded = "", 0
        self._sharing = Sharing()
        self._refused: dict[str, dict[str, int]] = {name: {} for name in self._hands}
        self._blocked: dict[str, tuple[int, int, float, str]] = {}
        self._control: tuple[int, Control] = 0, Control()
        self._chance = random.Random()  # noqa: S311 - so that workers do not reach for the same run
        self._others = Sweep(engine, self._known, self._chance)

    @property
    def worked(self) -> Worked:
        """What it has done so far."""
        with self._changed:
            return Worked(*(self._counts.get(name, 0) for name in Worked._fields))

    @property
    def under_way(self) -> tuple[str, ...]:
        """The keys of the runs that it has at this moment."""
        with self._changed:
            return tuple(sorted(entity.removeprefix("run/") for entity in self._busy))

    @property
    def pulse(self) -> Pulse:
        """Whether its loop goes round, and sees the store."""
        now = time.monotonic()
        turned, saw = self._turned, self._saw
        return Pulse(turned and now - turned, saw and now - saw, self._stopping)

    def run(self) -> Worked:
        """Work until `stop()`, whatever the store does; then let what is under way end, within `grace_s`."""
        return self._work(lasting=True)

    def run_until_idle(self, wait_s: float = 0.0) -> Worked:
        """Run due work until nothing is under way, and nothing is due within the next `wait_s` seconds."""
        _check("wait_s", wait_s, 0, 86_400)
        return self._work(lasting=False, wait_s=wait_s)

    def leftovers(self, wait_s: float = 0.0) -> tuple[Leftover, ...]:
        """Return the runs of its steps that it has not run, with the reason of each."""
        blocked = {entity: told[3] for entity, told in self._blocked.items()}
        return list_leftovers(self._engine, self._refused, blocked, wait_s)

    def stop(self) -> None:
        """Take nothing more; may be called from anywhere, also from a signal handler, or in advance."""
        self._stopping = True

    def start(self) -> Self:
        """Work in a thread of its own until `close()`."""
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self.run, name="oncemore-worker", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop, and wait until what is under way has ended, within `grace_s`."""
        self.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self._grace_s + 2 * CUT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def unknown(self) -> dict[str, int]:
        """Return how many runs are due of steps that this worker does not know, by step.

        Of those that are due first, at most 100,000 are counted.
        """
        counts: dict[str, int] = {}
        for head in self._engine.store.heads(Query("run", due_by=self._engine.now(), limit=MOST_COUNTED)):
            if head.by.step not in self._hands:
                counts[head.by.step] = counts.get(head.by.step, 0) + 1
        return counts

    # The loop ---------------------------------------------------------------------------------------

    def _work(self, *, lasting: bool, wait_s: float = 0.0) -> Worked:
        self._engine.check_original()  # what a copy knows nothing of may have been done since
        crew = Crew(self._concurrency)
        self._looked = 0.0
        self._others.anew()
        seen: int | None = None
        try:
            while not self._stopping:
                self._turned = time.monotonic()
                try:
                    idle = not self._busy  # before the look: what ends meanwhile may be due again
                    started = self._start_due(crew)
                    soon = self._slowed or self._next <= self._engine.now() + wait_s
                    stays = lasting or not idle or soon
                    if started or len(self._busy) >= self._concurrency:
                        seen = None
                    elif seen is None and stays:
                        # Before it rests it looks once more, knowing how long the log was before that look.
                        seen, self._looked, started = self._engine.store.changed(0, 0.0), 0.0, True
                    self._saw = time.monotonic()
                except Exception as error:
                    if not lasting:
                        raise
                    self._engine.grumble(f"a worker could not look: {type(error).__name__}; it looks again")
                    time.sleep(min(self._poll_s, DEAF_S))
                    continue
                if not started and not stays:
                    break
                if not started:
                    seen = self._rest(seen)
        finally:
            self._drain(crew)
            self._turned = None
            self._stopping = False  # only here: it may have been told to stop before it had begun
        return self.worked

    def _start_due(self, crew: Crew) -> bool:
        """Start as many runs as there is room for; say whether there was any."""
        started = False
        while len(self._busy) < self._concurrency and not self._stopping:
            turn = self._take()
            if turn is None:
                break
            started = True
            self._last = turn.step
            with self._changed:
                self._busy[turn.entity] = turn.step
            if self._hands[turn.step].awaits:
                crew.start_awaited(self._go_awaited(turn))
            else:
                crew.start(lambda turn=turn: self._go(turn))  # type: ignore[misc]
        return started

    def _take(self) -> Turn | None:
        """Return the run whose turn it is, or None if nothing is due."""
        now = time.monotonic()
        if not self._turns or now - self._looked > STALE_S:
            self._look()
            if self._turns and not self._engine.worker:
                # It is about to begin: others must know of it, and it of them, or all reach for the same.
                self._engine.identity()
                self._others.anew()
                self._look()
            self._looked = now
        self._slowed = False
        while self._turns:
            turn = self._turns.pop(0)
            self._others.lost.pop(turn.entity, None)
            if turn.entity not in self._busy:
                if self._engine.paces.begin(turn.provider):
                    return turn
                self._slowed = True  # its provider is asked less for now
        return None

    def _rest(self, seen: int | None) -> int | None:
        """Wait for room, or for the log to grow, or for the next run; return how long the log is then."""
        with self._changed:
            if len(self._busy) >= self._concurrency:
                self._changed.wait(DEAF_S)
                return None
            if not self._had <= self._busy.keys():
                return None  # what has ended since the look may be due again
        away = min(self._poll_s, max(0.0, self._next - self._engine.now()))
        away = min(away, DEAF_S) if self._slowed else away
        if self._trouble:  # the store fails: it is left alone
            self._trouble, away, seen = False, self._poll_s, 1 << 62
        ends, last = time.monotonic() + away, seen or 0
        time.sleep(min(REST_S, away))
        while not self._stopping and (left := ends - time.monotonic()) > 0:
            last = self._engine.store.changed(seen or 0, min(left, DEAF_S))
            if last > (seen or 0):
                break
        return last if last < 1 << 62 else None

    def _drain(self, crew: Crew) -> None:
        """Let what is under way come to its end; what does not in time is cut off, or left to its lease."""
        self._turns = []
        if not self._all_over(self._grace_s) and not (crew.cancel() and self._all_over(CUT_S)):
            keys = ", ".join(key[:12] for key in self.under_way)
            self._engine.grumble(f"a worker stops with work under way that does not end: {keys}")
        crew.close()

    def _all_over(self, within_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, within_s)

    # Looking ----------------------------------------------------------------------------------------

    def _look(self) -> None:
        """List what is due, in the order in which it is to be taken."""
        with self._changed:
            self._had = frozenset(self._busy)  # what ends while the store is read may be seen as before
        self._others.look(crowded=self._crowded > 0)
        now, self._next = self._engine.now(), EVER
        self._control = permits.read(self._engine)
        waiting = {name: self._due(name, now) for name in self._hands if self._fits(name)}
        for turn in self._others.lost.values():  # which are closed, also while no attempt begins
            waiting.setdefault(turn.step, []).insert(0, turn)
        self._turns = in_turn(waiting, self._last)
        self._crowded = max(0, self._crowded - 1)

    def _due(self, name: str, now: float) -> list[Turn]:
        """Return runs of a step that are due; note when the next one is."""
        limit = max(PAGE, 2 * self._concurrency) * min(self._others.shares, MOST_SHARES)
        far = FAR * limit
        while True:
            heads = list(self._engine.store.heads(Query("run", step=name, due_by=EVER, limit=limit)))
            turns = [turn_of(head) for head in heads if self._mine(head)]
            due = [turn for turn in turns if turn.due <= now]
            more = len(heads) == limit < MOST_LISTED
            if len(due) < len(turns):
                self._next = min(self._next, turns[len(due)].due)
                more = False
            taken = self._part(name, due, more=more and limit < far) if self._others.shares > 1 else due
            if taken or not more or (turns and limit >= far):
                break
            limit = min(4 * limit, MOST_LISTED)  # none of them can go on or is to be taken here: look further
        if self._crowded and self._others.shares == 1:
            self._chance.shuffle(taken)
        return taken

    def _part(self, name: str, due: list[Turn], *, more: bool) -> list[Turn]:
        return self._sharing.of(name, due, self._is_others, time.monotonic(), more=more)

    def _is_others(self, turn: Turn) -> bool:
        return crc32(turn.entity.encode()) % self._others.shares != self._others.share

    def _known(self, head: Head) -> bool:
        """Whether a run is of a step that this worker knows, and may go on here."""
        return head.by.step in self._hands and self._mine(head)

    def _mine(self, head: Head) -> bool:
        """Whether a run may go on here: nobody here has it, or has found that it cannot."""
        refused = self._refused[head.by.step].get(head.entity)
        return (
            head.entity not in self._had
            and refused != head.version
            and (not self._blocked or not self._is_blocked(head))
        )

    def _is_blocked(self, head: Head) -> bool:
        """Whether a run was not let begin, and nothing has changed since that could let it."""
        version, control, until, _ = self._blocked.get(head.entity, (0, 0, 0.0, ""))
        return version == head.version and control == self._control[0] and time.monotonic() < until

    def _fits(self, name: str) -> bool:
        """Whether a step is worth looking at: nobody has stopped it, most of its runs can go on here."""
        control = self._control[1]
        stopped = control.state != CLEAR and (
            control.moved or stops(control, (name,), "", self._hands[name].pipeline)
        )
        return not stopped and len(self._refused[name]) < MOST_REFUSED

    # A run ------------------------------------------------------------------------------------------

    def _go(self, turn: Turn) -> None:
        with self._having(turn) as wrote, inside(self._engine):
            job, script = self._resumed(turn)
            blocking(job, _noted(script, wrote))

    async def _go_awaited(self, turn: Turn) -> None:
        with self._having(turn) as wrote, inside(self._engine):
            job, script = self._resumed(turn)
            await awaiting(job, _noted(script, wrote))

    def _resumed(self, turn: Turn) -> tuple[Job, Script]:
        seen = seen_in(self._engine.store, turn.entity, self._engine.seal)
        if seen.run.state in ("COMPLETE", "HARD_FAIL"):
            raise InProgress(f"{turn.step} was done by somebody else")
        made = self._hands[turn.step].resume(self._engine, seen)
        CONTEXT.set(Context(actor=made.actor))
        return made.job, made.script

    @contextmanager
    def _having(self, turn: Turn) -> Iterator[list[bool]]:
        """Have a run under way; what comes of it is counted, and told where somebody should know."""
        wrote: list[bool] = []
        came_to = "taken"
        try:
            yield wrote
            came_to = "done" if wrote else "taken"  # by somebody else, if nothing was written here
        except BaseException as error:  # noqa: BLE001 - a worker outlives whatever its work does
            came_to = next(word for kinds, word in _CAME_TO if isinstance(error, kinds))
            if came_to == "refused":
                self._refused[turn.step][turn.entity] = turn.version
            if isinstance(error, Blocked):
                came_to = "held" if error.reason == NEEDED else came_to
                self._remember(turn, error)
            self._tell(turn, came_to, error)
        finally:
            self._engine.paces.end(turn.provider)
            with self._changed:
                self._busy.pop(turn.entity, None)
                self._counts[came_to] = self._counts.get(came_to, 0) + 1
                self._crowded = CROWDED if came_to == "taken" else self._crowded
                self._trouble = self._trouble or came_to == "trouble"
                self._changed.notify_all()

    def _remember(self, turn: Turn, error: Blocked) -> None:
        """Leave a run alone that may not begin, until somebody has turned a switch, or for a while."""
        known = error.reason == SWITCHED and not self._engine.controls.waits
        until = EVER if known else time.monotonic() + ASK_AGAIN_S
        if len(self._blocked) >= MOST_REFUSED:
            self._blocked = {}
        self._blocked[turn.entity] = turn.version, self._control[0], until, error.reason

    def _tell(self, turn: Turn, came_to: str, error: BaseException) -> None:
        many = len(self._refused[turn.step])
        if came_to == "refused" and many == MOST_REFUSED:
            log.error("oncemore: %s is set aside: %d of its runs do not fit here", turn.step, many)
        loud = came_to in ("failed", "held", "trouble") or (came_to == "refused" and many <= 1)
        what = f"{turn.step} ({turn.entity[4:16]}) {came_to}: {error}"
        log.log(logging.WARNING if loud else logging.INFO, "oncemore: %s", what)


def _by_name(hands: Sequence[Hand]) -> dict[str, Hand]:
    if not hands:
        raise UsageError("a worker needs steps: Worker(engine, [step, …])")
    known: dict[str, Hand] = {}
    for name, hand in [(name, each) for each in hands for name in each.names]:
        if name in known:
            raise UsageError(f"two steps are called {name!r}; give one of them another name=")
        known[name] = hand
    return known


def _noted(script: Script, wrote: list[bool]) -> Script:
    """Return a script that notes whether anything was written."""
    op = next(script)
    while True:
        answer = yield op
        if type(op) is Save and answer is not None:
            wrote.append(True)
        op = script.send(answer)


def _check(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it takes {low:g} to {high:g}")
