"""The rules of a cooldown: a failed resource is not requested for a while, a valid one never again.

A resource is an external object: a data product, a page, a device. Its record holds the state of the data
(acquisition, validation) and, separately, the result of the last execution. The checks before a request:

    it is VALID                       SKIPPED_DUPLICATE
    it waits for an operator          SKIPPED_QUARANTINED
    its failure is permanent          SKIPPED_TERMINAL
    now < next_eligible_attempt_at    SKIPPED_BACKOFF
    else                              the step requests it

Each execution is counted once, with any result. A transient failure sets the time of the next request to
base * multiplier ** (n - 1) seconds later, at most the cap, where n is the count; or to the time that the
provider has asked for, if that is later.
"""

from __future__ import annotations

from oncemore._values import FrozenRecord, Value
from oncemore.errors import UsageError
from oncemore.policy.backoff import Schedule, planned_delay
from oncemore.policy.canonical_json import normalize_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Final

ACQUISITION: Final = ("STUB", "ACQUIRED", "FAILED")
VALIDATION: Final = ("UNVALIDATED", "VALID", "QUARANTINED")
OUTCOMES: Final = ("SUCCESS", "RETRYABLE_FAILURE", "TERMINAL_FAILURE", "QUARANTINE")
SKIPS: Final = ("SKIPPED_DUPLICATE", "SKIPPED_QUARANTINED", "SKIPPED_TERMINAL", "SKIPPED_BACKOFF")
#: Outcomes that hold a resource until an operator releases it, with the word for a skipped request.
HOLDS: Final = {"QUARANTINE": "SKIPPED_QUARANTINED", "TERMINAL_FAILURE": "SKIPPED_TERMINAL"}
#: Values of imported records and our names for them (X-17).
ALIASES: Final = {"VALIDATED": "VALID"}
LONGEST_ID = 200
LONGEST_S: Final = 86_400.0 * 366 * 100


class CooldownSchedule(Value):
    """The length of a cooldown after failures: a capped exponential without jitter."""

    base_s: float = 300.0
    multiplier: float = 2.0
    cap_s: float = 86_400.0

    def delay_s(self, failures: int) -> float:
        """Return the cooldown after this many failures: base * multiplier ** (failures - 1), capped."""
        if failures < 1:
            raise UsageError(f"failures is {failures!r}; it must be 1 or more")
        return min(self.cap_s, planned_delay(Schedule("exponential", self.base_s, self.multiplier), failures))


class ResourceRecord(Value):
    """The record of a resource (COOL-2): the state of its data and of the requests for it.

    state                        READY, COOLING, HELD for an operator, or DONE: derived from the other fields
    acquisition_status           STUB, ACQUIRED or FAILED: whether its bytes are there
    validation_status            UNVALIDATED, VALID or QUARANTINED
    attempt_count_total          executions that requested it, with any result
    last_attempt_at              end of the last of them, in POSIX seconds; 0 before the first
    last_attempt_outcome         SUCCESS, RETRYABLE_FAILURE, TERMINAL_FAILURE or QUARANTINE; empty before that
    last_error_fingerprint       equal for equal faults
    next_eligible_attempt_at     time before which no step requests it; 0 for no limit
    last_successful_fingerprint  fingerprint of the last valid content
    provider, step, run_entity   provider, step and run of the last execution
    attempt                      number of that run's last attempt, so that none is counted twice
    last_error_class             class of the last failure
    released_at                  time of an operator's release; 0 if there is none since the last attempt
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
    run_entity: str = ""
    attempt: int = 0
    last_error_class: str = ""
    released_at: float = 0.0


class ResourceOutcome(Value):
    """The end of an execution that requested a resource.

    retry_after  seconds that the provider has asked to wait; 0 if it has not
    content      the fingerprint of the fetched content
    kept         whether bytes are stored that wait for review
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


def skip_reason(resource: ResourceRecord | None, now: float) -> str:
    """Return the reason for not requesting a resource now, one of `SKIPS`; empty if it may be requested."""
    if resource is None:
        return ""
    # Valid data comes first: no failure recorded later makes another request necessary.
    if resource.validation_status == "VALID":
        return "SKIPPED_DUPLICATE"
    if is_held(resource):
        return HOLDS[resource.last_attempt_outcome]
    return "SKIPPED_BACKOFF" if now < resource.next_eligible_attempt_at else ""


