"""Inheritance: a file over the file it extends, policies over their defaults, providers over both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncemore import PolicyError, PolicyWarning, UsageError
from oncemore.policy import files
from oncemore.policy.backoff import Jitter, Schedule

Write = Callable[..., Path]

PARENT = """
version: "1"
owner: somebody
priority: P1
retry_policy: {max_attempts: 4, base_delay_s: 2, jitter: additive, jitter_span_s: 3, timeout_s: 9, name: calm}
classify: {retryable: [HTTP_503], unmatched: retry}
telemetry_tuning: {max_stretch: 2, deadline_bias: {min_deadline_buffer_s: 60}}
lease: {ttl_s: 60, renew_every_s: 20}
"""


def child(write: Write, text: str, parent: str = PARENT) -> files.Profile:
    files.forget()
    write(parent, "parent.yaml")
    return files.load(write(f'version: "2"\nextends: parent.yaml\n{text}', "child.yaml"))


def faults(write: Write, text: str, parent: str = PARENT) -> str:
    with pytest.raises(PolicyError) as caught:
        child(write, text, parent)
    return str(caught.value)


def test_a_file_inherits_the_values_it_does_not_give(write: Write) -> None:
    made = child(write, "retry_policy: {retry_attempts: 5}\nlease: {ttl_s: 90}\nowner: somebody else\n")
    policy = made.policy()
    assert (policy.max_attempts, policy.schedule.base, policy.timeout_s, policy.name) == (5, 2.0, 9.0, "calm")
    assert policy.jitter == Jitter("additive", 3.0)
    assert (policy.unmatched, policy.version) == ("retry", "2")
    assert policy.classes is not None
    assert policy.tuning is not None
    assert (policy.tuning.max_stretch, policy.tuning.min_buffer_s) == (2.0, 60.0)
    assert dict(made.sections["lease"]) == {"ttl_s": 90.0, "renew_every_s": 20.0}
    assert (made.name, made.extends) == ("child", ("parent",))
    assert dict(made.metadata) == {"owner": "somebody else", "priority": "P1"}


@pytest.mark.parametrize(
    ("fields", "schedule", "jitter"),
    [
        ("delays_s: [1, 5]", Schedule("fixed", delays=(1.0, 5.0)), Jitter("additive", 3.0)),
        ("factor: 3", Schedule("exponential", 2.0, 3.0), Jitter("additive", 3.0)),
        ("jitter: full", Schedule("exponential", 2.0), Jitter("full")),
        ("jitter_span_s: 4", Schedule("exponential", 2.0), Jitter("additive", 4.0)),
        ("jitter_factor: 0.2", Schedule("exponential", 2.0), Jitter("proportional", 0.2)),
        ("jitter_enabled: false", Schedule("exponential", 2.0), Jitter("none")),
    ],
)
def test_a_new_schedule_or_jitter_replaces_the_inherited_one_completely(
    write: Write, fields: str, schedule: Schedule, jitter: Jitter
) -> None:
    policy = child(write, f"retry_policy: {{{fields}}}").policy()
    assert (policy.schedule, policy.jitter) == (schedule, jitter)


@pytest.mark.parametrize("growth", ["base_delay_s: 2", "factor: 2", "exponent: attempt", "schedule: linear"])
def test_a_new_schedule_drops_an_inherited_list_of_delays(write: Write, growth: str) -> None:
    parent = 'version: "1"\nretry_policy: {schedule: fixed, delays_s: [1, 5]}\n'
    policy = child(write, f"retry_policy: {{{growth}}}", parent).policy()
    assert policy.schedule.delays == ()


@pytest.mark.parametrize(
    ("parent", "text"),
    [
        ("policies: {default: {max_attempts: 4}, slow: {}}", "retry_policy: {max_attempts: 5}"),
        ("policies: {default: {max_attempts: 4}}", "retry_policy: {max_attempts: 5}\npolicies: {slow: {}}"),
        ("retry_policy: {max_attempts: 4}", "policies: {default: {max_attempts: 5}, slow: {}}"),
        ("policies: {slow: {}}", "retry_policy: {max_attempts: 5}"),
    ],
)
def test_the_default_policy_may_be_written_in_either_place(write: Write, parent: str, text: str) -> None:
    made = child(write, text, f'version: "1"\n{parent}\n')
    assert made.policy().max_attempts == 5
    assert set(made.policies) == {"default", "slow"}


def test_policies_inherit_from_the_default_policy_but_not_its_name(write: Write) -> None:
    made = files.load(
        write(
            'version: "1"\ndefaults: {attempts: 5, timeout_s: 3, name: base, description: all}\n'
            "categories: {quick: {timeout_s: 1}, slow: {code: SLOW}}\n"
        )
    )
    assert [(policy.name, policy.max_attempts, policy.timeout_s) for policy in made.policies.values()] == [
        ("base", 5, 3.0),
        ("mine/quick", 5, 1.0),
        ("SLOW", 5, 3.0),
    ]
    assert made.spellings["policies.slow.name"] == "categories.slow.code"
    assert made.spellings["retry_policy"] == "defaults"


@pytest.mark.req("POL-10")
def test_a_provider_changes_only_the_fields_it_gives(write: Write) -> None:
    made = files.load(
        write(
            """
