"""Tuning follows the arithmetic of G-9."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.maintenance.replay import recompute_decision
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.canonical_json import encode_canonical
from oncemore.policy.decide import Situation, decide_retry
from oncemore.policy.model import Failure
from oncemore.policy.policy import Policy
from oncemore.policy.tuning import Signals, Tuning, tune_delay

DEFAULT = Tuning()
FAILURE = Failure("transient", "maybe", None, "HTTP_503", "http:status")
QUEUE = Signals(queue_depth=1.0, parallelism=1.0)  # with 10 s of work: a queue term of 10 s


def tuned(
    b: float, intensity: float | None, price: float | None, buffer: float, knobs: Tuning = DEFAULT
) -> float:
    signals = QUEUE._replace(grid_intensity=intensity, energy_price=price)
    left = buffer + 10.0 + 10.0  # expected duration and queue come off again
    return min(tune_delay(b, knobs, signals, 900.0, 10.0, left).delay_s, left - 10.0)


# Intensity, price and buffer; then the carbon, price and risk terms, and the delay.
SIX_ROWS = [
    (200, 0.10, 7200, 0, 0, 0, 40),
    (375, 0.10, 7200, 0.5, 0, 0, 60),
    (500, 0.10, 7200, 1, 0, 0, 80),
    (620, 0.31, 7200, 1, 1, 0, 100),
    (620, 0.31, 900, 1, 1, 0.5, 50),
    (620, 0.31, 0, 1, 1, 1, 1),
]


@pytest.mark.req("TUNE-5")
@pytest.mark.parametrize("row", SIX_ROWS)
def test_the_six_rows_hold_exactly_in_a_decision_and_when_it_is_computed_again(
    row: tuple[float, ...],
) -> None:
    intensity, price, buffer, *expected = row
    policy = Policy(
        max_attempts=6, schedule=Schedule("fixed", delays=(40.0,)), jitter=Jitter("none"), max_delay_s=900.0,
        tuning=DEFAULT,
    )  # fmt: skip
    at = Situation(
        1, FAILURE, "RETRYABLE", 1000.0, deadline=1000.0 + buffer + 20.0, expected_s=10.0,
        signals=QUEUE._replace(grid_intensity=intensity, energy_price=price),
    )  # fmt: skip
    proof = decide_retry(policy, at).proof()
    # From the recorded inputs alone, as a reader of the log has them.
    for one in (proof, recompute_decision(json.loads(encode_canonical(proof))).proof()):
        terms = one["terms"]["tuned"]
        assert [terms["carbon"], terms["price"], terms["risk"], one["delay_s"]] == expected
    assert tuned(40.0, intensity, price, buffer) == expected[-1]


def test_a_dirty_grid_lengthens_the_delay() -> None:
    seen = [tuned(40.0, float(intensity), 0.1, 7200) for intensity in range(0, 1001, 10)]
    assert seen == sorted(seen)
    assert seen[50] > seen[25]


def test_a_peak_price_lengthens_the_delay() -> None:
    assert tuned(40.0, 200, 0.25, 7200) > tuned(40.0, 200, 0.24, 7200)


def test_a_near_deadline_and_a_deep_queue_shorten_the_delay() -> None:
    by_buffer = [tuned(40.0, 400, 0.3, float(buffer)) for buffer in range(0, 4000, 100)]
    assert by_buffer == sorted(by_buffer)
    by_queue = [
        tune_delay(40.0, DEFAULT, Signals(queue_depth=float(depth)), 900.0, 10.0, 2000.0).delay_s
        for depth in range(0, 200, 10)
    ]
    assert by_queue == sorted(by_queue, reverse=True)
    assert by_queue[-1] < by_queue[0]


@pytest.mark.req("TUNE-4")
def test_the_tuning_settings_have_their_defaults_and_an_effect() -> None:
    assert Tuning(250.0, 500.0, 0.25, True, 1800.0, 2.5) == DEFAULT
    base = tuned(40.0, 400, 0.3, 900)
    for changed in (
        DEFAULT._replace(carbon_low=300.0), DEFAULT._replace(carbon_high=600.0),
        DEFAULT._replace(price_peak=0.4), DEFAULT._replace(deadline_bias=False),
        DEFAULT._replace(min_buffer_s=3600.0), DEFAULT._replace(max_stretch=1.2),
    ):  # fmt: skip
        assert tuned(40.0, 400, 0.3, 900, changed) != base


@pytest.mark.req("TUNE-7")
def test_neutral_signals_do_not_change_the_delay_and_tuning_can_be_off() -> None:
    assert tune_delay(40.0, DEFAULT, Signals(100.0, 0.1, 0.0, 1.0), 900.0, 10.0, 1e6).delay_s == 40.0
    policy = Policy(max_attempts=3, schedule=Schedule("fixed", delays=(40.0,)), jitter=Jitter("none"))
    at = Situation(1, FAILURE, "RETRYABLE", 0.0, signals=Signals(620.0, 0.31))
    assert decide_retry(policy, at).delay_s == 40.0
    assert decide_retry(policy.replace(tuning=DEFAULT, max_delay_s=900.0), at).delay_s == 100.0


def test_a_missing_signal_switches_off_its_own_term_and_is_named() -> None:
    terms = tune_delay(40.0, DEFAULT, Signals(None, 0.31, 1.0, 1.0), 900.0, 10.0, 920.0)
    assert (terms.carbon, terms.price, terms.risk) == (0.0, 1.0, 0.5)
    assert terms.delay_s == 30.0
    assert terms.missing == ("grid_intensity",)
    assert tune_delay(40.0, DEFAULT, Signals(), 900.0, 0.0, None).missing == (
        "grid_intensity", "energy_price", "queue_depth",
    )  # fmt: skip
    policy = Policy(schedule=Schedule("fixed", delays=(40.0,)), jitter=Jitter("none"), tuning=DEFAULT)
    decision = decide_retry(policy, Situation(1, FAILURE, "RETRYABLE", 0.0, signals=Signals(None, 0.31)))
    assert decision.proof()["terms"]["tuned"]["missing"] == ("grid_intensity", "queue_depth")  # type: ignore[index,call-overload]
    assert "not known: grid_intensity, queue_depth" in decision.explain()


def test_an_exhausted_error_budget_forbids_stretching() -> None:
    for intensity in (0.0, 400.0, 1000.0):
        for price in (0.1, 0.5):
            spent = Signals(intensity, price, error_budget=0.0)
            assert tune_delay(40.0, DEFAULT, spent, 900.0, 0.0, None).delay_s == 40.0


@pytest.mark.req("TUNE-6")
@given(
    b=st.floats(0, 2000),
    intensity=st.none() | st.floats(-1e4, 1e6),
    price=st.none() | st.floats(-10, 1e4),
    depth=st.none() | st.floats(0, 1e6),
    parallel=st.none() | st.floats(0, 100),
    budget=st.none() | st.floats(-1, 1),
    expected=st.none() | st.floats(0, 1e4),
    left=st.floats(-1e4, 1e5),
)
def test_a_tuned_delay_stays_within_the_cap_and_never_crosses_the_deadline(
    b: float, intensity: float | None, price: float | None, depth: float | None, parallel: float | None,
    budget: float | None, expected: float | None, left: float,
) -> None:  # fmt: skip
    policy = Policy(
        max_attempts=9, schedule=Schedule("fixed", delays=(b,)), jitter=Jitter("none"), max_delay_s=2000.0,
        tuning=DEFAULT,
    )  # fmt: skip
    signals = Signals(intensity, price, depth, parallel, budget)
    at = Situation(1, FAILURE, "RETRYABLE", 50.0, deadline=50.0 + left, expected_s=expected, signals=signals)
    decision = decide_retry(policy, at)
    if decision.action == "retry":
        assert 0 <= decision.delay_s <= 2000.0
        assert decision.delay_s + (expected or 0.0) <= left + 1e-9
    else:
        assert decision.reason in ("deadline_passed", "wait_beyond_deadline")
