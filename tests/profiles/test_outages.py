"""Outages under every profile: the reaction of durable steps to real errors, and the breaker."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pydantic
import pytest

import oncemore
from oncemore.policy import files
from tests.classifiers.outages import Point, raise_fault
from tests.servers import faults
from tools import outages

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.testing import FakeClock

#: Who raises the fault here; every other client is in tests/classifiers/test_outages.py.
RAISED_BY = {
    "slowdown": "pystac-client",
    "neo4j-transient": "neo4j",
    "sqlite-busy": "sqlite3",
    "schema": "pydantic",
}


@pytest.fixture(scope="module")
def errors() -> dict[str, BaseException]:
    """Every fault, raised once for the whole module."""
    return {fault: raise_fault(RAISED_BY.get(fault, "urllib"), fault) for fault in outages.FAULTS}


def fail_with(error: BaseException) -> tuple[list[int], Callable[[], None]]:
    """Return work that always fails in this way, and the list of its calls."""
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        raise error

    return calls, work


@pytest.mark.usefixtures("instant_retries")
@pytest.mark.parametrize("column", outages.COLUMNS)
def test_a_step_handles_every_fault_as_the_table_says(column: str, errors: dict[str, BaseException]) -> None:
    for fault in outages.FAULTS:
        expected, counts = outages.expect_outcome(RAISED_BY.get(fault, "urllib"), fault, column)
        calls, work = fail_with(errors[fault])
        with oncemore.open("memory:", max_inline_wait_s=10_000):  # a store for each: some halt their pipeline
            breaker = oncemore.Breaker("provider", failures=1000, shared=True)
            step: Any = oncemore.step(effect="idempotent", policy=column, breaker=breaker, name="work")(work)
            run = step.run()
            # A throttled operation counts where it ends by it; each operation counts once.
            assert (fault, breaker.circuit.failures) == (fault, 0 if counts == "no" else 1)
        most = files.policy(column).max_attempts if expected == outages.R else 1
        assert (fault, len(calls)) == (fault, most)
        assert (fault, run.status) == (fault, "SOFT_FAIL" if expected == outages.Q else "HARD_FAIL")
        assert (fault, bool(run.held_for)) == (fault, expected == outages.Q)


@pytest.mark.usefixtures("instant_retries")
def test_a_provider_that_refuses_connections_opens_the_breaker_of_kfm_rules() -> None:
    with faults.refusing() as server, oncemore.open("memory:"):
        calls = []

        @oncemore.step(effect="idempotent", policy="kfm-rules", breaker="stac")
        def poll(page: int) -> None:
            calls.append(page)
            with closing(socket.create_connection((faults.HOST, server.port), timeout=5)):
                pass

        runs = [poll.run(page) for page in range(4)]
    assert [calls.count(page) for page in range(4)] == [5, 5, 1, 0]
    assert [run.held_for for run in runs] == [""] * 4, "an outage is not for a person to look at"
    assert [run.status for run in runs] == ["HARD_FAIL", "HARD_FAIL", "SOFT_FAIL", "PENDING"]
    assert runs[2].reason == "circuit_open"


@pytest.mark.parametrize("policy", ["standard", *files.file_reader.PACKAGED_FILES])
def test_invalid_data_is_not_retried_with_on_exception(policy: str, instant_retries: FakeClock) -> None:
    calls = []

    @oncemore.retry(on=Exception, policy=policy)
    def read() -> None:
        calls.append(1)
        Point.model_validate({"x": "not a number"})

    with pytest.raises(pydantic.ValidationError):
        read()
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("policy", "error", "calls"),
    [
        ("lit", "404", 1),
        ("lit", "429", 1),
        ("lit", "503", 2),
        ("kfm-rules", "404", 1),
        ("kfm-rules", "503", 5),
        ("standard", "404", 3),
        ("standard", "409", 3),
    ],
)
def test_on_exception_does_not_widen_what_a_policy_lists_as_not_retryable(
    policy: str, error: str, calls: int, errors: dict[str, BaseException], instant_retries: FakeClock
) -> None:
    made, work = fail_with(errors[error])
    for on in (Exception, lambda _error: True):
        made.clear()
        with pytest.raises(type(errors[error])):
            oncemore.retrying(work, on=on, policy=policy)()  # type: ignore[arg-type]
        assert len(made) == calls


@pytest.mark.parametrize(
    "error",
    [
        oncemore.NeedsReview("AMBIGUOUS_NAME"),
        RecursionError(),
        MemoryError(),
        oncemore.DeadlineExceeded("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_never_retried_errors_are_not_retried_with_on_exception(
    error: Exception, instant_retries: FakeClock
) -> None:
    made, work = fail_with(error)
    for policy in ("standard", "exoarmur"):
        made.clear()
        with pytest.raises(type(error)):
            oncemore.retrying(work, on=Exception, policy=policy)()
        assert len(made) == 1
