"""The numbers of the packaged profile `lit`, with what a caller changes; they stand nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.error import URLError

from oncemore.classifiers.verdict import verdict
from oncemore.errors import UsageError, warn_policy
from oncemore.policy import files
from oncemore.policy.backoff import Schedule
from oncemore.settings import retries_on

if TYPE_CHECKING:
    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy

PROFILE = "lit"
PERSISTENCE = "lit/persistence"
#: Below these a setting is raised to them, with a warning (G-3); `minimums` in the profile's file.
LEAST = {"retry_attempts": 1, "retry_backoff_seconds": 0.0}


def transport(
    retry_attempts: int | None,
    retry_backoff_seconds: float | None,
    timeout_s: float | None,
    retry_after_cap_s: float | None,
) -> Policy:
    """Return the policy of a client: the profile's, with what is given changed."""
    rules = files.profile(PROFILE).policy()
    cap = rules.max_delay_s if retry_after_cap_s is None else _number("retry_after_cap_s", retry_after_cap_s)
    limit = rules.timeout_s if timeout_s is None else _number("timeout_s", timeout_s)
    rules = rules.but(max_delay_s=cap, timeout_s=limit)
    return _changed(rules, "retry_attempts", retry_attempts, "retry_backoff_seconds", retry_backoff_seconds)


def persistence(attempts: int | None, base_backoff_s: float | None) -> Policy:
    """Return the policy of writes; without a limit of time, for SQLite cannot be left in another thread."""
    rules = files.policy(PERSISTENCE).but(timeout_s=None)
    return _changed(rules, "attempts", attempts, "base_backoff_s", base_backoff_s)


def busy_timeout_s() -> float:
    """Return how long SQLite itself waits for a lock, within one try."""
    return float(files.profile(PROFILE).sections["persistence"]["busy_timeout_s"])


def never_repeated() -> tuple[str, ...]:
    """Return the session actions that are sent once, whatever happens."""
    return tuple(files.profile(PROFILE).sections["actions_never_auto_retried"])


def repeatable(error: Exception, failure: Failure, policy: Policy) -> bool:
    """Whether a request may be sent again after this, if it may be sent again at all.

    What the profile's classes say; and whatever else urllib could not bring to an answer, since the document
    names `URLError` as a whole. An address that makes no sense is none of them.
    """
    if verdict(failure, policy, "idempotent") == "RETRYABLE":
        return True
    return isinstance(error, URLError) and failure.kind == "transient"


def _changed(rules: Policy, count: str, attempts: int | None, wait: str, backoff_s: float | None) -> Policy:
    changes: dict[str, object] = {}
    if attempts is not None:
        if type(attempts) is not int:
            raise UsageError(f"{count} is {attempts!r}; it takes a whole number")
        changes["max_attempts"] = int(_raised(count, attempts, LEAST["retry_attempts"]))
    if backoff_s is not None:
        backoff_s = _raised(wait, _number(wait, backoff_s), LEAST["retry_backoff_seconds"])
        if backoff_s > rules.max_delay_s:
            raise UsageError(f"{wait} is {backoff_s:g}; it must not be above the cap, {rules.max_delay_s:g}")
        changes["schedule"], changes["max_delay_s"] = Schedule("linear", backoff_s), rules.max_delay_s
    changed = rules.but(**changes)
    if changed != rules:
        changed = changed.but(name=f"{rules.name} (changed)")
    return changed if retries_on() else changed.but(max_attempts=1)


def _raised(name: str, value: float, least: float) -> float:
    if value >= least:
        return value
    warn_policy(f"{name} is {value:g}; raised to its minimum, {least:g}")
    return least


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise UsageError(f"{name} is {value!r}; it takes a finite number of seconds")
    return float(value)
