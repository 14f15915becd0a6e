"""Runs the attempts of a job in an executor of the caller (`work.map(items, on=…)`).

A lane of the job (`workers.map`) sends an item to the executor and waits for a `RemoteReply` of plain values.
Results are not sent back: both sides have opened the same store. If the process of an item dies, the item is
lost and sent again; the run then continues by its lease and its effect, as after any crash. The order of
operations is one generator, which yields a future or a number of seconds to wait for.
"""

from __future__ import annotations

import sys
from concurrent.futures import wait
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.policy.model import Failure
from oncemore.workers.item_result import ItemResult
from oncemore.workers.map import POLL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from oncemore.workers.executor_adapters import ExecutorAdapter
    from oncemore.workers.item_result import LiveItemNotes
    from oncemore.workers.map_items import MapItem
    from oncemore.workers.remote import ProcessAttempts, ThreadAttempts

    Waits = Generator[Future[Any] | float, None, None]

#: After how many unanswered checks in a row the executor counts as broken.
MAX_PROBES = 3
#: How often to ask for a turn, and how often to repeat an item whose run still has the lease of its last
#: process.
TURN_POLL_S, HELD_POLL_S = 0.02, 0.25
#: How many seconds beyond the lease of a lost run to wait for its release.
GRACE_S = 2.0

_REAL_CLOCK = clocks.Clock()


class RemoteReply(Value):
    """The result of one attempt in another process, in plain values.

    An exception might not survive pickling, so errors are sent as words and records.

    item_result  the result of the item
    resource     the resource of the item, if the step has a cooldown
    failures     the failures of the attempt: their error records, and the failures as tuples
    held_until   when the lease of the run's current owner ends; 0 if the run has no other owner
    fault        why the job must stop: "" | store | unusable | KeyboardInterrupt | SystemExit
    """

    item_result: ItemResult
    resource: str = ""
    failures: tuple[tuple[dict[str, Any], tuple[Any, ...]], ...] = ()
    held_until: float = 0.0
    fault: str = ""


def encode_reply(reply: RemoteReply) -> tuple[Any, ...]:
    """Return a reply as plain tuples, so that the other side can unpickle it without this class."""
    return (tuple(reply.item_result), *reply[1:])


def _decode_reply(fields: tuple[Any, ...]) -> RemoteReply:
    return RemoteReply(ItemResult(*fields[0]), *fields[1:])


class LocalError(Value):
    """The exception that an attempt raised in a thread of this process."""

    error: BaseException


