"""Audit events: frozen values about attempts and outcomes, each with one JSON form.

The fields of `retry_attempt`, `retry_exhausted` and `idempotency` are a frozen contract (V1) that
consumers parse: no field is removed, renamed, retyped or added. New facts become new event types. The JSON
Schemas ship in `schemas/`, and a test pins their digests. Version 2 of the JSON is version 1 plus the
field `policy`, present if a retry policy governs the operation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: The versions of the JSON form of an event.
FormVersion = Literal[1, 2]
# Years 1 to 9999, the range of RFC 3339.
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799


def format_rfc3339(posix: float) -> str:
    """Return a POSIX time as RFC 3339 in UTC, with microseconds and a Z; clamp it to years 1 to 9999."""
    clamped = min(max(posix, FIRST_SECOND), LAST_SECOND)
    return datetime.fromtimestamp(clamped, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """Base of all audit events, with the fields that every event has.

    `policy` names the governing policy as runs do: `name@version:digest`, with a shortened digest. It is
    None if no retry policy applies, and in an event that was parsed from version 1 of the JSON. Texts are
    redacted before the event is built, so that an event parsed from its JSON equals the original.
    """

    event_type: ClassVar[str]
    retry_category: str
    operation: str
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str
    # Not compared: an event that was read from version 1 of the JSON equals the one that was written.
    policy: str | None = field(default=None, compare=False)

    def to_dict(self, version: FormVersion = 1) -> dict[str, str | int | float | None]:
        """Return the event as plain values, in version 1 or 2 of its form."""
        check_version(version)
        plain: dict[str, str | int | float | None] = {"event_type": self.event_type}
        plain.update((name, getattr(self, name)) for name in _list_fields(type(self)))
        return plain if version == 1 or self.policy is None else {**plain, "policy": self.policy}

    def to_json(self, version: FormVersion = 1) -> str:
        """Return the event as one line of JSON, in version 1 or 2 of its form."""
        return json.dumps(self.to_dict(version), ensure_ascii=False, allow_nan=False)

    @property
    def posix_time(self) -> float:
        """The event's time as POSIX seconds."""
        return datetime.fromisoformat(self.timestamp).timestamp()


#: The shared fields that stand before and behind an event's own fields in the JSON object.
_LEADING_FIELDS = ("retry_category", "operation")
_TRAILING_FIELDS = ("tenant_id", "correlation_id", "trace_id", "timestamp")
_SHARED_FIELDS = frozenset({*_LEADING_FIELDS, *_TRAILING_FIELDS, "policy"})


def check_version(version: object) -> None:
    """Raise `UsageError` for an unknown version of the events' form."""
    # `True == 1`: the type is compared too.
    if type(version) is not int or version not in (1, 2):
        raise UsageError(f"version is {version!r}; events have the versions 1 and 2")


def _list_fields(event_class: type[AuditEvent]) -> list[str]:
    """Return the fields that both versions of the JSON have, in the documented order."""
    own = [entry.name for entry in fields(event_class) if entry.name not in _SHARED_FIELDS]
    return [*_LEADING_FIELDS, *own, *_TRAILING_FIELDS]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAttempt(AuditEvent):
    """An attempt failed, and another follows after a delay."""

    event_type: ClassVar[str] = "retry_attempt"
    attempt_number: int
    max_attempts: int
    delay_seconds: float
    exception_type: str
    exception_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryExhausted(AuditEvent):
    """The last permitted attempt failed."""

    event_type: ClassVar[str] = "retry_exhausted"
    total_attempts: int
    final_exception_type: str
    final_exception_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotency(AuditEvent):
    """A recorded result was returned instead of running the work (hit), or a result was recorded."""

    event_type: ClassVar[str] = "idempotency"
    idempotency_key: str
    action: Literal["hit", "record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySucceeded(AuditEvent):
    """The operation succeeded, at the first attempt or a later one."""

    event_type: ClassVar[str] = "retry_succeeded"
    total_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRefused(AuditEvent):
    """An operation ended without success before its attempts were used up.

    `reason` is the decision's (`not_retryable`, `retry_after_beyond_cap`, `deadline_passed`…),
    `circuit_open` if the breaker refused the call, or `cancelled`, `interrupted`, `abandoned`,
    `hook_failed` if it was ended from outside. `not_before` is the earliest useful time for another try,
    if the provider or the policy gave one.
    """

    event_type: ClassVar[str] = "retry_refused"
    total_attempts: int
    reason: str
    not_before: str | None
    exception_type: str
    exception_message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyCleared(AuditEvent):
    """A recorded result was deleted: the next call with its key runs the work again."""

    event_type: ClassVar[str] = "idempotency_cleared"
    idempotency_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDrift(AuditEvent):
    """A stored result was returned that an earlier version or config of the step produced."""

    event_type: ClassVar[str] = "config_drift"
    idempotency_key: str
    stored_cfg_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSize(AuditEvent):
    """A store exceeded its configured size, or its disk fell below the configured free space."""

    event_type: ClassVar[str] = "store_size"
    size_bytes: int
    limit_bytes: int
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitChanged(AuditEvent):
    """The breaker of a provider (`operation`) opened, half-opened for one probe, or closed.

    `what` is circuit_opened, circuit_half_open, circuit_probe_failed or circuit_closed; `until` is the end of
    the cooldown, or the time limit of the probe.
    """

    event_type: ClassVar[str] = "circuit"
    what: str
    state: str
    circuit_open: bool
    failures: int
    opens: int
    error_class: str
    until: str | None


EVENT_TYPES: dict[str, type[AuditEvent]] = {
    event_class.event_type: event_class
    for event_class in (
        RetryAttempt,
        RetryExhausted,
        Idempotency,
        RetrySucceeded,
        RetryRefused,
        IdempotencyCleared,
        ConfigDrift,
        StoreSize,
        CircuitChanged,
    )
}
#: Events that end an operation; each carries `total_attempts`.
OUTCOME_EVENTS = (RetrySucceeded, RetryExhausted, RetryRefused)


def parse_event(plain: Mapping[str, Any]) -> AuditEvent:
    """Return the event of a JSON object of either version; raise `UsageError` for any other object."""
    event_class = _find_class(plain.get("event_type"))
    expected = ["event_type", *_list_fields(event_class)]
    if set(plain) - {"policy"} != set(expected):
        odd = sorted(set(plain) - {"policy"} ^ set(expected))
        raise UsageError(
            f"{event_class.event_type} has exactly the fields {', '.join(expected)}; "
            f"missing or unknown: {', '.join(odd)}"
        )
    return event_class(**{name: value for name, value in plain.items() if name != "event_type"})


def proof_schema() -> dict[str, Any]:
    """Return the JSON Schema of a decision's proof."""
    file = Path(__file__).with_name("proof.v1.json")
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def event_schema(event_type: str, version: FormVersion = 1) -> dict[str, Any]:
    """Return the JSON Schema of an event type; version 2 is version 1 plus the field `policy`."""
    check_version(version)
    _find_class(event_type)
    file = Path(__file__).parent / "schemas" / f"{event_type}.v1.json"
    schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if version == 2:
        # Derived, not shipped: a second file per type could drift from the frozen first one.
        schema["$id"] = schema["$id"].removesuffix("v1") + "v2"
        schema["properties"]["policy"] = {"type": "string", "minLength": 1}
    return schema


def _find_class(event_type: Any) -> type[AuditEvent]:
    if event_type not in EVENT_TYPES:
        raise UsageError(f"{event_type!r} is not an event type; the types are {', '.join(EVENT_TYPES)}")
    return EVENT_TYPES[event_type]
