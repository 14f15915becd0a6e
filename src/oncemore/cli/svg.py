"""The delays of a policy as an SVG file: the range of the jitter, the planned delays and sample runs.

The file is self-contained: no scripts, fonts or URLs. It has a title and a description for screen readers,
shows no fact by color alone, draws its own background, and follows the reader's light or dark theme.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.queries.charts import (
    BASE_STYLE,
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    escape_xml,
    format_number,
    format_points,
    open_svg,
    render_text,
    round_ticks,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.queries.policy_schedule import DelayRange, SampleDelays

MAX_LABELS = 12

STYLE = """
.band { fill: #54aeff; fill-opacity: .28; stroke: #0969da; stroke-width: 1; stroke-dasharray: 2 3 }
.plan { fill: none; stroke: #0550ae; stroke-width: 2.5 } .dot { fill: #0550ae }
.run { fill: none; stroke: #9a6700; stroke-width: 1; stroke-opacity: .8 } .at { fill: #9a6700 }
@media (prefers-color-scheme: dark) {
  .band { fill: #388bfd; fill-opacity: .3; stroke: #79c0ff }
  .plan { stroke: #a5d6ff } .dot { fill: #a5d6ff } .run { stroke: #e3b341 } .at { fill: #e3b341 }
}
"""


class ChartFrame(Value):
    """The coordinates of attempts and seconds in the chart.

    waits  the number of delays
    top_s  the seconds at the upper edge
    """

    waits: int
    top_s: float

    def x(self, after: int) -> float:
        """Return the x coordinate of the delay after an attempt."""
        width = WIDTH - LEFT - RIGHT
        # Half a column of margin on both sides keeps the labels of the outer delays inside.
        return LEFT + width * (after - 0.5) / max(1, self.waits)

    def y(self, seconds: float) -> float:
        """Return the y coordinate of a delay; SVG counts from the upper edge."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / self.top_s


def render_svg(
    heading: str, below: str, delays: Sequence[DelayRange], samples: Sequence[SampleDelays]
) -> str:
    """Return the whole SVG document; without delays it says so in words."""
    scale = round_ticks(max((delay.high_s for delay in delays), default=1.0), 7)
    frame = ChartFrame(len(delays), scale[-1])
    parts = [
        *open_svg(heading, below, _describe_chart(heading, delays, samples), style=BASE_STYLE + STYLE),
        *(
            _render_scale(frame, scale)
            if delays
            else [render_text(WIDTH / 2, HEIGHT / 2, "no retry: one attempt, no waits", "middle")]
        ),
        *(_render_band(frame, delays) if delays else []),
        *(line for sample in samples if delays for line in _render_sample(frame, sample)),
        *(_render_planned(frame, delays) if delays else []),
        *(_render_legend(bool(samples)) if delays else []),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _describe_chart(heading: str, delays: Sequence[DelayRange], samples: Sequence[SampleDelays]) -> str:
    if not delays:
        return f"{heading}: one attempt, no waits."
    waits = "; ".join(
        f"after attempt {delay.after} {format_number(delay.low_s)} to {format_number(delay.high_s)} s, "
        f"{format_number(delay.planned_s)} s planned"
        for delay in delays
    )
    runs = "".join(
        f" A run with the seed {sample.seed} waits {', '.join(map(format_number, sample.delays_s))} s."
        for sample in samples
    )
    return f"{waits}.{runs}"


def _render_scale(frame: ChartFrame, scale: Sequence[float]) -> list[str]:
    """Draw the horizontal lines with their seconds, and the numbers of the attempts."""
    lines = []
    for seconds in scale:
        y = frame.y(seconds)
        lines.append(f'<line class="{"grid" if seconds else "axis"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
                     f'y1="{y:.2f}" y2="{y:.2f}"/>')  # fmt: skip
        lines.append(render_text(LEFT - 8, y + 4, f"{format_number(seconds)} s", "end", "soft"))
    # At most 20 numbers fit on the axis; of more attempts, every second, third… one has its number.
    every = max(1, -(-frame.waits // 20))
    lines += [
        render_text(frame.x(n), HEIGHT - BOTTOM + 20, f"{n}", "middle", "soft")
        for n in range(1, frame.waits + 1)
        if (n - 1) % every == 0
    ]
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [*lines, render_text(middle, HEIGHT - BOTTOM + 38, "wait after attempt", "middle", "soft")]


def _render_band(frame: ChartFrame, delays: Sequence[DelayRange]) -> list[str]:
    """Draw the range of the delays as a band; a single delay as a bar, because a band needs two points."""
    if len(delays) == 1:
        (delay,) = delays
        x, high, low = frame.x(1), frame.y(delay.high_s), frame.y(delay.low_s)
        corners = [(x - 30, high), (x + 30, high), (x + 30, low), (x - 30, low)]
    else:
        upper = [(frame.x(delay.after), frame.y(delay.high_s)) for delay in delays]
        corners = upper + [(frame.x(delay.after), frame.y(delay.low_s)) for delay in reversed(delays)]
    return [f'<polygon class="band" points="{format_points(corners)}"/>']


def _render_planned(frame: ChartFrame, delays: Sequence[DelayRange]) -> list[str]:
    points = [(frame.x(delay.after), frame.y(delay.planned_s)) for delay in delays]
    dots = [
        f'<circle class="dot" cx="{x:.2f}" cy="{y:.2f}" r="4"><title>after attempt {delay.after}: '
        f"{format_number(delay.planned_s)} s planned, {_format_range(delay)}</title></circle>"
        for delay, (x, y) in zip(delays, points, strict=True)
    ]
    # Right-aligned: the delays usually rise from the left, so the space to the left of a point is free.
    ranges = [
        render_text(frame.x(delay.after) + 10, frame.y(delay.high_s) - 10, _format_range(delay), "end")
        for delay in delays
        if len(delays) <= MAX_LABELS
    ]
    return [f'<polyline class="plan" points="{format_points(points)}"/>', *dots, *ranges]


def _format_range(delay: DelayRange) -> str:
    low, high = format_number(delay.low_s), format_number(delay.high_s)
    return f"{high} s" if low == high else f"{low} to {high} s"


def _render_sample(frame: ChartFrame, sample: SampleDelays) -> list[str]:
    points = [(frame.x(n), frame.y(seconds)) for n, seconds in enumerate(sample.delays_s, 1)]
    # The title inside of the line is the tooltip in a browser.
    dots = [f'<circle class="at" cx="{x:.2f}" cy="{y:.2f}" r="2.5"/>' for x, y in points]
    return [
        f'<polyline class="run" points="{format_points(points)}"><title>seed '
        f"{escape_xml(sample.seed)}</title></polyline>",
        *dots,
    ]


def _render_legend(has_runs: bool) -> list[str]:
    # Between the summary and the chart; each entry has a shape besides its color.
    y = 76
    lines = [
        f'<rect class="band" x="{LEFT}" y="{y - 9}" width="26" height="10"/>',
        render_text(LEFT + 32, y, "shortest to longest wait", "start", "soft"),
        f'<line class="plan" x1="{LEFT + 200}" x2="{LEFT + 226}" y1="{y - 4}" y2="{y - 4}"/>',
        f'<circle class="dot" cx="{LEFT + 213}" cy="{y - 4}" r="4"/>',
        render_text(LEFT + 232, y, "planned", "start", "soft"),
    ]
    if has_runs:
        lines += [
            f'<line class="run" x1="{LEFT + 306}" x2="{LEFT + 332}" y1="{y - 4}" y2="{y - 4}"/>',
            f'<circle class="at" cx="{LEFT + 319}" cy="{y - 4}" r="2.5"/>',
            render_text(LEFT + 338, y, "runs, by their seeds", "start", "soft"),
        ]
    return lines
