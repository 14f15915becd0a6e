"""COURSE: one step called for many items, a bounded number at a time (`work.map`).

A job is carried out by *lanes*, threads or tasks, that share a board (`workers.map_items`): each takes an
item,
makes one attempt, and brings it back; an item that is to be tried again waits on the board, not in a lane,
and whoever throttles is asked less at once, by all who share the store (`engine.resources`). What an item
comes to is counted and kept, and never raised.

Where an attempt is made is the carrier's affair: in the lane itself, or elsewhere (`workers.executors`), with
the lane waiting for what comes back.

The job itself is an entity of the log: one entry when it begins, one when it ends. What it has done lies in
the runs of its items, so that a job that was killed is repeated by calling it again: what is done is done.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from oncemore import clock as clocks
from oncemore._ids import uuid7
from oncemore.errors import (
    StoreError,
)
from oncemore.limits.breaker import CIRCUIT_OPEN
from oncemore.limits.cooldown_rules import Resource
from oncemore.log.entry_codec import head_of
from oncemore.log.head_access import seen_in, write_of
from oncemore.log.interrupt_shield import Shield
from oncemore.log.record import NOWHERE, Change, Mapped
from oncemore.log.store import Batch, Stored
from oncemore.steps.context import CONTEXT
from oncemore.workers.item_result import Came, Notes, came_of
from oncemore.workers.job_run import THROTTLED, WORDS, ByProvider, JobItem, JobRun
from oncemore.workers.map_items import Board

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine
    from oncemore.workers.map_items import Item
    from oncemore.workers.progress import Bar

#: How many items' keys a job's record keeps; all of them are in the `JobRun` that `map` returns.
MOST_KEPT = 1000
#: How long a lane sleeps at a time, how long it waits for others, and a task for other tasks.
NAP_S, LOOK_S, TASK_S = 0.5, 0.2, 0.01
#: How long an item waits that others toward its provider have taken the permit of.
PERMIT_S = 0.1
#: How long a job that is cut off waits for what is under way.
GRACE_S = 10.0


class Carrier(NamedTuple):
    """How an item is called.

    once    make one attempt of an item, and tell what is met; the answer is to be awaited if `awaits`
    decode  reads what is stored of a result
    away    where attempts are made, if that is elsewhere
    """

    once: Callable[[Item, Met], Any]
    awaits: bool
    decode: Callable[[Any], Any]
    away: Away | None = None


class Away(Protocol):
    """Somewhere else to make attempts."""

    def ready(self, job_id: str) -> None:
        """Find out whether attempts can be made there, before one is; or raise why not."""

    def ready_awaited(self, job_id: str) -> Awaitable[None]:
        """Find it out in a task."""

    def leave(self) -> None:
        """Let go of what was made there for this job."""


class Met(Notes):
    """What an attempt of an item meets, known to the job at once.

    came  what became of the item, where somebody else says it
    """

    def __init__(self, course: Course, item: Item) -> None:
        super().__init__()
        self.came: Came | None = None
        self._course, self._item, self._began = course, item, course.engine.now()

    @property
    def job_id(self) -> str:
        """The job that the item is one of."""
        return self._course.job_id

    @property
    def stopped(self) -> bool:
        """Whether the job has been stopped."""
        return self._course.stopped

    def told(self, error: dict[str, Any], failure: Failure) -> None:
        """Count a failed attempt; who throttles is asked less at once."""
        super().told(error, failure)
        self._course.failed(self._item, self._began, error, failure)

    def stop(self, error: BaseException) -> None:
        """End the job with an error that is not this item's: no other would fare better."""
        self._course.stop(error)


