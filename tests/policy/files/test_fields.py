"""The fields of a policy file: allowed values, spellings and error messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncemore import Policy, PolicyError, PolicyWarning
from oncemore.policy import files
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.tuning import Tuning
from oncemore.policy.verdict import ErrorClasses

Write = Callable[..., Path]


def faults(write: Write, text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        files.load(write(text))
    return str(caught.value)


def of(write: Write, fields: str, more: str = "", version: str = '"1"') -> Policy:
    """The policy that a file with these fields holds."""
    files.forget()
    return files.load(write(f"version: {version}\nretry_policy: {{{fields}}}\n{more}")).policy()


@pytest.mark.req("POL-9")
def test_a_misspelt_field_is_refused_with_its_line_and_the_field_it_means(write: Write) -> None:
    said = faults(write, 'version: "1"\nretry_policy:\n  max_attempt: 6\n')
    assert "mine.yaml:3:3: retry_policy.max_attempt is not a field; did you mean max_attempts?" in said


@pytest.mark.req("POL-9")
def test_every_fault_of_a_file_is_reported_at_once(write: Write) -> None:
    said = faults(
        write,
        "verzion: 1\n"
        "governed: yes\n"
        "retry_policy:\n"
        "  max_attempts: 0\n"
        "  timeout_s: soon\n"
        "  jitter: wild\n"
        "circuit_breaker: {max_failures: none}\n",
    )
    assert [line.partition("mine.yaml")[2] for line in said.splitlines()] == [
        ":1:1: verzion is not a field; did you mean version?",
        ":2:11: governed is 'yes'; it must be true or false",
        ":4:17: retry_policy.max_attempts is 0; it must be a whole number from 1 to 1000",
        ":5:14: retry_policy.timeout_s is 'soon'; it must be a number above 0, up to 31536000, or null",
        ":6:11: retry_policy.jitter is 'wild'; it must be one of "
        "none, full, equal, additive, proportional, decorrelated",
        ":7:33: circuit_breaker.max_failures is 'none'; it must be a whole number from 1 to 1000000",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("governed: true\nretry_policy: {timeout_s: 1}", 'version is missing'),
        ('version: "1"\ngoverned: true\nretry_policy: {timeout_s: 1}', "1:10: version of a governed file"),
        ("version: retry-loop-v1\ngoverned: true\nretry_policy: {timeout_s: 1}", "v<major>.<minor>"),
        ("version: retry-loop-v1.02\ngoverned: true\nretry_policy: {timeout_s: 1}", "file has the form"),
        ("version: 1.0\nretry_policy: {}", "version is 1.0; it must be a text; put it in quotes"),
        ("version: 2026-01-01\nretry_policy: {}", "version is '2026-01-01'; it must be a text; put"),
        ("version: ''\nretry_policy: {}", "version is ''"),
        ("version: null\nretry_policy: {}", "version is null; it must be a text"),
    ],
)  # fmt: skip
def test_a_wrong_version_is_refused(write: Write, text: str, said: str) -> None:
    assert said in faults(write, text)


def test_the_version_of_a_file_is_in_its_policies(write: Write) -> None:
    assert of(write, "", version="retry-loop-v2.7").version == "retry-loop-v2.7"


@pytest.mark.req("BACKOFF-1")
@pytest.mark.parametrize(
    "value",
    ["null", "0", "-1", ".inf", "-.inf", ".nan", "1e999", "2.5", "true", "'3'", "[3]", "{a: 3}", "1001"],
)
@pytest.mark.parametrize("field", ["max_attempts", "retry_attempts", "attempts"])
def test_attempts_without_a_finite_number_are_refused(write: Write, field: str, value: str) -> None:
    said = faults(write, f'version: "1"\nretry_policy: {{{field}: {value}}}')
    assert f"retry_policy.{field} " in said
    assert "it must be a whole number from 1 to 1000" in said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("max_retries: -1", "max_retries is -1; it must be a whole number from 0 to 999"),
        ("base_delay_s: .nan", "base_delay_s is nan; it must be a number from 0 to 31536000"),
        ("base_delay_s: -1", "base_delay_s is -1"),
        ("base_delay: 1_000", "base_delay is '1_000'"),
        ("base_delay: 010", "base_delay is '010'"),
        ("base_delay: 0x10", "base_delay is '0x10'"),
        ("base_delay: 1:30", "base_delay is '1:30'"),
        ("factor: 0.5", "factor is 0.5; it must be a number from 1 to 1000"),
        ("delays_s: []", "delays_s is a list; it must be a list of numbers from 0 to 31536000 with 1 to 200"),
        ("delays_s: 5", "delays_s is 5; it must be a list of numbers"),
        ("delays_s: [1, x]", "delays_s[2] is 'x'; it must be a number from 0"),
        ("schedule: exponental", "schedule is 'exponental'; it must be one of exponential, linear, fixed; "
         "did you mean exponential?"),
        ("jitter_factor: 1.5", "jitter_factor is 1.5; it must be a number from 0 to 1"),
        ("jitter_enabled: on", "jitter_enabled is 'on'; it must be true or false"),
        ("respect_retry_after: false", "respect_retry_after is false; it must be true"),
        ("timeout_s: 0", "timeout_s is 0; it must be a number above 0"),
        ("name: 'a\"b'", "name is 'a\"b'; it must be a text of the form"),
        ("classify: 5", "classify is 5; it must be a group of fields"),
        ("classify: {retryable: HTTP_503}", "retryable is 'HTTP_503'; it must be a list of texts"),
        ("classify: {retryable: ['a b']}", "retryable[1] is 'a b'; it must be a text of the form"),
        ("classify: {retryable: [2026-01-01]}", "retryable[1] is '2026-01-01'"),
        ("description: 2026-01-01", "description is '2026-01-01'; it must be a text; put it in quotes"),
        ("description: 5", "description is 5; it must be a text; put it in quotes"),
        ("description: [a]", "description is a list; it must be a text"),
        ("jitter_seed: <md5(run_id)>", "cannot be used: jitter_seed is '<md5(run_id)>'"),
        ("max_delay_s: 5, base_delay_s: 6", "cannot be used: max_delay_s is 5 but the first delay is 6"),
        ("jitter: full, jitter_span_s: 5", "jitter_span_s is for additive jitter, and the jitter is full"),
        ("jitter: full, jitter_factor: 0.5",
         "jitter_factor is for proportional jitter, and the jitter is full"),
        ("jitter: full, jitter_enabled: false", "jitter_enabled contradicts the jitter, which is full"),
        ("jitter: none, jitter_enabled: true", "jitter_enabled contradicts the jitter, which is none"),
        ("schedule: fixed", "schedule is fixed, which needs delays_s"),
        ("schedule: linear, factor: 2", "factor is for an exponential schedule, and this one is linear"),
        ("schedule: linear, delays_s: [1]", "schedule is linear, but delays_s gives the delays one by one"),
        ("delays_s: [1, 50], max_delay_s: 40", "delays_s holds 50, which is more than max_delay_s, 40"),
        ("delays_s: [2, 10, 30], interval: 2, rate: 4, cap: 30",
         "delays_s does not follow from base_delay_s and factor, which give 2, 8, 30"),
        ("delays_s: [2, 10], interval: 2", "which give 2, 4"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_what_is_allowed(write: Write, fields: str, said: str) -> None:
    told = faults(write, f'version: "1"\nretry_policy: {{{fields}}}')
    assert said in told
    assert "mine.yaml:2:" in told


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retry_policy: 5", "retry_policy is 5; it must be a group of fields"),
        ("retry_policy: [5]", "retry_policy is a list; it must be a group of fields"),
        ("policies: {x: 5}", "policies.x is 5; it must be a group of fields"),
        ("policies: {'a b': {}}", "policies.a b is not a name"),
        ("policies: []", "policies is a list"),
        ("description: x", "retry_policy is missing; a policy file holds a policy"),
        ("retry_policy: {}\npolicies: {default: {}}",
         "policies.default is the same policy as retry_policy in line 2"),
        ("retry_policy: {}\nproviders: {x: 5}", "providers.x is 5; it must be a group of fields"),
        ("retry_policy: {}\nproviders: {x: {policies: {y: {}}}}",
         "y is not a policy of this file; it has default"),
        ("retry_policy: {}\nproviders: {x: {cooldown: 5}}", "providers.x.cooldown is 5"),
        ("retry_policy: {}\nproviders: {x: {cooldown: {base: 5}}}", "did you mean base_s?"),
        ("retry_policy: {}\nproviders: {x: {retry_policy: {attempts: 0}}}",
         "providers.x.retry_policy.attempts is 0"),
        ("retry_policy: {}\ncooldown: 5", "cooldown is 5; it must be a group of fields"),
        ("retry_policy: {}\ncooldown: {provider_overrides: {x: {base_s: 1}}}\n"
         "providers: {x: {cooldown: {base_s: 2}}}", "provider_overrides.x is given twice: also in line 4"),
        ("retry_policy: {}\ncooldown: {provider_overrides: 5}", "provider_overrides is 5; it must be names"),
        ("retry_policy: {}\nproviders: {x: 5}\ncooldown: {provider_overrides: {x: {}}}", "providers.x is 5"),
        ("retry_policy: {}\nproviders: 5\ncooldown: {provider_overrides: {x: {}}}", "providers is 5"),
        ("retry_policy: {}\nbounds: {max_retries: [1, 2]}", "bounds.max_retries is not a field"),
        ("retry_policy: {}\nbounds: {jitter: [1, 2]}", "bounds.jitter[1] is 1; it must be one of none, full"),
        ("retry_policy: {}\nminimums: {jitter: 1}", "minimums.jitter is not a field"),
        ("retry_policy: {}\nbounds: {base_delay: [1, 2], base_delay_s: [1, 2]}",
         "is the same field as bounds.base_delay"),
        ("retry_policy: {}\nbounds: {base_delay: [2, 1]}", "bounds.base_delay must be a list of two numbers"),
        ("retry_policy: {}\nbounds: {base_delay: 5}", "bounds.base_delay must be a list of two numbers"),
        ("retry_policy: {}\nbounds: {base_delay: [1]}", "bounds.base_delay must be a list of two numbers"),
        ("retry_policy: {}\nbounds: {base_delay: [1, x]}", "bounds.base_delay must be a list of two numbers"),
        ("retry_policy: {}\nbounds: 5", "bounds is 5; it must be names of fields"),
        ("retry_policy: {}\nminimums: {attempts: x}", "minimums.attempts is 'x'; it must be a number"),
        ("retry_policy: {}\ntelemetry_tuning: 5", "telemetry_tuning is 5"),
        ("retry_policy: {}\ntelemetry_tuning: {carbon_intensity: {low: 600}}",
         "3:1: retry_policy cannot be used: tuning.carbon_high must be above tuning.carbon_low"),
        ("retry_policy: {}\nreview_by: tomorrow",
         "review_by is 'tomorrow'; it must be a day such as 2026-01-31"),
        ("retry_policy: {}\nreview_by: [1]", "review_by is a list"),
        ("retry_policy: {}\nreview_by: 2026-02-30", "review_by is '2026-02-30'"),
        ("retry_policy: {}\npriority: P3", "priority is 'P3'; it must be one of P0, P1, P2"),
        ("retry_policy: {}\npriority: {x: [1]}", "priority is a group of fields; it must be one of P0"),
        ("retry_policy: {}\nlease: 3", "lease is 3; it must be a group of fields"),
        ("retry_policy: {}\non_non_retryable: 3", "on_non_retryable is 3; it must be a list of halt"),
        ("retry_policy: {}\non_non_retryable: [[ledger]]", "on_non_retryable[1] is a list; it must be"),
        ("retry_policy: {}\nstates: [GONE]", "states[1] is 'GONE'; it must be one of PENDING"),
        ("retry_policy: {}\nstates: 5", "states is 5; it must be a list with all of PENDING, RUNNING"),
        ("retry_policy: {}\nlease: {ttl: 5}", "lease.ttl is not a field; did you mean ttl_s?"),
        ("retry_policy: {}\nmax_attempts: 5",
         "max_attempts is not a field here; it belongs into retry_policy"),
        ("retry_policy: {governed: true}", "governed is not a field here; it belongs to the top of the file"),
        ("retry_policy: {}\nzzz: 5", "zzz is not a field; known here are actions_never_auto_retried"),
        ("retry_policy: {}\nextends: 5", "extends is 5; it must be a text"),
    ],
)  # fmt: skip
def test_values_of_the_wrong_type_are_refused_with_their_position(write: Write, text: str, said: str) -> None:
    assert said in faults(write, f'version: "1"\n{text}')


def test_too_many_items_or_names_are_refused(write: Write) -> None:
    items = ", ".join("A" for _ in range(201))
    assert "it must be a list of texts with 1 to 200 items" in faults(
        write, f'version: "1"\nretry_policy: {{}}\nclassify: {{retryable: [{items}]}}'
    )
    names = ", ".join(f"n{n}: {{}}" for n in range(201))
    assert "policies has 201 names; it takes 200" in faults(
        write, f'version: "1"\nretry_policy: {{}}\npolicies: {{{names}}}'
    )
    assert "policies.a b is not a name" in faults(
        write, 'version: "1"\nretry_policy: {}\npolicies: {a b: {}}'
    )


@pytest.mark.parametrize(
    "names", [("base_delay_s", "interval"), ("max_attempts", "max_retries"), ("factor", "rate")]
)
def test_a_field_given_under_two_spellings_is_an_error_that_names_both_lines(
    write: Write, names: tuple[str, str]
) -> None:
    first, second = names
    said = faults(write, f'version: "1"\nretry_policy:\n  {first}: 1\n  {second}: 1\n')
    assert f"mine.yaml:4:3: retry_policy.{second} is the same field as retry_policy.{first}" in said
    assert "it is given in line 3 and in line 4" in said
    assert "is the same field as profile" in faults(
        write, 'version: "1"\nprofile: x\nname: y\nretry_policy: {}'
    )


def test_max_retries_is_max_attempts_minus_one(write: Write) -> None:
    assert of(write, "max_retries: 3").max_attempts == 4
    assert of(write, "max_retries: 0").max_attempts == 1
    assert of(write, "max_attempts: 1").max_attempts == 1


@pytest.mark.parametrize(
    ("fields", "schedule"),
    [
        ("", Schedule("exponential", 1.0)),
        ("base_delay_sec: 2", Schedule("exponential", 2.0, exponent="attempt")),
        ("base_delay: 2, backoff_multiplier: 3, exponent: attempt",
         Schedule("exponential", 2.0, 3.0, "attempt")),
        ("schedule: exponential, interval: 2, rate: 3", Schedule("exponential", 2.0, 3.0)),
        ("backoff: linear, retry_backoff_seconds: 0.25", Schedule("linear", 0.25)),
        ("backoff: linear, base_backoff_s: 0.02", Schedule("linear", 0.02)),
        ("backoff_s: [1, 2]", Schedule("fixed", delays=(1.0, 2.0))),
        ("schedule: fixed, delays_s: [1, 3]", Schedule("fixed", delays=(1.0, 3.0))),
        ("backoff_s: [2, 10, 30], interval: 2, multiplier: 5, cap: 30",
         Schedule("fixed", delays=(2.0, 10.0, 30.0))),
        ("backoff_s: [4, 8], base_delay_s: 2, exponent: attempt", Schedule("fixed", delays=(4.0, 8.0))),
    ],
)  # fmt: skip
def test_schedules_are_written_in_the_words_of_the_documents(
    write: Write, fields: str, schedule: Schedule
) -> None:
    assert of(write, fields).schedule == schedule


@pytest.mark.parametrize(
    ("fields", "jitter"),
    [
        ("", Jitter("full")),
        ("schedule: linear", Jitter("full")),
        ("delays_s: [1, 2]", Jitter("none")),
        ("delays_s: [1, 2], jitter: equal", Jitter("equal")),
        ("jitter: decorrelated", Jitter("decorrelated")),
        ("jitter: additive, base_delay_s: 7", Jitter("additive", 7.0)),
        ("jitter_span_s: 3", Jitter("additive", 3.0)),
        ("jitter_seed: literal, base_delay_s: 7", Jitter("additive", 7.0)),
        ("jitter_seed: literal, delays_s: [5, 6]", Jitter("additive", 5.0)),
        ("jitter_seed: literal, jitter: full", Jitter("full")),
        ("jitter_enabled: true", Jitter("proportional", 0.1)),
        ("jitter_factor: 0.2", Jitter("proportional", 0.2)),
        ("jitter: proportional", Jitter("proportional", 0.1)),
        ("jitter_enabled: true, jitter_factor: 0.2", Jitter("proportional", 0.2)),
        ("jitter_enabled: false, jitter_factor: 0.2", Jitter("none")),
        ("jitter_enabled: false, jitter_seed: literal", Jitter("none")),
    ],
)
def test_jitter_is_given_or_implied(write: Write, fields: str, jitter: Jitter) -> None:
    assert of(write, fields).jitter == jitter


def test_the_remaining_fields_of_a_policy_are_read(write: Write) -> None:
    made = of(
        write,
        "name: exp_full_jitter, max_delay_sec: 9, timeout_s: 5, total_timeout_s: 60, retry_cost: 2, "
        "jitter_seed: '<sha256(idempotency_key)>', jitter: full",
        "classify: {unmatched: retry}\n",
    )
    assert (made.name, made.max_delay_s, made.timeout_s, made.total_timeout_s, made.retry_cost) == (
        "exp_full_jitter", 9.0, 5.0, 60.0, 2.0,
    )  # fmt: skip
    assert (made.jitter_seed, made.unmatched, made.classes) == ("<sha256(idempotency_key)>", "retry", None)
    assert of(write, "timeout_s: null").timeout_s is None
    assert of(write, "").name == "mine"


def test_classes_of_a_policy_override_those_of_the_file(write: Write) -> None:
    text = """
