"""The share of exhausted operations, and the alert."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.profiles.lit import ExhaustionAlert, alert

if TYPE_CHECKING:
    from oncemore.testing import FakeClock


def count(counter: ExhaustionAlert, good: int, bad: int = 0) -> None:
    for failed in [False] * good + [True] * bad:
        counter.count(exhausted=failed)


def test_an_alert_begins_once_with_the_share_and_ends_with_the_window(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    alerts: list[str] = []
    counter = ExhaustionAlert(on_alert=lambda it: alerts.append(str(it)))
    count(counter, 0, 1)
    assert (counter.rate, counter.is_alerting) == (1.0, False)  # one of one says nothing
    count(counter, 4)
    assert (counter.rate, counter.is_alerting, counter.alerts) == (0.2, True, 1)
    count(counter, 0, 2)
    assert alerts == ["1 of 5 operations"]
    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert line.getMessage() == (
        "exhaustion rate 1 of 5 operations: ALERT likely upstream outage or database pressure"
    )
    clock.advance(899)
    assert counter.is_alerting
    clock.advance(2)
    assert (counter.operations, counter.exhausted, counter.rate, counter.is_alerting) == (0, 0, 0.0, False)
    count(counter, 4, 1)
    assert (counter.alerts, counter.total, counter.total_exhausted) == (2, 12, 4)


def test_the_numbers_of_the_alert_are_those_of_the_requirements(clock: FakeClock) -> None:
    """G-20: exhaustion above 5 % of operations over 15 minutes."""
    counter = ExhaustionAlert()
    count(counter, 19, 1)
    assert (counter.window_s, counter.threshold, counter.rate) == (900.0, 0.05, 0.05)
    assert not counter.is_alerting, "5 % is not above 5 %"
    count(counter, 0, 1)
    assert counter.is_alerting


def test_the_counter_keeps_a_bounded_number_of_operations(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert, "MAX_KEPT", 10)
    counter = ExhaustionAlert()
    count(counter, 0, 8)
    count(counter, 8)
    assert (counter.operations, counter.exhausted, counter.total_exhausted) == (10, 2, 8)


def test_deferred_operations_are_not_exhausted(clock: FakeClock) -> None:
    counter = ExhaustionAlert()
    for _ in range(20):
        counter.count(exhausted=False, deferred=True)
    assert (counter.total_deferred, counter.exhausted, counter.is_alerting) == (20, 0, False)


def test_a_failing_hook_does_not_fail_the_operation(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(counter: ExhaustionAlert) -> None:
        raise RuntimeError("the pager is down")

    counter = ExhaustionAlert(minimum_operations=1, on_alert=broken)
    count(counter, 0, 1)
    assert "on_alert failed" in caplog.text


@pytest.mark.parametrize(
    ("told", "fault"),
    [
        ({"window_s": 0}, "window_s is 0; it must be more than 0"),
        ({"threshold": -0.1}, "threshold is -0.1; it must be a share"),
        ({"threshold": 1}, "threshold is 1; it must be a share from 0, and below 1"),
        ({"minimum_operations": 0}, "minimum_operations is 0; it must be 1 or more"),
    ],
)
def test_invalid_numbers_are_refused(told: dict[str, Any], fault: str) -> None:
    with pytest.raises(oncemore.UsageError, match=fault):
        ExhaustionAlert(**told)
