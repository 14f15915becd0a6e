"""WSGI middleware of idempotent endpoints, for Flask and others; `endpoint` has the rules."""

from __future__ import annotations

from http.client import responses
from io import BytesIO
from typing import TYPE_CHECKING, Any

from oncemore._driver import run_script
from oncemore.http.endpoint import IdempotentEndpoint
from oncemore.http.exchange import ENDPOINT_OPERATIONS, BlockingExchange
from oncemore.http.stored_response import RequestTooLarge, RequestTruncated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Environ = dict[str, Any]
    StartResponse = Callable[..., Callable[[bytes], object]]
    WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]

_PART_BYTES = 65_536


class WsgiExchange(BlockingExchange):
    """A request to a WSGI application, and the connection to its client."""

    def __init__(self, environ: Environ, start_response: StartResponse) -> None:
        # PEP 3333 has the bytes of a path as Latin-1; ASGI has the same path as UTF-8.
        raw_path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        key = environ.get("HTTP_IDEMPOTENCY_KEY")
        super().__init__(
            environ,
            environ["REQUEST_METHOD"],
            raw_path.encode("latin-1").decode("utf-8", "surrogateescape"),
            environ.get("QUERY_STRING", "").encode("latin-1"),
            # Servers join repeated fields by a comma, which no key may contain unquoted.
            [] if key is None else [key.encode("latin-1")],
        )
        self._server_start_response = start_response
        self._status_line = ""
        self._write: Callable[[bytes], object] | None = None
        self._is_gone = False

    def read_body(self, max_bytes: int) -> bytes:
        """Return the complete body; raise if it is too large or incomplete."""
        length = _parse_length(self.native)
        if length is not None and length > max_bytes:
            raise RequestTooLarge
        stream, parts, rest = self.native["wsgi.input"], [], max_bytes + 1 if length is None else length
        try:
            while rest and (part := stream.read(min(rest, _PART_BYTES))):
                parts.append(part)
                rest -= len(part)
        # Servers report a broken connection by errors of their own, most of them an OSError.
        except OSError as error:
            raise RequestTruncated from error
        if length is None and not rest:
            raise RequestTooLarge
        if length is not None and rest:
            raise RequestTruncated
        return b"".join(parts)

    def run_application(self, app: WsgiApp) -> None:
        """Run the application on the request and record its response."""
        environ = self.native
        environ["wsgi.input"], environ["wsgi.input_terminated"] = BytesIO(self.body), True
        environ["CONTENT_LENGTH"] = str(len(self.body))
        # The body is in memory now; frameworks ignore CONTENT_LENGTH beside this field.
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        parts = app(environ, self._start_response)
        try:
            for part in parts:
                self._record_part(part)
            if self.recorder.status:
                self.recorder.add_part(b"", is_last=True)
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()

    def _start_response(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        # As PEP 3333 has it: an error page can only replace a response that has no body yet.
        if exc_info is not None and (self.recorder.is_large or self.recorder.body):
            raise exc_info[1].with_traceback(exc_info[2])
        self._status_line = status
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self.recorder.begin_response(int(status.partition(" ")[0]), fields)
        return self._record_part

    def _record_part(self, part: bytes) -> None:
        """Record a part of the body; stream it if the response is too large to be stored."""
        streamed = self.recorder.add_part(part)
        if not streamed or self._is_gone:
            return
        if self._write is None:
            self._write = self.start_recorded_response()
        try:
            self._write(streamed)
        except Exception:  # noqa: BLE001 - each server has an error of its own for a client that is gone
            self._is_gone = True

    def start_recorded_response(self) -> Callable[[bytes], object]:
        """Start the response of the application; return the server's `write`."""
        fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.recorder.headers]
        return self._server_start_response(self._status_line, fields)


class WsgiIdempotencyMiddleware(IdempotentEndpoint):
    """WSGI middleware that processes a request with an `Idempotency-Key` once and replays its response.

    The options are those of `oncemore.http.IdempotencyMiddleware`, with the WSGI environ in the place of the
    ASGI scope; `principal` and `reconcile` are plain functions. In Flask:

        app.wsgi_app = oncemore.http.WsgiIdempotencyMiddleware(app.wsgi_app, effect="once", principal=user_of)
    """

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        exchange = WsgiExchange(environ, start_response)
        reply = run_script(self.serve_request(exchange), ENDPOINT_OPERATIONS, exchange)
        if reply.action == "pass":
            response: Iterable[bytes] = self._app(environ, start_response)
            return response
        if reply.action == "send":
            fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
            start_response(f"{reply.status} {responses.get(reply.status, 'Unknown')}", fields)
            return [reply.body]
        if reply.action == "deliver" and not exchange.is_streamed:
            exchange.start_recorded_response()
            return [exchange.recorder.body]
        return []


def _parse_length(environ: Environ) -> int | None:
    """Return the length of a body, or None if only its end tells."""
    text = environ.get("CONTENT_LENGTH") or ""
    if text:
        return int(text)
    # Without a length a stream may never end, unless the server ends it.
    return None if environ.get("wsgi.input_terminated") else 0
