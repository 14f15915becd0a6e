"""The drivers of the retry script, blocking and async, and the wrappers of decorated functions.

A wrapper calls the function directly and returns its value, so a success costs nothing more. The script
starts at the first exception, or before the first attempt if a success needs more than returning the value
(a limit, a budget, `until=`).

A plain function may return a coroutine, for example a lambda around an async call. That is not a success
yet: the caller receives a coroutine that awaits it with retries.
"""

from __future__ import annotations

from oncemore import clock as clocks
from oncemore.retries.deadlines import run_with_timeout
from oncemore.retries.loop import (
    ENDS,
    CallFunction,
    CallHook,
    CallOutcome,
    WaitSeconds,
    make_script,
    run_attempts,
    run_with_breaker,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oncemore.retries.loop import Flow, Op
    from oncemore.retries.plan import RetryPlan


async def _empty_coroutine() -> None:
    """Provide a coroutine object for its type."""


_coroutine = _empty_coroutine()
# The same as types.CoroutineType, without the import.
Coroutine = type(_coroutine)
# A coroutine that is never awaited would warn when it is collected.
_coroutine.close()


def run_blocking(
    plan: RetryPlan, flow: Flow, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a script to its end in this thread; return the value or raise the error."""
    op: Op = next(flow)
    try:
        while type(op) is not CallOutcome:
            if type(op) is CallFunction:
                try:
                    value = (
                        work(*args, **kwargs) if op.ends is None else _call_sync(plan, op, work, args, kwargs)
                    )
                except Exception as error:
                    op = flow.send((None, error))
                    continue
                if type(value) is Coroutine:
                    return run_async(plan, flow, work, args, kwargs, op=op, awaitable=value)
                op = flow.send((value, None))
            elif type(op) is WaitSeconds:
                clocks.current.sleep(op.seconds)
                op = next(flow)
            elif type(op) is CallHook:
                op = flow.send(op.hear(op.what))
            else:
                op = append_record(flow, op)
    except BaseException as error:
        if plan.witness is not None or plan.breaker is not None:
            interrupt_script(flow, error)
        raise
    # Ends the generator, which frees its locals, at a lower cost than close().
    next(flow, None)
    value, final_error = op
    del op
    if final_error is None:
        return value
    try:
        raise final_error
    finally:
        # The traceback refers to this frame: without this the error would refer to itself.
        del final_error


async def run_async(
    plan: RetryPlan,
    flow: Flow,
    work: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    op: Op | None = None,
    awaitable: Any = None,
) -> Any:
    """Run a script to its end in this task.

    awaitable  the result of the first call, if the caller has made it already
    """
    op = next(flow) if op is None else op
    try:
        while type(op) is not CallOutcome:
            if type(op) is CallFunction:
                try:
                    awaitable = work(*args, **kwargs) if awaitable is None else awaitable
                    # A coroutine without a limit is awaited directly, without another frame.
                    is_free = op.ends is None and type(awaitable) is Coroutine
                    value = await (awaitable if is_free else _call_async(plan, op, awaitable))
                except Exception as error:
                    op = flow.send((None, error))
                else:
                    op = flow.send((value, None))
                awaitable = None
            elif type(op) is WaitSeconds:
                await clocks.current.pause(op.seconds)
                op = next(flow)
            elif type(op) is CallHook:
                reply = op.hear(op.what)
                op = flow.send(await reply if hasattr(type(reply), "__await__") else reply)
            else:
                op = await append_record_async(flow, op)
    except BaseException as error:
        if plan.witness is not None or plan.breaker is not None:
            interrupt_script(flow, error)
        raise
    next(flow, None)
    value, final_error = op
    del op
    if final_error is None:
        return value
    try:
        raise final_error
    finally:
        del final_error


def append_record(flow: Flow, op: Any) -> Op:
    """Store the record of an operation, blocking; send the reply or the error to the script."""
    try:
        reply = op.send().wait()
    except Exception as error:
        # The script continues in memory if the store cannot be reached.
        return flow.throw(error)
    return flow.send(reply)


async def append_record_async(flow: Flow, op: Any) -> Op:
    """Store the record of an operation, awaiting; send the reply or the error to the script."""
    try:
        reply = await op.send()
    except Exception as error:
        return flow.throw(error)
    return flow.send(reply)


def interrupt_script(flow: Flow, error: BaseException) -> None:
    """Throw an error from outside into the script, so that its cleanup runs; the caller re-raises it."""
    # The frames of the script would only confuse a reader of the traceback.
    trace = error.__traceback__
    try:
        flow.throw(error)
    except BaseException:
        error.__traceback__ = trace


def _call_sync(
    plan: RetryPlan, op: CallFunction, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a plain function under its time limits."""
    token = ENDS.set(op.ends)
    try:
        if op.limit_s is None:
            return work(*args, **kwargs)
        # `wrap_function` has loaded the module already.
        from oncemore.retries import timeouts

        return timeouts.run_in_helper(plan.name, op, lambda: work(*args, **kwargs))
    finally:
        ENDS.reset(token)


async def _call_async(plan: RetryPlan, op: CallFunction, work: Any) -> Any:
    """Await a result under its time limits; return it as it is if it is not awaitable."""
    if not hasattr(type(work), "__await__"):
        return work
    token = ENDS.set(op.ends)
    try:
        return await (work if op.limit_s is None else run_with_timeout(plan.name, op, work))
    finally:
        ENDS.reset(token)


def wrap_function(plan: RetryPlan, work: Callable[..., Any], colour: str) -> Callable[..., Any]:
    """Return the wrapper of a function: the cheapest one that the plan allows."""
    light = plan.light and (plan.breaker is None or plan.breaker.light)
    if colour == "coroutine":
        build = (
            _wrap_full_async
            if not light
            else _wrap_light_async
            if plan.breaker is None
            else _wrap_with_breaker_async
        )
    else:
        build = _wrap_full if not light else _wrap_light if plan.breaker is None else _wrap_with_breaker
        if plan.policy.timeout_s is not None:
            # Loaded now: an import in the call could fail when the process has no file descriptors left.
            from oncemore.retries import timeouts as helpers  # noqa: F401
    return _copy_metadata(build(plan, work), work)


_COPIED_ATTRIBUTES = (
    "__module__",
    "__name__",
    "__qualname__",
    "__doc__",
    "__annotations__",
    "__type_params__",
)


def _copy_metadata(call: Callable[..., Any], work: Callable[..., Any]) -> Callable[..., Any]:
    """Copy the metadata of the function to its wrapper."""
    # functools.wraps does the same, but its import is slow.
    for name in _COPIED_ATTRIBUTES:
        if hasattr(work, name):
            setattr(call, name, getattr(work, name))
    call.__dict__.update(getattr(work, "__dict__", {}))
    call.__wrapped__ = work  # type: ignore[attr-defined]
    return call


def _wrap_light(plan: RetryPlan, work: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            value = work(*args, **kwargs)
            if type(value) is not Coroutine:
                return value
        except Exception as error:
            flow = run_attempts(plan, (None, error))
        else:
            flow = run_attempts(plan)
            return run_async(plan, flow, work, args, kwargs, op=next(flow), awaitable=value)
        return run_blocking(plan, flow, work, args, kwargs)

    return call


def _wrap_full(plan: RetryPlan, work: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return run_blocking(plan, make_script(plan), work, args, kwargs)

    return call


def _wrap_light_async(plan: RetryPlan, work: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await work(*args, **kwargs)
        except Exception as error:
            flow = run_attempts(plan, (None, error))
        return await run_async(plan, flow, work, args, kwargs)

    return call


def _wrap_full_async(plan: RetryPlan, work: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await run_async(plan, make_script(plan), work, args, kwargs)

    return call


def _wrap_with_breaker(plan: RetryPlan, work: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function behind a breaker in memory, at no extra cost while nothing has failed."""
    assert plan.breaker is not None
    breaker, storage = plan.breaker, plan.breaker.storage

    def call(*args: Any, **kwargs: Any) -> Any:
        if not storage.clean:
            return run_blocking(plan, make_script(plan), work, args, kwargs)
        try:
            value = work(*args, **kwargs)
            if type(value) is not Coroutine:
                if storage.clean:
                    return value
                # A call in another thread has failed meanwhile: this success has to be recorded.
                flow = run_with_breaker(plan, breaker, (value, None))  # type: ignore[unreachable]
            else:
                flow = run_with_breaker(plan, breaker)
                return run_async(plan, flow, work, args, kwargs, op=next(flow), awaitable=value)
        except Exception as error:
            flow = run_with_breaker(plan, breaker, (None, error))
        return run_blocking(plan, flow, work, args, kwargs)

    return call


def _wrap_with_breaker_async(plan: RetryPlan, work: Callable[..., Any]) -> Callable[..., Any]:
    assert plan.breaker is not None
    breaker, storage = plan.breaker, plan.breaker.storage

    async def call(*args: Any, **kwargs: Any) -> Any:
        if not storage.clean:
            return await run_async(plan, make_script(plan), work, args, kwargs)
        try:
            value = await work(*args, **kwargs)
            if storage.clean:
                return value
            flow = run_with_breaker(plan, breaker, (value, None))  # type: ignore[unreachable]
        except Exception as error:
            flow = run_with_breaker(plan, breaker, (None, error))
        return await run_async(plan, flow, work, args, kwargs)

    return call
