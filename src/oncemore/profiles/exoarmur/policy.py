"""Categories and policies of the exoarmur document.

A `RetryPolicy` has the document's fields and defaults, checked when it is made; `to_policy()` gives the
policy that decides, and `make_covers()` the function that says whether an error is tried again. The numbers
of the 17 categories come from the packaged profile (`exoarmur.yaml`) only.

An error is tried again by the first of these rules that applies:

    1. never: our own final errors (an inner operation that gave up, a violation, wrong usage),
       PermanentError, cancellation, exhausted memory
    2. the two lists, non-retryable first unless `precedence` says otherwise
    3. `unmatched`: retry, as the document has it

In a category that asks for a verdict (`…_VALIDATION`), and in governed mode, a catch-all does not count: only
failures to reach the other side are tried again, and types that a list names. A verdict does not change when
it is asked for again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Literal

from oncemore._values import Value
from oncemore.errors import AttemptTimeout, Error, PermanentError, PolicyError, warn_policy
from oncemore.policy import files
from oncemore.policy.backoff import NO_JITTER, Jitter, Schedule
from oncemore.policy.policy import MAX_ATTEMPTS, Policy
from oncemore.policy.verdict import NEVER_RETRIED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.policy.model import Failure

    Kind = Literal["reading", "acting"]


class RetryCategory(StrEnum):
    """The kind of an operation; each has its policy, and its value is the code in events."""

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
    # The document prints these two codes with a double prefix; audit readers know them so.
    REPLAY_PROCESSING = "REPLAY_REPLAY_PROCESSING"
    REPLAY_VALIDATION = "REPLAY_REPLAY_VALIDATION"
    API_REQUEST = "RETRY_API_REQUEST"
    API_VALIDATION = "RETRY_API_VALIDATION"


#: Categories that only read; the remaining ones act, and need an idempotency key to be repeated (X-72).
READING_CATEGORIES = frozenset(
    {"NATS_CONNECT", "NATS_SUBSCRIBE", "KV_GET", "APPROVAL_CHECK", "REPLAY_VALIDATION", "API_VALIDATION"}
)
#: Categories whose reply may be a verdict, which is final (X-40).
VERDICT_CATEGORIES = frozenset({"REPLAY_VALIDATION", "API_VALIDATION"})
CATCH_ALL = (Exception, BaseException)


@dataclass(frozen=True)
class RetryPolicy:
    """The document's retry policy: its fields and defaults, and three keywords of ours.

    timeout_s    the limit of one attempt; None means the category's
    precedence   the list that wins if an error is in both
    unmatched    whether to retry an error that is in neither list
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
        if type(self.max_attempts) is not int or not 1 <= self.max_attempts <= MAX_ATTEMPTS:
            _refuse_value("max_attempts", self.max_attempts, f"a whole number from 1 to {MAX_ATTEMPTS}")
        _check_number("base_delay", self.base_delay, 0.0)
        _check_number("max_delay", self.max_delay, 0.0)
        if self.base_delay > self.max_delay:
            _refuse_value("base_delay", self.base_delay, f"a number from 0 to max_delay, {self.max_delay:g}")
        _check_number("backoff_multiplier", self.backoff_multiplier, 1.0)
        _check_number("jitter_factor", self.jitter_factor, 0.0, 1.0)
        _check_choice("jitter_enabled", self.jitter_enabled, True, False)
        _check_choice("precedence", self.precedence, "non_retryable_first", "retryable_first")
        _check_choice("unmatched", self.unmatched, "retry", "fail")
        if self.timeout_s is not None:
            _check_number("timeout_s", self.timeout_s, 0.0)
            if self.timeout_s == 0:
                _refuse_value("timeout_s", self.timeout_s, "more than 0, or None")
        self.get_exception_lists()
        warn_policy(*self._list_warnings())

    @classmethod
    def from_policy(cls, policy: Policy) -> RetryPolicy:
        """Return the document's view of a policy from a file."""
        return cls(
            max_attempts=policy.max_attempts,
            base_delay=policy.schedule.base,
            max_delay=policy.max_delay_s,
            backoff_multiplier=policy.schedule.factor,
            jitter_enabled=policy.jitter.spread != "none",
            jitter_factor=policy.jitter.amount,
            timeout_s=policy.timeout_s,
            precedence="non_retryable_first" if policy.classes is None else policy.classes.precedence,
            unmatched=policy.unmatched,
        )

    def to_policy(self, name: str = "RetryPolicy", timeout_s: float | None = None) -> Policy:
        """Return the policy that decides; `timeout_s` limits an attempt if this policy has no limit."""
        return Policy(
            name,
            max_attempts=self.max_attempts,
            # As in the document: an attempt counts before it starts, also one that is lost with its process.
            max_crashes=None,
            schedule=Schedule("exponential", float(self.base_delay), float(self.backoff_multiplier)),
            jitter=Jitter("proportional", float(self.jitter_factor)) if self.jitter_enabled else NO_JITTER,
            max_delay_s=float(self.max_delay),
            timeout_s=timeout_s if self.timeout_s is None else float(self.timeout_s),
            unmatched=self.unmatched,
        )

    def get_exception_lists(self) -> tuple[tuple[type[BaseException], ...], tuple[type[BaseException], ...]]:
        """Return the retryable and the non-retryable types; refuse an entry that is not an exception type."""
        for name in ("retryable_exceptions", "non_retryable_exceptions"):
            kinds = getattr(self, name)
            if not isinstance(kinds, (list, tuple)):
                _refuse_value(name, kinds, "a list of exception types")
            for kind in kinds:
                if not isinstance(kind, type) or not issubclass(kind, BaseException):
                    _refuse_value(name, kind, "a list of exception types, each a class")
        # BaseException stands for Exception here: cancellation and interrupts are never caught.
        for kind in self.retryable_exceptions:
            if not issubclass(kind, Exception) and kind is not BaseException:
                _refuse_value(
                    "retryable_exceptions", kind, "free of cancellation and interrupts: they always pass"
                )
        return tuple(self.retryable_exceptions), tuple(self.non_retryable_exceptions)

    def make_covers(self, strict: bool) -> Callable[[Exception, Failure], bool]:
        """Return the function that says whether an error is tried again; `strict` ignores a catch-all."""
        listed, never = self.get_exception_lists()
        if strict:
            # The default list is [Exception], which would repeat a verdict.
            listed = tuple(kind for kind in listed if kind not in CATCH_ALL)
        answers = [(never, False), (listed, True)]
        if self.precedence == "retryable_first":
            answers.reverse()

        def is_covered(error: Exception, failure: Failure) -> bool:
            if is_final(error, failure):
                return False
            for kinds, answer in answers:
                if isinstance(error, kinds):
                    return answer
            if strict:
                return failure.may_pass
            # An attempt that reached our own time limit is tried again: that is the purpose of the limit.
            return self.unmatched == "retry" or type(error) is AttemptTimeout

        return is_covered

    def _list_warnings(self) -> list[str]:
        """Return warnings about settings that work but are unwise."""
        messages = self.to_policy().warnings()
        listed, never = self.get_exception_lists()
        both = [kind.__name__ for kind in listed if issubclass(kind, never)]
        if self.precedence == "retryable_first":
            both = [kind.__name__ for kind in never if issubclass(kind, listed)]
            ending = "tried again: precedence is retryable_first"
        else:
            ending = "not tried again: non_retryable_exceptions come first"
        if both:
            messages.append(f"RetryPolicy: {', '.join(both)} is in both lists, and is {ending}")
        is_flat = self.base_delay == 0 or (self.backoff_multiplier == 1 and self.max_attempts > 2)
        if self.max_attempts > 1 and is_flat and not messages:
            messages.append("RetryPolicy: delays do not grow, so that a struggling service gets no rest")
        return messages


