"""One HTTP request with JSON in and out, by urllib; and the ids of the current request for log lines.

Redirects are not followed: urllib would turn a POST into a GET and send our headers to another host. A body
that ends before its announced length means a cut connection; urllib does not notice that when it reads in
parts.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from oncemore import clock as clocks
from oncemore._redact import mask_text
from oncemore._values import Value
from oncemore._version import __version__
from oncemore.classifiers.http_status import get_header, parse_retry_after
from oncemore.errors import UsageError
from oncemore.log.entry_codec import new_uuid7
from oncemore.profiles.lit.errors import CoreAnswer, UnreadableCoreAnswer
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping
    from urllib.request import OpenerDirector

#: The number of the request within its call; above 1, Core may have seen the same request before (MSG-9).
ATTEMPT_HEADER: Final = "Oncemore-Attempt"
REQUEST_ID_HEADER: Final = "X-Request-ID"
SESSION_ID_HEADER: Final = "X-Session-ID"
KEY_HEADER: Final = "Idempotency-Key"

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_DETAIL_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_EMPTY_STATUSES: Final = (204, 205)


class _NoRedirect(HTTPRedirectHandler):
    """Returns a redirect to the caller as an ordinary response."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that urllib does not follow the redirect."""


def make_opener(context: ssl.SSLContext | None) -> OpenerDirector:
    """Return an opener that uses the proxies of the environment and follows no redirects."""
    return build_opener(_NoRedirect, HTTPSHandler(context=context))


def check_base_url(url: object) -> str:
    """Return a base address without its last slash; refuse one that is not http(s) or holds a user name."""
    if not isinstance(url, str):
        raise UsageError(f"base_url is {url!r:.80}; it takes a text like http://core.internal:8080")
    try:
        parts = urlsplit(url)
        is_complete = parts.scheme in ("http", "https") and parts.hostname
        # Reading the port validates it; urlsplit itself accepts any text there.
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"base_url is {mask_text(url)!r}: {error}") from None
    if not is_complete or parts.query or parts.fragment:
        raise UsageError(f"base_url is {mask_text(url)!r}; it takes http:// or https:// and a host, no query")
    # A password in the address would appear in logs and errors.
    if parts.username is not None:
        raise UsageError("base_url holds a user name; give headers={'Authorization': …} instead")
    return url.rstrip("/")


def check_path(path: object) -> str:
    """Return a path that can be requested as it is; refuse one that is not quoted."""
    is_plain = isinstance(path, str) and path.startswith("/") and path.isascii() and path.isprintable()
    if not is_plain or " " in path:  # type: ignore[operator]
        raise UsageError(
            f"path is {path!r:.80}; it begins with / and is quoted already (urllib.parse.quote does that)"
        )
    return str(path)


def encode_body(body: object) -> bytes | None:
    """Return the JSON bytes of a value; None for no body."""
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the payload cannot be written as JSON: {error}") from None


def make_request(method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Request:
    """Return a request for urllib."""
    default_headers = {"Accept": "application/json", "User-Agent": f"oncemore/{__version__}"}
    if body is not None:
        default_headers["Content-Type"] = "application/json"
    return Request(url, data=body, headers={**default_headers, **headers}, method=method)  # noqa: S310 - checked by check_base_url


def send_request(opener: OpenerDirector, request: Request, limit_s: float | None) -> Any:
    """Send one request and return the value of its response; raise the errors of one attempt."""
    try:
        with opener.open(request, timeout=limit_s) as response:
            return _read_value(response)
    except HTTPError as error:  # a subclass of URLError, which means that there was no response
        raise _make_core_answer(error) from error


def _read_value(response: HTTPResponse) -> Any:
    data = _read_body(response)
    # Only these statuses promise an empty body; an empty 200 is an unreadable response.
    if not data and response.status in _EMPTY_STATUSES:
        return None
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        kind = get_header(response.headers, "Content-Type") or "no type"
        raise UnreadableCoreAnswer(
            f"{response.status} with {len(data)} bytes that are not JSON ({kind[:80]})"
        ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _read_body(response: HTTPResponse) -> bytes:
    """Read a body to its end, up to the limit; raise `IncompleteRead` for one that was cut."""
    parts, size = [], 0
    while part := response.read(_CHUNK_BYTES):
        size += len(part)
        if size > MAX_BYTES:
            raise UnreadableCoreAnswer(f"{response.status} with more than {MAX_BYTES} bytes")
        parts.append(part)
    data = b"".join(parts)
    if response.length:
        raise IncompleteRead(data, response.length)
    return data


def _make_core_answer(error: HTTPError) -> CoreAnswer:
    """Return the error for a response that is not a success, and close its connection."""
    try:
        # The detail is for people: a cut body must not hide the status.
        body_bytes = error.read(MAX_DETAIL_BYTES)
    except (OSError, HTTPException):
        body_bytes = b""
    finally:
        error.close()
    wait = parse_retry_after(get_header(error.headers, "Retry-After"), clocks.current.wall())
    where = get_header(error.headers, "Location") if 300 <= error.code < 400 else None
    detail = f"redirects to {where}, which is not followed" if where else _read_detail(body_bytes)
    return CoreAnswer(error.code, mask_text(detail or str(error.reason or "")), wait)


def _read_detail(body_bytes: bytes) -> str:
    """Return the detail of a response: one of the usual JSON fields, or its text."""
    text = body_bytes.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        value = next(
            (value[name] for name in ("detail", "message", "error", "title") if value.get(name)), value
        )
    return value if isinstance(value, str) else text


MAX_ID_LENGTH = 200


class RequestIds(Value):
    """The ids of a request, its session and the work that it belongs to; empty if there is none."""

    request_id: str = ""
    session_id: str = ""
    correlation_id: str = ""


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

    Without a request id, the correlation id takes its place, and without that a new id. Without a correlation
    id, the request id takes its place.
    """
    current_context = _IDS.get()
    request = current_context.request_id if request_id is None else check_id("request_id", request_id)
    session = current_context.session_id if session_id is None else check_id("session_id", session_id)
    correlation = CONTEXT.get().correlation_id
    request = request or correlation or new_uuid7(clocks.current.wall())
    return RequestIds(request, session, correlation or request)


def check_id(name: str, value: object) -> str:
    """Return an id that a header and a log line can carry; refuse any other value."""
    is_valid = (
        isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and value.isascii() and value.isprintable()
    )
    # Surrounding blanks would be lost in a header.
    if not is_valid or value != value.strip():  # type: ignore[attr-defined]
        raise UsageError(f"{name} is {value!r:.80}; it takes 1 to {MAX_ID_LENGTH} printable ASCII characters")
    return str(value)
