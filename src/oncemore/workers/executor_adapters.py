"""Other people's executors as places where a job's attempts are made: `work.map(items, on=…)`.

    concurrent.futures   its executors, and whatever else is a `concurrent.futures.Executor`
    Dask                 a `distributed.Client`
    Ray                  the module `ray`, or what `ray.init()` returned

None of them is imported here: who has one has imported it. What every place is asked for is in
`workers.executors`.

**A process pool does not survive the death of one of its processes**: all of its calls fail, those of the
dead process and those of its neighbours, and it takes no more. The rest of the job then has a pool like it,
with one process less; in the place of that one, what was lost is sent again one at a time, alone in a
process, so that an item that kills whoever runs it spends its own attempts and nobody else's, and so that
there are never more calls at once than before.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from types import ModuleType
from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

#: What another pool like a given one is made of: its arguments, by the names that it keeps them under.
_LIKE = ("mp_context", "initializer", "initargs", "max_tasks_per_child")


def place_of(on: Any) -> Pool:
    """Return the place that a user means by an executor; refuse what is none."""
    kind = type(on)
    if isinstance(on, ProcessPoolExecutor):
        return Processes(on)
    if isinstance(on, ThreadPoolExecutor) and not _of(kind, "concurrent.futures.interpreter"):
        return Threads(on)
    if isinstance(on, Executor):
        return Pool(on)
    if _of(kind, "distributed") and hasattr(on, "get_executor"):
        return Pool(on.get_executor(pure=False), "Dask")
    if (on.__name__ == "ray" if isinstance(on, ModuleType) else _of(kind, "ray")) and "ray" in sys.modules:
        return RayTasks(sys.modules["ray"])
    raise UsageError(
        f"on is {on!r:.80}; it takes an executor of concurrent.futures, a Dask Client, or the module ray"
    )


def _of(kind: type, package: str) -> bool:
    """Whether a class, or one that it is made from, comes from a package."""
    return any(f"{one.__module__}.".startswith(f"{package}.") for one in kind.__mro__)


class Pool:
    """Any executor that looks after its own workers.

    here      whether it calls in this very process, so that nothing has to travel
    locks     whether each of its workers has file locks of its own: processes do, interpreters do not
    """

    here = False

    def __init__(self, executor: Executor, name: str = "") -> None:
        self.name = name or type(executor).__name__
        self.locks = not _of(type(executor), "concurrent.futures.interpreter")
        self._executor = executor
        self.most: int | None = vars(executor).get("_max_workers")

    def turn(self) -> bool:
        """Let lost items go whenever they like."""
        return True

    def done(self) -> None:
        """Keep nobody waiting."""

    def send(self, work: Callable[..., Any], told: tuple[Any, ...], *, again: bool) -> Future[Any]:
        """Have a call made."""
        return self._executor.submit(work, *told)

    def lost(self, future: Future[Any] | None, error: BaseException) -> None:
        """Leave it to the executor to get over it."""

    def close(self) -> None:
        """Leave the executor to whoever made it."""


class Threads(Pool):
    """Threads of this process."""

    here = True


class Processes(Pool):
    """A process pool, and others like it once it is broken."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        super().__init__(executor)
        assert self.most is not None
        self._size = self.most
        self._first = executor
        self._alone: Executor | None = None
        self._made: list[Executor] = []
        self._sent: dict[Future[Any], Executor] = {}
        self._lock, self._turn = threading.Lock(), threading.Lock()

    def turn(self) -> bool:
        """Whether no other lost item is on its way; where the pool is one process, nobody else ever is."""
        return self._size == 1 or self._turn.acquire(blocking=False)

    def done(self) -> None:
        """Let the next lost item go."""
        if self._size > 1:
            self._turn.release()

    def send(self, work: Callable[..., Any], told: tuple[Any, ...], *, again: bool) -> Future[Any]:
        """Have a call made: in the pool, or alone where one like it was lost."""
        with self._lock:
            pool = self._executor
            if again and self._size > 1:
                pool = self._alone = self._alone or self._another(1)
        try:
            future = pool.submit(work, *told)
            if why := vars(pool)["_broken"]:  # while this was submitted: Python 3.11 may never answer
                raise BrokenProcessPool(why)
        except BrokenExecutor:
            self._replace(pool)
            raise
        self._sent[future] = pool
        future.add_done_callback(lambda one: one.exception() is None and self._sent.pop(one, None))
        return future

    def lost(self, future: Future[Any] | None, error: BaseException) -> None:
        """Have another pool if this one is broken; its calls are all lost, and only the first one tells."""
        pool = None if future is None else self._sent.pop(future, None)
        if pool is not None and isinstance(error, BrokenExecutor):
            self._replace(pool)

    def _replace(self, pool: Executor) -> None:
        """Have another pool in the place of a broken one.

        Python 3.11 leaves a process that was being started while its pool broke, and whoever shuts the pool
        down then waits for it without end; so nothing of it is left.
        """
        for process in list((vars(pool)["_processes"] or {}).values()):
            process.terminate()
        with self._lock:
            if pool is self._alone:
                self._alone = None
            elif pool is self._executor:
                self._executor = self._another(max(1, self._size - 1))

    def _another(self, count: int) -> Executor:
        made = ProcessPoolExecutor(count, **{word: vars(self._first)[f"_{word}"] for word in _LIKE})
        self._made.append(made)
        return made

    def close(self) -> None:
        """End the pools that were made here; the first is whose it was."""
        for pool in self._made:
            pool.shutdown(wait=False, cancel_futures=True)


class RayTasks(Pool):
    """Tasks of a Ray cluster, each sent once: what is lost is sent again from here, where it is counted."""

    def __init__(self, ray: Any) -> None:
        self.name, self.locks, self.most = "Ray", True, None
        self._ray = ray
        self._tasks: dict[Callable[..., Any], Any] = {}
        self._under_way: dict[Future[Any], Any] = {}

    def send(self, work: Callable[..., Any], told: tuple[Any, ...], *, again: bool) -> Future[Any]:
        """Have a task done; what it returns is kept for as long as somebody waits for it."""
        if work not in self._tasks:
            self._tasks[work] = self._ray.remote(work).options(max_retries=0)
        ref = self._tasks[work].remote(*told)
        future: Future[Any] = ref.future()
        self._under_way[future] = ref
        future.add_done_callback(lambda one: self._under_way.pop(one, None))
        return future

    def close(self) -> None:
        """Cancel what nobody waits for any more."""
        for ref in list(self._under_way.values()):
            self._ray.cancel(ref)
