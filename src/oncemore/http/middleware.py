"""ASGI middleware that processes a request with an `Idempotency-Key` once and stores its response.

Such a request is a call of a durable step: the key is the client's, scoped by the principal; the work is the
application; the result is the response.

    the first request            runs; its response is stored, then sent
    a repeat                     gets the stored response, byte for byte
    … while the first one runs   gets 409, with Retry-After
    … with another body          gets 422
    after a crash                runs again; with effect `once` it is held, and gets 409
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from oncemore.classifiers.http_status import classify_failed_status
from oncemore.errors import Error, PermanentError, StepFailed, TransientError, UsageError
from oncemore.http import problems
from oncemore.http.key_scope import KEY_HEADER, parse_key
from oncemore.http.stored_response import (
    UNSTORED_HEADERS,
    ClientConnection,
    RequestTooLarge,
    RequestTruncated,
    ResponseRecorder,
    StoredResponse,
    check_byte_limit,
    read_body,
    replay_response,
    response_to_record,
    run_detached,
    wait_for_tasks,
)
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.model import EFFECTS
from oncemore.policy.policy import Policy
from oncemore.retries.options import as_seconds
from oncemore.steps.decorator import Step
from oncemore.steps.ops import ReconcileAnswer
from oncemore.steps.options import StepOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from oncemore.http.stored_response import App, Message, Receive, Scope, Send
    from oncemore.policy.model import Effect
    from oncemore.retries.options import Seconds
    from oncemore.steps.engine import Engine
    from oncemore.steps.plan import StepPlan

DAY_S = 86_400.0
DEFAULT_MAX_BYTES = 1024 * 1024
#: Statuses below 500 that are not stored: the client or the time was wrong, not the request.
UNDECIDED_STATUSES = frozenset((401, 403, 407, 408, 425, 429))
#: How long the shutdown of the server waits for requests in progress.
DRAIN_S = 10.0
_KEY_HEADER_BYTES = KEY_HEADER.lower().encode()


class ApplicationRefused(TransientError):
    """The application's response says that the request had no effect."""


class NoApplicationResult(PermanentError):
    """The application's response is missing or not final; the request may have had an effect."""


def same_principal(_scope: Scope) -> str:
    """Treat all clients as one principal: any client that knows a key gets its response. For `principal=`."""
    return ""


class RequestInProgress:
    """One request, as the argument of the step that the log does not store.

    is_unrecorded  whether the response is sent without being stored
    error          the exception of the application, if it raised one
    """

    def __init__(self, scope: Scope, recorder: ResponseRecorder, principal: str) -> None:
        self.scope, self.recorder, self.principal = scope, recorder, principal
        self.is_unrecorded = False
        self.error: BaseException | None = None


class _RequestStep(Step[Any, Any]):
    """The step of all requests of a middleware."""

    def _adjust_plan(self, plan: StepPlan) -> StepPlan:
        # A request never waits for a due time: the client gets a Retry-After.
        return plan.copy_with(inline_wait_s=0.0)


