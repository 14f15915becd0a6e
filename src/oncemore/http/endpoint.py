"""Idempotent endpoints: processes a request with an `Idempotency-Key` once and stores its response.

Such a request is a call of a durable step: the key is the client's, scoped by the principal; the work is the
application; the result is the response.

    the first request            runs; its response is stored, then sent
    a repeat                     gets the stored response, byte for byte
    … while the first one runs   gets 409, with Retry-After
    … with another body          gets 422
    after a crash                runs again; with effect `once` it is held, and gets 409

This module decides and does no I/O: `serve_request` is a script, and each kind of server has an exchange that
performs its operations (`middleware` for ASGI, `wsgi`, `django`). All of them store the same records, so that
a service can move from one kind of server to another and keep its stored responses.
"""

from __future__ import annotations

from contextlib import contextmanager
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from oncemore.classifiers.http_status import classify_failed_status
from oncemore.errors import Error, PermanentError, StepFailed, TransientError, UsageError
from oncemore.http import problems
from oncemore.http.exchange import (
    CallRequestStep,
    FindPrincipal,
    ReadRequestBody,
    Reply,
    RequestExchange,
    is_awaitable,
    refuse_awaitable,
)
from oncemore.http.key_scope import parse_key
from oncemore.http.stored_response import (
    UNSTORED_HEADERS,
    RequestTooLarge,
    RequestTruncated,
    ResponseRecorder,
    StoredResponse,
    check_byte_limit,
    replay_response,
    response_to_record,
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
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from oncemore._driver import Script
    from oncemore.policy.model import Effect
    from oncemore.retries.options import Seconds
    from oncemore.steps.engine import Engine
    from oncemore.steps.plan import StepPlan

DAY_S = 86_400.0
DEFAULT_MAX_BYTES = 1024 * 1024
#: Statuses below 500 that are not stored: the client or the time was wrong, not the request.
UNDECIDED_STATUSES = frozenset((401, 403, 407, 408, 425, 429))
#: Statuses of 500 or more that are stored in any case: a repeat would get the same response.
_ALWAYS_RECORDED = frozenset((501, 505))


class ApplicationRefused(TransientError):
    """The application's response says that the request had no effect."""


class NoApplicationResult(PermanentError):
    """The application's response is missing or not final; the request may have had an effect."""


def same_principal(_request: Any) -> str:
    """Treat all clients as one principal: any client that knows a key gets its response. For `principal=`."""
    return ""


PASS_THROUGH = Reply("pass")


def _make_problem(problem: problems.ProblemType, detail: str = "", **members: str) -> Reply:
    return Reply("send", *problems.problem_response(problem, detail, None, **members))


class _RequestStep(Step[Any, Any]):
    """The step of all requests of an endpoint."""

    def _adjust_plan(self, plan: StepPlan) -> StepPlan:
        # A request never waits for a due time: the client gets a Retry-After.
        return plan.copy_with(inline_wait_s=0.0)


class IdempotentEndpoint:
    """The options, the decisions and the script of a middleware, for servers of any kind."""

    #: Whether the application, `principal` and `reconcile` may be async.
    _is_async = False

    def __init__(
        self,
        app: Any,
        *,
        effect: Effect,
        principal: Callable[[Any], str | Awaitable[str | None] | None],
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
        fingerprint: Callable[[Any, bytes], str] | None = None,
        attempts: int = 10,
    ) -> None:
        if effect not in EFFECTS:
            raise UsageError(f"effect is {effect!r}; the choices are {', '.join(EFFECTS)}")
        if not callable(principal):
            raise UsageError(
                "principal takes a function of the request; for one principal for all clients, pass "
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
        self._fingerprint = fingerprint
        # Of an event loop: requests that the server may have cancelled.
        self._active_tasks: set[Any] = set()
        self._step = self._make_step(
            engine, name, attempts, as_seconds("expires_after", expires_after), reconcile
        )

    def _make_step(
        self, engine: Engine | None, name: str, attempts: int, retain_for: float, reconcile: Any
    ) -> _RequestStep:
        once_options: dict[str, Any] = {}
        if self._effect == "once":
            once_options = {
                "not_applied": ApplicationRefused,
                "reconcile": _make_reconcile(reconcile, self._is_async),
            }
        policy = Policy(
            "http",
            "1",
            max_attempts=attempts,
            max_crashes=attempts,
            schedule=Schedule("fixed", delays=(problems.RETRY_AFTER_S,)),
            jitter=Jitter("none"),
        )
        settings: dict[str, Any] = {
            "effect": self._effect, "name": name, "key": "key", "ignore": "exchange",
            "tenant": _tenant_of_request, "policy": policy, "if_running": "raise", "retain_for": retain_for,
            **once_options,
        }  # fmt: skip
        options = StepOptions(self._run_request_async if self._is_async else self._run_request, **settings)
        # A response that was not stored is not a result: a repeat of the request runs again.
        options.after_failure = "new_run"
        return _RequestStep(options, engine)

    def serve_request(self, exchange: RequestExchange) -> Script[Reply]:
        """Decide about one request, run it once, and return the reply to its client."""
        if exchange.method not in self._methods or not _matches_path(exchange.path, self._paths):
            return PASS_THROUGH
        principal = yield FindPrincipal(self._principal)
        if principal is None:
            return PASS_THROUGH
        if not isinstance(principal, str):
            raise UsageError(f"principal returned {principal!r}; it must return a string or None")
        # Two Unicode spellings of one name are one principal.
        exchange.principal = normalize_name(principal)
        try:
            key = parse_key(exchange.key_fields)
        except ValueError as error:
            return _make_problem(problems.MALFORMED, f"{str(error).capitalize()}.")
        if key is None:
            is_optional = _matches_path(exchange.path, self._optional)
            return PASS_THROUGH if is_optional else _make_problem(problems.MISSING)
        try:
            exchange.body = yield ReadRequestBody(self._max_request)
        except RequestTooLarge:
            return _make_problem(problems.TOO_LARGE)
        except RequestTruncated:
            # Nothing was begun. The client is gone in most cases; a proxy may still read the response.
            return _make_problem(problems.CUT_OFF)
        exchange.recorder = ResponseRecorder(self._max_response, self._unstored_headers)
        # For readers of the log; a path may be long, and may contain lone surrogates.
        request = f"{exchange.method} {exchange.path}"[:500].encode("utf-8", "backslashreplace").decode()
        try:
            stored = yield CallRequestStep(
                self._step, (key, request, self._compute_fingerprint(exchange), exchange)
            )
        except Error as error:
            return _choose_failure_reply(error, exchange)
        return _choose_reply(stored, exchange.recorder)

    def _compute_fingerprint(self, exchange: RequestExchange) -> str:
        if self._fingerprint is None:
            return request_fingerprint(exchange)
        return self._fingerprint(exchange.native, exchange.body)

    # The work of the step, once per kind of caller: -------------------------------------------------

    async def _run_request_async(
        self, key: str, request: str, fingerprint: str, exchange: RequestExchange
    ) -> dict[str, Any]:
        """Run an async application; return a response to store, raise for one that is not stored."""
        with _one_attempt(exchange):
            await exchange.run_application(self._app)
        return self._record_result(exchange)

    def _run_request(
        self, key: str, request: str, fingerprint: str, exchange: RequestExchange
    ) -> dict[str, Any]:
        """Run a blocking application; return a response to store, raise for one that is not stored."""
        with _one_attempt(exchange):
            exchange.run_application(self._app)
        return self._record_result(exchange)

    def _record_result(self, exchange: RequestExchange) -> dict[str, Any]:
        """Return the response of the application if it is stored, else raise."""
        recorder = exchange.recorder
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


@contextmanager
def _one_attempt(exchange: RequestExchange) -> Iterator[None]:
    """Allow the application one attempt per request, and keep its exception."""
    # The body of a request can be replayed, but its client gets one response.
    if exchange.recorder.has_run:
        raise ApplicationRefused("this request has had its attempt; the next request has the next one")
    exchange.recorder.has_run = True
    try:
        yield
    except Exception as error:
        exchange.error = error
        raise NoApplicationResult(f"the application failed with {type(error).__qualname__}") from error


def _choose_reply(stored: dict[str, Any], recorder: ResponseRecorder) -> Reply:
    """Return the reply to a request whose response is stored."""
    # If another attempt was first, its stored response counts, not the recorded one.
    if recorder.has_run and recorder.to_record() == stored:
        return Reply("deliver")
    if stored["body"] is None:
        return _make_problem(problems.NOT_KEPT, first_status=str(stored["status"]))
    return Reply("send", *replay_response(stored))


def _choose_failure_reply(error: Error, exchange: RequestExchange) -> Reply:
    """Return the reply to a request without a stored result; raise the error of the application."""
    if exchange.error is not None:
        # As without this endpoint: the server or an outer middleware makes the response.
        raise exchange.error
    if exchange.is_unrecorded:
        return Reply("deliver")
    if exchange.is_streamed:
        return Reply("drop")
    if exchange.recorder.has_run and isinstance(error, StepFailed):
        return _make_problem(problems.NO_ANSWER)
    return Reply("send", *problems.error_response(error))


def request_fingerprint(exchange: RequestExchange) -> str:
    """Return the digest of method, path, query and body."""
    method, path = (text.encode("utf-8", "surrogatepass") for text in (exchange.method, exchange.path))
    parts = method, path, exchange.query, exchange.body
    # The lengths keep the parts apart: a path may contain any character.
    return sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).hexdigest()


def _tenant_of_request(key: str, request: str, fingerprint: str, exchange: RequestExchange) -> str:
    """Return the principal of a request as its tenant, or the digest of a long one."""
    principal = exchange.principal
    return principal if len(principal) <= 200 else sha256(principal.encode()).hexdigest()


def _make_reconcile(reconcile: Any, is_async: bool) -> Any:
    """Return the step's reconcile function, which calls the user's and converts its response."""
    if reconcile is None:
        return None
    if not callable(reconcile):
        raise UsageError(f"reconcile is {reconcile!r}; it takes a function of a key and a principal")

    async def reconcile_async(key: str, request: str, fingerprint: str, exchange: RequestExchange) -> Any:
        # This request has had its attempt; the next one asks again.
        if exchange.recorder.has_run:
            return ReconcileAnswer("unknown")
        answer = reconcile(key, exchange.principal)
        return _convert_answer(await answer if is_awaitable(answer) else answer)

    def reconcile_blocking(key: str, request: str, fingerprint: str, exchange: RequestExchange) -> Any:
        if exchange.recorder.has_run:
            return ReconcileAnswer("unknown")
        return _convert_answer(refuse_awaitable("reconcile", reconcile(key, exchange.principal)))

    return reconcile_async if is_async else reconcile_blocking


def _convert_answer(answer: Any) -> Any:
    """Return an answer of `reconcile`, with its response as the log stores it."""
    if type(answer) is not ReconcileAnswer or answer.outcome != "applied":
        return answer
    if not isinstance(answer.value, StoredResponse):
        raise UsageError(
            f"reconcile returned {answer.value!r:.80}; it must return "
            "applied(oncemore.http.StoredResponse(status, body))"
        )
    return answer._replace(value=response_to_record(answer.value))


def _check_patterns(value: Any) -> tuple[str, ...]:
    patterns = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError(f"paths and optional take patterns such as '/orders/*', not {value!r}")
    return patterns


def _matches_path(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
