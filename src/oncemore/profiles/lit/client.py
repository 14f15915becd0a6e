"""`CoreClient`: requests to Core, each tried again as the profile says, and never blindly.

What may be sent again is said before it is sent. A method that is idempotent by nature may, a request that
its caller declares idempotent may, one with an idempotency key may. Any other is sent once: it is begun anew
only where no connection came about, so that nothing was sent.

The loop is the one of `oncemore.retry` (`retries.loop`); a request with a key goes through a durable step
around it, so that the first good answer of a key is the answer of that key from then on (HTTP-14).
"""

from __future__ import annotations

from http.client import HTTPException
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oncemore._redact import masked
from oncemore.classifiers.classify import classify
from oncemore.errors import AttemptTimeout, Failed, KeyConflict, UsageError
from oncemore.policy.files import loader
from oncemore.profiles.lit import alert, http
from oncemore.profiles.lit import policy as lit_policy
from oncemore.profiles.lit.errors import BadAnswer, CoreAnswer, CoreClientError, CoreClientHTTPError
from oncemore.profiles.lit.request_context import checked, ids
from oncemore.retries.driver import blocking
from oncemore.retries.loop import Plan, again, decision
from oncemore.steps.attempt import current
from oncemore.steps.decorator import Step, told_of
from oncemore.steps.options import Recipe

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from urllib.request import OpenerDirector

    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy
    from oncemore.profiles.lit.alert import Exhaustion
    from oncemore.profiles.lit.request_context import Ids
    from oncemore.profiles.lit.session import Lost, Session
    from oncemore.steps.engine import Engine

#: Idempotent by nature (RFC 9110), so that sending one again does no harm.
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
METHODS: Final = (*sorted(IDEMPOTENT - {"HEAD", "OPTIONS"}), "PATCH", "POST")
#: How often an operation with a key is begun anew after its process died, before a new call has to ask.
MOST_OPERATIONS: Final = 3
#: The name of the step that keeps answers by key.
ANSWERS: Final = "oncemore.profiles.lit.answer"


class Ask(NamedTuple):
    """A request that is to be made; `repeats` says whether it may be sent again."""

    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]
    ids: Ids
    policy: Policy
    repeats: bool

    @property
    def name(self) -> str:
        """What logs and errors call it; a query may hold a secret and is left out."""
        return f"{self.method} {self.path.partition('?')[0]}"

    def again(self, error: Exception, failure: Failure) -> bool:
        """Whether it may be sent again after this: declared so, or nothing was sent."""
        unsent = failure.sent == "no" and not isinstance(error, CoreAnswer)
        return (self.repeats or unsent) and lit_policy.repeatable(error, failure, self.policy)


