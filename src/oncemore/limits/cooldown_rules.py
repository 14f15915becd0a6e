"""COOLDOWN: a resource that failed is left alone for a while, and one that is done is not fetched again.

A *resource* is what somebody else gives us: a data product, a page, a device. Its record says what there is
of it (scientific state) and how the last execution ended (operational state); the two never say the same
thing twice. Before anybody is asked, in this order:

    it is VALID                             SKIPPED_DUPLICATE
    a person has to look at it first        SKIPPED_QUARANTINED
    it failed in a way that does not pass   SKIPPED_TERMINAL
    now < next_eligible_attempt_at          SKIPPED_BACKOFF
    else                                    it is fetched

When an execution ends, whatever came of it, it is counted once, and a passing failure sets the time before
which nobody comes back: base * multiplier ** (n - 1), held at the cap, where n is the count; or what the
other side asked for, if that is later.
"""

from __future__ import annotations

from oncemore._values import Record, Value
from oncemore.errors import UsageError
from oncemore.policy.backoff import Schedule, planned
from oncemore.policy.canonical_json import normalize_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Final

ACQUISITION: Final = ("STUB", "ACQUIRED", "FAILED")
VALIDATION: Final = ("UNVALIDATED", "VALID", "QUARANTINED")
OUTCOMES: Final = ("SUCCESS", "RETRYABLE_FAILURE", "TERMINAL_FAILURE", "QUARANTINE")
SKIPS: Final = ("SKIPPED_DUPLICATE", "SKIPPED_QUARANTINED", "SKIPPED_TERMINAL", "SKIPPED_BACKOFF")
#: How an outcome holds a resource until a person releases it.
HOLDS: Final = {"QUARANTINE": "SKIPPED_QUARANTINED", "TERMINAL_FAILURE": "SKIPPED_TERMINAL"}
#: What others may call a value (X-17).
ALIASES: Final = {"VALIDATED": "VALID"}
LONGEST_ID = 200
LONGEST_S: Final = 86_400.0 * 366 * 100


class Rest(Value):
    """How long something is left alone after failures: a capped exponential without jitter."""

    base_s: float = 300.0
    multiplier: float = 2.0
    cap_s: float = 86_400.0

    def delay_s(self, failures: int) -> float:
        """Return the cooldown after this many failures: base * multiplier ** (failures - 1), capped."""
        if failures < 1:
            raise UsageError(f"failures is {failures!r}; it must be 1 or more")
        return min(self.cap_s, planned(Schedule("exponential", self.base_s, self.multiplier), failures))


class Resource(Value):
    """The record of a resource (COOL-2): what there is of it, and how asking for it went.

    state                        READY, COOLING, HELD for a person, or DONE: follows from the others
    acquisition_status           STUB, ACQUIRED or FAILED: whether its bytes are there
    validation_status            UNVALIDATED, VALID or QUARANTINED
    attempt_count_total          executions that asked for it, whatever came of them
    last_attempt_at              when the last of them ended, in POSIX seconds; 0 before the first
    last_attempt_outcome         SUCCESS, RETRYABLE_FAILURE, TERMINAL_FAILURE or QUARANTINE; empty before that
    last_error_fingerprint       equal for equal faults
    next_eligible_attempt_at     before this nobody asks for it; 0 if nothing stands against it
    last_successful_fingerprint  of what was fetched and found valid
    provider, step, run          whom the last execution asked, and which run it was
    attempt                      the number of that run's last attempt: nothing is counted twice
    last_error_class             what the last failure is counted as
    released_at                  when a person let a held one go; 0 if nobody has since its last attempt
    """

    state: str = "READY"
    resource: str = ""
    acquisition_status: str = "STUB"
    validation_status: str = "UNVALIDATED"
    attempt_count_total: int = 0
    last_attempt_at: float = 0.0
    last_attempt_outcome: str = ""
    last_error_fingerprint: str = ""
    next_eligible_attempt_at: float = 0.0
    last_successful_fingerprint: str = ""
    provider: str = ""
    step: str = ""
    run: str = ""
    attempt: int = 0
    last_error_class: str = ""
    released_at: float = 0.0


class Attempted(Value):
    """How an execution that asked for a resource ended.

    retry_after  seconds that the other side asked to be left alone for, if it did
    content      the fingerprint of what was fetched
    kept         whether bytes that wait for review are kept
    """

    outcome: str
    now: float
    provider: str = ""
    step: str = ""
    run: str = ""
    attempt: int = 0
    retry_after: float = 0.0
    error_class: str = ""
    error_fingerprint: str = ""
    content: str = ""
    kept: bool = False


