"""Transports for httpx and httpx2, and an adapter for requests: other people's clients, with our retries.

A client keeps what it is: its pool, redirects, cookies, authentication, and the errors it raises. What goes
through one of these is sent as often as `http.request_retry` allows; every attempt goes to the transport
inside.
No library is imported here: which one is in use is known by the request that comes in.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from contextlib import suppress

from oncemore import clock as clocks
from oncemore.classifiers.client_retries import refuse_own
from oncemore.errors import MissingExtra, UsageError
from oncemore.http.key_scope import FIELD
from oncemore.http.request_retry import Asked, Exchange, Rules, Unwelcome, small
from oncemore.retries.driver import awaiting, blocking
from oncemore.retries.loop import ENDS, again
from oncemore.retries.options import caution
from oncemore.steps.context import CONTEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Final, Unpack

    import httpx
    import httpx2
    import requests.adapters

    from oncemore.http.request_retry import Sending
    from oncemore.retries.loop import Report

    # For type checkers a transport is one of both libraries; while running it needs to be none.
    class _Plain(httpx.BaseTransport, httpx2.BaseTransport):
        def handle_request(self, request: Any) -> Any: ...
        def close(self) -> None: ...
        def __enter__(self) -> Any: ...
        def __exit__(self, *_: Any) -> None: ...

    class _Awaited(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any: ...
        async def aclose(self) -> None: ...
        async def __aenter__(self) -> Any: ...
        async def __aexit__(self, *_: Any) -> None: ...

    _Adapting = requests.adapters.BaseAdapter
else:
    _Plain = _Awaited = _Adapting = object

#: The least that is left to a wait whose time is up: 0 would mean something else to a socket.
SHORTEST_S: Final = 0.001
_PORTS: Final = {"http": 80, "https": 443}
_WAITS: Final = ("connect", "read", "write", "pool")
#: Two threads that use a client first at the same time get one transport.
_lock = allocate_lock()


class Cut(dict[str, "float | None"]):
    """The time limits of a request, none of which reaches beyond its deadline.

    httpcore asks for each one when its phase begins; so what is left by then is what it is told.
    """

    ends: float | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return how long the next wait of this kind may be."""
        own = super().get(name, default)
        if self.ends is None:
            return own
        left = max(self.ends - clocks.current.monotonic(), SHORTEST_S)
        return left if own is None else min(own, left)


class _Httpx:
    """What both transports have in common: reading a request, and making the one that is sent."""

    def __init__(self, rules: Rules, request: Any) -> None:
        url = request.url
        port = url.port if url.port not in (None, _PORTS.get(url.scheme)) else None
        host = url.host if port is None else f"{url.host}:{port}"
        keyed = FIELD in request.headers
        self._request, self._rules = request, rules
        asked = Asked(request, request.method.upper(), host, str(url), keyed, _again(request))
        self.exchange = Exchange(rules, asked)
        limits = request.extensions.get("timeout") or {}
        self._limits = Cut({wait: limits.get(wait) or rules.timeout for wait in _WAITS})

    def made(self) -> Any:
        """Return the request of the next attempt; the caller's own stays as it is."""
        asked = self._request
        headers = asked.headers.copy()
        for name, value in self.exchange.fields().items():
            headers[name] = value
        self._limits.ends = ENDS.get()
        extensions = {**asked.extensions, "timeout": self._limits}
        return type(asked)(
            asked.method, asked.url, headers=headers, stream=asked.stream, extensions=extensions
        )

    def let_go(self) -> None:
        """Leave reading the body to the deadline around the call: the call's own time was for the answer."""
        self.exchange.over()
        self._limits.ends = _around()


def _around() -> float | None:
    """Return when all must be over that is done here, on the monotonic clock: the step, or the context."""
    ends, deadline, clock = ENDS.get(), CONTEXT.get().deadline, clocks.current
    if not deadline:
        return ends
    told = clock.monotonic() + (deadline - clock.wall())
    return told if ends is None else min(ends, told)


def _again(request: Any) -> bool:
    """Whether a body can be had a second time: it is in memory, or a form that rewinds its files."""
    stream = request.stream
    if isinstance(stream, _library(request).ByteStream):
        return True
    parts = getattr(stream, "fields", None)
    return isinstance(parts, list) and all(_rewinds(getattr(part, "file", b"")) for part in parts)


def _library(request: Any) -> Any:
    """Return the library that a request is of: httpx or httpx2."""
    return sys.modules[type(request).__module__.partition(".")[0]]


