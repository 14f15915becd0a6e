"""One execution of a workflow's function: its journal, its waits, and its inner calls.

A workflow that has to wait leaves its process: `WorkflowParked` unwinds the function, and the script of the
call records the wait (`steps.failure.park_run`). When the wait is over, any worker runs the function again
from the top. Inner steps then return their stored values, and sleeps and waits that are over return at once.

    park           before the entry of the wait is stored, a crash loses nothing: the function runs again and
                   decides again; after it, the run waits and belongs to no worker
    taking         a wait returns the value of a signal only after the taking is stored, so that every later
                   execution gets the same value
    no lost wake   the park is a compare-and-set on the version that the journal was read at: a signal that
                   came meanwhile makes the workflow due at once
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from oncemore.clock import Clock, find_trio
from oncemore.control.model import LOG_MOVED
from oncemore.errors import (
    Cancelled,
    CircuitOpen,
    CoolingDown,
    Deferred,
    Error,
    InProgress,
    LeaseLost,
    NotPermitted,
    OutcomeUnknown,
    Quarantined,
    SignalTimeout,
    StoreError,
    UsageError,
)
from oncemore.log.entry_codec import JOURNAL, load_head
from oncemore.log.record import RecordChange
from oncemore.log.tagged_json import untag_value
from oncemore.steps.ops import NOW, AppendChange, ParkRequest
from oncemore.steps.run import Run
from oncemore.workflows.journal import (
    MAX_RECORDS,
    NEVER,
    SLEEPING,
    inner_reason,
    load_journal,
    signal_reason,
)
from oncemore.workflows.parking import merge_parks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.steps.attempt import RunningAttempt
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import Script
    from oncemore.steps.step import StepCalls
    from oncemore.workers.job_run import JobItem, JobRun
    from oncemore.workflows.journal import Journal

# An execution calls inner steps past their public call, which would come back here.
# ruff: noqa: SLF001

#: How often a workflow looks at a run that an operator holds: at first, and at most, in seconds.
HELD_CHECK_S, MAX_CHECK_S = 60.0, 3600.0
#: How soon it looks again after another worker had the run, or the store failed.
SHORT_CHECK_S = 1.0
#: How often a workflow that is about to wait looks whether its other inner calls have ended.
POLL_S = 0.01
_REAL_CLOCK = Clock()
#: Stands for a `default` that was not given.
MISSING: Any = object()


class WorkflowParked(BaseException):
    """Unwinds the function of a workflow that waits; `except Exception` does not catch it."""


class SignalWait(NamedTuple):
    """One call of `wait_for`."""

    wait_id: str
    name: str
    timeout_s: float | None
    default: Any


class RunJournal:
    """The journal of a running attempt: read once, and appended to."""

    is_workflow = False

    def __init__(self, attempt: RunningAttempt, call: PreparedCall) -> None:
        self.attempt, self.call = attempt, call
        self._counts: dict[tuple[str, str], int] = {}
        self._journal: Journal | None = None

    @property
    def journal(self) -> Journal:
        """The journal as it was read last."""
        return self.refresh() if self._journal is None else self._journal

    def refresh(self) -> Journal:
        """Read the new entries and the head of the same version; raise if the attempt has lost the run."""
        call, attempt = self.call, self.attempt
        while True:
            self._journal = load_journal(call.store, attempt.head.entity, call.engine.cipher, self._journal)
            if self._journal.version == attempt.head.version:
                return self._journal
            # A signal, or a value of this attempt whose acknowledgement was lost, has moved the head.
            head = load_head(call.store, attempt.head.entity, call.engine.cipher)
            run = head.record
            if run.state != "RUNNING" or run.fence != attempt.fence:
                attempt.over = True
                raise LeaseLost(f"{attempt.step}: attempt {attempt.number} was taken over by another worker")
            attempt.head = head
            if run.cancelled_at:
                self.end_cancelled()

    def end_cancelled(self) -> NoReturn:
        """End the attempt of a run that is to be cancelled."""
        raise Cancelled(f"{self.attempt.step}: attempt {self.attempt.number} is to be cancelled")

    def next_id(self, kind: str, name: str) -> str:
        """Return the id of the next sleep, wait or value of a name, in the order reached."""
        number = self._counts[kind, name] = self._counts.get((kind, name), 0) + 1
        return f"{name}#{number}"

    def check_room(self) -> None:
        """Refuse a further record in a full journal."""
        if self.journal.is_full:
            raise UsageError(
                f"{self.attempt.step} has {MAX_RECORDS} sleeps, waits, signals and values, the most of a "
                "run; let it end, and begin a new run with other arguments"
            )

    def append_record(self, record: dict[str, Any]) -> Script:
        """Append a record to the run; return False if the run has changed: the caller decides again."""
        head, call = self.attempt.head, self.call
        change = RecordChange(JOURNAL, head.record, head.record, {"journal": (record,)})
        saved = yield AppendChange(head, change)
        if saved is not None:
            self.attempt.head = saved
            self.journal.add_records(saved.version, call.engine.now(), (record,))
        else:
            self.refresh()
        if call.interrupt is not None:
            raise call.interrupt
        return saved is not None

    def publish_value(self, name: str, plain: Any) -> Script:
        """Append a published value, unless this position of the function has published it before."""
        set_id = self.next_id("set", name)
        while set_id not in self.journal.set_ids:
            self.check_room()
            yield from self.append_record({"set": set_id, "name": name, "value": plain})


class WorkflowScope(RunJournal):
    """One execution of a workflow's function.

    parks         the waits that the execution has met; the first one ends it
    active_calls  the calls of inner steps that are in progress, also in other tasks and threads
    """

    is_workflow = True

    def __init__(self, attempt: RunningAttempt, call: PreparedCall) -> None:
        super().__init__(attempt, call)
        self.parks: list[ParkRequest] = []
        self.active_calls: set[object] = set()
        self._thread, self._task = threading.get_ident(), _current_task()

    def check_place(self, function: str) -> None:
        """Refuse a wait outside of the workflow's own thread and task: its number would depend on chance."""
        if threading.get_ident() != self._thread:
            place = "another thread"
        elif _current_task() is not self._task:
            place = "a child task (asyncio.gather, a task group)"
        else:
            return
        raise UsageError(
            f"oncemore.{function}() in {place} of {self.attempt.step}: call it in the body of the workflow "
            "itself; work that runs in parallel and has to wait is a workflow of its own"
        )

    def check_not_parked(self) -> None:
        """End an execution again that has caught `WorkflowParked` and goes on."""
        if self.parks or self.attempt.over:
            raise WorkflowParked

    # Waits ------------------------------------------------------------------------------------------

    def end_cancelled(self) -> NoReturn:
        """End this execution; the call then closes the waiting run as cancelled."""
        self.park(ParkRequest(self.call.engine.now(), "cancelled"))

    def park(self, request: ParkRequest) -> NoReturn:
        """End this execution until a time, or until a signal."""
        self.parks.append(request)
        raise WorkflowParked(request.reason)

    def sleep_seconds(self, seconds: float, name: str) -> None:
        """Return if the sleep is over; else end this execution until then."""
        self.check_not_parked()
        sleep_id = self.next_id("sleep", name)
        until, now, records = self.journal.sleeps.get(sleep_id), self.call.engine.now(), ()
        if until is None:
            if seconds <= 0:
                return
            self.check_room()
            # The first execution that comes here fixes the end; later ones read it from the journal.
            until = now + seconds
            records = ({"sleep": sleep_id, "until": until},)  # type: ignore[assignment]
        if until > now:
            self.park(ParkRequest(until, SLEEPING, records))

    def take_signal(self, wait: SignalWait) -> Script:
        """Return the value of the signal that a wait takes; end this execution if there is none yet."""
        # Here too: the coroutine may have been handed to another task.
        self.check_place("wait_for")
        while True:
            record = self.journal.waits.get(wait.wait_id)
            if record is not None and record.taken:
                return self._signal_value(record.taken)
            if record is not None and record.timed_out:
                return self._end_timed_out(wait)
            now = yield NOW
            journal = self.refresh()
            until, is_new = (record.until, False) if record is not None else (_time_out(wait, now), True)
            if is_new:
                self.check_room()
            signal = journal.find_signal(wait.name, until)
            outcome: dict[str, Any] = {"wait": wait.wait_id, "signal": wait.name}
            # Recorded before it is returned. After a conflict the next round reads and decides again.
            if signal is not None:
                yield from self.append_record({**outcome, "until": until, "taken": signal.version})
            elif until <= now:
                yield from self.append_record({**outcome, "until": until, "timed_out": True})
            else:
                records = ({**outcome, "until": until},) if is_new else ()
                self.park(ParkRequest(until, signal_reason(wait.name), records, self.attempt.head.version))

    def _signal_value(self, version: int) -> Any:
        with self.call.engine.artifact_store.use_store():
            return untag_value(self.journal.signals[version].value)

    def _end_timed_out(self, wait: SignalWait) -> Any:
        if wait.default is not MISSING:
            return wait.default
        raise SignalTimeout(f"{self.attempt.step}: no signal {wait.name!r} came in time ({wait.wait_id})")

    # Inner calls ------------------------------------------------------------------------------------

    def call_step(self, step: StepCalls[..., Any], args: Any, kwargs: Any) -> Any:
        """Call an inner step; return an awaitable if it is async.

        An error that only asks for time ends this execution instead, past every `except Exception`.
        """
        if step._is_async:
            return self._call_step_async(step, args, kwargs)
        with self._track_call(step):
            return step._call_sync(args, kwargs)

    async def _call_step_async(self, step: StepCalls[..., Any], args: Any, kwargs: Any) -> Any:
        with self._track_call(step):
            return await step._call_async(args, kwargs)

    @contextmanager
    def _track_call(self, step: StepCalls[..., Any]) -> Iterator[None]:
        self.check_not_parked()
        call = object()
        self.active_calls.add(call)
        try:
            yield
        except Error as error:
            wait = self.find_wait(error, step.name)
            if wait is None:
                raise
            self.parks.append(wait)
            raise WorkflowParked(wait.reason) from error
        finally:
            self.active_calls.discard(call)

    def finish_map(self, job: Any, *, is_async: bool) -> Any:
        """Return the job of an inner `map`, or an awaitable of it; wait for items that are not done yet."""
        return self._finish_map_async(job) if is_async else self._check_job(job)

    async def _finish_map_async(self, job: Any) -> Any:
        return self._check_job(await job)

    def _check_job(self, job: JobRun[Any]) -> JobRun[Any]:
        waits = [self._wait_of_item(item) for item in job.items if item.outcome in ("deferred", "held")]
        if waits:
            # One record for all of them: a job may have a million items.
            self.park(min(waits, key=lambda wait: wait.until))
        return job

    def _wait_of_item(self, item: JobItem) -> ParkRequest:
        entity, now = f"run/{item.key}", self.call.engine.now()
        run = Run[Any](self.call.engine, entity)
        error: Error = Deferred("", run.not_before) if run.not_before > now else InProgress("")
        if run.held_for:
            error = Quarantined("")
        error.run = run
        wait = self.find_wait(error, run.step)
        assert wait is not None
        return wait

    def find_wait(self, error: BaseException, step: str) -> ParkRequest | None:
        """Return the wait that an error of an inner call asks for; None for every other error."""
        if isinstance(error, BaseExceptionGroup):
            waits = [found for inner in error.exceptions if (found := self.find_wait(inner, step))]
            return merge_parks(waits) if waits else None
        first_check_s = _first_check(error)
        until = (
            getattr(error, "until", 0.0) if isinstance(error, Deferred | CoolingDown | CircuitOpen) else 0.0
        )
        if not first_check_s and not 0 < until < NEVER:
            return None
        run = error.run if isinstance(error, Error) else None
        # A resource in its cooldown, or an unreachable store, may leave no run to name.
        key, step = (run.key, run.step) if isinstance(run, Run) else ("", step)
        checks = 0
        if first_check_s:
            # Without the journal the interval does not grow, and nothing else is lost.
            with suppress(StoreError):
                checks = self.journal.checks.get(key, 0)
            until = self.call.engine.now() + min(first_check_s * 2.0 ** min(checks, 20), MAX_CHECK_S)
        record = {"inner": key, "step": step, "until": until, "checks": checks + 1}
        return ParkRequest(until, inner_reason(step, key), (record,))