# The checks -----------------------------------------------------------------------------------------


def skip(resource: Resource | None, now: float) -> str:
    """Return why a resource is not asked for now, as one of `SKIPS`; empty if it may be."""
    if resource is None:
        return ""
    if resource.validation_status == "VALID":
        return "SKIPPED_DUPLICATE"
    if held(resource):
        return HOLDS[resource.last_attempt_outcome]
    return "SKIPPED_BACKOFF" if now < resource.next_eligible_attempt_at else ""


def held(resource: Resource) -> bool:
    """Whether a resource waits for a person."""
    return resource.last_attempt_outcome in HOLDS and not resource.released_at


def standing(resource: Resource) -> str:
    """Return the state that follows from all other fields."""
    if resource.validation_status == "VALID":
        return "DONE"
    if held(resource):
        return "HELD"
    return "COOLING" if resource.next_eligible_attempt_at else "READY"


# What becomes of a record ---------------------------------------------------------------------------


def ended(before: Resource | None, resource: str, made: Attempted, rest: Rest) -> Resource:
    """Return the record after an execution: counted once, and left alone if it failed in passing."""
    was = before or Resource(resource=resource)
    count = was.attempt_count_total + 1
    failed = made.outcome != "SUCCESS"
    after = was._replace(
        resource=resource, attempt_count_total=count, last_attempt_at=made.now, provider=made.provider,
        step=made.step, run=made.run, attempt=made.attempt, last_attempt_outcome=made.outcome,
        last_error_fingerprint=made.error_fingerprint if failed else was.last_error_fingerprint,
        last_error_class=made.error_class if failed else was.last_error_class,
        next_eligible_attempt_at=0.0, released_at=0.0, **_SCIENCE[made.outcome](made),
    )  # fmt: skip
    if made.outcome == "RETRYABLE_FAILURE":
        wishes = (rest.delay_s(count), made.retry_after)
        after = after._replace(
            next_eligible_attempt_at=max(made.now + max(wishes), was.next_eligible_attempt_at)
        )
    return checked(after._replace(state=standing(after)))


#: What an outcome says about the resource itself: what there is of it, never whether to try again.
_SCIENCE: Final[dict[str, Callable[[Attempted], dict[str, Any]]]] = {
    "SUCCESS": lambda made: {
        "acquisition_status": "ACQUIRED",
        "validation_status": "VALID",
        "last_successful_fingerprint": made.content,
    },
    "RETRYABLE_FAILURE": lambda made: {"acquisition_status": "FAILED"},
    "TERMINAL_FAILURE": lambda made: {"acquisition_status": "FAILED"},
    "QUARANTINE": lambda made: {
        "acquisition_status": "ACQUIRED" if made.kept else "FAILED",
        **({"validation_status": "QUARANTINED"} if made.kept else {}),
    },
}


def released(before: Resource, now: float) -> Resource:
    """Return the record after a person let it go: the next execution asks for it. What was counted stays."""
    validity = "UNVALIDATED" if before.validation_status == "QUARANTINED" else before.validation_status
    after = before._replace(next_eligible_attempt_at=0.0, released_at=now, validation_status=validity)
    return after._replace(state=standing(after))


# Records that come from elsewhere -------------------------------------------------------------------


