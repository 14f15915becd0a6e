"""`Step.map`: call a step for many items, in this process or in others."""

from __future__ import annotations

import sys
from collections.abc import Sized
from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.config import SQLITE
from oncemore.errors import UsageError
from oncemore.open_engine import find_engine
from oncemore.steps.history import find_opening
from oncemore.steps.importing import refuse_during_import
from oncemore.steps.keys import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oncemore.policy.model import Failure
    from oncemore.retries.options import Seconds
    from oncemore.steps.engine import Engine
    from oncemore.steps.step import StepCalls
    from oncemore.workers.item_result import ItemCaller, ItemNotes
    from oncemore.workers.map_items import MapItem

    AnyStep = StepCalls[..., Any]

MAX_CONCURRENCY = 1000
#: How often an item may be lost besides its attempts: its process died before an attempt was recorded.
MAX_LOST_ITEMS = 3
#: How an item becomes the positional and named arguments of a call, by the option `unpack`.
_UNPACK: dict[str, Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "argument": lambda item: ((item,), {}),
    "args": lambda item: (tuple(item), {}),
    "kwargs": lambda item: ((), dict(item)),
}


class MapLimits(Value):
    """The options of `Step.map`, as given."""

    max_concurrency: int
    unpack: str
    progress: str
    max_wait: Seconds | None


# The functions below are the part of `Step` that `map` needs, kept apart for its size.
# ruff: noqa: SLF001


def map_items(step: AnyStep, items: Iterable[Any], limits: MapLimits, executor: Any) -> Any:
    """Call a step for each item and return the `JobRun`, or an awaitable of it."""
    from oncemore.workers.job_run import ProgressBar
    from oncemore.workers.map import MapJob
    from oncemore.workers.map_items import MapItem

    # Checked here: an item would record the refusal of its call as its own outcome.
    refuse_during_import(step.name)
    max_concurrency, unpack, progress, max_wait = limits
    is_number = isinstance(max_concurrency, int) and not isinstance(max_concurrency, bool)
    if not is_number or not 1 <= max_concurrency <= MAX_CONCURRENCY:
        raise UsageError(f"max_concurrency is {max_concurrency!r}; it takes 1 to {MAX_CONCURRENCY}")
    if unpack not in _UNPACK:
        raise UsageError(f"unpack is {unpack!r}; the choices are {', '.join(_UNPACK)}")
    if progress not in ("auto", "off"):
        raise UsageError(f"progress is {progress!r}; the choices are auto, off")
    engine, total = find_engine(step._engine), len(items) if isinstance(items, Sized) else None
    map_items = (
        MapItem(number, _provider_of_item(step, _UNPACK[unpack], item), item)
        for number, item in enumerate(items)
    )
    caller, max_concurrency = _make_item_caller(step, engine, unpack, executor, max_concurrency)
    job = MapJob(
        engine,
        step.name,
        map_items,
        caller,
        max_concurrency=max_concurrency,
        progress=ProgressBar(step.name, total, sys.stderr if progress == "auto" else None),
        shares_limits=step._options.provider is not None,
        max_wait_s=None if max_wait is None else parse_duration("max_wait", max_wait),
    )
    return job.run_job_async() if step._is_async else job.run_job()


def _make_item_caller(
    step: AnyStep, engine: Engine, unpack: str, executor: Any, max_concurrency: int
) -> tuple[ItemCaller, int]:
    """Return the caller of items and the number of concurrent calls: at most that of the executor."""
    from oncemore.workers.item_result import ItemCaller

    run_item, decode = partial(_run_item, step, _UNPACK[unpack]), step._plan_for_engine(engine).decode
    if executor is None:
        return ItemCaller(run_item, step._is_async, decode), max_concurrency
    from oncemore.workers.executor_adapters import adapt_executor
    from oncemore.workers.executors import RemoteExecutor
    from oncemore.workers.remote import ProcessAttempts, ThreadAttempts

    pool = adapt_executor(executor)
    # File locks belong to the process: a dead worker would look alive as long as another one runs there.
    if not pool.has_own_locks and engine.url.startswith(SQLITE):
        raise UsageError(
            f"{pool.name} cannot work on {engine.url}: interpreters of one process share file locks, by "
            "which SQLite tells workers apart; take processes, threads, or PostgreSQL"
        )
    attempts: ThreadAttempts | ProcessAttempts
    if pool.is_local:
        attempts = ThreadAttempts(run_item, step._is_async)
    else:
        attempts = ProcessAttempts(step, engine, unpack, step._bound)
    # A process that dies before its claim leaves no attempt in the log: such losses have their own limit.
    policy = step._options.policy
    max_tries = policy.max_attempts + (policy.max_crashes or 0) + MAX_LOST_ITEMS
    remote = RemoteExecutor(pool, attempts, max_tries, engine.lease_s)
    run_attempt = remote.run_attempt_async if step._is_async else remote.run_attempt
    caller = ItemCaller(run_attempt, step._is_async, decode, remote)
    return caller, min(max_concurrency, pool.max_calls or max_concurrency)


def run_remote_item(
    step: AnyStep, engine: Engine, bound: tuple[Any, ...], unpack: str, item: MapItem, notes: ItemNotes
) -> Any:
    """Make one attempt of an item of a job in another process; return an awaitable if the step is async."""
    return _run_item(type(step)(step._options, engine, bound), _UNPACK[unpack], item, notes)


def _provider_of_item(step: AnyStep, unpack: Callable[[Any], Any], item: Any) -> str:
    """Return the provider of an item; an item that does not fit the step is refused when it is called."""
    try:
        args, kwargs = unpack(item)
        return step._options.provider_of((*step._bound, *args), kwargs) or step.name
    except Exception:  # noqa: BLE001 - the call raises the same error as the result of this item
        return step.name


def _run_item(step: AnyStep, unpack: Callable[[Any], Any], item: MapItem, notes: ItemNotes) -> Any:
    """Make one attempt of an item; do not wait for a retry that is due later."""
    args, kwargs = unpack(item.value)
    # A later attempt of the item must have the key of the first, even if the function changed its arguments.
    if item.key:
        args, kwargs = _recall_arguments(step, item.key, args, kwargs)
    call = step._prepare_call(args, kwargs)
    # A worker may have ended the run while the item waited: that is the end of this item too.
    call.took_part = bool(item.key)
    notes.key = call.key
    step._use_cooldown(call)
    if step._options.cooldown is not None:
        notes.record_resource(call.plan.cooldown, call.head)
    describe = call.plan.describe

    def describe_and_note(error: BaseException, failure: Failure | None) -> dict[str, Any]:
        record = describe(error, failure)
        if failure is not None:
            notes.record_failure(record, failure)
        return record

    # No inline waits: the job calls other items until this one is due again.
    call.plan = call.plan.copy_with(inline_wait_s=0.0, describe=describe_and_note)
    return (step._call_async if step._is_async else step._call_sync)(args, kwargs, None, call)


def _recall_arguments(step: AnyStep, key: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments of an item as its run recorded them: an attempt may have changed the item."""
    engine, bound = find_engine(step._engine), step._bound
    opening = find_opening(engine.store.read_entries(f"run/{key}"), engine.cipher)
    stored = opening.get("arguments", {})
    with engine.artifact_store.use_store():
        args, kwargs = step._options.arguments.recall(stored, (*bound, *args), kwargs)
    return args[len(bound) :], kwargs
