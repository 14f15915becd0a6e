"""The rate limit: each call gets a slot, and no period has more calls than allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.errors import UsageError
from oncemore.limits.rate_rules import RateLimit, check_rate, parse_rate, take_slots


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
def test_a_rate_is_described_in_words(text: str, per: int, period_s: float) -> None:
    assert parse_rate(text)[:2] == (per, period_s)
    assert parse_rate(text).interval_s == period_s / per


@pytest.mark.parametrize("text", ["", "10", "ten/s", "10/", "10/fortnight", "1.5/s", 10, None, "/s", "1/x2s"])
def test_an_invalid_rate_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="it takes calls and a time: 10/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    "wrong", [RateLimit(0), RateLimit(5, 0.0), RateLimit(5, 1.0, 6), RateLimit(5, 1.0, True)]
)
def test_numbers_that_make_no_sense_are_refused(wrong: RateLimit) -> None:
    with pytest.raises(UsageError, match=r"(rate|burst) is"):
        check_rate(wrong)


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60),
)
def test_no_stretch_has_more_calls_than_it_allows(per: int, burst: int, pauses: list[float]) -> None:
    pulse = RateLimit(per, 1.0, min(burst, per))
    now, next_at, went = 1000.0, 0.0, []
    for pause in pauses:
        now += pause
        at, next_at = take_slots(pulse, next_at, now)
        went.append(max(at, now))
    for first in went:
        inside = [at for at in went if first <= at < first + 1.0 - 1e-9]
        assert len(inside) <= per + pulse.burst


def test_several_slots_may_be_reserved_together_and_none_twice() -> None:
    pulse = RateLimit(10)
    first, next_at = take_slots(pulse, 0.0, 1000.0, 5)
    assert (first, next_at) == (1000.0, 1000.5)
    second, _ = take_slots(pulse, next_at, 1000.0, 1)
    assert second == 1000.5
    assert take_slots(pulse, 0.0, 2000.0, 1)[0] == 2000.0  # nobody was there for long
    assert take_slots(RateLimit(10, 1.0, 10), 0.0, 2000.0, 1)[0] == pytest.approx(1999.1)
