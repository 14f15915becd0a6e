"""The numbers of the source documents, read back from the loaded profiles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from oncemore import PolicyError
from oncemore.errors import VIOLATIONS
from oncemore.policy import files as govern
from oncemore.policy.backoff import NO_JITTER, Jitter, Schedule, planned_delay
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.files.file_reader import PACKAGED_FILES, PROFILES_FOLDER, released_digests
from oncemore.policy.model import Failure
from oncemore.policy.policy import STANDARD, Policy
from oncemore.policy.tuning import Signals, Tuning
from oncemore.policy.verdict import ErrorClasses

REQUIREMENTS = Path(__file__).parents[2] / "docs" / "requirements.md"
RUN_SEED = "e5b98e905ec655bde09d063b91a602f256857065a49798c351aacc1f9015b68f"

EVERY = [f"{name}/{policy}" for name in PACKAGED_FILES for policy in govern.profile(name).policies]


def planned_delays(policy: Policy) -> list[float]:
    """The delays before jitter, held at the cap."""
    return [min(policy.max_delay_s, planned_delay(policy.schedule, n)) for n in range(1, policy.max_attempts)]


def decided(policy: Policy, seed: str, signals: Signals | None = None) -> list[float]:
    """The delays that the policy decides on for one failure after another."""
    fact = Failure("transient", "maybe", None, "TIMEOUT", "test")
    return [
        decide_retry(policy, Situation(n, fact, "RETRYABLE", 0.0, seed, signals=signals)).delay_s
        for n in range(1, policy.max_attempts)
    ]


@pytest.mark.req("POL-3")
def test_every_profile_loads_and_is_verified() -> None:
    files = {path.relative_to(PROFILES_FOLDER).as_posix() for path in PROFILES_FOLDER.rglob("*.yaml")}
    assert files == set(PACKAGED_FILES.values()) == set(released_digests())
    assert {"retry-loop/policies/default.yaml", "retry-loop/policies/p2-batch-reporting.yaml"} <= files
    for listed in govern.listing():
        assert (listed.fault, listed.signature) == ("", "packaged, digest verified")
        assert govern.profile(listed.name).name == listed.name


def test_standard_is_what_retry_does_without_a_policy() -> None:
    assert govern.policy("standard") == STANDARD
    assert govern.policy("standard").digest == STANDARD.digest


@pytest.mark.req("BACKOFF-4")
def test_kfm_rules_has_the_documents_values() -> None:
    policy = govern.policy("kfm-rules")
    assert (policy.name, policy.version, policy.governed) == ("exp_full_jitter", "retry-loop-v10.3", True)
    assert (policy.max_attempts, policy.max_delay_s, policy.timeout_s) == (5, 30.0, 30.0)
    assert policy.schedule == Schedule("exponential", 0.5, 2.0, "attempt")
    assert policy.jitter == Jitter("full")
    assert policy.unmatched == "fail"
    assert policy.classes == ErrorClasses(
        (
            "NETWORK_TIMEOUT", "HTTP_408", "HTTP_429", "HTTP_500", "HTTP_501", "HTTP_502", "HTTP_503",
            "HTTP_504", "STAC_SLOWDOWN", "THROTTLED", "NEO4J:TransientError.*", "IO_CONTENTION",
            "TRANSIENT",
        ),
        VIOLATIONS,
    )  # fmt: skip
    sections = govern.profile("kfm-rules").plain()["sections"]
    assert sections["circuit_breaker"] == {
        "max_failures": 3, "cooldown_sec": 300.0, "half_open_probes": 1, "count": "operations",
    }  # fmt: skip
    assert sections["on_non_retryable"] == ["halt", "quarantine", "ledger"]
    assert sections["halt_scope"] == "pipeline"
    assert sections["effects"] == "require_idempotent_or_outbox"
    assert sections["ledgers"] == ["versioning_ledger.json", "pipeline_retry_log.json"]
    assert sections["telemetry_fields"] == [
        "pipeline_id", "stage_name", "attempt", "delay_ms", "error_class", "retryable", "outcome",
        "circuit_open", "energy_wh", "co2_g",
    ]  # fmt: skip


@pytest.mark.req("BACKOFF-4")
@pytest.mark.parametrize("field", ["base_delay_sec: 0.4", "base_delay_sec: 1.1", "max_delay_sec: 31"])
def test_the_ranges_of_kfm_rules_are_enforced(field: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = "version: retry-loop-v10.4\nextends: kfm-rules\nretry_policy:\n  {}\n"
    file.write_text(text.format(field))
    name, value = field.split(": ")
    with pytest.raises(PolicyError, match=rf"mine.yaml:4:\d+: retry_policy.{name} is {value}; the bounds"):
        govern.load(file)
    file.write_text(text.format("base_delay_sec: 1.0"))
    assert govern.inspect_file(file).policy().schedule.base == 1.0


def test_kfm_loop_has_the_documents_values() -> None:
    profile = govern.profile("kfm-loop")
    policy = profile.policy()
    assert (policy.name, policy.version, policy.governed) == ("kfm-loop", "retry-loop-v11.2", True)
    assert (policy.max_attempts, policy.max_delay_s, policy.timeout_s) == (6, 900.0, 3600.0)
    assert policy.schedule == Schedule("exponential", 10.0, 2.0, "attempt")
    assert (policy.jitter, policy.jitter_seed) == (Jitter("additive", 10.0), "<sha256(run_id)>")
    assert policy.tuning == Tuning(250.0, 500.0, 0.25, True, 1800.0, 2.5)
    assert planned_delays(policy) == [20.0, 40.0, 80.0, 160.0, 320.0]
    assert policy.max_total_delay_s == 670.0
    sections = profile.plain()["sections"]
    assert sections["lease"] == {"ttl_s": 60.0, "renew_every_s": 20.0}
    assert sections["escalation"] == {"permanent": "autonomy-matrix", "exhausted": "deadline-aware"}
    assert sections["states"] == ["PENDING", "RUNNING", "SOFT_FAIL", "HARD_FAIL", "COMPLETE"]
    assert sections["idempotency"] == {
        "key_from": ["node_id", "inputs", "target_partition"],
        "on_config_change": "fail",
    }


PRINTED = """
retry_policy:
  max_attempts: 6
  base_delay_s: 10
  max_delay_s: 900
  jitter_seed: "<sha256(run_id)>"
