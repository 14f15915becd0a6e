"""Group commit: the caller that finds the turn free commits the batches of all waiting callers.

A lone caller commits at once, in its own thread. Callers that arrive during a commit queue. At its end the
turn passes to the first of them, and that one commits the whole queue. So a commit carries as many batches
as there are callers, without a timer, and no caller works for longer than one commit.

While a commit waits for the disk, other threads should work. So the callers of the previous commit are woken
just before the next one waits for the disk (`wake_committed`), or at once if the queue is empty: they prepare
their next batches during the write, and queue again. If all of them came back at the same time, no thread
would work during the next write. So, if their work takes longer than a commit (but less than `MAX_WORK_RATIO`
times as long, because then the disk hardly matters), only half of them are stored first, and from then on two
groups alternate between disk and processor. After a commit without a queue the next one waits a moment for
callers that are about to come back (at most 0.3 of a commit, 5 ms).

Tasks do not block their event loop, asyncio's or trio's: one writer thread, started when it is first needed,
takes the turn for them, and wakes each loop once per commit.

`InterruptShield` delays a Ctrl-C while the store works or a thread starts: `Thread.start` waits in Python's
own locks, and a Ctrl-C there raises "release unlocked lock".
"""

from __future__ import annotations

import threading
import time

# The module behind `signal`, without its enums: a tenth of the cost of each call.
from _signal import getsignal, signal  # type: ignore[import-not-found]
from _thread import allocate_lock, get_ident
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from oncemore._platform import run_after_fork
from oncemore.errors import StoreError, UsageError
from oncemore.log.waiters import wait_in_task, wake_waiters

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable, Generator

    from oncemore.log.store import Batch, Conflict, Stored
    from oncemore.log.waiters import CallSoon, Wake


#: Share of the duration of a commit that the next one waits for callers to come back.
WAIT_SHARE = 0.3
#: Limit of that wait, in seconds.
MAX_WAIT_S = 0.005
#: Up to this ratio of work to commit duration, callers are split into two groups.
MAX_WORK_RATIO = 3
#: Limit of batches in one commit.
MAX_GROUP = 512
_SIGINT, _SIGTERM = 2, 15


class BatchExecutor(Protocol):
    """The part of a store that commits pending batches."""

    def wait_blocking(self, op: PendingBatch) -> None:
        """Block until a pending batch has its answer or its error."""

    async def wait_async(self, op: PendingBatch) -> None:
        """Wait for a pending batch in a task."""


class PendingBatch:
    """A batch that waits for its commit: the ticket that the caller holds.

    wake_lock     lock that a waiting thread blocks on; a thread that found the turn free needs none
    call_soon     schedules a call in the event loop of a waiting task; None: a thread waits
    wake          the function to call there
    leads         whether its thread has the turn
    is_abandoned  whether its caller no longer waits
    """

    # Class attributes are the defaults, because a lone caller sets none of them.
    wake_lock: LockType | None = None
    call_soon: CallSoon | None = None
    wake: Wake | None = None
    leads = is_abandoned = False

    answer: Stored | Conflict | None = None
    error: BaseException | None = None

    def __init__(self, combiner: BatchExecutor, batch: Batch) -> None:
        writes, guards, _, _, _ = batch
        # A lone write without a guard on its own entity cannot contradict itself.
        if len(writes) != 1 or (guards and writes[0].entity in guards):
            from oncemore.log.store import check_batch  # here: `InterruptShield` is also used without a log

            check_batch(batch)
        self._combiner, self.batch = combiner, batch

    def wait(self) -> Stored | Conflict:
        """Block until the batch is stored or refused; raise the error of its commit."""
        if self.answer is None and self.error is None:
            self._combiner.wait_blocking(self)
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

    def __await__(self) -> Generator[object, object, Stored | Conflict]:
        if self.answer is None and self.error is None:
            yield from self._combiner.wait_async(self).__await__()
        return self.wait()