class RemoteExecutor:
    """Runs attempts in an executor of the caller.

    max_losses  how often one item may be lost: a little more than its number of attempts, because a process
                can die before its attempt is recorded
    lease_s     how long the lease of a dead process lasts where the store cannot detect its death
    """

    def __init__(
        self, pool: ExecutorAdapter, task: ProcessAttempts | ThreadAttempts, max_losses: int, lease_s: float
    ) -> None:
        self._pool, self._task, self._max_losses, self._lease_s = pool, task, max_losses, lease_s
        self._answer_count = 0

    def run_attempt(self, item: MapItem, notes: LiveItemNotes) -> None:
        """Run one attempt of an item in the executor, blocking."""
        for awaited in self._attempt_script(item, notes):
            if isinstance(awaited, float):
                _REAL_CLOCK.sleep(awaited)
                continue
            while not awaited.done():
                wait((awaited,), POLL_S)
                if notes.is_stopped:
                    # This cancels only a call that has not started; the loop still waits for a started one.
                    awaited.cancel()

    async def run_attempt_async(self, item: MapItem, notes: LiveItemNotes) -> None:
        """Run one attempt of an item in the executor, awaiting it."""
        with closing(self._attempt_script(item, notes)) as script:
            for awaited in script:
                await _wait_async(awaited)

    def check_ready(self, job_id: str) -> None:
        """Check that the executor can run attempts; raise the reason if it cannot."""
        with closing(self._check_script(job_id)) as script:
            for awaited in script:
                # Always a future: only a retry waits for its turn, and nothing was lost yet.
                wait((awaited,))  # type: ignore[arg-type]

    async def check_ready_async(self, job_id: str) -> None:
        """Check the executor as `check_ready` does, awaiting it."""
        with closing(self._check_script(job_id)) as script:
            for awaited in script:
                await _wait_async(awaited)

    def release_resources(self) -> None:
        """Release the resources created for this job."""
        self._pool.close()

    # ------------------------------------------------------------------------------------------------

    def _attempt_script(self, item: MapItem, notes: LiveItemNotes) -> Waits:
        work, arguments = self._task.prepare_call(item, notes)
        losses, give_up_at = 0, 0.0
        while True:
            answer, error = yield from self._send_script(work, arguments, is_retry=losses > 0)
            if error is None:
                reply = answer if isinstance(answer, LocalError | None) else _decode_reply(answer)
                # After a loss, the run may still be leased to the process that died. The lane waits until
                # that lease must be over instead of reporting the item as in progress.
                if losses and isinstance(reply, RemoteReply) and reply.held_until:
                    give_up_at = give_up_at or _REAL_CLOCK.monotonic() + self._lease_s + GRACE_S
                    if _REAL_CLOCK.monotonic() < give_up_at and not notes.is_stopped:
                        yield HELD_POLL_S
                        continue
                _apply_reply(reply, notes)
                return
            losses += 1
            if notes.is_stopped:
                notes.item_result = ItemResult("", "deferred", "the job was stopped before it was done")
                return
            if losses >= self._max_losses:
                notes.item_result = ItemResult(
                    "", "deferred", f"its process died {losses} times: {_describe_error(error)}"
                )
                return
            # Without this check, a broken executor would use up the losses of every item of the job.
            try:
                yield from self._check_script(notes.job_id, lost=error)
            except Exception as check_error:  # noqa: BLE001 - any error of the executor or the step's import
                notes.item_result = ItemResult("", "deferred", f"its process died: {_describe_error(error)}")
                notes.stop_job(check_error)
                return

    def _check_script(self, job_id: str, lost: BaseException | None = None) -> Waits:
        """Check that the executor works, before the first item or after a loss; raise the reason if not."""
        check = self._task.prepare_check(job_id)
        if check is None:
            if lost is not None:
                # A thread of this process cannot die alone, so the error is one of the executor itself.
                raise lost
            return
        probes, error, answers = 0, lost, self._answer_count
        while probes < MAX_PROBES:
            problem, error = yield from self._send_script(*check, is_retry=lost is not None)
            if error is None:
                if problem:
                    raise UsageError(problem)
                return
            # An executor that has answered another lane since then works, so the count starts again.
            probes = probes + 1 if self._answer_count == answers else 1
            answers = self._answer_count
        assert error is not None
        error.add_note(
            f"oncemore: {self._pool.name} did not answer, {MAX_PROBES} times in a row, and the job was "
            "stopped; finished items are stored, and calling map again continues with the rest"
        )
        raise error

    def _send_script(
        self, work: Callable[..., Any], arguments: tuple[Any, ...], *, is_retry: bool
    ) -> Generator[Future[Any] | float, None, tuple[Any, BaseException | None]]:
        """Submit a call; return its result and None, or None and the error of the executor."""
        while is_retry and not self._pool.try_take_turn():
            yield TURN_POLL_S
        future: Future[Any] | None = None
        try:
            future = self._pool.submit_call(work, arguments, is_retry=is_retry)
            yield future
            answer = future.result(0)
            self._answer_count += 1
            return answer, None
        except BaseException as error:
            if not isinstance(error, Exception) and (future is None or not future.done()):
                # The waiting lane was interrupted or cancelled, so the call is not needed any more.
                if future is not None:
                    future.cancel()
                raise
            self._pool.handle_lost_call(future, error)
            return None, error
        finally:
            if is_retry:
                self._pool.release_turn()


def _apply_reply(reply: RemoteReply | LocalError | None, notes: LiveItemNotes) -> None:
    """Copy a reply into the notes of a lane, as if the lane had run the attempt itself."""
    if reply is None:
        return
    if isinstance(reply, LocalError):
        raise reply.error
    result = notes.item_result = reply.item_result
    notes.key, notes.resource = result.key, reply.resource
    for error, failure in reply.failures:
        notes.record_failure(error, Failure(*failure))
    if reply.fault == "store":
        raise StoreError(result.error)
    if reply.fault == "KeyboardInterrupt":
        raise KeyboardInterrupt(result.error)
    if reply.fault == "SystemExit":
        raise SystemExit(result.error)
    if reply.fault:
        notes.stop_job(UsageError(result.error))


def _describe_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]


async def _wait_async(awaited: Future[Any] | float) -> None:
    """Wait for a future of another thread, or for a number of seconds, on asyncio or trio."""
    if isinstance(awaited, float):
        await _REAL_CLOCK.pause(awaited)
        return
    trio = clocks.find_trio()
    done: Any
    if trio is not None:
        done, call_soon = trio.Event(), trio.lowlevel.current_trio_token().run_sync_soon
    else:
        asyncio = sys.modules["asyncio"]
        done, call_soon = asyncio.Event(), asyncio.get_running_loop().call_soon_threadsafe

    def handle_done(_: Any) -> None:
        # The event loop may be closed by now; then no task waits for this future.
        with suppress(RuntimeError):
            call_soon(done.set)

    awaited.add_done_callback(handle_done)
    await done.wait()
