"""The ids of the current request and session, which every log line of this profile carries."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from oncemore import clock as clocks
from oncemore._ids import new_uuid7
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ID_LENGTH = 200


class RequestIds(Value):
    """The ids of a request and its session; empty if there is none."""

    request_id: str = ""
    session_id: str = ""


# A context variable, so that threads and tasks have ids of their own.
_IDS: ContextVar[RequestIds] = ContextVar("oncemore.lit", default=RequestIds())  # noqa: B039 - frozen


@contextmanager
def context(*, request_id: str | None = None, session_id: str | None = None) -> Iterator[RequestIds]:
    """Set the ids of all calls and writes inside the block; an omitted id keeps its outer value."""
    token = _IDS.set(current_ids(request_id, session_id))
    try:
        yield _IDS.get()
    finally:
        _IDS.reset(token)


def current_ids(request_id: str | None = None, session_id: str | None = None) -> RequestIds:
    """Return the ids for an operation that starts now: those given, or those of the context.

    Without a request id, the correlation id takes its place, and without that a new id.
    """
    current_context = _IDS.get()
    request = current_context.request_id if request_id is None else check_id("request_id", request_id)
    session = current_context.session_id if session_id is None else check_id("session_id", session_id)
    return RequestIds(request or CONTEXT.get().correlation_id or new_uuid7(clocks.current.wall()), session)


def check_id(name: str, value: object) -> str:
    """Return an id that a header and a log line can carry; refuse any other value."""
    is_valid = (
        isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and value.isascii() and value.isprintable()
    )
    # Surrounding blanks would be lost in a header.
    if not is_valid or value != value.strip():  # type: ignore[attr-defined]
        raise UsageError(f"{name} is {value!r:.80}; it takes 1 to {MAX_ID_LENGTH} printable ASCII characters")
    return str(value)
