"""A policy's schedule as a picture: the band between the shortest and the longest wait, the plan, and runs.

The SVG is one file that needs nothing else: no script, no font, no address. It has a title and a
description for those who do not see it, says nothing by colour alone, brings its own paper, and follows
the reader's choice of light or dark. Its numbers are the service's; `Frame` alone knows where they lie.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.cli.ticks import shown, ticks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncemore.queries.policy_schedule import Delay, Sample

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 108, 64
MOST_LABELS = 12

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.paper { fill: #ffffff } .head { font-size: 17px; font-weight: 600 } .soft { fill: #57606a }
.grid { stroke: #d0d7de; stroke-width: 1 } .axis { stroke: #57606a; stroke-width: 1 }
.band { fill: #54aeff; fill-opacity: .28; stroke: #0969da; stroke-width: 1; stroke-dasharray: 2 3 }
.plan { fill: none; stroke: #0550ae; stroke-width: 2.5 } .dot { fill: #0550ae }
.run { fill: none; stroke: #9a6700; stroke-width: 1; stroke-opacity: .8 } .at { fill: #9a6700 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .paper { fill: #0d1117 } .soft { fill: #9198a1 }
  .grid { stroke: #30363d } .axis { stroke: #9198a1 }
  .band { fill: #388bfd; fill-opacity: .3; stroke: #79c0ff }
  .plan { stroke: #a5d6ff } .dot { fill: #a5d6ff } .run { stroke: #e3b341 } .at { fill: #e3b341 }
}
"""


