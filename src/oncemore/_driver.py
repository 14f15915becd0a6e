"""The two drivers of scripts: one blocks, one awaits.

A *script* is a generator that yields operations and is sent their results. It holds the order of what happens
and does nothing itself, so that blocking and async callers share it, and so that tests can run it with other
operations, stop it before and after each of them, and replay it.

An *operation* is a small value. An `OperationTable` names the function that performs each type of operation;
every family of scripts has one (durable calls, deliveries, limits, markers, loops). Functions get the
*context* of the script, for example the call in progress, and the operation.

An error that an operation raises, also Ctrl-C and a cancellation, is thrown into the script, which handles it
or lets it pass. Only the closing of a coroutine is not: nothing can be awaited any more, so the script stays
where it is, and the caller of the driver decides what becomes of it.

`retries.driver` has its own pair, for `oncemore.retry` alone: it calls the user's function without another
frame between them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from typing import Any, TypeVar

    R = TypeVar("R")
    #: A script: it yields operations, is sent their results, and returns a value.
    Script = Generator[Any, Any, R]


class OperationTable:
    """The functions that perform the operations of a family of scripts.

    blocking  type of operation → function of context and operation
    awaiting  the same for operations that an async caller has to await; an operation that is missing here is
              performed by its blocking function, because it never waits
    """

    __slots__ = ("awaiting", "blocking")

    def __init__(
        self,
        blocking: Mapping[type, Callable[[Any, Any], Any]],
        awaiting: Mapping[type, Callable[[Any, Any], Awaitable[Any]]] | None = None,
    ) -> None:
        self.blocking, self.awaiting = blocking, awaiting or {}

    def replace_operations(
        self,
        blocking: Mapping[type, Callable[[Any, Any], Any]],
        awaiting: Mapping[type, Callable[[Any, Any], Awaitable[Any]]] | None = None,
    ) -> OperationTable:
        """Return a table in which some operations are performed by other functions."""
        return OperationTable({**self.blocking, **blocking}, {**self.awaiting, **(awaiting or {})})


def run_script(script: Script[R], table: OperationTable, context: object = None, reply: object = None) -> R:
    """Run a script to its end in this thread; return its value.

    reply  the result of the operation that the script has yielded last, if another driver ran it so far
    """
    perform = table.blocking
    try:
        op = script.send(reply)
        while True:
            try:
                reply = perform[type(op)](context, op)
            except BaseException as error:  # noqa: BLE001 - the script handles it, or it passes through
                op = script.throw(error)
            else:
                op = script.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_script_async(script: Script[R], table: OperationTable, context: object = None) -> R:
    """Run a script to its end in this task, on asyncio or trio; return its value."""
    perform, awaiting = table.blocking, table.awaiting
    try:
        op = script.send(None)
        while True:
            try:
                start = awaiting.get(type(op))
                reply = perform[type(op)](context, op) if start is None else await start(context, op)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - as above
                op = script.throw(error)
            else:
                op = script.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