class GroupCommit:
    """The queue of pending batches, and the turn to commit them.

    `transact` stores a list of batches and sets the answer of each.
    """

    def __init__(self, transact: Callable[[list[PendingBatch]], None]) -> None:
        self._transact = transact
        self._queue: deque[PendingBatch] = deque()
        self._turn = allocate_lock()
        # Locks used as signals: released to wake the writer thread, and a leader that waits for its group.
        self._thread_wake, self._group_ready = allocate_lock(), allocate_lock()
        self._thread_wake.acquire()
        self._group_ready.acquire()
        self._wanted_size = 0  # queue length that a leader waits for; 0: no leader waits
        self._last_size = 0  # number of batches in the last commit
        self._took = 0.0  # moving average of the duration of a commit
        self._woken_at = 0.0  # time at which the callers of the last commit were woken
        self._to_wake: list[PendingBatch] = []  # stored by the last commit, callers not woken yet
        self._thread: threading.Thread | None = None
        self._starting, self._promoting = allocate_lock(), allocate_lock()
        self._stopped = False

    def submit_batch(self, batch: Batch) -> PendingBatch:
        """Return the ticket of a batch; waiting for the ticket commits the batch."""
        if self._stopped:
            raise StoreError("the store is closed")
        return PendingBatch(self, batch)

    def wait_blocking(self, op: PendingBatch) -> None:
        """Commit in this thread if the turn is free; else wait until it is committed or gets the turn."""
        if self._turn.acquire(False):
            op.leads = True
            if not self._queue and self._last_size < 2:
                self._commit_alone(op)
                return
            self._queue.append(op)
        else:
            self._wait_in_queue(op)
        if op.leads:
            try:
                # More than once if the queue is longer than the limit of one commit.
                while op.answer is None and op.error is None:
                    self._commit_queued()
            except BaseException:
                op.is_abandoned = True
                raise
            finally:
                self._hand_over_turn()

    def take_turn(self) -> bool:
        """Take the turn for another use than a commit, if it is free; the caller must release it."""
        return self._turn.acquire(False)

    def release_turn(self) -> None:
        """Release the turn, or hand it to the first caller in the queue."""
        self._hand_over_turn()

    def wake_committed(self) -> None:
        """Wake the callers of the last commit; a store calls it before it waits for its disk."""
        if self._to_wake:
            committed, self._to_wake = self._to_wake, []
            self._woken_at = time.perf_counter()
            wake_waiters(committed)

    def _wait_in_queue(self, op: PendingBatch) -> None:
        """Wait for the commit or for the turn; an interrupted caller must not keep the turn."""
        op.wake_lock = allocate_lock()
        op.wake_lock.acquire()
        self._enqueue_batch(op)
        # The turn may have been released before the batch was in the queue, and then nothing wakes it.
        if self._turn.acquire(False):
            op.leads = True  # only in this branch: another leader may have set it meanwhile
            return
        try:
            op.wake_lock.acquire()
        except BaseException:
            # Under the lock, or another leader could hand the turn to this caller just now.
            with self._promoting:
                op.is_abandoned, has_turn = True, op.leads
            if has_turn:
                self._hand_over_turn()
            raise

    async def wait_async(self, op: PendingBatch) -> None:
        """Let the writer thread commit the batch; it is committed even if the task is cancelled."""
        await wait_in_task(op, self._serve_in_thread)

    def _serve_in_thread(self, op: PendingBatch) -> None:
        """Queue the batch of a task for the writer thread; start the thread if it does not run."""
        with self._starting:
            if self._stopped:
                raise StoreError("the store is closed")
            self._enqueue_batch(op)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_writer_thread, name="oncemore-writer", daemon=True
                )
                with InterruptShield():
                    self._thread.start()
        _release_lock(self._thread_wake)

    def stop_commits(self, then: Callable[[], object] = bool) -> None:
        """Refuse new batches, serve the waiting ones, and call `then` while no commit runs."""
        with self._starting:
            self._stopped = True
        # In a loop, because the thread may pass its check of `_stopped` just before it is set.
        while self._thread is not None and self._thread.is_alive():
            _release_lock(self._thread_wake)
            self._thread.join(0.01)
        self._turn.acquire()
        try:
            then()
        finally:
            self._hand_over_turn()

    def _enqueue_batch(self, op: PendingBatch) -> None:
        self._queue.append(op)
        if 0 < self._wanted_size <= len(self._queue):
            self._wanted_size = 0
            _release_lock(self._group_ready)

    def _commit_alone(self, op: PendingBatch) -> None:
        """Store a single batch, holding the turn: the shortest path."""
        try:
            self._transact([op])
        except Exception as error:  # noqa: BLE001 - the caller gets it
            op.error = error
        except BaseException:
            op.error = _interrupted()
            op.is_abandoned = True
            raise
        finally:
            self._hand_over_turn()

    def _commit_queued(self) -> None:
        """Store queued batches, holding the turn; each has its answer or its error afterwards."""
        ops = self._take_group()
        if not ops:
            return
        began = time.perf_counter()
        try:
            self._store_group(ops)
        except BaseException:
            for op in ops:
                op.error = _interrupted()
            raise
        finally:
            self.wake_committed()  # the store may have failed before it did so
            self._took += 0.2 * (time.perf_counter() - began - self._took)
            self._last_size, self._to_wake = len(ops), ops

    def _take_group(self) -> list[PendingBatch]:
        """Remove the batches of the next commit from the queue."""
        queue, last_size = self._queue, self._last_size
        if last_size > 1 and not self._to_wake and len(queue) < last_size:
            # Its callers were woken already, so they are about to come back: a moment saves a commit.
            self._wanted_size = last_size
            self._group_ready.acquire(True, min(WAIT_SHARE * self._took, MAX_WAIT_S))
            self._wanted_size = 0
            self._group_ready.acquire(False)
        waiting = len(queue)
        if waiting == last_size > 3 and not self._to_wake:
            worked = time.perf_counter() - self._woken_at
            # All came back together: store half now, so that the other half works during the next write.
            if self._took < worked < MAX_WORK_RATIO * self._took:
                waiting //= 2
        return [queue.popleft() for _ in range(min(waiting, MAX_GROUP))]

    def _store_group(self, ops: list[PendingBatch]) -> None:
        """Store batches together; after a `UsageError` one by one, so that only the invalid one fails."""
        try:
            self._transact(ops)
        except Exception as error:  # noqa: BLE001 - all callers of the commit get it
            for op in ops:
                if isinstance(error, UsageError) and len(ops) > 1:
                    self._store_group([op])
                else:
                    op.error = error

    def _hand_over_turn(self) -> None:
        """Hand the turn to the first waiting caller, or release it."""
        while True:
            if not self._queue:
                if self._to_wake:
                    self.wake_committed()
                self._turn.release()
                # Again after the release: a caller may have queued just before it.
                if not self._queue or not self._turn.acquire(False):
                    return
            with self._promoting:
                while self._queue and self._queue[0].is_abandoned:
                    self._queue.popleft()  # not stored, and no caller waits for it
                first = self._queue[0] if self._queue else None
                if first is not None and first.wake_lock is not None:
                    first.leads = True
                    first.wake_lock.release()
                    return
                if first is None:
                    self.wake_committed()
            self._turn.release()
            if first is not None:
                _release_lock(self._thread_wake)
                return
            if not self._queue or not self._turn.acquire(False):
                return

    def _run_writer_thread(self) -> None:
        """Commit for tasks until the store is closed; an error of one commit does not end the thread."""
        while self._queue or not self._stopped:
            self._thread_wake.acquire()
            if self._queue and self._turn.acquire(False):
                with suppress(BaseException):  # the callers of this commit have the error
                    self._commit_queued()
                self._hand_over_turn()


