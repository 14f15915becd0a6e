"""The YAML of the source documents loads as printed, and waits as long as they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.errors import PolicyError, PolicyWarning
from oncemore.policy import files
from oncemore.policy.backoff import jittered_delay
from oncemore.policy.files import loader
from oncemore.queries import policies

if TYPE_CHECKING:
    from oncemore.policy.policy import Policy

#: As the Deterministic Retry Loop Pattern prints it (POL-1).
LOOP = """
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
#: The values of the Retry & Backoff Compliance Rules (BACKOFF-4).
RULES = """
retry_policy:
  max_attempts: 5
  base_delay_sec: 0.5
  max_delay_sec: 30
  jitter: full
"""
#: The settings of LIT, which has linear delays without jitter (BACKOFF-9).
LIT = """
retry_policy: {retry_attempts: 4, retry_backoff_seconds: 0.25}
"""
EXOARMUR = """
retry_policy: {max_attempts: 5, base_delay: 1.0, max_delay: 30.0, backoff_multiplier: 2.0,
               jitter_enabled: true, jitter_factor: 0.1}
"""
NOVA_CAT = """
retry_policy: {max_retries: 3, backoff_s: [2, 10, 30]}
"""


def load(text: str, name: str = "mine.yaml") -> Policy:
    Path(name).write_text(text)
    with pytest.warns(PolicyWarning, match='version is missing; decisions record "unversioned"'):
        return files.load(name).policy()


def delays(policy: Policy) -> list[float]:
    return [
        jittered_delay(policy.schedule, policy.jitter, policy.max_delay_s, "seed", n)
        for n in range(1, policy.max_attempts)
    ]


@pytest.mark.parametrize(
    ("text", "profile"),
    [(LOOP, "kfm-loop"), (RULES, "kfm-rules"), (EXOARMUR, "exoarmur/NATS_CONNECT"), (NOVA_CAT, "nova-cat")],
    ids=["loop", "rules", "exoarmur", "nova-cat"],
)
def test_a_documents_own_file_waits_as_long_as_its_profile(text: str, profile: str) -> None:
    policy, known = load(text), files.policy(profile)
    assert delays(policy) == delays(known.replace(max_attempts=policy.max_attempts))
    assert (policy.version, policy.name) == ("unversioned", "mine")
    assert policy.tuning == known.tuning


def test_the_settings_of_lit_are_linear() -> None:
    assert delays(load(LIT)) == [0.25, 0.5, 0.75]
    assert delays(load("retry_policy: {attempts: 3, base_backoff_s: 0.02}")) == [0.02, 0.04]
    assert load("retry_policy: {retry_backoff_seconds: 1, jitter: full}").jitter == oncemore.Jitter("full")


def test_what_a_file_says_itself_wins_over_the_formula_of_a_document() -> None:
    assert load("retry_policy: {base_delay_sec: 0.5, exponent: attempt-1}").max_delays() == [0.5, 1.0]
    assert load("retry_policy: {base_delay_s: 1, jitter: full, jitter_seed: a}").max_delays() == [
        1.0,
        2.0,
    ]
    assert (
        load("retry_policy: {retry_backoff_seconds: 1, schedule: exponential}").schedule.shape
        == "exponential"
    )


def test_a_decision_under_a_file_without_a_version_says_so() -> None:
    load(LIT)
    with oncemore.open("memory:"), oncemore.testing.instant_waits():

        @oncemore.step(effect="pure", policy=Path("mine.yaml"))
        def work() -> None:
            raise TimeoutError

        run = work.run()
    assert run.proofs[0]["policy"]["version"] == "unversioned"


@pytest.mark.req("POL-4")
def test_a_governed_file_without_a_version_is_refused_and_any_other_is_unversioned() -> None:
    assert load("retry_policy: {}").version == "unversioned"
    for text in ("governed: true\nretry_policy: {timeout_s: 1}", "extends: kfm-loop"):
        Path("mine.yaml").write_text(text)
        with pytest.raises(PolicyError, match=r"version is missing; every decision records it"):
            files.load("mine.yaml")
    with oncemore.open("memory:"), oncemore.testing.instant_waits():

        @oncemore.step(effect="pure", policy="kfm-loop")
        def work() -> None:
            raise TimeoutError

        run = work.run()
    assert {proof["policy"]["version"] for proof in run.proofs} == {"retry-loop-v11.2"}


def test_a_user_may_call_a_file_like_one_of_the_published_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    own = 'version: "7"\nretry_policy: {max_attempts: 2}\n'
    Path("p2-batch-reporting.yaml").write_text(own)
    assert policies.check_file("p2-batch-reporting.yaml").good
    assert files.policy("./p2-batch-reporting.yaml").version == "7"
    assert files.policy("p2-batch-reporting").version == "retry-loop-v11.2"
    monkeypatch.setenv("ONCEMORE_POLICY_ROOT", ".")
    loader.forget()
    assert files.policy("p2-batch-reporting").version == "7"
    Path("p2-batch-reporting.yaml").write_text("version: retry-loop-v12.0\nextends: p2-batch-reporting\n")
    loader.forget()
    made = files.inspect_file("p2-batch-reporting.yaml")
    assert (made.version, made.extends) == ("retry-loop-v12.0", ("p2-batch-reporting", "kfm-loop"))
    Path("kfm-rules.yaml").write_text(own)
    loader.forget()
    with pytest.raises(PolicyError, match="like a packaged profile"):
        files.policy("./kfm-rules.yaml")
