"""ERRANDS: attempts of a job's items, made in another process than the job (`work.map(items, on=…)`).

What travels there is small, and says where things are rather than what they are: the step's address
(`package.module:name`), the store's address with the engine's settings, what the call carries (tenant,
correlation id, deadline, actor), and the item itself, pickled. The other process imports the step, opens the
store, once for all errands, and makes one attempt as `map` makes it; an async step gets an event loop of its
own. What comes back is in `workers.executors`.

Both sides must have the same store, or work would be done twice. So the job's own record is looked for there
before anything is done: a path or a host name may mean something else on another machine.

Pickle is the executors' way of sending things, between processes that run the same program for the same user;
nothing that is pickled is ever stored.
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
from oncemore.steps.context import CONTEXT, Context
from oncemore.steps.entered_engine import inside
from oncemore.workers.executors import Raised, Reply, sent
from oncemore.workers.item_result import Notes, came_of
from oncemore.workers.map_items import Item

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine
    from oncemore.workers.map import Met

#: How many jobs a process remembers to have found in its store.
MOST_FOUND = 256


class Errand(NamedTuple):
    """One attempt of an item, on its way.

    store    the engine's address and settings, pickled
    context  tenant, correlation id, deadline, actor, trace id
    item     the objects that a method is bound to, what the item is ("argument", "args", "kwargs") and the
             item, pickled
    """

    job_id: str
    module: str
    name: str
    step: str
    store: bytes
    context: tuple[Any, ...]
    number: int = 0
    item: bytes = b""


# Here -----------------------------------------------------------------------------------------------


class Posted:
    """Attempts that travel to other processes."""

    def __init__(self, step: Any, engine: Engine, each: str, bound: tuple[Any, ...]) -> None:
        self._each, self._bound = each, bound
        self._errand = Errand("", *address_of(step), step.name, _store_of(engine), ())
        _here[self._errand.store] = engine  # for executors that stay in this process after all

    def call(self, item: Item, met: Met) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what makes an attempt of an item; one that cannot be pickled is refused."""
        try:
            packed = pickle.dumps((self._bound, self._each, item.given))
        except Exception as fault:
            raise UsageError(
                f"item {item.number} cannot be sent to another process: {type(fault).__name__}: {fault}"
            ) from fault
        return run, (self._packed(met.job_id, item.number, packed),)

    def hello(self, job_id: str) -> tuple[Callable[..., str], tuple[Any, ...]]:
        """Return what says why attempts cannot be made there."""
        return hello, (self._packed(job_id, 0, b""),)

    def _packed(self, job_id: str, number: int, item: bytes) -> bytes:
        context = tuple(CONTEXT.get())
        errand = self._errand._replace(job_id=job_id, context=context, number=number, item=item)
        return pickle.dumps(tuple(errand))


class Lent:
    """Attempts in threads of this process that somebody lends: nothing travels."""

    def __init__(self, attempt: Callable[[Item, Met], Any], awaits: bool) -> None:
        self._attempt, self._awaits = attempt, awaits

    def call(self, item: Item, met: Met) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what makes an attempt of an item, in the context of whoever asks for it."""
        return copy_context().run, (self._made, item, met)

    def hello(self, job_id: str) -> None:
        """Ask nothing: it is the same process."""

    def _made(self, item: Item, met: Met) -> Raised | None:
        try:
            _done(self._attempt(item, met), self._awaits)
        except BaseException as error:  # noqa: BLE001 - it is raised in the lane
            return Raised(error)
        return None


def _done(made: Any, awaits: bool) -> None:
    """Have an async attempt an event loop of its own; a plain one has been made by now."""
    if awaits:
        import asyncio

        asyncio.run(made)


def address_of(step: Any) -> tuple[str, str]:
    """Return where another process finds a step: its module, and its name there; or refuse."""
    module, name = step.__module__, step.__qualname__
    if module in ("__main__", "__mp_main__"):
        why = "it is defined in the program itself (__main__); put it into a module, and import it from there"
    elif "<" in name:
        why = "it is defined inside a function; put it at the top of a module"
    else:
        found = _named(sys.modules.get(module), name)
        if getattr(found, "__wrapped__", None) is step.__wrapped__:
            return module, name
        why = f"{module}:{name} is something else ({found!r:.60}); a step must be found under its own name"
    raise UsageError(f"{step.name} cannot be found from another process: {why}")


def _named(module: Any, name: str) -> Any:
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _store_of(engine: Engine) -> bytes:
    """Return what opens the engine's store in another process; or refuse."""
    if engine.opened is None:
        raise UsageError(
            f"{engine!r} cannot be reached from another process; take oncemore.open('sqlite:///…') or "
            "oncemore.open('postgresql://…'), or threads (ThreadPoolExecutor)"
        )
    if engine.shelf.there and not engine.shelf.place.shared:
        raise UsageError(f"{engine!r} keeps artifacts in this process's memory; give it a folder for them")
    url, told = engine.opened
    for name, value in told.items():
        try:
            pickle.dumps(value)
        except Exception as fault:
            raise UsageError(
                f"the engine's {name} cannot be sent to another process ({type(fault).__name__}: {fault}); "
                "make it of what a module has at its top"
            ) from fault
    return pickle.dumps((url, told))


