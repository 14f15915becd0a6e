"""The driver behind `for attempt in oncemore.attempts(...)`: the same script, run by a loop's own turns.

The loop's body is the work. `with attempt:` sends its outcome to the script as the block ends: an
error that is to be tried again is swallowed there, any other goes on its way; the next turn of the loop
waits first.
"""

from __future__ import annotations

from oncemore import clock as clocks
from oncemore.errors import UsageError
from oncemore.retries.deadlines import Limit, remaining, too_late
from oncemore.retries.driver import cut, put, put_awaited
from oncemore.retries.loop import ENDS, Invoke, Outcome, Put, Tell, Wait, again

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any, Self

    from oncemore.retries.loop import Flow, Op, Plan


#: Where a script stands when its last word has been said.
OVER = Outcome(None, None)


class Attempts:
    """The attempts of one block; each loop over it is a new call."""

    __slots__ = ("_plan",)

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[Attempt]:
        if self._plan.policy.timeout_s is not None:
            raise UsageError(
                "a block of plain code cannot be cut off: put it into a function and use "
                "oncemore.retry(timeout=...), or give attempts(within=...), which stops between attempts"
            )
        script = _Script(again(self._plan), self._plan)
        while type(script.op) is not Outcome:
            if type(script.op) is Wait:
                clocks.current.sleep(script.op.seconds)
                script.go_on()
            elif type(script.op) is Put:
                script.op = put(script.flow, script.op)
            else:
                yield script.attempt()
                script.check_used()
        script.check_begun()

    def __aiter__(self) -> _Turns:
        plan = self._plan.replaced(cuts=True)
        return _Turns(_Script(again(plan), plan))


class _Turns:
    """The turns of an `async for`: no async generator, which a loop left early would leave unfinished."""

    __slots__ = ("_script",)

    def __init__(self, script: _Script) -> None:
        self._script = script

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Attempt:
        script = self._script
        script.check_used()
        while type(script.op) in (Wait, Put):
            if type(script.op) is Wait:
                await clocks.current.pause(script.op.seconds)
                script.go_on()
            else:
                script.op = await put_awaited(script.flow, script.op)
        if type(script.op) is Outcome:
            script.check_begun()
            raise StopAsyncIteration
        return script.attempt()


class _Script:
    """A script and where it stands; shared by the loop and its attempts."""

    __slots__ = ("flow", "offered", "op", "plan")

    def __init__(self, flow: Flow, plan: Plan) -> None:
        self.flow = flow
        self.plan = plan
        self.op: Op = next(flow)
        self.offered: Op | None = None

    def go_on(self, sent: object = None) -> None:
        """Send what happened and take the next operation."""
        self.op = self.flow.send(sent)

    def attempt(self) -> Attempt:
        assert type(self.op) is Invoke
        self.offered = self.op
        return Attempt(self, self.op)

    def check_used(self) -> None:
        """A body that never enters the attempt would turn for ever."""
        if self.op is self.offered:  # never true before the first turn: nothing was offered
            raise UsageError("the attempt was not used: put the work into `with attempt:` inside the loop")

    def check_begun(self) -> None:
        """Raise the error of a call that ended between attempts: its time was up, or its breaker is open."""
        assert type(self.op) is Outcome
        if self.op.error is not None:
            raise self.op.error


class Attempt:
    """One turn: `with attempt:` (or `async with attempt:`, which can be cut off) around the work."""

    __slots__ = ("_op", "_scope", "_script", "_token", "last", "number")

    def __init__(self, script: _Script, op: Invoke) -> None:
        self.number = op.number
        self.last = op.number >= script.plan.policy.max_attempts
        self._script = script
        self._op = op
        self._scope: Any = None
        self._token: Any = None

    def remaining(self) -> float | None:
        """Return the seconds left to this attempt, or None when nothing limits it."""
        return remaining()

    def __repr__(self) -> str:
        return f"<attempt {self.number} of {self._script.plan.name}>"

    def __enter__(self) -> Self:
        if self._script.plan.policy.timeout_s is not None:
            raise UsageError("timeout= needs `async with attempt:`, which can be cut off")
        return self._begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._over()
        if error is not None and not isinstance(error, Exception):
            return self._left(error)
        self._script.go_on((None, error))
        while type(self._script.op) in (Tell, Put):
            if type(self._script.op) is Put:
                self._script.op = put(self._script.flow, self._script.op)
                continue
            told = self._script.op.hear(self._script.op.what)  # type: ignore[union-attr]
            if hasattr(type(told), "__await__"):
                told.close() if hasattr(told, "close") else None
                raise UsageError("an async hook needs `async with attempt:`, where it can be awaited")
            self._script.go_on(told)
        return self._passes(error)

    async def __aenter__(self) -> Self:
        self._begin()
        if self._op.limit_s is not None:
            trio = clocks.in_trio()
            if trio is not None:
                self._scope = trio.move_on_after(self._op.limit_s)
                self._scope.__enter__()
            else:
                self._scope = Limit(self._op.limit_s)
                await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        left_by = error
        if self._scope is not None:
            error = await self._unscope(kind, error, trace)
        self._over()
        if error is not None and not isinstance(error, Exception):
            return self._left(error)
        self._script.go_on((None, error))
        while type(self._script.op) in (Tell, Put):
            if type(self._script.op) is Put:
                self._script.op = await put_awaited(self._script.flow, self._script.op)
                continue
            told = self._script.op.hear(self._script.op.what)  # type: ignore[union-attr]
            self._script.go_on(await told if hasattr(type(told), "__await__") else told)
        return self._passes(left_by)

    async def _unscope(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> BaseException | None:
        """Leave the time limit; return the error it stands for when it was the limit that struck."""
        if hasattr(self._scope, "cancelled_caught"):
            self._scope.__exit__(kind, error, trace)
            return too_late(self._script.plan.name, self._op) if self._scope.cancelled_caught else error
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError as struck:
            late = too_late(self._script.plan.name, self._op)
            late.__cause__ = struck
            return late
        return error

    def _left(self, error: BaseException) -> bool:
        """Let go of a block that cancellation or an interrupt ended; the error goes on its way."""
        if self._script.plan.witness is not None or self._script.plan.breaker is not None:
            cut(self._script.flow, error)
        return False

    def _begin(self) -> Self:
        if self._token is not None or self._script.op is not self._op:
            raise UsageError(f"attempt {self.number} is over; take the next one from the loop")
        self._token = ENDS.set(self._op.ends)
        return self

    def _over(self) -> None:
        ENDS.reset(self._token)

    def _passes(self, left_by: BaseException | None) -> bool:
        """Swallow the error that left the block if it is tried again; let every other go on its way."""
        op = self._script.op
        if type(op) is not Outcome:
            return True
        self._script.flow.close()
        final = op.error
        if final is None or final is left_by:
            # What is left of the script holds no error: its traceback holds this attempt.
            self._script.op = OVER
            return False
        try:
            raise final
        finally:
            self._script.op = OVER
            del op, final
