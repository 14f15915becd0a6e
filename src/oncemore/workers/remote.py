"""Runs attempts of a job's items in another process (`work.map(items, on=…)`).

The job sends the step's address (`package.module:name`), the store's URL with the engine's settings, the call
context and the pickled item. The other process imports the step, opens the store once for all attempts, and
runs one attempt; `workers.executors` describes the reply. Pickle is used only between processes that run the
same program for the same user; pickled data is never stored.
"""

from __future__ import annotations

import pickle
import sys
import threading
from contextvars import copy_context
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from oncemore import open_engine
from oncemore.config import SQLITE
from oncemore.errors import InProgress, StoreError, UsageError
from oncemore.steps.context import CONTEXT, CallContext
from oncemore.steps.decorator import known_step
from oncemore.steps.entered_engine import use_engine
from oncemore.steps.step import StepCalls
from oncemore.steps.step_map import run_remote_item
from oncemore.workers.executors import LocalError, RemoteReply, encode_reply
from oncemore.workers.find_steps import find_attribute
from oncemore.workers.item_result import ItemNotes, build_error_result
from oncemore.workers.map_items import MapItem

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine
    from oncemore.workers.item_result import LiveItemNotes

#: How many jobs a process remembers as present in its store.
MAX_KNOWN_JOBS = 256


class RemoteAttempt(NamedTuple):
    """One attempt of an item, as it is sent to another process.

    store    the engine's URL and settings, pickled
    context  tenant, correlation id, deadline, actor, trace id
    item     pickled: the objects that a method is bound to, the form of the item ("argument", "args",
             "kwargs") and the item
    """

    job_id: str
    module: str
    name: str
    step: str
    store: bytes
    context: tuple[Any, ...]
    number: int = 0
    item: bytes = b""


# In the process of the job ----------------------------------------------------------------------------


