"""Calls one step for many items, a bounded number at a time (`work.map`).

The lanes of a job, threads or tasks, share an `ItemQueue`: each lane takes an item, runs one attempt and
returns it. An item that is due later waits in the queue and not in a lane. Failures of items are counted and
not raised. The job itself has two entries in the log, at its start and its end; the work is recorded in the
runs of its items, so that a killed job is continued by calling `map` again.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore.errors import StoreError
from oncemore.limits.breaker import CIRCUIT_OPEN
from oncemore.limits.cooldown_rules import ResourceRecord
from oncemore.log.entry_codec import build_write, decode_head, load_head, new_uuid7
from oncemore.log.group_commit import InterruptShield
from oncemore.log.record import NOWHERE, JobRecord, RecordChange
from oncemore.log.store import Batch, Stored
from oncemore.steps.context import CONTEXT
from oncemore.workers.item_result import ItemResult, LiveItemNotes, build_error_result
from oncemore.workers.job_run import ITEM_OUTCOMES, THROTTLED, JobItem, JobRun, ProviderSummary
from oncemore.workers.map_items import ItemQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine
    from oncemore.workers.item_result import ItemCaller
    from oncemore.workers.job_run import ProgressBar
    from oncemore.workers.map_items import MapItem

#: How many items the record of a job lists; the `JobRun` that `map` returns has all of them.
MAX_RECORDED_ITEMS = 1000
#: The longest sleep of a lane, how long it waits for other lanes, and how long a task waits for other tasks.
MAX_SLEEP_S, POLL_S, TASK_POLL_S = 0.5, 0.2, 0.01
#: How long an item waits if the calls of other processes fill the concurrency limit of its provider.
PERMIT_WAIT_S = 0.1
#: How long an interrupted job waits for its active attempts.
GRACE_S = 10.0


class MapJob:
    """A job that is running."""

    def __init__(
        self,
        engine: Engine,
        step: str,
        items: Iterator[MapItem],
        caller: ItemCaller,
        max_concurrency: int,
        progress: ProgressBar,
        shares_limits: bool = False,
        max_wait_s: float | None = None,
    ) -> None:
        self._max_wait_s = engine.inline_wait_s if max_wait_s is None else max_wait_s
        self.engine, self._caller, self._progress = engine, caller, progress
        self._max_concurrency = max_concurrency
        self._queue, self._changed = ItemQueue(items, max_concurrency), threading.Condition()
        self._items: dict[int, JobItem] = {}
        self._providers: dict[str, ProviderSummary] = {}
        self._shares_limits = shares_limits
        self._fault: BaseException | None = None
        self._has_sleeper = False
        context, now = CONTEXT.get(), engine.now()
        job_id = new_uuid7(now)
        self._record = JobRecord(
            "RUNNING", step, job_id, engine.leases.current_identity().name, now, tenant=context.tenant,
            correlation_id=context.correlation_id or job_id, actor=context.actor,
        )  # fmt: skip
        self._version, self._hash = 0, NOWHERE
        self._stored_record: JobRecord | None = None

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._record.job_id

    @property
    def is_stopped(self) -> bool:
        """Whether the job takes no more items."""
        return self._fault is not None

    def run_job(self) -> JobRun[Any]:
        """Run the job, blocking."""
        place = self._caller.place
        with self._record_job() as results:
            if place is not None:
                place.check_ready(self.job_id)
            # A single lane without an executor needs no thread: the calling thread runs it.
            self._run_threads() if self._max_concurrency > 1 or place is not None else self._run_lane()
        return results[0]

    async def run_job_async(self) -> JobRun[Any]:
        """Run the job in tasks, on asyncio or trio."""
        place = self._caller.place
        with self._record_job() as results:
            if place is not None:
                await place.check_ready_async(self.job_id)
            await _run_tasks(self._run_lane_async, self._max_concurrency)
        return results[0]

    # The record -------------------------------------------------------------------------------------

    @contextmanager
    def _record_job(self) -> Iterator[list[JobRun[Any]]]:
        """Record the start and the end of the job; its items get its correlation id."""
        results: list[JobRun[Any]] = []
        # Not synced: if a crash loses this entry, the runs of the items still have everything.
        self._append_record(self._record, {"max_concurrency": self._max_concurrency}, sync=False)
        token = CONTEXT.set(CONTEXT.get()._replace(correlation_id=self._record.correlation_id))
        try:
            yield results
            if self._fault is not None:
                raise self._fault
        except BaseException:
            # The error of the job matters more than its last entry, and the runs have the items' results.
            with suppress(StoreError):
                self._end_job("STOPPED")
            raise
        finally:
            CONTEXT.reset(token)
            if self._caller.place is not None:
                self._caller.place.release_resources()
        results.append(self._end_job("DONE"))

    def _end_job(self, state: str) -> JobRun[Any]:
        items = tuple(self._items[number] for number in sorted(self._items))
        counts: dict[str, Any] = self._count_outcomes()
        self._progress.draw_line(counts, last=True)
        for name, limit in self._queue.concurrency_states.items():
            self._update_provider(name, concurrency=limit.now)
        record = self._record._replace(state=state, ended_at=self.engine.now(), items=len(items), **counts)
        body = {
            # Without the error texts, which may quote any data; each run has its own error.
            "items": [tuple(item._replace(error="")) for item in items[:MAX_RECORDED_ITEMS]],
            "providers": {name: tuple(summary) for name, summary in self._providers.items()},
        }
        self._append_record(record, body, sync=True)
        return JobRun(self.engine, record, items, self._providers, self._caller.decode)

    def _append_record(self, record: JobRecord, body: dict[str, Any], *, sync: bool) -> None:
        """Append an entry to the job's entity, on top of any entry that another process has written."""
        entity = f"job/{record.job_id}"
        while True:
            change = RecordChange(("JOB",), self._stored_record, record, body)
            write = build_write(
                entity, self._version, self._hash, change, self.engine.now(), self.engine.cipher
            )
            answer = self.engine.store.append(Batch((write,), {}, sync)).wait()
            if isinstance(answer, Stored):
                self._version, self._hash, self._stored_record = self._version + 1, write.hash, record
                return
            # A worker that took this process for dead has marked the job as LOST; this entry corrects that.
            assert answer.head is not None
            self._version, self._hash = answer.head.version, answer.head.hash
            self._stored_record = decode_head(answer.head.head, JobRecord)

    # Items ------------------------------------------------------------------------------------------

    def record_failure(self, item: MapItem, began: float, error: dict[str, Any], failure: Failure) -> None:
        """Count a failed attempt of an item; throttling lowers the concurrency limit of its provider."""
        now = self.engine.now()
        with self._changed:
            if failure.kind == "throttled":
                self._queue.record_throttling(item, began, now)
                # The shared limit also slows down the other jobs and workers of this store.
                if self._shares_limits:
                    self.engine.concurrency_limits.record_throttling(
                        item.provider, began, self._max_concurrency
                    )
            name = THROTTLED if failure.kind == "throttled" else failure.code or failure.kind.upper()
            self._count_error(item.provider, name, error)
            if failure.retry_after is not None:
                self._update_provider(item.provider, cooldown=now + failure.retry_after)

    def _count_error(self, provider: str, name: str, error: dict[str, Any]) -> None:
        errors = self._providers.get(provider, ProviderSummary()).errors
        self._update_provider(provider, errors={**errors, name: errors.get(name, 0) + 1}, last_error=error)

    def _update_provider(self, provider: str, **changes: Any) -> None:
        self._providers[provider] = self._providers.get(provider, ProviderSummary())._replace(**changes)

    def _count_outcomes(self) -> dict[str, int]:
        summaries = self._providers.values()
        return {word: sum(getattr(summary, word) for summary in summaries) for word in ITEM_OUTCOMES}

    def _return_item(self, item: MapItem, result: ItemResult) -> None:
        """Store the result of an item, or queue it again if it is due within the engine's inline wait."""
        with self._changed:
            if self._shares_limits:
                self.engine.concurrency_limits.end_call(item.provider)
            if result.until is not None and result.until - self.engine.now() <= self._max_wait_s:
                self._queue.return_item(item._replace(key=result.key), result.until)
            else:
                self._queue.return_item(item, None)
                if result.stored_error is not None:
                    # No attempt of this job failed, so the failure was not counted by record_failure.
                    code = result.stored_error.get("code") or result.stored_error.get("type", "UNKNOWN")
                    self._count_error(item.provider, code, result.stored_error)
                self._items[item.number] = JobItem(
                    item.number, result.key, result.outcome, result.error, result.result, result.error_class
                )
                count = getattr(self._providers.get(item.provider, ProviderSummary()), result.outcome)
                self._update_provider(item.provider, **{result.outcome: count + 1})
            self._progress.draw_line(self._count_outcomes())
            self._changed.notify_all()

    @contextmanager
    def _process_item(self, item: MapItem) -> Iterator[LiveItemNotes]:
        """Return the item to the queue when its attempt ends; raise only interrupts and cancellation."""
        notes = LiveItemNotes(self, item)
        result = ItemResult("", "deferred")
        try:
            yield notes
            result = notes.item_result or notes.build_result()
        except BaseException as error:
            result = build_error_result(error, notes)
            # Without a store no item can succeed; after an interrupt no item shall start.
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                self.stop_job(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._note_cooldown(item.provider, result, notes.resource)
            self._return_item(item, result)

    def _note_cooldown(self, provider: str, result: ItemResult, resource: str) -> None:
        """Note in the provider's summary when an open breaker or the cooldown of the resource ends."""
        engine, until = self.engine, 0.0
        # The time is informative only, so that a store error here does not fail the item.
        with suppress(StoreError):
            if resource and result.outcome != "done":
                record = load_head(engine.store, resource, engine.cipher, ResourceRecord).record
                until = 0.0 if record is None else record.next_eligible_attempt_at
            if result.until is not None:
                run = load_head(engine.store, f"run/{result.key}", engine.cipher).record
                until = run.not_before if run is not None and run.reason == CIRCUIT_OPEN else until
        if until:
            with self._changed:
                self._update_provider(provider, cooldown=until)

    def stop_job(self, error: BaseException) -> None:
        """Take no more items, because of a store error, an interrupt or an unusable executor."""
        with self._changed:
            self._fault = self._fault or error
            self._queue.close()
            self._changed.notify_all()

    def _take_item(self) -> MapItem | float | None:
        """Return the next item, the seconds to wait for one, or None at the end."""
        try:
            with self._changed:
                item = self._queue.take_item(self.engine.now())
                if not self._shares_limits or item is None or isinstance(item, float):
                    return item
                if not self.engine.concurrency_limits.begin_call(item.provider):
                    self._queue.return_item(item, self.engine.now() + PERMIT_WAIT_S)
                    return PERMIT_WAIT_S
                return item
        except Exception as error:  # noqa: BLE001 - the caller's iterator failed; raised when the job ends
            self.stop_job(error)
            return None

    # Lanes ------------------------------------------------------------------------------------------

    def _run_lane(self) -> None:
        """Run items in this thread until there are none."""
        while (item := self._take_item()) is not None:
            if isinstance(item, float):
                self._wait_seconds(item)
            else:
                with self._process_item(item) as notes:
                    self._caller.run_attempt(item, notes)

    def _wait_seconds(self, seconds: float) -> None:
        """Wait for a change of the queue; if no call is active, one lane sleeps for all of them."""
        with self._changed:
            # A call that ends may free the next item, so a lane does not sleep while calls are active. Only
            # one lane sleeps on the clock: a fake clock of a test would advance once per sleeping lane.
            if self._queue.active_calls or self._has_sleeper:
                self._changed.wait(min(seconds, POLL_S))
                return
            self._has_sleeper = True
        try:
            clocks.current.sleep(min(seconds, MAX_SLEEP_S))
        finally:
            with self._changed:
                self._has_sleeper = False
                self._changed.notify_all()

    async def _run_lane_async(self) -> None:
        """Run items in this task until there are none."""
        while (item := self._take_item()) is not None:
            if isinstance(item, float):
                is_alone = not self._queue.active_calls
                await (clocks.current if is_alone else _REAL_CLOCK).pause(
                    min(item, MAX_SLEEP_S if is_alone else TASK_POLL_S)
                )
            else:
                with self._process_item(item) as notes:
                    await self._caller.run_attempt(item, notes)

    def _run_threads(self) -> None:
        """Run the lanes in threads, while the calling thread waits and receives Ctrl-C."""

        def lane() -> None:
            # stop_job has stored the error, and the calling thread raises it.
            with suppress(BaseException):
                self._run_lane()

        lanes = [
            threading.Thread(target=copy_context().run, args=(lane,), name="oncemore-map", daemon=True)
            for _ in range(self._max_concurrency)
        ]
        try:
            for thread in lanes:
                # A Ctrl-C inside of start() breaks the locks of the thread ("release unlocked lock").
                with InterruptShield():
                    thread.start()
            for thread in lanes:
                while thread.is_alive():
                    thread.join(POLL_S)
        except BaseException as error:
            self.stop_job(error)
            ends = clocks.Clock().monotonic() + GRACE_S
            for thread in lanes:
                if thread.is_alive():
                    thread.join(max(0.0, ends - clocks.Clock().monotonic()))
            raise


_REAL_CLOCK = clocks.Clock()


async def _run_tasks(lane: Callable[[], Awaitable[None]], count: int) -> None:
    """Run lanes as tasks of the current event loop."""
    trio = clocks.find_trio()
    if trio is not None:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(lane)
        return
    async with sys.modules["asyncio"].TaskGroup() as group:
        for _ in range(count):
            group.create_task(lane())