class Frame(Value):
    """Where attempts and seconds lie on the picture."""

    waits: int
    top_s: float

    def x(self, after: int) -> float:
        """Return where the wait after an attempt stands."""
        room = WIDTH - LEFT - RIGHT
        return LEFT + room * (after - 0.5) / max(1, self.waits)

    def y(self, seconds: float) -> float:
        """Return how high a wait stands."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / self.top_s


def picture(heading: str, below: str, delays: Sequence[Delay], samples: Sequence[Sample]) -> str:
    """Return the whole picture."""
    scale = ticks(max((delay.high_s for delay in delays), default=1.0), 7)
    frame = Frame(len(delays), scale[-1])
    parts = [
        *_head(heading, below, _told(heading, delays, samples)),
        *(
            _scale(frame, scale)
            if delays
            else [_text(WIDTH / 2, HEIGHT / 2, "no retry: one attempt, no waits", "middle")]
        ),
        *(_band(frame, delays) if delays else []),
        *(line for sample in samples if delays for line in _run(frame, sample)),
        *(_plan(frame, delays) if delays else []),
        *(_legend(bool(samples)) if delays else []),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _head(heading: str, below: str, told: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{safe(heading)}</title>',
        f'<desc id="desc">{safe(told)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(LEFT, 30, heading, "start", "head"),
        _text(LEFT, 50, below, "start", "soft"),
    ]


def _told(heading: str, delays: Sequence[Delay], samples: Sequence[Sample]) -> str:
    if not delays:
        return f"{heading}: one attempt, no waits."
    waits = "; ".join(
        f"after attempt {delay.after} {shown(delay.low_s)} to {shown(delay.high_s)} s, "
        f"{shown(delay.planned_s)} s planned"
        for delay in delays
    )
    runs = "".join(
        f" A run with the seed {sample.seed} waits {', '.join(map(shown, sample.delays_s))} s."
        for sample in samples
    )
    return f"{waits}.{runs}"


def _scale(frame: Frame, scale: Sequence[float]) -> list[str]:
    """Draw the lines of seconds with their numbers, and the numbers of the attempts."""
    lines = []
    for seconds in scale:
        y = frame.y(seconds)
        lines.append(f'<line class="{"grid" if seconds else "axis"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
                     f'y1="{y:.2f}" y2="{y:.2f}"/>')  # fmt: skip
        lines.append(_text(LEFT - 8, y + 4, f"{shown(seconds)} s", "end", "soft"))
    every = max(1, -(-frame.waits // 20))
    lines += [
        _text(frame.x(n), HEIGHT - BOTTOM + 20, f"{n}", "middle", "soft")
        for n in range(1, frame.waits + 1)
        if (n - 1) % every == 0
    ]
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    return [*lines, _text(middle, HEIGHT - BOTTOM + 38, "wait after attempt", "middle", "soft")]


def _band(frame: Frame, delays: Sequence[Delay]) -> list[str]:
    """Draw the range of the waits; a single one as a bar, because a band needs two ends."""
    if len(delays) == 1:
        (only,) = delays
        x, high, low = frame.x(1), frame.y(only.high_s), frame.y(only.low_s)
        corners = [(x - 30, high), (x + 30, high), (x + 30, low), (x - 30, low)]
    else:
        upper = [(frame.x(delay.after), frame.y(delay.high_s)) for delay in delays]
        corners = upper + [(frame.x(delay.after), frame.y(delay.low_s)) for delay in reversed(delays)]
    return [f'<polygon class="band" points="{_points(corners)}"/>']


def _plan(frame: Frame, delays: Sequence[Delay]) -> list[str]:
    at = [(frame.x(delay.after), frame.y(delay.planned_s)) for delay in delays]
    dots = [
        f'<circle class="dot" cx="{x:.2f}" cy="{y:.2f}" r="4"><title>after attempt {delay.after}: '
        f"{shown(delay.planned_s)} s planned, {_range(delay)}</title></circle>"
        for delay, (x, y) in zip(delays, at, strict=True)
    ]
    # Right-aligned, because what rises from the left leaves room there.
    ranges = [
        _text(frame.x(delay.after) + 10, frame.y(delay.high_s) - 10, _range(delay), "end")
        for delay in delays
        if len(delays) <= MOST_LABELS
    ]
    return [f'<polyline class="plan" points="{_points(at)}"/>', *dots, *ranges]


def _range(delay: Delay) -> str:
    low, high = shown(delay.low_s), shown(delay.high_s)
    return f"{high} s" if low == high else f"{low} to {high} s"


def _run(frame: Frame, sample: Sample) -> list[str]:
    at = [(frame.x(n), frame.y(seconds)) for n, seconds in enumerate(sample.delays_s, 1)]
    dots = [f'<circle class="at" cx="{x:.2f}" cy="{y:.2f}" r="2.5"/>' for x, y in at]
    return [
        f'<polyline class="run" points="{_points(at)}"><title>seed {safe(sample.seed)}</title></polyline>',
        *dots,
    ]


def _legend(runs: bool) -> list[str]:
    y = 76
    lines = [
        f'<rect class="band" x="{LEFT}" y="{y - 9}" width="26" height="10"/>',
        _text(LEFT + 32, y, "shortest to longest wait", "start", "soft"),
        f'<line class="plan" x1="{LEFT + 200}" x2="{LEFT + 226}" y1="{y - 4}" y2="{y - 4}"/>',
        f'<circle class="dot" cx="{LEFT + 213}" cy="{y - 4}" r="4"/>',
        _text(LEFT + 232, y, "planned", "start", "soft"),
    ]
    if runs:
        lines += [
            f'<line class="run" x1="{LEFT + 306}" x2="{LEFT + 332}" y1="{y - 4}" y2="{y - 4}"/>',
            f'<circle class="at" cx="{LEFT + 319}" cy="{y - 4}" r="2.5"/>',
            _text(LEFT + 338, y, "runs, by their seeds", "start", "soft"),
        ]
    return lines


def _points(corners: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in corners)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{safe(text)}</text>'


def safe(text: str) -> str:
    """Return text that can stand in XML: escaped, and without characters that XML cannot hold."""
    kept = "".join(c for c in text if c in "\t\n" or (c >= " " and not 0xD800 <= ord(c) <= 0xDFFF))
    return kept.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