class IdempotencyMiddleware:
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

    def __init__(
        self,
        app: App,
        *,
        effect: Effect,
        principal: Callable[[Scope], str | Awaitable[str | None] | None],
        engine: Engine | None = None,
        name: str = "http",
        methods: Sequence[str] = ("POST", "PATCH"),
        paths: str | Sequence[str] = "*",
        optional: str | Sequence[str] = (),
        expires_after: Seconds = DAY_S,
        max_request: int = DEFAULT_MAX_BYTES,
        max_response: int = DEFAULT_MAX_BYTES,
        server_errors: Literal["rerun", "keep"] = "rerun",
        not_applied: Sequence[int] = (),
        reconcile: Callable[[str, str], Any] | None = None,
        unstored_headers: Sequence[str] = (),
        fingerprint: Callable[[Scope, bytes], str] | None = None,
        attempts: int = 10,
    ) -> None:
        if effect not in EFFECTS:
            raise UsageError(f"effect is {effect!r}; the choices are {', '.join(EFFECTS)}")
        if not callable(principal):
            raise UsageError(
                "principal takes a function of the scope; for one principal for all clients, pass "
                "oncemore.http.same_principal"
            )
        if server_errors not in ("rerun", "keep"):
            raise UsageError(f"server_errors is {server_errors!r}; the choices are rerun, keep")
        # Only a `once` step asks whether a failed request had an effect.
        if not_applied and effect != "once":
            raise UsageError(f"not_applied is for effect='once'; {effect} work may be repeated anyway")
        self._app, self._effect, self._principal = app, effect, principal
        self._methods = frozenset(method.upper() for method in methods)
        self._paths, self._optional = _check_patterns(paths), _check_patterns(optional)
        self._max_request = check_byte_limit("max_request", max_request)
        self._max_response = check_byte_limit("max_response", max_response)
        self._stores_errors = server_errors == "keep"
        self._not_applied = frozenset(not_applied)
        self._unstored_headers = UNSTORED_HEADERS | {field.lower().encode() for field in unstored_headers}
        self._fingerprint = fingerprint or _request_fingerprint
        self._active_tasks: set[Any] = set()
        once_options: dict[str, Any] = {}
        if effect == "once":
            once_options = {"not_applied": ApplicationRefused, "reconcile": _make_reconcile(reconcile)}
        policy = Policy(
            "http",
            "1",
            max_attempts=attempts,
            max_crashes=attempts,
            schedule=Schedule("fixed", delays=(problems.RETRY_AFTER_S,)),
            jitter=Jitter("none"),
        )
        settings: dict[str, Any] = {
            "effect": effect, "name": name, "key": "key", "ignore": "exchange", "tenant": _tenant_of_request,
            "policy": policy, "if_running": "raise",
            "retain_for": as_seconds("expires_after", expires_after), **once_options,
        }  # fmt: skip
        options = StepOptions(self._run_application, **settings)
        # A response that was not stored is not a result: a repeat of the request runs again.
        options.after_failure = "new_run"
        self._step = _RequestStep(options, engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._app(scope, self._drain_on_shutdown(receive), send)
            return
        if scope["type"] != "http" or not self._is_guarded(scope):
            await self._app(scope, receive, send)
            return
        principal = self._principal(scope)
        if hasattr(type(principal), "__await__"):
            principal = await principal  # type: ignore[misc]
        if principal is None:
            await self._app(scope, receive, send)
            return
        if not isinstance(principal, str):
            raise UsageError(f"principal returned {principal!r}; it must return a string or None")
        # Two Unicode spellings of one name are one principal.
        principal = normalize_name(principal)
        connection = ClientConnection(send)
        try:
            key = parse_key([value for name, value in scope["headers"] if name.lower() == _KEY_HEADER_BYTES])
        except ValueError as error:
            await connection.send_response(
                *problems.problem_response(problems.MALFORMED, f"{str(error).capitalize()}.")
            )
            return
        if key is not None:
            await self._handle_keyed_request(scope, receive, connection, key, principal)
        elif _matches_path(scope["path"], self._optional):
            await self._app(scope, receive, send)
        else:
            await connection.send_response(*problems.problem_response(problems.MISSING))

    def _is_guarded(self, scope: Scope) -> bool:
        return scope["method"] in self._methods and _matches_path(scope["path"], self._paths)

    async def _handle_keyed_request(
        self, scope: Scope, receive: Receive, connection: ClientConnection, key: str, principal: str
    ) -> None:
        """Process a request with a key once, and send its response."""
        try:
            body = await read_body(receive, self._max_request)
        except RequestTooLarge:
            await connection.send_response(*problems.problem_response(problems.TOO_LARGE))
            return
        except RequestTruncated:
            return  # the client has disconnected, and nothing was begun
        recorder = ResponseRecorder(connection, body, self._max_response, self._unstored_headers)
        exchange = RequestInProgress(scope, recorder, principal)
        # For readers of the log; a path may be long, and may contain lone surrogates.
        request = f"{scope['method']} {scope['path']}"[:500].encode("utf-8", "backslashreplace").decode()
        arguments = (key, request, self._fingerprint(scope, body), exchange)
        try:
            stored = await run_detached(lambda: self._step(*arguments), self._active_tasks)
        except Error as error:
            await self._answer_failure(error, exchange, connection)
            return
        # If another attempt was first, its stored response counts, not the recorded one.
        if recorder.has_run and recorder.to_record() == stored:
            await recorder.deliver_response()
        elif stored["body"] is None:
            await connection.send_response(
                *problems.problem_response(problems.NOT_KEPT, first_status=str(stored["status"]))
            )
        else:
            await connection.send_response(*replay_response(stored))

    async def _run_application(
        self, key: str, request: str, fingerprint: str, exchange: RequestInProgress
    ) -> dict[str, Any]:
        """Run the application; return a response to store, raise for one that is not stored."""
        recorder = exchange.recorder
        # The body of a request can be replayed, but its client gets one response: one attempt per request.
        if recorder.has_run:
            raise ApplicationRefused("this request has had its attempt; the next request has the next one")
        try:
            await recorder.run_application(self._app, exchange.scope)
        except Exception as error:
            exchange.error = error
            raise NoApplicationResult(f"the application failed with {type(error).__qualname__}") from error
        if not recorder.is_complete:
            raise NoApplicationResult("the application ended without a complete response")
        status = recorder.status
        if self._is_final(status):
            return recorder.to_record()
        exchange.is_unrecorded = True
        had_no_effect = classify_failed_status(status, None, 0.0).sent == "no" or status in self._not_applied
        error_class = ApplicationRefused if self._effect == "once" and had_no_effect else NoApplicationResult
        raise error_class(f"the application responded with {status}")

    def _is_final(self, status: int) -> bool:
        """Return whether a response is stored, so that a repeat does not run again."""
        if status >= 500:
            return self._stores_errors or status in _ALWAYS_RECORDED
        return status not in UNDECIDED_STATUSES

    async def _answer_failure(
        self, error: Error, exchange: RequestInProgress, connection: ClientConnection
    ) -> None:
        """Send the response of a request without a stored result."""
        if exchange.error is not None:
            # As without this middleware: the server or an outer middleware makes the response.
            raise exchange.error
        if exchange.is_unrecorded:
            await exchange.recorder.deliver_response()
        elif exchange.recorder.is_large:
            return  # its beginning was streamed to the client already
        elif exchange.recorder.has_run and isinstance(error, StepFailed):
            await connection.send_response(*problems.problem_response(problems.NO_ANSWER))
        else:
            await connection.send_response(*problems.error_response(error))

    def _drain_on_shutdown(self, receive: Receive) -> Receive:
        """Return a `receive` that waits for requests in progress before it reports the shutdown."""

        async def drain() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await wait_for_tasks(self._active_tasks, DRAIN_S)
            return message

        return drain


#: Statuses of 500 or more that are stored in any case: a repeat would get the same response.
_ALWAYS_RECORDED = frozenset((501, 505))


def _request_fingerprint(scope: Scope, body: bytes) -> str:
    """Return the digest of method, path, query and body."""
    method, path = (scope[name].encode("utf-8", "surrogatepass") for name in ("method", "path"))
    parts = method, path, scope.get("query_string", b""), body
    # The lengths keep the parts apart: a path may contain any character.
    return sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).hexdigest()


