"""The numbers of the packaged profile `lit`, with the changes of a caller."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.error import URLError

from oncemore.config import are_retries_enabled
from oncemore.errors import UsageError, warn_policy
from oncemore.policy import files
from oncemore.policy.backoff import Schedule
from oncemore.policy.verdict import decide_verdict

if TYPE_CHECKING:
    from oncemore.policy.model import Failure
    from oncemore.policy.policy import Policy

PROFILE = "lit"
PERSISTENCE_PROFILE = "lit/persistence"
#: Lower settings are raised to these, with a warning (G-3); `minimums` in the profile's file.
MINIMUMS = {"retry_attempts": 1, "retry_backoff_seconds": 0.0}


def transport_policy(
    retry_attempts: int | None,
    retry_backoff_seconds: float | None,
    timeout_s: float | None,
    retry_after_cap_s: float | None,
) -> Policy:
    """Return the policy of a client: the profile's, with the given changes."""
    rules = files.profile(PROFILE).policy()
    cap_s = (
        rules.max_delay_s
        if retry_after_cap_s is None
        else _check_seconds("retry_after_cap_s", retry_after_cap_s)
    )
    limit_s = rules.timeout_s if timeout_s is None else _check_seconds("timeout_s", timeout_s)
    rules = rules.replace(max_delay_s=cap_s, timeout_s=limit_s)
    return _apply_changes(
        rules, "retry_attempts", retry_attempts, "retry_backoff_seconds", retry_backoff_seconds
    )


def persistence_policy(attempts: int | None, base_backoff_s: float | None) -> Policy:
    """Return the policy of writes; without a timeout, because a SQLite connection belongs to its thread."""
    rules = files.policy(PERSISTENCE_PROFILE).replace(timeout_s=None)
    return _apply_changes(rules, "attempts", attempts, "base_backoff_s", base_backoff_s)


def busy_timeout_s() -> float:
    """Return how long SQLite itself waits for a lock within one attempt."""
    return float(files.profile(PROFILE).sections["persistence"]["busy_timeout_s"])


def unrepeatable_actions() -> tuple[str, ...]:
    """Return the session actions that are always sent once."""
    return tuple(files.profile(PROFILE).sections["actions_never_auto_retried"])


def is_repeatable(error: Exception, failure: Failure, policy: Policy) -> bool:
    """Return whether a repeatable request may be sent again after this failure.

    The profile's classes decide; beyond them every `URLError` counts that is transient, because the document
    names `URLError` as a whole. An address that makes no sense is not transient.
    """
    if decide_verdict(failure, policy, "idempotent") == "RETRYABLE":
        return True
    return isinstance(error, URLError) and failure.kind == "transient"


def _apply_changes(
    rules: Policy, count: str, attempts: int | None, wait: str, backoff_s: float | None
) -> Policy:
    changes: dict[str, object] = {}
    if attempts is not None:
        # bool is a subclass of int, and True would mean one attempt.
        if type(attempts) is not int:
            raise UsageError(f"{count} is {attempts!r}; it takes a whole number")
        changes["max_attempts"] = int(_raise_to_minimum(count, attempts, MINIMUMS["retry_attempts"]))
    if backoff_s is not None:
        backoff_s = _raise_to_minimum(
            wait, _check_seconds(wait, backoff_s), MINIMUMS["retry_backoff_seconds"]
        )
        if backoff_s > rules.max_delay_s:
            raise UsageError(f"{wait} is {backoff_s:g}; it must not be above the cap, {rules.max_delay_s:g}")
        changes["schedule"], changes["max_delay_s"] = Schedule("linear", backoff_s), rules.max_delay_s
    changed = rules.replace(**changes)
    if changed != rules:
        # The name in logs and proofs must not claim the packaged numbers.
        changed = changed.replace(name=f"{rules.name} (changed)")
    return changed if are_retries_enabled() else changed.replace(max_attempts=1)


def _raise_to_minimum(name: str, value: float, minimum: float) -> float:
    if value >= minimum:
        return value
    warn_policy(f"{name} is {value:g}; raised to its minimum, {minimum:g}")
    return minimum


def _check_seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < float("inf"):
        raise UsageError(f"{name} is {value!r}; it takes a finite number of seconds")
    return float(value)
