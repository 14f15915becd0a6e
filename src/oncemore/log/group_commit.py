"""Group commit: whoever finds the turn free commits for everybody that waits.

A lone caller commits at once, in its own thread. While it does, others queue; when it is done it hands
the turn to the first of them, who commits all that is queued by then. So a commit carries as many batches
as there are callers, without a timer, and nobody works for the others longer than one commit.

While the disk is waited for, others should work. So those whose batches are stored are told when the next
commit is about to wait for the disk (`tell`), or at once if nobody queues: while it is written they do
what comes next, and queue up again. When all came back together, nobody would be left to work meanwhile;
if their work takes longer than a commit (but not much: then the disk hardly matters), half of them are
stored first, and from then on two groups take turns with the disk and the processor. After a commit
behind which nobody queued, the next one waits a moment (at most 0.3 of a commit, 5 ms) for those who are
on their way back.

Tasks do not block their event loop, asyncio's or trio's: one writer thread, started when it is first
needed, takes the turn for them, and wakes each loop once per commit.
"""

from __future__ import annotations

import sys
import threading
import time
from _thread import allocate_lock
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from oncemore.errors import StoreError, UsageError
from oncemore.log.interrupt_shield import Shield

if TYPE_CHECKING:
    import asyncio
    from _thread import LockType
    from collections.abc import Callable, Generator

    from oncemore.log.store import Batch, Conflict, Stored

    Wake = Callable[[], object]
    Soon = Callable[[Callable[[list[Wake]], object], list[Wake]], object]

PATIENCE = 0.3
MUCH = 3
LONGEST_WAIT_S = 0.005
MOST = 512


class Serves(Protocol):
    """Whoever stores batches for others."""

    def wait(self, op: Op) -> None:
        """Block until an op has its answer or its error."""

    async def wait_in_loop(self, op: Op) -> None:
        """Wait for it in a task."""


class Op:
    """A batch on its way: the ticket that its caller holds.

    gate  what a waiting thread stands at; a thread that found the turn free needs none
    soon  how to have something called in the loop of a waiting task; None: a thread waits
    wake  what to call there
    lead  whether its thread has the turn
    gone  whether nobody waits for it any more
    """

    # What a lone caller never needs is the class's until somebody else comes.
    gate: LockType | None = None
    soon: Soon | None = None
    wake: Wake | None = None
    lead = gone = False

    def __init__(self, combiner: Serves, batch: Batch) -> None:
        self._combiner, self.batch = combiner, batch
        self.answer: Stored | Conflict | None = None
        self.error: BaseException | None = None

    def wait(self) -> Stored | Conflict:
        """Block until the batch is stored or refused."""
        if self.answer is None and self.error is None:
            self._combiner.wait(self)
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer

    def __await__(self) -> Generator[object, object, Stored | Conflict]:
        if self.answer is None and self.error is None:
            yield from self._combiner.wait_in_loop(self).__await__()
        return self.wait()