def _first_check(error: BaseException) -> float:
    """Return how soon to look again at an inner run whose end has no time; 0 for an error that is final."""
    if isinstance(error, InProgress | StoreError):
        return SHORT_CHECK_S
    is_held = isinstance(error, Quarantined | OutcomeUnknown) or (
        isinstance(error, NotPermitted) and error.reason != LOG_MOVED
    )
    is_held = is_held or (isinstance(error, CoolingDown) and error.outcome == "SKIPPED_QUARANTINED")
    return HELD_CHECK_S if is_held or (isinstance(error, Deferred) and error.until >= NEVER) else 0.0


def _time_out(wait: SignalWait, now: float) -> float:
    return NEVER if wait.timeout_s is None else min(now + wait.timeout_s, NEVER)


def _current_task() -> Any:
    """Return the task that this code runs in, of asyncio or trio; None outside of one."""
    trio = find_trio()
    if trio is not None:
        return trio.lowlevel.current_task()
    # Without an import: code that runs in a task of asyncio has loaded it.
    asyncio: Any = sys.modules.get("asyncio")
    try:
        return asyncio and asyncio.current_task()
    except RuntimeError:
        return None


def wait_for_calls(scope: WorkflowScope) -> None:
    """Wait until the inner calls in other threads have ended."""
    while scope.active_calls:
        time.sleep(POLL_S)


async def wait_for_calls_async(scope: WorkflowScope) -> None:
    """Wait until the inner calls in other tasks have ended."""
    while scope.active_calls:
        await _REAL_CLOCK.pause(POLL_S)