def _interrupted() -> StoreError:
    return StoreError("interrupted while storing; read the state again to learn what was stored")


def _release_lock(lock: LockType) -> None:
    """Release a lock that may be free; it usually is, and the check is cheaper than an exception."""
    if lock.locked():
        with suppress(RuntimeError):  # another thread has just released it
            lock.release()


class InterruptShield:
    """Context manager that delays the first Ctrl-C until its end, so that no lock remains locked.

    A second Ctrl-C is delivered at once; `twice` is True then. Only the main thread is ever interrupted.
    SIGTERM is delayed in the same way if a Python function handles it.

    was_interrupted  whether there was a first Ctrl-C, also before the shield
    """

    # Class attributes are the defaults, and there is no `__init__`: most shields see no signal and set none.
    was_interrupted = False
    twice = False
    _int: Any = None
    _term: Any = None
    _delayed_signal = 0

    def __enter__(self) -> None:
        if get_ident() == _main[0]:
            if callable(handler := getsignal(_SIGINT)):
                self._int = handler
                signal(_SIGINT, self._on_signal)
            if callable(handler := getsignal(_SIGTERM)):
                self._term = handler
                signal(_SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if not self.was_interrupted:
            self.was_interrupted, self._delayed_signal = True, number
            return
        self.twice, self._delayed_signal = True, 0
        self._restore_handler()
        self._deliver_signal(number)

    def _restore_handler(self) -> None:
        if self._int is not None:
            signal(_SIGINT, self._int)
        if self._term is not None:
            signal(_SIGTERM, self._term)

    def _deliver_signal(self, number: int) -> None:
        handler: Any = self._int if number == _SIGINT else self._term
        handler(number, None)

    def __exit__(self, *error: object) -> None:
        # Not through `_restore_handler`: every write passes here.
        if self._int is not None:
            signal(_SIGINT, self._int)
        if self._term is not None:
            signal(_SIGTERM, self._term)
        if self._delayed_signal:
            self._deliver_signal(self._delayed_signal)


def _find_main_thread() -> None:
    # The forking thread becomes the main thread of the child.
    _main[0] = threading.main_thread().ident or 0


_main = [0]
_find_main_thread()
run_after_fork(_find_main_thread)
