"""What a user told `retry`, checked and made one frozen plan.

Everything is checked when a function is decorated, so that a mistake shows at import and not at three
in the morning; a message names the argument and what it takes.
"""

from __future__ import annotations

from oncemore.classifiers.classify import classify, ready
from oncemore.classifiers.verdict import forbids_retry, verdict
from oncemore.errors import AttemptTimeout, UsageError, warn_policy
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import STANDARD, Policy, check_jitter, check_schedule, check_seed, policy_name
from oncemore.retries.loop import NO_FALLBACK, Plan
from oncemore.settings import retries_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta
    from os import PathLike
    from typing import Any, Literal, TypedDict

    from oncemore.audit.events import Event
    from oncemore.limits.breaker import Gate
    from oncemore.limits.budget import Budget
    from oncemore.limits.shared_rate import Meter
    from oncemore.policy.model import Failure
    from oncemore.retries.loop import Report, Witness

    Seconds = float | timedelta
    On = (
        type[Exception]
        | tuple[type[Exception], ...]
        | Callable[[Exception], bool]
        | Literal["transient", "not-sent"]
    )

    class Options(TypedDict, total=False):
        """The keyword arguments of `retry`; `using` takes the same."""

        on: On
        until: Callable[[Any], object] | None
        attempts: int | None
        timeout: Seconds | None
        within: Seconds | None
        deadline: datetime | float | None
        wait: Schedule | Seconds | Sequence[Seconds] | None
        jitter: Jitter | str | None
        policy: Policy | str | PathLike[str] | None
        budget: Budget | None
        breaker: Gate | str | None
        rate: Meter | str | None
        seed: str | int | None
        fallback: Any
        on_retry: Callable[[Report], object] | None
        on_give_up: Callable[[Report], object] | None
        on_event: Callable[[Event], object] | None
        category: str | None
        name: str | None


def check_options(options: Options, where: str) -> None:
    """Refuse an option that does not exist, and a call without `on`."""
    if "on" not in options:
        raise UsageError(f"{where}() needs on=: what may be tried again has no default")
    for option in options:
        if option not in OPTIONS:
            raise UsageError(f"{where}() has no {option}=; it takes {', '.join(OPTIONS)}")


OPTIONS = (
    "on", "until", "attempts", "timeout", "within", "deadline", "wait", "jitter", "policy", "budget",
    "breaker", "rate", "seed", "fallback", "on_retry", "on_give_up", "on_event", "category", "name",
)  # fmt: skip


def as_seconds(field: str, value: Seconds) -> float:
    """Return seconds from a number or a timedelta."""
    if hasattr(value, "total_seconds"):
        return float(value.total_seconds())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{field} is {value!r}; it takes seconds as a number, or a timedelta")
    return float(value)


_COROUTINE, _GENERATOR, _ITERABLE, _ASYNC_GENERATOR = 0x80, 0x20, 0x100, 0x200  # inspect's CO_ flags


def colour_of(work: Any) -> str:
    """Return what calling gives: plain (a value), coroutine, generator or async-generator.

    Looks through partials, bound methods and objects with `__call__`, as `inspect` does, which is dear
    to import.
    """
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


def plan_of(options: Options, name: str, colour: str) -> Plan:
    """Check all options and make them one frozen value."""
    ready()
    policy = policy_of(options)
    fallback = options.get("fallback", NO_FALLBACK)
    if callable(fallback):
        _hook("fallback", fallback, colour)
    hooks = {
        option: _hook(option, options.get(option), colour) for option in ("until", "on_retry", "on_give_up")
    }
    return Plan(
        name=options.get("name") or name,
        policy=policy,
        covers=_covers(options["on"], policy),
        classify=classify,
        deadline=_deadline(options.get("deadline")),
        budget=_budget(options),
        seed=_seed(options.get("seed")) or check_seed(policy.jitter_seed),
        fallback=fallback,
        cuts=colour == "coroutine" or policy.timeout_s is not None,
        witness=_witness(options, name, policy),
        breaker=_breaker(options),
        rate=_rate(options),
        **hooks,
    )


#: Plans of `attempts(...)`, which is written inside functions and so made anew at every call of them.
_plans: dict[tuple[object, ...], Plan] = {}
_MOST_PLANS = 256


def _told(options: Options) -> tuple[object, ...] | None:
    """Return what options say, types included (True is no 1), or None when that is not to be kept.

    Functions and budgets are the caller's own and may hold anything: keeping them would keep that alive.
    A policy on disk may change, and whoever loads it remembers it until it does.
    """
    if any(callable(value) and not isinstance(value, type) for value in options.values()):
        return None
    own = any(options.get(one) is not None for one in ("budget", "breaker", "rate"))
    if own or _on_disk(options.get("policy")):
        return None
    told = (retries_on(), *((name, type(value), value) for name, value in options.items()))
    try:
        hash(told)
    except TypeError:
        return None
    return told


