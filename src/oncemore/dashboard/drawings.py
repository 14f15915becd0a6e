"""The geometry of the drawings: timelines, bars and delays, in percent of their width. Values only.

Templates draw the rectangles as SVG. Widths are percentages, so that a drawing fits every screen, and texts
stay HTML, so that they keep their size and are read aloud.
"""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.queries.activity import MinuteCount
    from oncemore.queries.policy_schedule import DelayRange
    from oncemore.queries.run_timeline import TimeSpan

#: The narrowest bar, in percent: a call of a millisecond beside a wait of an hour stays visible.
MIN_BAR = 0.5
MAX_TICKS = 6
#: The steps of a time axis, in seconds.
TICK_STEPS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900),
    *(1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000, 31_536_000),
)


class DrawnSpan(Value):
    """A bar of a timeline: where it begins and how wide it is, in percent."""

    span: TimeSpan
    x: float
    width: float
    seconds: float
    is_open: bool


class AxisTick(Value):
    """A mark of an axis: its place in percent, and its distance from the beginning."""

    x: float
    value: float


class DrawnTimeline(Value):
    """A timeline to scale: its bars, its axis, and the time that it covers."""

    spans: tuple[DrawnSpan, ...]
    ticks: tuple[AxisTick, ...]
    begins: float
    seconds: float


class DrawnMinute(Value):
    """The bar of one minute: completed, retried and failed parts, in percent of the tallest bar."""

    minute: MinuteCount
    x: float
    width: float
    completed: float
    retries: float
    failed: float


class DrawnDelay(Value):
    """The range of one delay of a policy: from the shortest to the longest one, and the planned one.

    tuned_width  by how much tuning can lengthen the longest delay; 0 without tuning
    """

    delay: DelayRange
    x: float
    width: float
    planned_x: float
    tuned_width: float


class DrawnCurve(Value):
    """One curve in a field of 1000 by 300 units: its name, its last value, and the points of its line."""

    name: str
    last: float
    points: str


def draw_curves(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
) -> tuple[DrawnCurve, ...]:
    """Return curves over the same time and on the same scale."""
    points = [point for _, curve in curves for point in curve]
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    top = max(value for _, value in points) or 1.0
    span = max(last - first, 0.001)
    return tuple(
        DrawnCurve(
            name=name,
            last=curve[-1][1],
            # SVG counts from the upper edge.
            points=" ".join(
                f"{1000 * (at - first) / span:.1f},{300 - 296 * value / top:.1f}" for at, value in curve
            ),
        )
        for name, curve in curves
    )


def draw_timeline(spans: Sequence[TimeSpan], now: float) -> DrawnTimeline:
    """Return the bars of a run to scale; leases are cut to the time of the attempts and waits."""
    own = [span for span in spans if span.what != "lease"]
    if not own:
        return DrawnTimeline((), (), now, 0.0)
    begins = min(span.begins for span in own)
    # An open bar reaches to now; a wait that is due later reaches to its time.
    ends = max(max(span.begins, now if span.ends is None else span.ends) for span in own)
    whole = max(ends - begins, 0.001)
    drawn = []
    for span in spans:
        end = now if span.ends is None else span.ends
        left, right = (
            min(max((at - begins) / whole, 0.0), 1.0) * 100 for at in (span.begins, max(end, span.begins))
        )
        width = max(right - left, MIN_BAR)
        # A bar at the right edge grows to the left, so that its narrowest form is not cut off.
        drawn.append(
            DrawnSpan(span, min(left, 100 - width), width, max(0.0, end - span.begins), span.ends is None)
        )
    return DrawnTimeline(tuple(drawn), list_ticks(whole), begins, whole)


def list_ticks(whole: float) -> tuple[AxisTick, ...]:
    """Return round marks of an axis that begins at 0 and ends at `whole`."""
    step = next((step for step in TICK_STEPS if whole / step <= MAX_TICKS), whole)
    count = int(whole / step)
    # A mark close to the right edge would be cut off.
    return tuple(
        AxisTick(100 * n * step / whole, n * step) for n in range(count + 1) if n * step <= 0.94 * whole
    )


def draw_minutes(minutes: Sequence[MinuteCount]) -> tuple[DrawnMinute, ...]:
    """Return one bar for each minute; the tallest one has the height 100."""
    top = max((m.completed + m.failed + m.held + m.retries for m in minutes), default=0) or 1
    width = 100 / max(1, len(minutes))
    return tuple(
        DrawnMinute(
            minute=minute,
            x=width * number,
            width=0.7 * width,
            completed=100 * minute.completed / top,
            retries=100 * minute.retries / top,
            failed=100 * (minute.failed + minute.held) / top,
        )
        for number, minute in enumerate(minutes)
    )


def draw_delays(delays: Sequence[DelayRange]) -> tuple[DrawnDelay, ...]:
    """Return the delays of a policy as bars on one common axis."""
    top = max((delay.tuned_s or delay.high_s for delay in delays), default=0.0) or 1.0
    return tuple(
        DrawnDelay(
            delay=delay,
            x=100 * delay.low_s / top,
            width=max(MIN_BAR, 100 * (delay.high_s - delay.low_s) / top),
            planned_x=min(99.5, 100 * delay.planned_s / top),
            tuned_width=100 * max(0.0, (delay.tuned_s or delay.high_s) - delay.high_s) / top,
        )
        for delay in delays
    )
