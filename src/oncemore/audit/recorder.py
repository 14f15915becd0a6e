"""Turns what a call goes through into events, and gets them to where they are kept.

    engine ──failed, ended──► Recorder ──events──► Outlet ──► sink (any callable that takes an event)

A `Recorder` is the witness of the calls of one operation. An `Outlet` stands before one sink, so that
keeping records never breaks the work they are about: a sink that raises is tried again under a small
bounded policy of our own (`audit-sink`), and when it stays down the work goes on, while the loss is
told in the log, with the event itself in it. Until the sink has worked again it gets one try per
event, so that a dead sink does not slow everything down.
"""

from __future__ import annotations

import logging
import re
from contextvars import ContextVar
from typing import TYPE_CHECKING

from oncemore._redact import clean, masked, message_of, name_of
from oncemore._values import Value
from oncemore.audit.events import (
    Event,
    RetryAttempt,
    RetryExhausted,
    RetryRefused,
    RetrySucceeded,
    rfc3339,
)
from oncemore.errors import AttemptTimeout, CircuitOpen, UsageError
from oncemore.policy.backoff import Schedule
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy, policy_name
from oncemore.retries.driver import wrap
from oncemore.retries.loop import Plan

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oncemore.policy.decide import Decision
    from oncemore.retries.loop import Report

    Sink = Callable[[Event], object]

#: Three tries, at most 30 ms of waiting: events are told inline, and the work must not wait for them.
SINK_POLICY = Policy("audit-sink", max_attempts=3, schedule=Schedule("exponential", 0.01, cap=0.02))
SINK_CATEGORY = "RETRY_AUDIT_SINK"
LONGEST_NAME = 200

logger = logging.getLogger("oncemore.audit")


class Ids(Value):
    """Whose operation it is, and what it belongs to; each as its caller named it."""

    tenant_id: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None

    def cleaned(self) -> Ids:
        """Return the same ids, fit to be written; a tenant is a name, and compared as one."""
        tenant, *others = (None if one is None else clean(str(one), LONGEST_NAME) for one in self)
        return Ids(None if tenant is None else normalize_name(tenant), *others)


class Recorder:
    """The witness of an operation: writes down what happens to it.

    Takes the events' category and operation, the ids they share, whom to tell, and the name of the policy.
    """

    __slots__ = ("_category", "_ids", "_operation", "_tell", "policy")

    def __init__(
        self,
        tell: Sink,
        category: str,
        operation: str,
        ids: Ids = Ids(),  # noqa: B008
        policy: str | None = None,
    ) -> None:
        self._tell = tell
        self._category = clean(category, LONGEST_NAME)
        self._operation = masked(operation, LONGEST_NAME)
        self._ids = ids.cleaned()
        self.policy = policy

    def failed(self, report: Report) -> None:
        """Write down a failed attempt, or the end that it was."""
        self._tell(self._of(report))

    def ended(self, number: int, now: float, error: BaseException | None) -> None:
        """Write down that the work came good, or that something from outside ended it."""
        if error is None:
            self.tell(RetrySucceeded, now, number)
        else:
            until = error.until if isinstance(error, CircuitOpen) else None
            self.refused(number, now, _from_outside(error), error, until)

    def refused(
        self,
        number: int,
        now: float,
        reason: str,
        error: BaseException | None,
        not_before: float | None = None,
    ) -> None:
        """Write down an end without success before the attempts were used up."""
        then = None if not_before is None else rfc3339(not_before)
        self.tell(RetryRefused, now, number, reason, then, _type_of(error), message_of(error))

    def tell(self, kind: Callable[..., Event], now: float, *own: object) -> None:
        """Make an event of this operation with the fields of its own, and tell it."""
        self._tell(self._made(kind, now, *own))

    def _made(self, kind: Callable[..., Event], now: float, *own: object) -> Event:
        return kind(self._category, self._operation, *own, *self._ids, rfc3339(now), policy=self.policy)

    def _of(self, report: Report) -> Event:
        decision, now = report.decision, report.decision.situation.now
        kind, text = _type_of(report.error), message_of(report.error)
        if _never_began(decision):
            return self._made(RetryRefused, now, 0, "deadline_passed", None, kind, text)
        if decision.action == "retry":
            numbers = (report.number, report.attempts, decision.delay_s)
            return self._made(RetryAttempt, now, *numbers, kind, text)
        if decision.reason == "max_attempts_exceeded":
            return self._made(RetryExhausted, now, report.number, kind, text)
        then = None if decision.not_before is None else rfc3339(decision.not_before)
        reason: str = "cancelled" if decision.situation.failure.code == "CANCELLED" else decision.reason
        reason = decision.situation.held_for if reason == "held" else reason
        return self._made(RetryRefused, now, report.number, reason, then, kind, text)


