"""Decides whether an HTTP request is sent again; the same for every client library.

The retry loop (`retries.loop`) runs the attempts. A request is sent again if its failure may pass, its body
can be sent a second time, and one of these holds:

    its method is idempotent                GET, HEAD, OPTIONS, TRACE, PUT, DELETE
    the caller has declared it              idempotent=
    it has an idempotency key               the caller's, or that of the surrounding step
    nothing has reached the server          no connection, or it was refused (429)
"""

from __future__ import annotations

import sys

from oncemore._values import FrozenRecord, Value
from oncemore.classifiers.classify import classify
from oncemore.classifiers.http_status import classify_failed_status, classify_status
from oncemore.errors import UsageError
from oncemore.http.host_limits import HostBreaker, PerHostLimits
from oncemore.http.key_scope import KEY_HEADER, KEY_STYLES, RequestSlot, current_attempt, format_key
from oncemore.limits.breaker import BreakerCore
from oncemore.limits.budget import TokenBucket
from oncemore.retries.driver import run_async, run_blocking
from oncemore.retries.loop import make_script
from oncemore.retries.options import as_seconds, build_plan
from oncemore.retries.report import get_decision
from oncemore.steps.context import CONTEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from os import PathLike
    from typing import Any, Final, Literal, TypedDict

    from oncemore.audit.events import AuditEvent
    from oncemore.http.key_scope import Style
    from oncemore.policy.backoff import Jitter, Schedule
    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy
    from oncemore.retries.options import Seconds
    from oncemore.retries.plan import RetryPlan
    from oncemore.retries.report import RetryReport

    class ClientKeywords(TypedDict, total=False):
        """The keyword arguments of `Transport`, `AsyncTransport` and `Adapter`."""

        attempts: int | None
        total_timeout: Seconds | None
        wait: Schedule | Seconds | Sequence[Seconds] | None
        jitter: Jitter | str | None
        policy: Policy | str | PathLike[str] | None
        seed: str | int | None
        budget: TokenBucket | Callable[[str], TokenBucket] | None
        breaker: BreakerCore | Callable[[str], BreakerCore] | None
        idempotent: Sequence[str] | Callable[[Any], bool]
        retries_in_step: Literal["once", "retry"]
        timeout: Seconds
        key_style: Style
        on_retry: Callable[[RetryReport], object] | None
        on_give_up: Callable[[RetryReport], object] | None
        on_event: Callable[[AuditEvent], object] | None
        category: str | None


#: RFC 9110 §9.2.2.
IDEMPOTENT_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
ATTEMPT_HEADER: Final = "Oncemore-Attempt"
#: The timeout of a request without one (HTTP-7).
DEFAULT_TIMEOUT_S: Final = 30.0
#: The limit up to which a discarded response is read, so that its connection can be reused.
SHORT_BYTES: Final = 16_384

_RETRY_OPTIONS = ("attempts", "total_timeout", "wait", "jitter", "policy", "seed", "on_event", "category")
_HOOK_OPTIONS = ("on_retry", "on_give_up")
_CLIENT_OPTIONS = ("budget", "breaker", "idempotent", "retries_in_step", "timeout", "key_style")


class RetryInfo(Value):
    """How a request was retried.

    attempts  the number of times it was sent
    reason    why it was not sent again; empty if it did not fail
    decision  the last decision, with its proof; None if it did not fail
    """

    attempts: int
    reason: str = ""
    decision: Decision | None = None

    @property
    def not_before(self) -> float | None:
        """The earliest time of another try, in POSIX seconds, if the server asked for too long a wait."""
        return None if self.decision is None else self.decision.not_before


def retry_info(response: Any) -> RetryInfo | None:
    """Return how a request was retried, from its response or error; None if another transport sent it."""
    # Responses of httpx have `extensions`; those of requests, and exceptions, have an attribute.
    extensions = getattr(response, "extensions", None) or {}
    info = extensions.get(_INFO_KEY) or getattr(response, "__dict__", {}).get(_INFO_KEY)
    return info if isinstance(info, RetryInfo) else None


_INFO_KEY: Final = "oncemore"


#: The ports that a host's name does not show.
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def format_host(scheme: str, host: str, port: int | None) -> str:
    """Return the name of a host, with its port unless that is the default port."""
    return host if port in (None, _DEFAULT_PORTS.get(scheme)) else f"{host}:{port}"


class FailedResponse(Exception):
    """Carries a failed response to the classifier; the caller gets the response itself in the end."""

    def __init__(self, response: Any, status: int, fields: object) -> None:
        super().__init__(f"HTTP {status}")
        self.response, self.status, self.fields = response, status, fields


class RequestInfo(Value):
    """The properties of a request that decide on a retry.

    host                with the port, unless it is the default port
    has_key             whether the caller has set an idempotency key
    is_body_repeatable  whether its body can be sent a second time
    """

    request: Any
    method: str
    host: str
    url: str
    has_key: bool
    is_body_repeatable: bool


