"""The options of `retry`, checked and built into one frozen plan.

All checks run when a function is decorated, so that a mistake shows at import and not in a later call. A
message names the option and its valid values.
"""

from __future__ import annotations

from oncemore.classifiers.classify import classify, ensure_plugins_loaded
from oncemore.config import are_retries_enabled
from oncemore.errors import AttemptTimeout, StepFailed, UsageError, warn_policy
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import STANDARD, Policy, check_jitter, check_schedule, check_seed, policy_name
from oncemore.policy.verdict import decide_verdict, forbids_retry
from oncemore.retries.limit_options import (
    POLICIES,
    is_file_policy,
    resolve_breaker_option,
    resolve_budget,
    resolve_rate_option,
)
from oncemore.retries.plan import NO_FALLBACK, RetryPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta
    from os import PathLike
    from typing import Any, Literal, TypedDict

    from oncemore.audit.events import AuditEvent
    from oncemore.limits.breaker import BreakerCore
    from oncemore.limits.budget import TokenBucket
    from oncemore.limits.shared_rate import RateLimiter
    from oncemore.policy.backoff import JitterWord
    from oncemore.policy.model import Failure
    from oncemore.retries.plan import CallObserver
    from oncemore.retries.report import RetryReport

    Seconds = float | timedelta
    On = (
        type[Exception]
        | tuple[type[Exception], ...]
        | Callable[[Exception], bool]
        | Literal["transient", "not-sent"]
    )

    class RetryOptions(TypedDict, total=False):
        """The keyword arguments of `retry`; `with_options` takes the same."""

        on: On
        until: Callable[[Any], object] | None
        attempts: int | None
        timeout: Seconds | None
        total_timeout: Seconds | None
        deadline: datetime | float | None
        wait: Schedule | Seconds | Sequence[Seconds] | None
        jitter: Jitter | JitterWord | None
        policy: Policy | str | PathLike[str] | None
        budget: TokenBucket | None
        breaker: BreakerCore | str | None
        rate: RateLimiter | str | None
        seed: str | int | None
        fallback: Any
        on_retry: Callable[[RetryReport], object] | None
        on_give_up: Callable[[RetryReport], object] | None
        on_event: Callable[[AuditEvent], object] | None
        category: str | None
        name: str | None


def check_options(options: RetryOptions, where: str) -> None:
    """Refuse an option that does not exist, and a call without `on`."""
    if "on" not in options:
        raise UsageError(f"{where}() needs on=: the errors to retry have no default")
    for option in options:
        if option not in OPTIONS:
            raise UsageError(f"{where}() has no {option}=; it takes {', '.join(OPTIONS)}")


OPTIONS = (
    "on", "until", "attempts", "timeout", "total_timeout", "deadline", "wait", "jitter", "policy", "budget",
    "breaker", "rate", "seed", "fallback", "on_retry", "on_give_up", "on_event", "category", "name",
)  # fmt: skip


def as_seconds(field: str, value: Seconds) -> float:
    """Return seconds from a number or a timedelta."""
    if hasattr(value, "total_seconds"):
        return float(value.total_seconds())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{field} is {value!r}; it takes seconds as a number, or a timedelta")
    return float(value)


# The CO_ flags of inspect, without its slow import.
_COROUTINE, _GENERATOR, _ITERABLE, _ASYNC_GENERATOR = 0x80, 0x20, 0x100, 0x200


def function_colour(work: Any) -> str:
    """Return the kind of a function: plain, coroutine, generator or async-generator.

    Unwraps partials, bound methods and objects with `__call__`, as `inspect` does.
    """
    # Bounded, because an object may wrap itself.
    for _ in range(16):
        if isinstance(work, type):
            return "plain"
        inner = (
            getattr(work, "func", None)
            if type(work).__name__ == "partial"
            else getattr(work, "__func__", None)
        )
        if inner is None and not hasattr(work, "__code__") and callable(work):
            inner = getattr(type(work).__call__, "__code__", None) and type(work).__call__
        if inner is None:
            break
        work = inner
    flags = getattr(getattr(work, "__code__", None), "co_flags", 0)
    if flags & (_COROUTINE | _ITERABLE) or getattr(work, "_is_coroutine_mark", None) is not None:
        return "coroutine"
    return "generator" if flags & _GENERATOR else "async-generator" if flags & _ASYNC_GENERATOR else "plain"


