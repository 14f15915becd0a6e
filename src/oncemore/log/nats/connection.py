"""The line to NATS JetStream: one connection in a thread of its own, and its requests.

The client is made for asyncio, our callers block or run in loops of their own; so one thread has one loop
with one connection, and all that is asked goes through it. What must be stored is not grouped but sent at
once, each message with the sequence that it expects: the server is quickest so.

Nothing here decides anything by what was read: see `log.nats.append`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import time
from _thread import allocate_lock
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value
from oncemore.errors import MissingExtra, StoreError, UsageError
from oncemore.log.interrupt_shield import Shield

try:
    from nats import errors as nats_errors
    from nats.aio.client import Client as Connection
except ImportError as missing:
    raise MissingExtra("a store in NATS needs nats-py: pip install 'oncemore[nats]'") from missing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from oncemore.log.nats.address import Address

    Work = Callable[[], Coroutine[Any, Any, Any]]
    Begin = Callable[[], Coroutine[Any, Any, Any] | None]
    Hear = Callable[[Any, str], object]
    HearAll = Callable[[list[Any] | None, str], object]
    Sent = tuple[str, bytes, dict[str, str]]


ANSWER_S = 2.0  # how long one request waits; what has no answer by then is unknown, and asked again
SLOWEST = 5_000_000  # bytes a second that a server takes at least, for messages that are large
CONNECT_S = 5.0
HANG_UP_S = 5.0
AWAY_S = 0.05  # how long who finds the connection lost waits before it says so
PAGE = 500
PAGE_BYTES = 8_000_000
_DECODE = msgspec.json.Decoder(dict[str, Any]).decode
ENVELOPE = 4096  # room that is left for the headers and the address of a message


class Unanswered(Exception):
    """Nobody said how it ended: a timeout, no responder, a lost connection. It may still be done."""


class Message(Value):
    """A message as it is kept."""

    subject: str
    seq: int
    headers: Mapping[str, str]
    data: bytes


class Given(Value):
    """A message that a consumer gave: its number among all it gave, when it was stored, how many follow."""

    message: Message
    number: int
    stored: float
    left: int


class Answer(Value):
    """What the server said to a publish: the sequence, or the number of its error."""

    seq: int = 0
    error: int = 0
    text: str = ""


class Asked:
    """Something a thread waits for, which is done in the line's loop."""

    def __init__(self, work: Work) -> None:
        self._work, self._gate = work, allocate_lock()
        self._gate.acquire()
        self._answer: Any = None
        self._error: BaseException | None = None

    async def __call__(self) -> None:
        """Do it, and let the thread go on."""
        try:
            self._answer = await self._work()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            self._error = error
        finally:
            self._gate.release()

    def wait(self) -> Any:
        """Return what came of it."""
        self._gate.acquire()
        if self._error is not None:
            raise self._error
        return self._answer


class Ear:
    """Where answers come in: one subject with a place for each request, in the line's loop.

    It stands where the client expects a future for a single answer, and hands each to whoever waits for it
    without a queue and a task in between. Who waits is told of an answer or, with None, why there is none.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._waiting: dict[str, tuple[Hear, asyncio.TimerHandle]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def place(self, within: float, hear: Hear, name: str = "") -> str:
        """Return a subject for one answer, which is heard once; or for one more on the subject given."""
        if not name:
            self._count += 1
            name = f"{self.prefix}{self._count}"
        bell = asyncio.get_running_loop().call_later(within, self._tell, name, None, "no answer in time")
        self._waiting[name] = (hear, bell)
        return name

    def place_for_all(self, within: float, hear: HearAll) -> str:
        """Return a subject for several answers, which are heard together when the server says that's all."""
        parts: list[Any] = []

        def part(message: Any, why: str) -> None:
            status = message is not None and message.headers and message.headers.get("Status")
            if message is None or status:
                hear(parts if status == "204" else None, why or f"the server says {status}")
            else:
                parts.append(message)
                self.place(within, part, name)

        name = self.place(within, part)
        return name

    def _tell(self, name: str, answer: Any, why: str) -> None:
        hear, bell = self._waiting.pop(name, (None, None))
        if hear is not None and bell is not None:  # one that comes late comes to nobody
            bell.cancel()
            hear(answer, why)

    def cancelled(self) -> bool:
        """Say that somebody listens, as the client asks."""
        return False

    def set_result(self, message: Any) -> None:
        """Hand an answer to who waits for it."""
        if message.headers and message.headers.get("Status") == "503":
            self._tell(message.subject, None, "nobody is there who would answer")
        else:
            self._tell(message.subject, message, "")

    def hang_up(self) -> None:
        """Tell all who wait that their answers are lost."""
        for name in list(self._waiting):
            self._tell(name, None, "the connection was lost")


