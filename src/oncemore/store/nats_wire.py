"""The line to NATS JetStream: its address, one connection in a thread of its own, and its requests.

The client is made for asyncio, our callers block or run in loops of their own; so one thread has one loop
with one connection, and all that is asked goes through it. What must be stored is not grouped but sent at
once, each message with the sequence that it expects (`spikes`: pipeline, do not group).

Nothing here decides anything by what was read: see `store.nats`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from oncemore.core.value import Value
from oncemore.errors import MissingExtra, StoreError, UsageError

try:
    import nats
    from nats import errors as nats_errors
    from nats.aio.client import Client as Connection
except ImportError as missing:
    raise MissingExtra("a store in NATS needs nats-py: pip install 'oncemore[nats]'") from missing

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping


__all__ = ["Address", "Answer", "Line", "Message", "Unanswered", "address", "nats"]

ANSWER_S = 2.0  # how long one request waits; what has no answer by then is unknown, and asked again
CONNECT_S = 10.0
PAGE = 500
PAGE_BYTES = 8_000_000

_NAME = re.compile(r"[a-z0-9_]{1,32}")
_PARAMETERS = {"replicas", "monitor", "unsafe_ok", "creds"}


class Unanswered(Exception):
    """Nobody said how it ended: a timeout, no responder, a lost connection. It may still be done."""


class Address(Value):
    """Where a store is.

    servers    addresses of servers, with names and passwords
    namespace  what streams and subjects begin with
    replicas   on how many servers each message is kept, for a stream that is made
    monitor    the address of a server's monitoring port, which alone tells how it syncs; or empty
    """

    servers: tuple[str, ...]
    shown: str
    namespace: str = "oncemore"
    replicas: int = 1
    monitor: str = ""
    creds: str = ""
    unsafe_ok: bool = False

    def __repr__(self) -> str:
        return f"Address({self.shown})"


class Message(Value):
    """A message as it is kept."""

    subject: str
    seq: int
    headers: Mapping[str, str]
    data: bytes


class Answer(Value):
    """What the server said to a publish: the sequence, or the number of its error."""

    seq: int = 0
    error: int = 0
    text: str = ""


def address(url: str) -> Address:
    """Read nats://[user[:password]@]host[:port][,host…][/namespace][?replicas=3&monitor=http://host:8222]."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("nats", "tls"):
        raise UsageError("the address of a store in NATS begins with nats:// or tls://")
    split = urlsplit(f"//{rest}")
    who, at, hosts = split.netloc.rpartition("@")
    namespace = unquote(split.path.strip("/")) or "oncemore"
    shown = f"{scheme}://{who.partition(':')[0]}{at}{hosts}/{namespace}"
    if not hosts or any(not host for host in hosts.split(",")):
        raise UsageError(f"{shown} names no server; it looks like nats://host:4222/namespace")
    if not _NAME.fullmatch(namespace):
        raise UsageError(
            f"{shown}: {namespace!r} is no namespace: lower-case letters, digits and _, up to 32"
        )
    given = dict(parse_qsl(split.query, keep_blank_values=True))
    if unknown := sorted(given.keys() - _PARAMETERS):
        raise UsageError(
            f"{shown} has no parameter {unknown[0]!r}; there are {', '.join(sorted(_PARAMETERS))}"
        )
    replicas = given.get("replicas", "1")
    if replicas not in ("1", "3", "5"):
        raise UsageError(f"{shown}: replicas is {replicas!r}; it can be 1, 3 or 5")
    unsafe = given.get("unsafe_ok", "false")
    if unsafe not in ("true", "false"):
        raise UsageError(f"{shown}: unsafe_ok is {unsafe!r}; it can be true or false")
    servers = tuple(f"{scheme}://{who}{at}{host}" for host in hosts.split(","))
    return Address(
        servers,
        shown,
        namespace,
        int(replicas),
        given.get("monitor", ""),
        given.get("creds", ""),
        unsafe == "true",
    )


