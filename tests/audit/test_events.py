"""Events have exactly the documented fields, and their schemas do not change."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from oncemore import audit
from oncemore.audit.events import EVENT_TYPES, event_schema, format_rfc3339, parse_event
from oncemore.errors import UsageError

#: The table of AUDIT-3, as printed.
DOCUMENTED = {
    "retry_attempt": "event_type retry_category operation attempt_number max_attempts delay_seconds "
    "exception_type exception_message tenant_id correlation_id trace_id timestamp",
    "retry_exhausted": "event_type retry_category operation total_attempts final_exception_type "
    "final_exception_message tenant_id correlation_id trace_id timestamp",
    "idempotency": "event_type retry_category operation idempotency_key action tenant_id correlation_id "
    "trace_id timestamp",
}

#: The shipped schemas, by the digests of their bytes. A frozen one never changes: another shape is
#: another type, or a file ending in .v2.json.
PINNED: dict[str, str] = {
    "idempotency.v1.json": "1286bc37aebf92c8729e2535e70b0474b50be0d43df7b766b5efb35822d2179d",
    "circuit.v1.json": "dacb0ce9986eff0cb84d18e5f795a1696069f5ac8c7e7ebce670ecef56700475",
    "store_size.v1.json": "dfdb57f208ec428e4f7da8116cbb19fcd4ea83eafb172997ff769bdd830885f8",
    "config_drift.v1.json": "a8053af970b7f04b0929346e65aeae83a399fb0243238eb102120138f68c07f5",
    "idempotency_cleared.v1.json": "20b303c0cf5c7db5c40410d21ec5d0d15815938d5dd3838154b7bc7dc8406b7d",
    "retry_attempt.v1.json": "10879d78b412bf4da5ce9625e4d8677891d174d3189a553cab5f0901292e9828",
    "retry_exhausted.v1.json": "7b36f5cfe602ff9c52937d46ad0a68c736548fa8224899e39b46ab05cde27aac",
    "retry_refused.v1.json": "6c95c13f2a146d845c59cbcb8b8ce6df9c21efd675226a3337ed56f3be5edaeb",
    "retry_succeeded.v1.json": "16d3fd905d3f6ba5234cacbb4e634eee10c067d89d734d433eb6193165bd8f70",
}

SAMPLES: dict[str, Any] = {
    "str": "text", "int": 1, "bool": True, "float": 0.5, "str | None": None,
    "Literal['hit', 'record']": "hit",
    "Literal[\"hit\", \"record\"]": "hit",
}  # fmt: skip


def sample(event_type: str, **changes: Any) -> audit.AuditEvent:
    kind = EVENT_TYPES[event_type]
    plain = {field.name: SAMPLES[str(field.type)] for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**plain, "timestamp": format_rfc3339(0), **changes})


@pytest.mark.req("AUDIT-7")
def test_the_shipped_schemas_have_the_pinned_digests() -> None:
    folder = Path(audit.__file__).parent / "schemas"
    shipped = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    assert shipped == PINNED


@pytest.mark.parametrize("event_type", DOCUMENTED)
def test_the_frozen_events_have_exactly_the_documented_fields(event_type: str) -> None:
    names = DOCUMENTED[event_type].split()
    assert list(sample(event_type).to_dict()) == names
    assert event_schema(event_type)["required"] == names


def faults(plain: dict[str, Any], rules: dict[str, Any]) -> list[str]:
    """Return the violations of a schema; supports the keywords that the shipped schemas use."""
    assert set(rules) <= {
        "$schema", "$id", "title", "description", "type", "properties", "required", "additionalProperties",
    }  # fmt: skip
    found = [f"not there: {name}" for name in rules["required"] if name not in plain]
    found += [f"not known: {name}" for name in plain if name not in rules["properties"]]
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}
    for name, rule in rules["properties"].items():
        assert set(rule) <= {
            "type",
            "const",
            "enum",
            "minimum",
            "minLength",
            "format",
            "pattern",
            "description",
        }
        value, wanted = plain.get(name), rule.get("type", [])
        wanted = [wanted] if isinstance(wanted, str) else wanted
        good = (
            (not wanted or any(isinstance(value, kinds[one]) for one in wanted))  # type: ignore[arg-type]
            and value == rule.get("const", value)
            and value in rule.get("enum", [value])
            and (not isinstance(value, (int, float)) or value >= rule.get("minimum", value))
            and (not isinstance(value, str) or len(value) >= rule.get("minLength", 0))
            and (not isinstance(value, str) or re.search(rule.get("pattern", ""), value) is not None)
        )
        found += [] if good else [f"{name}: {value!r}"]
    return found


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_an_event_fits_its_schema_and_comes_back_from_its_json(event_type: str) -> None:
    event = sample(event_type)
    assert faults(json.loads(event.to_json()), event_schema(event_type)) == []
    assert parse_event(json.loads(event.to_json())) == event
    assert "\n" not in event.to_json()
    assert faults({**event.to_dict(), "timestamp": "now", "more": 1}, event_schema(event_type)) == [
        "not known: more",
        "timestamp: 'now'",
    ]


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_an_event_is_frozen_and_can_be_compared(event_type: str) -> None:
    event = sample(event_type)
    with pytest.raises(FrozenInstanceError):
        event.operation = "another"
    assert event == sample(event_type) != sample(event_type, operation="another")
    assert hash(event) == hash(sample(event_type))


def test_an_unknown_event_type_is_refused() -> None:
    with pytest.raises(UsageError, match="'retry_later' is not an event type; the types are retry_attempt,"):
        parse_event({"event_type": "retry_later"})
    with pytest.raises(UsageError, match="None is not an event type"):
        parse_event({})
    with pytest.raises(UsageError, match="missing or unknown: more, trace_id"):
        parse_event(
            {**{k: v for k, v in sample("idempotency").to_dict().items() if k != "trace_id"}, "more": 1}
        )
    with pytest.raises(UsageError, match="'retry_later' is not an event type"):
        event_schema("retry_later")


@pytest.mark.parametrize(
    ("posix", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_800_000_000.25, "2027-01-15T08:00:00.250000Z"),
        (1e300, "9999-12-31T23:59:59.000000Z"),
        (-1e300, "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_times_are_utc_with_a_z(posix: float, text: str) -> None:
    assert format_rfc3339(posix) == text


def test_an_event_has_its_posix_time() -> None:
    assert sample("idempotency", timestamp=format_rfc3339(1_800_000_000.25)).posix_time == 1_800_000_000.25


def test_the_package_has_exactly_the_listed_names() -> None:
    assert dir(audit) == sorted(audit.__all__)
    assert all(getattr(audit, name) is not None for name in audit.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Audit'"):
        audit.Audit  # noqa: B018


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_version_2_is_version_1_and_the_policy(event_type: str) -> None:
    event = sample(event_type, policy="mine@7:0123456789ab")
    plain = event.to_dict(version=2)
    assert plain == {**event.to_dict(), "policy": "mine@7:0123456789ab"}
    assert json.loads(event.to_json(version=2)) == plain
    assert parse_event(plain).policy == "mine@7:0123456789ab"
    assert parse_event(event.to_dict()).policy is None
    assert parse_event(plain) == parse_event(event.to_dict()) == event
    assert sample(event_type).to_dict(version=2) == event.to_dict()
    rules = event_schema(event_type, version=2)
    assert faults(plain, rules) == []
    assert rules["required"] == event_schema(event_type)["required"]
    assert faults(plain, event_schema(event_type)) == ["not known: policy"]


def test_there_are_two_versions_of_an_event() -> None:
    with pytest.raises(UsageError, match="version is 3; events have the versions 1 and 2"):
        event_schema("retry_attempt", version=3)
