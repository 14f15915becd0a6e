"""Messages over HTTP: an ASGI application that calls a step, or hands it in, once for each message.

    200   it is done, now or before; the body has the value
    202   it is handed in (mode "submit")
    400   it has no id, or its end is missing
    401   it has no bearer token or no signature, where one is demanded
    405   it is no POST
    409   somebody else is at it (with Retry-After), or it waits for a person
    410   it was done so long ago that its record was pruned
    413   it is too large
    422   it cannot be read, its id belongs to another content, or it has failed for good
    503   it is due later, or the store cannot be used; the same message may come again (with Retry-After)

Whoever sends a message that cannot be read is told so, and it is not kept: it is still with its sender. One
that has failed for good is a dead letter, as it is from a queue.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore import clock as clocks
from oncemore._redact import name_of
from oncemore.errors import UsageError
from oncemore.http import problems
from oncemore.http.key_scope import FIELD, read
from oncemore.http.problems import Problem, answer_of
from oncemore.http.stored_response import CutOff, TooLarge, Wire, check_byte_limit, detached, drained, whole
from oncemore.messaging.driver import Courier, Sinks, awaiting
from oncemore.messaging.inbox_flow import ANSWERS, CameTo, Letter, away_s, keep, prepare_letter, topic_of
from oncemore.messaging.inbox_message import Called, id_in
from oncemore.messaging.inbox_step import Taker
from oncemore.messaging.senders import CHALLENGE, NOT_AUTHENTICATED, NotAuthenticated, SenderCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.http.stored_response import Receive, Scope, Send
    from oncemore.steps.engine import Engine

MOST_BYTES = 1024 * 1024
LONGEST_MESSAGE_ID = 1000
DRAIN_S = 10.0
_FIELD = FIELD.lower()

NO_ID = Problem(
    400,
    "message-id-missing",
    "The message has no id",
    'Send Idempotency-Key: "…", or ce-id with ce-source; the same one each time that this message is sent.',
)
NO_POST = Problem(405, "not-a-post", "Messages are sent with POST", "")
UNREADABLE = Problem(422, "unreadable", "The message cannot be read", "")
FAILED = Problem(
    422,
    "failed",
    "It has failed for good",
    "It was tried, and is not tried again before somebody says so: ask whoever runs this service.",
)
UNKNOWN_SENDER = Problem(
    400, "unknown-sender", "The sender cannot be determined", "Nothing was done. Correct the request."
)
NO_CHECK = Problem(
    503, "no-check", "The sender cannot be checked", "Nothing was done. Send the same message again later."
)
NO_CHECK_S = 5.0
HANDED_IN = frozenset(("later", "busy"))

#: What a message is answered that came to no value, and whether it may come again.
_PROBLEMS: dict[str, tuple[Problem, bool]] = {
    "expired": (problems.EXPIRED, False),
    "later": (problems.NOT_YET, True),
    "busy": (problems.IN_PROGRESS, True),
    "trouble": (problems.NO_RECORD, True),
    "held": (problems.HELD, False),
    "failed": (FAILED, False),
    "unreadable": (UNREADABLE, False),
    "conflict": (problems.OTHER_PAYLOAD, False),
}


class UnknownSender(Exception):
    """The user's function cannot say who sent a request."""


