"""Loop of a worker: lists the due runs of its steps, starts them, and waits for more.

Any number of workers on any number of machines may share a store. A run is claimed by the same script as any
call of a step, so that two workers cannot both run it. The due runs come from an index of step and time, so
that a listing costs the same however many runs wait. `workers.takeover` finds the runs of dead workers and
this worker's share; between two listings the worker sleeps until the log grows or the next run is due.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from oncemore._redact import log_warning
from oncemore._values import Value
from oncemore.control import permits
from oncemore.control.model import APPROVAL_NEEDED, CLEAR, SWITCH_ON, SwitchBoard, find_blocking_switch
from oncemore.errors import (
    CoolingDown,
    Deferred,
    Error,
    InProgress,
    LeaseLost,
    NotPermitted,
    OutcomeUncertain,
    Quarantined,
    ResultUnavailable,
    StepFailed,
    StoreError,
    UsageError,
)
from oncemore.log.entry_codec import load_head
from oncemore.log.store import HeadQuery
from oncemore.steps.context import CONTEXT, CallContext
from oncemore.steps.engine import log
from oncemore.steps.entered_engine import use_engine
from oncemore.steps.perform import run_call, run_call_async
from oncemore.workers.fairness import FairShare
from oncemore.workers.takeover import FAR_FUTURE, MAX_LISTED, WorkerSweep, make_turn
from oncemore.workers.thread_pool import WorkerThreads
from oncemore.workers.turns import RunTurn, order_turns
from oncemore.workers.worker_report import Worked, list_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from oncemore.log.store import Head
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import LoadedHead, Script
    from oncemore.workers.worker_report import Leftover

#: How many runs of a step are listed at first, and how many are counted.
PAGE_SIZE, MAX_COUNTED = 16, 100_000
#: The maximum age of a listing, the shortest wait between two, and how late a worker may notice a stop.
MAX_LIST_AGE_S, MIN_WAIT_S, MAX_STOP_DELAY_S = 0.05, 0.01, 0.2
#: How long cancelled runs have to record their cancellation.
CANCEL_GRACE_S = 5.0
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
    """

    names: tuple[str, ...]
    is_async: bool
    resume_run: Callable[[Engine, LoadedHead], ResumedCall]
    pipeline: str = ""


class WorkerHealth(Value):
    """Health of a worker, for a monitor.

    loop_age_s        seconds since the loop last started a round; None if the loop is not running
    store_read_age_s  seconds since the worker last read the store; None if it never has
    stopping          a stop was requested, and the worker takes no more runs
    """

    loop_age_s: float | None
    store_read_age_s: float | None
    stopping: bool


#: The outcome of a run by the class of its error; the first matching row applies.
_ERROR_OUTCOMES: tuple[tuple[Any, str], ...] = (
    ((Deferred, CoolingDown), "deferred"),
    ((InProgress, LeaseLost), "taken"),
    (ResultUnavailable, "done"),
    ((OutcomeUncertain, Quarantined), "held"),
    (StepFailed, "failed"),
    (NotPermitted, "blocked"),
    (StoreError, "store_error"),
    (Error, "refused"),
    (Exception, "store_error"),
    (BaseException, "deferred"),
)


