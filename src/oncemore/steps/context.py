"""The context of a call: tenant, correlation id, deadline, actor, trace id.

`with context(tenant=…, correlation_id=…):` sets it for all steps called inside, in this thread or task and
in what inherits its context. Inside a step its own values are set, so that inner steps carry them on.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.policy.canonical_json import normalize_name
from oncemore.retries.loop import ENDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, timedelta

    When = datetime | float | timedelta

#: The end of the year 9999: what is later is a mistake, or milliseconds.
LATEST = 253_402_300_799.0


class CallContext(Value):
    """The context of a call; an empty string or 0 means that a value is not set."""

    tenant: str = ""
    correlation_id: str = ""
    deadline: float = 0.0
    actor: str = ""
    trace_id: str = ""


CONTEXT: ContextVar[CallContext] = ContextVar("oncemore.context", default=CallContext())  # noqa: B039 - frozen


@contextmanager
def context(
    *,
    tenant: str | None = None,
    correlation_id: str | None = None,
    deadline: datetime | float | None = None,
    actor: str | None = None,
    trace_id: str | None = None,
) -> Iterator[CallContext]:
    """Let calls inside carry these values; what is left out stays as it is around it.

    deadline  an aware datetime or POSIX seconds; one inside another can only be earlier
    trace_id  the trace that audit events of the `exoarmur` interface name
    """
    around = CONTEXT.get()
    ends = (
        around.deadline if deadline is None else earlier_deadline(_parse_deadline(deadline), around.deadline)
    )
    inner = CallContext(
        around.tenant if tenant is None else normalize_name(_check_text("tenant", tenant)),
        around.correlation_id if correlation_id is None else _check_text("correlation_id", correlation_id),
        ends,
        around.actor if actor is None else normalize_name(_check_text("actor", actor)),
        around.trace_id if trace_id is None else _check_text("trace_id", trace_id),
    )
    token = CONTEXT.set(inner)
    try:
        yield inner
    finally:
        CONTEXT.reset(token)


def _check_text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or len(value) > 200:
        raise UsageError(f"{name} is {value!r}; it takes a text of 1 to 200 characters")
    return value


def _parse_deadline(deadline: datetime | float) -> float:
    found = _to_posix_seconds(deadline)
    if found is None:
        raise UsageError(f"deadline is {deadline!r}; it takes an aware datetime, or POSIX seconds")
    return found


def _to_posix_seconds(value: Any) -> float | None:
    """Return a moment in POSIX seconds; None if it is none, or nobody knows in which zone it is meant."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 < value < inf else None
    return None if getattr(value, "tzinfo", None) is None else float(value.timestamp())


def parse_moment(name: str, value: When, now: float) -> float:
    """Return a moment in POSIX seconds that was given as one, or as a stretch of time from now."""
    seconds = getattr(value, "total_seconds", None)
    found = _to_posix_seconds(value) if seconds is None else now + seconds()
    if found is None or found > LATEST:
        raise UsageError(
            f"{name} is {value!r}; it takes an aware datetime, POSIX seconds, or a timedelta from now"
        )
    return found


def earlier_deadline(one: float, other: float) -> float:
    """Return the earlier of two moments, of which 0 is none."""
    return min(one, other) if one and other else one or other


def compute_deadlines(
    total_timeout_s: float | None, outer_deadline: float, now: float
) -> tuple[float, float]:
    """Return when a new run must have ended, and until when this caller waits; 0 for no limit."""
    own = now + total_timeout_s if total_timeout_s is not None else 0.0
    deadline = min(own, outer_deadline) if own and outer_deadline else own or outer_deadline
    outer = ENDS.get()
    if outer is None:
        return deadline, deadline
    left = now + max(0.0, outer - clocks.current.monotonic())
    return deadline, min(deadline, left) if deadline else left
