"""A policy as a policy file: what is loaded from it decides exactly like the policy it was made from.

(The cap of a schedule is the policy's own cap by then, so that it is not written twice.)
"""

from __future__ import annotations

from oncemore.policy.policy import PER_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.policy.policy import Policy


def as_file(policy: Policy) -> str:
    """Return the text of a policy file that holds this policy."""
    lines = [f"version: {_quoted(policy.version)}"]
    if policy.governed:
        lines.append("governed: true")
    lines += _group("retry_policy", _retry(policy))
    if policy.classes is not None or policy.unmatched != "fail":
        lines += _group("classify", _classify(policy))
    if policy.tuning is not None:
        lines += _group("telemetry_tuning", _tuning(policy))
    if policy.bounds:
        lines += _group("bounds", dict(policy.bounds))
    return "\n".join(lines) + "\n"


def _retry(policy: Policy) -> dict[str, Any]:
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
    if policy.jitter_seed != PER_RUN:
        fields["jitter_seed"] = policy.jitter_seed
    fields |= {"timeout_s": policy.timeout_s, "within_s": policy.within_s, "retry_cost": policy.retry_cost}
    return {name: value for name, value in fields.items() if value is not None}


def _classify(policy: Policy) -> dict[str, Any]:
    lists = {} if policy.classes is None else policy.classes._asdict()
    return {**lists, "unmatched": policy.unmatched}


def _tuning(policy: Policy) -> dict[str, Any]:
    knobs = policy.tuning
    assert knobs is not None
    return {
        "carbon_intensity_threshold_g_per_kWh": {"low": knobs.carbon_low, "high": knobs.carbon_high},
        "energy_price_usd_per_kWh": {"peak": knobs.price_peak},
        "deadline_bias": {"enabled": knobs.deadline_bias, "min_deadline_buffer_s": knobs.min_buffer_s},
        "max_stretch": knobs.max_stretch,
    }


def _group(name: str, fields: dict[str, Any]) -> list[str]:
    return [f"{name}:", *(f"  {field}: {_flow(value)}" for field, value in fields.items())]


def _flow(value: Any) -> str:
    """Return a value on one line; JSON is YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{int(value)}" if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _quoted(text: str) -> str:
    from json import dumps  # dear to import, and only needed here

    return dumps(text, ensure_ascii=False)
