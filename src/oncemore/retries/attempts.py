"""The driver behind `for attempt in oncemore.attempts(...)`: it runs the retry script from a loop.

The body of the loop is the work. `with attempt:` sends the outcome to the script at the end of the block;
it suppresses an error that is retried and lets any other propagate. The next iteration waits first.
"""

from __future__ import annotations

from oncemore import clock as clocks
from oncemore.errors import UsageError
from oncemore.retries.deadlines import PersistentTimeout, time_remaining, timeout_error
from oncemore.retries.driver import append_record, append_record_async, interrupt_script
from oncemore.retries.loop import (
    ENDS,
    AppendRecord,
    CallFunction,
    CallHook,
    CallOutcome,
    WaitSeconds,
    make_script,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any, Self

    from oncemore.retries.loop import Flow, Op
    from oncemore.retries.plan import RetryPlan


#: The last operation of a finished script; it holds neither a value nor an error.
OVER = CallOutcome(None, None)


class Attempts:
    """The attempts of one block; each iteration over it is a new call."""

    __slots__ = ("_plan",)

    def __init__(self, plan: RetryPlan) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[RetryAttemptBlock]:
        if self._plan.policy.timeout_s is not None:
            raise UsageError(
                "a block of plain code cannot be interrupted at a timeout: put it into a function and use "
                "oncemore.retry(timeout=...), or use attempts(total_timeout=...), which stops between "
                "attempts"
            )
        script = _SharedScript(make_script(self._plan), self._plan)
        while type(script.op) is not CallOutcome:
            if type(script.op) is WaitSeconds:
                clocks.current.sleep(script.op.seconds)
                script.send_answer()
            elif type(script.op) is AppendRecord:
                script.op = append_record(script.flow, script.op)
            else:
                yield script.next_attempt()
                script.check_used()
        script.raise_if_ended()

    def __aiter__(self) -> _AsyncAttempts:
        # An async block can be cancelled, so the deadline of the call limits each attempt.
        plan = self._plan.copy_with(cuts=True)
        return _AsyncAttempts(_SharedScript(make_script(plan), plan))


class _AsyncAttempts:
    """The iterator of an `async for`.

    An async generator would stay unfinished if the loop ends early.
    """

    __slots__ = ("_script",)

    def __init__(self, script: _SharedScript) -> None:
        self._script = script

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RetryAttemptBlock:
        script = self._script
        script.check_used()
        while type(script.op) in (WaitSeconds, AppendRecord):
            if type(script.op) is WaitSeconds:
                await clocks.current.pause(script.op.seconds)
                script.send_answer()
            else:
                script.op = await append_record_async(script.flow, script.op)
        if type(script.op) is CallOutcome:
            script.raise_if_ended()
            raise StopAsyncIteration
        return script.next_attempt()


class _SharedScript:
    """A script and its current operation; shared by the loop and its attempts."""

    __slots__ = ("flow", "offered", "op", "plan")

    def __init__(self, flow: Flow, plan: RetryPlan) -> None:
        self.flow = flow
        self.plan = plan
        self.op: Op = next(flow)
        self.offered: Op | None = None

    def send_answer(self, reply: object = None) -> None:
        """Send the result of an operation and take the next one."""
        self.op = self.flow.send(reply)

    def next_attempt(self) -> RetryAttemptBlock:
        assert type(self.op) is CallFunction
        self.offered = self.op
        return RetryAttemptBlock(self, self.op)

    def check_used(self) -> None:
        """Raise `UsageError` if the body did not enter the attempt: the loop would never end."""
        # Never true before the first iteration, because no attempt was offered yet.
        if self.op is self.offered:
            raise UsageError("the attempt was not used: put the work into `with attempt:` inside the loop")

    def raise_if_ended(self) -> None:
        """Raise the error of a call that ended between attempts, by its deadline or its breaker."""
        assert type(self.op) is CallOutcome
        if self.op.error is not None:
            raise self.op.error


class RetryAttemptBlock:
    """One attempt: `with attempt:` around the work, or `async with attempt:`, which supports a timeout."""

    __slots__ = ("_op", "_scope", "_script", "_token", "last", "number")

    def __init__(self, script: _SharedScript, op: CallFunction) -> None:
        self.number = op.number
        self.last = op.number >= script.plan.policy.max_attempts
        self._script = script
        self._op = op
        self._scope: Any = None
        self._token: Any = None

    def remaining(self) -> float | None:
        """Return the seconds left for this attempt, or None if it has no limit."""
        return time_remaining()

    def __repr__(self) -> str:
        return f"<attempt {self.number} of {self._script.plan.name}>"

    def __enter__(self) -> Self:
        if self._script.plan.policy.timeout_s is not None:
            raise UsageError("timeout= needs `async with attempt:`, which can be cancelled")
        return self._begin_attempt()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._end_attempt()
        if error is not None and not isinstance(error, Exception):
            return self._abandon_block(error)
        self._script.send_answer((None, error))
        while type(self._script.op) in (CallHook, AppendRecord):
            if type(self._script.op) is AppendRecord:
                self._script.op = append_record(self._script.flow, self._script.op)
                continue
            reply = self._script.op.hear(self._script.op.what)  # type: ignore[union-attr]
            if hasattr(type(reply), "__await__"):
                # A coroutine that is never awaited would warn when it is collected.
                reply.close() if hasattr(reply, "close") else None
                raise UsageError("an async hook needs `async with attempt:`, where it can be awaited")
            self._script.send_answer(reply)
        return self._suppress_error(error)

    async def __aenter__(self) -> Self:
        self._begin_attempt()
        if self._op.limit_s is not None:
            trio = clocks.find_trio()
            if trio is not None:
                self._scope = trio.move_on_after(self._op.limit_s)
                self._scope.__enter__()
            else:
                self._scope = PersistentTimeout(self._op.limit_s)
                await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Python suppresses or re-raises this error, even if a timeout replaces it for the script.
        block_error = error
        if self._scope is not None:
            error = await self._leave_timeout(kind, error, trace)
        self._end_attempt()
        if error is not None and not isinstance(error, Exception):
            return self._abandon_block(error)
        self._script.send_answer((None, error))
        while type(self._script.op) in (CallHook, AppendRecord):
            if type(self._script.op) is AppendRecord:
                self._script.op = await append_record_async(self._script.flow, self._script.op)
                continue
            reply = self._script.op.hear(self._script.op.what)  # type: ignore[union-attr]
            self._script.send_answer(await reply if hasattr(type(reply), "__await__") else reply)
        return self._suppress_error(block_error)

    async def _leave_timeout(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> BaseException | None:
        """Leave the timeout scope; return an `AttemptTimeout` if it expired, else the block's error."""
        # A scope of trio reports its expiry in an attribute, ours by raising TimeoutError.
        if hasattr(self._scope, "cancelled_caught"):
            self._scope.__exit__(kind, error, trace)
            return timeout_error(self._script.plan.name, self._op) if self._scope.cancelled_caught else error
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as cause:
            expired = timeout_error(self._script.plan.name, self._op)
            expired.__cause__ = cause
            return expired
        return error

    def _abandon_block(self, error: BaseException) -> bool:
        """End the script of a block that a cancellation or an interrupt ended; the error propagates."""
        # Only an observer or a breaker has to know of it: the probe of a breaker is given back.
        if self._script.plan.witness is not None or self._script.plan.breaker is not None:
            interrupt_script(self._script.flow, error)
        return False

    def _begin_attempt(self) -> Self:
        if self._token is not None or self._script.op is not self._op:
            raise UsageError(f"attempt {self.number} has ended; use the next one from the loop")
        self._token = ENDS.set(self._op.ends)
        return self

    def _end_attempt(self) -> None:
        ENDS.reset(self._token)

    def _suppress_error(self, block_error: BaseException | None) -> bool:
        """Return True to suppress an error that is retried; let or make any other propagate."""
        op = self._script.op
        if type(op) is not CallOutcome:
            return True
        self._script.flow.close()
        final = op.error
        if final is None or final is block_error:
            # Drops the reference to the error, whose traceback refers to this attempt: a cycle.
            self._script.op = OVER
            return False
        try:
            raise final
        finally:
            self._script.op = OVER
            del op, final
