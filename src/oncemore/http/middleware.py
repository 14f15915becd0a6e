"""ASGI middleware of idempotent endpoints; `endpoint` has the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore._driver import run_script_async
from oncemore.http.endpoint import IdempotentEndpoint
from oncemore.http.exchange import ENDPOINT_OPERATIONS, AsyncExchange
from oncemore.http.key_scope import KEY_HEADER
from oncemore.http.stored_response import ClientConnection, read_body, wait_for_tasks, wait_forever

if TYPE_CHECKING:
    from oncemore.http.stored_response import App, Message, Receive, Scope, Send

#: How long the shutdown of the server waits for requests in progress.
DRAIN_S = 10.0
_KEY_HEADER_BYTES = KEY_HEADER.lower().encode()


class AsgiExchange(AsyncExchange):
    """A request to an ASGI application, and the connection to its client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, active_tasks: set[Any]) -> None:
        fields = [value for name, value in scope["headers"] if name.lower() == _KEY_HEADER_BYTES]
        query = scope.get("query_string", b"")
        super().__init__(active_tasks, scope, scope["method"], scope["path"], query, fields)
        self._receive, self.connection = receive, ClientConnection(send)
        self._body_delivered = False

    async def read_body(self, max_bytes: int) -> bytes:
        """Return the complete body; raise if it is too large or incomplete."""
        return await read_body(self._receive, max_bytes)

    async def run_application(self, app: App) -> None:
        """Run the application on the request; its changes to the scope are kept."""
        # Without protocol extensions: a file that the server sends by itself could not be recorded.
        inner = {**self.native, "extensions": {}}
        try:
            await app(inner, self._receive_message, self._send_message)
        finally:
            self.native.update({name: value for name, value in inner.items() if name != "extensions"})

    async def _receive_message(self) -> Message:
        if not self._body_delivered:
            self._body_delivered = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        # The application waits for a disconnect, of which it must not learn.
        await wait_forever()
        raise AssertionError("unreachable")  # pragma: no cover

    async def _send_message(self, message: Message) -> None:
        recorder = self.recorder
        if message["type"] == "http.response.start":
            recorder.begin_response(message["status"], message.get("headers", ()))
        elif message["type"] == "http.response.body" and recorder.status:
            was_large, more = recorder.is_large, message.get("more_body", False)
            streamed = recorder.add_part(message.get("body", b""), is_last=not more)
            if recorder.is_large:
                if not was_large:
                    await self.connection.send_start(recorder.status, recorder.headers)
                await self.connection.send_message(
                    {"type": "http.response.body", "body": streamed, "more_body": more}
                )


class IdempotencyMiddleware(IdempotentEndpoint):
    """ASGI middleware that processes a request with an `Idempotency-Key` once and replays its response.

    effect            the effect of a request, as in `oncemore.step`; decides what follows a crash:
                        once        the request is held for an operator or `reconcile`; a repeat gets 409
                        any other   a repeat runs again
    principal         a function of the ASGI scope, plain or async, that returns the client's identity: keys
                      of two principals are separate; None passes the request through; to share keys between
                      all clients, use `oncemore.http.same_principal`
    engine            the engine of the stored responses; by default the engine of the process
    name              the step's name in the log; the same in all processes of a service
    methods           the methods to guard ("POST", "PATCH")
    paths             the patterns of paths to guard ("*")
    optional          the patterns of paths on which a request without a key passes through; on other paths it
                      gets 400
    expires_after     how long a response is stored at least (a day); `oncemore store prune` deletes it later,
                      and a repeat then gets 410
    max_request       the size limit of a request body in bytes (1 MiB); a larger one gets 413
    max_response      the size limit of a stored response in bytes (1 MiB); a larger one is sent, not stored
    server_errors     "rerun": a response of 500 or more is not stored; "keep": it is stored like any other
    not_applied       for `once`: statuses of 500 or more that mean that the request had no effect
    reconcile         for `once`: called with the key and the principal of a request with an unknown outcome;
                      returns `oncemore.applied(oncemore.http.StoredResponse(…))`, `not_applied()` or
                      `unknown()`
    unstored_headers  further header fields of a response that are not stored
    fingerprint       a function of scope and body; a repeat must have the same result; by default a digest of
                      method, path, query and body
    attempts          how often the process may crash in a request before the request is held (10)

    Inside the application `oncemore.current()` is the attempt. Install the middleware after authentication
    and before anything with side effects.
    """

    _is_async = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            is_lifespan = scope["type"] == "lifespan"
            await self._app(scope, self._drain_on_shutdown(receive) if is_lifespan else receive, send)
            return
        exchange = AsgiExchange(scope, receive, send, self._active_tasks)
        reply = await run_script_async(self.serve_request(exchange), ENDPOINT_OPERATIONS, exchange)
        if reply.action == "pass":
            await self._app(scope, receive, send)
        elif reply.action == "send":
            await exchange.connection.send_response(reply.status, reply.headers, reply.body)
        elif reply.action == "deliver" and not exchange.recorder.is_large:
            recorder = exchange.recorder
            await exchange.connection.send_response(recorder.status, recorder.headers, recorder.body)

    def _drain_on_shutdown(self, receive: Receive) -> Receive:
        """Return a `receive` that waits for requests in progress before it reports the shutdown."""

        async def drain() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await wait_for_tasks(self._active_tasks, DRAIN_S)
            return message

        return drain