def known_plan(options: Options) -> Plan | None:
    """Return the plan that the same options made before."""
    told = _told(options)
    return None if told is None else _plans.get(told)


def remember_plan(options: Options, plan: Plan) -> None:
    """Keep a plan for the next time that the same options are given."""
    told = _told(options)
    if told is not None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[told] = plan


def caution(plan: Plan) -> None:
    """Warn, at the user's own line, of a policy that works but is unwise."""
    warn_policy(*plan.policy.warnings())


#: What the name of a policy ends with that was changed by options beside it.
CHANGED = " (changed)"
#: Known without looking on the disk.
POLICIES = {STANDARD.name: STANDARD}


def _on_disk(policy: object) -> bool:
    """Whether a policy is given by its address or by the path of its file."""
    return (isinstance(policy, str) and policy not in POLICIES) or hasattr(policy, "__fspath__")


def policy_of(options: Options) -> Policy:
    """Return the policy, or a copy with what is given beside it changed."""
    given = options.get("policy")
    base = STANDARD if given is None else given
    if _on_disk(base):
        from oncemore.policy.files.loader import quiet_policy  # only policies on disk need it

        base = quiet_policy(base)  # type: ignore[arg-type]
    elif isinstance(base, str):
        base = POLICIES[base]
    if not isinstance(base, Policy):
        raise UsageError(
            f"policy is {base!r}; it takes the name of a policy or an oncemore.Policy, or the path of a file"
        )
    changed = base.but(**_changes(options))
    if changed != base:
        base = changed.but(name="custom" if given is None else f"{base.name}{CHANGED}")
    return base if retries_on() else base.but(max_attempts=1)


def _changes(options: Options) -> dict[str, object]:
    """Return the fields of a policy that the options set."""
    changes: dict[str, object] = {}
    if (most := options.get("attempts")) is not None:
        changes["max_attempts"] = most
    for option, field in (("timeout", "timeout_s"), ("within", "within_s")):
        if (limit := options.get(option)) is not None:
            changes[field] = as_seconds(option, limit)  # type: ignore[arg-type]
    if (wait := options.get("wait")) is not None:
        changes["schedule"], changes["jitter"] = _schedule(wait)
    if (jitter := options.get("jitter")) is not None:
        changes["jitter"] = check_jitter(Jitter(jitter) if isinstance(jitter, str) else jitter)  # type: ignore[arg-type]
    return changes


def _schedule(wait: Schedule | Seconds | Sequence[Seconds]) -> tuple[Schedule, Jitter]:
    """Return a schedule and the jitter that goes with it: seconds that a person wrote down are exact."""
    if isinstance(wait, Schedule):
        return check_schedule(wait), Jitter("none" if wait.shape == "fixed" else "full")
    if isinstance(wait, (list, tuple)):
        return _fixed(wait), Jitter("none")
    return _fixed([wait]), Jitter("none")  # type: ignore[list-item]


def _fixed(delays: Sequence[Seconds]) -> Schedule:
    return check_schedule(Schedule("fixed", delays=tuple(as_seconds("wait", delay) for delay in delays)))


def _covers(on: On, policy: Policy) -> Callable[[Exception, Failure], bool]:
    """Return the question whether an error may be tried again."""
    if isinstance(on, str):
        return _named(on, policy)
    kinds = on if isinstance(on, tuple) else (on,)
    if all(isinstance(kind, type) for kind in kinds):
        for kind in kinds:
            if not issubclass(kind, Exception):  # type: ignore[arg-type]
                raise UsageError(
                    f"on has {kind.__name__}, which is not an Exception: "
                    "cancellation and interrupts are never tried again"
                )
        # An attempt that our own limit cut off is covered too: that is what the limit is for.
        one: Any = kinds[0] if len(kinds) == 1 else kinds
        if not policy.governed and (policy.classes is None or not policy.classes.non_retryable):
            # The usual case, and the dearest: only what is permanent can be among what is never retried.
            return lambda error, failure: (
                (isinstance(error, one) or type(error) is AttemptTimeout)
                and not (failure.kind == "permanent" and _never(error, failure, policy))
            )
        return lambda error, failure: (
            (isinstance(error, one) or type(error) is AttemptTimeout) and not _never(error, failure, policy)
        )
    if isinstance(on, tuple) or not callable(on):
        raise UsageError(f"on is {on!r}; it takes exception types, a predicate, 'transient' or 'not-sent'")
    if colour_of(on) != "plain":
        raise UsageError("on is an async function; a predicate answers at once")
    return lambda error, failure: not _never(error, failure, policy) and bool(on(error))


def _never(error: Exception, failure: Failure, policy: Policy) -> bool:
    """Return whether an error is not tried again whatever `on` says (ADR 0005, 0036)."""
    return isinstance(error, UsageError) or forbids_retry(failure, policy)


