"""A rate: every call has its moment, and no stretch of its period has more than it allows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.errors import UsageError
from oncemore.limits.rate_rules import Pulse, check_pulse, pulse_of, take


@pytest.mark.parametrize(
    ("text", "per", "period_s"),
    [
        ("10/s", 10, 1.0),
        ("100/min", 100, 60.0),
        ("5 / h", 5, 3600.0),
        ("1/10s", 1, 10.0),
        ("3/500ms", 3, 0.5),
    ],
)
def test_a_rate_is_said_in_words(text: str, per: int, period_s: float) -> None:
    assert pulse_of(text)[:2] == (per, period_s)
    assert pulse_of(text).step_s == period_s / per


@pytest.mark.parametrize("text", ["", "10", "ten/s", "10/", "10/fortnight", "1.5/s", 10, None, "/s", "1/x2s"])
def test_what_is_no_rate_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="it takes calls and a time: 10/s"):
        pulse_of(text)


@pytest.mark.parametrize("wrong", [Pulse(0), Pulse(5, 0.0), Pulse(5, 1.0, 6), Pulse(5, 1.0, True)])
def test_numbers_that_make_no_sense_are_refused(wrong: Pulse) -> None:
    with pytest.raises(UsageError, match=r"(rate|burst) is"):
        check_pulse(wrong)


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60),
)
def test_no_stretch_has_more_calls_than_it_allows(per: int, burst: int, pauses: list[float]) -> None:
    pulse = Pulse(per, 1.0, min(burst, per))
    now, next_at, went = 1000.0, 0.0, []
    for pause in pauses:
        now += pause
        at, next_at = take(pulse, next_at, now)
        went.append(max(at, now))
    for first in went:
        inside = [at for at in went if first <= at < first + 1.0 - 1e-9]
        assert len(inside) <= per + pulse.burst


def test_moments_may_be_taken_together_and_none_is_handed_out_twice() -> None:
    pulse = Pulse(10)
    first, next_at = take(pulse, 0.0, 1000.0, 5)
    assert (first, next_at) == (1000.0, 1000.5)
    second, _ = take(pulse, next_at, 1000.0, 1)
    assert second == 1000.5
    assert take(pulse, 0.0, 2000.0, 1)[0] == 2000.0  # nobody was there for long
    assert take(Pulse(10, 1.0, 10), 0.0, 2000.0, 1)[0] == pytest.approx(1999.1)
