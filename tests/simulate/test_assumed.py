"""A policy without history: sample runs from assumed failures, and the worst case."""

from __future__ import annotations

import pytest

import oncemore
from oncemore.policy import files
from oncemore.policy.tuning import Signals
from oncemore.queries.policy_schedule import compute_worst_case
from oncemore.simulate.assumed import AssumedConditions, make_assumed_run, sample_run, simulate_assumed
from tests.shell import run, told

SEEDS = [f"seed-{n}" for n in range(400)]


@pytest.mark.req("SIM-5")
@pytest.mark.parametrize("name", ["kfm-loop", "kfm-rules", "standard", "nova-cat", "p2-batch-reporting"])
def test_with_probability_1_the_result_is_the_worst_case(name: str) -> None:
    policy = files.policy(name)
    worst = compute_worst_case(policy)
    report = simulate_assumed(policy, AssumedConditions(1.0), SEEDS)
    assert (report.attempts.mean, report.attempts.most, report.worst_attempts) == (worst.calls,) * 3
    assert report.worst_delay_s == worst.delay_s
    assert report.worst_tuned_s == worst.tuned_s
    assert report.completed == 0.0
    assert report.delay_s.most <= worst.delay_s


def test_the_worst_case_of_kfm_loop_is_that_of_policy_show() -> None:
    report = told("simulate", "--policy", "kfm-loop", "--failure-probability", "1", "--samples", "5")
    assert (report["worst_attempts"], report["worst_delay_s"], report["worst_tuned_s"]) == (6, 670.0, 1675.0)


def test_the_typical_case_follows_the_probability() -> None:
    policy = oncemore.Policy(
        "three", max_attempts=3, schedule=oncemore.backoff.fixed(10.0), jitter=oncemore.Jitter("none")
    )
    report = simulate_assumed(policy, AssumedConditions(0.5, attempt_s=2.0, energy_kwh=0.1), SEEDS)
    # 1/2 end at once, 1/4 at attempt 2, 1/4 reach attempt 3: 1.75 attempts; 7 of 8 complete.
    assert report.attempts.mean == pytest.approx(1.75, abs=0.12)
    assert report.completed == pytest.approx(0.875, abs=0.05)
    assert report.delay_s.most == 20.0
    assert report.duration_s.most == 26.0
    assert report.energy_kwh is not None
    assert report.energy_kwh.most == pytest.approx(0.3)
    assert dict(report.ends).keys() == {"completed", "max_attempts_exceeded"}
    none = simulate_assumed(policy, AssumedConditions(0.0), SEEDS)
    assert (none.completed, none.worst_attempts, none.worst_delay_s) == (1.0, 1, 0.0)


def test_a_deadline_and_signals_act_as_in_a_call() -> None:
    policy = files.policy("kfm-loop")
    clean = sample_run(policy, AssumedConditions(1.0), "s")
    dirty = sample_run(policy, AssumedConditions(1.0, signals=Signals(620.0, 0.31)), "s")
    assert dirty.delay_s == pytest.approx(2.5 * clean.delay_s)
    late = simulate_assumed(policy, AssumedConditions(1.0, attempt_s=5.0, deadline_s=60.0), SEEDS[:20])
    assert late.missed_deadlines == 1.0
    assert late.duration_s.most <= 60.0


def test_the_command_prints_the_case_in_words() -> None:
    text = run(
        "simulate", "--policy", "standard", "--failure-probability", "0.3", "--deadline", "5m",
        "--attempt-duration", "1s", "--attempt-energy", "0.1", "--intensity", "620",
    ).stdout  # fmt: skip
    assert "every attempt fails with a probability of 0.3" in text
    assert "worst case" in text
    assert "miss their deadline" in text
    assert "largest stretch" in run("simulate", "--policy", "kfm-loop", "--failure-probability", "1").stdout


def test_a_sample_run_that_always_fails_has_as_many_attempts_as_asked() -> None:
    policy = files.policy("standard")
    run_of_failures = make_assumed_run(policy, AssumedConditions(1.0, attempt_s=2.0), "r", "s", 4)
    assert [attempt.outcome for attempt in run_of_failures.attempts] == ["FAILED"] * 4
    assert [attempt.began for attempt in run_of_failures.attempts] == [0.0, 2.0, 4.0, 6.0]