class Line:
    """One connection in a thread of its own; made when first needed, and anew in a forked child."""

    def __init__(self, where: Address) -> None:
        self.where = where
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Connection | None = None
        self._connecting: asyncio.Lock | None = None
        self._coming: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ringing = False
        self._closed = False

    # From any thread.

    def do(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do something in the line's loop, and block until it is done."""
        loop = self._running()
        if threading.current_thread() is self._thread:
            raise UsageError("the thread that serves a store in NATS cannot wait for itself")
        return asyncio.run_coroutine_threadsafe(work(), loop).result()

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have something done in the line's loop; nobody waits here. The loop is woken once for many."""
        loop = self._running()
        self._coming.append(work)
        if not self._ringing:
            self._ringing = True
            loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._ringing = False
        with suppress(IndexError):
            while True:
                task = asyncio.ensure_future(self._coming.popleft()())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Hang up, when all that was begun is done."""
        with self._starting:
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            with suppress(RuntimeError):
                asyncio.run_coroutine_threadsafe(self._hang_up(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None or self._closed:
            with self._starting:
                if self._closed:
                    raise StoreError(f"{self.where.shown}: the store is closed")
                loop = self._loop
                if loop is None:
                    loop = asyncio.new_event_loop()
                    self._thread = threading.Thread(
                        target=loop.run_forever, name="oncemore-nats", daemon=True
                    )
                    self._thread.start()
                    self._loop = loop
        return loop

    async def _hang_up(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        client, self._client = self._client, None
        if client is not None:
            with suppress(nats_errors.Error, OSError):
                await client.close()

    # In the line's loop.

    async def client(self) -> Connection:
        """Return the connection, made if there is none."""
        client = self._client
        if client is not None and not client.is_closed:
            return client
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._client is None or self._client.is_closed:
                self._client = await self._connected()
            return self._client

    async def _connected(self) -> Connection:
        made = Connection()
        try:
            await made.connect(
                servers=list(self.where.servers),
                name=f"oncemore {os.getpid()}",
                connect_timeout=CONNECT_S,  # type: ignore[arg-type]
                reconnect_time_wait=0.2,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                ping_interval=10,
                error_cb=_quietly,
                user_credentials=self.where.creds or None,
                pending_size=64 * 1024 * 1024,
            )
        except (TimeoutError, nats_errors.Error, OSError) as error:
            said = str(error).strip() or type(error).__name__
            raise StoreError(
                f"{self.where.shown}: there is no connection to the server ({said}); is it running?"
            ) from error
        return made

    async def ask(self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None) -> Any:
        """Send a request and return the answer; what has none is `Unanswered`."""
        client = await self.client()
        try:
            return await client.request(subject, payload, timeout=ANSWER_S, headers=headers)
        except nats_errors.MaxPayloadError:
            raise
        except (TimeoutError, nats_errors.Error, OSError) as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from error

    async def api(self, what: str, /, **asked: Any) -> dict[str, Any]:
        """Call the JetStream API; errors come as they are, under "error"."""
        answer = await self.ask(f"$JS.API.{what}", msgspec.json.encode(asked) if asked else b"")
        said: dict[str, Any] = msgspec.json.decode(answer.data)
        return said

    async def publish(self, messages: list[tuple[str, bytes, dict[str, str]]]) -> Answer:
        """Send messages that are one: all but the last without asking, the last with the answer for all."""
        client = await self.client()
        *first, (subject, data, headers) = messages
        try:
            for before in first:
                await client.publish(before[0], before[1], headers=before[2])
        except (nats_errors.Error, OSError) as error:
            if isinstance(error, nats_errors.MaxPayloadError):
                raise
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        said = msgspec.json.decode((await self.ask(subject, data, headers)).data)
        refusal = said.get("error")
        if refusal is not None:
            return Answer(0, int(refusal.get("err_code", 0)), str(refusal.get("description", "")))
        return Answer(int(said["seq"]))

    async def last(self, stream: str, subject: str) -> Message | None:
        """Return the last message of a subject, told by the leader."""
        return await self._get(stream, last_by_subj=subject)

    async def next(self, stream: str, subject: str, seq: int) -> Message | None:
        """Return the first message of a subject from a sequence on, told by the leader."""
        return await self._get(stream, seq=seq, next_by_subj=subject)

    async def at(self, stream: str, seq: int) -> Message | None:
        """Return the message with a sequence, told by the leader."""
        return await self._get(stream, seq=seq)

    async def _get(self, stream: str, **asked: Any) -> Message | None:
        said = await self.api(f"STREAM.MSG.GET.{stream}", **asked)
        error = said.get("error")
        if error is not None:
            if error.get("err_code") == 10037:
                return None
            raise Unanswered(f"{error.get('err_code')}: {error.get('description')}")
        found = said["message"]
        headers = _headers(base64.b64decode(found.get("hdrs", "")))
        return Message(found["subject"], found["seq"], headers, base64.b64decode(found.get("data", "")))

    async def page(self, stream: str, subject: str, seq: int) -> list[Message]:
        """Return some messages of a subject, which may be a wildcard, from a sequence on; [] for none."""
        asked = {"seq": seq, "next_by_subj": subject, "batch": PAGE, "max_bytes": PAGE_BYTES}
        found: list[Message] = []
        async for headers, data, _ in self._replies(
            f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(asked)
        ):
            status = headers.get("Status")
            if status in ("204", "404"):
                return found
            if status:
                raise Unanswered(f"{status} {headers.get('Description', '')}")
            found.append(Message(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, data))
        raise Unanswered("a page has no end")

    async def fetch(self, stream: str, consumer: str) -> tuple[list[tuple[int, Message]], int]:
        """Return what a consumer has now, each with its number among all it gave; and how many remain."""
        asked = {"batch": PAGE * 4, "no_wait": True}
        found: list[tuple[int, Message]] = []
        left = 0
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        async for headers, data, (name, reply) in self._replies(subject, msgspec.json.encode(asked)):
            status = headers.get("Status")
            if status in ("404", "408"):
                return found, 0
            if status:
                raise Unanswered(f"{status} {headers.get('Description', '')}")
            *_, seq, number, _, pending = reply.split(".")
            left = int(pending)
            found.append((int(number), Message(name, int(seq), headers, data)))
            if len(found) == PAGE * 4 or left == 0:
                return found, left
        raise Unanswered("a fetch has no end")

    async def _replies(
        self, subject: str, payload: bytes
    ) -> AsyncIterator[tuple[Mapping[str, str], bytes, tuple[str, str]]]:
        """Ask, and yield what comes back, message by message: headers, content, subject and reply."""
        client = await self.client()
        inbox = client.new_inbox()
        try:
            listening = await client.subscribe(inbox)
            try:
                await client.publish(subject, payload, reply=inbox)
                while True:
                    message = await listening.next_msg(timeout=ANSWER_S)
                    yield message.headers or {}, message.data or b"", (message.subject, message.reply)
            finally:
                with suppress(nats_errors.Error, OSError):
                    await listening.unsubscribe()
        except (TimeoutError, nats_errors.Error, OSError) as error:
            raise Unanswered(f"{type(error).__name__}: {error}") from error


def _headers(raw: bytes) -> dict[str, str]:
    lines = raw.decode("utf-8", "replace").split("\r\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines[1:]) if name}


async def _quietly(error: Exception) -> None:
    """Say nothing: whoever asked is told, and asks again."""