class Combiner:
    """The queue, the turn and who has it. `transact` stores batches and gives each op its answer."""

    def __init__(self, transact: Callable[[list[Op]], None]) -> None:
        self._transact = transact
        self._queue: deque[Op] = deque()
        self._turn = allocate_lock()
        self._bell, self._company = allocate_lock(), allocate_lock()
        self._bell.acquire()
        self._company.acquire()
        self._want = self._last = 0
        self._took = self._told = 0.0
        self._owed: list[Op] = []
        self._thread: threading.Thread | None = None
        self._starting, self._promoting = allocate_lock(), allocate_lock()
        self._stopped = False

    def submit(self, batch: Batch) -> Op:
        """Take a batch; waiting for its ticket is what gets it stored."""
        if self._stopped:
            raise StoreError("the store is closed")
        return Op(self, batch)

    def wait(self, op: Op) -> None:
        """Commit it in this thread if the turn is free; else wait until somebody has, or hands it over."""
        if self._turn.acquire(False):
            op.lead = True
            if not self._queue and self._last < 2:
                self._commit_alone(op)
                return
            self._queue.append(op)
        else:
            self._queue_up(op)
        if op.lead:
            try:
                while op.answer is None and op.error is None:  # the queue may be longer than one commit
                    self._commit()
            except BaseException:
                op.gone = True
                raise
            finally:
                self._pass_on()

    def take_turn(self) -> bool:
        """Have the turn for something else than a commit, if it is free; then it must be given back."""
        return self._turn.acquire(False)

    def give_turn(self) -> None:
        """Give it to whoever has come meanwhile."""
        self._pass_on()

    def tell(self) -> None:
        """Tell those whose batches the last commit stored; a store calls it before it waits for its disk."""
        if self._owed:
            owed, self._owed = self._owed, []
            self._told = time.perf_counter()
            release(owed)

    def _queue_up(self, op: Op) -> None:
        """Wait to be served or to be given the turn; one that is interrupted must not keep the turn."""
        op.gate = allocate_lock()
        op.gate.acquire()
        self._put(op)
        if self._turn.acquire(False):  # it was let go just before
            op.lead = True  # only in this branch: a leader may have set it meanwhile
            return
        try:
            op.gate.acquire()
        except BaseException:
            with self._promoting:
                op.gone, leads = True, op.lead
            if leads:
                self._pass_on()
            raise

    async def wait_in_loop(self, op: Op) -> None:
        """Let the writer thread commit it; a task that is cancelled meanwhile leaves it committed."""
        await asleep(op, self._serve_in_thread)

    def _serve_in_thread(self, op: Op) -> None:
        """Queue what a task waits for, for the writer thread, which lives by now."""
        with self._starting:
            if self._stopped:
                raise StoreError("the store is closed")
            self._put(op)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="oncemore-writer", daemon=True)
                with Shield():
                    self._thread.start()
        _open(self._bell)

    def stop(self, then: Callable[[], object] = bool) -> None:
        """Take nothing more, let those who wait be served, and do what comes then while nobody commits."""
        with self._starting:
            self._stopped = True
        while self._thread is not None and self._thread.is_alive():
            _open(self._bell)
            self._thread.join(0.01)
        self._turn.acquire()
        try:
            then()
        finally:
            self._pass_on()

    def _put(self, op: Op) -> None:
        self._queue.append(op)
        if 0 < self._want <= len(self._queue):
            self._want = 0
            _open(self._company)

    def _commit_alone(self, op: Op) -> None:
        """Store what nobody waits beside, holding the turn: the shortest way there is."""
        try:
            self._transact([op])
        except Exception as error:  # noqa: BLE001 - it is not told that it is stored
            op.error = error
        except BaseException:
            op.error = StoreError("interrupted while storing; what was stored must be read again")
            op.gone = True
            raise
        finally:
            self._pass_on()

    def _commit(self) -> None:
        """Store what is queued, holding the turn; every op of it has its answer or its error then."""
        ops = self._next()
        if not ops:
            return
        began = time.perf_counter()
        try:
            self._store(ops)
        except BaseException:
            _fail(ops, StoreError("interrupted while storing; what was stored must be read again"))
            raise
        finally:
            self.tell()  # it may have ended before it came to that
            self._took += 0.2 * (time.perf_counter() - began - self._took)
            self._last, self._owed = len(ops), ops

    def _next(self) -> list[Op]:
        """Take what the next commit carries off the queue."""
        queue, last = self._queue, self._last
        if last > 1 and not self._owed and len(queue) < last:
            self._want = last
            self._company.acquire(True, min(PATIENCE * self._took, LONGEST_WAIT_S))
            self._want = 0
            self._company.acquire(False)
        waiting = len(queue)
        if waiting == last > 3 and not self._owed:
            worked = time.perf_counter() - self._told
            if self._took < worked < MUCH * self._took:
                waiting //= 2
        return [queue.popleft() for _ in range(min(waiting, MOST))]

    def _store(self, ops: list[Op]) -> None:
        """Store them together; if one of them cannot be stored by anybody, the others do not suffer."""
        try:
            self._transact(ops)
        except UsageError as error:
            if len(ops) == 1:
                _fail(ops, error)
            else:
                for op in ops:
                    self._store([op])
        except Exception as error:  # noqa: BLE001 - nobody in it is told that it is stored
            _fail(ops, error)

    def _pass_on(self) -> None:
        """Hand the turn to the first that waits, or leave it free; look again after letting go."""
        while True:
            if not self._queue:
                if self._owed:
                    self.tell()
                self._turn.release()
                if not self._queue or not self._turn.acquire(False):
                    return
            with self._promoting:
                while self._queue and self._queue[0].gone:
                    self._queue.popleft()  # nobody was told anything, and nobody asks any more
                first = self._queue[0] if self._queue else None
                if first is not None and first.gate is not None:
                    first.lead = True
                    first.gate.release()
                    return
                if first is None:
                    self.tell()
            self._turn.release()
            if first is not None:
                _open(self._bell)
                return
            if not self._queue or not self._turn.acquire(False):
                return

    def _serve(self) -> None:
        """Commit for tasks until there are none and never will be; whatever happens, the next are served."""
        while self._queue or not self._stopped:
            self._bell.acquire()
            if self._queue and self._turn.acquire(False):
                with suppress(BaseException):  # all that waited for this commit were told
                    self._commit()
                self._pass_on()


async def asleep(op: Op, hand_over: Callable[[Op], object]) -> None:
    """Hand an op to another thread and wait in this task, of asyncio or trio, until it is told."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        event = trio.Event()
        op.soon, op.wake = trio.lowlevel.current_trio_token().run_sync_soon, event.set
        hand_over(op)
        await event.wait()
    else:
        loop = sys.modules["asyncio"].get_running_loop()  # those who block need no event loop
        future = loop.create_future()
        op.soon, op.wake = loop.call_soon_threadsafe, partial(_settle, future)
        hand_over(op)
        await future


def _fail(ops: list[Op], error: BaseException) -> None:
    for op in ops:
        op.error = error


def release(ops: list[Op]) -> None:
    """Wake everybody whose batch was in a commit: threads by their gate, loops once each."""
    loops: dict[Soon, list[Wake]] = {}
    for op in ops:
        if op.soon is not None and op.wake is not None:
            loops.setdefault(op.soon, []).append(op.wake)
        elif op.gate is not None and not op.lead:
            op.gate.release()
    for soon, wakes in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            soon(_wake_all, wakes)


def _wake_all(wakes: list[Wake]) -> None:
    for wake in wakes:
        wake()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _open(lock: LockType) -> None:
    """Release a lock that may be open already; most often it is, and asking is cheaper than failing."""
    if lock.locked():
        with suppress(RuntimeError):  # somebody else was quicker
            lock.release()