class ClientOptions(FrozenRecord):
    """The checked options of a client; the same for all its requests."""

    __slots__ = (
        "breakers",
        "budgets",
        "is_idempotent",
        "key_style",
        "on_retry",
        "plan",
        "retries_in_step",
        "single_attempt_policy",
        "timeout",
    )
    breakers: PerHostLimits
    budgets: PerHostLimits
    is_idempotent: Callable[[str, Any], bool]
    key_style: str
    on_retry: Callable[[RetryReport], object] | None
    single_attempt_policy: Policy
    plan: RetryPlan
    retries_in_step: str
    timeout: float

    def __init__(self, where: str, options: ClientKeywords, colour: str) -> None:
        for option in options:
            if option not in (*_RETRY_OPTIONS, *_HOOK_OPTIONS, *_CLIENT_OPTIONS):
                allowed = ", ".join((*_RETRY_OPTIONS, *_HOOK_OPTIONS, *_CLIENT_OPTIONS))
                raise UsageError(f"{where}() has no {option}=; it takes {allowed}")
        retry_options: Any = {name: value for name, value in options.items() if name not in _CLIENT_OPTIONS}
        retry_options["on"] = "transient"
        plan = build_plan(retry_options, where, colour)
        timeout = as_seconds("timeout", options.get("timeout", DEFAULT_TIMEOUT_S))
        if not 0 < timeout <= 86_400:
            raise UsageError(f"timeout is {timeout!r}; it takes more than 0 and up to 86400 seconds")
        self.set_fields(
            breakers=PerHostLimits("breaker", options.get("breaker"), BreakerCore),
            budgets=PerHostLimits("budget", options.get("budget"), TokenBucket),
            is_idempotent=_make_idempotent_check(options.get("idempotent", ())),
            key_style=_check_choice("key_style", options.get("key_style", "quoted"), KEY_STYLES),
            on_retry=plan.on_retry,
            single_attempt_policy=plan.policy.replace(max_attempts=1),
            plan=plan,
            retries_in_step=_check_choice(
                "retries_in_step", options.get("retries_in_step", "once"), ("once", "retry")
            ),
            timeout=timeout,
        )


