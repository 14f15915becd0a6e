"""Retrying transports for httpx and httpx2.

The client keeps its pool, redirects, cookies, authentication and errors; each attempt goes to the inner
transport. Neither library is imported here: the class of the request tells which one is in use.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from contextlib import suppress

from oncemore import clock as clocks
from oncemore.classifiers.client_retries import refuse_client_retries
from oncemore.errors import UsageError
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
from oncemore.steps.context import CONTEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Unpack

    import httpx
    import httpx2

    from oncemore.http.request_retry import ClientKeywords

    # Type checkers want a base class of each library; at run time none is needed.
    class _SyncBase(httpx.BaseTransport, httpx2.BaseTransport):
        def handle_request(self, request: Any) -> Any: ...
        def close(self) -> None: ...
        def __enter__(self) -> Any: ...
        def __exit__(self, *_: Any) -> None: ...

    class _AsyncBase(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any: ...
        async def aclose(self) -> None: ...
        async def __aenter__(self) -> Any: ...
        async def __aexit__(self, *_: Any) -> None: ...

else:
    _SyncBase = _AsyncBase = object

#: The timeout after the deadline has passed: 0 would make a socket non-blocking.
MIN_TIMEOUT_S: Final = 0.001
_TIMEOUT_KINDS: Final = ("connect", "read", "write", "pool")
#: Held while the inner transport is created, because two threads may send the first request.
_lock = allocate_lock()


class CappedTimeouts(dict[str, "float | None"]):
    """The timeouts of a request, capped by its deadline.

    httpcore reads each one when its phase begins, and gets the time that is left then.
    """

    deadline: float | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the timeout of a phase, at most the time until the deadline."""
        timeout = super().get(name, default)
        if self.deadline is None:
            return timeout
        left = max(self.deadline - clocks.current.monotonic(), MIN_TIMEOUT_S)
        return left if timeout is None else min(timeout, left)


class _HttpxExchange:
    """One request of httpx or httpx2 and its attempts; shared by the sync and the async transport."""

    def __init__(self, options: ClientOptions, request: Any) -> None:
        url = request.url
        self._request = request
        info = RequestInfo(
            request=request,
            method=request.method.upper(),
            host=format_host(url.scheme, url.host, url.port),
            url=str(url),
            has_key=KEY_HEADER in request.headers,
            is_body_repeatable=_is_body_repeatable(request),
        )
        self.retry = RequestRetry(options, info)
        limits = request.extensions.get("timeout") or {}
        self._timeouts = CappedTimeouts(
            {phase: limits.get(phase) or options.timeout for phase in _TIMEOUT_KINDS}
        )

    def build_request(self) -> Any:
        """Return the request of the next attempt, a copy of the caller's."""
        original = self._request
        headers = original.headers.copy()
        for name, value in self.retry.start_attempt().items():
            headers[name] = value
        # The loop sets it for each attempt.
        self._timeouts.deadline = ENDS.get()
        extensions = {**original.extensions, "timeout": self._timeouts}
        return type(original)(
            original.method, original.url, headers=headers, stream=original.stream, extensions=extensions
        )

    def limit_body(self) -> None:
        """Limit reading the body by the surrounding deadline only."""
        # `total_timeout` is the time until the response; the body is read after this call has returned.
        self._timeouts.deadline = _outer_deadline()


def _outer_deadline() -> float | None:
    """Return the deadline of the surrounding step or context on the monotonic clock, or None."""
    step_deadline, wall_deadline, clock = ENDS.get(), CONTEXT.get().deadline, clocks.current
    if not wall_deadline:
        return step_deadline
    context_deadline = clock.monotonic() + (wall_deadline - clock.wall())
    return context_deadline if step_deadline is None else min(step_deadline, context_deadline)


def _is_body_repeatable(request: Any) -> bool:
    """Return whether a body can be sent twice: it is in memory, or a form with seekable files."""
    stream = request.stream
    if isinstance(stream, _client_library(request).ByteStream):
        return True
    parts = getattr(stream, "fields", None)
    # A multipart stream has `fields`, and rewinds their files itself.
    return isinstance(parts, list) and all(is_rewindable(getattr(part, "file", b"")) for part in parts)