def _named(on: str, policy: Policy) -> Callable[[Exception, Failure], bool]:
    """Return the question by the facts: what passes by itself, as the policy's classes see it."""
    if on not in ("transient", "not-sent"):
        raise UsageError(f"on is {on!r}; the names are 'transient', 'not-sent'")
    if policy.classes is None and policy.unmatched == "fail":
        if on == "transient":
            return lambda error, failure: failure.passing
        return lambda error, failure: failure.passing and failure.sent == "no"
    return lambda error, failure: (
        verdict(failure, policy, "idempotent") == "RETRYABLE"
        and (on == "transient" or failure.sent == "no")
        and not isinstance(error, UsageError)
    )


def _hook(option: str, hook: Any, colour: str) -> Any:
    if hook is None:
        return None
    if not callable(hook):
        raise UsageError(f"{option} is {hook!r}; it takes a function")
    if colour_of(hook) == "coroutine" and (option == "until" or colour == "plain"):
        raise UsageError(f"{option} is an async function, and nothing here can await it")
    return hook


def _witness(options: Options, name: str, policy: Policy) -> Witness | None:
    """Return who writes down what happens, where somebody wants to know; else nothing of it is loaded."""
    sink, category = options.get("on_event"), options.get("category")
    if sink is None and category is None:
        return None
    from oncemore.audit.recorder import Outlet, Recorder, category_of, check_category

    code = category_of(options.get("name") or name) if category is None else check_category(category)
    if _hook("on_event", sink, "plain") is None:
        return None
    return Recorder(Outlet(sink), code, options.get("name") or name, policy=policy_name(policy))  # type: ignore[arg-type]


def _breaker(options: Options) -> Gate | None:
    """Return the breaker; a name goes by the rules of the policy, where that has any."""
    given = options.get("breaker")
    if given is None:
        return None
    from oncemore.limits.declarations import gate_of

    rules = None
    if isinstance(given, str) and _on_disk(policy := options.get("policy")):
        from oncemore.policy.files.loader import breaker_rules

        rules = breaker_rules(policy)  # type: ignore[arg-type]
    return gate_of(given, rules)


def _rate(options: Options) -> Meter | None:
    """Return the rate: as given, or that of the policy."""
    given = options.get("rate")
    return told_rate(options.get("policy")) if given is None else _meter(given)


def _meter(given: Meter | str) -> Meter:
    from oncemore.limits.declarations import meter_of

    return meter_of(given)


def told_rate(policy: object) -> Meter | None:
    """Return a rate as the file of a policy says it, if it does; every function has its own."""
    told = _section(policy, "rate_limit")
    if told is None:
        return None
    from oncemore.limits.rate_rules import Pulse, check_pulse
    from oncemore.limits.shared_rate import Meter

    return Meter(check_pulse(Pulse(told.get("calls", 1), told.get("period_s", 1.0), told.get("burst", 1))))


def _budget(options: Options) -> Budget | None:
    return budget_of(options.get("budget"), options.get("policy"))


def budget_of(given: Any, policy: object) -> Budget | None:
    """Return the budget: as given, or that of the policy, which all in this process share who name it.

    One that the policy says is shared is that of all who share a store, by its name or the policy's.
    """
    told = None if given is not None else _section(policy, "retry_budget")
    if given is None and told is None:
        return None
    from oncemore.limits.budget import Budget

    if given is not None and not isinstance(given, Budget):
        raise UsageError(f"budget is {given!r}; it takes oncemore.Budget(...)")
    if told is None:
        return given
    key = (str(policy), *sorted(told.items()))
    if key not in _budgets:
        capacity = told.get("capacity", 10.0)
        earns, at_empty = told.get("per_success", min(0.1, capacity)), told.get("at_empty", "fail")
        if told.get("shared", False):
            from oncemore.limits.declarations import Budget as Shared

            name = told.get("name") or policy_of({"on": "transient", "policy": policy}).name  # type: ignore[typeddict-item]
            _budgets[key] = Shared(capacity, earns, at_empty=at_empty, name=name, shared=True)
        else:
            _budgets[key] = Budget(capacity, earns, at_empty=at_empty)
    return _budgets[key]


_budgets: dict[tuple[object, ...], Budget] = {}


def _section(policy: object, name: str) -> Any:
    if not _on_disk(policy):
        return None
    from oncemore.policy.files.loader import section_of

    return section_of(policy, name)  # type: ignore[arg-type]


def _deadline(deadline: datetime | float | None) -> float | None:
    if deadline is None:
        return None
    if isinstance(deadline, (int, float)):
        return as_seconds("deadline", deadline)
    if getattr(deadline, "tzinfo", None) is None:
        raise UsageError(f"deadline is {deadline!r}; it takes an aware datetime, or POSIX seconds")
    return float(deadline.timestamp())


def _seed(seed: str | int | None) -> str | None:
    if seed is None or isinstance(seed, str):
        return seed
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed is {seed!r}; it takes a string or a whole number")
    return str(seed)