class Line:
    """One connection in a thread of its own; made when first needed, and anew in a forked child."""

    def __init__(self, where: Address) -> None:
        self.where = where
        self._door = allocate_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Connection | None = None
        self._ear = Ear("")
        self._connecting: asyncio.Lock | None = None
        self._coming: deque[Begin] = deque()
        self._at_last: list[Callable[[], object]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ringing = False
        self._closed = False

    # From any thread.

    def do(self, work: Work) -> Any:
        """Do something in the line's loop, and block until it is done."""
        if threading.current_thread() is self._thread:
            raise UsageError("the thread that serves a store in NATS cannot wait for itself")
        asked = Asked(work)
        self.begin(asked)
        return asked.wait()

    def begin(self, work: Begin) -> None:
        """Have something done in the line's loop; nobody waits here. The loop is woken once for many.

        What it returns, if anything, is gone on with as a task. What has begun when the line is closed is
        done; after that, nothing begins.
        """
        with self._door:
            if self._closed:
                raise StoreError(f"{self.where.shown}: the store is closed")
            loop = self._loop or self._start()
            self._coming.append(work)
            if not self._ringing:
                self._ringing = True
                try:
                    loop.call_soon_threadsafe(self._take)
                except BaseException:  # interrupted: whoever comes next must ring
                    self._ringing = False
                    raise

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="oncemore-nats", daemon=True)
        with Shield():
            self._thread.start()
            self._loop = loop
        return loop

    def _take(self) -> None:
        self._ringing = False
        with suppress(IndexError):
            while True:
                work = self._coming.popleft()()
                if work is not None:
                    self.go_on(work)
        while self._at_last:
            self._at_last.pop()()

    def at_last(self, then: Callable[[], object]) -> None:
        """Do something when all that came together has begun, which what is beginning calls."""
        self._at_last.append(then)

    def go_on(self, work: Coroutine[Any, Any, Any]) -> None:
        """Go on with something as a task of the loop, which this is called in."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Hang up, when all that was begun is done."""
        with self._door:
            if self._closed:
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._hang_up(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _hang_up(self) -> None:
        self._take()
        while self._tasks or len(self._ear):
            await asyncio.wait(list(self._tasks), timeout=0.01) if self._tasks else await asyncio.sleep(0.002)
        client, self._client = self._client, None
        if client is not None:
            with suppress(TimeoutError, nats_errors.Error, OSError):
                await asyncio.wait_for(client.close(), HANG_UP_S)

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
                self._ear.hang_up()
                self._ear = Ear(f"{self._client.new_inbox()}.")
                await self._client.subscribe(f"{self._ear.prefix}*", future=self._ear)  # type: ignore[arg-type]
            return self._client

    async def _connected(self) -> Connection:
        """Connect, or give up after a while: by itself, the client would try for ever."""
        if self.where.creds:
            _need_keys()
        ends = time.monotonic() + CONNECT_S
        while True:
            made = Connection()
            made._parse_header_lines = fields  # type: ignore[method-assign]  # noqa: SLF001 - see there
            error = await self._connect(made, ends - time.monotonic())
            if error is None:
                return made
            with suppress(TimeoutError, nats_errors.Error, OSError):
                await asyncio.wait_for(made.close(), HANG_UP_S)
            if _is_final(error) or time.monotonic() > ends:
                advice = "are name and password right?" if _is_final(error) else "is it running?"
                raise Unanswered(f"there is no connection to the server ({_said(error)}); {advice}")
            await asyncio.sleep(AWAY_S)

    async def _connect(self, made: Connection, within: float) -> BaseException | None:
        """Connect; return why not. A server that lets nobody in may hang up before it has said so."""
        where = self.where
        last: list[BaseException] = [TimeoutError("no answer in time")]
        final = asyncio.Event()

        async def hear(error: Exception) -> None:
            last.append(error)
            if _is_final(error):
                final.set()

        token = where.user if where.user and not where.password else None
        trying = asyncio.ensure_future(
            made.connect(
                servers=list(where.servers),
                name=f"oncemore {os.getpid()}",
                connect_timeout=CONNECT_S,  # type: ignore[arg-type]
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                ping_interval=10,
                error_cb=hear,
                disconnected_cb=self._lost,
                user=where.user if token is None and where.user else None,
                password=where.password or None,
                token=token,
                user_credentials=where.creds or None,
                tls=where.trust(),
                pending_size=128 * 1024 * 1024,
            )
        )
        refused = asyncio.ensure_future(final.wait())
        both: set[asyncio.Future[Any]] = {trying, refused}
        await asyncio.wait(both, timeout=max(0.05, within), return_when="FIRST_COMPLETED")
        refused.cancel()
        if trying.done() and not trying.cancelled():
            return trying.exception()
        trying.cancel()
        await asyncio.wait({trying}, timeout=HANG_UP_S)
        return last[-1]

    async def _there(self) -> Connection:
        """Return the connection if it stands: what the client keeps for later would come unexpected."""
        client = await self.client()
        if not client.is_connected:
            await asyncio.sleep(AWAY_S)
            raise Unanswered("the connection is lost")
        return client

    async def _lost(self) -> None:
        self._ear.hang_up()

    @property
    def largest(self) -> int:
        """How many bytes a message may have, its headers aside."""
        client = self._client
        return (1024 * 1024 if client is None else int(client.max_payload)) - ENVELOPE

    async def ask(
        self,
        subject: str,
        payload: bytes = b"",
        headers: dict[str, str] | None = None,
        wait: float = ANSWER_S,
    ) -> Any:
        """Send a request and return the answer; what has none is `Unanswered`."""
        client = await self._there()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        place = self._ear.place(wait, partial(_settle, answer))
        self._write(client, [_command((subject, payload, headers or {}), place)])
        return await answer

    def _write(self, client: Connection, commands: list[bytes]) -> None:
        """Write to the socket at once, not by way of the client's own queue and task."""
        transport = client._transport  # noqa: SLF001 - the client's own way is twice as long
        if client._pending or transport is None:  # noqa: SLF001
            client._pending += commands  # noqa: SLF001
            client._pending_data_size += sum(map(len, commands))  # noqa: SLF001
        else:
            transport.writelines(commands)

    async def api(self, what: str, /, **asked: Any) -> dict[str, Any]:
        """Call the JetStream API; errors come as they are, under "error"."""
        answer = await self.ask(f"$JS.API.{what}", msgspec.json.encode(asked) if asked else b"")
        said: dict[str, Any] = msgspec.json.decode(answer.data)
        return said

    async def publish(self, messages: list[Sent]) -> Answer:
        """Send messages that are one: all but the last without asking, the last with the answer for all."""
        client = await self._there()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._publish(client, messages, partial(_settle, answer))
        return answered(await answer)

    def publish_now(self, messages: list[Sent], hear: Hear) -> bool:
        """Send messages that are one, if the connection stands; `hear` is told of what `answered` reads."""
        client = self._client
        if client is None or not self.stands:
            return False
        self._publish(client, messages, hear)
        return True

    def last_now(self, stream: str, subjects: list[str], hear: HearAll) -> bool:
        """Ask for the last messages of subjects at one moment, if the connection stands.

        Any replica answers, as far as it has come: what shows how far that is must be among the subjects.
        """
        client = self._client
        if client is None or not self.stands:
            return False
        place = self._ear.place_for_all(ANSWER_S, hear)
        asked = msgspec.json.encode({"multi_last": subjects})
        self._write(client, [_command((f"$JS.API.DIRECT.GET.{stream}", asked, {}), place)])
        return True

    @property
    def stands(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._client is not None and self._client.is_connected

    def _publish(self, client: Connection, messages: list[Sent], hear: Hear) -> None:
        wait = ANSWER_S + sum([len(message[1]) for message in messages]) / SLOWEST
        commands = [_command(message, "") for message in messages[:-1]]
        self._write(client, [*commands, _command(messages[-1], self._ear.place(wait, hear))])

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
        """Return some messages of a subject, which may be a wildcard, from a sequence on; [] for none.

        Any replica answers, and one that lags behind has less: who must know asks the leader (`next`).
        """
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

    async def fetch(self, stream: str, consumer: str) -> list[Given]:
        """Return what a consumer has now, or a part of it."""
        asked = {"batch": PAGE * 4, "no_wait": True}
        found: list[Given] = []
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        async for headers, data, (name, reply) in self._replies(subject, msgspec.json.encode(asked)):
            status = headers.get("Status")
            if status in ("404", "408"):
                return found
            if status:
                raise Unanswered(f"{status} {headers.get('Description', '')}")
            found.append(given(name, reply, headers, data))
            if len(found) == PAGE * 4 or found[-1].left == 0:
                return found
        raise Unanswered("a fetch has no end")

    async def _replies(
        self, subject: str, payload: bytes
    ) -> AsyncIterator[tuple[Mapping[str, str], bytes, tuple[str, str]]]:
        """Ask, and yield what comes back, message by message: headers, content, subject and reply.

        What a connection that was lost meanwhile had on its way is missing in the middle of it all, so
        nothing counts then.
        """
        client = await self._there()
        inbox, before = client.new_inbox(), client.stats["reconnects"]
        try:
            listening = await client.subscribe(inbox)
            try:
                await client.publish(subject, payload, reply=inbox)
                while True:
                    message = await listening.next_msg(timeout=ANSWER_S)
                    if client.stats["reconnects"] != before:
                        raise Unanswered("the connection was lost in the middle of a page")
                    yield message.headers or {}, message.data or b"", (message.subject, message.reply)
            finally:
                with suppress(nats_errors.Error, OSError):
                    await listening.unsubscribe()
        except (TimeoutError, nats_errors.Error, OSError) as error:
            raise Unanswered(_said(error)) from error


def _command(sent: Sent, reply: str) -> bytes:
    """Return a message as it is written. Its headers are ours: nothing in them has to be cleaned."""
    subject, data, given = sent
    told = "".join([f"{name}: {value}\r\n" for name, value in given.items()])
    headers = f"NATS/1.0\r\n{told}\r\n".encode()
    first = f"HPUB {subject} {reply} {len(headers)} {len(headers) + len(data)}\r\n"
    return b"".join([first.encode(), headers, data, b"\r\n"])


def _settle(answer: asyncio.Future[Any], message: Any, why: str) -> None:
    if answer.done():
        return
    if message is None:
        answer.set_exception(Unanswered(why))
    else:
        answer.set_result(message)


def answered(message: Any) -> Answer:
    """Read what the server said to a publish."""
    said = _DECODE(message.data)
    refusal = said.get("error")
    if refusal is not None:
        return Answer(0, int(refusal.get("err_code", 0)), str(refusal.get("description", "")))
    return Answer(int(said["seq"]))


def given(subject: str, reply: str, headers: Mapping[str, str], data: bytes) -> Given:
    """Read what a consumer gave; the address of its acknowledgement tells the rest, in one of two forms."""
    parts = reply.split(".")
    seq, number, stored, left = parts[5:9] if len(parts) == 9 else parts[7:11]
    return Given(Message(subject, int(seq), headers, data), int(number), int(stored) / 1e9, int(left))


def _headers(raw: bytes) -> dict[str, str]:
    return fields(raw.partition(b"\r\n")[2])


def fields(raw: bytes) -> dict[str, str]:
    """Read header lines as the client does, which takes three times as long: it looks at every letter."""
    lines = (line.partition(":") for line in raw.decode("utf-8", "replace").split("\r\n"))
    return {name.strip(): value.strip() for name, colon, value in lines if colon}


def _need_keys() -> None:
    from importlib.util import find_spec

    if find_spec("nkeys") is None:
        raise MissingExtra("a store in NATS with creds= needs nkeys: pip install 'nats-py[nkeys]'")


def _said(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _is_final(error: BaseException) -> bool:
    """Whether asking again cannot help."""
    return isinstance(error, nats_errors.AuthorizationError) or "authorization" in str(error).lower()
