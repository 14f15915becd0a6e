"""A policy says all of it: how often, how long, how spread, and what to do with the unknown.

It is a value that is checked when it is made, so that nothing later has to ask whether it makes
sense; every error names the field and what is allowed. No policy is unbounded: attempts are a finite
number, delays are held at a finite cap. `but()` gives a changed copy, checked again.
"""

from __future__ import annotations

import math
from itertools import pairwise

from oncemore._values import Record, Value
from oncemore.classifiers.verdict import Classes, forbidden
from oncemore.errors import PolicyError
from oncemore.policy.backoff import FULL, NONE, PLANS, SPREADS, Jitter, Schedule, largest, planned
from oncemore.policy.canonical_json import digest, fragment
from oncemore.policy.tuning import Tuning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, Final, Literal

    from oncemore.limits.breaker_rules import Rules
    from oncemore.policy.canonical_json import Fragment, Plain

    Unmatched = Literal["retry", "fail"]
    Bounds = tuple[tuple[str, tuple[Any, ...]], ...]

MOST_ATTEMPTS = 1000
WARN_ATTEMPTS = 10
WARN_TOTAL_DELAY_S = 3600.0
DEFAULT_CAP_S = 30.0
#: The policies that escalation records name: after a permanent error, and when attempts or time run out.
ESCALATION = ("autonomy-matrix", "deadline-aware")
PER_RUN = "<sha256(run_id)>"
PER_KEY = "<sha256(idempotency_key)>"


class Policy(Record):
    """How a kind of work is retried.

    max_attempts  calls in all, the first included
    schedule      what delay is planned after each attempt
    jitter        how delays are spread
    jitter_seed   what draws are seeded with: a template that is resolved per run, or a literal
    max_delay_s   the cap: no delay is longer; a provider's wish beyond it is a deferral
    timeout_s     the limit of one attempt, if any
    within_s      the limit of the whole call with its waits, if any
    retry_cost    tokens that a retry takes from the retry budget, where there is one
    unmatched     what to do with a failure that no rule and no class knows
    classes       which classes of errors are retried and which never, where that is not left to the facts
    tuning        the knobs of carbon, price and deadline, if delays are tuned
    governed      whether the stricter rules of governed pipelines hold
    bounds        what its profile allows for single fields; a changed copy is held to them as well
    """

    __slots__ = (
        "bounds", "classes", "governed", "jitter", "jitter_seed", "max_attempts", "max_delay_s", "name",
        "retry_cost", "schedule", "timeout_s", "tuning", "unmatched", "version", "within_s",
    )  # fmt: skip
    bounds: Bounds
    classes: Classes | None
    governed: bool
    jitter: Jitter
    jitter_seed: str
    max_attempts: int
    max_delay_s: float
    name: str
    retry_cost: float
    schedule: Schedule
    timeout_s: float | None
    tuning: Tuning | None
    unmatched: Unmatched
    version: str
    within_s: float | None

    def __init__(
        self,
        name: str = "custom",
        version: str = "1",
        *,
        max_attempts: int = 3,
        schedule: Schedule = Schedule("exponential", 1.0),  # noqa: B008 - a frozen value
        jitter: Jitter = FULL,
        jitter_seed: str = PER_RUN,
        max_delay_s: float | None = None,
        timeout_s: float | None = None,
        within_s: float | None = None,
        retry_cost: float = 1.0,
        unmatched: Unmatched = "fail",
        classes: Classes | None = None,
        tuning: Tuning | None = None,
        governed: bool = False,
        bounds: Bounds = (),
    ) -> None:
        _check_count("max_attempts", max_attempts)
        check_schedule(schedule)
        check_jitter(jitter)
        check_seed(jitter_seed)
        cap = _cap(schedule, jitter) if max_delay_s is None else max_delay_s
        _check_range("max_delay_s", cap, 0.0)
        if schedule.base > cap:
            raise PolicyError(
                f"max_delay_s is {cap:g} but the first delay is {schedule.base:g}; raise the cap"
            )
        for field, value in (("timeout_s", timeout_s), ("within_s", within_s)):
            if value is not None:
                _check_positive(field, value)
        _check_range("retry_cost", retry_cost, 0.0)
        _check_member("unmatched", unmatched, ("retry", "fail"))
        if tuning is not None:
            _check_tuning(tuning)
        if classes is not None:
            _check_classes(classes)
        self.fill(
            bounds, classes, governed, jitter, jitter_seed, max_attempts, float(cap), name, retry_cost,
            schedule, timeout_s, tuning, unmatched, version, within_s,
        )  # fmt: skip
        broken = [f"{field} {text}" for field, text in broken_rules(self)]
        if broken:
            raise PolicyError("; ".join(broken))

    def but(self, **changes: object) -> Policy:
        """Return a copy with some fields changed, checked like a new one."""
        fields: dict[str, Any] = {**self.fields(), **changes}
        if "schedule" in changes and "max_delay_s" not in changes:
            fields["max_delay_s"] = None
        return Policy(**fields)

    def plain(self) -> dict[str, Plain]:
        """Return the policy as plain values, the form that is hashed and shown."""
        fields: dict[str, Any] = self.fields()
        for part, _ in _PARTS:
            if fields[part] is not None:
                fields[part] = fields[part]._asdict()
        if not self.bounds:  # a later field: without it a policy has the digest that it always had
            del fields["bounds"]
        return fields

    @property
    def digest(self) -> str:
        """The SHA-256 of the policy's canonical JSON, its name and version included."""
        return facts(self).digest

    @property
    def most_delay_s(self) -> float:
        """The longest that all delays of one call can take together, before tuning."""
        return sum(self.largest_delays())

    def largest_delays(self) -> list[float]:
        """Return the longest delay after each attempt that may be followed by another."""
        cap = self.max_delay_s
        return [largest(self.schedule, self.jitter, cap, n) for n in range(1, self.max_attempts)]

    def warnings(self) -> list[str]:
        """Say what is allowed here but unwise."""
        found = []
        total = self.most_delay_s
        if self.max_attempts > WARN_ATTEMPTS or total > WARN_TOTAL_DELAY_S:
            found.append(
                f"policy {self.name}: up to {self.max_attempts} calls and {total:g} s of waiting; "
                "each repeat may do the same work again"
            )
        if constant(self):
            found.append(
                f"policy {self.name}: the delay never grows and has no jitter, so that many callers "
                'strike together; give a growing schedule or jitter="full"'
            )
        if self.classes is not None and (
            both := set(self.classes.retryable) & set(self.classes.non_retryable)
        ):
            wins = self.classes.precedence.removesuffix("_first")
            found.append(f"policy {self.name}: {', '.join(sorted(both))} is in both lists; {wins} wins")
        return found