class Course:
    """A job on its way."""

    def __init__(
        self,
        engine: Engine,
        step: str,
        items: Iterator[Item],
        carrier: Carrier,
        most: int,
        bar: Bar,
        fleet: bool = False,
        patience_s: float | None = None,
    ) -> None:
        self._patience_s = engine.inline_wait_s if patience_s is None else patience_s
        self.engine, self._carrier, self._bar, self._most = engine, carrier, bar, most
        self._board, self._changed = Board(items, most), threading.Condition()
        self._items: dict[int, JobItem] = {}
        self._providers: dict[str, ByProvider] = {}
        self._fleet = fleet
        self._fault: BaseException | None = None
        self._sleeper = False
        around, now = CONTEXT.get(), engine.now()
        job_id = uuid7(now)
        self._record = Mapped(
            "RUNNING", step, job_id, engine.identity().name, now, tenant=around.tenant,
            correlation_id=around.correlation_id or job_id, actor=around.actor,
        )  # fmt: skip
        self._version, self._hash = 0, NOWHERE
        self._before: Mapped | None = None

    @property
    def job_id(self) -> str:
        """What the job is known by."""
        return self._record.job_id

    @property
    def stopped(self) -> bool:
        """Whether it takes no more items."""
        return self._fault is not None

    def run(self) -> JobRun:
        """Carry out the job, blocking."""
        away = self._carrier.away
        with self._recorded() as ended:
            if away is not None:
                away.ready(self.job_id)
            self._everybody() if self._most > 1 or away is not None else self._lane()
        return ended[0]

    async def run_awaited(self) -> JobRun:
        """Carry out the job in tasks, on asyncio or trio."""
        away = self._carrier.away
        with self._recorded() as ended:
            if away is not None:
                await away.ready_awaited(self.job_id)
            await _together(self._lane_awaited, self._most)
        return ended[0]

    # The record -------------------------------------------------------------------------------------

    @contextmanager
    def _recorded(self) -> Iterator[list[JobRun]]:
        """Write down that the job has begun, and what it came to; its items bear its correlation id."""
        ended: list[JobRun] = []
        self._write(self._record, {"max_concurrency": self._most}, sync=False)
        token = CONTEXT.set(CONTEXT.get()._replace(correlation_id=self._record.correlation_id))
        try:
            yield ended
            if self._fault is not None:
                raise self._fault
        except BaseException:
            with suppress(StoreError):  # what it has done is in the runs
                self._end("STOPPED")
            raise
        finally:
            CONTEXT.reset(token)
            if self._carrier.away is not None:
                self._carrier.away.leave()
        ended.append(self._end("DONE"))

    def _end(self, state: str) -> JobRun:
        items = tuple(self._items[number] for number in sorted(self._items))
        counts: dict[str, Any] = self._counts()
        self._bar.draw(counts, last=True)
        for name, pace in self._board.paces.items():
            self._change(name, concurrency=pace.now)
        record = self._record._replace(state=state, ended=self.engine.now(), items=len(items), **counts)
        told = {
            # Without their errors, which may quote anything; those of runs are in the runs.
            "items": [(*item[:3], "", *item[4:]) for item in items[:MOST_KEPT]],
            "providers": {name: tuple(one) for name, one in self._providers.items()},
        }
        self._write(record, told, sync=True)
        return JobRun(self.engine, record, items, self._providers, self._carrier.decode)

    def _write(self, record: Mapped, body: dict[str, Any], *, sync: bool) -> None:
        """Append to the job's entity; what somebody took for lost is not, as long as it can say so."""
        entity = f"job/{record.job_id}"
        while True:
            change = Change(("JOB",), self._before, record, body)
            write = write_of(entity, self._version, self._hash, change, self.engine.now(), self.engine.seal)
            answer = self.engine.store.append(Batch((write,), {}, sync)).wait()
            if isinstance(answer, Stored):
                self._version, self._hash, self._before = self._version + 1, write.hash, record
                return
            assert answer.head is not None
            self._version, self._hash = answer.head.version, answer.head.hash
            self._before = head_of(answer.head.head, Mapped)

    # Items ------------------------------------------------------------------------------------------

    def failed(self, item: Item, began: float, error: dict[str, Any], failure: Failure) -> None:
        """Count a failed attempt of an item; who throttles is asked less at once."""
        now = self.engine.now()
        with self._changed:
            if failure.kind == "throttled":
                self._board.throttled(item, began, now)
                if self._fleet:
                    self.engine.paces.throttled(item.provider, began, self._most)
            name = THROTTLED if failure.kind == "throttled" else failure.code or failure.kind.upper()
            self._count(item.provider, name, error)
            if failure.retry_after is not None:
                self._change(item.provider, cooldown=now + failure.retry_after)

    def _count(self, provider: str, name: str, error: dict[str, Any]) -> None:
        errors = self._providers.get(provider, ByProvider()).errors
        self._change(provider, errors={**errors, name: errors.get(name, 0) + 1}, last_error=error)

    def _change(self, provider: str, **changes: Any) -> None:
        self._providers[provider] = self._providers.get(provider, ByProvider())._replace(**changes)

    def _counts(self) -> dict[str, int]:
        met = self._providers.values()
        return {word: sum(getattr(one, word) for one in met) for word in WORDS}

    def _bring_back(self, item: Item, came: Came) -> None:
        """Keep what an item came to; what is due again before the engine's patience ends is tried again."""
        with self._changed:
            if self._fleet:
                self.engine.paces.end(item.provider)
            if came.until is not None and came.until - self.engine.now() <= self._patience_s:
                self._board.back(item._replace(key=came.key), came.until)
            else:
                self._board.back(item, None)
                if came.stored is not None:
                    told = came.stored.get("code") or came.stored.get("type", "UNKNOWN")
                    self._count(item.provider, told, came.stored)
                self._items[item.number] = JobItem(
                    item.number, came.key, came.word, came.error, came.result, came.error_class
                )
                so_far = getattr(self._providers.get(item.provider, ByProvider()), came.word)
                self._change(item.provider, **{came.word: so_far + 1})
            self._bar.draw(self._counts())
            self._changed.notify_all()

    @contextmanager
    def _carrying(self, item: Item) -> Iterator[Met]:
        """Have an item under way, and bring it back whatever comes of it; only a cut is raised."""
        met = Met(self, item)
        came = Came("", "later")
        try:
            yield met
            came = met.came or met.done()
        except BaseException as error:
            came = came_of(error, met)
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                self.stop(error)
            if not isinstance(error, Exception):
                raise
        finally:
            if came.word != "done":
                self._rests(item.provider, met.resource)
            if came.until is not None:
                self._left_alone(item.provider, came.key)
            self._bring_back(item, came)

    def _rests(self, provider: str, resource: str) -> None:
        """Note until when what was asked for is left alone, if it is."""
        with suppress(StoreError):  # it is told for people who look
            book = seen_in(self.engine.store, resource, self.engine.seal, Resource).run if resource else None
            if book is not None and book.next_eligible_attempt_at:
                with self._changed:
                    self._change(provider, cooldown=book.next_eligible_attempt_at)

    def _left_alone(self, provider: str, key: str) -> None:
        """Note until when a provider is left alone whose breaker is open: its run waits for that."""
        with suppress(StoreError):
            run = seen_in(self.engine.store, f"run/{key}", self.engine.seal).run
            if run is not None and run.reason == CIRCUIT_OPEN:
                with self._changed:
                    self._change(provider, cooldown=run.not_before)

    def stop(self, error: BaseException) -> None:
        """Take no more items: the store failed, or somebody has had enough."""
        with self._changed:
            self._fault = self._fault or error
            self._board.close()
            self._changed.notify_all()

    def _take(self) -> Item | float | None:
        """Return the next item, how long to wait for one, or None at the end."""
        try:
            with self._changed:
                item = self._board.take(self.engine.now())
                if not self._fleet or item is None or isinstance(item, float):
                    return item
                if not self.engine.paces.begin(item.provider):
                    self._board.back(item, self.engine.now() + PERMIT_S)
                    return PERMIT_S
                return item
        except Exception as error:  # noqa: BLE001 - whoever makes the items failed; it is raised at the end
            self.stop(error)
            return None

    # Lanes ------------------------------------------------------------------------------------------

    def _lane(self) -> None:
        """Carry out items until there are none: in a thread."""
        while (item := self._take()) is not None:
            if isinstance(item, float):
                self._wait(item)
            else:
                with self._carrying(item) as met:
                    self._carrier.once(item, met)

    def _wait(self, seconds: float) -> None:
        """Let time pass: others work meanwhile, or one lane sleeps for all."""
        with self._changed:
            if self._board.busy or self._sleeper:
                self._changed.wait(min(seconds, LOOK_S))
                return
            self._sleeper = True
        try:
            clocks.current.sleep(min(seconds, NAP_S))
        finally:
            with self._changed:
                self._sleeper = False
                self._changed.notify_all()

    async def _lane_awaited(self) -> None:
        """Carry out items until there are none: in a task."""
        while (item := self._take()) is not None:
            if isinstance(item, float):
                alone = not self._board.busy
                await (clocks.current if alone else _REAL).pause(min(item, NAP_S if alone else TASK_S))
            else:
                with self._carrying(item) as met:
                    await self._carrier.once(item, met)

    def _everybody(self) -> None:
        """Have lanes work in threads, and be there for a Ctrl-C meanwhile."""

        def lane() -> None:
            with suppress(BaseException):  # it is kept, and raised where the job was called
                self._lane()

        lanes = [
            threading.Thread(target=copy_context().run, args=(lane,), name="oncemore-map", daemon=True)
            for _ in range(self._most)
        ]
        try:
            for one in lanes:
                with Shield():
                    one.start()
            for one in lanes:
                while one.is_alive():
                    one.join(LOOK_S)
        except BaseException as error:
            self.stop(error)
            ends = clocks.Clock().monotonic() + GRACE_S
            for one in lanes:
                if one.is_alive():
                    one.join(max(0.0, ends - clocks.Clock().monotonic()))
            raise


_REAL = clocks.Clock()


async def _together(lane: Callable[[], Awaitable[None]], count: int) -> None:
    """Run lanes as tasks of the event loop that is there."""
    trio = clocks.in_trio()
    if trio is not None:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(lane)
        return
    async with sys.modules["asyncio"].TaskGroup() as group:
        for _ in range(count):
            group.create_task(lane())
