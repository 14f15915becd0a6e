"""`CoreClient`: requests to Core, each retried as the profile says, and only if it may be sent twice.

The client knows before it sends a request whether it may send it again: if the method is idempotent by
nature, if the caller declares the request idempotent, or if it has an idempotency key. Every other request is
sent once; it is repeated only if no connection was made, so that nothing was sent.

The loop is that of `oncemore.retry` (`retries.loop`). A request with a key also goes through a durable step,
so the first successful response of a key is the response of that key from then on (HTTP-14).
"""

from __future__ import annotations

from http.client import HTTPException
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from oncemore._redact import mask_text
from oncemore.classifiers.classify import classify
from oncemore.errors import AttemptTimeout, KeyConflict, StepFailed, UsageError
from oncemore.policy.files import loader
from oncemore.profiles.lit import alert, http
from oncemore.profiles.lit import policy as lit_policy
from oncemore.profiles.lit.errors import (
    CoreAnswer,
    CoreClientError,
    CoreClientHTTPError,
    UnreadableCoreAnswer,
)
from oncemore.profiles.lit.http import check_id, current_ids
from oncemore.retries.driver import run_blocking
from oncemore.retries.loop import make_script
from oncemore.retries.plan import RetryPlan
from oncemore.retries.report import get_decision
from oncemore.steps.attempt import current
from oncemore.steps.decorator import Step
from oncemore.steps.options import StepOptions

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from typing import Unpack
    from urllib.request import OpenerDirector

    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy
    from oncemore.profiles.lit.alert import ExhaustionAlert
    from oncemore.profiles.lit.http import RequestIds
    from oncemore.profiles.lit.session import CoreSession, LostAction
    from oncemore.steps.engine import Engine

#: Idempotent by nature (RFC 9110): a repeated request has the same effect as one.
IDEMPOTENT_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
ALLOWED_METHODS: Final = (*sorted(IDEMPOTENT_METHODS - {"HEAD", "OPTIONS"}), "PATCH", "POST")
#: How often an operation with a key starts again after its process died; then a new call is needed.
MAX_OPERATIONS: Final = 3
#: The name of the step that stores responses by key.
ANSWER_STEP_NAME: Final = "oncemore.profiles.lit.answer"


class CoreRequestSpec(NamedTuple):
    """A request that is ready to be sent; `is_repeatable` says whether it may be sent again."""

    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    ids: RequestIds
    policy: Policy
    is_repeatable: bool

    @property
    def name(self) -> str:
        """The name for logs and errors; without the query, which may hold a secret."""
        return f"{self.method} {self.path.partition('?')[0]}"

    def may_repeat(self, error: Exception, failure: Failure) -> bool:
        """Return whether it may be sent again after this failure: it is declared so, or nothing was sent."""
        is_unsent = failure.sent == "no" and not isinstance(error, CoreAnswer)
        return (self.is_repeatable or is_unsent) and lit_policy.is_repeatable(error, failure, self.policy)


class RequestOptions(TypedDict, total=False):
    """The options that every request takes; see `CoreClient.request`."""

    idempotency_key: str | None
    request_id: str | None
    session_id: str | None


