"""`Step.map`: call a step for many items, here or in other processes."""

from __future__ import annotations

import sys
from collections.abc import Sized
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from oncemore.config import SQLITE
from oncemore.errors import (
    UsageError,
)
from oncemore.open_engine import find_engine
from oncemore.steps.options import parse_duration
from oncemore.steps.run import find_opening
from oncemore.steps.step_calls import CallRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncemore.policy.model import Failure
    from oncemore.retries.options import Seconds
    from oncemore.steps.engine import Engine
    from oncemore.workers.item_result import ItemNotes
    from oncemore.workers.map import ItemCaller
    from oncemore.workers.map_items import MapItem

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class MapCaller(CallRunner[P, R]):
    """Calls a step for many items (`Step.map`)."""

    def map(
        self,
        items: Iterable[Any],
        *,
        max_concurrency: int = 5,
        unpack: str = "argument",
        progress: str = "auto",
        max_wait: Seconds | None = None,
        executor: Any = None,
    ) -> Any:
        """Call the step for each item, several at a time, and return the `JobRun`; await it if async.

        The failure of an item is not raised; the `JobRun` has it. The concurrency limit of a throttling
        provider is halved, and raised by one after each quiet period.

        max_concurrency  the largest number of concurrent calls
        unpack           how an item is passed: the step's only "argument", its "args" or its "kwargs"
        progress         "auto": a line on standard error, if that is a terminal; or "off"
        max_wait         how long the job waits for an item that is due again later; as long as a call does
                         (`inline_wait_s` of the engine), unless given
        executor         where attempts are made: an executor of `concurrent.futures`, a Dask `Client`, or the
                         module `ray`; in threads of this process, or in the event loop, unless given. Other
                         processes import the step and open the store by its address
        """
        from oncemore.workers.map import MapJob
        from oncemore.workers.map_items import MapItem
        from oncemore.workers.progress import ProgressBar

        number = isinstance(max_concurrency, int) and not isinstance(max_concurrency, bool)
        if not number or not 1 <= max_concurrency <= MAX_CONCURRENCY:
            raise UsageError(f"max_concurrency is {max_concurrency!r}; it takes 1 to {MAX_CONCURRENCY}")
        if unpack not in _UNPACK:
            raise UsageError(f"unpack is {unpack!r}; the choices are {', '.join(_UNPACK)}")
        if progress not in ("auto", "off"):
            raise UsageError(f"progress is {progress!r}; the choices are auto, off")
        engine, total = find_engine(self._engine), len(items) if isinstance(items, Sized) else None
        drawn = (
            MapItem(at, self._provider_of_item(_UNPACK[unpack], item), item) for at, item in enumerate(items)
        )
        bar = ProgressBar(self.name, total, sys.stderr if progress == "auto" else None)
        carrier, most = self._make_item_caller(engine, unpack, executor, max_concurrency)
        waits = None if max_wait is None else parse_duration("max_wait", max_wait)
        fleet = self._options.has_provider
        course = MapJob(engine, self.name, drawn, carrier, most, bar, fleet, waits)
        return course.run_job_async() if self._is_async else course.run_job()

    def _make_item_caller(
        self, engine: Engine, unpack: str, executor: Any, most: int
    ) -> tuple[ItemCaller, int]:
        """Return how items are called, and how many at once: a place with fewer hands takes no more."""
        from oncemore.workers.map import ItemCaller

        here, decode = partial(self._run_item, _UNPACK[unpack]), self._plan_for_engine(engine).decode
        if executor is None:
            return ItemCaller(here, self._is_async, decode), most
        from oncemore.workers.executor_adapters import adapt_executor
        from oncemore.workers.executors import RemoteExecutor
        from oncemore.workers.remote import ProcessAttempts, ThreadAttempts

        place = adapt_executor(executor)
        if not place.has_own_locks and engine.url.startswith(SQLITE):
            raise UsageError(
                f"{place.name} cannot work on {engine.url}: interpreters of one process share file locks, by "
                "which SQLite tells workers apart; take processes, threads, or PostgreSQL"
            )
        trip: ThreadAttempts | ProcessAttempts
        if place.is_local:
            trip = ThreadAttempts(here, self._is_async)
        else:
            trip = ProcessAttempts(self, engine, unpack, self._bound)
        away = RemoteExecutor(place, trip, self._options.policy.max_attempts + MAX_LOST_ITEMS, engine.lease_s)
        once = away.run_attempt_async if self._is_async else away.run_attempt
        return ItemCaller(once, self._is_async, decode, away), min(most, place.max_calls or most)

    def run_remote_item(
        self, engine: Engine, bound: tuple[Any, ...], unpack: str, item: MapItem, met: ItemNotes
    ) -> Any:
        """Make one attempt of an item of a job that is in another process; to be awaited if async."""
        from oncemore.steps.decorator import Step

        step: Step[..., Any] = Step(self._options, engine, bound)
        return step._run_item(_UNPACK[unpack], item, met)  # noqa: SLF001 - a step of the same class

    def _provider_of_item(self, unpack: Callable[[Any], Any], item: Any) -> str:
        """Return the provider of an item; one that is no call is refused when its turn comes."""
        try:
            args, kwargs = unpack(item)
            return self._options.provider_of((*self._bound, *args), kwargs) or self.name
        except Exception:  # noqa: BLE001
            return self.name

    def _run_item(self, unpack: Callable[[Any], Any], item: MapItem, met: ItemNotes) -> Any:
        """Make one attempt of an item; a retry that is due later is not waited for."""
        args, kwargs = unpack(item.value)
        if item.key:
            args, kwargs = self._recall(item.key, args, kwargs)
        prepared = self._prepare_call(args, kwargs)
        met.key = prepared.call.entity.removeprefix("run/")
        if self._options.cooldown is not None:
            met.record_resource(self._options.cooldown_of(prepared.args, prepared.kwargs), prepared.seen)
        describe = prepared.plan.describe

        def tell(error: BaseException, failure: Failure | None) -> dict[str, Any]:
            told = describe(error, failure)
            if failure is not None:
                met.record_failure(told, failure)
            return told

        prepared = prepared._replace(plan=prepared.plan.copy_with(inline_wait_s=0.0, describe=tell))
        return (self._call_async if self._is_async else self._call_sync)(args, kwargs, None, prepared)

    def _recall(self, key: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the arguments of an item as its run recorded them: an attempt may have changed the item."""
        engine = find_engine(self._engine)
        opening = find_opening(engine.store.read_entries(f"run/{key}"), engine.cipher)
        stored = opening.get("arguments", {})
        with engine.artifact_store.use_store():
            args, kwargs = self._options.recall_arguments(stored, (*self._bound, *args), kwargs)
        return args[len(self._bound) :], kwargs


#: What an item of a job is, by the word for it: positional arguments and named ones.
_UNPACK: dict[str, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "argument": lambda item: ((item,), {}),
    "args": lambda item: (tuple(item), {}),
    "kwargs": lambda item: ((), dict(item)),
}
MAX_CONCURRENCY = 1000
#: How often an item may be lost beside its attempts: its process died before an attempt was recorded.
MAX_LOST_ITEMS = 3
