"""The retry policy: a frozen value that is checked when it is created.

No policy is unbounded: attempts are a finite number and every delay is held at a finite cap.
`Policy.replace()` returns a changed copy, which is checked again. `StepSettings` holds the settings
of a policy file for durable steps that are not part of the policy.
"""

from __future__ import annotations

from oncemore._values import FrozenRecord, Value
from oncemore.errors import PolicyError
from oncemore.policy.backoff import FULL_JITTER, NO_JITTER, Jitter, Schedule, largest_delay
from oncemore.policy.canonical_json import canonical_digest, encode_fragment
from oncemore.policy.policy_checks import (
    DEFAULT_CRASHES,
    MAX_ATTEMPTS,
    PER_KEY,
    PER_RUN,
    broken_rules,
    check_fields,
    check_jitter,
    check_schedule,
    check_seed,
    has_constant_delay,
)
from oncemore.policy.tuning import Tuning
from oncemore.policy.verdict import ErrorClasses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Final, Literal

    from oncemore.limits.breaker_rules import BreakerRules
    from oncemore.policy.canonical_json import CanonicalFragment, Plain
    from oncemore.telemetry.autonomy_rules import StepAutonomy

    Unmatched = Literal["retry", "fail"]
    Bounds = tuple[tuple[str, tuple[Any, ...]], ...]

#: A policy beyond these numbers is allowed, with a warning.
WARN_ATTEMPTS = 10
WARN_TOTAL_DELAY_S = 3600.0
#: The policies named in escalation records: after a permanent error, and when attempts or time run out.
ESCALATION = ("autonomy-matrix", "deadline-aware")


