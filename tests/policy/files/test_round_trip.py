"""A written policy loads to the same policy; no file raises anything but our own error."""

from __future__ import annotations

import warnings
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore import PolicyError, PolicyWarning
from oncemore.policy import files as govern
from oncemore.policy.files.file_reader import PACKAGED_FILES, PROFILES_FOLDER
from oncemore.policy.files.yaml_reader import parse_yaml
from oncemore.policy.policy import STANDARD

if TYPE_CHECKING:
    from collections.abc import Callable

delays = st.floats(0, 1e6) | st.integers(0, 10**6)
names = st.text("ABCxyz019", min_size=1, max_size=12)


@st.composite
def retry_policies(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of a policy that can be used."""
    base = draw(delays)
    fields: dict[str, Any] = {
        "max_attempts": draw(st.integers(1, 1000)),
        "max_delay_s": base + draw(delays),
        "timeout_s": draw(st.none() | st.floats(0.001, 1e6)),
        "total_timeout_s": draw(st.none() | st.floats(0.001, 1e6)),
        "retry_cost": draw(st.floats(0, 1e6)),
        "name": draw(names),
    }
    match draw(st.sampled_from(["exponential", "linear", "fixed"])):
        case "exponential":
            fields |= {"base_delay_s": base, "factor": draw(st.floats(1, 1000))}
            fields["exponent"] = draw(st.sampled_from(["attempt", "attempt-1"]))
        case "linear":
            fields |= {"base_delay_s": base, "schedule": "linear"}
        case _:
            fields["delays_s"] = draw(st.lists(st.floats(0, base), min_size=1, max_size=9))
    fields |= draw(
        st.sampled_from(
            [
                {},
                {"jitter": "full"},
                {"jitter": "none"},
                {"jitter": "decorrelated"},
                {"jitter_enabled": False},
            ]
        )
        | st.builds(lambda span: {"jitter_span_s": span}, delays)
        | st.builds(lambda part: {"jitter_factor": part}, st.floats(0, 1))
        | st.builds(lambda seed: {"jitter_seed": seed}, names)
    )
    return fields


@st.composite
def files(draw: st.DrawFn) -> str:
    """A policy file that can be used."""
    lines = [f"version: {dumps(draw(names))}", f"retry_policy: {dumps(draw(retry_policies()))}"]
    if draw(st.booleans()):
        classify = {
            "retryable": draw(st.lists(names, max_size=3)),
            "non_retryable": draw(st.lists(names, max_size=3)),
            "unmatched": draw(st.sampled_from(["retry", "fail"])),
            "precedence": draw(st.sampled_from(["non_retryable_first", "retryable_first"])),
        }
        lines.append(f"classify: {dumps(classify)}")
    if draw(st.booleans()):
        low = draw(st.floats(0, 1000))
        carbon = {"low": low, "high": low + draw(st.floats(1, 1000))}
        tuning = {
            "carbon_intensity_threshold_g_per_kWh": carbon,
            "energy_price_usd_per_kWh": {"peak": draw(st.floats(0, 10))},
            "deadline_bias": {
                "enabled": draw(st.booleans()),
                "min_deadline_buffer_s": draw(st.floats(0.1, 1e5)),
            },
            "max_stretch": draw(st.floats(1, 10)),
        }
        lines.append(f"telemetry_tuning: {dumps(tuning)}")
    return "\n".join(lines)


def loaded(text: str | bytes) -> govern.Profile:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PolicyWarning)
            return govern.inspect_file(path)


def refusal(text: str | bytes, use: Callable[[Any], object] = loaded) -> str:
    """Return the message of a refused file; any other exception is raised."""
    try:
        use(text)
    except PolicyError as error:
        return str(error)
    return ""


@pytest.mark.unmeasured
@given(files())
def test_a_policy_from_any_valid_file_survives_a_round_trip(text: str) -> None:
    policy = loaded(text).policy()
    again = loaded(govern.as_file(policy)).policy()
    assert again == policy
    assert again.digest == policy.digest
    assert again.to_dict() == policy.to_dict()


@pytest.mark.parametrize(
    "address", [f"{name}/{policy}" for name in PACKAGED_FILES for policy in govern.profile(name).policies]
)
def test_every_packaged_policy_survives_a_round_trip(address: str) -> None:
    policy = govern.policy(address)
    assert loaded(govern.as_file(policy)).policy().digest == policy.digest


def test_a_changed_policy_can_be_written_too() -> None:
    changed = STANDARD.replace(name="standard (changed)", max_attempts=4, jitter_seed="a literal")
    assert loaded(govern.as_file(changed)).policy() == changed


SOURCES = [(PROFILES_FOLDER / file).read_text(encoding="utf-8") for file in PACKAGED_FILES.values()]
pieces = st.sampled_from(
    ["&a ", "*a", "!!x ", "<<: ", "? ", "- ", "[", "]", "{", "}", ": ", "#", "'", '"', "|\n", ">\n", "---\n",
     "...\n", "%YAML 1.1\n", "\t", "\r", "\0", "\u202e", ".inf", "null", "~", "-1", "0", "1e999", "yes", "\n",
     " ", "  ", "max_attempts: 0\n", "extends: kfm-loop\n", "version: 1\n", "9" * 50, "\ufeff", "é"]
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A packaged file with random changes."""
    text = draw(st.sampled_from(SOURCES))
    for _ in range(draw(st.integers(1, 6))):
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 30))
        text = text[:at] + draw(pieces | st.text(max_size=5)) + text[at + length :]
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@pytest.mark.unmeasured
@given(mutated())
def test_a_mutated_file_is_loaded_or_refused_and_nothing_else(data: bytes) -> None:
    assert len(refusal(data)) < 20_000


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1001) | st.floats() | names | pieces,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | pieces, inner, max_size=3),
    max_leaves=6,
)
FIELD = st.sampled_from(
    ["profile", "version", "extends", "governed", "kfm_compliant", "priority", "review_by", "retry_policy",
     "policies", "classify", "telemetry_tuning", "bounds", "minimums", "providers", "cooldown", "concurrency",
     "lease", "states", "checks", "transport", "audit"]
)  # fmt: skip
HEADS = st.sampled_from(["", "extends: nova-cat\n", "extends: kfm-rules\n"])


@pytest.mark.unmeasured
@given(st.dictionaries(FIELD, values, max_size=6), HEADS)
def test_any_value_in_any_field_is_loaded_or_refused_and_nothing_else(
    fields: dict[str, Any], head: str
) -> None:
    text = head + "".join(f"{name}: {dumps(value)}\n" for name, value in fields.items() if name not in head)
    assert "Traceback" not in refusal(text)


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    said = refusal(data, lambda data: parse_yaml(data, "junk"))
    assert not said or said.startswith("junk")