def _check_choice(option: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError(f"{option} is {value!r}; the choices are {', '.join(choices)}")
    return str(value)


def _make_idempotent_check(idempotent: Any) -> Callable[[str, Any], bool]:
    """Return a function of method and request: whether the caller has declared the request idempotent."""
    if callable(idempotent):
        return lambda method, request: bool(idempotent(request))
    if isinstance(idempotent, str) or not all(isinstance(method, str) for method in idempotent):
        raise UsageError(
            f"idempotent is {idempotent!r}; it takes methods, ('POST',), or a function of a request"
        )
    methods = frozenset(method.upper() for method in idempotent)
    return lambda method, request: method in methods


class RequestRetry:
    """The attempts of one request: their number, their key, and whether another one is allowed."""

    def __init__(self, options: ClientOptions, request: RequestInfo) -> None:
        self._options, self._request = options, request
        self._step = current_attempt()
        self.attempts_sent = 0
        self._slot: RequestSlot | None = None
        self._no_repeat_reason = ""
        is_idempotent_method = request.method in IDEMPOTENT_METHODS
        if self._step is not None and not is_idempotent_method and not request.has_key:
            self._slot = RequestSlot(self._step, request.method, request.url)
        # The key of a `once` step is sent, but allows no repeat: such a step does not claim that the server
        # deduplicates by it.
        step_allows_repeat = self._step is None or self._step.head.record.effect != "once"
        self._has_key = request.has_key or (self._slot is not None and step_allows_repeat)
        self._is_repeatable = (
            is_idempotent_method or self._has_key or options.is_idempotent(request.method, request.request)
        )

    def run_attempts(self, send: Callable[[], Any], discard: Callable[[Any], object]) -> Any:
        """Send the request until it succeeds or may not be repeated; return its response, or raise.

        send     sends one attempt and returns its response
        discard  closes a failed response before the next attempt
        """
        hook = self._options.on_retry

        def on_retry(report: RetryReport) -> None:
            if type(report.error) is FailedResponse:
                discard(report.error.response)
            if hook is not None:
                hook(report)

        plan = self._build_plan(on_retry)
        try:
            response = run_blocking(plan, make_script(plan), lambda: self._check_response(send()), (), {})
            return _attach_info(response, RetryInfo(self.attempts_sent))
        except Exception as error:  # noqa: BLE001 - raised again, unless it carries a response
            return self._response_or_raise(error)
        finally:
            self._release_slot()

    async def run_attempts_async(
        self, send: Callable[[], Awaitable[Any]], discard: Callable[[Any], Awaitable[None]]
    ) -> Any:
        """Send the request as `run_attempts` does, awaiting `send` and `discard`."""
        hook = self._options.on_retry

        async def send_checked() -> Any:
            return self._check_response(await send())

        async def on_retry(report: RetryReport) -> None:
            if type(report.error) is FailedResponse:
                await discard(report.error.response)
            # The hook may be a plain function or an async one.
            result: Any = None if hook is None else hook(report)
            if hasattr(type(result), "__await__"):
                await result

        plan = self._build_plan(on_retry)
        try:
            response = await run_async(plan, make_script(plan), send_checked, (), {})
            return _attach_info(response, RetryInfo(self.attempts_sent))
        except Exception as error:  # noqa: BLE001 - raised again, unless it carries a response
            return self._response_or_raise(error)
        finally:
            self._release_slot()

    def _build_plan(self, on_retry: Callable[[RetryReport], object]) -> RetryPlan:
        """Return the retry plan of this request; `on_retry` must close the failed response."""
        options, host = self._options, self._request.host
        # Inside a step the step itself retries; with retries at both levels the numbers multiply.
        may_retry = self._step is None or options.retries_in_step == "retry"
        breaker = options.breakers.for_host(host)
        return options.plan.copy_with(
            name=f"{self._request.method} {host}",
            policy=options.plan.policy if may_retry else options.single_attempt_policy,
            covers=self._may_repeat,
            classify=self._classify_error,
            breaker=None if breaker is None else HostBreaker(breaker, self),
            budget=options.budgets.for_host(host),
            deadline=CONTEXT.get().deadline or None,
            cuts=False,
            heard=True,
            on_retry=on_retry,
        )

    def start_attempt(self) -> dict[str, str]:
        """Count an attempt; return the header fields to add to the caller's."""
        self.attempts_sent += 1
        earlier = 0 if self._step is None else self._step.number - 1
        fields = {ATTEMPT_HEADER: str(self.attempts_sent + earlier)}
        if self._slot is not None:
            fields[KEY_HEADER] = format_key(self._slot.key, self._options.key_style)
        return fields

    def _check_response(self, response: Any) -> Any:
        """Return a response, or raise `FailedResponse` for a failure that may pass."""
        status, fields = response.status_code, response.headers
        failure = classify_status(status, fields, 0.0)
        if failure is not None and (failure.may_pass or self._is_key_in_progress(status)):
            raise FailedResponse(response, status, fields)
        return response

    def _is_key_in_progress(self, status: int) -> bool:
        """Return whether 409 means that the server is still processing the first request with this key."""
        return status == 409 and self._has_key

    def _classify_error(self, error: BaseException, now: float) -> Failure:
        if type(error) is not FailedResponse:
            return classify(error, now)
        failure = classify_failed_status(error.status, error.fields, now)
        return failure._replace(kind="transient") if self._is_key_in_progress(error.status) else failure

    def _may_repeat(self, error: Exception, failure: Failure) -> bool:
        """Return whether a failed request may be sent again; remember the reason if not."""
        if not self._options.plan.covers(error, failure):
            return False
        if not self._request.is_body_repeatable:
            self._no_repeat_reason = "its body is a stream and cannot be sent twice; pass bytes, or a file"
        elif not self._is_repeatable and failure.sent != "no":
            self._no_repeat_reason = (
                f"{self._request.method} is not idempotent and the server may have received it; declare it "
                "with idempotent=, or send an Idempotency-Key"
            )
        return not self._no_repeat_reason

    @property
    def is_repeat_unsafe(self) -> bool:
        """Whether a failure that may pass was not retried only because a repeat is not safe."""
        return self._no_repeat_reason != ""

    def _release_slot(self) -> None:
        if self._slot is not None:
            self._slot.release_slot()

    def _response_or_raise(self, error: Exception) -> Any:
        """Return the response of a `FailedResponse`, or raise the error; attach the `RetryInfo`."""
        decision = get_decision(error)
        reason = self._no_repeat_reason or ("" if decision is None else decision.reason)
        info = RetryInfo(self.attempts_sent, reason, decision)
        if self._no_repeat_reason and self.attempts_sent:
            self._warn_not_repeated(error)
        if type(error) is FailedResponse:
            return _attach_info(error.response, info)
        error.__dict__[_INFO_KEY] = info
        raise error

    def _warn_not_repeated(self, error: Exception) -> None:
        text = (
            f"oncemore: {self._request.method} {self._request.host} is not sent again: "
            f"{self._no_repeat_reason}."
        )
        error.add_note(text)
        # Not imported here: only programs that use logging pay for it.
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.getLogger("oncemore.http").warning("%s", text)


def _attach_info(response: Any, info: RetryInfo) -> Any:
    extensions = getattr(response, "extensions", None)
    if isinstance(extensions, dict):
        extensions[_INFO_KEY] = info
    else:
        response.__dict__[_INFO_KEY] = info
    return response


def is_short_response(fields: Any) -> bool:
    """Return whether the Content-Length of a response is at most `SHORT_BYTES`."""
    length = fields.get("Content-Length") or ""
    # The server chose the text: check it before `int()` gets it.
    return length.isascii() and length.isdigit() and len(length) < 9 and int(length) <= SHORT_BYTES
