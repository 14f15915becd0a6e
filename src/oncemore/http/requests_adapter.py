"""A retrying adapter for requests; requests itself is imported only if the adapter is used."""

from __future__ import annotations

from contextlib import suppress

from oncemore import clock as clocks
from oncemore.errors import MissingExtra
from oncemore.http.clients import MIN_TIMEOUT_S, check_inner, is_rewindable
from oncemore.http.key_scope import KEY_HEADER
from oncemore.http.request_retry import (
    ClientOptions,
    RequestInfo,
    RequestRetry,
    format_host,
    is_short_response,
)
from oncemore.retries.loop import ENDS
from oncemore.retries.options import warn_unwise_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Unpack

    import requests.adapters

    from oncemore.http.request_retry import ClientKeywords

    _AdapterBase = requests.adapters.BaseAdapter
else:
    _AdapterBase = object


class Adapter(_AdapterBase):
    """A retrying adapter for `requests.Session.mount`, with the options of `Transport`.

    inner  the adapter that sends, by default `requests.adapters.HTTPAdapter()`

    The rest of `total_timeout` at the time of the response also limits each read of its body.
    """

    def __init__(self, inner: Any = None, **options: Unpack[ClientKeywords]) -> None:
        if inner is None:
            try:
                from requests.adapters import HTTPAdapter
            except ImportError as error:
                raise MissingExtra("oncemore.http.Adapter() is for requests: pip install requests") from error
            inner = HTTPAdapter()
        self._inner = check_inner(inner, "send", "Adapter")
        self._options = ClientOptions("Adapter", options, "plain")
        warn_unwise_policy(self._options.plan)

    def send(
        self,
        request: Any,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Any:
        """Send a request; return the response, or raise the error of the inner adapter."""
        retry = RequestRetry(self._options, _read_request(request))
        inner, default_timeout = self._inner, self._options.timeout
        # Imported here: the caller's session has loaded requests by now.
        from requests.utils import rewind_body

        def send_once() -> Any:
            # A copy: the caller's request stays as it is.
            attempt = request.copy()
            attempt.headers.update(retry.start_attempt())
            if retry.attempts_sent > 1 and hasattr(attempt.body, "read"):
                rewind_body(attempt)
            limits = _cap_timeouts(timeout, default_timeout, ENDS.get())
            return inner.send(attempt, stream, limits, verify, cert, proxies)

        return retry.run_attempts(send_once, _discard_response)

    def close(self) -> None:
        """Close the inner adapter."""
        self._inner.close()


def _discard_response(response: Any) -> None:
    """Close a response before the next attempt; read a short one, so that its connection can be reused."""
    with suppress(Exception):
        is_short_response(response.headers) and response.content
    response.close()


def _read_request(request: Any) -> RequestInfo:
    """Return the properties of a prepared request of requests."""
    from urllib.parse import urlsplit

    parts = urlsplit(request.url)
    body = request.body
    is_repeatable = body is None or isinstance(body, bytes | str)
    if not is_repeatable and hasattr(body, "read"):
        # `rewind_body` of requests needs the position from which the body was first sent.
        is_repeatable = isinstance(getattr(request, "_body_position", None), int) and is_rewindable(body)
    return RequestInfo(
        request=request,
        method=request.method.upper(),
        host=format_host(parts.scheme, parts.hostname or "", parts.port),
        url=request.url,
        has_key=KEY_HEADER in request.headers,
        is_body_repeatable=is_repeatable,
    )


def _cap_timeouts(timeout: Any, default: float, deadline: float | None) -> Any:
    """Return the timeouts of a request: its own or the default, and none beyond the deadline."""
    from urllib3.util import Timeout

    if isinstance(timeout, Timeout):
        connect, read, total = timeout.connect_timeout, timeout.read_timeout, timeout.total
    else:
        connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        total = None
    if deadline is not None:
        # `total` limits connecting and reading together.
        left = max(deadline - clocks.current.monotonic(), MIN_TIMEOUT_S)
        total = left if not isinstance(total, int | float) else min(total, left)
    return Timeout(
        total=total, connect=_timeout_or_default(connect, default), read=_timeout_or_default(read, default)
    )


def _timeout_or_default(limit: Any, default: float) -> Any:
    return limit if isinstance(limit, int | float) else default