version: "1"
classify: {retryable: [HTTP_5xx], non_retryable: [HTTP_501], unmatched: retry}
policies:
  plain: {}
  own: {classify: {retry_on: [THROTTLED], precedence: retryable_first}}
  none: {classify: {retryable: [], non_retryable: []}}
"""
    profile = files.load(write(text))
    assert profile.policy("plain").classes == ErrorClasses(("HTTP_5xx",), ("HTTP_501",))
    assert profile.policy("own").classes == ErrorClasses(("THROTTLED",), ("HTTP_501",), "retryable_first")
    assert profile.policy("none").classes is None
    assert {policy.unmatched for policy in profile.policies.values()} == {"retry"}


@pytest.mark.req("POL-11")
@pytest.mark.parametrize("name", ["SCHEMA_INVALID", "GOVERNANCE_*", "*", "CHECKSUM_MISMATCH"])
def test_a_violation_cannot_be_made_retryable(write: Write, name: str) -> None:
    said = faults(write, f'version: "1"\nretry_policy: {{}}\nclassify:\n  retryable: [HTTP_503, "{name}"]\n')
    assert "mine.yaml:4:3: classify.retryable covers" in said
    assert "which may never be retried" in said
    said = faults(
        write, f'version: "1"\nretry_policy:\n  attempts: 0\n  classify: {{retry_on: ["{name}"]}}\n'
    )
    assert "retry_policy.classify.retry_on covers" in said
    assert "retry_policy.attempts is 0" in said


def test_a_class_in_both_lists_is_a_warning_that_says_which_wins(write: Write) -> None:
    both = 'version: "1"\nretry_policy: {}\nclassify: {retryable: [A], non_retryable: [A]}\n'
    with pytest.warns(PolicyWarning, match="A is in both lists; non_retryable wins"):
        files.load(write(both))
    with pytest.warns(PolicyWarning, match="A is in both lists; retryable wins"):
        files.load(write(both.replace("[A]}", "[A], precedence: retryable_first}"), "other.yaml"))


@pytest.mark.req("TUNE-4")
def test_the_tuning_fields_have_the_documents_names_and_defaults(write: Write) -> None:
    assert of(write, "").tuning is None
    assert of(write, "", "telemetry_tuning: {}").tuning == Tuning()
    assert of(write, "", "telemetry_tuning: {enabled: false}").tuning is None
    knobs = """telemetry_tuning:
  carbon_intensity_threshold_g_per_kWh: {low: 100, high: 200}
  energy_price_usd_per_kWh: {peak: 0.5}
  deadline_bias: {enabled: false, min_deadline_buffer_s: 60}
  max_stretch: 2
