"""Policies in Amazon States Language: exact, or refused with the name of the field; and executed."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statelint.linter import Linter

import oncemore
from oncemore.classifiers.classify import classify
from oncemore.policy import files
from oncemore.policy.backoff import NO_JITTER, Jitter, Schedule
from oncemore.policy.files.file_reader import PACKAGED_FILES
from oncemore.policy.policy import Policy
from oncemore.policy.tuning import Tuning
from oncemore.policy.verdict import ErrorClasses, decide_verdict
from oncemore.profiles.nova_cat.input import InvalidInput, UnusableData
from oncemore.stepfunctions import export, task
from oncemore.stepfunctions.check import find_faults
from oncemore.stepfunctions.export import (
    PolicyNotExpressible,
    build_definition,
    retrier_delays,
    solve_retrier,
    translate_policy,
)
from tests.servers.step_functions import emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.step_functions import Machine

RETRYABLE, TERMINAL = task.RetryableError("HTTP_503"), task.TerminalError("HTTP_404")
QUARANTINE = task.QuarantineError("CHECKSUM_MISMATCH")


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with emulator() as machine:
        yield machine


def listed(*delays: float, **told: Any) -> Policy:
    """A policy that waits exactly so."""
    told = {"jitter": NO_JITTER, "timeout_s": 60.0, **told}
    schedule = Schedule("fixed", delays=tuple(map(float, delays))) if delays else Schedule("exponential", 1.0)
    return Policy("mine", "1", max_attempts=len(delays) + 1, schedule=schedule, **told)


# One retrier ----------------------------------------------------------------------------------------


@pytest.mark.req("SFN-2")
@pytest.mark.parametrize(
    ("delays", "numbers"),
    [
        ((2, 10, 30), {"IntervalSeconds": 2, "BackoffRate": 5.0, "MaxDelaySeconds": 30, "MaxAttempts": 3}),
        ((10, 60, 180), {"IntervalSeconds": 10, "BackoffRate": 6.0, "MaxDelaySeconds": 180,
                         "MaxAttempts": 3}),
        ((5, 5, 5), {"IntervalSeconds": 5, "BackoffRate": 1.0, "MaxAttempts": 3}),
        ((2, 3, 4), {"IntervalSeconds": 2, "BackoffRate": 1.5, "MaxDelaySeconds": 4, "MaxAttempts": 3}),
        ((1, 2, 4, 8), {"IntervalSeconds": 1, "BackoffRate": 2.0, "MaxAttempts": 4}),
        ((5, 6), {"IntervalSeconds": 5, "BackoffRate": 2.0, "MaxDelaySeconds": 6, "MaxAttempts": 2}),
        ((7,), {"IntervalSeconds": 7, "BackoffRate": 1.0, "MaxAttempts": 1}),
    ],
)  # fmt: skip
def test_delays_that_are_one_retrier_are_found(delays: tuple[int, ...], numbers: dict[str, Any]) -> None:
    found = solve_retrier(delays)
    assert found == numbers
    assert retrier_delays(found) == list(delays)
    assert translate_policy(listed(*delays)).form == "retrier"


@pytest.mark.parametrize(
    "delays", [(1, 5, 30), (1, 3, 4, 5), (2, 10, 30, 120), (5, 3), (0, 1), (3, 4, 6), (0,)]
)
def test_delays_that_are_not_one_retrier_become_a_loop(delays: tuple[int, ...]) -> None:
    assert solve_retrier(delays) is None
    made = translate_policy(listed(*delays))
    assert (made.form, made.delays, made.retrier) == ("loop", delays, {})


@given(st.lists(st.integers(0, 400), min_size=1, max_size=7))
def test_a_solved_retrier_waits_exactly_as_planned(delays: list[int]) -> None:
    found = solve_retrier(delays)
    if found is not None:
        rate = Fraction(found["BackoffRate"])
        plan = [found["IntervalSeconds"] * rate**at for at in range(found["MaxAttempts"])]
        assert [min(one, found.get("MaxDelaySeconds", one)) for one in plan] == delays
        assert retrier_delays(found) == delays


@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 6), st.integers(1, 900))
def test_every_capped_exponential_of_whole_seconds_is_solved(
    first: int, rate: int, count: int, cap: int
) -> None:
    delays = [min(first * rate**at, max(cap, first)) for at in range(count)]
    assert solve_retrier(delays) is not None


def test_one_attempt_needs_no_retrier() -> None:
    made = build_definition(listed())
    assert "Retry" not in made["States"]["Work"]
    assert translate_policy(listed(jitter=Jitter("full"), tuning=Tuning())).form == "none"
    assert Linter.validate(made) == find_faults(made) == []


# What cannot be said --------------------------------------------------------------------------------


@pytest.mark.req("SFN-8")
def test_kfm_loop_with_tuning_is_refused_with_the_field() -> None:
    with pytest.raises(
        PolicyNotExpressible, match=r"kfm-loop cannot be written .*: tuning \(telemetry_tuning"
    ) as caught:
        build_definition(files.policy("kfm-loop"))
    assert [knob.name for knob in caught.value.faults] == ["tuning", "jitter"]
    assert isinstance(caught.value, oncemore.PolicyError)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (str(again), again.faults) == (str(caught.value), caught.value.faults)


@pytest.mark.req("SFN-8")
@pytest.mark.parametrize(
    ("policy", "knob", "why"),
    [
        (listed(2, 10, tuning=Tuning()), "tuning", "carbon"),
        (listed(2, 10, jitter=Jitter("full")), "jitter", "full jitter from a seed"),
        (listed(2, 10, jitter=Jitter("proportional", 0.1)), "jitter", "proportional jitter from a seed"),
        (listed(2, 10, jitter=Jitter("decorrelated")), "jitter", "decorrelated"),
        (listed(2, 10, total_timeout_s=60.0), "total_timeout_s", "whole call"),
        (listed(2, 10, timeout_s=1.5), "timeout_s", "1.5 s"),
        (listed(2, 10, timeout_s=1e9), "timeout_s", "1e\\+09 s"),
        (listed(0.25, 0.5), "delays_s", "a delay of 0.25 s"),
        (Policy(schedule=Schedule("linear", 0.25), jitter=NO_JITTER), "base_delay_s", "a delay of 0.25 s"),
        (listed(1, 4e7), "max_delay_s", "366 days"),
    ],
)
def test_a_field_that_cannot_be_expressed_is_named(policy: Policy, knob: str, why: str) -> None:
    with pytest.raises(PolicyNotExpressible, match=why) as caught:
        build_definition(policy)
    assert [one.name for one in caught.value.faults] == [knob]


@pytest.mark.req("SFN-8")
@pytest.mark.parametrize("name", PACKAGED_FILES)
def test_every_packaged_policy_is_exact_or_refused(name: str) -> None:
    for own, policy in files.profile(name).policies.items():
        knobs = [policy.jitter.spread != "none", policy.tuning is not None, policy.schedule.base % 1]
        if any(knobs) and policy.max_attempts > 1:
            with pytest.raises(PolicyNotExpressible, match="cannot be written"):
                translate_policy(policy)
            continue
        made = translate_policy(policy)
        assert made.notes == (), own
        assert Linter.validate(build_definition(policy)) == find_faults(build_definition(policy)) == []


def test_accepted_differences_are_written_into_the_definition() -> None:
    made = build_definition(files.policy("kfm-rules"), accept=["jitter"])
    (retrier,) = made["States"]["Work"]["Retry"]
    assert retrier["JitterStrategy"] == "FULL"
    assert retrier_delays(retrier) == [1, 2, 4, 8]
    assert "delays have the random jitter of Step Functions" in made["Comment"]
    made = build_definition(files.policy("kfm-loop"), accept=["jitter", "tuning"])
    (retrier,) = made["States"]["Work"]["Retry"]
    assert (retrier["JitterStrategy"], retrier_delays(retrier)) == ("NONE", [20, 40, 80, 160, 320])
    assert "delays are not tuned" in made["Comment"]
    assert "delays have no jitter" in made["Comment"]
    assert "Retry-After is not used" in made["Comment"]
    assert translate_policy(listed(2, total_timeout_s=9.0), accept=["total_timeout_s"]).notes == (
        "the time limit of the whole call is left out",
    )
    with pytest.raises(PolicyNotExpressible, match="no single retrier"):
        translate_policy(listed(1, 5, 30, jitter=Jitter("full")), accept=["jitter"])


@pytest.mark.req("SFN-3")
def test_a_retrier_contains_only_the_errors_that_the_policy_retries() -> None:
    made = translate_policy(files.policy("nova-cat"))
    assert made.errors[:2] == ("RetryableError", "States.Timeout")
    assert "Lambda.TooManyRequestsException" in made.errors
    strict = listed(2, classes=ErrorClasses(("HTTP_503",)))
    assert translate_policy(strict).errors == ("RetryableError",)
    assert translate_policy(listed(2, classes=ErrorClasses(("THROTTLED",)))).errors == (
        "RetryableError",
        "Lambda.TooManyRequestsException",
    )


# Executed -------------------------------------------------------------------------------------------


def run(machine: Machine, policy: Policy, *turns: Any) -> tuple[str, Any, list[float], int]:
    left = list(turns)

    def work(event: Any) -> Any:
        assert event == {"order": 7}  # the input as it was given, in every attempt
        turn = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(turn, Exception):
            raise turn
        return turn

    machine.slept.clear()
    machine.called.clear()
    made = build_definition(policy, "work")
    assert Linter.validate(made) == find_faults(made) == []
    ended = machine.run(made, {"order": 7}, {"work": work})
    return ended.error or ended.status, ended.output, list(machine.slept), len(machine.called)


@pytest.mark.req("SFN-1", "SFN-3")
@pytest.mark.parametrize("delays", [(2, 10, 30), (1, 5, 30)], ids=["retrier", "loop"])
def test_a_definition_does_what_the_policy_says(delays: tuple[int, ...], machine: Machine) -> None:
    policy = listed(*delays)
    good = {"done": True}
    assert run(machine, policy, good) == ("SUCCEEDED", good, [], 1)
    assert run(machine, policy, RETRYABLE, RETRYABLE, good) == ("SUCCEEDED", good, list(delays[:2]), 3)
    assert run(machine, policy, RETRYABLE) == ("RetryableError", None, list(delays), 4)
    assert run(machine, policy, TERMINAL) == ("TerminalError", None, [], 1)
    assert run(machine, policy, RETRYABLE, QUARANTINE) == ("QuarantineError", None, [delays[0]], 2)
    assert run(machine, policy, ZeroDivisionError()) == ("TerminalError", None, [], 1)


# The function of a task -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "name", "told"),
    [
        (TimeoutError(), "RetryableError", "TIMEOUT: TimeoutError"),
        (ConnectionResetError("token=abc"), "RetryableError", "CONNECTION_RESET: ConnectionResetError"),
        (KeyError("x"), "TerminalError", "EXC_KeyError: KeyError"),
        (oncemore.NeedsReview("AMBIGUOUS_NAME"), "QuarantineError", "AMBIGUOUS_NAME: NeedsReview"),
        (
            oncemore.PolicyViolation("CHECKSUM_MISMATCH"),
            "QuarantineError",
            "CHECKSUM_MISMATCH: PolicyViolation",
        ),
        (RETRYABLE, "RetryableError", "HTTP_503"),
        (InvalidInput("INVALID_UUID", "not a UUID"), "TerminalError", "not a UUID"),
        (UnusableData("FITS_UNREADABLE", "cut short"), "QuarantineError", "cut short"),
    ],
)
def test_a_task_fails_under_the_name_of_its_class(error: Exception, name: str, told: str) -> None:
    @task.task(files.policy("nova-cat"))
    def handler(event: Any, context: Any) -> Any:
        """Do it."""
        raise error

    with pytest.raises(Exception, match=f"^{told}$") as caught:
        handler({}, None)
    assert type(caught.value).__name__ == name
    assert caught.value is error or caught.value.__cause__ is error
    assert handler.__doc__ == "Do it."


def test_a_lost_once_task_is_quarantined() -> None:
    @task.task(files.policy("nova-cat"), effect="once")
    def pay(event: Any) -> Any:
        if event == "lost":
            raise ConnectionResetError
        if event == "refused":
            raise ConnectionRefusedError
        return event

    assert pay("good") == "good"
    with pytest.raises(task.QuarantineError):
        pay("lost")
    with pytest.raises(task.RetryableError):
        pay("refused")


def test_an_error_of_a_task_means_the_same_wherever_it_goes() -> None:
    for error, kind in ((RETRYABLE, "transient"), (TERMINAL, "permanent"), (QUARANTINE, "permanent")):
        assert classify(error, 0.0).kind == kind
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        assert (type(again), again.code, str(again)) == (type(error), error.code, str(error))
    assert decide_verdict(classify(QUARANTINE, 0.0), files.policy("standard"), "idempotent") == "QUARANTINE"


def test_names_are_those_of_the_language() -> None:
    assert export.PLATFORM_FAILURES.keys() & {"States.ALL", "States.TaskFailed", "States.Runtime"} == set()