def checked(resource: Resource) -> Resource:
    """Return a record whose fields make sense; name the first that does not, and what it takes."""
    for field, allowed in (
        ("acquisition_status", ACQUISITION),
        ("validation_status", VALIDATION),
        ("last_attempt_outcome", (*OUTCOMES, "")),
    ):
        value = getattr(resource, field)
        if value not in allowed:
            names = ", ".join(filter(None, allowed))
            raise UsageError(f"{field} is {value!r}; it must be one of {names}")
    if type(resource.attempt_count_total) is not int or resource.attempt_count_total < 0:
        raise UsageError(
            f"attempt_count_total is {resource.attempt_count_total!r}; it must be a whole number from 0"
        )
    for field in ("last_attempt_at", "next_eligible_attempt_at"):
        value = getattr(resource, field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_S * 10:
            raise UsageError(f"{field} is {value!r}; it must be POSIX seconds, or 0 for none")
    for field in ("last_error_fingerprint", "last_successful_fingerprint", "provider"):
        if not isinstance(getattr(resource, field), str):
            raise UsageError(f"{field} is {getattr(resource, field)!r}; it must be a text")
    name_of(resource.resource)
    return resource


def record_of(resource: str, fields: Mapping[str, Any]) -> Resource:
    """Return a record that was kept elsewhere; unknown fields and other values than ours are refused.

    `VALIDATED` is read as `VALID`, and a field that is None as one that was left out (X-17).
    """
    unknown = sorted(fields.keys() - _TAKEN)
    if unknown:
        raise UsageError(
            f"{unknown[0]} is no field of a resource; the fields are {', '.join(sorted(_TAKEN))}"
        )
    given: dict[str, Any] = {name: _ours(value) for name, value in fields.items() if value is not None}
    made = checked(Resource(**{**given, "resource": resource}))
    return made._replace(state=standing(made))


def _ours(value: Any) -> Any:
    return ALIASES.get(value, value) if isinstance(value, str) else value


_TAKEN: Final = frozenset(Resource._fields[2:11])


def name_of(resource: object) -> str:
    """Return what a resource is known by; refuse what names nothing."""
    if not isinstance(resource, str) or not 1 <= len(resource) <= LONGEST_ID or not resource.isprintable():
        raise UsageError(f"resource is {resource!r:.80}; it takes a text of 1 to {LONGEST_ID} characters")
    return normalize_name(resource)


# What a user says -----------------------------------------------------------------------------------


class Cooldown(Record):
    """When a step leaves what it asks for alone: `step(..., cooldown=Cooldown(resource=...))`.

    resource    what is asked for: a text, or a function of the step's arguments; nothing ("" or None) means
                that this call is about no resource
    base_s      how long it is left alone after the first failure; 300 unless the policy says otherwise
    multiplier  how much longer after each further one; 2 unless …
    cap_s       the longest; a day unless …
    overrides   what differs for single providers: {"eso": {"base_s": 900}}
    """

    __slots__ = ("base_s", "cap_s", "multiplier", "overrides", "resource")
    base_s: float | None
    cap_s: float | None
    multiplier: float | None
    overrides: Mapping[str, Mapping[str, float]]
    resource: str | Callable[..., str | None]

    def __init__(
        self,
        resource: str | Callable[..., str | None],
        *,
        base_s: float | None = None,
        multiplier: float | None = None,
        cap_s: float | None = None,
        overrides: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        if not callable(resource):
            name_of(resource)
        own = {"base_s": base_s, "multiplier": multiplier, "cap_s": cap_s}
        _numbers("", {name: value for name, value in own.items() if value is not None})
        kept = {}
        for provider, told in dict(overrides or {}).items():
            if not isinstance(provider, str) or not provider or not hasattr(told, "items"):
                raise UsageError(
                    f"overrides is {overrides!r:.80}; it takes numbers by provider: {{'a': {{'base_s': 9}}}}"
                )
            kept[normalize_name(provider)] = dict(_numbers(f"overrides of {provider}: ", dict(told)))
        self.fill(base_s, cap_s, multiplier, kept, resource)

    def rest(self, provider: str = "", by_policy: Mapping[str, Rest] | None = None) -> Rest:
        """Return the numbers for a provider: its own, else those of everybody, else the policy's."""
        known = by_policy or {}
        ground = known.get(provider, known.get("", Rest()))
        own = {"base_s": self.base_s, "multiplier": self.multiplier, "cap_s": self.cap_s}
        said = {name: float(value) for name, value in own.items() if value is not None}
        return ground._replace(**{**said, **self.overrides.get(provider, {})})

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return what a call asks for; empty if nothing."""
        found = self.resource(*args, **kwargs) if callable(self.resource) else self.resource
        return "" if found is None or found == "" else name_of(str(found))

    def __hash__(self) -> int:
        return hash((self.base_s, self.cap_s, self.multiplier, self.resource))


def _numbers(lead: str, told: dict[str, Any]) -> dict[str, float]:
    for name, value in told.items():
        if name not in Rest._fields:
            raise UsageError(f"{lead}{name} is no number of a cooldown; there are {', '.join(Rest._fields)}")
        low = 1.0 if name == "multiplier" else 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= LONGEST_S:
            raise UsageError(f"{lead}{name} is {value!r}; it must be a number from {low:g} to {LONGEST_S:g}")
    return {name: float(value) for name, value in told.items()}