"""
    assert of(write, "", knobs).tuning == Tuning(100.0, 200.0, 0.5, False, 60.0, 2.0)


@pytest.mark.parametrize(
    "fields", ["base_delay: 2, backoff_multiplier: 1, jitter: none", "delays_s: [0]", "delays_s: [5, 5, 5]"]
)
def test_constant_delays_are_refused_when_governed_and_a_warning_elsewhere(write: Write, fields: str) -> None:
    said = faults(
        write, f"version: retry-loop-v1.0\ngoverned: true\nretry_policy: {{{fields}, timeout_s: 5}}"
    )
    assert "grow up to the cap" in said
    with pytest.warns(PolicyWarning, match="never grows"):
        of(write, fields)


@pytest.mark.req("BACKOFF-20")
def test_large_bounds_are_flagged_on_load_at_the_callers_line(write: Write) -> None:
    with pytest.warns(PolicyWarning, match=r"up to 11 calls and 181 s of waiting") as caught:
        of(write, "max_attempts: 11, max_delay_s: 30")
    assert [warning.filename for warning in caught] == [__file__]


def test_the_metadata_of_a_file_is_available(write: Write) -> None:
    profile = files.load(
        write(
            'version: "1"\nretry_policy: {}\ndescription: what for\nowner: data steward\nreviewer: council\n'
            "review_by: 2126-03-31\ncare_notes: with care\npriority: P1\nkfm_compliant: true\n"
        )
    )
    assert dict(profile.metadata) == {
        "description": "what for",
        "owner": "data steward",
        "reviewer": "council",
        "review_by": "2126-03-31",
        "care_notes": "with care",
        "priority": "P1",
        "kfm_compliant": True,
    }