def _rewinds(file: Any) -> bool:
    if isinstance(file, bytes | str):
        return True
    with suppress(Exception):
        return bool(file.seekable())
    return False


class Transport(_Plain):
    """A transport for `httpx.Client` and `httpx2.Client` that sends again what may be sent again.

    inner      the transport that does it, `httpx.HTTPTransport(...)` for example; unless given, the usual one
    attempts   how often a request is sent at most (3)
    within     limit of a call up to its answer, with its waits
    wait, jitter, policy, seed, on_event, category   as in `oncemore.retry`
    budget     a `Budget`, or a function that makes one for a host: what retries may cost together
    breaker    a `Breaker`, or a function that makes one for a host: a host that keeps failing is left alone
    repeats    what may be sent again although its method is not idempotent: ("POST",), or a function of a
               request; what carries an Idempotency-Key may, whatever is said here
    in_step    "once": inside a durable step a request is sent once, and the step itself tries again; "retry":
               it is sent again inside the attempt too, and both numbers multiply
    timeout    limit of each wait of a request that has none of its own (30 s)
    key_style  how a key is written: "quoted" as the draft standard has it, or "bare"
    on_retry, on_give_up   called with a `Report` before each wait, and when it is not sent again

    Retry-After and RateLimit are never undercut; a wait that is too long ends the call, with the answer.
    A host whose breaker is open is not asked: `CircuitOpen`. What became of a request is told by
    `oncemore.http.told(response)`.
    """

    def __init__(self, inner: Any = None, **options: Unpack[Sending]) -> None:
        self._inner = _checked(inner, "handle_request", "Transport")
        self._rules = Rules("Transport", options, "plain")
        caution(self._rules.plan)

    def handle_request(self, request: Any) -> Any:
        """Send a request; return the answer, or raise what the transport inside raises."""
        if self._inner is None:
            with _lock:
                self._inner = self._inner or _library(request).HTTPTransport()
        way = _Httpx(self._rules, request)
        inner, exchange, hook = self._inner, way.exchange, self._rules.on_retry

        def send() -> Any:
            answer = inner.handle_request(way.made())
            return exchange.judged(answer, answer.status_code, answer.headers)

        def let_go(report: Report) -> None:
            if type(report.error) is Unwelcome:
                _thrown_away(report.error.answer)
            if hook is not None:
                hook(report)

        plan = exchange.plan(let_go, self._rules.on_give_up)
        try:
            return exchange.answered(blocking(plan, again(plan), send, (), {}))
        except Exception as error:  # noqa: BLE001 - raised again, unless it is an answer
            return exchange.failed(error)
        finally:
            way.let_go()

    def close(self) -> None:
        """Close the transport inside."""
        if self._inner is not None:
            self._inner.close()

    def __enter__(self) -> Transport:
        if self._inner is not None:
            self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self._inner is not None:
            self._inner.__exit__(kind, error, trace)


