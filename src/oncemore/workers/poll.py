"""Finds the due runs that a worker may start, in the order in which it starts them.

The due runs come from an index of step and time, so that a listing costs the same however many runs wait.
`workers.takeover` adds the runs of dead workers and computes this worker's share; `workers.turns` selects and
orders them. Left out are the runs that this worker is running, runs that do not fit here, and runs that a
switch stops.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from oncemore.control import permits
from oncemore.control.model import CLEAR, SWITCH_ON, SwitchBoard, find_blocking_switch
from oncemore.errors import UsageError
from oncemore.limits import queue_step
from oncemore.log.store import HeadQuery
from oncemore.schedules.driver import ScheduleDriver
from oncemore.workers.takeover import FAR_FUTURE, MAX_LISTED, WorkerSweep, make_turn
from oncemore.workers.turns import FairShare, RunTurn, order_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence, Set

    from oncemore.errors import NotPermitted
    from oncemore.limits.queue_rules import StepQueue
    from oncemore.log.record import LoadedHead
    from oncemore.log.store import Head
    from oncemore.schedules.decorator import StepSchedule
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script

#: How many runs of a step are listed at first, and the maximum age of a listing.
PAGE_SIZE, MAX_LIST_AGE_S = 16, 0.05
#: How many refused runs of a step are remembered; with more, the worker stops listing the step.
MAX_REFUSED = 10_000
#: How long a worker ignores a run if it could not find out whether the run may begin.
BLOCK_RECHECK_S = 1.0
#: A listing grows with the number of processes that share the store, up to this factor.
MAX_SHARE_FACTOR = 16
#: How many times longer a listing gets to find runs of the worker's own share.
LOOKAHEAD_FACTOR = 16
#: For how many listings a worker shuffles its runs after it lost one to another worker.
CONTENTION_LOOKS = 50


class ResumedCall(NamedTuple):
    """The call that continues a run, with its script and the actor that submitted it."""

    call: PreparedCall
    script: Script
    actor: str


class KnownStep(NamedTuple):
    """A step, as a worker knows it.

    names       the names of its runs in the log: its own, and its former ones
    resume_run  returns the call that continues a run, or refuses a run that cannot continue here
    schedules   the schedules of the step
    prepare_call  returns the call with positional arguments, for the tick of a schedule
    """

    names: tuple[str, ...]
    is_async: bool
    resume_run: Callable[[Engine, LoadedHead], ResumedCall]
    prepare_call: Callable[[Engine, tuple[Any, ...]], PreparedCall]
    pipeline: str = ""
    queue: StepQueue | None = None
    schedules: tuple[StepSchedule, ...] = ()


class BlockedRun(NamedTuple):
    """A run that was not permitted to begin: its version, that of the switches, and when to try again."""

    version: int
    switches_version: int
    retry_at: float
    reason: str


class DueRuns:
    """The due runs of one worker.

    turns       the listed runs, in order; the worker takes them from the front
    listed_at   when they were listed, on the monotonic clock; 0 makes the worker list them again
    schedules   the schedules of the worker's steps
    last_step   the step of the run that was started last; the next listing begins with another step
    contention  for how many listings to shuffle the runs, after another worker has taken one
    refused     by step, the runs that cannot continue here, with their versions; ignored until they change
    blocked     by entity, the runs that were not permitted to begin
    sweep       the dead workers and the share of this worker
    has_full_queue  whether due runs wait for a slot of their queue
    """

    def __init__(self, engine: Engine, steps: Sequence[KnownStep], concurrency: int) -> None:
        self.steps = _index_steps(steps)
        _check_queues(steps)
        self.turns: list[RunTurn] = []
        self.listed_at, self._next_run = 0.0, FAR_FUTURE
        self.schedules = ScheduleDriver(engine, steps)
        self.last_step, self.contention = "", 0
        self.has_full_queue = False
        self.refused: dict[str, dict[str, int]] = {name: {} for name in self.steps}
        self.blocked: dict[str, BlockedRun] = {}
        self._engine, self._concurrency = engine, concurrency
        self._active: frozenset[str] = frozenset()
        self._switches: tuple[int, SwitchBoard] = 0, SwitchBoard()
        self._fair_share = FairShare()
        self._random = random.Random()  # noqa: S311 - so that workers do not reach for the same run
        self.sweep = WorkerSweep(engine, self._can_take, self._random)

    @property
    def is_outdated(self) -> bool:
        """Whether the runs must be listed again: none is left, or the listing is old."""
        return not self.turns or time.monotonic() - self.listed_at > MAX_LIST_AGE_S

    @property
    def next_due(self) -> float:
        """When the next run after the listed ones, or the next tick of a schedule is due."""
        return min(self._next_run, self.schedules.next_due)

    def has_ended(self, active: Set[str]) -> bool:
        """Return whether a run that was active at the last listing is not active any more."""
        return not self._active <= active

    def list_turns(self, active: Mapping[str, str]) -> None:
        """List the due runs in the order in which they are started.

        active  the runs that are active now, with their steps; one that ends while the store is read may be
                listed in its old version, so all of them are ignored
        """
        listed_at, self._active = time.monotonic(), frozenset(active)
        self.sweep.sweep_workers(contended=self.contention > 0)
        now, self._next_run = self._engine.now(), FAR_FUTURE
        self._switches = permits.load_switches(self._engine)
        waiting = {name: self._list_due_runs(name, now) for name in self.steps if self._is_enabled(name)}
        # Runs of dead workers are closed even if a switch stops the step: that starts no attempt.
        for turn in self.sweep.lost_runs.values():
            waiting.setdefault(turn.step, []).insert(0, turn)
        self.turns = self._limit_queues(order_turns(waiting, self.last_step), active)
        self.contention = max(0, self.contention - 1)
        # Set only now: after a failed listing the old one must not count as fresh.
        self.listed_at = listed_at

    def pop_turn(self) -> RunTurn:
        """Return the first listed run, and remove it from the list."""
        turn = self.turns.pop(0)
        self.sweep.lost_runs.pop(turn.entity, None)
        return turn

    def block_run(self, turn: RunTurn, error: NotPermitted) -> None:
        """Ignore a run that may not begin until a switch changes, or for `BLOCK_RECHECK_S`."""
        # A change of the log's own switches has a version; external switches must be read again.
        has_version = error.reason == SWITCH_ON and not self._engine.permissions.has_external
        retry_at = FAR_FUTURE if has_version else time.monotonic() + BLOCK_RECHECK_S
        if len(self.blocked) >= MAX_REFUSED:
            self.blocked = {}
        self.blocked[turn.entity] = BlockedRun(turn.version, self._switches[0], retry_at, error.reason)

    def _list_due_runs(self, name: str, now: float) -> list[RunTurn]:
        """Return due runs of a step to take, and note the due time of the next one."""
        limit = max(PAGE_SIZE, 2 * self._concurrency) * min(self.sweep.shares, MAX_SHARE_FACTOR)
        max_limit = LOOKAHEAD_FACTOR * limit
        while True:
            heads = list(
                self._engine.store.list_heads(HeadQuery("run", step=name, due_by=FAR_FUTURE, limit=limit))
            )
            turns = [make_turn(head) for head in heads if self._is_available(head)]
            selected = due = [turn for turn in turns if turn.due <= now]
            has_more = len(heads) == limit < MAX_LISTED
            if len(due) < len(turns):
                self._next_run = min(self._next_run, turns[len(due)].due)
                has_more = False
            if self.sweep.shares > 1:
                selected = self._fair_share.select_runs(
                    name, due, self._is_foreign, time.monotonic(), has_more=has_more and limit < max_limit
                )
            if selected or not has_more or (turns and limit >= max_limit):
                break
            # All listed runs are blocked or belong to another share, so list more of them.
            limit = min(4 * limit, MAX_LISTED)
        # Workers that do not know of each other yet would claim the same run; a random order avoids that.
        if self.contention and self.sweep.shares == 1:
            self._random.shuffle(selected)
        return selected

    def _limit_queues(self, turns: list[RunTurn], active: Mapping[str, str]) -> list[RunTurn]:
        """Return the turns without those that would find no slot in their queue."""
        self.has_full_queue = False
        rooms: dict[str, int] = {}
        started: list[RunTurn] = []
        for turn in turns:
            queue = self.steps[turn.step].queue
            # The attempt of a dead worker is closed in any case: that frees a slot.
            if queue is not None and turn.entity not in self.sweep.lost_runs:
                if queue.name not in rooms:
                    rooms[queue.name] = self._count_room(queue, active)
                rooms[queue.name] -= 1
                if rooms[queue.name] < 0:
                    self.has_full_queue = True
                    continue
            started.append(turn)
        return started

    def _count_room(self, queue: StepQueue, active: Mapping[str, str]) -> int:
        """Return how many runs of a queue this worker may start now."""
        own = [entity for entity, step in active.items() if self.steps[step].queue == queue]
        # Runs of this worker that have not been claimed yet will take slots that are free now.
        return queue_step.count_room(self._engine, queue, self._concurrency, own)

    def _is_foreign(self, turn: RunTurn) -> bool:
        return crc32(turn.entity.encode()) % self.sweep.shares != self.sweep.share

    def _can_take(self, head: Head) -> bool:
        """Return whether this worker knows the step of a run and may continue the run."""
        return head.by.step in self.steps and self._is_available(head)

    def _is_available(self, head: Head) -> bool:
        """Return whether a run is neither active, nor refused, nor blocked in this worker."""
        return (
            head.entity not in self._active
            and self.refused[head.by.step].get(head.entity) != head.version
            and (not self.blocked or not self._is_blocked(head))
        )

    def _is_blocked(self, head: Head) -> bool:
        """Return whether a run was not permitted to begin, and neither it nor the switches have changed."""
        blocked = self.blocked.get(head.entity)
        return (
            blocked is not None
            and (blocked.version, blocked.switches_version) == (head.version, self._switches[0])
            and time.monotonic() < blocked.retry_at
        )

    def _is_enabled(self, name: str) -> bool:
        """Return whether to list a step: no switch stops it, and not too many of its runs were refused."""
        board = self._switches[1]
        stopped = board.state != CLEAR and (
            board.moved_to or find_blocking_switch(board, (name,), "", self.steps[name].pipeline)
        )
        return not stopped and len(self.refused[name]) < MAX_REFUSED


def _check_queues(steps: Iterable[KnownStep]) -> None:
    """Refuse steps that share a queue and disagree about its concurrency."""
    first: dict[str, KnownStep] = {}
    for step in steps:
        if step.queue is None:
            continue
        other = first.setdefault(step.queue.name, step)
        if other.queue != step.queue:
            assert other.queue is not None
            raise UsageError(
                f"queue {step.queue.name!r} has concurrency={other.queue.concurrency} in {other.names[0]} "
                f"and concurrency={step.queue.concurrency} in {step.names[0]}; give both the same"
            )


def _index_steps(steps: Sequence[KnownStep]) -> dict[str, KnownStep]:
    """Return the steps by the names of their runs; refuse two steps with the same name."""
    if not steps:
        raise UsageError("a worker needs steps: Worker(engine, [step, …])")
    known: dict[str, KnownStep] = {}
    for step in steps:
        for name in step.names:
            if name in known:
                raise UsageError(f"two steps are called {name!r}; give one of them another name=")
            known[name] = step
    return known