def is_held(resource: ResourceRecord) -> bool:
    """Whether a resource waits for an operator."""
    return resource.last_attempt_outcome in HOLDS and not resource.released_at


def derive_state(resource: ResourceRecord) -> str:
    """Return the state derived from the other fields."""
    if resource.validation_status == "VALID":
        return "DONE"
    if is_held(resource):
        return "HELD"
    return "COOLING" if resource.next_eligible_attempt_at else "READY"


# Transitions ----------------------------------------------------------------------------------------


def after_execution(
    before: ResourceRecord | None, resource: str, execution: ResourceOutcome, schedule: CooldownSchedule
) -> ResourceRecord:
    """Return the record after an execution: counted, and with a cooldown after a transient failure."""
    old = before or ResourceRecord(resource=resource)
    count = old.attempt_count_total + 1
    is_failure = execution.outcome != "SUCCESS"
    after = old._replace(
        resource=resource,
        attempt_count_total=count,
        last_attempt_at=execution.now,
        provider=execution.provider,
        step=execution.step,
        run_entity=execution.run,
        attempt=execution.attempt,
        last_attempt_outcome=execution.outcome,
        # A success keeps the last error, as history of the resource.
        last_error_fingerprint=execution.error_fingerprint if is_failure else old.last_error_fingerprint,
        last_error_class=execution.error_class if is_failure else old.last_error_class,
        next_eligible_attempt_at=0.0,
        released_at=0.0,
        **_DATA_STATE[execution.outcome](execution),
    )
    if execution.outcome == "RETRYABLE_FAILURE":
        next_at = execution.now + max(schedule.delay_s(count), execution.retry_after)
        # A failure never shortens a cooldown that is already set.
        after = after._replace(next_eligible_attempt_at=max(next_at, old.next_eligible_attempt_at))
    return check_record(after._replace(state=derive_state(after)))


#: The fields of an outcome that describe the data; none of them says whether to try again.
_DATA_STATE: Final[dict[str, Callable[[ResourceOutcome], dict[str, Any]]]] = {
    "SUCCESS": lambda execution: {
        "acquisition_status": "ACQUIRED",
        "validation_status": "VALID",
        "last_successful_fingerprint": execution.content,
    },
    "RETRYABLE_FAILURE": lambda execution: {"acquisition_status": "FAILED"},
    "TERMINAL_FAILURE": lambda execution: {"acquisition_status": "FAILED"},
    "QUARANTINE": lambda execution: {
        "acquisition_status": "ACQUIRED" if execution.kept else "FAILED",
        **({"validation_status": "QUARANTINED"} if execution.kept else {}),
    },
}


def after_release(before: ResourceRecord, now: float) -> ResourceRecord:
    """Return the record after an operator's release: the next execution requests it.

    The counts stay, so the next failure has the cooldown of its number.
    """
    validity = "UNVALIDATED" if before.validation_status == "QUARANTINED" else before.validation_status
    after = before._replace(next_eligible_attempt_at=0.0, released_at=now, validation_status=validity)
    return after._replace(state=derive_state(after))


# Imported records -----------------------------------------------------------------------------------


def check_record(resource: ResourceRecord) -> ResourceRecord:
    """Return the record; raise `UsageError` naming the first invalid field and its valid values."""
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
        # bool is a subclass of int, and True is not a time.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_S * 10:
            raise UsageError(f"{field} is {value!r}; it must be POSIX seconds, or 0 for none")
    for field in ("last_error_fingerprint", "last_successful_fingerprint", "provider"):
        if not isinstance(getattr(resource, field), str):
            raise UsageError(f"{field} is {getattr(resource, field)!r}; it must be a text")
    resource_name(resource.resource)
    return resource