class AsyncTransport(_Awaited):
    """A transport for `httpx.AsyncClient` and `httpx2.AsyncClient`; takes what `Transport` takes.

    inner  the transport that does it, `httpx.AsyncHTTPTransport(...)`; unless given, the usual one
    """

    def __init__(self, inner: Any = None, **options: Unpack[Sending]) -> None:
        self._inner = _checked(inner, "handle_async_request", "AsyncTransport")
        self._rules = Rules("AsyncTransport", options, "coroutine")
        caution(self._rules.plan)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request; return the answer, or raise what the transport inside raises."""
        if self._inner is None:
            with _lock:
                self._inner = self._inner or _library(request).AsyncHTTPTransport()
        way = _Httpx(self._rules, request)
        inner, exchange, hook = self._inner, way.exchange, self._rules.on_retry

        async def send() -> Any:
            answer = await inner.handle_async_request(way.made())
            return exchange.judged(answer, answer.status_code, answer.headers)

        async def let_go(report: Report) -> None:
            if type(report.error) is Unwelcome:
                await _thrown_away_awaited(report.error.answer)
            heard: Any = None if hook is None else hook(report)
            if hasattr(type(heard), "__await__"):
                await heard

        plan = exchange.plan(let_go, self._rules.on_give_up)
        try:
            return exchange.answered(await awaiting(plan, again(plan), send, (), {}))
        except Exception as error:  # noqa: BLE001 - raised again, unless it is an answer
            return exchange.failed(error)
        finally:
            way.let_go()

    async def aclose(self) -> None:
        """Close the transport inside."""
        if self._inner is not None:
            await self._inner.aclose()

    async def __aenter__(self) -> AsyncTransport:
        if self._inner is not None:
            await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if self._inner is not None:
            await self._inner.__aexit__(kind, error, trace)


class Adapter(_Adapting):
    """An adapter for `requests.Session.mount`; takes what `Transport` takes.

    inner  the adapter that does it, `requests.adapters.HTTPAdapter(...)`; unless given, the usual one

    What is left of `within` when the answer comes also limits each wait for a piece of its body.
    """

    def __init__(self, inner: Any = None, **options: Unpack[Sending]) -> None:
        if inner is None:
            try:
                from requests.adapters import HTTPAdapter
            except ImportError as missing:
                raise MissingExtra(
                    "oncemore.http.Adapter() is for requests: pip install requests"
                ) from missing
            inner = HTTPAdapter()
        self._inner = _checked(inner, "send", "Adapter")
        self._rules = Rules("Adapter", options, "plain")
        caution(self._rules.plan)

    def send(
        self,
        request: Any,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Any:
        """Send a request; return the answer, or raise what the adapter inside raises."""
        exchange, hook = Exchange(self._rules, _prepared(request)), self._rules.on_retry
        inner, usual = self._inner, self._rules.timeout
        from requests.utils import rewind_body

        def once() -> Any:
            sent = request.copy()
            sent.headers.update(exchange.fields())
            if exchange.sent > 1 and hasattr(sent.body, "read"):
                rewind_body(sent)
            limits = _limits(timeout, usual, ENDS.get())
            answer = inner.send(sent, stream, limits, verify, cert, proxies)
            return exchange.judged(answer, answer.status_code, answer.headers)

        def let_go(report: Report) -> None:
            if type(report.error) is Unwelcome:
                answer = report.error.answer
                with suppress(Exception):
                    small(answer.headers) and answer.content
                answer.close()
            if hook is not None:
                hook(report)

        plan = exchange.plan(let_go, self._rules.on_give_up)
        try:
            return exchange.answered(blocking(plan, again(plan), once, (), {}))
        except Exception as error:  # noqa: BLE001 - raised again, unless it is an answer
            return exchange.failed(error)
        finally:
            exchange.over()

    def close(self) -> None:
        """Close the adapter inside."""
        self._inner.close()


def _checked(inner: Any, method: str, where: str) -> Any:
    """Refuse what is no transport, and one that retries by itself."""
    if inner is not None and not callable(getattr(inner, method, None)):
        raise UsageError(f"{where}() takes a transport inside that can {method}, and got {inner!r}")
    refuse_own(inner, where)
    return inner


def _thrown_away(answer: Any) -> None:
    """Close an answer that nobody will read; a short one is read, so that its connection is kept."""
    with suppress(Exception):
        small(answer.headers) and answer.read()
    answer.close()


async def _thrown_away_awaited(answer: Any) -> None:
    with suppress(Exception):
        small(answer.headers) and await answer.aread()
    await answer.aclose()


def _prepared(request: Any) -> Asked:
    """Read a request of requests."""
    from urllib.parse import urlsplit

    parts = urlsplit(request.url)
    port = parts.port if parts.port not in (None, _PORTS.get(parts.scheme)) else None
    host = parts.hostname or ""
    host = host if port is None else f"{host}:{port}"
    body = request.body
    again = body is None or isinstance(body, bytes | str)
    if not again and hasattr(body, "read"):
        again = isinstance(getattr(request, "_body_position", None), int) and _rewinds(body)
    return Asked(request, request.method.upper(), host, request.url, FIELD in request.headers, again)


def _limits(timeout: Any, usual: float, ends: float | None) -> Any:
    """Return the time limits of a request: its own, or the usual one, and never beyond its deadline."""
    from urllib3.util import Timeout

    if isinstance(timeout, Timeout):
        connect, read, total = timeout.connect_timeout, timeout.read_timeout, timeout.total
    else:
        connect, read = timeout if isinstance(timeout, tuple) else (timeout, timeout)
        total = None
    if ends is not None:
        left = max(ends - clocks.current.monotonic(), SHORTEST_S)
        total = left if not isinstance(total, int | float) else min(total, left)
    return Timeout(total=total, connect=_or(connect, usual), read=_or(read, usual))


def _or(limit: Any, usual: float) -> Any:
    return limit if isinstance(limit, int | float) else usual
