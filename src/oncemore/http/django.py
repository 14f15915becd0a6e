"""Django middleware of idempotent endpoints, blocking and async; `endpoint` has the rules.

A middleware of Django returns a whole response. A streamed response is therefore read to its end before it is
sent: into memory up to the limit of stored responses, and into a temporary file beyond it.
"""

from __future__ import annotations

from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any

from oncemore._driver import run_script, run_script_async
from oncemore.errors import MissingExtra, UsageError
from oncemore.http.endpoint import IdempotentEndpoint
from oncemore.http.exchange import ENDPOINT_OPERATIONS, AsyncExchange, BlockingExchange
from oncemore.http.stored_response import RequestTooLarge, RequestTruncated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from oncemore.http.exchange import Reply

SETTING = "ONCEMORE_IDEMPOTENCY"
#: The options that are functions; the settings may name them by a dotted path.
_FUNCTION_OPTIONS = ("principal", "reconcile", "fingerprint")
_EXAMPLE = f'{SETTING} = {{"effect": "once", "principal": "shop.auth.customer_of"}}'
_PART_BYTES = 65_536


class StoredStream:
    """The body of a streamed response, in memory or in a temporary file, to be sent once."""

    def __init__(self, max_memory: int) -> None:
        self._file = SpooledTemporaryFile(max_memory)  # noqa: SIM115 - closed with the response

    def write_part(self, part: bytes) -> None:
        """Append a part."""
        self._file.write(part)

    def rewind(self) -> None:
        """Go back to the beginning, to read."""
        self._file.seek(0)

    def read_parts(self) -> Iterator[bytes]:
        """Yield the parts from the current position on."""
        while part := self._file.read(_PART_BYTES):
            yield part

    def close(self) -> None:
        """Delete the file; Django calls this with the end of the response."""
        self._file.close()


class BlockingStream(StoredStream):
    """A stored stream for a blocking server."""

    def __iter__(self) -> Iterator[bytes]:
        return self.read_parts()


