"""The geometry of the drawings: everything lies inside, is to scale, and nothing is too small to see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.dashboard.drawings import (
    MIN_BAR,
    draw_curves,
    draw_delays,
    draw_minutes,
    draw_timeline,
    list_ticks,
)
from oncemore.queries.activity import MinuteCount
from oncemore.queries.policy_schedule import DelayRange
from oncemore.queries.run_timeline import TimeSpan


def test_a_timeline_is_to_scale_and_a_short_attempt_is_still_visible() -> None:
    spans = [
        TimeSpan("attempt", 1, 100.0, 100.001, "SOFT_FAIL"),
        TimeSpan("wait", 2, 100.001, 182.0),
        TimeSpan("attempt", 2, 182.0, 200.0, "COMPLETE"),
        TimeSpan("lease", 1, 0.0, None, "ALIVE"),
    ]
    drawing = draw_timeline(spans, now=300.0)
    short, wait, long, lease = drawing.spans
    assert (drawing.begins, drawing.seconds) == (100.0, 100.0)
    assert (short.x, short.width) == (0.0, MIN_BAR)
    assert wait.width == pytest.approx(81.999)
    assert (long.x, long.width) == pytest.approx((82.0, 18.0))
    # The lease began before the run and lasts: it is cut to the drawing, and its own length is told.
    assert (lease.x, lease.width, lease.is_open, lease.seconds) == (0.0, 100.0, True, 300.0)


def test_a_run_without_attempts_has_an_empty_drawing() -> None:
    assert draw_timeline([], now=1.0).spans == ()


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.none() | st.floats(0, 1e6)), min_size=1, max_size=20),
    st.floats(0, 1e6),
)
def test_every_bar_lies_inside_the_drawing(pairs: list[tuple[float, float | None]], now: float) -> None:
    spans = [TimeSpan("attempt", n, begins, ends) for n, (begins, ends) in enumerate(pairs)]
    for bar in draw_timeline(spans, now).spans:
        assert bar.width >= MIN_BAR
        assert bar.x >= 0
        assert bar.x + bar.width <= 100.0001


@given(st.floats(0.001, 1e9))
def test_an_axis_has_few_round_marks(whole: float) -> None:
    ticks = list_ticks(whole)
    assert 1 <= len(ticks) <= 7
    assert all(0 <= tick.x < 95 for tick in ticks)


def test_the_tallest_minute_fills_the_height() -> None:
    minutes = [MinuteCount(0.0), MinuteCount(60.0, completed=6, retries=2, failed=1, held=1)]
    empty, full = draw_minutes(minutes)
    assert (empty.completed, empty.x) == (0.0, 0.0)
    assert full.completed + full.retries + full.failed == pytest.approx(100.0)
    assert draw_minutes([]) == ()


def test_delays_share_one_axis() -> None:
    first, last = draw_delays([DelayRange(1, 0.0, 1.0, 2.0, None), DelayRange(2, 2.0, 4.0, 6.0, 10.0)])
    assert (first.x, first.width, first.planned_x, first.tuned_width) == (0.0, 20.0, 10.0, 0.0)
    assert (last.x, last.width, last.tuned_width) == (20.0, 40.0, 40.0)
    assert draw_delays([]) == ()


def test_two_curves_share_their_scales() -> None:
    before, after = draw_curves((("before", [(0.0, 0.0), (10.0, 4.0)]), ("after", [(0.0, 0.0), (10.0, 2.0)])))
    assert before.points == "0.0,300.0 1000.0,4.0"
    assert after.points == "0.0,300.0 1000.0,152.0"
    assert (before.last, after.last) == (4.0, 2.0)
    (flat,) = draw_curves((("nothing", [(5.0, 0.0)]),))
    assert flat.points == "0.0,300.0"