def build_plan(options: RetryOptions, name: str, colour: str) -> RetryPlan:
    """Check all options and return the plan."""
    ensure_plugins_loaded()
    policy = resolve_policy(options)
    fallback = options.get("fallback", NO_FALLBACK)
    if callable(fallback):
        check_hook("fallback", fallback, colour)
    hooks = {
        option: check_hook(option, options.get(option), colour)
        for option in ("until", "on_retry", "on_give_up")
    }
    return RetryPlan(
        name=options.get("name") or name,
        policy=policy,
        covers=make_covers(options["on"], policy),
        classify=classify,
        deadline=_parse_deadline(options.get("deadline")),
        budget=resolve_budget(options.get("budget"), options.get("policy")),
        seed=_check_seed(options.get("seed")) or check_seed(policy.jitter_seed),
        fallback=fallback,
        cuts=colour == "coroutine" or policy.timeout_s is not None,
        witness=_make_observer(options, name, policy),
        breaker=resolve_breaker_option(options),
        rate=resolve_rate_option(options),
        **hooks,
    )


#: Plans of `attempts(...)`, which is evaluated at every call of the function around it.
_plans: dict[tuple[object, ...], RetryPlan] = {}
_MOST_PLANS = 256


def _cache_key(options: RetryOptions) -> tuple[object, ...] | None:
    """Return the cache key of options, or None if their plan must not be cached."""
    # A function may refer to anything, and the cache would keep that alive.
    if any(callable(value) and not isinstance(value, type) for value in options.values()):
        return None
    has_limits = any(options.get(option) is not None for option in ("budget", "breaker", "rate"))
    # Limits belong to the caller; a policy file may change, and its loader has a cache of its own.
    if has_limits or is_file_policy(options.get("policy")):
        return None
    # With the types, because True == 1 and 1.0 == 1.
    key = (are_retries_enabled(), *((name, type(value), value) for name, value in options.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def known_plan(options: RetryOptions) -> RetryPlan | None:
    """Return the cached plan of the same options, or None."""
    key = _cache_key(options)
    return None if key is None else _plans.get(key)


def remember_plan(options: RetryOptions, plan: RetryPlan) -> None:
    """Cache the plan of options."""
    key = _cache_key(options)
    if key is not None:
        # Only options that differ at every call fill the cache: it needs no better eviction.
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[key] = plan


def warn_unwise_policy(plan: RetryPlan) -> None:
    """Warn of a policy that works but is unwise, at the caller's line."""
    warn_policy(*plan.policy.warnings())


#: Suffix of the name of a policy that further options have changed.
CHANGED = " (changed)"


def resolve_policy(options: RetryOptions) -> Policy:
    """Return the policy of the options, or a copy that further options have changed."""
    option = options.get("policy")
    base = STANDARD if option is None else option
    if is_file_policy(base):
        # Imported here: only policy files need the loader.
        from oncemore.policy.files.loader import load_policy_no_warnings

        base = load_policy_no_warnings(base)  # type: ignore[arg-type]
    elif isinstance(base, str):
        base = POLICIES[base]
    if not isinstance(base, Policy):
        raise UsageError(
            f"policy is {base!r}; it takes the name of a policy or an oncemore.Policy, or the path of a file"
        )
    changed = base.replace(**_policy_changes(options))
    if changed != base:
        base = changed.replace(name="custom" if option is None else f"{base.name}{CHANGED}")
    # The setting that disables retries keeps everything else: limits, hooks and reports.
    return base if are_retries_enabled() else base.replace(max_attempts=1)


def _policy_changes(options: RetryOptions) -> dict[str, object]:
    """Return the fields of a policy that the options set."""
    changes: dict[str, object] = {}
    if (max_attempts := options.get("attempts")) is not None:
        changes["max_attempts"] = max_attempts
    for option, field in (("timeout", "timeout_s"), ("total_timeout", "total_timeout_s")):
        if (limit := options.get(option)) is not None:
            changes[field] = as_seconds(option, limit)  # type: ignore[arg-type]
    if (wait := options.get("wait")) is not None:
        changes["schedule"], changes["jitter"] = _parse_wait(wait)
    if (jitter := options.get("jitter")) is not None:
        changes["jitter"] = check_jitter(Jitter(jitter) if isinstance(jitter, str) else jitter)
    return changes


def _parse_wait(wait: Schedule | Seconds | Sequence[Seconds]) -> tuple[Schedule, Jitter]:
    """Return the schedule and its default jitter: plain seconds are exact, a schedule is spread."""
    if isinstance(wait, Schedule):
        return check_schedule(wait), Jitter("none" if wait.shape == "fixed" else "full")
    if isinstance(wait, (list, tuple)):
        return _fixed_schedule(wait), Jitter("none")
    return _fixed_schedule([wait]), Jitter("none")  # type: ignore[list-item]


def _fixed_schedule(delays: Sequence[Seconds]) -> Schedule:
    return check_schedule(Schedule("fixed", delays=tuple(as_seconds("wait", delay) for delay in delays)))


def make_covers(on: On, policy: Policy) -> Callable[[Exception, Failure], bool]:
    """Return the function that says whether an error may be retried."""
    if isinstance(on, str):
        return _covers_by_class(on, policy)
    kinds = on if isinstance(on, tuple) else (on,)
    if all(isinstance(kind, type) for kind in kinds):
        for kind in kinds:
            if not issubclass(kind, Exception):  # type: ignore[arg-type]
                raise UsageError(
                    f"on has {kind.__name__}, which is not an Exception: "
                    "cancellation and interrupts are never retried"
                )
        # A timeout of the attempt is covered too: it exists to start the next attempt.
        covered: Any = kinds[0] if len(kinds) == 1 else kinds
        if not policy.governed and (policy.classes is None or not policy.classes.non_retryable):
            # The usual case, made fast: here only a permanent failure can be forbidden.
            return lambda error, failure: (
                (isinstance(error, covered) or type(error) is AttemptTimeout)
                and not (failure.kind == "permanent" and _covers_nothing(error, failure, policy))
            )
        return lambda error, failure: (
            (isinstance(error, covered) or type(error) is AttemptTimeout)
            and not _covers_nothing(error, failure, policy)
        )
    if isinstance(on, tuple) or not callable(on):
        raise UsageError(f"on is {on!r}; it takes exception types, a predicate, 'transient' or 'not-sent'")
    if function_colour(on) != "plain":
        raise UsageError("on is an async function; it takes a plain function")
    return lambda error, failure: not _covers_nothing(error, failure, policy) and bool(on(error))


def _covers_nothing(error: Exception, failure: Failure, policy: Policy) -> bool:
    """Return whether an error is never retried, even if `on` covers it (ADR 0005, 0036).

    Also the failure of a durable step: it has used its own attempts, and a new call of it would be a new run
    with as many again (ADR 0045).
    """
    is_step = isinstance(error, StepFailed) and error.run is not None
    return is_step or isinstance(error, UsageError) or forbids_retry(failure, policy)


def _covers_by_class(on: str, policy: Policy) -> Callable[[Exception, Failure], bool]:
    """Return the function that decides by the classification of an error and the policy's classes."""
    if on not in ("transient", "not-sent"):
        raise UsageError(f"on is {on!r}; the names are 'transient', 'not-sent'")
    if policy.classes is None and policy.unmatched == "fail":
        if on == "transient":
            return lambda error, failure: failure.may_pass
        return lambda error, failure: failure.may_pass and failure.sent == "no"
    return lambda error, failure: (
        decide_verdict(failure, policy, "idempotent") == "RETRYABLE"
        and (on == "transient" or failure.sent == "no")
        and not isinstance(error, UsageError)
    )


def check_hook(option: str, hook: Any, colour: str) -> Any:
    """Return a hook, or None; refuse one that is not a function, or that would have to be awaited."""
    if hook is None:
        return None
    if not callable(hook):
        raise UsageError(f"{option} is {hook!r}; it takes a function")
    if function_colour(hook) == "coroutine" and (option == "until" or colour == "plain"):
        raise UsageError(f"{option} is an async function, and nothing here can await it")
    return hook


def _make_observer(options: RetryOptions, name: str, policy: Policy) -> CallObserver | None:
    """Return the observer that sends audit events to `on_event`, if that is set."""
    sink, category = options.get("on_event"), options.get("category")
    if sink is None and category is None:
        return None
    # Imported here: the audit modules are not loaded by `import oncemore`.
    from oncemore.audit.recorder import AuditRecorder, SinkWriter, check_category, default_category

    code = default_category(options.get("name") or name) if category is None else check_category(category)
    if check_hook("on_event", sink, "plain") is None:
        return None
    return AuditRecorder(SinkWriter(sink), code, options.get("name") or name, policy=policy_name(policy))  # type: ignore[arg-type]


def _parse_deadline(deadline: datetime | float | None) -> float | None:
    if deadline is None:
        return None
    if isinstance(deadline, (int, float)):
        return as_seconds("deadline", deadline)
    if getattr(deadline, "tzinfo", None) is None:
        raise UsageError(f"deadline is {deadline!r}; it takes an aware datetime, or POSIX seconds")
    return float(deadline.timestamp())


def _check_seed(seed: str | int | None) -> str | None:
    if seed is None or isinstance(seed, str):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed is {seed!r}; it takes a string or a whole number")
    return str(seed)