def _tenant_of_request(key: str, request: str, fingerprint: str, exchange: RequestInProgress) -> str:
    """Return the principal of a request as its tenant, or the digest of a long one."""
    principal = exchange.principal
    return principal if len(principal) <= 200 else sha256(principal.encode()).hexdigest()


def _make_reconcile(reconcile: Any) -> Any:
    """Return the step's reconcile function, which calls the user's and converts its response."""
    if reconcile is None:
        return None
    if not callable(reconcile):
        raise UsageError(f"reconcile is {reconcile!r}; it takes a function of a key and a principal")

    async def reconcile_request(key: str, request: str, fingerprint: str, exchange: RequestInProgress) -> Any:
        # This request has had its attempt; the next one asks again.
        if exchange.recorder.has_run:
            return ReconcileAnswer("unknown")
        answer = reconcile(key, exchange.principal)
        if hasattr(type(answer), "__await__"):
            answer = await answer
        if type(answer) is not ReconcileAnswer or answer.outcome != "applied":
            return answer
        if not isinstance(answer.value, StoredResponse):
            raise UsageError(
                f"reconcile returned {answer.value!r:.80}; it must return "
                "applied(oncemore.http.StoredResponse(status, body))"
            )
        return answer._replace(value=response_to_record(answer.value))

    return reconcile_request


def _check_patterns(value: Any) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError(f"paths and optional take patterns such as '/orders/*', not {value!r}")
    return patterns


def _matches_path(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
