"""What may be sent again, with which fields, and what is told of it: the same for every client.

A request goes the way of `retry` (`retries.loop`): this module only says what an answer means there, and
which repeats are allowed. An answer that is a failure travels as an `Unwelcome` error, so that the script
classifies it and waits as long as it asks; in the end the caller gets the answer itself, as without us.

A request is sent again if its failure may pass (`classifiers.classify`), its body can be had a second time,
and

    its method is idempotent by nature      GET, HEAD, OPTIONS, TRACE, PUT, DELETE
    or the caller has declared it           repeats=
    or it carries an idempotency key        the caller's own, or that of the step around it
    or nothing has reached the server       no connection, or it said that it refused (429)

The key of a step that is declared `once` is sent, but allows nothing: that the other side looks at it is just
what such a step does not claim.
"""

from __future__ import annotations

import sys

from oncemore._values import Record, Value
from oncemore.classifiers.classify import classify
from oncemore.classifiers.http_status import classify_status, failed_status
from oncemore.errors import UsageError
from oncemore.http.key_scope import FIELD, STYLES, Place, around, written
from oncemore.limits.breaker import Gate, Passage
from oncemore.limits.budget import Budget
from oncemore.retries.loop import decision as decision_of
from oncemore.retries.options import as_seconds, plan_of
from oncemore.steps.context import CONTEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike
    from typing import Any, Final, Literal, TypedDict

    from oncemore.audit.events import Event
    from oncemore.http.key_scope import Style
    from oncemore.limits.breaker import Script
    from oncemore.policy.backoff import Jitter, Schedule
    from oncemore.policy.decide import Decision
    from oncemore.policy.model import Action, Failure, Verdict
    from oncemore.policy.policy import Policy
    from oncemore.retries.loop import Plan, Report
    from oncemore.retries.options import Seconds

    class Sending(TypedDict, total=False):
        """The keyword arguments of `Transport`, `AsyncTransport` and `Adapter`."""

        attempts: int | None
        within: Seconds | None
        wait: Schedule | Seconds | Sequence[Seconds] | None
        jitter: Jitter | str | None
        policy: Policy | str | PathLike[str] | None
        seed: str | int | None
        budget: Budget | Callable[[str], Budget] | None
        breaker: Gate | Callable[[str], Gate] | None
        repeats: Sequence[str] | Callable[[Any], bool]
        in_step: Literal["once", "retry"]
        timeout: Seconds
        key_style: Style
        on_retry: Callable[[Report], object] | None
        on_give_up: Callable[[Report], object] | None
        on_event: Callable[[Event], object] | None
        category: str | None


#: RFC 9110 §9.2.2.
IDEMPOTENT: Final = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"))
ATTEMPT: Final = "Oncemore-Attempt"
#: Of a request that has no time limit of its own (HTTP-7).
TIMEOUT_S: Final = 30.0
#: How many hosts are known with a budget of their own; the one that was asked first goes first.
MOST_HOSTS: Final = 1000
#: An answer that is thrown away is read if it is no longer, so that its connection can be used again.
SMALL: Final = 16_384

_OF_RETRY = ("attempts", "within", "wait", "jitter", "policy", "seed", "on_event", "category")
_HOOKS = ("on_retry", "on_give_up")
_OWN = ("budget", "breaker", "repeats", "in_step", "timeout", "key_style")


class Told(Value):
    """What became of a request besides its answer.

    attempts  how often it was sent
    why       in a sentence: why it was not sent again; empty where nothing failed
    decision  the last decision about it, with its proof; None where nothing failed
    """

    attempts: int
    why: str = ""
    decision: Decision | None = None

    @property
    def not_before(self) -> float | None:
        """When the server wants us back, in POSIX seconds, where it said so and it was too late to wait."""
        return None if self.decision is None else self.decision.not_before


def told(answer: Any) -> Told | None:
    """Return what became of a request, from its answer or its error; None if it did not go this way."""
    found = (getattr(answer, "extensions", None) or {}).get(_TOLD) or getattr(answer, "__dict__", {}).get(
        _TOLD
    )
    return found if isinstance(found, Told) else None


_TOLD: Final = "oncemore"


class Unwelcome(Exception):
    """An answer that is a failure, on its way to be classified."""

    def __init__(self, answer: Any, status: int, fields: object) -> None:
        super().__init__(f"HTTP {status}")
        self.answer, self.status, self.fields = answer, status, fields


class Asked(Value):
    """A request, as far as it matters here.

    host    with the port, where it is not the usual one
    keyed   whether the caller has given it an idempotency key
    again   whether its body can be had a second time
    """

    request: Any
    method: str
    host: str
    url: str
    keyed: bool
    again: bool