def _client_library(request: Any) -> Any:
    """Return the library of a request: the module httpx or httpx2."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def is_rewindable(file: Any) -> bool:
    """Return whether a file can be read a second time."""
    if isinstance(file, bytes | str):
        return True
    with suppress(Exception):
        return bool(file.seekable())
    return False


class Transport(_SyncBase):
    """A retrying transport for `httpx.Client` and `httpx2.Client`.

    inner            the transport that sends, by default `HTTPTransport()` of the client's library
    attempts         the maximum number of attempts (3)
    total_timeout    the limit of a call until its response, including the waits
    wait, jitter, policy, seed, on_event, category   as in `oncemore.retry`
    budget           a `Budget`, or a function that makes one per host: limits the retries of all requests
    breaker          a `Breaker`, or a function that makes one per host: refuses calls to a failing host
    idempotent       requests that may be repeated although their method is not idempotent: ("POST",), or a
                     function of a request; a request with an Idempotency-Key may always be repeated
    retries_in_step  "once": inside a durable step a request is sent once per attempt of the step; "retry": it
                     is retried inside the attempt, too, and both numbers multiply
    timeout          the limit of each phase of a request without timeouts of its own (30 s)
    key_style        the form of the key: "quoted" as in the draft standard, or "bare"
    on_retry, on_give_up   called with a `RetryReport` before each wait, and after the last attempt

    Retry-After and RateLimit are always respected; if the wait is too long, the caller gets the response.
    While the breaker of a host is open, requests to it raise `CircuitOpen`.
    `oncemore.http.retry_info(response)` returns how a request was retried.
    """

    def __init__(self, inner: Any = None, **options: Unpack[ClientKeywords]) -> None:
        self._inner = check_inner(inner, "handle_request", "Transport")
        self._options = ClientOptions("Transport", options, "plain")
        warn_unwise_policy(self._options.plan)

    def handle_request(self, request: Any) -> Any:
        """Send a request; return the response, or raise the error of the inner transport."""
        # Created now, because only the request tells which of the libraries is in use.
        if self._inner is None:
            with _lock:
                self._inner = self._inner or _client_library(request).HTTPTransport()
        exchange = _HttpxExchange(self._options, request)
        send = self._inner.handle_request
        try:
            return exchange.retry.run_attempts(lambda: send(exchange.build_request()), _discard_response)
        finally:
            exchange.limit_body()

    def close(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            self._inner.close()

    def __enter__(self) -> Transport:
        if self._inner is not None:
            self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._inner is not None:
            self._inner.__exit__(*error)


class AsyncTransport(_AsyncBase):
    """A retrying transport for `httpx.AsyncClient` and `httpx2.AsyncClient`, with the options of `Transport`.

    inner  the transport that sends, by default `AsyncHTTPTransport()` of the client's library
    """

    def __init__(self, inner: Any = None, **options: Unpack[ClientKeywords]) -> None:
        self._inner = check_inner(inner, "handle_async_request", "AsyncTransport")
        self._options = ClientOptions("AsyncTransport", options, "coroutine")
        warn_unwise_policy(self._options.plan)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request; return the response, or raise the error of the inner transport."""
        # Created now, because only the request tells which of the libraries is in use.
        if self._inner is None:
            with _lock:
                self._inner = self._inner or _client_library(request).AsyncHTTPTransport()
        exchange = _HttpxExchange(self._options, request)
        send = self._inner.handle_async_request
        try:
            return await exchange.retry.run_attempts_async(
                lambda: send(exchange.build_request()), _discard_response_async
            )
        finally:
            exchange.limit_body()

    async def aclose(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> AsyncTransport:
        if self._inner is not None:
            await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(*error)


def check_inner(inner: Any, method: str, where: str) -> Any:
    """Return the inner transport; raise if it is not a transport, or if it retries by itself."""
    if inner is not None and not callable(getattr(inner, method, None)):
        raise UsageError(f"{where}() takes an inner transport with a method {method}, not {inner!r}")
    # Its attempts would multiply with ours.
    refuse_client_retries(inner, where)
    return inner


def _discard_response(response: Any) -> None:
    """Close a response before the next attempt; read a short one, so that its connection can be reused."""
    with suppress(Exception):
        is_short_response(response.headers) and response.read()
    response.close()


async def _discard_response_async(response: Any) -> None:
    with suppress(Exception):
        is_short_response(response.headers) and await response.aread()
    await response.aclose()
