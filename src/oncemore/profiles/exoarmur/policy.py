"""Categories and policies of the exoarmur document, on the one mechanism.

A `RetryPolicy` has the document's fields and defaults, checked when it is made; `core()` gives the
policy that decides and `covers()` the question whether an error is tried again. The numbers of the 17
categories are those of the packaged profile (`exoarmur.yaml`) and stand nowhere else.

Whether an error is tried again, in this order:

    1. never: our own final errors (an inner operation that gave up, a violation, wrong usage),
       PermanentError, cancellation, exhausted memory
    2. the two lists, non-retryable first unless `precedence` says otherwise
    3. `unmatched`: retry, as the document has it

In a category that asks for a verdict (`…_VALIDATION`), and in governed mode, a catch-all does not
count: only failures to reach the other side are tried again, and types that a list names. A verdict
does not change by asking again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Literal

from oncemore._values import Value
from oncemore.classifiers.verdict import NEVER
from oncemore.errors import AttemptTimeout, Error, PermanentError, PolicyError, warn_policy
from oncemore.policy import files
from oncemore.policy.backoff import NONE, Jitter, Schedule
from oncemore.policy.policy import MOST_ATTEMPTS, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.policy.model import Failure

    Kind = Literal["reading", "acting"]


class RetryCategory(StrEnum):
    """What an operation is; each has its policy, and its value is the code in events."""

    NATS_CONNECT = "RETRY_NATS_CONNECT"
    NATS_PUBLISH = "RETRY_NATS_PUBLISH"
    NATS_SUBSCRIBE = "RETRY_NATS_SUBSCRIBE"
    NATS_STREAM_CREATE = "RETRY_NATS_STREAM_CREATE"
    KV_CREATE = "RETRY_KV_CREATE"
    KV_GET = "RETRY_KV_GET"
    KV_PUT = "RETRY_KV_PUT"
    KV_DELETE = "RETRY_KV_DELETE"
    EXECUTION_INTENT = "RETRY_EXECUTION_INTENT"
    EXECUTION_CONTAINMENT = "RETRY_EXECUTION_CONTAINMENT"
    EXECUTION_EXPIRATION = "RETRY_EXECUTION_EXPIRATION"
    APPROVAL_CHECK = "RETRY_APPROVAL_CHECK"
    APPROVAL_GRANT = "RETRY_APPROVAL_GRANT"
    REPLAY_PROCESSING = "REPLAY_REPLAY_PROCESSING"  # as printed
    REPLAY_VALIDATION = "REPLAY_REPLAY_VALIDATION"
    API_REQUEST = "RETRY_API_REQUEST"
    API_VALIDATION = "RETRY_API_VALIDATION"


#: Categories that only look; the others act, and want an idempotency key before they are repeated (X-72).
READING = frozenset(
    {"NATS_CONNECT", "NATS_SUBSCRIBE", "KV_GET", "APPROVAL_CHECK", "REPLAY_VALIDATION", "API_VALIDATION"}
)
#: Categories whose answer may be a verdict, which is final (X-40).
VERDICTS = frozenset({"REPLAY_VALIDATION", "API_VALIDATION"})
CATCH_ALL = (Exception, BaseException)


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long; with the document's fields and defaults, and three of ours by keyword.

    timeout_s    the limit of one attempt; None leaves it to the category
    precedence   which list wins where an error is in both
    unmatched    what to do with an error that neither list knows
    """

    max_attempts: int = 3
    base_delay: float = 1.0
    max_delay: float = 30.0
    backoff_multiplier: float = 2.0
    jitter_enabled: bool = True
    jitter_factor: float = 0.1
    retryable_exceptions: list[type[BaseException]] = field(default_factory=lambda: [Exception])
    non_retryable_exceptions: list[type[BaseException]] = field(default_factory=list)
    timeout_s: float | None = field(default=None, kw_only=True)
    precedence: Literal["non_retryable_first", "retryable_first"] = field(
        default="non_retryable_first", kw_only=True
    )
    unmatched: Literal["retry", "fail"] = field(default="retry", kw_only=True)

    def __post_init__(self) -> None:
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MOST_ATTEMPTS:
            _refuse("max_attempts", self.max_attempts, f"a whole number from 1 to {MOST_ATTEMPTS}")
        _number("base_delay", self.base_delay, 0.0)
        _number("max_delay", self.max_delay, 0.0)
        if self.base_delay > self.max_delay:
            _refuse("base_delay", self.base_delay, f"a number from 0 to max_delay, {self.max_delay:g}")
        _number("backoff_multiplier", self.backoff_multiplier, 1.0)
        _number("jitter_factor", self.jitter_factor, 0.0, 1.0)
        _one_of("jitter_enabled", self.jitter_enabled, True, False)
        _one_of("precedence", self.precedence, "non_retryable_first", "retryable_first")
        _one_of("unmatched", self.unmatched, "retry", "fail")
        if self.timeout_s is not None:
            _number("timeout_s", self.timeout_s, 0.0)
            if self.timeout_s == 0:
                _refuse("timeout_s", self.timeout_s, "more than 0, or None")
        self.lists()
        warn_policy(*self._unwise())

    @classmethod
    def of(cls, policy: Policy) -> RetryPolicy:
        """Return the document's view of a policy from a file."""
        return cls(
            policy.max_attempts,
            policy.schedule.base,
            policy.max_delay_s,
            policy.schedule.factor,
            policy.jitter.spread != "none",
            policy.jitter.amount,
            timeout_s=policy.timeout_s,
            precedence="non_retryable_first" if policy.classes is None else policy.classes.precedence,
            unmatched=policy.unmatched,
        )

    def core(self, name: str = "RetryPolicy", timeout_s: float | None = None) -> Policy:
        """Return the policy that decides; `timeout_s` is the limit of an attempt where this one has none."""
        return Policy(
            name,
            max_attempts=self.max_attempts,
            schedule=Schedule("exponential", float(self.base_delay), float(self.backoff_multiplier)),
            jitter=Jitter("proportional", float(self.jitter_factor)) if self.jitter_enabled else NONE,
            max_delay_s=float(self.max_delay),
            timeout_s=timeout_s if self.timeout_s is None else float(self.timeout_s),
            unmatched=self.unmatched,
        )

    def lists(self) -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
        """Return the retryable and the non-retryable types, or say which entry is none."""
        for name in ("retryable_exceptions", "non_retryable_exceptions"):
            kinds = getattr(self, name)
            if not isinstance(kinds, (list, tuple)):
                _refuse(name, kinds, "a list of exception types")
            for kind in kinds:
                if not isinstance(kind, type) or not issubclass(kind, BaseException):
                    _refuse(name, kind, "a list of exception types, each a class")
        for kind in self.retryable_exceptions:
            if not issubclass(kind, Exception) and kind is not BaseException:
                _refuse("retryable_exceptions", kind, "free of cancellation and interrupts: they always pass")
        return tuple(self.retryable_exceptions), tuple(self.non_retryable_exceptions)

    def covers(self, strict: bool) -> Callable[[Exception, Failure], bool]:
        """Return the question whether an error is tried again; when `strict`, a catch-all does not count."""
        listed, never = self.lists()
        if strict:
            listed = tuple(kind for kind in listed if kind not in CATCH_ALL)
        answers = [(never, False), (listed, True)]
        if self.precedence == "retryable_first":
            answers.reverse()

        def covered(error: Exception, failure: Failure) -> bool:
            if final(error, failure):
                return False
            for kinds, answer in answers:
                if isinstance(error, kinds):
                    return answer
            if strict:
                return failure.passing
            # An attempt that our own limit cut off is covered: that is what the limit is for.
            return self.unmatched == "retry" or type(error) is AttemptTimeout

        return covered

    def _unwise(self) -> list[str]:
        """Say what works but is unwise."""
        found = self.core().warnings()
        listed, never = self.lists()
        both = [kind.__name__ for kind in listed if issubclass(kind, never)]
        if self.precedence == "retryable_first":
            both = [kind.__name__ for kind in never if issubclass(kind, listed)]
            ending = "tried again all the same: precedence is retryable_first"
        else:
            ending = "not tried again: non_retryable_exceptions come first"
        if both:
            found.append(f"RetryPolicy: {', '.join(both)} is in both lists, and is {ending}")
        flat = self.base_delay == 0 or (self.backoff_multiplier == 1 and self.max_attempts > 2)
        if self.max_attempts > 1 and flat and not found:
            found.append("RetryPolicy: delays do not grow, so that a struggling service gets no rest")
        return found


