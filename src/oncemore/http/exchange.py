"""One request to an idempotent endpoint: its operations, and the reply to its client.

`RequestExchange` is what a server of any kind knows of a request. `endpoint` yields the operations below, and
the exchange performs them, by plain methods for a blocking server and by async ones for an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from oncemore._driver import OperationTable
from oncemore.errors import UsageError
from oncemore.http.stored_response import run_detached

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oncemore.http.stored_response import ResponseRecorder


class RequestExchange:
    """One request and the response to it, as the argument of the step that the log does not store.

    native         the request as the server knows it: ASGI scope, WSGI environ, Django's request
    key_fields     the values of its `Idempotency-Key` fields
    recorder       records the response of the application
    is_unrecorded  whether the response is sent without being stored
    error          the exception of the application, if it raised one

    A subclass performs the operations of `serve_request` by three methods, all plain or all async:
    `find_principal(function)`, `read_body(max_bytes)` and `call_step(step, arguments)`; and
    `run_application(app)` runs the application on the body and records its response.
    """

    recorder: ResponseRecorder

    def __init__(self, native: Any, method: str, path: str, query: bytes, key_fields: list[bytes]) -> None:
        self.native, self.method, self.path, self.query = native, method, path, query
        self.key_fields = key_fields
        self.principal, self.body = "", b""
        self.is_unrecorded = False
        self.error: BaseException | None = None

    find_principal: Callable[[Callable[[Any], Any]], Any]
    read_body: Callable[[int], Any]
    call_step: Callable[[Any, tuple[Any, ...]], Any]
    run_application: Callable[[Any], Any]

    @property
    def is_streamed(self) -> bool:
        """Whether the beginning of the response has been sent to the client."""
        return self.recorder.is_large


class BlockingExchange(RequestExchange):
    """A request in a thread of the server, which waits for its end."""

    def find_principal(self, function: Callable[[Any], Any]) -> Any:
        """Return the client's identity."""
        return refuse_awaitable("principal", function(self.native))

    def call_step(self, step: Any, arguments: tuple[Any, ...]) -> Any:
        """Call the step."""
        return step(*arguments)


class AsyncExchange(RequestExchange):
    """A request on an event loop: its step runs to the end even if the server cancels the request."""

    def __init__(self, active_tasks: set[Any], *request: Any) -> None:
        super().__init__(*request)
        self._active_tasks = active_tasks

    async def find_principal(self, function: Callable[[Any], Any]) -> Any:
        """Return the client's identity from a plain or async function."""
        principal = function(self.native)
        return await principal if is_awaitable(principal) else principal

    async def call_step(self, step: Any, arguments: tuple[Any, ...]) -> Any:
        """Call the step in a task of its own; a cancelled caller leaves it running."""
        return await run_detached(lambda: step(*arguments), self._active_tasks)


# Operations and replies -----------------------------------------------------------------------------


class FindPrincipal(NamedTuple):
    """Call the function that identifies the client. Returns what the function returned."""

    function: Callable[[Any], Any]


class ReadRequestBody(NamedTuple):
    """Read the whole body. Returns bytes; raises `RequestTooLarge` or `RequestTruncated`."""

    max_bytes: int


class CallRequestStep(NamedTuple):
    """Call the step of the endpoint. Returns the stored record, or raises an `Error`."""

    step: Any
    arguments: tuple[Any, ...]


def _perform_find_principal(exchange: Any, op: FindPrincipal) -> Any:
    return exchange.find_principal(op.function)


def _perform_read_body(exchange: Any, op: ReadRequestBody) -> Any:
    return exchange.read_body(op.max_bytes)


def _perform_call_step(exchange: Any, op: CallRequestStep) -> Any:
    return exchange.call_step(op.step, op.arguments)


_PERFORMERS: dict[type, Callable[[Any, Any], Any]] = {
    FindPrincipal: _perform_find_principal,
    ReadRequestBody: _perform_read_body,
    CallRequestStep: _perform_call_step,
}
#: The same functions for both drivers: the methods of an async exchange return awaitables.
ENDPOINT_OPERATIONS = OperationTable(_PERFORMERS, _PERFORMERS)


class Reply(NamedTuple):
    """What the client gets.

    action  pass: whatever the application responds, without this endpoint
            send: the status, header fields and body of this reply
            deliver: the recorded response, with all header fields
            drop: nothing more; the beginning of its response has been sent
    """

    action: Literal["pass", "send", "deliver", "drop"]
    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""


def is_awaitable(value: Any) -> bool:
    """Return whether a value is to be awaited."""
    return hasattr(type(value), "__await__")


def refuse_awaitable(option: str, value: Any) -> Any:
    """Return a value; raise `UsageError` if a function given to a blocking endpoint was async."""
    if is_awaitable(value):
        # A coroutine that is not closed makes Python warn that it was never awaited.
        getattr(value, "close", bool)()
        raise UsageError(f"{option} is async; a blocking application takes a plain function")
    return value
