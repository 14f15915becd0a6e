"""Checks of a policy's fields, of the rules for governed policies and of a profile's bounds.

Each check raises `PolicyError` or yields a text that names the field, its value and the allowed values.
"""

from __future__ import annotations

import math
from itertools import pairwise

from oncemore.errors import PolicyError
from oncemore.policy.backoff import SCHEDULES, SPREADS, planned_delay
from oncemore.policy.verdict import find_forbidden

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from oncemore.policy.backoff import Jitter, Schedule
    from oncemore.policy.policy import Policy
    from oncemore.policy.tuning import Tuning
    from oncemore.policy.verdict import ErrorClasses

MAX_ATTEMPTS = 1000
#: Attempts of a run that may be lost with their process, unless a policy says otherwise.
DEFAULT_CRASHES = 20
DEFAULT_CAP_S = 30.0
PER_RUN = "<sha256(run_id)>"
PER_KEY = "<sha256(idempotency_key)>"
#: Limits of a governed policy: the number of calls, and the smallest share of a delay that jitter must move.
GOVERNED_ATTEMPTS, GOVERNED_JITTER = 10, 0.1


def check_fields(fields: dict[str, Any]) -> float:
    """Return the cap of a new policy; raise `PolicyError` for the first field with a wrong value."""
    _check_count("max_attempts", fields["max_attempts"])
    if fields["max_crashes"] is not None:
        _check_count("max_crashes", fields["max_crashes"])
    schedule = check_schedule(fields["schedule"])
    jitter = check_jitter(fields["jitter"])
    check_seed(fields["jitter_seed"])
    cap = fields["max_delay_s"]
    if cap is None:
        cap = _default_cap(schedule, jitter)
    _check_range("max_delay_s", cap, 0.0)
    # A cap below the first delay would make every delay equal, without any sign of it in the schedule.
    if schedule.base > cap:
        raise PolicyError(f"max_delay_s is {cap:g} but the first delay is {schedule.base:g}; raise the cap")
    for field in ("timeout_s", "total_timeout_s"):
        if fields[field] is not None:
            _check_positive(field, fields[field])
    _check_range("retry_cost", fields["retry_cost"], 0.0)
    _check_member("unmatched", fields["unmatched"], ("retry", "fail"))
    if fields["tuning"] is not None:
        _check_tuning(fields["tuning"])
    if fields["classes"] is not None:
        _check_classes(fields["classes"])
    return float(cap)


def _default_cap(schedule: Schedule, jitter: Jitter) -> float:
    """Return the cap of a policy that gives none: the schedule's own, else 30 s.

    A fixed list of delays raises it: the cap never shortens a listed delay with its jitter.
    """
    if schedule.cap is not None:
        return schedule.cap
    longest = max(schedule.delays, default=0.0)
    if jitter.spread == "additive":
        longest += jitter.amount
    if jitter.spread == "proportional":
        longest *= 1 + jitter.amount
    return max(DEFAULT_CAP_S, longest)


def check_schedule(schedule: Schedule) -> Schedule:
    """Return the schedule; raise `PolicyError` for a number that is not allowed."""
    _check_member("schedule", schedule.shape, SCHEDULES)
    _check_range("schedule.base", schedule.base, 0.0)
    _check_range("schedule.factor", schedule.factor, 1.0)
    _check_member("schedule.exponent", schedule.exponent, ("attempt", "attempt-1"))
    if schedule.shape == "fixed" and not schedule.delays:
        raise PolicyError("schedule.delays is empty; a fixed schedule needs at least one delay")
    for number, delay in enumerate(schedule.delays, 1):
        _check_range(f"schedule.delays, number {number},", delay, 0.0)
    if schedule.cap is not None:
        _check_range("schedule.cap", schedule.cap, 0.0)
    return schedule


def check_jitter(jitter: Jitter) -> Jitter:
    """Return the jitter; raise `PolicyError` for an unknown kind or an amount that does not fit it."""
    _check_member("jitter", jitter.spread, (*SPREADS, "decorrelated"))
    # A proportional amount above 1 could make a delay negative.
    top = 1.0 if jitter.spread == "proportional" else math.inf
    _check_range("jitter.amount", jitter.amount, 0.0, top)
    return jitter


def check_seed(template: str) -> str | None:
    """Return a literal seed, or None for a template that is resolved for each run."""
    if template in (PER_RUN, PER_KEY):
        return None
    # A text that starts with "<" is a misspelt template: as a literal it would give all runs one seed.
    if not isinstance(template, str) or not template or template.startswith("<"):
        raise PolicyError(f"jitter_seed is {template!r}; it must be {PER_RUN}, {PER_KEY} or a literal")
    return template


def _check_tuning(tuning: Tuning) -> None:
    for field, value in zip(tuning._fields, tuning, strict=True):
        if field != "deadline_bias":
            _check_range(f"tuning.{field}", value, 0.0)
    # Both are divisors in `tuning`: a zero would be a ZeroDivisionError at the first failure.
    _check_positive("tuning.min_buffer_s", tuning.min_buffer_s)
    if tuning.carbon_high <= tuning.carbon_low:
        raise PolicyError("tuning.carbon_high must be above tuning.carbon_low")
    if tuning.max_stretch < 1.0:
        raise PolicyError(f"tuning.max_stretch is {tuning.max_stretch:g}; it must be 1 or more")