class CoreClient:
    """A client of Core that follows the LIT reliability policy.

    base_url               the address of Core: http:// or https://, a host, optionally a path
    retry_attempts         the most requests in all (the profile's 2; at least 1)
    retry_backoff_seconds  the wait after attempt n is n times this (the profile's 0.25; at least 0)
    timeout_s              the limit of one request, from the name lookup to the last byte (30)
    retry_after_cap_s      the longest `Retry-After` to obey; a longer one raises the error at once (30)
    headers                sent with every request; never logged
    tls                    an `ssl.SSLContext` instead of the default one
    counter                counts exhausted operations; that of the process unless given
    engine                 stores responses by key; found as for steps unless given

    Delivery is at least once: a repeatable request can reach Core twice. Each request carries its number in
    the header `Oncemore-Attempt`; above 1, Core may have worked on it before.
    """

    def __init__(
        self,
        base_url: str,
        *,
        retry_attempts: int | None = None,
        retry_backoff_seconds: float | None = None,
        timeout_s: float | None = None,
        retry_after_cap_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        counter: ExhaustionAlert | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.base_url = http.check_base_url(base_url)
        self.policy = lit_policy.transport_policy(
            retry_attempts, retry_backoff_seconds, timeout_s, retry_after_cap_s
        )
        self.headers = MappingProxyType(
            {name: check_id(name, text) for name, text in (headers or {}).items()}
        )
        self.counter = alert.exhaustion if counter is None else counter
        # Here and not in the session: two session objects of one id must refuse the same action.
        self.unsettled: dict[tuple[str, str, str], LostAction] = {}
        self._opener: OpenerDirector = http.make_opener(tls)
        self._engine = engine
        self._answer_step: Step[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"<CoreClient {self.base_url}>"

    def get(self, path: str, *, request_id: str | None = None, session_id: str | None = None) -> Any:
        """Send a GET request; delivered at least once, because reading may be repeated."""
        return self.request("GET", path, request_id=request_id, session_id=session_id)

    def call(self, path: str, payload: Any, **options: Unpack[RequestOptions]) -> Any:
        """Call an operation of Core's contract; delivered at least once.

        Core keeps no state at its boundary, so contract calls are declared idempotent: a call without a seen
        success is sent again, and Core may compute it twice. A language model may respond differently to each
        call; with an `idempotency_key` the first successful response is stored and returned.
        """
        return self.request("POST", path, payload, idempotent=True, **options)

    def post(
        self, path: str, payload: Any = None, *, idempotent: bool = False, **options: Unpack[RequestOptions]
    ) -> Any:
        """Send a POST request: once, or at least once if it is declared idempotent."""
        return self.request("POST", path, payload, idempotent=idempotent, **options)

    def request(
        self,
        method: str,
        path: str,
        payload: Any = None,
        *,
        idempotent: bool | None = None,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
    ) -> Any:
        """Send a request and return the value of the response; None for one without content.

        idempotent       whether it may be sent again; decided by the method unless given
        idempotency_key  sent as `Idempotency-Key`; the request may then be sent again, and the first
                         successful response of the key is stored and returned to every later caller

        Delivered at least once if it may be sent again, else sent once. Raises `CoreClientHTTPError` for a
        response that is not a success, `CoreClientError` for no response or an unreadable one.
        """
        spec = self.prepare_request(method, path, payload, current_ids(request_id, session_id))
        is_idempotent = method in IDEMPOTENT_METHODS if idempotent is None else idempotent
        if idempotency_key is None:
            return self.send_request(spec._replace(is_repeatable=is_idempotent))
        key = check_id("idempotency_key", idempotency_key)
        if '"' in key or "\\" in key:
            raise UsageError(
                "idempotency_key holds a quote or a backslash, which the header cannot carry; remove them"
            )
        return self._send_with_key(spec._replace(is_repeatable=True), key, payload)

    def session(self, session_id: str) -> CoreSession:
        """Return a session of Core; its actions are sent once, and a lost one is reconciled by reading."""
        from oncemore.profiles.lit.session import CoreSession

        return CoreSession(self, session_id)

    def prepare_request(
        self, method: str, path: str, payload: Any, request_ids: RequestIds
    ) -> CoreRequestSpec:
        """Return a checked request that is ready to be sent."""
        if method not in ALLOWED_METHODS:
            raise UsageError(f"method is {method!r}; it takes {', '.join(ALLOWED_METHODS)}")
        body = http.encode_body(payload)
        return CoreRequestSpec(
            method, http.check_path(path), body, {}, request_ids, self.policy, is_repeatable=False
        )

    def send_request(self, spec: CoreRequestSpec, *, first: int = 1, counted: bool = True) -> Any:
        """Make the attempts of one operation; `first` is the number of its first request."""
        numbers, limit_s = count(first), spec.policy.timeout_s
        url = self.base_url + spec.path

        def attempt() -> Any:
            headers = {**self.headers, **spec.headers, **_request_headers(spec.ids, next(numbers))}
            request = http.make_request(spec.method, url, spec.body, headers)
            return http.send_request(self._opener, request, limit_s)

        plan = RetryPlan(spec.name, spec.policy, spec.may_repeat, classify, cuts=True)
        try:
            value = run_blocking(plan, make_script(plan), attempt, (), {})
        except (CoreAnswer, UnreadableCoreAnswer, AttemptTimeout, OSError, HTTPException) as error:
            client_error = _make_client_error(spec, error)
            self._count_failure(spec, error, client_error, counted=counted)
            raise client_error from error
        if counted:
            self.counter.count(exhausted=False)
        return value

    def _count_failure(
        self, spec: CoreRequestSpec, error: Exception, client_error: CoreClientError, *, counted: bool
    ) -> None:
        """Count a failed operation, and log it if a repeat could have succeeded.

        An operation is exhausted if its attempts are used up. A request that may be sent once has no second
        attempt to use up, and one that Core defers beyond the cap has attempts left.
        """
        decision = get_decision(error)
        assert decision is not None  # the script attaches its decision to every error
        failure = decision.situation.failure
        may_repeat, deferred = spec.may_repeat(error, failure), decision.action == "defer"
        exhausted = may_repeat and decision.reason == "max_attempts_exceeded"
        if counted:
            self.counter.count(exhausted=exhausted, deferred=deferred)
        if may_repeat or lit_policy.is_repeatable(error, failure, spec.policy):
            fields = {
                "oncemore_method": spec.method,
                "oncemore_path": spec.path.partition("?")[0],
                "oncemore_error_class": failure.code,
                "oncemore_reason": decision.reason,
            }
            event = "failed, and is not sent again,"
            if deferred:
                event = f"deferred: Core asks for {failure.retry_after:g} s without requests,"
            elif exhausted:
                event = "exhausted"
            alert.log_exhausted(
                f"{spec.name}: {event}",
                decision.situation.attempt,
                spec.ids,
                _format_error(client_error),
                fields,
            )

    def _send_with_key(self, spec: CoreRequestSpec, key: str, payload: Any) -> Any:
        """Return the stored response of a key, or send the request and store the first successful one."""
        # Made on first use: a client without keys needs no engine.
        if self._answer_step is None:
            self._answer_step = self._make_answer_step()
        step = self._answer_step if self._engine is None else self._answer_step.bind(self._engine)
        try:
            return step(self.base_url, key, spec.method, spec.path, payload, spec)
        except KeyConflict as error:
            conflict = KeyConflict(
                f"{spec.name}: the idempotency_key {key!r} belongs to another request (another method, path "
                "or payload); give this request an idempotency_key of its own"
            )
            # The message of the step names its arguments; the caller knows method, path and payload.
            conflict.run = error.run
            raise conflict from error
        except StepFailed as error:
            # The caller gets the error of the operation itself, as without a key.
            if isinstance(error.__cause__, CoreClientError):
                raise error.__cause__ from error.__cause__.__cause__
            raise CoreClientError(f"{spec.name}: {error}") from error

    def _make_answer_step(self) -> Step[Any, Any]:
        """Return the step that stores this client's responses.

        Its attempts are whole operations, which have their own limits and whose errors are final. So the step
        makes a second attempt only if a process died during the first.
        """

        # The names of the parameters are stored with each run: never rename them.
        def answer(core: str, key: str, method: str, path: str, payload: Any, ask: CoreRequestSpec) -> Any:
            # Requests count on over the attempts of the step, so that Core can tell a repeat.
            number = 1 + (current().number - 1) * self.policy.max_attempts
            return self.send_request(ask._replace(headers={http.KEY_HEADER: f'"{key}"'}), first=number)

        step_options: dict[str, Any] = {
            "effect": "idempotent", "name": ANSWER_STEP_NAME, "key": ("core", "key"), "ignore": ("ask",),
            # No timeout: the operation inside has a limit for each of its requests.
            "policy": self.policy.replace(timeout_s=None, classes=None, max_attempts=MAX_OPERATIONS),
        }  # fmt: skip
        options = StepOptions(answer, **step_options)
        options.after_failure = loader.step_settings(lit_policy.PROFILE).after_failure
        return Step(options)


def _request_headers(ids: RequestIds, number: int) -> dict[str, str]:
    session = {http.SESSION_ID_HEADER: ids.session_id} if ids.session_id else {}
    return {http.ATTEMPT_HEADER: str(number), http.REQUEST_ID_HEADER: ids.request_id, **session}


def _make_client_error(spec: CoreRequestSpec, error: Exception) -> CoreClientError:
    """Return the error for the caller from the failure of the last attempt."""
    if isinstance(error, CoreAnswer):
        return CoreClientHTTPError(error.status, error.detail, error.retry_after)
    # Core has responded, so the number of requests is of no interest.
    if isinstance(error, UnreadableCoreAnswer):
        return CoreClientError(f"{spec.name}: {error}")
    decision = get_decision(error)
    attempts = 1 if decision is None else decision.situation.attempt
    reason = mask_text(str(error)) or "no reason given"
    return CoreClientError(
        f"{spec.name}: no answer in {attempts} request{'' if attempts == 1 else 's'}; the last ended with "
        f"{type(error).__name__}: {reason}"
    )


def _format_error(error: CoreClientError) -> str:
    """Return an error as the log line shows it."""
    return repr(error) if isinstance(error, CoreClientHTTPError) else f"{type(error).__name__}: {error}"