version: "1"
policies:
  default: {max_attempts: 4, timeout_s: 9}
  acquisition: {max_attempts: 2, timeout_s: 90}
providers:
  slow: {retry_policy: {timeout_s: 30}, policies: {acquisition: {max_retries: 0}}}
  plain: {}
"""
        )
    )
    assert made.policy("default", "slow").timeout_s == 30.0
    assert made.policy("default", "slow").max_attempts == 4
    assert made.policy("default", "slow").name == "mine@slow"
    assert (
        made.policy("acquisition", "slow").max_attempts,
        made.policy("acquisition", "slow").timeout_s,
    ) == (
        1,
        30.0,
    )
    assert made.policy("acquisition", "slow").name == "mine/acquisition@slow"
    for provider in ("plain", "unheard"):
        assert made.policy("acquisition", provider).replace(name="x") == made.policy("acquisition").replace(
            name="x"
        )


@pytest.mark.req("BACKOFF-11", "POL-10")
def test_two_providers_in_one_file_have_different_cooldowns_after_the_same_failures(write: Write) -> None:
    made = files.load(
        write(
            """
version: "1"
retry_policy: {}
cooldown: {base_s: 300, multiplier: 2, cap_s: 86400, provider_overrides: {eso: {base_s: 60, cap_s: 200}}}
providers:
  mast: {cooldown: {multiplier: 3}}