class StepSettings(Value):
    """What a policy file says about the durable steps that use it, besides the policy itself.

    after_failure   "raise", or "new_run": a new call of failed work begins a new run
    quarantines     whether work that is not tried again waits for a person (X-56)
    halts_pipeline  whether an error that is not retryable halts the step's pipeline (X-71)
    breaker         when calls to a provider are cut off
    escalation      the policies that escalation records name: after a permanent error, and when attempts or
                    time run out (GOV-10)
    on_version_change  what a finished run with another version or config means; None: by the effect
    priority        what workers do first
    repeats_once    whether a `once` step is tried again after an error that says that nothing happened
    lease           how long a run stays with a process that gives no sign of life, and how often it gives
                    one; None: as the engine has it
    """

    after_failure: str = "raise"
    quarantines: bool = False
    halts_pipeline: bool = False
    breaker: Rules | None = None
    escalation: tuple[str, str] = ESCALATION
    on_version_change: str | None = None
    priority: str = "P1"
    repeats_once: bool = True
    lease: tuple[float, float] | None = None


class Facts(Value):
    """What every proof says of its policy, written once."""

    digest: str
    named: Fragment
    thresholds: dict[str, Plain]
    written: Fragment
    formulas: dict[int, str]


#: By identity: to compare a policy with another, field by field, costs more than to decide.
_known: dict[int, tuple[Policy, Facts]] = {}
_MOST_KNOWN = 1024


def facts(policy: Policy) -> Facts:
    """Return what proofs say of a policy; remembered, because hashing is dearer than deciding."""
    known = _known.get(id(policy))
    if known is not None:  # the policy is kept beside its facts, so that its identity stays its own
        return known[1]
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    plain = policy.plain()
    bounds = {name: plain[name] for name in _BOUNDS}
    name: dict[str, Plain] = {"name": policy.name, "version": policy.version, "digest": digest(plain)}
    found = Facts(str(name["digest"]), fragment(name), bounds, fragment(bounds), {})
    _known[id(policy)] = policy, found
    return found


