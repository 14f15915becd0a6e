"""The worker: starts the due runs of its steps, and waits for more.

    worker = oncemore.Worker(engine, [poll, publish])
    worker.run()

Any number of workers on any number of machines may share a store. A run is claimed by the same script as any
call of a step, so that two workers cannot both run it. `workers.poll` finds the runs to start; between two
listings the worker sleeps until the log grows or the next run is due. The command `oncemore worker
package.module` does the same.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oncemore._redact import hide_credentials
from oncemore.control.model import APPROVAL_NEEDED
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
    log_warning,
)
from oncemore.log.entry_codec import load_head
from oncemore.steps.call_operations import CALL_OPERATIONS
from oncemore.steps.context import CONTEXT, CallContext
from oncemore.steps.decorator import known_step
from oncemore.steps.engine import log
from oncemore.steps.entered_engine import use_engine
from oncemore.steps.perform import run_call, run_call_async
from oncemore.workers import poll
from oncemore.workers.find_steps import as_step
from oncemore.workers.thread_pool import WorkerThreads
from oncemore.workers.worker_report import WorkerHealth, WorkerStats, count_unknown_runs, list_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from oncemore.steps.call import PreparedCall
    from oncemore.steps.decorator import Step
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script
    from oncemore.workers.turns import RunTurn
    from oncemore.workers.worker_report import Leftover

#: The shortest wait between two listings, and how late a worker may notice a stop.
MIN_WAIT_S, MAX_STOP_DELAY_S = 0.01, 0.2
#: A length that no log reaches.
UNREACHABLE = 1 << 62
#: How long cancelled runs have to record their cancellation.
CANCEL_GRACE_S = 5.0


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


class Worker:
    """Runs due work of the given steps, and takes over the runs of dead workers.

    concurrency  how many runs may be active at once: plain steps in threads, async steps on one event loop
    poll_s       how often to look for due runs while the log does not change
    grace_s      how long `run()` and `close()` wait for active runs after a stop
    """

    def __init__(
        self,
        engine: Engine,
        steps: Iterable[Step[..., Any]],
        *,
        concurrency: int = 5,
        poll_s: float = 1.0,
        grace_s: float = 30.0,
    ) -> None:
        known_steps = [known_step(_check_step(candidate)) for candidate in steps]
        _check_range("concurrency", concurrency, 1, 1000)
        _check_range("poll_s", poll_s, 0.01, 3600)
        _check_range("grace_s", grace_s, 0, 86_400)
        self._engine, self._due_runs = engine, poll.DueRuns(engine, known_steps, concurrency)
        engine.concurrency_limits.most = max(engine.concurrency_limits.most, int(concurrency))
        self._concurrency, self._poll_s, self._grace_s = concurrency, poll_s, grace_s
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = self._has_store_trouble = self._is_throttled = False
        self._active_runs: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._looped_at: float | None = None
        self._store_read_at: float | None = None

    @property
    def stats(self) -> WorkerStats:
        """The counts of finished runs by outcome."""
        with self._changed:
            return WorkerStats(*(self._counts.get(name, 0) for name in WorkerStats._fields))

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

    def run(self) -> WorkerStats:
        """Work until `stop()`, also through store errors; then wait up to `grace_s` for active runs."""
        return self._run_loop(until_stopped=True)

    def run_until_idle(self, wait_s: float = 0.0) -> WorkerStats:
        """Run due work until no run is active and none is due within the next `wait_s` seconds."""
        _check_range("wait_s", wait_s, 0, 86_400)
        return self._run_loop(until_stopped=False, wait_s=wait_s)

    def leftovers(self, wait_s: float = 0.0) -> tuple[Leftover, ...]:
        """Return the runs of its steps that it has not run, with their reasons."""
        blocked = {entity: run.reason for entity, run in self._due_runs.blocked.items()}
        return list_leftovers(self._engine, self._due_runs.refused, blocked, wait_s)

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

    def unknown_steps(self) -> dict[str, int]:
        """Return the number of due runs by step, for steps that this worker does not know.

        At most the first 100,000 due runs are counted.
        """
        return count_unknown_runs(self._engine, self._due_runs.steps)

    # The loop ---------------------------------------------------------------------------------------

    def _run_loop(self, *, until_stopped: bool, wait_s: float = 0.0) -> WorkerStats:
        # A copy of a store does not know the work that was done in the original since, and would repeat it.
        self._engine.copy_check.check_original()
        threads = WorkerThreads(self._concurrency)
        self._due_runs.listed_at = 0.0
        self._due_runs.sweep.reset_schedule()
        self._due_runs.schedules.reset_declarations()
        log_length: int | None = None
        try:
            while not self._stopping:
                self._looped_at = time.monotonic()
                try:
                    # Read before the listing: a run that ends during it may be due again.
                    was_idle = not self._active_runs
                    # Also while no run can be started: a tick must not be missed because runs are long.
                    self._due_runs.schedules.submit_due_ticks()
                    started = self._start_due_runs(threads)
                    is_limited = self._is_throttled or self._due_runs.has_full_queue
                    is_due_soon = is_limited or self._due_runs.next_due <= self._engine.now() + wait_s
                    stays = until_stopped or not was_idle or is_due_soon
                    if started or len(self._active_runs) >= self._concurrency:
                        log_length = None
                    elif log_length is None and stays:
                        # Read the length of the log, and list once more before waiting for it to grow: an
                        # entry that was appended after the last listing would otherwise be missed.
                        log_length = self._engine.store.wait_for_change(0, 0.0)
                        self._due_runs.listed_at, started = 0.0, True
                    self._store_read_at = time.monotonic()
                except Exception as error:
                    if not until_stopped:
                        raise
                    cause = f"{type(error).__name__}: {hide_credentials(str(error))}"
                    log_warning(f"a worker could not list its due runs: {cause}; it tries again")
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
            self._due_runs.last_step = turn.step
            with self._changed:
                self._active_runs[turn.entity] = turn.step
            if self._due_runs.steps[turn.step].is_async:
                threads.run_in_loop(self._run_turn_async(turn))
            else:
                threads.run_in_thread(lambda turn=turn: self._run_turn(turn))  # type: ignore[misc]
        return started

    def _take_turn(self) -> RunTurn | None:
        """Return the next run to start, or None if none is due."""
        due_runs = self._due_runs
        if due_runs.is_outdated:
            self._list_turns()
            if due_runs.turns and not self._engine.worker:
                # Register this worker before its first run and compute the shares again: workers that do not
                # know of each other would all claim the same runs.
                self._engine.leases.current_identity()
                due_runs.sweep.reset_schedule()
                self._list_turns()
        self._is_throttled = False
        while due_runs.turns:
            turn = due_runs.pop_turn()
            if turn.entity not in self._active_runs:
                if self._engine.concurrency_limits.begin_call(turn.provider):
                    return turn
                # The concurrency limit of its provider is reached, so the loop looks again soon.
                self._is_throttled = True
        return None

    def _list_turns(self) -> None:
        with self._changed:
            active = dict(self._active_runs)
        self._due_runs.list_turns(active)

    def _wait_for_work(self, log_length: int | None) -> int | None:
        """Wait until a run ends, the log grows or the next run is due; return the length of the log."""
        with self._changed:
            if len(self._active_runs) >= self._concurrency:
                self._changed.wait(MAX_STOP_DELAY_S)
                return None
            # A run that ended after the listing may be due again, so list once more without a wait.
            if self._due_runs.has_ended(self._active_runs.keys()):
                return None
        timeout_s = min(self._poll_s, max(0.0, self._due_runs.next_due - self._engine.now()))
        timeout_s = min(timeout_s, MAX_STOP_DELAY_S) if self._is_throttled else timeout_s
        # After a store error wait for the whole poll interval, even if the log grows.
        if self._has_store_trouble:
            self._has_store_trouble, timeout_s, log_length = False, self._poll_s, UNREACHABLE
        end, last = time.monotonic() + timeout_s, log_length or 0
        time.sleep(min(MIN_WAIT_S, timeout_s))
        while not self._stopping and (remaining := end - time.monotonic()) > 0:
            last = self._engine.store.wait_for_change(log_length or 0, min(remaining, MAX_STOP_DELAY_S))
            if last > (log_length or 0):
                break
        return last if last < UNREACHABLE else None

    def _drain_runs(self, threads: WorkerThreads) -> None:
        """Wait for active runs; cancel async runs after `grace_s`, and leave plain runs to their lease."""
        self._due_runs.turns = []
        if not self._wait_until_idle(self._grace_s) and not (
            threads.cancel_tasks() and self._wait_until_idle(CANCEL_GRACE_S)
        ):
            keys = ", ".join(key[:12] for key in self.active_keys)
            log_warning(f"a worker stops while runs are still active: {keys}")
        threads.close()

    def _wait_until_idle(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._active_runs, timeout_s)

    # A run ------------------------------------------------------------------------------------------

    def _run_turn(self, turn: RunTurn) -> None:
        with self._track_run(turn) as calls, use_engine(self._engine):
            call, script = self._resume_run(turn)
            calls.append(call)
            run_call(call, script, CALL_OPERATIONS)

    async def _run_turn_async(self, turn: RunTurn) -> None:
        with self._track_run(turn) as calls, use_engine(self._engine):
            call, script = self._resume_run(turn)
            calls.append(call)
            await run_call_async(call, script, CALL_OPERATIONS)

    def _resume_run(self, turn: RunTurn) -> tuple[PreparedCall, Script]:
        head = load_head(self._engine.store, turn.entity, self._engine.cipher)
        # The listing may be older than the end of the run in another worker.
        if head.record.state in ("COMPLETE", "HARD_FAIL"):
            raise InProgress(f"{turn.step} was finished by another worker")
        resumed = self._due_runs.steps[turn.step].resume_run(self._engine, head)
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
                self._due_runs.refused[turn.step][turn.entity] = turn.version
            if isinstance(error, NotPermitted):
                outcome = "held" if error.reason == APPROVAL_NEEDED else outcome
                self._due_runs.block_run(turn, error)
            self._log_outcome(turn, outcome, error)
        finally:
            if outcome in ("done", "failed"):
                self._wake_parents(calls, turn)
            self._engine.concurrency_limits.end_call(turn.provider)
            with self._changed:
                self._active_runs.pop(turn.entity, None)
                self._counts[outcome] = self._counts.get(outcome, 0) + 1
                if outcome == "taken":
                    self._due_runs.contention = poll.CONTENTION_LOOKS
                self._has_store_trouble = self._has_store_trouble or outcome == "store_error"
                self._changed.notify_all()

    def _wake_parents(self, calls: list[PreparedCall], turn: RunTurn) -> None:
        """Make the workflow due that waits for this run, if there is one."""
        for call in calls:
            if call.parent:
                from oncemore.workflows.signals import wake_parent

                wake_parent(self._engine, call.parent, turn.step, call.key)

    def _log_outcome(self, turn: RunTurn, outcome: str, error: BaseException) -> None:
        refused_count = len(self._due_runs.refused[turn.step])
        if outcome == "refused" and refused_count == poll.MAX_REFUSED:
            log.error("oncemore: %s is set aside: %d of its runs do not fit here", turn.step, refused_count)
        # Only the first refusal of a step is a warning; thousands may follow for the same reason.
        is_warning = outcome == "store_error" or (outcome == "refused" and refused_count <= 1)
        # The logger `oncemore.steps` has said these already.
        level = logging.DEBUG if outcome in ("failed", "held", "deferred") else logging.INFO
        text = f"{turn.step} ({turn.entity[4:16]}) {outcome}: {error}"
        log.log(logging.WARNING if is_warning else level, "oncemore: %s", text)


def _check_step(candidate: object) -> Step[..., Any]:
    step = as_step(candidate)
    if step is None:
        raise UsageError(f"{candidate!r} is not a step; a worker takes functions under @oncemore.step")
    return step


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it takes {low:g} to {high:g}")
