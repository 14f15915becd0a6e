"""Writes a policy as a policy file that loads to a policy with the same decisions.

The schedule's own cap is not written: it has already become the policy's cap.
"""

from __future__ import annotations

from oncemore.policy.policy_checks import PER_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.policy.policy import Policy


def as_file(policy: Policy) -> str:
    """Return the text of a policy file with this policy."""
    lines = [f"version: {_quote_text(policy.version)}"]
    if policy.governed:
        lines.append("governed: true")
    lines += _format_group("retry_policy", _retry_fields(policy))
    if policy.classes is not None or policy.unmatched != "fail":
        lines += _format_group("classify", _classify_fields(policy))
    if policy.tuning is not None:
        lines += _format_group("telemetry_tuning", _tuning_fields(policy))
    if policy.bounds:
        lines += _format_group("bounds", dict(policy.bounds))
    return "\n".join(lines) + "\n"


def _retry_fields(policy: Policy) -> dict[str, Any]:
    schedule, jitter = policy.schedule, policy.jitter
    fields: dict[str, Any] = {"name": policy.name, "max_attempts": policy.max_attempts}
    if schedule.shape == "fixed":
        fields["delays_s"] = schedule.delays
    else:
        fields |= {"schedule": schedule.shape, "base_delay_s": schedule.base}
    if schedule.shape == "exponential":
        fields |= {"factor": schedule.factor, "exponent": schedule.exponent}
    fields |= {"max_delay_s": policy.max_delay_s, "jitter": jitter.spread}
    if jitter.spread == "additive":
        fields["jitter_span_s"] = jitter.amount
    if jitter.spread == "proportional":
        fields["jitter_factor"] = jitter.amount
    # A seed implies additive jitter in a file without a jitter; here the jitter is always written.
    if policy.jitter_seed != PER_RUN:
        fields["jitter_seed"] = policy.jitter_seed
    fields |= {
        "timeout_s": policy.timeout_s,
        "total_timeout_s": policy.total_timeout_s,
        "retry_cost": policy.retry_cost,
    }
    fields = {name: value for name, value in fields.items() if value is not None}
    # Without the field a file has the default, which differs between governed and other files.
    return fields | {"max_crashes": policy.max_crashes}


def _classify_fields(policy: Policy) -> dict[str, Any]:
    lists = {} if policy.classes is None else policy.classes._asdict()
    return {**lists, "unmatched": policy.unmatched}


def _tuning_fields(policy: Policy) -> dict[str, Any]:
    tuning = policy.tuning
    assert tuning is not None
    return {
        "carbon_intensity_threshold_g_per_kWh": {"low": tuning.carbon_low, "high": tuning.carbon_high},
        "energy_price_usd_per_kWh": {"peak": tuning.price_peak},
        "deadline_bias": {"enabled": tuning.deadline_bias, "min_deadline_buffer_s": tuning.min_buffer_s},
        "max_stretch": tuning.max_stretch,
    }


def _format_group(name: str, fields: dict[str, Any]) -> list[str]:
    return [f"{name}:", *(f"  {field}: {_format_flow(value)}" for field, value in fields.items())]


def _format_flow(value: Any) -> str:
    """Return a value on one line, in YAML's flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_format_flow(inner)}" for name, inner in value.items()) + "}"
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_format_flow(item) for item in value) + "]"
    if isinstance(value, str):
        return _quote_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    # A whole number without ".0", as the packaged profiles write it.
    return f"{int(value)}" if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _quote_text(text: str) -> str:
    # Imported here, because `json` is expensive to import. A JSON string is also a YAML string.
    from json import dumps

    return dumps(text, ensure_ascii=False)