def _check_classes(classes: ErrorClasses) -> None:
    _check_member("classes.precedence", classes.precedence, ("non_retryable_first", "retryable_first"))
    forbidden = find_forbidden(classes.retryable)
    if forbidden:
        raise PolicyError(f"classes.retryable covers {', '.join(forbidden)}, which may never be retried")


def broken_rules(policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield the rules that a policy breaks: those of governed policies and the bounds of its profile.

    Each item is a field and a text with its value, the allowed values and the rule.
    """
    if policy.governed:
        yield from _broken_when_governed(policy)
    for field, limits in policy.bounds:
        value = bounded_value(policy, field)
        if field == "jitter":
            if value not in limits:
                yield field, f"is {value}; the bounds of this profile allow {', '.join(limits)}"
        elif value is not None and not limits[0] <= value <= limits[1]:
            yield field, f"is {value:g}; the bounds of this profile allow {limits[0]:g} to {limits[1]:g}"


def _broken_when_governed(policy: Policy) -> Iterator[tuple[str, str]]:
    spread, amount = policy.jitter
    if policy.timeout_s is None:
        yield "timeout_s", "is missing; a governed policy limits every attempt"
    if policy.unmatched == "retry":
        yield "unmatched", "is 'retry'; a governed policy never retries a failure that no rule knows (X-5)"
    if policy.max_attempts > GOVERNED_ATTEMPTS:
        text = f"a governed policy allows 1 to {GOVERNED_ATTEMPTS}"
        yield "max_attempts", f"is {policy.max_attempts}; {text}"
    if policy.max_crashes is not None:
        text = "a governed policy counts an attempt that is lost with its process in max_attempts"
        yield "max_crashes", f"is {policy.max_crashes}; {text}: None, or null in a file"
    if not _has_growing_delays(policy):
        delays = ", ".join(f"{delay:g}" for delay in _planned_delays(policy)[:4])
        yield "schedule", f"plans {delays} s; the delays of a governed policy grow up to the cap"
    if spread == "none":
        yield "jitter", "is none; a governed policy spreads its delays, for example full"
    elif spread == "proportional" and amount < GOVERNED_JITTER:
        text = f"a governed policy allows {GOVERNED_JITTER:g} to 1"
        yield "jitter_factor", f"is {amount:g}; {text}"
    elif spread == "additive":
        min_span = GOVERNED_JITTER * planned_delay(policy.schedule, 1)
        if amount < min_span:
            text = f"a governed policy allows {min_span:g} or more"
            yield "jitter_span_s", f"is {amount:g}; {text}"


def bounded_value(policy: Policy, field: str) -> Any:
    """Return a policy's value for a field of a policy file; None where the field does not apply to it."""
    schedule, (spread, amount) = policy.schedule, policy.jitter
    if field in policy.__slots__ and field != "jitter":
        return getattr(policy, field)
    return {
        "base_delay_s": schedule.delays[0] if schedule.shape == "fixed" else schedule.base,
        "factor": schedule.factor if schedule.shape == "exponential" else None,
        "jitter": spread,
        "jitter_span_s": amount if spread == "additive" else None,
        "jitter_factor": amount if spread == "proportional" else None,
    }[field]


def has_constant_delay(policy: Policy) -> bool:
    """Return whether a policy waits several times, always equally long (zero included)."""
    if policy.jitter.spread != "none" or policy.max_attempts < 3:
        return False
    return len(set(_planned_delays(policy))) == 1


def _has_growing_delays(policy: Policy) -> bool:
    """Return whether each planned delay is longer than the one before, until the longest is reached."""
    delays = _planned_delays(policy)
    # One attempt has no delay that could grow.
    if not delays:
        return True
    if len(delays) > 1 and delays[0] == delays[-1]:
        return False
    return delays[0] > 0 and all(a < b or a == b == delays[-1] for a, b in pairwise(delays))


def _planned_delays(policy: Policy) -> list[float]:
    return [min(policy.max_delay_s, planned_delay(policy.schedule, n)) for n in range(1, policy.max_attempts)]


def _check_count(field: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= MAX_ATTEMPTS:
        raise PolicyError(f"{field} is {value!r}; it must be a whole number from 1 to {MAX_ATTEMPTS}")


def _check_range(field: str, value: object, low: float, high: float = math.inf) -> None:
    # `bool` is a subclass of `int`; NaN fails the comparison; infinity would make a wait endless.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or value == math.inf:  # type: ignore[operator]
        top = "or more, and finite" if high == math.inf else f"to {high:g}"
        raise PolicyError(f"{field} is {value!r}; it must be a number from {low:g} {top}")


def _check_positive(field: str, value: object) -> None:
    _check_range(field, value, 0.0)
    if value == 0:
        raise PolicyError(f"{field} is {value!r}; it must be more than 0")


def _check_member(field: str, value: object, allowed: Iterable[object]) -> None:
    names = list(allowed)
    if value not in names:
        raise PolicyError(f"{field} is {value!r}; it must be one of {', '.join(map(str, names))}")