def final(error: Exception, failure: Failure) -> bool:
    """Whether an error is never tried again, whatever a policy says."""
    ours = isinstance(error, (Error, PermanentError, MemoryError)) and type(error) is not AttemptTimeout
    return ours or failure.code in NEVER


def _number(name: str, value: object, low: float, high: float = math.inf) -> None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not low <= value <= high or value == math.inf:  # type: ignore[operator]
        _refuse(name, value, f"a number from {low:g} {'up' if high == math.inf else f'to {high:g}'}")


def _one_of(name: str, value: object, *allowed: object) -> None:
    if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
        _refuse(name, value, " or ".join(str(one) for one in allowed))


def _refuse(name: str, value: object, allowed: str) -> None:
    raise PolicyError(f"{name} is {value!r}; it must be {allowed}")


class Category(Value):
    """A category with all that belongs to it; `rules` is the policy that decides."""

    name: str
    code: str
    kind: Kind
    verdict: bool
    policy: RetryPolicy
    rules: Policy


@cache
def built_in() -> Mapping[str, Category]:
    """Return the 17 categories by name, with the numbers of the packaged profile."""
    profile = files.profile("exoarmur")
    made = {}
    for member in RetryCategory:
        rules = profile.policy(member.name)
        kind: Kind = "reading" if member.name in READING else "acting"
        policy = RetryPolicy.of(rules)
        made[member.name] = Category(member.name, member, kind, member.name in VERDICTS, policy, rules)
    return made
