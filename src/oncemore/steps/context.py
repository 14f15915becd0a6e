"""The context of a call: tenant, correlation id, deadline, actor, trace id.

`with context(tenant=…, correlation_id=…):` sets it for all steps called inside, in this thread or task and in
the tasks that it starts. Inside a step the context has the step's own values, and inner steps inherit them.
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

#: The end of the year 9999: a later time is a mistake, or was given in milliseconds.
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
    """Set the context of calls inside the block; values that are not given stay those of the outer context.

    deadline  an aware datetime or POSIX seconds; an inner deadline can only be earlier than an outer one
    trace_id  the trace that audit events of the `exoarmur` interface name
    """
    outer = CONTEXT.get()
    ends = outer.deadline
    if deadline is not None:
        # The outer caller has stopped waiting by then: a later inner deadline would be of no use.
        ends = earlier_deadline(_parse_deadline(deadline), outer.deadline)
    inner = CallContext(
        # A tenant is a part of keys: two spellings of one name must not be two tenants.
        outer.tenant if tenant is None else normalize_name(_check_text("tenant", tenant)),
        outer.correlation_id if correlation_id is None else _check_text("correlation_id", correlation_id),
        ends,
        outer.actor if actor is None else normalize_name(_check_text("actor", actor)),
        outer.trace_id if trace_id is None else _check_text("trace_id", trace_id),
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
    seconds = _to_posix_seconds(deadline)
    if seconds is None:
        raise UsageError(f"deadline is {deadline!r}; it takes an aware datetime, or POSIX seconds")
    return seconds


def _to_posix_seconds(value: Any) -> float | None:
    """Return a moment in POSIX seconds; None for any other value, and for a datetime without a time zone."""
    # True is an int in Python, and not a moment.
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if 0 < value < inf else None
    return None if getattr(value, "tzinfo", None) is None else float(value.timestamp())


def parse_moment(name: str, value: When, now: float) -> float:
    """Return a moment or a timedelta from now as POSIX seconds."""
    total_seconds = getattr(value, "total_seconds", None)
    moment = _to_posix_seconds(value) if total_seconds is None else now + total_seconds()
    if moment is None or moment > LATEST:
        raise UsageError(
            f"{name} is {value!r}; it takes an aware datetime, POSIX seconds, or a timedelta from now"
        )
    return moment


def earlier_deadline(first: float, second: float) -> float:
    """Return the earlier of two deadlines; 0 stands for no deadline."""
    return min(first, second) if first and second else first or second


def compute_deadlines(
    total_timeout_s: float | None, outer_deadline: float, now: float
) -> tuple[float, float]:
    """Return the deadline of a new run, and the end of this caller's wait; 0 for no limit."""
    own = now + total_timeout_s if total_timeout_s is not None else 0.0
    deadline = earlier_deadline(own, outer_deadline)
    # The limit of an outer attempt ends this caller's wait only: a worker may finish the run later.
    outer_end = ENDS.get()
    if outer_end is None:
        return deadline, deadline
    give_up = now + max(0.0, outer_end - clocks.current.monotonic())
    return deadline, min(deadline, give_up) if deadline else give_up