def import_record(resource: str, fields: Mapping[str, Any]) -> ResourceRecord:
    """Return a record from the fields of another system; refuse unknown fields and values.

    `VALIDATED` is read as `VALID`, and a field that is None as missing (X-17).
    """
    unknown = sorted(fields.keys() - _IMPORTED_FIELDS)
    if unknown:
        raise UsageError(
            f"{unknown[0]} is not a field of a resource; the fields are {', '.join(sorted(_IMPORTED_FIELDS))}"
        )
    values: dict[str, Any] = {
        name: _to_plain_value(value) for name, value in fields.items() if value is not None
    }
    record = check_record(ResourceRecord(**{**values, "resource": resource}))
    # The state is never imported: it must agree with the other fields.
    return record._replace(state=derive_state(record))


def _to_plain_value(value: Any) -> Any:
    return ALIASES.get(value, value) if isinstance(value, str) else value


#: From acquisition_status to provider: the other fields refer to runs of this store.
_IMPORTED_FIELDS: Final = frozenset(ResourceRecord._fields[2:11])


def resource_name(resource: object) -> str:
    """Return the normalised name of a resource; raise `UsageError` if it is not a valid name."""
    if not isinstance(resource, str) or not 1 <= len(resource) <= LONGEST_ID or not resource.isprintable():
        raise UsageError(f"resource is {resource!r:.80}; it takes a text of 1 to {LONGEST_ID} characters")
    return normalize_name(resource)


# The option of a step -------------------------------------------------------------------------------


class Cooldown(FrozenRecord):
    """The cooldown of the resource that a step requests: `step(..., cooldown=Cooldown(resource=...))`.

    resource    its name: a text, or a function of the step's arguments; "" or None for a call without a
                resource
    base_s      seconds after the first failure; by default those of the policy, or 300
    multiplier  factor for each further failure; by default that of the policy, or 2
    cap_s       the longest cooldown; by default that of the policy, or a day
    overrides   other numbers for single providers: {"eso": {"base_s": 900}}
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
            resource_name(resource)
        own = {"base_s": base_s, "multiplier": multiplier, "cap_s": cap_s}
        _check_numbers("", {name: value for name, value in own.items() if value is not None})
        checked = {}
        for provider, numbers in dict(overrides or {}).items():
            if not isinstance(provider, str) or not provider or not hasattr(numbers, "items"):
                raise UsageError(
                    f"overrides is {overrides!r:.80}; it takes numbers by provider: {{'a': {{'base_s': 9}}}}"
                )
            lead = f"overrides of {provider}: "
            checked[normalize_name(provider)] = _check_numbers(lead, dict(numbers))
        self.set_fields(
            base_s=base_s, cap_s=cap_s, multiplier=multiplier, overrides=checked, resource=resource
        )

    def __hash__(self) -> int:
        # Without the overrides: a dict has no hash.
        return hash((self.base_s, self.cap_s, self.multiplier, self.resource))


def schedule_for(
    cooldown: Cooldown, provider: str = "", by_policy: Mapping[str, CooldownSchedule] | None = None
) -> CooldownSchedule:
    """Return the schedule for a provider: its override, else the option, else the policy."""
    schedules = by_policy or {}
    # The policy's schedule under "" is for all providers without one of their own.
    default = schedules.get(provider, schedules.get("", CooldownSchedule()))
    own = {"base_s": cooldown.base_s, "multiplier": cooldown.multiplier, "cap_s": cooldown.cap_s}
    numbers = {name: float(value) for name, value in own.items() if value is not None}
    return default._replace(**{**numbers, **cooldown.overrides.get(provider, {})})


def resource_of(cooldown: Cooldown, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the name of the resource that a call requests; empty if there is none."""
    name = cooldown.resource(*args, **kwargs) if callable(cooldown.resource) else cooldown.resource
    return "" if name is None or name == "" else resource_name(str(name))


def _check_numbers(lead: str, numbers: dict[str, Any]) -> dict[str, float]:
    for name, value in numbers.items():
        if name not in CooldownSchedule._fields:
            raise UsageError(
                f"{lead}{name} is not a number of a cooldown; there are {', '.join(CooldownSchedule._fields)}"
            )
        low = 1.0 if name == "multiplier" else 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= LONGEST_S:
            raise UsageError(f"{lead}{name} is {value!r}; it must be a number from {low:g} to {LONGEST_S:g}")
    return {name: float(value) for name, value in numbers.items()}
