"""Records the application's response and replays stored responses; reads ASGI requests into memory.

The application does not learn that its client has disconnected: it must finish, because the response is
stored for a retry of the request. A response beyond the size limit is streamed to the client and not stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Header fields that are sent but not stored: of one message or connection, or with a secret of one client.
UNSTORED_HEADERS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"te", b"trailer", b"upgrade",
     b"date", b"server", b"set-cookie", b"www-authenticate", b"authentication-info", b"alt-svc")
)  # fmt: skip
#: The highest size limit that can be configured: a stored response is a step's result, whose size is limited.
MAX_BYTES = 32 * 1024 * 1024
REPLAYED_HEADER = (b"idempotent-replayed", b"true")


class StoredResponse(Value):
    """A stored response, also as the result of `reconcile=`: status, body, header fields."""

    status: int
    body: bytes = b""
    headers: Any = ()


def response_to_record(response: StoredResponse) -> dict[str, Any]:
    """Return a response as the log stores it; refuse an invalid status or body."""
    status, body, headers = response
    pairs = headers.items() if hasattr(headers, "items") else headers
    fields = [[_decode_latin1(name).lower(), _decode_latin1(value)] for name, value in pairs]
    if not 100 <= status <= 599 or not isinstance(body, bytes):
        raise UsageError(
            f"a StoredResponse takes a status from 100 to 599 and a body of bytes, not {response!r:.80}"
        )
    return {"status": status, "headers": fields, "body": body}


def _decode_latin1(text: Any) -> str:
    return text.decode("latin-1") if isinstance(text, bytes) else str(text)


class RequestTooLarge(Exception):
    """A request is larger than the limit."""


class RequestTruncated(Exception):
    """The client disconnected before the request was complete."""


def check_byte_limit(option: str, value: Any) -> int:
    """Return a size limit in bytes; raise `UsageError` if it is out of range."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_BYTES:
        raise UsageError(f"{option} is {value!r}; it takes 1 to {MAX_BYTES} bytes")
    return value


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """Return the complete body of a request; raise if it is too large or incomplete."""
    parts, length, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestTruncated
        part = message.get("body", b"")
        length += len(part)
        # Before the part is stored, so that memory stays bounded.
        if length > max_bytes:
            raise RequestTooLarge
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


class ClientConnection:
    """The connection to a client; after a disconnect, messages are dropped without an error."""

    def __init__(self, send: Send) -> None:
        self._send, self.is_gone = send, False

    async def send_message(self, message: Message) -> None:
        """Send an ASGI message, unless the client has disconnected."""
        if not self.is_gone:
            try:
                await self._send(message)
            # The ASGI specification has `send` raise OSError after a disconnect.
            except OSError:
                self.is_gone = True

    async def send_start(self, status: int, fields: Any) -> None:
        """Send the status and the header fields of a response."""
        await self.send_message({"type": "http.response.start", "status": status, "headers": fields})

    async def send_response(self, status: int, fields: Any, body: bytes) -> None:
        """Send a complete response."""
        await self.send_start(status, fields)
        await self.send_message({"type": "http.response.body", "body": body, "more_body": False})


class ResponseRecorder:
    """The response of the application to one request, as far as it has come.

    has_run      whether the application was called; if not, the client gets a stored response
    status       of the response; 0 before it has begun
    headers      all header fields of the response
    is_complete  whether the response has ended
    max_bytes    the limit of a stored body
    is_large     whether the response is beyond the limit; its body is then streamed and not stored
    """

    def __init__(self, max_bytes: int, unstored_headers: frozenset[bytes]) -> None:
        self.max_bytes, self._unstored_headers = max_bytes, unstored_headers
        self._parts: list[bytes] = []
        self._length = 0
        self.has_run, self.is_large, self.is_complete = False, False, False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    def begin_response(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Record the status and the header fields."""
        self.status = status
        self.headers = [(bytes(name), bytes(value)) for name, value in headers]

    def add_part(self, part: bytes, *, is_last: bool = False) -> bytes:
        """Record a part of the body; return the bytes that are to be streamed now, which may be none."""
        self.is_complete = is_last
        self._length += len(part)
        if self.is_large:
            return part
        self._parts.append(part)
        if self._length <= self.max_bytes:
            return b""
        # From here on the response is streamed, beginning with the parts in memory.
        self.is_large = True
        recorded, self._parts = b"".join(self._parts), []
        return recorded

    @property
    def body(self) -> bytes:
        """The recorded body."""
        return b"".join(self._parts)

    def to_record(self) -> dict[str, Any]:
        """Return the response as the log stores it; of a large one only status and length."""
        if self.is_large:
            return {"status": self.status, "headers": [], "body": None, "length": self._length}
        fields = [(name, value) for name, value in self.headers if name.lower() not in self._unstored_headers]
        return response_to_record(StoredResponse(self.status, self.body, fields))


def replay_response(stored: Mapping[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the status, header fields and body of a stored response."""
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in stored["headers"]]
    return stored["status"], [*fields, REPLAYED_HEADER], stored["body"]


async def wait_forever() -> None:
    """Wait until the task is cancelled."""
    trio = clocks.find_trio()
    if trio is not None:
        await trio.sleep_forever()
        return
    import asyncio

    await asyncio.get_running_loop().create_future()


async def run_detached(work: Callable[[], Awaitable[Any]], active_tasks: set[Any]) -> Any:
    """Await work that runs to its end even if the caller is cancelled."""
    trio = clocks.find_trio()
    if trio is not None:
        # A task of trio cannot outlive its parent, so it is shielded from cancellation instead.
        with trio.CancelScope(shield=True):
            return await work()
    import asyncio

    task = asyncio.ensure_future(work())
    active_tasks.add(task)
    task.add_done_callback(active_tasks.discard)
    # Reading the exception avoids the warning of asyncio that it was never retrieved.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(task)


async def wait_for_tasks(active_tasks: set[Any], seconds: float) -> None:
    """Wait for running tasks, for at most some seconds."""
    if active_tasks:
        import asyncio

        await asyncio.wait(set(active_tasks), timeout=seconds)
