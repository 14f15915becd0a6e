"""The drivers of the durable way: they do what a flow asks for, on a store, blocking or awaiting.

Both run the same script and share everything but the ways of waiting: for the disk, for the work, for
time, for somebody else. Two rules keep a cut from outside (Ctrl-C, cancellation) from losing anything:

* A write that was begun is brought to its end. If its answer was lost, by a cut or by the store's failure,
  the *same* compare-and-set is sent again, and whose entry stands there is the answer; nothing is guessed.
* What cut us off waits until the run is in order: it is raised where the script would wait or end, and
  between claim and work it makes an attempt that never began.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import make
from oncemore.artifacts.artifact import SHELF
from oncemore.limits.breaker import awaited as script_awaited
from oncemore.limits.breaker import waited_for
from oncemore.log.interrupt_shield import Shield
from oncemore.retries.deadlines import awaited
from oncemore.retries.loop import ENDS
from oncemore.steps.attempt import CURRENT, Attempt
from oncemore.steps.call_in_progress import Job, in_thread, save, save_awaited
from oncemore.steps.context import CONTEXT, Context, earlier
from oncemore.steps.ops import (
    Answer,
    Ask,
    Begin,
    Check,
    Consult,
    Done,
    Draw,
    Earn,
    End,
    Fetch,
    Finish,
    Finished,
    Found,
    Holder,
    Load,
    LoadPolicy,
    Now,
    Offer,
    Permit,
    Read,
    Refund,
    Save,
    Sleep,
    Slot,
    Spill,
    Tell,
    Watch,
    Work,
)
from oncemore.steps.transactions import Mark, asked, asked_awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from oncemore.log.record import Kept
    from oncemore.log.store import Conflict, Stored
    from oncemore.steps.ops import Permission, Script

    Answered = Stored | Conflict

#: How long a caller looks away while somebody else has the run: at first, at most, and in all.
LOOK_S, LOOK_MOST_S, LOOK_ANEW_S = 0.002, 0.05, 0.5


class _Inside:
    """The surroundings of user code: which attempt it is, what it carries, when it must be over."""

    __slots__ = ("_attempt", "_ends", "_shelf", "_tokens")

    def __init__(self, job: Job, attempt: Attempt, ends: float | None) -> None:
        self._attempt, self._ends, self._shelf = attempt, ends, job.engine.shelf

    def __enter__(self) -> None:
        run, around = self._attempt.seen.run, CONTEXT.get()
        ends = earlier(run.deadline, around.deadline) if run.deadline else around.deadline
        carried = make(Context, (run.tenant, run.correlation_id, ends, around.actor, around.trace_id))
        shelf = SHELF.set(self._shelf)
        self._tokens = CURRENT.set(self._attempt), CONTEXT.set(carried), ENDS.set(self._ends), shelf

    def __exit__(self, *error: object) -> None:
        current, carried, ends, shelf = self._tokens
        SHELF.reset(shelf)
        ENDS.reset(ends)
        CONTEXT.reset(carried)
        CURRENT.reset(current)


def _answer(job: Job, found: Any) -> Answer:
    if type(found) is Answer:
        return found
    job.engine.grumble(
        f"a reconcile function answered {found!r}; it takes applied(), not_applied() or unknown()"
    )
    return Answer("unknown")


def _no_answer(job: Job, error: BaseException) -> Answer:
    """A reconcile function that fails knows nothing; what cut it off is raised once that is written."""
    if isinstance(error, Exception):
        job.engine.grumble(f"a reconcile function failed: {type(error).__name__}")
    else:
        job.cut = error
    return Answer("unknown")


# Blocking -------------------------------------------------------------------------------------------


def blocking(job: Job, script: Script, told: Any = None) -> Any:
    """Run a script to its end in this thread; return the value or raise the error.

    told  the answer to what the script asked for last, if it has begun
    """
    try:
        op = script.send(told)
        while (do := _BLOCKING.get(type(op))) is not None:  # all but the end
            op = script.send(do(job, op))
    except BaseException as error:
        job.abandon(error)
        if job.cut is not None and error is not job.cut:
            raise job.cut from error  # what cut it off comes before all that it met afterwards
        raise
    return _end(job, op)


def _end(job: Job, op: End) -> Any:
    if job.reserved:
        job.release()
    error = job.cut or op.error
    if error is None:
        return op.value
    try:
        raise error
    finally:
        del error, op, job  # the traceback holds this frame, which must not hold it


def _work(job: Job, op: Work) -> Done:
    if job.cut is not None:
        return Done(op.seen, None, job.cut, begun=False)
    attempt, invoke = job.attempt(op.seen), job.invoke(op)
    try:
        with _Inside(job, attempt, invoke.ends):
            value = job.engine.call(job, attempt, invoke)
    except BaseException as error:  # noqa: BLE001 - it travels as a value, and is raised at the end
        if attempt.mark is not None:
            asked(attempt.mark.undo())
        return job.done(attempt, None, error)
    return job.done(attempt, value, None)


def _finish(job: Job, op: Finish) -> Finished:
    shield = Shield(job.cut is not None)
    try:
        with shield:
            asked(job.finish(op))
    except BaseException as error:
        if shield.twice:
            raise  # it is as good as a kill
        return _finished(job, op.mark, error)
    return Finished(None)


def _finished(job: Job, mark: Mark, error: BaseException) -> Finished:
    """Return what became of a transaction that an error met; what cuts off a finished one is kept."""
    if not mark.finished:
        return Finished(error)
    job.cut = error  # and raised when the run is in order
    return Finished(None)


def _ask(job: Job, op: Ask) -> Answer:
    if job.cut is not None:
        return Answer("unknown")
    job.recall(op.seen)
    try:
        with _Inside(job, job.attempt(op.seen, asks=True), ENDS.get()):
            return _answer(job, job.call_reconcile())
    except BaseException as error:  # noqa: BLE001 - it knows nothing
        return _no_answer(job, error)


def _spill(job: Job, op: Spill) -> tuple[str, Kept] | None:
    try:
        return job.spill(op)
    except BaseException as error:  # noqa: BLE001 - kept, and raised when the result is in the log
        job.cut = error
        return None


def _slot(job: Job, op: Slot) -> float:
    return waited_for(job.slot(op))


def _earn(job: Job, op: Earn) -> None:
    waited_for(job.earn(op))


def _sleep(job: Job, op: Sleep) -> None:
    if job.cut is not None:
        raise job.cut
    clocks.current.sleep(op.seconds)


def _watch(job: Job, op: Watch) -> None:
    if job.cut is not None:
        raise job.cut
    for pause in _looks(job, op):
        time.sleep(pause)


def _looks(job: Job, op: Watch) -> Generator[float, None, None]:
    """Tell how long to look away, until the entity has changed or it is time to ask who has it.

    In real time, also in tests: somebody else works meanwhile.
    """
    ends, pause = time.monotonic() + min(op.seconds, LOOK_ANEW_S), LOOK_S
    while (left := ends - time.monotonic()) > 0:
        yield min(pause, left)
        with Shield():
            head = job.store.head(op.entity)
        if head is None or head.version != op.version:
            return
        pause = min(pause * 1.5, LOOK_MOST_S)


# Awaiting -------------------------------------------------------------------------------------------


async def awaiting(job: Job, script: Script) -> Any:
    """Run a script to its end in this task, on asyncio or trio; return the value or raise the error."""
    try:
        op = next(script)
        while True:
            if (quick := _QUICK.get(type(op))) is not None:
                op = script.send(quick(job, op))
            elif (do := _AWAITING.get(type(op))) is not None:
                job.last = None
                op = script.send(await do(job, op))
            else:  # the end
                break
    except GeneratorExit as closed:
        # The coroutine is closed, which ends what it awaits first: the answer is in `job.last`. What is left
        # to do is done without awaiting, and raises this again.
        if job.last is None:
            job.abandon(closed)
            raise
        job.cut = closed
        return blocking(job, script, job.last)
    except BaseException as error:
        job.abandon(error)
        if job.cut is not None and error is not job.cut:
            raise job.cut from error  # what cut it off comes before all that it met afterwards
        raise
    return _end(job, op)


async def _work_awaited(job: Job, op: Work) -> Done:
    if job.cut is not None:
        return Done(op.seen, None, job.cut, begun=False)
    attempt, invoke = job.attempt(op.seen), job.invoke(op)
    try:
        with _Inside(job, attempt, invoke.ends):
            made = job.call_work()
            value = await (made if invoke.limit_s is None else awaited(attempt.step, invoke, made))
    except BaseException as error:  # noqa: BLE001 - it travels as a value, and is raised at the end
        if attempt.mark is not None:
            await _undone_awaited(attempt.mark, error)
        job.last = job.done(attempt, None, error)
        return job.last  # type: ignore[no-any-return]
    return job.done(attempt, value, None)


async def _finish_awaited(job: Job, op: Finish) -> Finished:
    if not op.mark.awaits:
        return _finish(job, op)
    try:
        await asked_awaited(job.finish(op))
    except BaseException as error:  # noqa: BLE001 - as for the work itself
        job.last = _finished(job, op.mark, error)
        return job.last  # type: ignore[no-any-return]
    return Finished(None)


async def _undone_awaited(mark: Mark, error: BaseException) -> None:
    """Roll back what a task has left, also one that was cancelled; a coroutine that is closed cannot."""
    if not mark.awaits:
        asked(mark.undo())
    elif not isinstance(error, GeneratorExit):
        trio = clocks.in_trio()
        if trio is None:
            await asked_awaited(mark.undo())
        else:
            with trio.CancelScope(shield=True):
                await asked_awaited(mark.undo())


async def _ask_awaited(job: Job, op: Ask) -> Answer:
    if job.cut is not None:
        return Answer("unknown")
    job.recall(op.seen)
    try:
        with _Inside(job, job.attempt(op.seen, asks=True), ENDS.get()):
            found = job.call_reconcile()
            return _answer(job, await found if hasattr(type(found), "__await__") else found)
    except BaseException as error:  # noqa: BLE001 - it knows nothing
        job.last = _no_answer(job, error)
        return job.last  # type: ignore[no-any-return]


async def _slot_awaited(job: Job, op: Slot) -> float:
    return await script_awaited(job.slot(op))


async def _earn_awaited(job: Job, op: Earn) -> None:
    if job.cut is not None:
        return _earn(job, op)  # a task that was cancelled must not await
    return await script_awaited(job.earn(op))


async def _sleep_awaited(job: Job, op: Sleep) -> None:
    if job.cut is not None:
        raise job.cut
    await clocks.current.pause(op.seconds)


async def _watch_awaited(job: Job, op: Watch) -> None:
    if job.cut is not None:
        raise job.cut
    for pause in _looks(job, op):
        await _REAL.pause(pause)


async def _check_awaited(job: Job, op: Check) -> Found:
    return job.check(op) if job.cut is not None else await in_thread(job.check, op)


async def _permit_awaited(job: Job, op: Permit) -> Permission:
    if job.cut is not None or not job.engine.controls.waits:
        return job.permit(op)
    return await in_thread(job.permit, op)  # type: ignore[no-any-return]


async def _spill_awaited(job: Job, op: Spill) -> tuple[str, Kept] | None:
    try:
        return await in_thread(job.spill, op)  # type: ignore[no-any-return]
    except BaseException as error:  # noqa: BLE001 - as in `_spill`
        job.cut = error
        return None


async def _fetch_awaited(job: Job, op: Fetch) -> Any:
    return job.fetch(op) if job.cut is not None else await in_thread(job.fetch, op)


_REAL = clocks.Clock()

_QUICK: dict[type, Callable[[Job, Any], Any]] = {
    Load: Job.load, Consult: Job.consult, Draw: Job.draw, Refund: Job.refund,
    Begin: Job.begin, Offer: Job.offer, Now: Job.now, Holder: Job.holder, Read: Job.read, Tell: Job.tell,
    LoadPolicy: Job.load_policy,
}  # fmt: skip
_BLOCKING: dict[type, Callable[[Job, Any], Any]] = {
    **_QUICK, Save: save, Work: _work, Ask: _ask, Sleep: _sleep, Watch: _watch, Finish: _finish, Slot: _slot,
    Check: Job.check, Spill: _spill, Fetch: Job.fetch, Permit: Job.permit, Earn: _earn,
}  # fmt: skip
_AWAITING: dict[type, Callable[[Job, Any], Coroutine[Any, Any, Any]]] = {
    Save: save_awaited, Work: _work_awaited, Ask: _ask_awaited, Sleep: _sleep_awaited, Watch: _watch_awaited,
    Check: _check_awaited, Spill: _spill_awaited, Fetch: _fetch_awaited, Finish: _finish_awaited,
    Slot: _slot_awaited, Permit: _permit_awaited, Earn: _earn_awaited,
}  # fmt: skip