class ProcessAttempts:
    """Prepares attempts for other processes."""

    def __init__(self, step: Any, engine: Engine, unpack: str, bound: tuple[Any, ...]) -> None:
        self._unpack, self._bound = unpack, bound
        self._attempt = RemoteAttempt("", *step_address(step), step.name, _pack_store(engine), ())
        # An executor may run the attempt in this process after all; it then uses the engine that is open.
        _local_engines[self._attempt.store] = engine

    def prepare_call(self, item: MapItem, notes: LiveItemNotes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the call that runs an attempt of an item; refuse an item that cannot be pickled."""
        try:
            packed = pickle.dumps((self._bound, self._unpack, item.value))
        except Exception as error:
            raise UsageError(
                f"item {item.number} cannot be sent to another process: {type(error).__name__}: {error}"
            ) from error
        return run_remote_attempt, (self._pack_attempt(notes.job_id, item.number, packed),)

    def prepare_check(self, job_id: str) -> tuple[Callable[..., str], tuple[Any, ...]]:
        """Return the call that checks whether attempts can run in the other process."""
        return check_attempts_possible, (self._pack_attempt(job_id, 0, b""),)

    def _pack_attempt(self, job_id: str, number: int, item: bytes) -> bytes:
        context = tuple(CONTEXT.get())
        attempt = self._attempt._replace(job_id=job_id, context=context, number=number, item=item)
        # A plain tuple needs no class of this module to be unpickled.
        return pickle.dumps(tuple(attempt))


class ThreadAttempts:
    """Prepares attempts for a thread pool of this process, without pickling."""

    def __init__(self, attempt: Callable[[MapItem, LiveItemNotes], Any], is_async: bool) -> None:
        self._start_attempt, self._is_async = attempt, is_async

    def prepare_call(self, item: MapItem, notes: LiveItemNotes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return the call that runs an attempt of an item in the context of the lane."""
        return copy_context().run, (self._run_attempt, item, notes)

    def prepare_check(self, job_id: str) -> None:
        """Return None: threads of this process need no check."""

    def _run_attempt(self, item: MapItem, notes: LiveItemNotes) -> LocalError | None:
        try:
            _finish_attempt(self._start_attempt(item, notes), self._is_async)
        except BaseException as error:  # noqa: BLE001 - the lane raises it
            return LocalError(error)
        return None


def _finish_attempt(attempt: Any, is_async: bool) -> None:
    """Run an async attempt in its own event loop; a plain attempt is finished already."""
    if is_async:
        import asyncio

        asyncio.run(attempt)


def step_address(step: Any) -> tuple[str, str]:
    """Return the module and the qualified name of a step; refuse one that cannot be imported."""
    module, name = step.__module__, step.__qualname__
    if module in ("__main__", "__mp_main__"):
        reason = "it is defined in the program itself (__main__); move it into a module, and import it"
    elif "<" in name:
        reason = "it is defined inside a function; put it at the top of a module"
    else:
        value = find_attribute(sys.modules.get(module), name)
        # Compare the functions: a step bound to an instance is another object around the same function.
        if getattr(value, "__wrapped__", None) is step.__wrapped__:
            return module, name
        reason = f"{module}:{name} is something else ({value!r:.60}); a step must be found under its own name"
    raise UsageError(f"{step.name} cannot be found from another process: {reason}")


def _pack_store(engine: Engine) -> bytes:
    """Return the pickled URL and settings of an engine; refuse one that another process cannot open."""
    if engine.open_arguments is None:
        raise UsageError(
            f"{engine!r} cannot be reached from another process; take oncemore.open('sqlite:///…') or "
            "oncemore.open('postgresql://…'), or threads (ThreadPoolExecutor)"
        )
    if engine.artifact_store.is_configured and not engine.artifact_store.backend.is_shared:
        raise UsageError(f"{engine!r} keeps artifacts in this process's memory; give it a folder for them")
    url, settings = engine.open_arguments
    for name, value in settings.items():
        # Each setting is pickled alone first, so that the error can name it.
        try:
            pickle.dumps(value)
        except Exception as error:
            raise UsageError(
                f"the engine's {name} cannot be sent to another process ({type(error).__name__}: {error}); "
                "use functions and classes defined at the top of a module"
            ) from error
    return pickle.dumps((url, settings))


# In the other process ---------------------------------------------------------------------------------


class RemoteItemNotes(ItemNotes):
    """Notes of an attempt that collect its failures, to send them back to the job."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[tuple[dict[str, Any], tuple[Any, ...]]] = []

    def record_failure(self, error: dict[str, Any], failure: Failure) -> None:
        """Note a failed attempt; the process of the job counts it."""
        super().record_failure(error, failure)
        self.failures.append((error, tuple(failure)))


class AttemptNotRunnable(Exception):
    """Attempts of this job cannot run in this process; the message says why."""


def check_attempts_possible(packed: bytes) -> str:
    """Return the reason why attempts of a job cannot run in this process, or ""."""
    try:
        _load_step(_unpack_attempt(packed))
    except (AttemptNotRunnable, StoreError) as error:
        return str(error)
    return ""


def run_remote_attempt(packed: bytes) -> tuple[Any, ...]:
    """Run one attempt, and return the fields of a `RemoteReply`; never raise."""
    notes = RemoteItemNotes()
    try:
        attempt = _unpack_attempt(packed)
        step, engine = _load_step(attempt)
        bound, unpack, value = _unpack_item(attempt)
        CONTEXT.set(CallContext(*attempt.context))
        with use_engine(engine):
            _finish_attempt(
                run_remote_item(step, engine, bound, unpack, MapItem(attempt.number, "", value), notes),
                known_step(step).is_async,
            )
    except BaseException as error:  # noqa: BLE001 - the reply carries it as text
        return encode_reply(_build_error_reply(error, notes))
    return encode_reply(RemoteReply(notes.build_result(), notes.resource, tuple(notes.failures)))


def _build_error_reply(error: BaseException, notes: RemoteItemNotes) -> RemoteReply:
    result = build_error_result(error, notes)
    held_until = error.until if isinstance(error, InProgress) else 0.0
    fault = ""
    if isinstance(error, StoreError):
        fault = "store"
    elif isinstance(error, AttemptNotRunnable):
        fault = "unusable"
    # The lane raises these again, so that the job stops as if it had been interrupted itself.
    elif not isinstance(error, Exception):
        fault = "KeyboardInterrupt" if isinstance(error, KeyboardInterrupt) else "SystemExit"
    if fault:
        # A fault says nothing about the item itself, which stays due.
        result = result._replace(outcome="deferred")
    return RemoteReply(result, notes.resource, tuple(notes.failures), held_until, fault)


def _unpack_attempt(packed: bytes) -> RemoteAttempt:
    return RemoteAttempt(*pickle.loads(packed))  # noqa: S301 - from the job, by its own executor


def _unpack_item(attempt: RemoteAttempt) -> tuple[Any, ...]:
    try:
        return pickle.loads(attempt.item)  # type: ignore[no-any-return] # noqa: S301 - the same
    except Exception as error:
        raise UsageError(
            f"item {attempt.number} cannot be read in the other process: {type(error).__name__}: {error}"
        ) from error


def _load_step(attempt: RemoteAttempt) -> tuple[Any, Engine]:
    """Return the step and the engine of an attempt; raise `AttemptNotRunnable` if one is missing."""
    where = f"{attempt.module}:{attempt.name}"
    try:
        step = find_attribute(import_module(attempt.module), attempt.name)
    except Exception as error:
        raise AttemptNotRunnable(
            f"{where} cannot be imported where the executor runs it: {type(error).__name__}: {error}; "
            "install the same code there, or start its workers where it can be imported"
        ) from error
    if not isinstance(step, StepCalls) or step.name != attempt.step:
        raise AttemptNotRunnable(
            f"{where} is not the step {attempt.step!r} where the executor runs it: {step!r:.60}"
        )
    try:
        engine = _get_engine(attempt.store)
        _check_same_store(engine, attempt.job_id)
    except (UsageError, ImportError) as error:
        raise AttemptNotRunnable(
            f"the store cannot be used where the executor runs {where}: {error}"
        ) from error
    return step, engine


_local_engines: WeakValueDictionary[bytes, Engine] = WeakValueDictionary()
_opened_engines: dict[bytes, Engine] = {}
_known_jobs: dict[tuple[str, str], None] = {}
_lock = threading.Lock()


def _get_engine(store: bytes) -> Engine:
    """Return the engine of a store, which all attempts in this process share."""
    engine = _local_engines.get(store) or _opened_engines.get(store)
    if engine is None:
        with _lock:
            engine = _opened_engines.get(store)
            if engine is None:
                url, settings = pickle.loads(store)  # noqa: S301 - from the job, by its own executor
                # Opening a missing file would create an empty store, which knows nothing of work done.
                path = url.removeprefix(SQLITE)
                if path != url and not Path(path).exists():
                    raise UsageError(f"there is no {path}; a SQLite store is for one machine")
                engine = _opened_engines[store] = open_engine.open(url, **settings)
                _close_at_exit(engine)
    return engine


def _close_at_exit(engine: Engine) -> None:
    """Close an engine, and so release its leases, when a process of a pool ends."""
    # A multiprocessing child ends with os._exit, which skips atexit handlers but not its finalizers.
    processes = sys.modules.get("multiprocessing")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, engine.close, exitpriority=100)


def _check_same_store(engine: Engine, job_id: str) -> None:
    """Refuse a store that does not contain the job.

    A path or a host name may mean another store on another machine, and work in it would be done twice.
    """
    known = (engine.url, job_id)
    if known in _known_jobs:
        return
    if engine.store.load_head(f"job/{job_id}") is None:
        raise UsageError(f"{engine.url} is another store there than here: it does not know the job {job_id}")
    with _lock:
        _known_jobs[known] = None
        while len(_known_jobs) > MAX_KNOWN_JOBS:
            del _known_jobs[next(iter(_known_jobs))]