def _never_began(decision: Decision) -> bool:
    """Whether the call's time was up before its first attempt."""
    at = decision.situation
    return at.deadline is not None and at.started is not None and at.deadline <= at.started


def _type_of(error: BaseException | None) -> str:
    """Return the class of an error as events name it: a limit of ours is a TimeoutError to the world."""
    if error is None:
        return "UntilNotMet"  # nothing was raised: the value was not the one waited for
    return "TimeoutError" if isinstance(error, AttemptTimeout) else name_of(error)


def _from_outside(error: BaseException) -> str:
    if isinstance(error, CircuitOpen):
        return "circuit_open"
    if isinstance(error, Exception):
        return "hook_failed"
    if isinstance(error, GeneratorExit):
        return "abandoned"
    return "interrupted" if isinstance(error, (KeyboardInterrupt, SystemExit)) else "cancelled"


#: The outlets that are delivering in this context: what a sink does itself is not told to it again.
_delivering: ContextVar[tuple[Outlet, ...]] = ContextVar("oncemore.delivering", default=())


class Outlet:
    """Gets events to one sink; never raises for it, and never loses one in silence.

    `lost` counts the events that the sink did not take.
    """

    __slots__ = ("_careful", "_down", "_name", "_once", "lost")

    def __init__(self, sink: Sink) -> None:
        if not callable(sink):
            raise UsageError(f"{sink!r} is no sink; it takes a function of one event")
        self._name = clean(getattr(sink, "__qualname__", None) or type(sink).__qualname__, LONGEST_NAME)
        self._careful, self._once = (
            wrap(_plan(self._name, policy), _checked(sink), "plain")
            for policy in (SINK_POLICY, SINK_POLICY.but(max_attempts=1))
        )
        self._down = False
        self.lost = 0

    def __call__(self, event: Event) -> None:
        """Give the sink an event; when it does not take it, say so in the log."""
        around = _delivering.get()
        if self in around:
            logger.warning("from inside the sink %s, and not told to it: %s", self._name, event.json())
            return
        token = _delivering.set((*around, self))
        try:
            (self._once if self._down else self._careful)(event)
            self._down = False
        except Exception:  # noqa: BLE001 - whatever a sink raises stays here
            self._down = True
            self.lost += 1
            logger.error("not taken by the sink %s, and only kept here: %s", self._name, event.json())
        finally:
            _delivering.reset(token)


def _checked(sink: Sink) -> Sink:
    def give(event: Event) -> None:
        answer: Any = sink(event)
        if hasattr(type(answer), "__await__"):
            if hasattr(answer, "close"):
                answer.close()
            raise UsageError("the sink is async, and nothing here can await it; give a plain function")

    return give


def _plan(name: str, policy: Policy) -> Plan:
    def failure(error: BaseException, now: float) -> Failure:
        return Failure("transient", "maybe", None, f"EXC_{name_of(error)}", "audit:sink")

    def report(what: Report) -> None:
        category, operation = SINK_CATEGORY, f"write to {name}"
        recorder = Recorder(
            lambda event: logger.error("%s", event.json()), category, operation, policy=policy_name(policy)
        )
        recorder.failed(what)

    return Plan(f"audit sink {name}", policy, lambda error, failure: True, failure, on_give_up=report)


def category_of(name: str) -> str:
    """Return the category of a function that was given none: RETRY_ and its name in capitals."""
    own = name.rpartition("<locals>.")[2]
    word = re.sub(r"[^A-Z0-9]+", "_", own.upper()).strip("_")
    return f"RETRY_{word[:LONGEST_NAME] or 'CALL'}"


def check_category(category: object) -> str:
    """Return a category that can stand in an event, or say what is allowed."""
    if not isinstance(category, str) or not re.fullmatch(r"[A-Za-z0-9_.:-]{1,100}", category):
        raise UsageError(f"category is {category!r}; it takes 1 to 100 letters, digits and _ . : -")
    return str.__str__(category)