# There ----------------------------------------------------------------------------------------------


class Kept(Notes):
    """What an attempt meets there, kept to be sent back."""

    def __init__(self) -> None:
        super().__init__()
        self.met: list[tuple[dict[str, Any], tuple[Any, ...]]] = []

    def told(self, error: dict[str, Any], failure: Failure) -> None:
        """Note a failed attempt; it is counted where the job is."""
        super().told(error, failure)
        self.met.append((error, tuple(failure)))


class Unusable(Exception):
    """No errand of this job can be run here; the message says why."""


def hello(packed: bytes) -> str:
    """Return why errands of a job cannot be run here, or nothing if they can."""
    try:
        _found(_errand_of(packed))
    except (Unusable, StoreError) as why:
        return str(why)
    return ""


def run(packed: bytes) -> tuple[Any, ...]:
    """Make one attempt, and return what it came to, as the fields of a `Reply`; nothing is ever raised."""
    notes = Kept()
    try:
        errand = _errand_of(packed)
        step, engine = _found(errand)
        bound, each, given = _item_of(errand)
        CONTEXT.set(Context(*errand.context))
        with inside(engine):
            _done(step.errand(engine, bound, each, Item(errand.number, "", given), notes), step.hand.awaits)
    except BaseException as error:  # noqa: BLE001 - what it says travels in words
        return sent(_reply(error, notes))
    return sent(Reply(notes.done(), notes.resource, tuple(notes.met)))


def _reply(error: BaseException, notes: Kept) -> Reply:
    came = came_of(error, notes)
    held = error.until if isinstance(error, InProgress) else 0.0
    fault = ""
    if isinstance(error, StoreError):
        fault = "store"
    elif isinstance(error, Unusable):
        fault = "unusable"
    elif not isinstance(error, Exception):
        fault = "KeyboardInterrupt" if isinstance(error, KeyboardInterrupt) else "SystemExit"
    if fault:
        came = came._replace(word="later")
    return Reply(came, notes.resource, tuple(notes.met), held, fault)


def _errand_of(packed: bytes) -> Errand:
    return Errand(*pickle.loads(packed))  # noqa: S301 - from the job, by its own executor


def _item_of(errand: Errand) -> tuple[Any, ...]:
    try:
        return pickle.loads(errand.item)  # type: ignore[no-any-return] # noqa: S301 - the same
    except Exception as fault:
        raise UsageError(
            f"item {errand.number} cannot be read in the other process: {type(fault).__name__}: {fault}"
        ) from fault


def _found(errand: Errand) -> tuple[Any, Engine]:
    """Return the step and the engine of an errand, or say why there is none."""
    where = f"{errand.module}:{errand.name}"
    try:
        step = _named(import_module(errand.module), errand.name)
    except Exception as fault:
        raise Unusable(
            f"{where} cannot be imported where the executor runs it: {type(fault).__name__}: {fault}; "
            "install the same code there, or start its workers where it can be imported"
        ) from fault
    if getattr(step, "errand", None) is None or step.name != errand.step:
        raise Unusable(f"{where} is no step {errand.step!r} where the executor runs it: {step!r:.60}")
    try:
        engine = _engine_of(errand.store)
        _check_same(engine, errand.job_id)
    except (UsageError, ImportError) as fault:
        raise Unusable(f"the store cannot be used where the executor runs {where}: {fault}") from fault
    return step, engine


_here: WeakValueDictionary[bytes, Engine] = WeakValueDictionary()
_opened: dict[bytes, Engine] = {}
_jobs: dict[tuple[str, str], None] = {}
_lock = threading.Lock()


def _engine_of(store: bytes) -> Engine:
    """Return the engine on a store, one for all errands of this process."""
    engine = _here.get(store) or _opened.get(store)
    if engine is None:
        with _lock:
            engine = _opened.get(store)
            if engine is None:
                url, told = pickle.loads(store)  # noqa: S301 - from the job, by its own executor
                path = url.removeprefix(SQLITE)
                if path != url and not Path(path).exists():
                    raise UsageError(f"there is no {path}; a SQLite store is for one machine")
                engine = _opened[store] = open_engine.open(url, **told)
                _close_at_the_end(engine)
    return engine


def _close_at_the_end(engine: Engine) -> None:
    """Give leases back when a process of a pool ends: it ends without what a program does at its exit."""
    processes = sys.modules.get("multiprocessing")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, engine.close, exitpriority=100)


def _check_same(engine: Engine, job_id: str) -> None:
    """Refuse a store that does not have the job: it is another one under the same address."""
    known = (engine.url, job_id)
    if known in _jobs:
        return
    if engine.store.head(f"job/{job_id}") is None:
        raise UsageError(f"{engine.url} is another store there than here: it does not know the job {job_id}")
    with _lock:
        _jobs[known] = None
        while len(_jobs) > MOST_FOUND:
            del _jobs[next(iter(_jobs))]
