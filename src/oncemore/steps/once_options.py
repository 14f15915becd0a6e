"""The options of steps whose effect may happen once only: `not_applied` and `reconcile`, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.retries.options import function_colour
from oncemore.steps.engine import log

if TYPE_CHECKING:
    from collections.abc import Callable


def make_not_applied(declared: Any, effect: str) -> Callable[[Exception], bool]:
    """Return the function that decides whether an error shows that the effect did not happen."""
    if declared and effect != "once":
        raise UsageError(f"not_applied is for effect='once'; {effect} work may be repeated anyway")
    if declared == "not-sent":
        from oncemore.classifiers.classify import classify

        return lambda error: classify(error, 0.0).sent == "no"
    kinds = declared if isinstance(declared, tuple | list) else (declared,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        types = tuple(kinds)
        return lambda error: isinstance(error, types)
    # A class is callable too: taken for a predicate, KeyboardInterrupt would say yes to everything.
    if callable(declared) and not isinstance(declared, type) and function_colour(declared) == "plain":
        return lambda error: _call_predicate(declared, error)
    raise UsageError(f"not_applied is {declared!r}; it takes exception types, a predicate or 'not-sent'")


def _call_predicate(predicate: Callable[[Exception], object], error: Exception) -> bool:
    """Return the answer of a predicate; a predicate that raises counts as "may have happened"."""
    try:
        return bool(predicate(error))
    except Exception as fault:  # noqa: BLE001 - a user's mistake must not look like the work's outcome
        log.warning("oncemore: the not_applied function failed: %s", type(fault).__name__)
        return False


def check_reconcile(ask: Any, effect: str, colour: str) -> Any:
    """Return the `reconcile` function; refuse one that does not fit the step."""
    if ask is None:
        return None
    if effect != "once":
        raise UsageError(f"reconcile is for effect='once'; {effect} work may be repeated anyway")
    if not callable(ask):
        raise UsageError(f"reconcile is {ask!r}; it takes a function")
    if function_colour(ask) == "coroutine" and colour != "coroutine":
        raise UsageError("reconcile is an async function, and the step is not")
    return ask