"""
        )
    )
    after = {
        provider: [made.cooldown(provider).delay_s(failures) for failures in (1, 2, 3, 20)]  # type: ignore[union-attr]
        for provider in ("eso", "mast", "unheard", None)
    }
    assert after == {
        "eso": [60.0, 120.0, 200.0, 200.0],
        "mast": [300.0, 900.0, 2700.0, 86400.0],
        "unheard": [300.0, 600.0, 1200.0, 86400.0],
        None: [300.0, 600.0, 1200.0, 86400.0],
    }
    assert made.cooldown("eso").delay_s(10_000) == 200.0  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="failures is 0; it must be 1 or more"):
        made.cooldown().delay_s(0)  # type: ignore[union-attr]


def test_a_file_without_cooldowns_has_none(write: Write) -> None:
    made = files.load(write('version: "1"\nretry_policy: {}\nproviders: {eso: {cooldown: {base_s: 7}}}\n'))
    assert made.cooldown() is None
    assert made.cooldown("eso") == files.Cooldown(7.0)


def test_bounds_apply_to_every_extending_file_and_can_only_narrow(write: Write) -> None:
    parent = 'version: "1"\nbounds: {base_delay_sec: [0.5, 1]}\nretry_policy: {base_delay: 0.5}\n'
    assert child(write, "retry_policy: {base_delay: 1}", parent).policy().schedule.base == 1.0
    said = faults(write, "retry_policy: {base_delay: 1.1}", parent)
    assert (
        "child.yaml:3:28: retry_policy.base_delay is 1.1; the bounds of this profile allow 0.5 to 1" in said
    )
    said = faults(write, "bounds: {base_delay: [0.5, 2]}", parent)
    assert "bounds.base_delay is wider than the inherited one, which is 0.5 to 1" in said
    narrow = "bounds: {base_delay: [0.5, 0.7]}\n"
    assert child(write, narrow + "retry_policy: {base_delay: 0.6}", parent).policy().schedule.base == 0.6
    assert "allow 0.5 to 0.7" in faults(write, narrow + "retry_policy: {base_delay: 0.8}", parent)
    # A list of delays does not lead around a bound on the first one.
    assert "delays_s is 3; the bounds" in faults(write, "retry_policy: {delays_s: [3, 4]}", parent)
    said = faults(write, "providers: {x: {retry_policy: {base_delay: 3}}}", parent)
    assert "providers.x.retry_policy.base_delay is 3" in said


def test_a_governed_file_stays_governed_in_those_that_extend_it(write: Write) -> None:
    parent = "version: retry-loop-v1.0\ngoverned: true\nretry_policy: {timeout_s: 1}\n"
    said = faults(write, "governed: false", parent)
    assert "child.yaml:3:1: governed cannot be false here: the extended file is governed" in said
    assert "version of a governed file has the form retry-loop-v<major>.<minor>" in faults(write, "", parent)


def test_a_governed_policy_may_not_extend_a_profile_that_breaks_the_kfm_rules(write: Write) -> None:
    write("version: '1'\nextends: lit\n", "between.yaml")
    for parent in ("lit", "between.yaml"):
        path = write(f"version: retry-loop-v1.0\ngoverned: true\nextends: {parent}\n", "child.yaml")
        with pytest.raises(PolicyError, match=r"child.yaml:2:1: governed cannot be true .* \(X-41\)"):
            files.load(path)
    path = write("version: '1'\nextends: lit\nkfm_compliant: true\n", "child.yaml")
    with pytest.raises(PolicyError, match="kfm_compliant cannot be true here: the extended file does not"):
        files.load(path)


@pytest.mark.req("BACKOFF-21")
def test_values_below_a_minimum_are_raised_to_it_with_one_warning_each(write: Write) -> None:
    parent = PARENT + "minimums: {retry_attempts: 1, retry_backoff_seconds: 0}\n"
    for field, value, told in (
        ("retry_attempts", "0", "retry_attempts is 0; raised to its minimum, 1"),
        ("max_retries", "-3", "max_retries is -3; raised to its minimum, 0"),
        ("retry_backoff_seconds", "-1", "retry_backoff_seconds is -1; raised to its minimum, 0"),
    ):
        with pytest.warns(PolicyWarning, match=told) as caught:
            made = child(write, f"retry_policy: {{{field}: {value}}}", parent)
        assert len(caught) == 1
        assert (made.policy().max_attempts == 1) is (field != "retry_backoff_seconds")
        assert (made.policy().schedule.base == 0.0) is (field == "retry_backoff_seconds")
    for value in ("null", "-.inf", "true", "x"):
        assert "retry_policy.retry_attempts is" in faults(
            write, f"retry_policy: {{retry_attempts: {value}}}", parent
        )


def test_circles_are_refused(write: Write) -> None:
    write('version: "1"\nextends: b.yaml\n', "a.yaml")
    write('version: "1"\nextends: c.yaml\n', "b.yaml")
    path = write('version: "1"\nextends: a.yaml\n', "c.yaml")
    with pytest.raises(
        PolicyError, match=r"b.yaml:2:10: extends leads in a circle: c.yaml → a.yaml → b.yaml → c.yaml"
    ):
        files.load(path)
    with pytest.raises(PolicyError, match=r"extends leads in a circle: self.yaml → self.yaml"):
        files.load(write('version: "1"\nextends: self.yaml\n', "self.yaml"))


def test_a_long_chain_is_refused(write: Write) -> None:
    write('version: "1"\nretry_policy: {}\n', "f0.yaml")
    for n in range(1, 8):
        write(f'version: "1"\nextends: f{n - 1}.yaml\n', f"f{n}.yaml")
    here = write("", "x").parent
    assert files.load(here / "f5.yaml").extends == ("f4", "f3", "f2", "f1", "f0")
    with pytest.raises(PolicyError, match=r"f1.yaml:2:10: extends leads over more than 5 files"):
        files.load(here / "f6.yaml")


@pytest.mark.parametrize(
    ("extends", "said"),
    [
        ("nowhere.yaml", "nowhere.yaml: cannot be read: there is no such file"),
        (
            "nothing",
            "child.yaml:2:10: extends cannot be followed: policy 'nothing' is not known; known are exoarmur",
        ),
        ("/etc/policy.yaml", "'/etc/policy.yaml' is a path of one machine"),
        ("broken.yaml", "broken.yaml:1:1: zzz is not a field"),
    ],
)
def test_an_extends_that_cannot_be_followed_is_refused(write: Write, extends: str, said: str) -> None:
    write("zzz: 1\n", "broken.yaml")
    with pytest.raises(PolicyError) as caught:
        files.load(write(f'version: "1"\nextends: {extends}\n', "child.yaml"))
    assert said in str(caught.value)


def test_a_fault_in_an_inherited_value_is_reported_at_its_own_position(write: Write) -> None:
    said = faults(write, "", "version: '1'\nretry_policy: {max_attempts: 0}")
    assert "parent.yaml:2:30: retry_policy.max_attempts is 0" in said