_BOUNDS = (
    "max_attempts", "max_delay_s", "within_s", "retry_cost", "schedule", "jitter", "jitter_seed", "tuning",
)  # fmt: skip


def policy_id(policy: Policy) -> dict[str, Plain]:
    """Return what a proof names a policy by: name, version and digest."""
    return {"name": policy.name, "version": policy.version, "digest": facts(policy).digest}


def policy_name(policy: Policy) -> str:
    """Return what runs name their policy by: `name@version:digest`, the digest in short."""
    return f"{policy.name}@{policy.version}:{facts(policy).digest[:12]}"


def restore_policy(fields: Mapping[str, Any]) -> Policy:
    """Return the policy that `Policy.plain()` described.

    It is not checked again: a run keeps the policy it began with, also where the rules for new policies have
    become stricter since. Fields that an older record lacks have their defaults.
    """
    unknown = fields.keys() - set(Policy.__slots__)
    if unknown:
        raise PolicyError(
            f"the recorded policy has {', '.join(sorted(unknown))}, which this oncemore does not know; "
            "a newer version wrote it, use that version here too"
        )
    found: dict[str, Any] = dict(fields)
    found["bounds"] = tuple((name, tuple(limits)) for name, limits in fields.get("bounds", ()))
    for name, kind in _PARTS:
        if found.get(name) is not None:
            part = found[name].items()
            given: dict[str, Any] = {key: tuple(one) if type(one) is list else one for key, one in part}
            found[name] = kind(**given)
    return STANDARD.replaced(**found)


_PARTS: Final = (("schedule", Schedule), ("jitter", Jitter), ("classes", Classes), ("tuning", Tuning))


def constant(policy: Policy) -> bool:
    """Whether several delays follow each other and are all the same (zero included)."""
    if policy.jitter.spread != "none" or policy.max_attempts < 3:
        return False
    return len(set(_planned_delays(policy))) == 1


def _cap(schedule: Schedule, jitter: Jitter) -> float:
    """Without a cap of its own a schedule is held at 30 s; a list of delays and its jitter never are."""
    if schedule.cap is not None:
        return schedule.cap
    longest = max(schedule.delays, default=0.0)
    if jitter.spread == "additive":
        longest += jitter.amount
    if jitter.spread == "proportional":
        longest *= 1 + jitter.amount
    return max(DEFAULT_CAP_S, longest)


def check_schedule(schedule: Schedule) -> Schedule:
    """Return a schedule whose numbers make sense, or say which one does not."""
    _check_member("schedule", schedule.shape, PLANS)
    _check_range("schedule.base", schedule.base, 0.0)
    _check_range("schedule.factor", schedule.factor, 1.0)
    _check_member("schedule.exponent", schedule.exponent, ("attempt", "attempt-1"))
    if schedule.shape == "fixed" and not schedule.delays:
        raise PolicyError("schedule.delays is empty; a fixed schedule needs at least one delay")
    for at, delay in enumerate(schedule.delays, 1):
        _check_range(f"schedule.delays, number {at},", delay, 0.0)
    if schedule.cap is not None:
        _check_range("schedule.cap", schedule.cap, 0.0)
    return schedule


def check_jitter(jitter: Jitter) -> Jitter:
    """Return a jitter whose amount fits its kind, or say what is allowed."""
    _check_member("jitter", jitter.spread, (*SPREADS, "decorrelated"))
    top = 1.0 if jitter.spread == "proportional" else math.inf
    _check_range("jitter.amount", jitter.amount, 0.0, top)
    return jitter


def check_seed(template: str) -> str | None:
    """Return a literal seed, or None for a template that is resolved for each run."""
    if template in (PER_RUN, PER_KEY):
        return None
    if not isinstance(template, str) or not template or template.startswith("<"):
        raise PolicyError(f"jitter_seed is {template!r}; it must be {PER_RUN}, {PER_KEY} or a literal")
    return template


