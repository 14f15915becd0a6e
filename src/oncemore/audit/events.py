"""Audit events: facts about attempts and outcomes, as frozen values with one JSON form each.

    retry_attempt         an attempt failed and another follows            frozen, V1
    retry_exhausted       the last permitted attempt failed                frozen, V1
    idempotency           a recorded result was used, or one was recorded  frozen, V1
    retry_succeeded       the work came good, with how many attempts       ours
    retry_refused         it ended without using up its attempts, and why  ours
    idempotency_cleared   a recorded result was thrown away                ours
    config_drift          a stored result of another version was used      ours
    store_size            a store has passed one of its sizes              ours
    circuit               a breaker has opened, or closed, or tries        ours

The fields of the first three are a contract that others parse: they are never removed, renamed or
retyped, and nothing is added to them; whatever else is worth saying becomes a new type. Their JSON
Schemas ship in `schemas/`, and a test pins the digests.

Every event also carries the policy of its operation. Version 1 of the JSON has no field for it; version 2 is
version 1 and the field `policy`, where a policy governs the operation.

Texts are made fit to be written (`redact`) by whoever makes an event, so that an event can be read
back from its own JSON unchanged.
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

FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799  # years 1 to 9999, what RFC 3339 can say


def rfc3339(posix: float) -> str:
    """Return a time in UTC as RFC 3339 has it, with microseconds and a Z."""
    held = min(max(posix, FIRST_SECOND), LAST_SECOND)
    return datetime.fromtimestamp(held, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReference:
    """The policy that governs an operation, as runs name theirs: `name@version:digest`, the digest in short.

    It is None where no retry policy acts, and in an event that was read from version 1 of the JSON.
    """

    policy: str | None = field(default=None, compare=False)


class Event(PolicyReference):
    """A fact that is written down; its fields are the JSON object's, in this order."""

    __slots__ = ()
    event_type: ClassVar[str]
    retry_category: str
    operation: str
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str

    def plain(self, version: int = 1) -> dict[str, str | int | float | None]:
        """Return the event as plain values, in one of the two versions of its form."""
        check_version(version)
        plain = {"event_type": self.event_type, **{name: getattr(self, name) for name in _names(type(self))}}
        return plain if version == 1 or self.policy is None else {**plain, "policy": self.policy}

    def json(self, version: int = 1) -> str:
        """Return the event as one line of JSON, in one of the two versions of its form."""
        return json.dumps(self.plain(version), ensure_ascii=False, allow_nan=False)

    @property
    def posix(self) -> float:
        """The event's time as POSIX seconds."""
        return datetime.fromisoformat(self.timestamp).timestamp()


def check_version(version: object) -> int:
    """Return a version of the events' form, or say which there are."""
    if type(version) is not int or version not in (1, 2):
        raise UsageError(f"version is {version!r}; events have the versions 1 and 2")
    return version


def _names(kind: type[Event]) -> list[str]:
    """Return the fields that an event has in both versions."""
    return [one.name for one in fields(kind) if one.name != "policy"]


@dataclass(frozen=True, slots=True)
class RetryAttempt(Event):
    """An attempt failed, and another follows after a delay."""

    event_type: ClassVar[str] = "retry_attempt"
    retry_category: str
    operation: str
    attempt_number: int
    max_attempts: int
    delay_seconds: float
    exception_type: str
    exception_message: str
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class RetryExhausted(Event):
    """The last permitted attempt failed."""

    event_type: ClassVar[str] = "retry_exhausted"
    retry_category: str
    operation: str
    total_attempts: int
    final_exception_type: str
    final_exception_message: str
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class Idempotency(Event):
    """A recorded result was returned instead of doing the work (hit), or one was recorded."""

    event_type: ClassVar[str] = "idempotency"
    retry_category: str
    operation: str
    idempotency_key: str
    action: Literal["hit", "record"]
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class RetrySucceeded(Event):
    """The work came good, at the first attempt or a later one."""

    event_type: ClassVar[str] = "retry_succeeded"
    retry_category: str
    operation: str
    total_attempts: int
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class RetryRefused(Event):
    """An operation ended without success before its attempts were used up.

    `reason` is that of the decision (`not_retryable`, `retry_after_beyond_cap`, `deadline_passed`…),
    `circuit_open` when its provider is left alone, or `cancelled`, `interrupted`, `abandoned`, `hook_failed`
    when it was ended from outside.
    `not_before` is when trying again makes sense, if anybody said so.
    """

    event_type: ClassVar[str] = "retry_refused"
    retry_category: str
    operation: str
    total_attempts: int
    reason: str
    not_before: str | None
    exception_type: str
    exception_message: str
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class IdempotencyCleared(Event):
    """A recorded result was thrown away: the next call with its key does the work again."""

    event_type: ClassVar[str] = "idempotency_cleared"
    retry_category: str
    operation: str
    idempotency_key: str
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class ConfigDrift(Event):
    """A stored result was returned that was made under another version or config of its step."""

    event_type: ClassVar[str] = "config_drift"
    retry_category: str
    operation: str
    idempotency_key: str
    stored_cfg_hash: str
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class StoreSize(Event):
    """A store has grown beyond what was meant, or its disk has less left than that."""

    event_type: ClassVar[str] = "store_size"
    retry_category: str
    operation: str
    size_bytes: int
    limit_bytes: int
    advice: str
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


@dataclass(frozen=True, slots=True)
class CircuitChanged(Event):
    """The breaker of a provider (`operation`) has opened, lets one call through, or has closed.

    `what` is circuit_opened, circuit_half_open, circuit_probe_failed or circuit_closed; `until` is the end of
    the cooldown, or of the probe's time.
    """

    event_type: ClassVar[str] = "circuit"
    retry_category: str
    operation: str
    what: str
    state: str
    circuit_open: bool
    failures: int
    opens: int
    error_class: str
    until: str | None
    tenant_id: str | None
    correlation_id: str | None
    trace_id: str | None
    timestamp: str


KINDS: dict[str, type[Event]] = {
    kind.event_type: kind
    for kind in (
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
OUTCOMES = (RetrySucceeded, RetryExhausted, RetryRefused)


def event_from(plain: Mapping[str, Any]) -> Event:
    """Return the event that a JSON object of either version stands for; refuse any other object."""
    kind = KINDS.get(plain.get("event_type", ""))
    if kind is None:
        raise UsageError(f"{plain.get('event_type')!r} is no event; the types are {', '.join(KINDS)}")
    wanted = ["event_type", *_names(kind)]
    if set(plain) - {"policy"} != set(wanted):
        odd = sorted(set(plain) - {"policy"} ^ set(wanted))
        raise UsageError(f"{kind.event_type} has exactly {', '.join(wanted)}; not so: {', '.join(odd)}")
    return kind(**{name: value for name, value in plain.items() if name != "event_type"})


def proof_schema() -> dict[str, Any]:
    """Return the JSON Schema of the proof of a decision."""
    file = Path(__file__).with_name("proof.v1.json")
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def schema(event_type: str, version: int = 1) -> dict[str, Any]:
    """Return the JSON Schema of an event type; version 2 is version 1 and the field `policy`."""
    check_version(version)
    if event_type not in KINDS:
        raise UsageError(f"{event_type!r} is no event; the types are {', '.join(KINDS)}")
    file = Path(__file__).parent / "schemas" / f"{event_type}.v1.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if version == 2:
        found["$id"] = found["$id"].removesuffix("v1") + "v2"
        found["properties"]["policy"] = {"type": "string", "minLength": 1}
    return found