class Rules(Record):
    """What a client was told, checked and made ready; the same for all its requests."""

    __slots__ = (
        "breakers",
        "budgets",
        "in_step",
        "key_style",
        "on_give_up",
        "on_retry",
        "once",
        "plan",
        "repeats",
        "timeout",
    )
    breakers: Hosts
    budgets: Hosts
    in_step: str
    key_style: str
    on_give_up: Callable[[Report], object] | None
    on_retry: Callable[[Report], object] | None
    once: Policy
    plan: Plan
    repeats: Callable[[str, Any], bool]
    timeout: float

    def __init__(self, where: str, options: Sending, colour: str) -> None:
        for option in options:
            if option not in (*_OF_RETRY, *_HOOKS, *_OWN):
                taken = ", ".join((*_OF_RETRY, *_HOOKS, *_OWN))
                raise UsageError(f"{where}() has no {option}=; it takes {taken}")
        given: dict[str, Any] = {**options}
        named: Any = {name: value for name, value in given.items() if name not in _OWN}
        named["on"] = "transient"
        plan = plan_of(named, where, colour)
        timeout = as_seconds("timeout", options.get("timeout", TIMEOUT_S))
        if not 0 < timeout <= 86_400:
            raise UsageError(f"timeout is {timeout!r}; it takes more than 0 and up to 86400 seconds")
        self.fill(
            Hosts("breaker", options.get("breaker"), Gate),
            Hosts("budget", options.get("budget"), Budget),
            _choice("in_step", options.get("in_step", "once"), ("once", "retry")),
            _choice("key_style", options.get("key_style", "quoted"), STYLES),
            plan.on_give_up,
            plan.on_retry,
            plan.policy.but(max_attempts=1),
            plan,
            _declared(options.get("repeats", ())),
            timeout,
        )


class Hosts:
    """One budget or breaker for all hosts, or one for each, made when the host is first asked."""

    def __init__(self, option: str, given: Any, kind: type) -> None:
        if given is not None and not isinstance(given, kind) and not callable(given):
            name = option.capitalize()
            raise UsageError(
                f"{option} is {given!r}; it takes a {name}, or a function that makes one for a host"
            )
        self._option, self._given, self._kind = option, given, kind
        self._known: dict[str, Any] = {}

    def of(self, host: str) -> Any:
        """Return the one of a host, or None."""
        if self._given is None or isinstance(self._given, self._kind):
            return self._given
        found = self._known.get(host)
        if found is None:
            made = self._given(host)
            if not isinstance(made, self._kind):
                raise UsageError(
                    f"{self._option} gave {made!r} for a host; it has to make a {self._kind.__name__}"
                )
            if len(self._known) >= MOST_HOSTS:
                self._known.pop(next(iter(self._known)), None)
            found = self._known.setdefault(host, made)
        return found