def _check_tuning(tuning: Tuning) -> None:
    for field, value in zip(Tuning._fields, tuning, strict=True):
        if field != "deadline_bias":
            _check_range(f"tuning.{field}", value, 0.0)
    _check_positive("tuning.min_buffer_s", tuning.min_buffer_s)
    if tuning.carbon_high <= tuning.carbon_low:
        raise PolicyError("tuning.carbon_high must be above tuning.carbon_low")
    if tuning.max_stretch < 1.0:
        raise PolicyError(f"tuning.max_stretch is {tuning.max_stretch:g}; it must be 1 or more")


def _check_classes(classes: Classes) -> None:
    _check_member("classes.precedence", classes.precedence, ("non_retryable_first", "retryable_first"))
    never = forbidden(classes.retryable)
    if never:
        raise PolicyError(
            f"classes.retryable covers {', '.join(never)}, which may never be retried (CLASS-2)"
        )


def broken_rules(policy: Policy) -> Iterator[tuple[str, str]]:
    """Tell which rules a policy breaks: those of governed pipelines, and the bounds of its profile.

    Each with the field, and a text that says what it is, what is allowed and by which rule.
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


#: What a governed policy may have: calls, and the fraction of a delay that jitter must move it by at least.
GOVERNED_ATTEMPTS, GOVERNED_JITTER = WARN_ATTEMPTS, 0.1


def _broken_when_governed(policy: Policy) -> Iterator[tuple[str, str]]:
    spread, amount = policy.jitter
    if policy.timeout_s is None:
        yield "timeout_s", "is missing; a governed policy limits every attempt (TIME-1)"
    if policy.unmatched == "retry":
        yield "unmatched", "is 'retry'; a governed policy never repeats what no rule knows (X-5)"
    if policy.max_attempts > GOVERNED_ATTEMPTS:
        text = f"a governed policy allows 1 to {GOVERNED_ATTEMPTS} (BACKOFF-20)"
        yield "max_attempts", f"is {policy.max_attempts}; {text}"
    if not _grows(policy):
        delays = ", ".join(f"{delay:g}" for delay in _planned_delays(policy)[:4])
        yield "schedule", f"plans {delays} s; the delays of a governed policy grow up to the cap (BACKOFF-3)"
    if spread == "none":
        yield "jitter", "is none; a governed policy spreads its delays, for example full (BACKOFF-18)"
    elif spread == "proportional" and amount < GOVERNED_JITTER:
        yield (
            "jitter_factor",
            f"is {amount:g}; a governed policy allows {GOVERNED_JITTER:g} to 1 (BACKOFF-18)",
        )
    elif spread == "additive" and amount < (least := GOVERNED_JITTER * planned(policy.schedule, 1)):
        yield "jitter_span_s", f"is {amount:g}; a governed policy allows {least:g} or more (BACKOFF-18)"


def bounded_value(policy: Policy, field: str) -> Any:
    """Return what a policy has for a field of its file; None where the field means nothing in it."""
    schedule, (spread, amount) = policy.schedule, policy.jitter
    if field in Policy.__slots__ and field != "jitter":
        return getattr(policy, field)
    return {
        "base_delay_s": schedule.delays[0] if schedule.shape == "fixed" else schedule.base,
        "factor": schedule.factor if schedule.shape == "exponential" else None,
        "jitter": spread,
        "jitter_span_s": amount if spread == "additive" else None,
        "jitter_factor": amount if spread == "proportional" else None,
    }[field]


def _planned_delays(policy: Policy) -> list[float]:
    return [min(policy.max_delay_s, planned(policy.schedule, n)) for n in range(1, policy.max_attempts)]


def _grows(policy: Policy) -> bool:
    """Whether each planned delay is longer than the one before, until they have reached the longest."""
    delays = _planned_delays(policy)
    if not delays:
        return True
    if len(delays) > 1 and delays[0] == delays[-1]:
        return False
    return delays[0] > 0 and all(a < b or a == b == delays[-1] for a, b in pairwise(delays))


def _check_count(field: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= MOST_ATTEMPTS:
        raise PolicyError(f"{field} is {value!r}; it must be a whole number from 1 to {MOST_ATTEMPTS}")


def _check_range(field: str, value: object, low: float, high: float = math.inf) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not low <= value <= high
        or value == math.inf
    ):
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


#: What `retry` does when no policy is named (G-24): full jitter under ceilings of 1 s, then 2 s.
STANDARD: Final = Policy("standard")

__all__ = ["FULL", "NONE", "STANDARD", "Policy", "check_jitter", "check_schedule"]
