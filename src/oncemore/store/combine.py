"""Group commit: whoever finds the turn free commits for everybody that waits.

A lone caller commits at once, in its own thread. While it does, others queue; when it is done it hands
the turn to the first of them, who commits all that is queued by then. So a commit carries as many batches
as there are callers, without a timer, and nobody works for the others longer than one commit. After a
commit that carried several, the next one waits a moment (at most 0.3 of a commit, 5 ms) for those who
are on their way back.

Tasks of an event loop do not block it: one writer thread, started when it is first needed, takes the
turn for them, and wakes each loop once per commit.
"""

from __future__ import annotations

import asyncio
import threading
import time
from _thread import allocate_lock
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from oncemore.errors import StoreError

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable, Generator

    from oncemore.store.base import Batch, Conflict, Stored

PATIENCE = 0.3
LONGEST_WAIT_S = 0.005
MOST = 512


class Op:
    """A batch on its way: the ticket that its caller holds."""

    __slots__ = ("_combiner", "answer", "batch", "error", "future", "gate", "gone", "lead")

    def __init__(self, combiner: Combiner, batch: Batch) -> None:
        self._combiner = combiner
        self.batch = batch
        self.answer: Stored | Conflict | None = None
        self.error: BaseException | None = None
        self.gate: LockType = allocate_lock()
        self.gate.acquire()
        self.future: asyncio.Future[None] | None = None
        self.lead = False
        self.gone = False

    @property
    def settled(self) -> bool:
        """Whether there is an answer or an error."""
        return self.answer is not None or self.error is not None

    def wait(self) -> Stored | Conflict:
        """Block until the batch is stored or refused."""
        self._combiner.wait(self)
        return self._result()

    def __await__(self) -> Generator[object, object, Stored | Conflict]:
        yield from self._combiner.wait_in_loop(self).__await__()
        return self._result()

    def _result(self) -> Stored | Conflict:
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer


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
        self._took = 0.0
        self._thread: threading.Thread | None = None
        self._starting, self._promoting = allocate_lock(), allocate_lock()
        self._stopped = False

    def submit(self, batch: Batch) -> Op:
        """Queue a batch; waiting for its ticket is what gets it stored."""
        if self._stopped:
            raise StoreError("the store is closed")
        return Op(self, batch)

    def wait(self, op: Op) -> None:
        """Commit it in this thread if the turn is free; else wait until somebody has, or hands it over."""
        self._put(op)
        if self._turn.acquire(False):
            op.lead = True  # only in this branch: a leader may have set it meanwhile
        else:
            self._wait_at_gate(op)
        if op.lead:
            try:
                while not op.settled:  # the queue may be longer than one commit
                    self._commit()
            except BaseException:
                op.gone = True
                raise
            finally:
                self._pass_on()

    def _wait_at_gate(self, op: Op) -> None:
        """Wait to be served or to be given the turn; one that is interrupted must not keep the turn."""
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
        op.future = asyncio.get_running_loop().create_future()
        self._put(op)
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="oncemore-writer", daemon=True)
                self._thread.start()
        _open(self._bell)
        await op.future

    def stop(self) -> None:
        """End the writer thread; nothing is taken any more."""
        self._stopped = True
        _open(self._bell)
        if self._thread is not None:
            self._thread.join(10)

    def _put(self, op: Op) -> None:
        self._queue.append(op)
        if 0 < self._want <= len(self._queue):
            self._want = 0
            _open(self._company)

    def _commit(self) -> None:
        """Store what is queued, holding the turn; every op of it has its answer or its error then."""
        if self._last > 1 and len(self._queue) < self._last:
            self._want = self._last
            self._company.acquire(True, min(PATIENCE * self._took, LONGEST_WAIT_S))
            self._want = 0
            self._company.acquire(False)
        ops = [self._queue.popleft() for _ in range(min(len(self._queue), MOST))]
        if not ops:
            return
        began = time.perf_counter()
        try:
            self._transact(ops)
        except Exception as error:  # noqa: BLE001 - nobody in it is told that it is stored
            _fail(ops, error)
        except BaseException:
            _fail(ops, StoreError("interrupted while storing; what was stored must be read again"))
            raise
        finally:
            self._took += 0.2 * (time.perf_counter() - began - self._took)
            self._last = len(ops)
            _release(ops)

    def _pass_on(self) -> None:
        """Hand the turn to the first that waits, or leave it free; look again after letting go."""
        while True:
            with self._promoting:
                while self._queue and self._queue[0].gone:
                    self._queue.popleft()  # nobody was told anything, and nobody asks any more
                first = self._queue[0] if self._queue else None
                if first is not None and first.future is None:
                    first.lead = True
                    first.gate.release()
                    return
            if first is not None:
                self._turn.release()
                _open(self._bell)
                return
            self._turn.release()
            if not self._queue or not self._turn.acquire(False):
                return

    def _serve(self) -> None:
        while not self._stopped:
            self._bell.acquire()
            if self._queue and self._turn.acquire(False):
                try:
                    self._commit()
                finally:
                    self._pass_on()


def _fail(ops: list[Op], error: BaseException) -> None:
    for op in ops:
        op.error = error


def _release(ops: list[Op]) -> None:
    """Wake everybody whose batch was in a commit: threads by their gate, loops once each."""
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for op in ops:
        if op.future is None:
            if not op.lead:
                op.gate.release()
        else:
            loops.setdefault(op.future.get_loop(), []).append(op.future)
    for loop, futures in loops.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, futures)


def _settle(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _open(lock: LockType) -> None:
    """Release a lock that may be open already."""
    with suppress(RuntimeError):
        lock.release()
