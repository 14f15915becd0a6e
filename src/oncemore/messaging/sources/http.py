"""An ASGI application that accepts messages by POST and calls or submits a step once for each.

200   done, now or before; the body has the value
202   submitted for a worker (mode "submit")
400   the message has no id, or the body is incomplete
401   the required bearer token or signature is missing or wrong
405   not a POST request
409   another worker is running it (with Retry-After), or it is in quarantine
410   done so long ago that its run was pruned
413   the message is too large
422   the message cannot be read, its id belongs to another content, or its work has failed permanently
503   due later, or the store cannot be used; the sender may send it again (with Retry-After)
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore import clock as clocks
from oncemore._redact import error_class_name
from oncemore.errors import UsageError, log_warning
from oncemore.http import problems
from oncemore.http.key_scope import KEY_HEADER, parse_key
from oncemore.http.problems import ProblemType, problem_response
from oncemore.http.stored_response import (
    ClientConnection,
    RequestTooLarge,
    RequestTruncated,
    check_byte_limit,
    read_body,
    run_detached,
    wait_for_tasks,
)
from oncemore.messaging.driver import DeliveryDriver, SinkTable, run_delivery_async
from oncemore.messaging.inbox_flow import (
    InboxMessage,
    MessageOutcome,
    dead_letter_topic,
    redelivery_delay_s,
    sanitize_message,
    store_dead_letter,
)
from oncemore.messaging.inbox_message import StepCall, find_message_id
from oncemore.messaging.inbox_step import MessageStep
from oncemore.messaging.senders import CHALLENGE, NOT_AUTHENTICATED, NotAuthenticated, SenderCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.http.stored_response import Receive, Scope, Send
    from oncemore.steps.engine import Engine

DEFAULT_MAX_BYTES = 1024 * 1024
MAX_MESSAGE_ID_LENGTH = 1000
DRAIN_TIMEOUT_S = 10.0
_KEY_FIELD = KEY_HEADER.lower()

NO_ID = ProblemType(
    400,
    "message-id-missing",
    "The message has no id",
    'Send Idempotency-Key: "…", or ce-id with ce-source; the same value in every attempt of this message.',
)
NO_POST = ProblemType(405, "not-a-post", "Messages are sent with POST", "")
UNREADABLE = ProblemType(422, "unreadable", "The message cannot be read", "")
FAILED = ProblemType(
    422,
    "failed",
    "The work has failed permanently",
    "It is not tried again until an operator of this service decides so. Contact the operator.",
)
UNKNOWN_SENDER = ProblemType(
    400, "unknown-sender", "The sender cannot be determined", "Nothing was done. Correct the request."
)
NO_CHECK = ProblemType(
    503, "no-check", "The sender cannot be checked", "Nothing was done. Send the same message again later."
)
NO_CHECK_S = 5.0
SUBMITTED_OUTCOMES = frozenset(("deferred", "busy"))

#: The problem for each outcome without a value, and whether the sender should try again.
_PROBLEMS: dict[str, tuple[ProblemType, bool]] = {
    "expired": (problems.EXPIRED, False),
    "deferred": (problems.NOT_YET, True),
    "busy": (problems.IN_PROGRESS, True),
    "store_error": (problems.NO_RECORD, True),
    "held": (problems.HELD, False),
    "failed": (FAILED, False),
    "unreadable": (UNREADABLE, False),
    "conflict": (problems.OTHER_PAYLOAD, False),
}


class UnknownSender(Exception):
    """The function `source=` failed to name the sender of a request."""


class InboxEndpoint:
    """An ASGI application that calls a step with each message that is posted to it."""

    def __init__(
        self,
        step: Any,
        *,
        mode: str,
        engine: Engine | None,
        key: Callable[[Any], Any] | str | None,
        arguments: Callable[[Any], Mapping[str, Any]] | None,
        source: str | Callable[[Scope], str],
        max_request: int,
        signing_key: Any = None,
        bearer_token: Any = None,
    ) -> None:
        if mode not in ("run", "submit"):
            raise UsageError(f"mode is {mode!r}; the choices are run, submit")
        if not callable(source) and not isinstance(source, str):
            raise UsageError(f"source is {source!r}; it takes a name, or a function of the scope")
        self._step, self._mode = MessageStep.create_from(step, engine, key, arguments), mode
        self._needs_id, self._source = key is None, source
        self._max_request = check_byte_limit("max_request", max_request)
        self._senders = SenderCheck(signing_key, bearer_token)
        self._active_tasks: set[Any] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._handle_lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise UsageError(f"an inbox serves HTTP, not {scope['type']}")
        wire = ClientConnection(send)
        if scope["method"] != "POST":
            status, fields, body = problem_response(NO_POST)
            await wire.send_response(status, [*fields, (b"allow", b"POST")], body)
            return
        try:
            self._senders.check_token(scope)
            message = self._make_message(scope, await read_body(receive, self._max_request))
        except NotAuthenticated as refusal:
            status, fields, body = problem_response(NOT_AUTHENTICATED, str(refusal))
            await wire.send_response(status, [*fields, CHALLENGE], body)
        except RequestTooLarge:
            await wire.send_response(*problem_response(problems.TOO_LARGE))
        except RequestTruncated:
            # The client has disconnected: it cannot be answered, and nothing was begun.
            return
        except UnknownSender as error:
            log_warning(f"an HTTP inbox refused a message: {error}")
            await wire.send_response(*problem_response(UNKNOWN_SENDER))
        except UsageError as error:  # the variable or file of a secret was removed while the program runs
            log_warning(f"an HTTP inbox cannot authenticate senders: {error}")
            await wire.send_response(*problem_response(NO_CHECK, retry_after_s=NO_CHECK_S))
        except ValueError as error:
            await wire.send_response(*problem_response(problems.MALFORMED, f"{str(error).capitalize()}."))
        else:
            if message is None:
                await wire.send_response(*problem_response(NO_ID))
            else:
                # Detached: the work continues if the client disconnects and the server cancels this task.
                await wire.send_response(
                    *await run_detached(lambda: self._handle_message(message), self._active_tasks)
                )

    def _make_message(self, scope: Scope, body: bytes) -> InboxMessage | None:
        """Return the message of a request, or None if it has no id and needs one."""
        pairs = [(name.decode("latin-1").lower(), value) for name, value in scope["headers"]]
        headers = {name: value.decode("latin-1") for name, value in pairs}
        message_id = self._senders.check_signature(scope, body, clocks.current.wall())
        # The id of a signed message is the signed one only, see `senders`.
        if not self._senders.requires_signature:
            key_fields = [value for name, value in pairs if name == _KEY_FIELD]
            message_id = parse_key(key_fields) or find_message_id(headers)
        if len(message_id) > MAX_MESSAGE_ID_LENGTH:
            raise ValueError(f"the id of the message has more than {MAX_MESSAGE_ID_LENGTH} characters")
        # If the key comes from the content, the id only names the message in dead letters and logs.
        if not message_id and not self._needs_id:
            message_id = f"sha256:{sha256(body).hexdigest()}"
        if not message_id:
            return None
        return sanitize_message(InboxMessage(message_id, self._find_sender(scope), body, headers))

    def _find_sender(self, scope: Scope) -> str:
        """Return the sender's name; raise `UnknownSender` if the user's function fails."""
        if isinstance(self._source, str):
            return self._source
        try:
            sender = self._source(scope)
        except Exception as error:
            raise UnknownSender(f"source= failed with {error_class_name(error)}") from error
        if not isinstance(sender, str):
            raise UnknownSender(f"source= returned a {type(sender).__name__}; it must return a string")
        return sender

    async def _handle_message(self, message: InboxMessage) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        result = await self._call_step(message)
        # An unreadable message is not stored: its sender still has it, and gets the error.
        if result.outcome == "failed" and self._mode == "run":
            await self._store_dead_letter(message, result)
        if result.outcome in ("done", "duplicate"):
            return _value_response(result)
        if self._mode == "submit" and result.outcome in SUBMITTED_OUTCOMES:
            return _json_response(202, {"run": result.run, "state": "accepted"})
        problem, may_retry = _PROBLEMS[result.outcome]
        retry_after_s = redelivery_delay_s(result, self._step.engine.now()) if may_retry else None
        detail = str(result.error.get("message", "")) if result.outcome == "unreadable" else ""
        # A conflicting message does not learn the run of the message that has its id.
        run = {"run": result.run} if result.run and result.outcome != "conflict" else {}
        return problem_response(problem, detail, retry_after_s, **run)

    async def _call_step(self, message: InboxMessage) -> MessageOutcome:
        call = self._step.read_message(message)
        if isinstance(call, MessageOutcome):
            return call
        if self._mode == "submit":
            return await _run_in_thread(self._step.submit_call, call)
        if self._step.is_async:
            return await self._step.call_step_async(call)
        return await _run_in_thread(self._step.call_step, call)

    async def _store_dead_letter(self, message: InboxMessage, result: MessageOutcome) -> None:
        """Store a permanently failed message as a dead letter."""
        engine, name = self._step.engine, self._step.name
        sinks = SinkTable({dead_letter_topic(name): _ignore_message})
        driver = DeliveryDriver(engine, sinks, DEFAULT_MAX_BYTES, None, None)
        await run_delivery_async(driver, store_dead_letter(message, name, result))

    async def _handle_lifespan(self, receive: Receive, send: Send) -> None:
        """Handle the ASGI lifespan; at shutdown wait for the messages in progress."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await wait_for_tasks(self._active_tasks, DRAIN_TIMEOUT_S)
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _ignore_message(_message: object) -> None:  # pragma: no cover - it only has to be async
    """Do nothing: the endpoint only stores dead letters, it does not send them."""


async def _run_in_thread(work: Callable[[StepCall], MessageOutcome], call: StepCall) -> MessageOutcome:
    trio = clocks.find_trio()
    if trio is not None:
        return await trio.to_thread.run_sync(work, call)  # type: ignore[no-any-return]
    import asyncio

    return await asyncio.to_thread(work, call)


def _value_response(result: MessageOutcome) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the response with a value; without it if JSON cannot encode the value."""
    content: dict[str, Any] = {"state": "done"}
    try:
        return _json_response(200, {**content, "value": result.value})
    except TypeError:
        return _json_response(200, content)


def _json_response(status: int, content: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    body = msgspec.json.encode(content)
    return status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body
