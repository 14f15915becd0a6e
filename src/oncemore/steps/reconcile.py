"""`reconcile`: find out whether a lost attempt of a `once` step took effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.errors import log_warning
from oncemore.retries.loop import ENDS
from oncemore.steps.attempt import CURRENT, RunningAttempt
from oncemore.steps.current_attempt import AttemptContext
from oncemore.steps.ops import ReconcileAnswer

if TYPE_CHECKING:
    from oncemore.steps.call import PreparedCall
    from oncemore.steps.ops import AskReconcile


def applied(value: Any = None) -> ReconcileAnswer:
    """Return the answer that the lost attempt did take effect, with the value that it returned."""
    return ReconcileAnswer("applied", value)


def not_applied() -> ReconcileAnswer:
    """Return the answer that the lost attempt did not take effect: it may be tried again."""
    return ReconcileAnswer("not_applied")


def unknown() -> ReconcileAnswer:
    """Return the answer that it cannot be known: the run stays held."""
    return ReconcileAnswer("unknown")


def ask_reconcile(call: PreparedCall, op: AskReconcile) -> ReconcileAnswer:
    """Call the step's `reconcile` function; an error or a wrong answer counts as unknown."""
    if call.interrupt is not None:
        return ReconcileAnswer("unknown")
    context = _reconcile_context(call, op)
    try:
        with context:
            return _check_answer(_call_reconcile(call))
    except BaseException as error:  # noqa: BLE001 - the outcome is unknown
        return _reconcile_failed(call, error)


async def ask_reconcile_async(call: PreparedCall, op: AskReconcile) -> ReconcileAnswer:
    """Call the step's `reconcile` function and await its answer, if it is async."""
    if call.interrupt is not None:
        return ReconcileAnswer("unknown")
    context = _reconcile_context(call, op)
    try:
        with context:
            answer = _call_reconcile(call)
            return _check_answer(await answer if hasattr(type(answer), "__await__") else answer)
    except BaseException as error:  # noqa: BLE001 - the outcome is unknown
        answer = _reconcile_failed(call, error)
        call.keep_if_closed(error, answer)
        return answer


def _reconcile_context(call: PreparedCall, op: AskReconcile) -> AttemptContext:
    """Return the context of a `reconcile` function: the lost attempt and its recorded arguments."""
    # The recorded arguments: the lost attempt may have changed the objects of this process.
    call.load_arguments(op.head)
    attempt = RunningAttempt(op.head, call, CURRENT.get(), read_only=True)
    return AttemptContext(attempt, call.engine.artifact_store, ENDS.get())


def _call_reconcile(call: PreparedCall) -> Any:
    assert call.plan.reconcile is not None
    return call.plan.reconcile(*call.args, **call.kwargs)


def _check_answer(answer: Any) -> ReconcileAnswer:
    if type(answer) is ReconcileAnswer:
        return answer
    # True and False are not answers: their meaning would be a guess, and a wrong one repeats the effect.
    log_warning(f"a reconcile function answered {answer!r}; it takes applied(), not_applied() or unknown()")
    return ReconcileAnswer("unknown")


def _reconcile_failed(call: PreparedCall, error: BaseException) -> ReconcileAnswer:
    """Return "unknown" for a `reconcile` that raised; an interruption is raised after that is stored."""
    if isinstance(error, Exception):
        log_warning(f"a reconcile function failed: {type(error).__name__}")
    else:
        call.interrupt = error
    return ReconcileAnswer("unknown")