class Endpoint:
    """An ASGI application: POST a message, and a step is called with it."""

    def __init__(
        self,
        step: Any,
        *,
        mode: str,
        engine: Engine | None,
        same: Callable[[Any], Any] | str | None,
        arguments: Callable[[Any], Mapping[str, Any]] | None,
        source: str | Callable[[Scope], str],
        most: int,
        signing_key: Any = None,
        bearer_token: Any = None,
    ) -> None:
        if mode not in ("run", "submit"):
            raise UsageError(f"mode is {mode!r}; the choices are run, submit")
        if not callable(source) and not isinstance(source, str):
            raise UsageError(f"source is {source!r}; it takes a name, or a function of the scope")
        self._taker, self._mode = Taker.of(step, engine, same, arguments), mode
        self._needs_id, self._source = same is None, source
        self._most = check_byte_limit("max_request", most)
        self._senders = SenderCheck(signing_key, bearer_token)
        self._under_way: set[Any] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            raise UsageError(f"an inbox takes HTTP, not {scope['type']}")
        wire = Wire(send)
        if scope["method"] != "POST":
            status, fields, body = answer_of(NO_POST)
            await wire.answer(status, [*fields, (b"allow", b"POST")], body)
            return
        try:
            self._senders.check_token(scope)
            letter = self._letter(scope, await whole(receive, self._most))
        except NotAuthenticated as refusal:
            status, fields, body = answer_of(NOT_AUTHENTICATED, str(refusal))
            await wire.answer(status, [*fields, CHALLENGE], body)
        except TooLarge:
            await wire.answer(*answer_of(problems.TOO_LARGE))
        except CutOff:
            return  # there is nobody to answer, and nothing was begun
        except UnknownSender as fault:
            self._taker.engine.grumble(f"an inbox over HTTP refused a message: {fault}")
            await wire.answer(*answer_of(UNKNOWN_SENDER))
        except UsageError as fault:  # the key or the token is no longer where it was
            self._taker.engine.grumble(f"an inbox over HTTP can check no sender: {fault}")
            await wire.answer(*answer_of(NO_CHECK, retry_after_s=NO_CHECK_S))
        except ValueError as fault:
            await wire.answer(*answer_of(problems.MALFORMED, f"{str(fault).capitalize()}."))
        else:
            if letter is None:
                await wire.answer(*answer_of(NO_ID))
            else:
                await wire.answer(*await detached(lambda: self._answer(letter), self._under_way))

    def _letter(self, scope: Scope, body: bytes) -> Letter | None:
        """Return a request as a letter; None if it has no id and needs one."""
        pairs = [(name.decode("latin-1").lower(), value) for name, value in scope["headers"]]
        headers = {name: value.decode("latin-1") for name, value in pairs}
        own = self._senders.check_signature(scope, body, clocks.current.wall())
        if not self._senders.signs:
            own = read([value for name, value in pairs if name == _FIELD]) or id_in(headers)
        if len(own) > LONGEST_MESSAGE_ID:
            raise ValueError(f"the id of the message has more than {LONGEST_MESSAGE_ID} characters")
        if not own and not self._needs_id:
            own = f"sha256:{sha256(body).hexdigest()}"
        return prepare_letter(Letter(own, self._sender(scope), body, headers)) if own else None

    def _sender(self, scope: Scope) -> str:
        """Return whose ids these are; refuse a request of which the user's function cannot say it."""
        if isinstance(self._source, str):
            return self._source
        try:
            sender = self._source(scope)
        except Exception as fault:
            raise UnknownSender(f"source= failed with {name_of(fault)}") from fault
        if not isinstance(sender, str):
            raise UnknownSender(f"source= gave a {type(sender).__name__}, and not a text")
        return sender

    async def _answer(self, letter: Letter) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        came_to = await self._performed(letter)
        if ANSWERS[came_to.what].kept and came_to.what == "failed" and self._mode == "run":
            await self._kept(letter, came_to)
        if came_to.what in ("done", "seen"):
            return _value(came_to)
        if self._mode == "submit" and came_to.what in HANDED_IN:
            return _json(202, {"run": came_to.run, "state": "accepted"})
        problem, again = _PROBLEMS[came_to.what]
        away = away_s(came_to, self._taker.engine.now()) if again else None
        detail = str(came_to.error.get("message", "")) if came_to.what == "unreadable" else ""
        run = {"run": came_to.run} if came_to.run and came_to.what != "conflict" else {}
        return answer_of(problem, detail, away, **run)

    async def _performed(self, letter: Letter) -> CameTo:
        called = self._taker.read(letter)
        if isinstance(called, CameTo):
            return called
        if self._mode == "submit":
            return await _threaded(self._taker.hand_in, called)
        if self._taker.awaits:
            return await self._taker.call_awaited(called)
        return await _threaded(self._taker.call, called)

    async def _kept(self, letter: Letter, came_to: CameTo) -> None:
        """Keep a message that has failed for good."""
        engine, name = self._taker.engine, self._taker.name
        courier = Courier(engine, Sinks({topic_of(name): _nobody}), MOST_BYTES, None, None)
        await awaiting(courier, keep(letter, name, came_to))

    async def _live(self, receive: Receive, send: Send) -> None:
        """Start and end with the server; what is under way then may come to its end."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await drained(self._under_way, DRAIN_S)
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _nobody(_message: object) -> None:  # pragma: no cover - it only has to be async
    """Send nothing: letters are kept here, not sent."""


async def _threaded(work: Callable[[Called], CameTo], called: Called) -> CameTo:
    trio = clocks.in_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(work, called)  # type: ignore[no-any-return]
    import asyncio

    return await asyncio.to_thread(work, called)


def _value(came_to: CameTo) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the answer with a value; one that JSON cannot hold is left out."""
    told: dict[str, Any] = {"state": "done"}
    try:
        return _json(200, {**told, "value": came_to.value})
    except TypeError:
        return _json(200, told)


def _json(status: int, told: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    body = msgspec.json.encode(told)
    return status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body