class CoreClient:
    """A client of Core, as the LIT reliability policy has it.

    base_url               where Core is: http:// or https://, a host, perhaps a path
    retry_attempts         requests in all, not repeats (the profile's 2; at least 1)
    retry_backoff_seconds  the wait after attempt n is n times this (the profile's 0.25; at least 0)
    timeout_s              the limit of one request, from looking the name up to the last byte (30)
    retry_after_cap_s      how long a wait Core may ask for; beyond it the error is raised at once (30)
    headers                sent with every request; never logged
    tls                    an `ssl.SSLContext` instead of the usual one
    counter                counts exhausted operations; that of the process unless given
    engine                 where answers by key are kept; else as steps find it

    Delivery is at least once: a request that may be repeated can reach Core twice. Each carries its number
    in the header `Oncemore-Attempt`; above 1 Core may have worked on it before.
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
        counter: Exhaustion | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.base_url = http.base_of(base_url)
        self.policy = lit_policy.transport(
            retry_attempts, retry_backoff_seconds, timeout_s, retry_after_cap_s
        )
        self.headers = MappingProxyType({name: checked(name, text) for name, text in (headers or {}).items()})
        self.counter = alert.exhaustion if counter is None else counter
        self.unsettled: dict[tuple[str, str, str], Lost] = {}
        self._opener: OpenerDirector = http.opener_of(tls)
        self._engine = engine
        self._answers: Step[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"<CoreClient {self.base_url}>"

    def get(self, path: str, *, request_id: str | None = None, session_id: str | None = None) -> Any:
        """Read something; delivered at least once: reading may be repeated."""
        return self.request("GET", path, request_id=request_id, session_id=session_id)

    def call(
        self,
        path: str,
        payload: Any,
        *,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
    ) -> Any:
        """Call an operation of Core's contract; delivered at least once.

        Core keeps no state at its boundary, so contract calls are declared idempotent: one that failed before
        its success was seen is sent again, and Core may compute it twice. The answers of a language model
        may differ from call to call; with an `idempotency_key` the first good one is kept and returned.
        """
        return self.request(
            "POST", path, payload, idempotent=True, idempotency_key=idempotency_key,
            request_id=request_id, session_id=session_id,
        )  # fmt: skip

    def post(
        self,
        path: str,
        payload: Any = None,
        *,
        idempotent: bool = False,
        idempotency_key: str | None = None,
        request_id: str | None = None,
        session_id: str | None = None,
    ) -> Any:
        """Post something; sent once, unless it is declared idempotent: then delivered at least once."""
        return self.request(
            "POST", path, payload, idempotent=idempotent, idempotency_key=idempotency_key,
            request_id=request_id, session_id=session_id,
        )  # fmt: skip

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
        """Make any request and return the value of its answer; None for one without content.

        idempotent       whether it may be sent again; unless given, what its method says
        idempotency_key  sent as `Idempotency-Key`; the request may then be sent again, and the first good
                         answer of the key is kept in the log and returned from then on, to whoever asks

        Delivered at least once where it may be sent again, else sent once. Raises `CoreClientHTTPError` for
        an answer that is no success, `CoreClientError` for none and for one that cannot be read.
        """
        ask = self.ask(method, path, payload, ids(request_id, session_id))
        natural = method in IDEMPOTENT if idempotent is None else idempotent
        if idempotency_key is None:
            return self.send(ask._replace(repeats=natural))
        key = checked("idempotency_key", idempotency_key)
        if '"' in key or "\\" in key:
            raise UsageError("idempotency_key holds a quote or a backslash; leave them out")
        return self._kept(ask._replace(repeats=True), key, payload)

    def session(self, session_id: str) -> Session:
        """Return a session of Core's, whose actions are sent once and settled by looking."""
        from oncemore.profiles.lit.session import Session

        return Session(self, session_id)

    # One operation ----------------------------------------------------------------------------------

    def ask(self, method: str, path: str, payload: Any, whose: Ids) -> Ask:
        """Return a request that is checked and ready to be sent."""
        if method not in METHODS:
            raise UsageError(f"method is {method!r}; it takes {', '.join(METHODS)}")
        body = http.body_of(payload)
        return Ask(method, http.path_of(path), body, {}, whose, self.policy, repeats=False)

    def send(self, ask: Ask, *, first: int = 1, counted: bool = True) -> Any:
        """Make the attempts of one operation; `first` is the number of its first request."""
        numbers, limit_s = count(first), ask.policy.timeout_s
        url = self.base_url + ask.path

        def attempt() -> Any:
            headers = {**self.headers, **ask.headers, **_marks(ask.ids, next(numbers))}
            request = http.request_of(ask.method, url, ask.body, headers)
            return http.exchange(self._opener, request, limit_s)

        plan = Plan(ask.name, ask.policy, ask.again, classify, cuts=True)
        try:
            value = blocking(plan, again(plan), attempt, (), {})
        except (CoreAnswer, BadAnswer, AttemptTimeout, OSError, HTTPException) as error:
            made = _translated(ask, error)
            self._over(ask, error, made, counted=counted)
            raise made from error
        if counted:
            self.counter.count(exhausted=False)
        return value

    def _over(self, ask: Ask, error: Exception, made: CoreClientError, *, counted: bool) -> None:
        """Count and log an operation that failed, though it could have come good later.

        Exhausted is one whose attempts are used up; one that may be sent once has had none to use, and one
        that Core puts off beyond the cap has some left: it is deferred.
        """
        last = decision(error)
        assert last is not None  # it came through the script, which leaves it there
        fact = last.situation.failure
        may_repeat, deferred = ask.again(error, fact), last.action == "defer"
        exhausted = may_repeat and last.reason == "max_attempts_exceeded"
        if counted:
            self.counter.count(exhausted=exhausted, deferred=deferred)
        if may_repeat or lit_policy.repeatable(error, fact, ask.policy):
            fields = {
                "oncemore_method": ask.method,
                "oncemore_path": ask.path.partition("?")[0],
                "oncemore_error_class": fact.code,
                "oncemore_reason": last.reason,
            }
            how = "failed, and is not sent again,"
            if deferred:
                how = f"deferred: Core asks for {fact.retry_after:g} s without requests,"
            elif exhausted:
                how = "exhausted"
            alert.given_up(f"{ask.name}: {how}", last.situation.attempt, ask.ids, _short(made), fields)

    # Answers by key ---------------------------------------------------------------------------------

    def _kept(self, ask: Ask, key: str, payload: Any) -> Any:
        """Return the answer that a key has; the first good one is written down."""
        if self._answers is None:
            self._answers = self._answering()
        made = self._answers if self._engine is None else self._answers.on(self._engine)
        try:
            return made(self.base_url, key, ask.method, ask.path, payload, ask)
        except KeyConflict as error:
            conflict = KeyConflict(
                f"{ask.name}: the idempotency_key {key!r} belongs to another request (another method, path "
                "or payload); give this request an idempotency_key of its own"
            )
            conflict.run = error.run
            raise conflict from error
        except Failed as error:
            # The operation's own error is what its caller gets, as without a key.
            if isinstance(error.__cause__, CoreClientError):
                raise error.__cause__ from error.__cause__.__cause__
            raise CoreClientError(f"{ask.name}: {error}") from error

    def _answering(self) -> Step[Any, Any]:
        """Return the step of this client's answers.

        Its attempts are whole operations, which bound themselves and whose errors are final; so it makes a
        second one only for what a dead process left behind.
        """

        def answer(core: str, key: str, method: str, path: str, payload: Any, ask: Ask) -> Any:
            number = 1 + (current().number - 1) * self.policy.max_attempts
            return self.send(ask._replace(headers={http.KEY: f'"{key}"'}), first=number)

        told = told_of(
            effect="idempotent", name=ANSWERS, key=("core", "key"), ignore=("ask",),
            policy=self.policy.but(timeout_s=None, classes=None, max_attempts=MOST_OPERATIONS),
        )  # fmt: skip
        recipe = Recipe(answer, told)
        recipe.after_failure = loader.step_settings(lit_policy.PROFILE).after_failure
        return Step(recipe)


def _marks(whose: Ids, number: int) -> dict[str, str]:
    session = {http.SESSION_ID: whose.session_id} if whose.session_id else {}
    return {http.ATTEMPT: str(number), http.REQUEST_ID: whose.request_id, **session}


def _translated(ask: Ask, error: Exception) -> CoreClientError:
    """Return what the caller gets for the failure of the last attempt."""
    if isinstance(error, CoreAnswer):
        return CoreClientHTTPError(error.status, error.detail, error.retry_after)
    if isinstance(error, BadAnswer):
        return CoreClientError(f"{ask.name}: {error}")
    last = decision(error)
    tries = 1 if last is None else last.situation.attempt
    told = masked(str(error)) or "no reason given"
    return CoreClientError(
        f"{ask.name}: no answer in {tries} request{'' if tries == 1 else 's'}; the last ended with "
        f"{type(error).__name__}: {told}"
    )


def _short(error: CoreClientError) -> str:
    """Return an error as a log line tells it."""
    return repr(error) if isinstance(error, CoreClientHTTPError) else f"{type(error).__name__}: {error}"
