"""Finds dead workers, takes over their runs, and computes this worker's share of the due runs.

Dead workers are searched once a second. Expired leases have an index of their own, so that the cost does not
grow with the fleet; a store with `detects_dead_workers` (all processes are on one machine) checks every
worker instead. Living workers are counted to compute the shares. Each count lists all of them, so a worker
counts less often the more there are, and reads about one other worker a second in a fleet of any size. An
outdated count is harmless: a share is a preference and not a right.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from oncemore.log.entry_codec import decode_head, encode_entry, new_nonce
from oncemore.log.record import JobRecord, RecordChange, RunRecord
from oncemore.log.record import WorkerRecord as Lease
from oncemore.log.store import Batch, EntryWrite, HeadIndex, HeadQuery
from oncemore.workers.turns import RunTurn

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

#: A time after every due time.
FAR_FUTURE = 1e15
#: The limits of a listing of workers or jobs, and of running runs.
MAX_LISTED, MAX_RUNNING = 20_000, 100_000
#: How often to look for dead workers, and for the remaining runs of a dead worker that was checked before.
SWEEP_S, SWEEP_AGAIN_S = 1.0, 30.0
#: How much sooner a worker counts again if it lost a run to another worker but knows of none.
EARLY_COUNT_FACTOR = 10
#: The longest time between two counts, reached in a fleet of three hundred workers.
MAX_COUNT_AGE_S = 300.0
#: The jitter of that time, so that workers that started together do not count together.
COUNT_JITTER = 0.25


class WorkerSweep:
    """Knowledge of one worker about the other workers of its store.

    lost_runs      runs of dead workers that this worker may continue, by entity
    share, shares  the index of this worker among the living workers, and their number
    """

    def __init__(
        self,
        engine: Engine,
        can_take: Callable[[Head], bool],
        chance: Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lost_runs: dict[str, RunTurn] = {}
        self.share, self.shares = 0, 1
        self._engine, self._can_take, self._random, self._clock = engine, can_take, chance, clock
        self._checked_workers: dict[str, tuple[int, float]] = {}
        self._sweep_at = self._count_at = 0.0
        self._counted = 0.0

    def reset_schedule(self) -> None:
        """Make the next sweep look for dead workers and count the living ones."""
        self._sweep_at = self._count_at = 0.0

    def sweep_workers(self, *, contended: bool) -> None:
        """Look for dead workers and count the living ones, each if it is due.

        contended  another worker has taken a run that this worker tried to claim
        """
        now = self._clock()
        is_early = contended and self.shares == 1 and now >= self._counted + SWEEP_S / EARLY_COUNT_FACTOR
        detects_deaths = self._engine.store.detects_dead_workers
        if now >= self._count_at or is_early or (detects_deaths and now >= self._sweep_at):
            workers = self._list_heads("worker")
            self.find_share(workers)
            self._counted = now
            self._count_at = now + self._count_interval_s()
        elif now >= self._sweep_at:
            workers = self._list_heads("worker", self._engine.now())
        else:
            return
        if now >= self._sweep_at or (detects_deaths and is_early):
            self._sweep_at = now + SWEEP_S
            self._take_over_runs(
                {head.by.worker: head for head in workers if self._is_dead(head, detects_deaths)}
            )

    def _count_interval_s(self) -> float:
        """Return the time until the next count of the living workers."""
        interval = SWEEP_S * self.shares
        return (
            min(interval, MAX_COUNT_AGE_S) * self._random.uniform(1 - COUNT_JITTER, 1 + COUNT_JITTER)
            if interval > SWEEP_S
            else interval
        )

    # Living workers ---------------------------------------------------------------------------------

    def find_share(self, known: list[Head]) -> None:
        """Compute the share of this worker among all living workers."""
        now, name = self._engine.now(), self._engine.worker
        alive = [head.by.worker for head in known if head.by.state == "ALIVE" and (head.by.due or 0.0) > now]
        # This worker may have no name yet. It sorts last, because its name will be the newest.
        alive += [] if name in alive else [name]
        self.share, self.shares = sorted(alive, key=lambda other: other or "~").index(name), len(alive)

    # Dead workers -----------------------------------------------------------------------------------

    def _take_over_runs(self, dead: dict[str, Head]) -> None:
        """Collect the runs of dead workers, and mark a dead worker without runs as GONE."""
        if not dead:
            return
        engine, runs_left = self._engine, dict[str, int]()
        running = list(engine.store.list_heads(HeadQuery("run", state="RUNNING", limit=MAX_RUNNING)))
        for head in running:
            if head.by.worker in dead:
                runs_left[head.by.worker] = runs_left.get(head.by.worker, 0) + 1
                if self._can_take(head):
                    self.lost_runs[head.entity] = make_turn(head)
        for head in self._list_heads("job"):
            if head.by.worker in dead:
                job = decode_head(head.head, JobRecord)
                append_state(engine, head, job, job._replace(state="LOST"), "JOB")
        for name, head in dead.items():
            # A truncated listing does not prove that the worker has no runs runs_left.
            if name not in runs_left and len(running) < MAX_RUNNING:
                lease = decode_head(head.head, Lease)
                append_state(engine, head, lease, lease._replace(state="GONE"), "LEASE")
            self._checked_workers[name] = head.version, self._clock()

    def _is_dead(self, head: Head, detects_deaths: bool) -> bool:
        """Return whether a worker is dead and was not checked a short time ago."""
        version, checked_at = self._checked_workers.get(head.by.worker, (0, 0.0))
        if version == head.version and self._clock() - checked_at < SWEEP_AGAIN_S:
            return False
        # Without detects_deaths only the lease shows a death, so a valid one needs no further read.
        if not detects_deaths and (head.by.due or 0.0) > self._engine.now():
            return False
        return not self._engine.leases.is_worker_alive(head.by.worker, decode_head(head.head, Lease))

    def _list_heads(self, kind: str, due_by: float = FAR_FUTURE) -> list[Head]:
        return list(self._engine.store.list_heads(HeadQuery(kind, due_by=due_by, limit=MAX_LISTED)))


def append_state(engine: Engine, head: Head, before: Any, after: Any, mark: Any) -> None:
    """Append the new state of a worker or a job."""
    change = RecordChange((mark,), before, after)
    encoded = encode_entry(change, head.entity, head.version + 1, head.hash, engine.now(), new_nonce())
    by = HeadIndex(head.by.kind, after.state, None, head.by.step, head.by.worker)
    # A conflict is ignored: the entity has changed, and the next sweep looks at its new version.
    engine.store.append(Batch((EntryWrite(head.entity, head.version, *encoded, by),), {}, False)).wait()


def make_turn(head: Head) -> RunTurn:
    """Return the turn of a listed run."""
    run: RunRecord = decode_head(head.head)
    return RunTurn(run.priority, head.by.due or 0.0, head.by.step, head.entity, head.version, run.provider)