class Policy(FrozenRecord):
    """How often and after which delays a kind of work is retried.

    max_attempts  number of calls that may fail, the first included
    max_crashes   durable steps: number of attempts that may be lost with their process (a crash, a kill, a
                  lost lease); None: a lost attempt counts in max_attempts. "default": 20, and None in a
                  governed policy
    schedule      the planned delay after each attempt
    jitter        how delays are spread
    jitter_seed   seed of the jitter: a template that is resolved per run, or a literal
    max_delay_s   the cap: no delay is longer; a longer Retry-After defers the run
    timeout_s     time limit of one attempt; None for no limit
    total_timeout_s  time limit of the whole call with its waits; None for no limit
    retry_cost    tokens that one retry takes from the retry budget, if there is a budget
    unmatched     "retry" or "fail": the verdict on a failure that matches no rule and no class
    classes       error classes that are retried or never retried; None leaves it to the classifiers
    tuning        settings for carbon, price and deadline; None if delays are not tuned
    governed      whether the stricter rules of governed pipelines apply
    bounds        allowed ranges of single fields, from the profile; a changed copy must keep them too
    """

    __slots__ = (
        "bounds",
        "classes",
        "governed",
        "jitter",
        "jitter_seed",
        "max_attempts",
        "max_crashes",
        "max_delay_s",
        "name",
        "retry_cost",
        "schedule",
        "timeout_s",
        "total_timeout_s",
        "tuning",
        "unmatched",
        "version",
    )  # fmt: skip
    bounds: Bounds
    classes: ErrorClasses | None
    governed: bool
    jitter: Jitter
    jitter_seed: str
    max_attempts: int
    max_crashes: int | None
    max_delay_s: float
    name: str
    retry_cost: float
    schedule: Schedule
    timeout_s: float | None
    tuning: Tuning | None
    unmatched: Unmatched
    version: str
    total_timeout_s: float | None

    def __init__(
        self,
        name: str = "custom",
        version: str = "1",
        *,
        max_attempts: int = 3,
        max_crashes: int | Literal["default"] | None = "default",
        schedule: Schedule = Schedule("exponential", 1.0),  # noqa: B008 - a frozen value
        jitter: Jitter = FULL_JITTER,
        jitter_seed: str = PER_RUN,
        max_delay_s: float | None = None,
        timeout_s: float | None = None,
        total_timeout_s: float | None = None,
        retry_cost: float = 1.0,
        unmatched: Unmatched = "fail",
        classes: ErrorClasses | None = None,
        tuning: Tuning | None = None,
        governed: bool = False,
        bounds: Bounds = (),
    ) -> None:
        fields: dict[str, Any] = {
            "bounds": bounds,
            "classes": classes,
            "governed": governed,
            "jitter": jitter,
            "jitter_seed": jitter_seed,
            "max_attempts": max_attempts,
            "max_crashes": _default_crashes(governed) if max_crashes == "default" else max_crashes,
            "max_delay_s": max_delay_s,
            "name": name,
            "retry_cost": retry_cost,
            "schedule": schedule,
            "timeout_s": timeout_s,
            "tuning": tuning,
            "unmatched": unmatched,
            "version": version,
            "total_timeout_s": total_timeout_s,
        }
        fields["max_delay_s"] = check_fields(fields)
        self.set_fields(**fields)
        # These rules compare several fields with each other, so they read the finished policy.
        broken = [f"{field} {text}" for field, text in broken_rules(self)]
        if broken:
            raise PolicyError("; ".join(broken))

    def replace(self, **changes: object) -> Policy:
        """Return a copy with some fields changed; it is checked like a new policy."""
        fields: dict[str, Any] = {**self.field_values(), **changes}
        # The old cap may come from the old schedule; a new schedule brings its own.
        if "schedule" in changes and "max_delay_s" not in changes:
            fields["max_delay_s"] = None
        return Policy(**fields)

    def to_dict(self) -> dict[str, Plain]:
        """Return the policy as plain values: the form that is hashed and shown."""
        fields: dict[str, Any] = self.field_values()
        # The parts are tuples; their digest must not depend on the order of their fields.
        for part, _ in _PARTS:
            if fields[part] is not None:
                fields[part] = fields[part]._asdict()
        # Both were added later: without them, policies keep the digest that older logs recorded.
        if not self.bounds:
            del fields["bounds"]
        if self.max_crashes is None:
            del fields["max_crashes"]
        return fields

    @property
    def digest(self) -> str:
        """SHA-256 of the policy's canonical JSON, with its name and version."""
        return policy_facts(self).digest

    @property
    def max_total_delay_s(self) -> float:
        """Longest sum of all delays of one call, before tuning."""
        return sum(self.max_delays())

    def max_delays(self) -> list[float]:
        """Return the longest possible delay after each attempt but the last."""
        cap = self.max_delay_s
        return [largest_delay(self.schedule, self.jitter, cap, n) for n in range(1, self.max_attempts)]

    def warnings(self) -> list[str]:
        """Return a text for each setting that is allowed but unwise."""
        warnings = []
        total = self.max_total_delay_s
        if self.max_attempts > WARN_ATTEMPTS or total > WARN_TOTAL_DELAY_S:
            warnings.append(
                f"policy {self.name}: up to {self.max_attempts} calls and {total:g} s of waiting; "
                "each repeat may do the same work again"
            )
        if has_constant_delay(self):
            warnings.append(
                f"policy {self.name}: the delay never grows and has no jitter, so many callers "
                'retry at the same moment; give a growing schedule or jitter="full"'
            )
        if self.classes is not None and (
            both := set(self.classes.retryable) & set(self.classes.non_retryable)
        ):
            winner = self.classes.precedence.removesuffix("_first")
            warnings.append(f"policy {self.name}: {', '.join(sorted(both))} is in both lists; {winner} wins")
        return warnings


def _default_crashes(governed: bool) -> int | None:
    """Return the crash limit of a policy that gives none; the documents of governed policies have none."""
    return None if governed else DEFAULT_CRASHES


class StepSettings(Value):
    """Settings of a policy file for the durable steps that use it.

    after_failure   "new_run": a new top-level call of failed work starts a new run; or "raise", in governed
                    files unless they say otherwise
    quarantines     whether work that is not retried is quarantined (X-56)
    halts_pipeline  whether a non-retryable error halts the step's pipeline (X-71)
    breaker         rules of the provider's circuit breaker; None for no breaker
    escalation      the policies named in escalation records: after a permanent error, and when attempts or
                    time run out (GOV-10)
    on_version_change  "fail", "new" or "reuse" for a finished run with another version or config; None: by
                    the effect
    priority        priority of the work for workers: P0, P1 or P2
    repeats_once    whether a `once` step is retried after an error that guarantees that nothing happened
    lease           lease time and renewal interval in seconds; None: the engine's own settings
    governed_profile  the `Profile` of a governed file, whose version a store remembers; else None
    autonomy        the autonomy matrix of the profile; None if it has none
    """

    after_failure: str = "new_run"
    quarantines: bool = False
    halts_pipeline: bool = False
    breaker: BreakerRules | None = None
    escalation: tuple[str, str] = ESCALATION
    on_version_change: str | None = None
    priority: str = "P1"
    repeats_once: bool = True
    lease: tuple[float, float] | None = None
    governed_profile: object = None
    autonomy: StepAutonomy | None = None


