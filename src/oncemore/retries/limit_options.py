"""The limits of a retried function: breaker, rate and retry budget, from its options or its policy file."""

from __future__ import annotations

from oncemore.errors import UsageError
from oncemore.policy.policy import STANDARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.limits.breaker import BreakerCore
    from oncemore.limits.budget import TokenBucket
    from oncemore.limits.shared_rate import RateLimiter
    from oncemore.retries.options import RetryOptions


#: Policies that need no file.
POLICIES = {STANDARD.name: STANDARD}


def is_file_policy(policy: object) -> bool:
    """Whether a policy option is the name or the path of a policy file."""
    return (isinstance(policy, str) and policy not in POLICIES) or hasattr(policy, "__fspath__")


def resolve_breaker_option(options: RetryOptions) -> BreakerCore | None:
    """Return the breaker of the options; for a name, with the rules of the policy file, if it has any."""
    option = options.get("breaker")
    if option is None:
        return None
    from oncemore.limits.declarations import resolve_breaker

    rules = None
    if isinstance(option, str) and is_file_policy(policy := options.get("policy")):
        from oncemore.policy.files.loader import load_breaker_rules

        rules = load_breaker_rules(policy)  # type: ignore[arg-type]
    return resolve_breaker(option, rules)


def resolve_rate_option(options: RetryOptions) -> RateLimiter | None:
    """Return the rate limiter of the options, or else that of the policy file."""
    option = options.get("rate")
    return policy_rate(options.get("policy")) if option is None else _make_rate_limiter(option)


def _make_rate_limiter(option: RateLimiter | str) -> RateLimiter:
    from oncemore.limits.declarations import resolve_rate

    return resolve_rate(option)


def policy_rate(policy: object) -> RateLimiter | None:
    """Return a new rate limiter as a policy file defines it, or None; each function has its own."""
    section = _policy_section(policy, "rate_limit")
    if section is None:
        return None
    from oncemore.limits.rate_rules import RateLimit, check_rate
    from oncemore.limits.shared_rate import RateLimiter

    return RateLimiter(
        check_rate(RateLimit(section.get("calls", 1), section.get("period_s", 1.0), section.get("burst", 1)))
    )


def resolve_budget(option: Any, policy: object) -> TokenBucket | None:
    """Return the budget of the option, or else that of the policy file.

    All functions with that policy in this process share its budget. If the file says `shared`, the budget
    is in the store, under its own name or the name of the policy.
    """
    section = None if option is not None else _policy_section(policy, "retry_budget")
    if option is None and section is None:
        return None
    from oncemore.limits.budget import TokenBucket

    if option is not None and not isinstance(option, TokenBucket):
        raise UsageError(f"budget is {option!r}; it takes oncemore.Budget(...)")
    if section is None:
        return option
    # The numbers are part of the key: a changed file gets a new budget.
    key = (str(policy), *sorted(section.items()))
    if key not in _budgets:
        capacity = section.get("capacity", 10.0)
        per_success = section.get("per_success", min(0.1, capacity))
        at_empty = section.get("at_empty", "fail")
        if section.get("shared", False):
            from oncemore.limits.declarations import Budget as SharedBudget
            from oncemore.policy.files.loader import load_policy_no_warnings

            name = section.get("name") or load_policy_no_warnings(policy).name  # type: ignore[arg-type]
            _budgets[key] = SharedBudget(capacity, per_success, at_empty=at_empty, name=name, shared=True)
        else:
            _budgets[key] = TokenBucket(capacity, per_success, at_empty=at_empty)
    return _budgets[key]


_budgets: dict[tuple[object, ...], TokenBucket] = {}


def _policy_section(policy: object, name: str) -> Any:
    if not is_file_policy(policy):
        return None
    from oncemore.policy.files.loader import load_section

    return load_section(policy, name)  # type: ignore[arg-type]