telemetry_tuning:
  carbon_intensity_threshold_g_per_kWh: {low: 250, high: 500}
  energy_price_usd_per_kWh: {peak: 0.25}
  deadline_bias: {enabled: true, min_deadline_buffer_s: 1800}
"""


@pytest.mark.req("POL-1")
def test_the_default_file_holds_exactly_the_printed_knobs() -> None:
    assert PRINTED.strip() in REQUIREMENTS.read_text(encoding="utf-8")
    reader = YAML(typ="safe", pure=True)
    shipped = reader.load(PROFILES_FOLDER / "retry-loop" / "policies" / "default.yaml")
    envelope = {name: shipped.pop(name) for name in ("profile", "version", "extends")}
    assert shipped == reader.load(PRINTED)
    assert envelope["extends"] == "kfm-loop"
    made = govern.policy("kfm-loop-default")
    assert made.replace(name="kfm-loop") == govern.policy("kfm-loop")


@pytest.mark.req("TUNE-4")
def test_changing_a_knob_changes_the_decision_where_it_should() -> None:
    policy = govern.policy("kfm-loop-default")
    assert policy.tuning == Tuning()
    calm = decided(policy, RUN_SEED, Signals(grid_intensity=450.0, energy_price=0.22))
    for knob, value in (("carbon_high", 460.0), ("carbon_low", 440.0), ("price_peak", 0.2)):
        tuned = policy.replace(tuning=policy.tuning._replace(**{knob: value}))  # type: ignore[union-attr]
        other = decided(tuned, RUN_SEED, Signals(grid_intensity=450.0, energy_price=0.22))
        assert all(one != two for one, two in zip(calm, other, strict=True)), knob
    fact = Failure("transient", "maybe", None, "TIMEOUT", "test")
    near = Situation(2, fact, "RETRYABLE", 0.0, RUN_SEED, deadline=1000.0, expected_s=1.0)
    for change in ({"deadline_bias": False}, {"min_buffer_s": 3600.0}):
        tuned = policy.replace(tuning=policy.tuning._replace(**change))  # type: ignore[union-attr]
        assert decide_retry(tuned, near).delay_s != decide_retry(policy, near).delay_s


def test_the_batch_and_the_nowcast_file_differ_as_settled() -> None:
    loop = govern.policy("kfm-loop")
    batch = govern.profile("p2-batch-reporting")
    assert batch.policy() == loop.replace(
        name="p2-batch-reporting",
        schedule=Schedule("exponential", 30.0, 2.0, "attempt"),
        max_delay_s=900.0,
        jitter=Jitter("additive", 30.0),
        tuning=Tuning(250.0, 400.0, 0.20, True, 3600.0, 2.5),
    )
    assert batch.metadata["priority"] == "P2"
    assert batch.plain()["sections"]["carbon_budget"] == {
        "period": "month",
        "cap_kgCO2e": 2.0,
        "slow_at": 0.9,
    }
    storm = govern.profile("p0-storm-nowcast")
    assert storm.policy() == loop.replace(
        name="p0-storm-nowcast",
        max_attempts=4,
        schedule=Schedule("exponential", 2.0, 2.0, "attempt"),
        max_delay_s=30.0,
        jitter=Jitter("additive", 2.0),
        timeout_s=60.0,
        tuning=Tuning(250.0, 500.0, 0.25, True, 120.0, 1.25),
    )
    assert storm.metadata["priority"] == "P0"


def test_the_worked_examples_of_the_loop_have_their_delays() -> None:
    dirty = Signals(grid_intensity=620.0, energy_price=0.31)
    batch = govern.policy("p2-batch-reporting")
    assert decided(batch, RUN_SEED)[:2] == pytest.approx([63.641, 148.755], abs=5e-4)
    assert decided(batch, RUN_SEED, dirty)[:2] == pytest.approx([159.102, 371.887], abs=5e-4)
    storm = govern.policy("p0-storm-nowcast")
    assert decided(storm, RUN_SEED, dirty)[0] == pytest.approx(5.303, abs=5e-4)


@pytest.mark.req("BACKOFF-15")
@pytest.mark.parametrize(
    ("address", "delays"),
    [
        ("kfm-loop", [21.213633, 49.584878, 82.142307, 169.361387, 321.516047]),
        ("kfm-loop-default", [21.213633, 49.584878, 82.142307, 169.361387, 321.516047]),
        ("kfm-rules", [0.121363, 1.916976, 0.856923, 7.489109]),
        ("exoarmur/NATS_CONNECT", [0.924273, 2.183395, 3.771385, 8.697822]),
    ],
)
def test_the_printed_vectors_hold_under_the_shipped_profiles(address: str, delays: list[float]) -> None:
    made = decided(govern.policy(address), RUN_SEED)
    assert [round(delay, 6) for delay in made] == delays


@pytest.mark.req("BACKOFF-9")
def test_lit_has_the_documents_values() -> None:
    profile = govern.profile("lit")
    transport, persistence = profile.policy(), profile.policy("persistence")
    assert (transport.max_attempts, transport.schedule, transport.jitter) == (
        2,
        Schedule("linear", 0.25),
        NO_JITTER,
    )
    assert planned_delays(transport.replace(max_attempts=4)) == [0.25, 0.50, 0.75]
    assert (transport.timeout_s, transport.max_delay_s, transport.governed) == (30.0, 30.0, False)
    assert (persistence.max_attempts, persistence.schedule) == (3, Schedule("linear", 0.02))
    assert planned_delays(persistence) == [0.02, 0.04]
    assert profile.metadata["kfm_compliant"] is False
    sections = profile.plain()["sections"]
    assert sections["actions_never_auto_retried"] == ["accept", "reject", "advance", "discuss"]
    assert sections["persistence"]["busy_timeout_s"] == 0.0
    assert sections["transport"]["retry_after_cap_s"] == 30.0


def test_nova_cat_has_the_documents_values() -> None:
    profile = govern.profile("nova-cat")
    default, acquisition = profile.policy(), profile.policy("acquisition")
    assert (default.max_attempts, planned_delays(default)) == (4, [2.0, 10.0, 30.0])
    assert (acquisition.max_attempts, planned_delays(acquisition)) == (4, [10.0, 60.0, 180.0])
    assert (default.jitter, default.timeout_s) == (NO_JITTER, 60.0)
    assert (acquisition.jitter, acquisition.timeout_s) == (NO_JITTER, 900.0)
    assert 4 * 900 + acquisition.max_total_delay_s == 64 * 60 + 10
    assert profile.cooldown() == govern.Cooldown(300.0, 2.0, 86400.0)
    assert not profile.governed
    sections = profile.plain()["sections"]
    assert sections["classes"] == ["RETRYABLE", "TERMINAL", "QUARANTINE"]
    assert sections["concurrency"] == {
        "DiscoverSpectraProducts": 1.0,
        "ReferenceReconciliation": 5.0,
        "AcquireAndValidateSpectra": "one data_product_id",
    }
    assert sections["idempotency"]["poll_bucket"] == "1h"
    assert len(sections["checks"]) == 2


def printed_categories() -> list[tuple[str, ...]]:
    """The rows of table BACKOFF-12 in the requirements."""
    text = REQUIREMENTS.read_text(encoding="utf-8")
    return re.findall(
        r"(?m)^\| `(\w+)` \| `(\w+)` \| (\d+) \| ([\d.]+) s \| ([\d.]+) s \| ([^|]+?) \| ([^|]+?) \|$", text
    )


@pytest.mark.req("BACKOFF-12")
def test_the_17_categories_are_those_of_the_table() -> None:
    profile = govern.profile("exoarmur")
    rows = printed_categories()
    assert len(rows) == 17
    assert set(profile.policies) == {"default", *(row[0] for row in rows)}
    for category, code, attempts, base, cap, _, delays in rows:
        policy = profile.policy(category)
        assert (policy.name, policy.max_attempts, policy.max_delay_s) == (code, int(attempts), float(cap))
        assert policy.schedule == Schedule("exponential", float(base), 2.0, "attempt-1")
        assert policy.jitter == Jitter("proportional", 0.1)
        printed = [] if delays == "none" else [float(delay) for delay in delays.split(", ")]
        assert planned_delays(policy) == printed


@pytest.mark.req("BACKOFF-8")
def test_the_defaults_of_exoarmur_are_those_of_its_retry_policy() -> None:
    policy = govern.policy("exoarmur")
    assert (policy.max_attempts, policy.max_delay_s, policy.unmatched) == (3, 30.0, "retry")
    assert policy.schedule == Schedule("exponential", 1.0, 2.0, "attempt-1")
    assert policy.jitter == Jitter("proportional", 0.1)
    assert policy.classes == ErrorClasses(("Exception",))
    five = policy.replace(max_attempts=5)
    assert planned_delays(five) == [1.0, 2.0, 4.0, 8.0]
    assert decided(five.replace(jitter=NO_JITTER), "") == [1.0, 2.0, 4.0, 8.0]
    for n, plan in enumerate((1.0, 2.0, 4.0, 8.0)):
        drawn = [decided(five, f"seed {seed}")[n] for seed in range(100)]
        assert 0.9 * plan <= min(drawn) < max(drawn) <= 1.1 * plan
        assert max(drawn) - min(drawn) > 0.1 * plan


LIMITS = {"NATS": 5.0, "KV": 5.0, "EXECUTION": 30.0, "APPROVAL": 30.0, "API": 30.0, "REPLAY": 300.0}


@pytest.mark.req("TIME-8")
@pytest.mark.parametrize("address", EVERY)
def test_every_policy_states_its_timeout(address: str) -> None:
    policy = govern.policy(address)
    profile, _, name = address.partition("/")
    if profile == "standard":
        assert policy.timeout_s is None  # as settled: there is one when it is given
    else:
        assert policy.timeout_s is not None
    if profile == "exoarmur":
        assert policy.timeout_s == LIMITS.get(name.partition("_")[0], 30.0)


@pytest.mark.parametrize("address", EVERY)
def test_no_packaged_policy_causes_a_warning(address: str) -> None:
    assert govern.policy(address).warnings() == []


@pytest.mark.req("CLASS-12")
def test_only_exoarmur_retries_unclassified_errors() -> None:
    unmatched = {address.partition("/")[0]: govern.policy(address).unmatched for address in EVERY}
    assert unmatched.pop("exoarmur") == "retry"
    assert set(unmatched.values()) == {"fail"}