class PolicyFacts(Value):
    """Parts of a proof that depend on the policy only, encoded once per policy."""

    digest: str
    name_json: CanonicalFragment
    thresholds: dict[str, Plain]
    thresholds_json: CanonicalFragment
    formulas: dict[int, str]


#: Keyed by identity: comparing two policies field by field costs more than a decision.
_facts_cache: dict[int, tuple[Policy, PolicyFacts]] = {}
_MAX_CACHED_FACTS = 1024


def policy_facts(policy: Policy) -> PolicyFacts:
    """Return a policy's parts of a proof; cached, because hashing costs more than deciding."""
    cached = _facts_cache.get(id(policy))
    # The cache holds the policy as well: otherwise a new policy could get the id of a collected one.
    if cached is not None:
        return cached[1]
    if len(_facts_cache) >= _MAX_CACHED_FACTS:
        _facts_cache.clear()
    fields = policy.to_dict()
    thresholds = {name: fields[name] for name in _THRESHOLD_FIELDS}
    identity: dict[str, Plain] = {
        "name": policy.name,
        "version": policy.version,
        "digest": canonical_digest(fields),
    }
    facts = PolicyFacts(
        str(identity["digest"]), encode_fragment(identity), thresholds, encode_fragment(thresholds), {}
    )
    _facts_cache[id(policy)] = policy, facts
    return facts


_THRESHOLD_FIELDS = (
    "max_attempts",
    "max_delay_s",
    "total_timeout_s",
    "retry_cost",
    "schedule",
    "jitter",
    "jitter_seed",
    "tuning",
)


def policy_id(policy: Policy) -> dict[str, Plain]:
    """Return the name, version and digest that identify a policy in a proof."""
    return {"name": policy.name, "version": policy.version, "digest": policy_facts(policy).digest}


def policy_name(policy: Policy) -> str:
    """Return `name@version:digest` with a short digest, as runs record their policy."""
    return f"{policy.name}@{policy.version}:{policy_facts(policy).digest[:12]}"


def restore_policy(fields: Mapping[str, Any]) -> Policy:
    """Return the policy that `Policy.to_dict()` described.

    The fields are not checked: a run keeps the policy it started with, even if the rules for new policies
    have become stricter since. Fields missing from an older record get their defaults.
    """
    unknown = fields.keys() - set(Policy.__slots__)
    if unknown:
        raise PolicyError(
            f"the recorded policy has {', '.join(sorted(unknown))}, which this oncemore does not know; "
            "a newer version wrote it, use that version here too"
        )
    values: dict[str, Any] = dict(fields)
    # Before `max_crashes` existed, a lost attempt counted as an attempt.
    values.setdefault("max_crashes", None)
    values["bounds"] = tuple((name, tuple(limits)) for name, limits in fields.get("bounds", ()))
    # JSON has turned tuples into lists; the values of a policy must stay hashable.
    for name, kind in _PARTS:
        if values.get(name) is not None:
            part = values[name].items()
            arguments: dict[str, Any] = {
                key: tuple(item) if type(item) is list else item for key, item in part
            }
            values[name] = kind(**arguments)
    return STANDARD.copy_with(**values)


_PARTS: Final = (("schedule", Schedule), ("jitter", Jitter), ("classes", ErrorClasses), ("tuning", Tuning))


#: The policy of `retry` when none is named (G-24): full jitter under ceilings of 1 s, then 2 s.
STANDARD: Final = Policy("standard")

__all__ = [
    "FULL_JITTER",
    "MAX_ATTEMPTS",
    "NO_JITTER",
    "PER_KEY",
    "PER_RUN",
    "STANDARD",
    "Policy",
    "check_jitter",
    "check_schedule",
    "check_seed",
]