class AsyncStream(StoredStream):
    """A stored stream for an async server."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.read_parts():
            yield part


class DjangoExchange(BlockingExchange):
    """A request to a blocking Django application.

    response  the response of the application, if it has run
    stream    the copy of its body, if it was streamed
    """

    response: Any = None
    stream: StoredStream | None = None
    # Django sends nothing before the middleware has returned.
    is_streamed = False

    def read_body(self, max_bytes: int) -> bytes:
        """Return the complete body; raise if it is too large or incomplete."""
        return _read_body(self.native, max_bytes)

    def run_application(self, app: Callable[[Any], Any]) -> None:
        """Run the rest of the middleware and the view, and record the response."""
        self.response = app(self.native)
        self.stream = _begin_response(self, BlockingStream)
        if self.stream is not None:
            for part in self.response:
                self.recorder.add_part(part)
                self.stream.write_part(part)
            _end_stream(self)


class DjangoAsyncExchange(AsyncExchange):
    """A request to an async Django application; `response` and `stream` as in `DjangoExchange`."""

    response: Any = None
    stream: StoredStream | None = None
    is_streamed = False

    async def read_body(self, max_bytes: int) -> bytes:
        """Return the complete body; raise if it is too large or incomplete."""
        # Django has received it before the first middleware is called.
        return _read_body(self.native, max_bytes)

    async def run_application(self, app: Callable[[Any], Any]) -> None:
        """Run the rest of the middleware and the view, and record the response."""
        self.response = await app(self.native)
        self.stream = _begin_response(self, AsyncStream)
        if self.stream is not None:
            async for part in self.response:
                self.recorder.add_part(part)
                self.stream.write_part(part)
            _end_stream(self)


def _read_body(request: Any, max_bytes: int) -> bytes:
    from django.core.exceptions import RequestDataTooBig  # type: ignore[import-untyped]
    from django.http import RawPostDataException, UnreadablePostError  # type: ignore[import-untyped]

    length = int(request.META.get("CONTENT_LENGTH") or 0)
    # Before the body is read into memory; a body without a length is checked below.
    if length > max_bytes:
        raise RequestTooLarge
    try:
        body: bytes = request.body
    except RequestDataTooBig:
        # The limit of Django, DATA_UPLOAD_MAX_MEMORY_SIZE, is lower.
        raise RequestTooLarge from None
    except UnreadablePostError as error:
        raise RequestTruncated from error
    except RawPostDataException as error:
        raise UsageError(
            "an earlier middleware has read the form of this request; "
            "put oncemore.http.DjangoIdempotencyMiddleware before it"
        ) from error
    if len(body) > max_bytes:
        raise RequestTooLarge
    # WSGI servers report a lost client by a short body.
    if len(body) < length:
        raise RequestTruncated
    return body


def _begin_response(exchange: Any, stream_class: type[StoredStream]) -> Any:
    """Record the response of the application; return the stream to copy a streamed body into, else None."""
    response, recorder = exchange.response, exchange.recorder
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
    recorder.begin_response(response.status_code, fields)
    if response.streaming:
        return stream_class(recorder.max_bytes)
    recorder.add_part(response.content, is_last=True)
    return None


def _end_stream(exchange: Any) -> None:
    exchange.recorder.add_part(b"", is_last=True)
    exchange.stream.rewind()
    exchange.response.streaming_content = exchange.stream


@contextmanager
def _close_unused_stream(exchange: Any) -> Iterator[None]:
    """Close the copy of a streamed body if the request failed or gets another response."""
    exchange.is_delivered = False
    try:
        yield
    finally:
        if exchange.stream is not None and not exchange.is_delivered:
            exchange.stream.close()


class DjangoIdempotencyMiddleware(IdempotentEndpoint):
    """Django middleware that processes a request with an `Idempotency-Key` once and replays its response.

        MIDDLEWARE = [..., "oncemore.http.DjangoIdempotencyMiddleware"]        # after authentication
        ONCEMORE_IDEMPOTENCY = {"effect": "once", "principal": "shop.auth.customer_of"}

    The options are those of `oncemore.http.IdempotencyMiddleware`, with Django's request in the place of the
    ASGI scope. `principal`, `reconcile` and `fingerprint` are functions or dotted paths of functions; they
    may be async if the application is.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        try:
            from asgiref.sync import iscoroutinefunction, markcoroutinefunction
            from django.conf import settings  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingExtra("the middleware needs Django: pip install 'oncemore[django]'") from error
        self._is_async = iscoroutinefunction(get_response)
        try:
            super().__init__(get_response, **_read_options(getattr(settings, SETTING, None)))
        except TypeError as error:
            # An unknown or a missing option; Python's own text names it.
            raise UsageError(
                f"{SETTING}: {str(error).rpartition('() ')[2]}; for example: {_EXAMPLE}"
            ) from None
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        """Return the response to a request, or an awaitable of it if the application is async."""
        if self._is_async:
            return self._serve_async(request)
        exchange = DjangoExchange(*_describe_request(request))
        with _close_unused_stream(exchange):
            reply = run_script(self.serve_request(exchange), ENDPOINT_OPERATIONS, exchange)
            return self._app(request) if reply.action == "pass" else _make_response(reply, exchange)

    async def _serve_async(self, request: Any) -> Any:
        exchange = DjangoAsyncExchange(self._active_tasks, *_describe_request(request))
        with _close_unused_stream(exchange):
            reply = await run_script_async(self.serve_request(exchange), ENDPOINT_OPERATIONS, exchange)
            return await self._app(request) if reply.action == "pass" else _make_response(reply, exchange)


def _read_options(value: Any) -> dict[str, Any]:
    """Return the options of the settings, with functions in the place of dotted paths."""
    from django.utils.module_loading import import_string  # type: ignore[import-untyped]

    if not isinstance(value, dict):
        raise UsageError(f"the settings need {SETTING}, a dictionary of options; for example: {_EXAMPLE}")
    options = dict(value)
    for name in _FUNCTION_OPTIONS:
        if isinstance(options.get(name), str):
            try:
                options[name] = import_string(options[name])
            except ImportError as error:
                raise UsageError(f"{SETTING}[{name!r}] is {options[name]!r}: {error}") from error
    return options


def _describe_request(request: Any) -> tuple[Any, str, str, bytes, list[bytes]]:
    """Return a request, its method, path, query and keys."""
    key = request.META.get("HTTP_IDEMPOTENCY_KEY")
    query = request.META.get("QUERY_STRING", "").encode("utf-8", "surrogateescape")
    fields = [] if key is None else [key.encode("latin-1", "replace")]
    return request, request.method, request.path, query, fields


def _make_response(reply: Reply, exchange: Any) -> Any:
    """Return a reply as a response of Django."""
    from django.http import HttpResponse

    if reply.action == "deliver":
        exchange.is_delivered = True
        return exchange.response
    response = HttpResponse(reply.body, status=reply.status)
    # Django's default, which a stored response without a content type must not get.
    del response["Content-Type"]
    for raw_name, raw_value in reply.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        # Django has one value per name; a list of values is the same to the client.
        response[name] = f"{response[name]}, {value}" if name in response else value
    return response
