"""The rules of governed policies hold for files, for what extends them, and for values given in code."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import oncemore
from oncemore.errors import PolicyError, PolicyWarning
from oncemore.policy import files
from oncemore.policy.policy import Policy
from oncemore.queries import policies

#: What is written into a file that extends a governed profile, by the field and the rule that refuse it.
LOOSE = {
    "jitter: none": ("jitter", "is none; a governed policy spreads its delays", "governed policy"),
    "backoff_multiplier: 1": (
        "backoff_multiplier",
        "the delays of a governed policy grow up to the cap",
        "grow up to the cap",
    ),
    "delays_s: [1, 1, 1, 1, 1]": ("delays_s", "plans 1, 1, 1, 1 s", "grow up to the cap"),
    "delays_s: [1, 3, 2, 5, 6]": ("delays_s", "plans 1, 3, 2, 5 s", "grow up to the cap"),
    "delays_s: [0]": ("delays_s", "plans 0, 0, 0, 0 s", "grow up to the cap"),
    "jitter_factor: 0.01": ("jitter_factor", "is 0.01; a governed policy allows 0.1 to 1", "governed policy"),
    "max_attempts: 50": ("max_attempts", "is 50; a governed policy allows 1 to 10", "governed policy"),
    "timeout_s: null": ("timeout_s", "is missing; a governed policy limits every attempt", "governed policy"),
}


def extending(base: str, field: str) -> Path:
    path = Path("mine.yaml")
    path.write_text(f"version: retry-loop-v1.0\nextends: {base}\nretry_policy: {{{field}}}\n")
    return path


@pytest.mark.req("BACKOFF-3")
@pytest.mark.parametrize("field", LOOSE)
@pytest.mark.parametrize("base", ["kfm-rules", "kfm-loop", "p2-batch-reporting"])
def test_a_file_that_loosens_a_governed_profile_is_refused(base: str, field: str) -> None:
    path = extending(base, field)
    found = policies.check_file(str(path))
    name, allowed, rule = LOOSE[field]
    assert not found.good
    (fault,) = [fault for fault in found.faults if rule in fault.message]
    assert (fault.file, fault.line, fault.field) == ("mine.yaml", 3, f"retry_policy.{name}")
    assert allowed in fault.message
    with pytest.raises(PolicyError, match=r"mine\.yaml:3"):
        policies.find_policy("mine.yaml")
    # Elsewhere a constant delay is a warning, and nothing is refused.
    path.write_text(f'version: "1"\nretry_policy: {{{field}}}\n')
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PolicyWarning)
        files.load(path)
    constant = field in ("delays_s: [1, 1, 1, 1, 1]", "delays_s: [0]")
    assert any("never grows" in str(one.message) for one in caught) is constant


@pytest.mark.parametrize(
    ("base", "field", "said"),
    [
        ("kfm-rules", "jitter: equal", "jitter is equal; the bounds of this profile allow full"),
        ("kfm-rules", "factor: 3", "factor is 3; the bounds of this profile allow 2 to 2"),
        (
            "kfm-rules",
            "base_delay_sec: 0.4",
            "base_delay_sec is 0.4; the bounds of this profile allow 0.5 to 1",
        ),
        ("kfm-loop", "jitter: full", "jitter is full; the bounds of this profile allow additive"),
        ("kfm-loop", "jitter_span_s: 0.5", "is 0.5; a governed policy allows 2 or more"),
    ],
)
def test_the_formula_of_a_profile_holds_in_what_extends_it(base: str, field: str, said: str) -> None:
    (fault,) = policies.check_file(str(extending(base, field))).faults
    assert said in f"{fault.field} {fault.message}"


def test_bounds_become_narrower_only() -> None:
    path = Path("mine.yaml")
    path.write_text("version: retry-loop-v1.0\nextends: kfm-rules\nbounds: {jitter: [full, none]}\n")
    (fault,) = policies.check_file(str(path)).faults
    assert fault.message == "is wider than the inherited one, which is full"
    path.write_text(
        "version: retry-loop-v1.0\nextends: kfm-rules\nbounds: {max_delay_s: [0, 10], jitter: [full]}\n"
    )
    (fault,) = policies.check_file(str(path)).faults
    assert "is 30; the bounds of this profile allow 0 to 10" in fault.message


def test_what_keeps_to_the_rules_is_good() -> None:
    for base, field in (
        ("kfm-rules", "max_attempts: 10"),
        ("kfm-loop", "base_delay_s: 20, jitter_span_s: 4"),
    ):
        assert policies.check_file(str(extending(base, field))).good
    for base in ("kfm-rules", "kfm-loop"):
        assert policies.check_file(str(extending(base, "max_attempts: 1"))).good


GIVEN: list[tuple[dict[str, Any], str]] = [
    ({"wait": 5}, "grow up to the cap"),
    ({"wait": [0.5, 1, 2, 4]}, "jitter is none"),
    ({"wait": oncemore.backoff.exponential(0.5, factor=1)}, "grow up to the cap"),
    (
        {"wait": oncemore.backoff.exponential(5)},
        "base_delay_s is 5; the bounds of this profile allow 0.5 to 1",
    ),
    ({"jitter": "none"}, "spreads its delays"),
    ({"jitter": oncemore.Jitter("proportional", 0.01)}, "jitter_factor is 0.01"),
    ({"attempts": 50}, r"max_attempts is 50; a governed policy allows 1 to 10"),
]


@pytest.mark.parametrize(("given", "said"), GIVEN, ids=str)
def test_values_given_in_code_are_held_to_the_rules(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        oncemore.retry(on=OSError, policy="kfm-rules", **given)(print)
    with pytest.raises(PolicyError, match=said):
        next(iter(oncemore.attempts(on=OSError, policy="kfm-rules", **given)))


def test_a_changed_copy_is_held_to_the_rules() -> None:
    rules = files.policy("kfm-rules")
    for change in ({"max_attempts": 50}, {"jitter": oncemore.Jitter("none")}, {"max_delay_s": 31}):
        with pytest.raises(PolicyError, match=r"governed policy|bounds of this profile"):
            rules.replace(**change)
    assert rules.replace(max_attempts=3, timeout_s=10).max_attempts == 3
    with pytest.raises(PolicyError, match="jitter is equal; the bounds of this profile allow full"):
        oncemore.step(effect="pure", policy=rules.replace(jitter=oncemore.Jitter("equal")))(print)
    plain = oncemore.Policy(jitter=oncemore.Jitter("none"), timeout_s=1)
    with pytest.raises(PolicyError, match="spreads its delays"):
        plain.replace(governed=True)


def test_a_linear_or_fixed_governed_policy_may_have_bounds_that_are_not_about_it() -> None:
    linear = oncemore.Policy(
        schedule=oncemore.backoff.linear(1),
        timeout_s=1,
        governed=True,
        bounds=(("factor", (2, 2)), ("total_timeout_s", (1, 9))),
    )
    assert (linear.total_timeout_s, Policy(bounds=(("jitter_span_s", (1, 2)),)).bounds) == (
        None,
        (("jitter_span_s", (1, 2)),),
    )
