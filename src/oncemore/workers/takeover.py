"""SWEEPING: what a worker knows of the others: who is dead and what they had, how many live beside it.

What a dead worker had is found when its lease is over, or at once where its death can be known: all runs
under way are looked through once, and the dead worker is then marked so that nobody does it again.

    the dead     once a second. Those whose lease is over are a list of their own, which is empty where nobody
                 has died; so this costs the same however large the fleet is. Only where a store sees deaths
                 at once (`sees_deaths`: all processes are on one machine) is everybody looked at.
    the living   how many there are says which share of the work is whose. Each lists all of them, so a worker
                 does it the less often the more there are: it reads about one other a second, in a fleet of
                 ten as in one of three hundred. What it knows may be old: a share is no right.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from oncemore._ids import nonce
from oncemore.log.entry_codec import head_of, written
from oncemore.log.record import Change, Mapped, Run
from oncemore.log.record import Worker as Lease
from oncemore.log.store import Batch, Index, Query, Write
from oncemore.workers.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

#: Later than anything is due.
EVER = 1e15
#: How many workers or jobs, and how many runs under way, are looked at.
MOST_LISTED, MOST_RUNNING = 20_000, 100_000
#: How often to look for dead workers, and again for what one has left that nobody here knows.
SWEEP_S, SWEEP_AGAIN_S = 1.0, 30.0
#: How much sooner the living are counted by one that has met another and thinks it is alone.
SOON = 10
#: How old the count of the living may be at most: so long in a fleet of three hundred and more.
LONGEST_S = 300.0
#: By how much the times between counts differ, so that a fleet that came up together does not count together.
JITTER = 0.25


class Sweep:
    """One worker's knowledge of the others.

    lost           runs that dead workers had and that may go on here, by entity
    share, shares  this worker's place among those that live, and how many they are
    """

    def __init__(
        self,
        engine: Engine,
        mine: Callable[[Head], bool],
        chance: Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost: dict[str, Turn] = {}
        self.share, self.shares = 0, 1
        self._engine, self._mine, self._chance, self._clock = engine, mine, chance, clock
        self._sifted: dict[str, tuple[int, float]] = {}
        self._sweep_at = self._count_at = 0.0
        self._counted = 0.0

    def anew(self) -> None:
        """Look at everything the next time, whenever that was done last."""
        self._sweep_at = self._count_at = 0.0

    def look(self, *, crowded: bool) -> None:
        """Look for the dead and count the living, each if it is time for it.

        crowded  somebody else has taken what was reached for here: there are others
        """
        now = self._clock()
        soon = crowded and self.shares == 1 and now >= self._counted + SWEEP_S / SOON
        sees = self._engine.store.sees_deaths
        if now >= self._count_at or soon or (sees and now >= self._sweep_at):
            known = self._listed("worker")
            self.find_share(known)
            self._counted = now
            self._count_at = now + self._away_s()
        elif now >= self._sweep_at:
            known = self._listed("worker", self._engine.now())
        else:
            return
        if now >= self._sweep_at or (sees and soon):
            self._sweep_at = now + SWEEP_S
            self._take_over({head.by.worker: head for head in known if self._is_dead(head, sees)})

    def _away_s(self) -> float:
        """Return for how long not to count the living again."""
        away = SWEEP_S * self.shares
        return min(away, LONGEST_S) * self._chance.uniform(1 - JITTER, 1 + JITTER) if away > SWEEP_S else away

    # The living -------------------------------------------------------------------------------------

    def find_share(self, known: list[Head]) -> None:
        """Have a share of what is due, beside all other processes that are alive; or all of it."""
        now, me = self._engine.now(), self._engine.worker
        alive = [head.by.worker for head in known if head.by.state == "ALIVE" and (head.by.due or 0.0) > now]
        alive += [] if me in alive else [me]  # which has no name yet: it will have the youngest
        self.share, self.shares = sorted(alive, key=lambda name: name or "~").index(me), len(alive)

    # The dead ---------------------------------------------------------------------------------------

    def _take_over(self, dead: dict[str, Head]) -> None:
        """Find what dead workers had; mark those that have nothing left, so that nobody looks again."""
        if not dead:
            return
        engine, left = self._engine, dict[str, int]()
        running = list(engine.store.heads(Query("run", state="RUNNING", limit=MOST_RUNNING)))
        for head in running:
            if head.by.worker in dead:
                left[head.by.worker] = left.get(head.by.worker, 0) + 1
                if self._mine(head):
                    self.lost[head.entity] = turn_of(head)
        for head in self._listed("job"):
            if head.by.worker in dead:
                job = head_of(head.head, Mapped)
                note(engine, head, job, job._replace(state="LOST"), "JOB")
        for name, head in dead.items():
            if name not in left and len(running) < MOST_RUNNING:
                lease = head_of(head.head, Lease)
                note(engine, head, lease, lease._replace(state="GONE"), "LEASE")
            self._sifted[name] = head.version, self._clock()

    def _is_dead(self, head: Head, sees: bool) -> bool:
        """Whether a worker is dead, and what it had was not looked for a moment ago."""
        version, at = self._sifted.get(head.by.worker, (0, 0.0))
        if version == head.version and self._clock() - at < SWEEP_AGAIN_S:
            return False
        if not sees and (head.by.due or 0.0) > self._engine.now():
            return False  # nothing but its lease tells, and to ask for more costs a question for each
        return not self._engine.lives(head.by.worker, head_of(head.head, Lease))

    def _listed(self, kind: str, due_by: float = EVER) -> list[Head]:
        return list(self._engine.store.heads(Query(kind, due_by=due_by, limit=MOST_LISTED)))


def note(engine: Engine, head: Head, before: Any, after: Any, mark: Any) -> None:
    """Write down what became of a worker or a job; if it has moved meanwhile, it is looked at again."""
    change = Change((mark,), before, after)
    made = written(change, head.entity, head.version + 1, head.hash, engine.now(), nonce())
    by = Index(head.by.kind, after.state, None, head.by.step, head.by.worker)
    engine.store.append(Batch((Write(head.entity, head.version, *made, by),), {}, False)).wait()


def turn_of(head: Head) -> Turn:
    """Return a run that may be taken, as it was listed."""
    run: Run = head_of(head.head)
    return Turn(run.priority, head.by.due or 0.0, head.by.step, head.entity, head.version, run.provider)
