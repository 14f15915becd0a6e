"""One HTTP request with JSON in and out, by urllib: what is sent, what is read, where the limits are.

`HTTPError` is a `URLError`, so it is told apart first. No redirect is followed: urllib would turn a POST
into a GET and hand our headers to another host. A body that ends before its announced length is a cut
connection, which urllib itself does not notice when it is read in parts.
"""

from __future__ import annotations

import json
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import TYPE_CHECKING, Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from oncemore import clock as clocks
from oncemore._redact import masked
from oncemore._version import __version__
from oncemore.classifiers.http_status import field, parse_retry_after
from oncemore.errors import UsageError
from oncemore.profiles.lit.errors import BadAnswer, CoreAnswer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from urllib.request import OpenerDirector

#: Which attempt of a call a request is; above 1, Core may have seen the same request before (MSG-9).
ATTEMPT: Final = "Oncemore-Attempt"
REQUEST_ID: Final = "X-Request-ID"
SESSION_ID: Final = "X-Session-ID"
KEY: Final = "Idempotency-Key"

MOST_BYTES: Final = 64 * 1024 * 1024
MOST_DETAIL: Final = 64 * 1024
_PART: Final = 64 * 1024
_EMPTY: Final = (204, 205)


class _Stay(HTTPRedirectHandler):
    """Leaves a redirect as the answer that it is."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def opener_of(context: ssl.SSLContext | None) -> OpenerDirector:
    """Return what opens requests: proxies as the environment says, no redirects."""
    return build_opener(_Stay, HTTPSHandler(context=context))


def base_of(url: object) -> str:
    """Return a base address without its last slash, or say what is wrong with it."""
    if not isinstance(url, str):
        raise UsageError(f"base_url is {url!r:.80}; it takes a text like http://core.internal:8080")
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"base_url is {masked(url)!r}: {error}") from None
    if not known or parts.query or parts.fragment:
        raise UsageError(f"base_url is {masked(url)!r}; it takes http:// or https:// and a host, no query")
    if parts.username is not None:
        raise UsageError("base_url holds a user name; give headers={'Authorization': …} instead")
    return url.rstrip("/")


def path_of(path: object) -> str:
    """Return a path that can be asked for as it is."""
    plain = isinstance(path, str) and path.startswith("/") and path.isascii() and path.isprintable()
    if not plain or " " in path:  # type: ignore[operator]
        raise UsageError(
            f"path is {path!r:.80}; it begins with / and is quoted already (urllib.parse.quote does that)"
        )
    return str(path)


def body_of(body: object) -> bytes | None:
    """Return what is sent for a value; None sends nothing."""
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the body has no form in JSON: {error}") from None


def request_of(method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Request:
    """Return a request as urllib takes it."""
    own = {"Accept": "application/json", "User-Agent": f"oncemore/{__version__}"}
    if body is not None:
        own["Content-Type"] = "application/json"
    return Request(url, data=body, headers={**own, **headers}, method=method)  # noqa: S310 - checked by base_of


def exchange(opener: OpenerDirector, request: Request, limit_s: float | None) -> Any:
    """Send one request and return the value of its answer; raise what one attempt can end with."""
    try:
        with opener.open(request, timeout=limit_s) as answer:
            return _value(answer)
    except HTTPError as error:  # before all that a URLError stands for: it is one
        raise _answered(error) from error


def _value(answer: HTTPResponse) -> Any:
    data = _whole(answer)
    if not data and answer.status in _EMPTY:
        return None
    try:
        return json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        kind = field(answer.headers, "Content-Type") or "no type"
        raise BadAnswer(f"{answer.status} with {len(data)} bytes that are no JSON ({kind[:80]})") from error


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _whole(answer: HTTPResponse) -> bytes:
    """Read a body to its end, up to the limit; one that is shorter than announced was cut."""
    parts, size = [], 0
    while part := answer.read(_PART):
        size += len(part)
        if size > MOST_BYTES:
            raise BadAnswer(f"{answer.status} with more than {MOST_BYTES} bytes")
        parts.append(part)
    data = b"".join(parts)
    if answer.length:
        raise IncompleteRead(data, answer.length)
    return data


def _answered(error: HTTPError) -> CoreAnswer:
    """Return what Core said, with its connection closed."""
    try:
        said = error.read(MOST_DETAIL)
    except (OSError, HTTPException):
        said = b""
    finally:
        error.close()
    wait = parse_retry_after(field(error.headers, "Retry-After"), clocks.current.wall())
    where = field(error.headers, "Location") if 300 <= error.code < 400 else None
    detail = f"redirects to {where}, which is not followed" if where else _detail(said)
    return CoreAnswer(error.code, masked(detail or str(error.reason or "")), wait)


def _detail(said: bytes) -> str:
    """Return the detail of an answer: the usual fields of JSON, or its text."""
    text = said.decode("utf-8", "replace").strip()
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(told, dict):
        told = next((told[name] for name in ("detail", "message", "error", "title") if told.get(name)), told)
    return told if isinstance(told, str) else text
