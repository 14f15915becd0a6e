"""The drivers: run a script's operations, blocking or awaiting, and make the wrappers.

A wrapper calls the work directly and returns its value: that is the whole cost of a success. The
script begins at the first exception, or before the first attempt where a success needs more than
being returned (a limit, a budget, `until=`).

A plain function may return a coroutine (a lambda around an async call does). Nothing has happened then
yet, so it is no success: what the caller gets is a coroutine that awaits it, with retries.
"""

from __future__ import annotations

from oncemore import clock as clocks
from oncemore.retries.deadlines import awaited
from oncemore.retries.loop import ENDS, Invoke, Outcome, Tell, Wait, again, gated, loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oncemore.retries.loop import Flow, Op, Plan


async def _nothing() -> None:
    """Exists for its type: what a coroutine object is an instance of."""


_made = _nothing()
Coroutine = type(_made)
_made.close()


def blocking(
    plan: Plan, flow: Flow, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a script to its end in this thread; return the value or raise the error."""
    op: Op = next(flow)
    try:
        while type(op) is not Outcome:
            if type(op) is Invoke:
                try:
                    value = (
                        work(*args, **kwargs) if op.ends is None else _called(plan, op, work, args, kwargs)
                    )
                except Exception as error:
                    op = flow.send((None, error))
                    continue
                if type(value) is Coroutine:
                    return awaiting(plan, flow, work, args, kwargs, op, value)
                op = flow.send((value, None))
            elif type(op) is Wait:
                clocks.current.sleep(op.seconds)
                op = next(flow)
            elif type(op) is Tell:
                op = flow.send(op.hear(op.what))
            else:
                op = put(flow, op)
    except BaseException as error:
        if plan.witness is not None or plan.breaker is not None:
            cut(flow, error)
        raise
    next(flow, None)  # lets go of what it holds, at less than what close() costs
    value, failed = op
    del op
    if failed is None:
        return value
    try:
        raise failed
    finally:
        del failed  # its traceback holds this frame, which must not hold it


async def awaiting(
    plan: Plan,
    flow: Flow,
    work: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    op: Op | None = None,
    made: Any = None,
) -> Any:
    """Run a script to its end in this task; `made` is an attempt that has been called already."""
    op = next(flow) if op is None else op
    try:
        while type(op) is not Outcome:
            if type(op) is Invoke:
                try:
                    made = work(*args, **kwargs) if made is None else made
                    value = await (
                        made if op.ends is None and type(made) is Coroutine else _awaited(plan, op, made)
                    )
                except Exception as error:
                    op = flow.send((None, error))
                else:
                    op = flow.send((value, None))
                made = None
            elif type(op) is Wait:
                await clocks.current.pause(op.seconds)
                op = next(flow)
            elif type(op) is Tell:
                told = op.hear(op.what)
                op = flow.send(await told if hasattr(type(told), "__await__") else told)
            else:
                op = await put_awaited(flow, op)
    except BaseException as error:
        if plan.witness is not None or plan.breaker is not None:
            cut(flow, error)
        raise
    next(flow, None)
    value, failed = op
    del op
    if failed is None:
        return value
    try:
        raise failed
    finally:
        del failed


def put(flow: Flow, op: Any) -> Op:
    """Store what a script asks for; what the store fails with is for the script to hear."""
    try:
        answer = op.send().wait()
    except Exception as error:
        return flow.throw(error)
    return flow.send(answer)


async def put_awaited(flow: Flow, op: Any) -> Op:
    """Store what a script asks for, while others of this loop go on."""
    try:
        answer = await op.send()
    except Exception as error:
        return flow.throw(error)
    return flow.send(answer)


def cut(flow: Flow, error: BaseException) -> None:
    """Let a script hear what ended it from outside; the error goes on its way as it was."""
    trace = error.__traceback__
    try:
        flow.throw(error)
    except BaseException:
        error.__traceback__ = trace


def _called(
    plan: Plan, op: Invoke, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call plain work under its limits."""
    token = ENDS.set(op.ends)
    try:
        if op.limit_s is None:
            return work(*args, **kwargs)
        from oncemore.retries import timeouts  # loaded before, when the function was wrapped

        return timeouts.run(plan.name, op, lambda: work(*args, **kwargs))
    finally:
        ENDS.reset(token)


async def _awaited(plan: Plan, op: Invoke, work: Any) -> Any:
    """Await work under its limits; what is not awaitable is its own value."""
    if not hasattr(type(work), "__await__"):
        return work
    token = ENDS.set(op.ends)
    try:
        return await (work if op.limit_s is None else awaited(plan.name, op, work))
    finally:
        ENDS.reset(token)


def wrap(plan: Plan, work: Callable[..., Any], colour: str) -> Callable[..., Any]:
    """Return the function that stands in for the work: as light as the plan allows."""
    light = plan.light and (plan.breaker is None or plan.breaker.light)
    if colour == "coroutine":
        build = (
            _full_coroutine if not light else _light_coroutine if plan.breaker is None else _gated_coroutine
        )
    else:
        build = _full if not light else _light if plan.breaker is None else _gated
        if plan.policy.timeout_s is not None:
            from oncemore.retries import timeouts as helpers  # noqa: F401 - now, not when files have run out
    return _dressed(build(plan, work), work)


_WORN = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__type_params__")


def _dressed(call: Callable[..., Any], work: Callable[..., Any]) -> Callable[..., Any]:
    """Make the wrapper look like the work, as `functools.wraps` does, which is dearer to import."""
    for name in _WORN:
        if hasattr(work, name):
            setattr(call, name, getattr(work, name))
    call.__dict__.update(getattr(work, "__dict__", {}))
    call.__wrapped__ = work  # type: ignore[attr-defined]
    return call


def _light(plan: Plan, work: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            value = work(*args, **kwargs)
            if type(value) is not Coroutine:
                return value
        except Exception as error:
            flow = loop(plan, (None, error))
        else:
            flow = loop(plan)
            return awaiting(plan, flow, work, args, kwargs, next(flow), value)
        return blocking(plan, flow, work, args, kwargs)

    return call


def _full(plan: Plan, work: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return blocking(plan, again(plan), work, args, kwargs)

    return call


def _light_coroutine(plan: Plan, work: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await work(*args, **kwargs)
        except Exception as error:
            flow = loop(plan, (None, error))
        return await awaiting(plan, flow, work, args, kwargs)

    return call


def _full_coroutine(plan: Plan, work: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await awaiting(plan, again(plan), work, args, kwargs)

    return call


def _gated(plan: Plan, work: Callable[..., Any]) -> Callable[..., Any]:
    """Behind a breaker in memory, as light as without one while nothing has failed."""
    assert plan.breaker is not None
    gate, book = plan.breaker, plan.breaker.book

    def call(*args: Any, **kwargs: Any) -> Any:
        if not book.clean:
            return blocking(plan, again(plan), work, args, kwargs)
        try:
            value = work(*args, **kwargs)
            if type(value) is not Coroutine:
                if book.clean:
                    return value
                flow = gated(plan, gate, (value, None))  # type: ignore[unreachable] # others have failed
            else:
                flow = gated(plan, gate)
                return awaiting(plan, flow, work, args, kwargs, next(flow), value)
        except Exception as error:
            flow = gated(plan, gate, (None, error))
        return blocking(plan, flow, work, args, kwargs)

    return call


def _gated_coroutine(plan: Plan, work: Callable[..., Any]) -> Callable[..., Any]:
    assert plan.breaker is not None
    gate, book = plan.breaker, plan.breaker.book

    async def call(*args: Any, **kwargs: Any) -> Any:
        if not book.clean:
            return await awaiting(plan, again(plan), work, args, kwargs)
        try:
            value = await work(*args, **kwargs)
            if book.clean:
                return value
            flow = gated(plan, gate, (value, None))  # type: ignore[unreachable]
        except Exception as error:
            flow = gated(plan, gate, (None, error))
        return await awaiting(plan, flow, work, args, kwargs)

    return call