def _choice(option: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise UsageError(f"{option} is {value!r}; the choices are {', '.join(choices)}")
    return str(value)


def _declared(repeats: Any) -> Callable[[str, Any], bool]:
    """Return the question whether the caller has declared a request idempotent."""
    if callable(repeats):
        return lambda method, request: bool(repeats(request))
    if isinstance(repeats, str) or not all(isinstance(method, str) for method in repeats):
        raise UsageError(f"repeats is {repeats!r}; it takes methods, ('POST',), or a function of a request")
    methods = frozenset(method.upper() for method in repeats)
    return lambda method, request: method in methods


class Exchange:
    """One request on its way: how often it was sent, under which key, whether it may be sent again.

    sent  how often it was sent
    """

    def __init__(self, rules: Rules, asked: Asked) -> None:
        self._rules, self._asked = rules, asked
        self._step = around()
        self.sent = 0
        self._place: Place | None = None
        self._why = ""
        natural = asked.method in IDEMPOTENT
        if self._step is not None and not natural and not asked.keyed:
            self._place = Place(self._step, asked.method, asked.url)
        by_step = self._step is None or self._step.seen.run.effect != "once"
        keyed = asked.keyed or (self._place is not None and by_step)
        self._keyed = keyed
        self._may = natural or keyed or rules.repeats(asked.method, asked.request)

    def plan(self, let_go: Callable[[Report], object], give_up: Callable[[Report], object] | None) -> Plan:
        """Return the plan of this request; `let_go` closes what is not needed any more."""
        rules = self._rules
        alone = self._step is None or rules.in_step == "retry"
        gate = rules.breakers.of(self._asked.host)
        return rules.plan.replaced(
            name=f"{self._asked.method} {self._asked.host}",
            policy=rules.plan.policy if alone else rules.once,
            covers=self._covers,
            classify=self._classify,
            breaker=None if gate is None else Entrance(gate, self),
            budget=rules.budgets.of(self._asked.host),
            deadline=CONTEXT.get().deadline or None,
            cuts=False,
            heard=True,
            on_retry=let_go,
            on_give_up=give_up,
        )

    def fields(self) -> dict[str, str]:
        """Count an attempt, and return the fields that it carries besides the caller's own."""
        self.sent += 1
        before = 0 if self._step is None else self._step.number - 1
        fields = {ATTEMPT: str(self.sent + before)}
        if self._place is not None:
            fields[FIELD] = written(self._place.key, self._rules.key_style)
        return fields

    def judged(self, answer: Any, status: int, fields: object) -> Any:
        """Return an answer, or raise it where it is a failure that may pass."""
        failure = classify_status(status, fields, 0.0)
        if failure is not None and (failure.passing or self._waits_for_the_first(status)):
            raise Unwelcome(answer, status, fields)
        return answer

    def _waits_for_the_first(self, status: int) -> bool:
        """Whether 409 means that the first request with our key is still being worked on."""
        return status == 409 and self._keyed

    def _classify(self, error: BaseException, now: float) -> Failure:
        if type(error) is not Unwelcome:
            return classify(error, now)
        failure = failed_status(error.status, error.fields, now)
        return failure._replace(kind="transient") if self._waits_for_the_first(error.status) else failure

    def _covers(self, error: Exception, failure: Failure) -> bool:
        """Whether a failed request may be sent again; where not, remember why."""
        if not self._rules.plan.covers(error, failure):
            return False
        if not self._asked.again:
            self._why = "its body is a stream, which cannot be had a second time; give bytes, or a file"
        elif not self._may and failure.sent != "no":
            self._why = (
                f"{self._asked.method} is not idempotent and it may have arrived; declare it with repeats=, "
                "or send an Idempotency-Key"
            )
        return not self._why

    @property
    def refused(self) -> bool:
        """Whether a failure that may pass is not followed by a repeat, only because that is not safe."""
        return self._why != ""

    def over(self) -> None:
        """Say that the request is no longer under way."""
        if self._place is not None:
            self._place.over()

    def answered(self, answer: Any) -> Any:
        """Return an answer with what became of its request."""
        return _noted(answer, Told(self.sent))

    def failed(self, error: Exception) -> Any:
        """Return the answer that an error stands for; raise any other error, with what became of it."""
        made = decision_of(error)
        said = Told(self.sent, self._why or ("" if made is None else made.reason), made)
        if self._why and self.sent:
            self._say(error)
        if type(error) is Unwelcome:
            return _noted(error.answer, said)
        error.__dict__[_TOLD] = said
        raise error

    def _say(self, error: Exception) -> None:
        text = f"oncemore: {self._asked.method} {self._asked.host} is not sent again: {self._why}."
        error.add_note(text)
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.getLogger("oncemore.http").warning("%s", text)


class Entrance(Gate):
    """A host's breaker, as one request passes it."""

    __slots__ = ("_exchange",)

    def __init__(self, gate: Gate, exchange: Exchange) -> None:
        super().__init__(gate.name, gate.rules, gate.book)
        self._exchange = exchange

    def passage(self, limit_s: float | None = None) -> Passage:
        """Return the way of the request."""
        return Way(self, limit_s, self._exchange)


class Way(Passage):
    """Counts a failure against its host also where no repeat follows, if that is our choice alone."""

    __slots__ = ("_exchange",)

    def __init__(self, gate: Gate, limit_s: float | None, exchange: Exchange) -> None:
        super().__init__(gate, limit_s)
        self._exchange = exchange

    def failed(self, failure: Failure, verdict: Verdict, action: Action) -> Script[float | None]:
        """Tell that an attempt failed: a POST that is not sent again may have had an effect, or not."""
        return super().failed(failure, "UNKNOWN" if self._exchange.refused else verdict, action)


def _noted(answer: Any, said: Told) -> Any:
    extensions = getattr(answer, "extensions", None)
    if isinstance(extensions, dict):
        extensions[_TOLD] = said
    else:
        answer.__dict__[_TOLD] = said
    return answer


def small(fields: Any) -> bool:
    """Whether an answer says of itself that it is short."""
    length = fields.get("Content-Length") or ""
    return length.isascii() and length.isdigit() and len(length) < 9 and int(length) <= SMALL