class WorkerCore:
    """Runs due work of the steps it knows."""

    def __init__(
        self,
        engine: Engine,
        steps: Sequence[KnownStep],
        *,
        concurrency: int = 5,
        poll_s: float = 1.0,
        grace_s: float = 30.0,
    ) -> None:
        _check_range("concurrency", concurrency, 1, 1000)
        _check_range("poll_s", poll_s, 0.01, 3600)
        _check_range("grace_s", grace_s, 0, 86_400)
        self._engine, self._steps = engine, _index_steps(steps)
        engine.concurrency_limits.most = max(engine.concurrency_limits.most, int(concurrency))
        self._concurrency, self._poll_s, self._grace_s = concurrency, poll_s, grace_s
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = self._has_store_trouble = self._is_throttled = False
        self._active_runs: dict[str, str] = {}
        self._active_at_refresh: frozenset[str] = frozenset()
        self._counts: dict[str, int] = {}
        self._turns: list[RunTurn] = []
        self._refreshed_at = 0.0
        self._looped_at: float | None = None
        self._store_read_at: float | None = None
        self._next_due = FAR_FUTURE
        self._last, self._contention = "", 0
        self._fair_share = FairShare()
        self._refused: dict[str, dict[str, int]] = {name: {} for name in self._steps}
        self._blocked: dict[str, tuple[int, int, float, str]] = {}
        self._control: tuple[int, SwitchBoard] = 0, SwitchBoard()
        self._random = random.Random()  # noqa: S311 - so that workers do not reach for the same run
        self._sweep = WorkerSweep(engine, self._can_take, self._random)

    @property
    def stats(self) -> Worked:
        """The counts of finished runs by outcome."""
        with self._changed:
            return Worked(*(self._counts.get(name, 0) for name in Worked._fields))

    @property
    def active_keys(self) -> tuple[str, ...]:
        """The keys of the active runs."""
        with self._changed:
            return tuple(sorted(entity.removeprefix("run/") for entity in self._active_runs))

    @property
    def health(self) -> WorkerHealth:
        """The health of the worker: whether its loop runs and reads the store."""
        now = time.monotonic()
        looped_at, read_at = self._looped_at, self._store_read_at
        return WorkerHealth(looped_at and now - looped_at, read_at and now - read_at, self._stopping)

    def run(self) -> Worked:
        """Work until `stop()`, also through store errors; then wait up to `grace_s` for active runs."""
        return self._run_loop(until_stopped=True)

    def run_until_idle(self, wait_s: float = 0.0) -> Worked:
        """Run due work until no run is active and none is due within the next `wait_s` seconds."""
        _check_range("wait_s", wait_s, 0, 86_400)
        return self._run_loop(until_stopped=False, wait_s=wait_s)

    def leftovers(self, wait_s: float = 0.0) -> tuple[Leftover, ...]:
        """Return the runs of its steps that it has not run, with their reasons."""
        blocked = {entity: reason for entity, (_, _, _, reason) in self._blocked.items()}
        return list_leftovers(self._engine, self._refused, blocked, wait_s)

    def stop(self) -> None:
        """Take no more runs. Safe in any thread and in a signal handler, also before `run()`."""
        # No lock: a signal handler may interrupt the thread that holds it.
        self._stopping = True

    def start(self) -> Self:
        """Start the worker in its own thread, until `close()`."""
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self.run, name="oncemore-worker", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop, and wait up to `grace_s` for active runs."""
        self.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(self._grace_s + 2 * CANCEL_GRACE_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def unknown(self) -> dict[str, int]:
        """Return the number of due runs by step, for steps that this worker does not know.

        At most the first 100,000 due runs are counted.
        """
        counts: dict[str, int] = {}
        for head in self._engine.store.list_heads(
            HeadQuery("run", due_by=self._engine.now(), limit=MAX_COUNTED)
        ):
            if head.by.step not in self._steps:
                counts[head.by.step] = counts.get(head.by.step, 0) + 1
        return counts

    # The loop ---------------------------------------------------------------------------------------

    def _run_loop(self, *, until_stopped: bool, wait_s: float = 0.0) -> Worked:
        # A copy of a store does not know the work that was done in the original since, and would repeat it.
        self._engine.copy_check.check_original()
        threads = WorkerThreads(self._concurrency)
        self._refreshed_at = 0.0
        self._sweep.reset_schedule()
        log_length: int | None = None
        try:
            while not self._stopping:
                self._looped_at = time.monotonic()
                try:
                    # Read before the listing: a run that ends during it may be due again.
                    was_idle = not self._active_runs
                    started = self._start_due_runs(threads)
                    is_due_soon = self._is_throttled or self._next_due <= self._engine.now() + wait_s
                    stays = until_stopped or not was_idle or is_due_soon
                    if started or len(self._active_runs) >= self._concurrency:
                        log_length = None
                    elif log_length is None and stays:
                        # Read the length of the log, and list once more before waiting for it to grow: an
                        # entry that was appended after the last listing would otherwise be missed.
                        log_length = self._engine.store.wait_for_change(0, 0.0)
                        self._refreshed_at, started = 0.0, True
                    self._store_read_at = time.monotonic()
                except Exception as error:
                    if not until_stopped:
                        raise
                    log_warning(
                        f"a worker could not list its due runs: {type(error).__name__}; it tries again"
                    )
                    time.sleep(min(self._poll_s, MAX_STOP_DELAY_S))
                    continue
                if not started and not stays:
                    break
                if not started:
                    log_length = self._wait_for_work(log_length)
        finally:
            self._drain_runs(threads)
            self._looped_at = None
            # Reset here and not at the start, because stop() may be called before run().
            self._stopping = False
        return self.stats

    def _start_due_runs(self, threads: WorkerThreads) -> bool:
        """Start due runs up to the concurrency; return whether any was started."""
        started = False
        while len(self._active_runs) < self._concurrency and not self._stopping:
            turn = self._take_turn()
            if turn is None:
                break
            started = True
            self._last = turn.step
            with self._changed:
                self._active_runs[turn.entity] = turn.step
            if self._steps[turn.step].is_async:
                threads.run_in_loop(self._run_turn_async(turn))
            else:
                threads.run_in_thread(lambda turn=turn: self._run_turn(turn))  # type: ignore[misc]
        return started

    def _take_turn(self) -> RunTurn | None:
        """Return the next run to start, or None if none is due."""
        now = time.monotonic()
        if not self._turns or now - self._refreshed_at > MAX_LIST_AGE_S:
            self._refresh_turns()
            if self._turns and not self._engine.worker:
                # Register this worker before its first run and compute the shares again: workers that do not
                # know of each other would all claim the same runs.
                self._engine.leases.current_identity()
                self._sweep.reset_schedule()
                self._refresh_turns()
            self._refreshed_at = now
        self._is_throttled = False
        while self._turns:
            turn = self._turns.pop(0)
            self._sweep.lost_runs.pop(turn.entity, None)
            if turn.entity not in self._active_runs:
                if self._engine.concurrency_limits.begin_call(turn.provider):
                    return turn
                # The concurrency limit of its provider is reached, so the loop looks again soon.
                self._is_throttled = True
        return None

    def _wait_for_work(self, log_length: int | None) -> int | None:
        """Wait until a run ends, the log grows or the next run is due; return the length of the log."""
        with self._changed:
            if len(self._active_runs) >= self._concurrency:
                self._changed.wait(MAX_STOP_DELAY_S)
                return None
            # A run that ended after the listing may be due again, so list once more without a wait.
            if not self._active_at_refresh <= self._active_runs.keys():
                return None
        timeout_s = min(self._poll_s, max(0.0, self._next_due - self._engine.now()))
        timeout_s = min(timeout_s, MAX_STOP_DELAY_S) if self._is_throttled else timeout_s
        # After a store error wait for the whole poll interval, even if the log grows.
        if self._has_store_trouble:
            self._has_store_trouble, timeout_s, log_length = False, self._poll_s, 1 << 62
        end, last = time.monotonic() + timeout_s, log_length or 0
        time.sleep(min(MIN_WAIT_S, timeout_s))
        while not self._stopping and (remaining := end - time.monotonic()) > 0:
            last = self._engine.store.wait_for_change(log_length or 0, min(remaining, MAX_STOP_DELAY_S))
            if last > (log_length or 0):
                break
        return last if last < 1 << 62 else None

    def _drain_runs(self, threads: WorkerThreads) -> None:
        """Wait for active runs; cancel async runs after `grace_s`, and leave plain runs to their lease."""
        self._turns = []
        if not self._wait_until_idle(self._grace_s) and not (
            threads.cancel_tasks() and self._wait_until_idle(CANCEL_GRACE_S)
        ):
            keys = ", ".join(key[:12] for key in self.active_keys)
            log_warning(f"a worker stops while runs are still active: {keys}")
        threads.close()

    def _wait_until_idle(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._active_runs, timeout_s)

    # Listing ----------------------------------------------------------------------------------------

    def _refresh_turns(self) -> None:
        """List the due runs in the order in which they are started."""
        with self._changed:
            # A run that ends while the store is read may be listed in its old version, so it is ignored.
            self._active_at_refresh = frozenset(self._active_runs)
        self._sweep.sweep_workers(contended=self._contention > 0)
        now, self._next_due = self._engine.now(), FAR_FUTURE
        self._control = permits.load_switches(self._engine)
        waiting = {
            name: self._list_due_runs(name, now) for name in self._steps if self._is_step_enabled(name)
        }
        # Runs of dead workers are closed even if a switch stops the step: that starts no attempt.
        for turn in self._sweep.lost_runs.values():
            waiting.setdefault(turn.step, []).insert(0, turn)
        self._turns = order_turns(waiting, self._last)
        self._contention = max(0, self._contention - 1)

    def _list_due_runs(self, name: str, now: float) -> list[RunTurn]:
        """Return due runs of a step to take, and note the due time of the next one."""
        limit = max(PAGE_SIZE, 2 * self._concurrency) * min(self._sweep.shares, MAX_SHARE_FACTOR)
        max_limit = LOOKAHEAD_FACTOR * limit
        while True:
            heads = list(
                self._engine.store.list_heads(HeadQuery("run", step=name, due_by=FAR_FUTURE, limit=limit))
            )
            turns = [make_turn(head) for head in heads if self._is_available(head)]
            due = [turn for turn in turns if turn.due <= now]
            has_more = len(heads) == limit < MAX_LISTED
            if len(due) < len(turns):
                self._next_due = min(self._next_due, turns[len(due)].due)
                has_more = False
            selected = (
                self._select_share(name, due, has_more=has_more and limit < max_limit)
                if self._sweep.shares > 1
                else due
            )
            if selected or not has_more or (turns and limit >= max_limit):
                break
            # All listed runs are blocked or belong to another share, so list more of them.
            limit = min(4 * limit, MAX_LISTED)
        # Workers that do not know of each other yet would claim the same run; a random order avoids that.
        if self._contention and self._sweep.shares == 1:
            self._random.shuffle(selected)
        return selected

    def _select_share(self, name: str, due: list[RunTurn], *, has_more: bool) -> list[RunTurn]:
        return self._fair_share.select_runs(name, due, self._is_foreign, time.monotonic(), has_more=has_more)

    def _is_foreign(self, turn: RunTurn) -> bool:
        return crc32(turn.entity.encode()) % self._sweep.shares != self._sweep.share

    def _can_take(self, head: Head) -> bool:
        """Return whether this worker knows the step of a run and may continue the run."""
        return head.by.step in self._steps and self._is_available(head)

    def _is_available(self, head: Head) -> bool:
        """Return whether a run is neither active, nor refused, nor blocked in this worker."""
        refused = self._refused[head.by.step].get(head.entity)
        return (
            head.entity not in self._active_at_refresh
            and refused != head.version
            and (not self._blocked or not self._is_blocked(head))
        )

    def _is_blocked(self, head: Head) -> bool:
        """Return whether a run was not permitted to begin, and neither it nor the switches have changed."""
        version, control, until, _ = self._blocked.get(head.entity, (0, 0, 0.0, ""))
        return version == head.version and control == self._control[0] and time.monotonic() < until

    def _is_step_enabled(self, name: str) -> bool:
        """Return whether to list a step: no switch stops it, and not too many of its runs were refused."""
        control = self._control[1]
        stopped = control.state != CLEAR and (
            control.moved_to or find_blocking_switch(control, (name,), "", self._steps[name].pipeline)
        )
        return not stopped and len(self._refused[name]) < MAX_REFUSED

    # A run ------------------------------------------------------------------------------------------

    def _run_turn(self, turn: RunTurn) -> None:
        with self._track_run(turn) as calls, use_engine(self._engine):
            call, script = self._resume_run(turn)
            calls.append(call)
            run_call(call, script)

    async def _run_turn_async(self, turn: RunTurn) -> None:
        with self._track_run(turn) as calls, use_engine(self._engine):
            call, script = self._resume_run(turn)
            calls.append(call)
            await run_call_async(call, script)

    def _resume_run(self, turn: RunTurn) -> tuple[PreparedCall, Script]:
        head = load_head(self._engine.store, turn.entity, self._engine.cipher)
        # The listing may be older than the end of the run in another worker.
        if head.record.state in ("COMPLETE", "HARD_FAIL"):
            raise InProgress(f"{turn.step} was finished by another worker")
        resumed = self._steps[turn.step].resume_run(self._engine, head)
        CONTEXT.set(CallContext(actor=resumed.actor))
        return resumed.call, resumed.script

    @contextmanager
    def _track_run(self, turn: RunTurn) -> Iterator[list[PreparedCall]]:
        """Track an active run; count and log its outcome when it ends."""
        calls: list[PreparedCall] = []
        outcome = "taken"
        try:
            yield calls
            # A call that wrote nothing returned the value that another worker has stored.
            outcome = "done" if any(call.write_count for call in calls) else "taken"
        except BaseException as error:  # noqa: BLE001 - an error of a run must not end the worker
            outcome = next(word for kinds, word in _ERROR_OUTCOMES if isinstance(error, kinds))
            if outcome == "refused":
                self._refused[turn.step][turn.entity] = turn.version
            if isinstance(error, NotPermitted):
                outcome = "held" if error.reason == APPROVAL_NEEDED else outcome
                self._remember_block(turn, error)
            self._log_outcome(turn, outcome, error)
        finally:
            self._engine.concurrency_limits.end_call(turn.provider)
            with self._changed:
                self._active_runs.pop(turn.entity, None)
                self._counts[outcome] = self._counts.get(outcome, 0) + 1
                self._contention = CONTENTION_LOOKS if outcome == "taken" else self._contention
                self._has_store_trouble = self._has_store_trouble or outcome == "store_error"
                self._changed.notify_all()

    def _remember_block(self, turn: RunTurn, error: NotPermitted) -> None:
        """Ignore a run that may not begin until a switch changes, or for `BLOCK_RECHECK_S`."""
        # A change of the log's own switches has a version; external switches must be read again.
        has_version = error.reason == SWITCH_ON and not self._engine.permissions.has_external
        until = FAR_FUTURE if has_version else time.monotonic() + BLOCK_RECHECK_S
        if len(self._blocked) >= MAX_REFUSED:
            self._blocked = {}
        self._blocked[turn.entity] = turn.version, self._control[0], until, error.reason

    def _log_outcome(self, turn: RunTurn, outcome: str, error: BaseException) -> None:
        refused_count = len(self._refused[turn.step])
        if outcome == "refused" and refused_count == MAX_REFUSED:
            log.error("oncemore: %s is set aside: %d of its runs do not fit here", turn.step, refused_count)
        # Only the first refusal of a step is a warning; thousands may follow for the same reason.
        is_warning = outcome in ("failed", "held", "store_error") or (
            outcome == "refused" and refused_count <= 1
        )
        text = f"{turn.step} ({turn.entity[4:16]}) {outcome}: {error}"
        log.log(logging.WARNING if is_warning else logging.INFO, "oncemore: %s", text)


def _index_steps(steps: Sequence[KnownStep]) -> dict[str, KnownStep]:
    if not steps:
        raise UsageError("a worker needs steps: Worker(engine, [step, …])")
    known: dict[str, KnownStep] = {}
    for step in steps:
        for name in step.names:
            if name in known:
                raise UsageError(f"two steps are called {name!r}; give one of them another name=")
            known[name] = step
    return known


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it takes {low:g} to {high:g}")
