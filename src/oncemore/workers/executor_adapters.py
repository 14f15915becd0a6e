"""Adapters that let `work.map(items, on=…)` use an executor of the caller.

Supported are any `concurrent.futures.Executor`, a Dask `Client`, and Ray (the module or the result of
`ray.init()`). No adapter imports Dask or Ray: a caller that passes one has imported it already.
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

#: The arguments of a `ProcessPoolExecutor` that its replacement copies; the pool keeps each under `_NAME`.
_POOL_ARGUMENTS = ("mp_context", "initializer", "initargs", "max_tasks_per_child")


def adapt_executor(executor: Any) -> ExecutorAdapter:
    """Return the adapter for an executor; raise `UsageError` for any other object."""
    kind = type(executor)
    if isinstance(executor, ProcessPoolExecutor):
        return ProcessAdapter(executor)
    # An interpreter pool is a ThreadPoolExecutor too, but its workers share no objects with this process.
    if isinstance(executor, ThreadPoolExecutor) and not _is_from_package(
        kind, "concurrent.futures.interpreter"
    ):
        return ThreadAdapter(executor)
    if isinstance(executor, Executor):
        return ExecutorAdapter(executor)
    if _is_from_package(kind, "distributed") and hasattr(executor, "get_executor"):
        # With pure=True, Dask would answer a second attempt from its cache of the first.
        return ExecutorAdapter(executor.get_executor(pure=False), "Dask")
    if (
        executor.__name__ == "ray" if isinstance(executor, ModuleType) else _is_from_package(kind, "ray")
    ) and "ray" in sys.modules:
        return RayAdapter(sys.modules["ray"])
    raise UsageError(
        f"executor is {executor!r:.80}; it takes an executor of concurrent.futures, a Dask Client, or the "
        "module ray"
    )


def _is_from_package(kind: type, package: str) -> bool:
    """Return whether a class or one of its base classes is defined in a package."""
    return any(f"{base.__module__}.".startswith(f"{package}.") for base in kind.__mro__)


class ExecutorAdapter:
    """Adapter for an executor that replaces dead workers itself; the base of all adapters.

    name           its name in messages
    max_calls      how many calls it runs at once; None if it does not say
    is_local       its calls run in this process, so that arguments are not pickled
    has_own_locks  each of its workers holds its own file locks: processes do, interpreters do not
    """

    is_local = False

    def __init__(self, executor: Executor, name: str = "") -> None:
        self.name = name or type(executor).__name__
        self.has_own_locks = not _is_from_package(type(executor), "concurrent.futures.interpreter")
        self._executor = executor
        self.max_calls: int | None = vars(executor).get("_max_workers")

    def try_take_turn(self) -> bool:
        """Return whether a lost item may be sent now, here at any time; if so, `release_turn` must follow."""
        return True

    def release_turn(self) -> None:
        """Do nothing: lost items do not take turns here."""

    def submit_call(
        self, work: Callable[..., Any], arguments: tuple[Any, ...], *, is_retry: bool
    ) -> Future[Any]:
        """Submit a call to the executor; `is_retry` if it was lost before."""
        return self._executor.submit(work, *arguments)

    def handle_lost_call(self, future: Future[Any] | None, error: BaseException) -> None:
        """Do nothing: the executor replaces its workers itself."""

    def close(self) -> None:
        """Do nothing: the caller owns the executor and shuts it down."""


class ThreadAdapter(ExecutorAdapter):
    """Adapter for a thread pool of this process."""

    is_local = True


class ProcessAdapter(ExecutorAdapter):
    """Adapter for a process pool, with replacement pools once it is broken.

    A `ProcessPoolExecutor` fails all of its calls when one of its processes dies, and accepts no more. The
    adapter then creates a copy with one process less, and a pool with a single process for the lost items.
    These run there one at a time, so that an item that kills its process spends only its own attempts, and
    the number of parallel calls never exceeds the size of the original pool.
    """

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        super().__init__(executor)
        assert self.max_calls is not None
        self._size = self.max_calls
        self._original = executor
        self._single_pool: Executor | None = None
        self._own_pools: list[Executor] = []
        self._pool_by_future: dict[Future[Any], Executor] = {}
        self._lock, self._turn_lock = threading.Lock(), threading.Lock()

    def try_take_turn(self) -> bool:
        """Return whether a lost item may be sent now, because no other one is being repeated."""
        # A pool of one process repeats one item at a time anyway.
        return self._size == 1 or self._turn_lock.acquire(blocking=False)

    def release_turn(self) -> None:
        """Allow the next lost item to be sent."""
        if self._size > 1:
            self._turn_lock.release()

    def submit_call(
        self, work: Callable[..., Any], arguments: tuple[Any, ...], *, is_retry: bool
    ) -> Future[Any]:
        """Submit a call to the pool, or to the single-process pool if it was lost before."""
        with self._lock:
            pool = self._executor
            if is_retry and self._size > 1:
                pool = self._single_pool = self._single_pool or self._make_pool(1)
        try:
            future = pool.submit(work, *arguments)
            # If the pool broke during the submit, Python 3.11 may never complete the future.
            if reason := vars(pool)["_broken"]:
                raise BrokenProcessPool(reason)
        except BrokenExecutor:
            self._replace_pool(pool)
            raise
        # A failed future stays in the table: handle_lost_call needs it to find the pool that broke.
        self._pool_by_future[future] = pool
        future.add_done_callback(
            lambda done: done.exception() is None and self._pool_by_future.pop(done, None)
        )
        return future

    def handle_lost_call(self, future: Future[Any] | None, error: BaseException) -> None:
        """Replace the pool of a lost call if that pool is broken.

        All calls of a broken pool are lost; the first report replaces the pool, the later ones do nothing.
        """
        pool = None if future is None else self._pool_by_future.pop(future, None)
        if pool is not None and isinstance(error, BrokenExecutor):
            self._replace_pool(pool)

    def _replace_pool(self, pool: Executor) -> None:
        """Terminate the processes of a broken pool, and create its replacement."""
        # Python 3.11 forgets a process that was starting while the pool broke, and a later shutdown of the
        # pool would wait for that process without end.
        for process in list((vars(pool)["_processes"] or {}).values()):
            process.terminate()
        with self._lock:
            if pool is self._single_pool:
                self._single_pool = None
            elif pool is self._executor:
                self._executor = self._make_pool(max(1, self._size - 1))

    def _make_pool(self, count: int) -> Executor:
        pool = ProcessPoolExecutor(
            count, **{name: vars(self._original)[f"_{name}"] for name in _POOL_ARGUMENTS}
        )
        self._own_pools.append(pool)
        return pool

    def close(self) -> None:
        """Shut down the replacement pools; the original pool belongs to the caller."""
        for pool in self._own_pools:
            pool.shutdown(wait=False, cancel_futures=True)


class RayAdapter(ExecutorAdapter):
    """Adapter for a Ray cluster."""

    def __init__(self, ray: Any) -> None:
        self.name, self.has_own_locks, self.max_calls = "Ray", True, None
        self._ray = ray
        self._tasks: dict[Callable[..., Any], Any] = {}
        self._pending: dict[Future[Any], Any] = {}

    def submit_call(
        self, work: Callable[..., Any], arguments: tuple[Any, ...], *, is_retry: bool
    ) -> Future[Any]:
        """Submit a Ray task, and keep its reference until the future is done."""
        if work not in self._tasks:
            # Ray must not repeat a lost task itself: the job repeats it, and counts the attempt.
            self._tasks[work] = self._ray.remote(work).options(max_retries=0)
        ref = self._tasks[work].remote(*arguments)
        future: Future[Any] = ref.future()
        self._pending[future] = ref
        future.add_done_callback(lambda done: self._pending.pop(done, None))
        return future

    def close(self) -> None:
        """Cancel the tasks that have not finished."""
        for ref in list(self._pending.values()):
            self._ray.cancel(ref)
