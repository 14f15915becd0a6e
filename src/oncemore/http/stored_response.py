"""One request and its answer between an ASGI server and an application: read whole, kept, sent.

The application gets the request from memory and is never told that the client has gone: what it has begun it
is to finish, for the answer is kept for whoever asks again. Its answer is kept up to a limit; what is longer
goes straight on to the client from there, and is not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Fields that belong to one message or one connection, or that hold a secret of one client: sent, not kept.
OF_ONE_MESSAGE = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"te", b"trailer", b"upgrade",
     b"date", b"server", b"set-cookie", b"www-authenticate", b"authentication-info", b"alt-svc")
)  # fmt: skip
#: What a limit of bytes may be: an answer is a step's result, and those have one too.
LARGEST_BYTES = 32 * 1024 * 1024
REPLAYED = (b"idempotent-replayed", b"true")


class Answer(Value):
    """An answer as it is kept, and as `reconcile=` gives one: status, body, header fields."""

    status: int
    body: bytes = b""
    headers: Any = ()

    def stored(self) -> dict[str, Any]:
        """Return what the log keeps of it."""
        pairs = self.headers.items() if hasattr(self.headers, "items") else self.headers
        fields = [[_latin(name).lower(), _latin(value)] for name, value in pairs]
        if not 100 <= self.status <= 599 or not isinstance(self.body, bytes):
            raise UsageError(
                f"an Answer takes a status from 100 to 599 and a body of bytes, not {self!r:.80}"
            )
        return {"status": self.status, "headers": fields, "body": self.body}


def _latin(text: Any) -> str:
    return text.decode("latin-1") if isinstance(text, bytes) else str(text)


class TooLarge(Exception):
    """A request is longer than it may be."""


class CutOff(Exception):
    """A request ended before it was whole."""


def check_byte_limit(option: str, value: Any) -> int:
    """Return a limit of bytes; refuse one that cannot be meant."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= LARGEST_BYTES:
        raise UsageError(f"{option} is {value!r}; it takes 1 to {LARGEST_BYTES} bytes")
    return value


async def whole(receive: Receive, most: int) -> bytes:
    """Return a request's body, read to its end."""
    parts, length, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CutOff
        part = message.get("body", b"")
        length += len(part)
        if length > most:
            raise TooLarge
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)


class Wire:
    """The way to a client that may have gone: what is sent then goes nowhere, and nobody stops for it."""

    def __init__(self, send: Send) -> None:
        self._send, self.gone = send, False

    async def send(self, message: Message) -> None:
        """Send a message, if there is anybody to send it to."""
        if not self.gone:
            try:
                await self._send(message)
            except OSError:
                self.gone = True

    async def answer(self, status: int, fields: Any, body: bytes) -> None:
        """Send a whole answer."""
        await self.send({"type": "http.response.start", "status": status, "headers": fields})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})


class Kept:
    """The application's side of one request: what it is given, and what it answers.

    ran        whether the application was asked at all: if not, what is sent is a kept answer
    status     of its answer; 0 before it has begun one
    large      whether the answer was longer than may be kept: it has gone to the client already
    """

    def __init__(self, wire: Wire, body: bytes, most: int, left_out: frozenset[bytes]) -> None:
        self._wire, self._body, self._most, self._left_out = wire, body, most, left_out
        self._given = False
        self._parts: list[bytes] = []
        self._length = 0
        self.ran, self.large, self.over = False, False, False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    async def run(self, app: App, scope: Scope) -> None:
        """Let the application work on the request; what it leaves in the scope is left there.

        Extensions of the protocol are not offered: a file that the server sends by itself passes us by.
        """
        self.ran = True
        inner = {**scope, "extensions": {}}
        try:
            await app(inner, self._receive, self._send)
        finally:
            scope.update({name: value for name, value in inner.items() if name != "extensions"})

    async def _receive(self) -> Message:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await _forever()
        raise AssertionError("nobody gets here")  # pragma: no cover

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
            return
        if message["type"] != "http.response.body" or not self.status:
            return
        part = message.get("body", b"")
        self.over = not message.get("more_body", False)
        self._length += len(part)
        if self.large:
            await self._wire.send(message)
            return
        self._parts.append(part)
        if self._length > self._most:
            self.large = True
            held, self._parts = b"".join(self._parts), []
            await self._wire.send(
                {"type": "http.response.start", "status": self.status, "headers": self.headers}
            )
            await self._wire.send({"type": "http.response.body", "body": held, "more_body": not self.over})

    @property
    def body(self) -> bytes:
        """The answer's body, as far as it is kept."""
        return b"".join(self._parts)

    def stored(self) -> dict[str, Any]:
        """Return what the log keeps of the answer: all that is not of this one message."""
        if self.large:
            return {"status": self.status, "headers": [], "body": None, "length": self._length}
        fields = [(name, value) for name, value in self.headers if name.lower() not in self._left_out]
        return Answer(self.status, self.body, fields).stored()

    async def deliver(self) -> None:
        """Send the answer to the client that waits for it, with all its fields."""
        if not self.large:
            await self._wire.answer(self.status, self.headers, self.body)


def replayed(stored: Mapping[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return a kept answer as it is sent."""
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in stored["headers"]]
    return stored["status"], [*fields, REPLAYED], stored["body"]


async def _forever() -> None:
    """Wait until cancelled: the application is told nothing of a client that goes."""
    trio = clocks.in_trio()
    if trio is not None:
        await trio.sleep_forever()
        return
    import asyncio

    await asyncio.get_running_loop().create_future()


async def detached(work: Callable[[], Awaitable[Any]], under_way: set[Any]) -> Any:
    """Await work that goes on to its end, whoever stops waiting for it; what it comes to is not lost."""
    trio = clocks.in_trio()
    if trio is not None:
        with trio.CancelScope(shield=True):
            return await work()
    import asyncio

    task = asyncio.ensure_future(work())
    under_way.add(task)
    task.add_done_callback(under_way.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # told to whoever still waits
    return await asyncio.shield(task)


async def drained(under_way: set[Any], seconds: float) -> None:
    """Wait for what is under way, but not for ever."""
    if under_way:
        import asyncio

        await asyncio.wait(set(under_way), timeout=seconds)
