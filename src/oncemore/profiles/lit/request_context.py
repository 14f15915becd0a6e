"""Whose request it is: the two ids that every log line of this profile carries."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._ids import uuid7
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 200


class Ids(Value):
    """A request's id and its session's; empty where there is none."""

    request_id: str = ""
    session_id: str = ""


_IDS: ContextVar[Ids] = ContextVar("oncemore.lit", default=Ids())  # noqa: B039 - frozen


@contextmanager
def context(*, request_id: str | None = None, session_id: str | None = None) -> Iterator[Ids]:
    """Let calls and writes inside carry these ids; what is left out stays as it is around it."""
    token = _IDS.set(ids(request_id, session_id))
    try:
        yield _IDS.get()
    finally:
        _IDS.reset(token)


def ids(request_id: str | None = None, session_id: str | None = None) -> Ids:
    """Return the ids of what begins now: those given, or those around it.

    Without a request's id the correlation id stands in for it, and without that a new one.
    """
    around = _IDS.get()
    request = around.request_id if request_id is None else checked("request_id", request_id)
    session = around.session_id if session_id is None else checked("session_id", session_id)
    return Ids(request or CONTEXT.get().correlation_id or uuid7(clocks.current.wall()), session)


def checked(name: str, value: object) -> str:
    """Return an id that can stand in a header and in a log line, or say what it takes."""
    fits = isinstance(value, str) and 0 < len(value) <= LONGEST and value.isascii() and value.isprintable()
    if not fits or value != value.strip():  # type: ignore[attr-defined]
        raise UsageError(f"{name} is {value!r:.80}; it takes 1 to {LONGEST} printable ASCII characters")
    return str(value)