def is_final(error: Exception, failure: Failure) -> bool:
    """Return whether an error is never tried again, under every policy."""
    # Our own errors end an inner operation: repeating them here would multiply attempts.
    is_ours = isinstance(error, (Error, PermanentError, MemoryError)) and type(error) is not AttemptTimeout
    return is_ours or failure.code in NEVER_RETRIED


def _check_number(name: str, value: object, low: float, high: float = math.inf) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or value == math.inf:  # type: ignore[operator]
        _refuse_value(name, value, f"a number from {low:g} {'up' if high == math.inf else f'to {high:g}'}")


def _check_choice(name: str, value: object, *allowed: object) -> None:
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in allowed):
        _refuse_value(name, value, " or ".join(str(choice) for choice in allowed))


def _refuse_value(name: str, value: object, allowed: str) -> None:
    raise PolicyError(f"{name} is {value!r}; it must be {allowed}")


class CategoryPolicy(Value):
    """A category with its code, its kind and its policies; `rules` is the policy that decides."""

    name: str
    code: str
    kind: Kind
    verdict: bool
    policy: RetryPolicy
    rules: Policy


@cache
def builtin_categories() -> Mapping[str, CategoryPolicy]:
    """Return the 17 categories by name, with the numbers of the packaged profile."""
    profile = files.profile("exoarmur")
    categories = {}
    for member in RetryCategory:
        rules = profile.policy(member.name)
        kind: Kind = "reading" if member.name in READING_CATEGORIES else "acting"
        policy = RetryPolicy.from_policy(rules)
        categories[member.name] = CategoryPolicy(
            member.name, member, kind, member.name in VERDICT_CATEGORIES, policy, rules
        )
    return categories
