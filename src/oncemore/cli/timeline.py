"""A run as a timeline in a terminal: one row for each attempt, wait and lease, to one scale.

    +0 s      attempt 1  0.004 s  █                          CONNECTION_RESET
    +0.004 s  wait       0.021 s  ░
    +0.025 s  attempt 2  0.003 s   █                         COMPLETE
              lease       1.70 s  ━━━━━━━━━━━━━━━━━━━━━━━━━  01a1e242 host:4711

Solid is work, shaded is a wait that was decided, dotted is time in which nobody came, a line is a lease. A
row that lasts still ends with ….
"""

from __future__ import annotations

from oncemore._time_spans import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.queries.run_timeline import Span, Story

FILL = {"attempt": "█", "wait": "░", "idle": "·", "lease": "━"}
LEGEND = {
    "attempt": "█ attempt",
    "wait": "░ wait, as decided",
    "idle": "· due, and nobody came",
    "lease": "━ lease",
}
MOST_ROWS = 60
NARROWEST = 10
NOTE = 24


def timeline(story: Story, width: int) -> list[str]:
    """Return the drawing as lines that are no longer than `width`, as far as the numbers leave room."""
    spans = _shortened([span for span in story.spans if span.what != "lease"])
    leases = [span for span in story.spans if span.what == "lease"]
    if not spans:
        return []
    first = min(span.begins for span in spans)
    last = max(_end(span, story.now) for span in spans)
    rows = [
        (
            f"+{_short(span.begins - first)}" if span.what != "lease" else "",
            _label(span),
            _lasted(span, story.now),
        )
        for span in (*spans, *leases)
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(3)]
    lead = sum(widths) + 6
    notes = width - lead >= NARROWEST + NOTE
    room = max(NARROWEST, width - lead - (NOTE + 2 if notes else 0))
    lines = []
    for row, span in zip(rows, (*spans, *leases), strict=True):
        cells = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  "
        bar = _bar(span, first, last, story.now, room)
        note = _note(span)
        if notes:
            lines.append(f"{cells}{bar:<{room}}  {note[:NOTE]}".rstrip())
        else:
            lines.append((cells + bar).rstrip()[:width])
            if note and span.what != "lease":
                lines.append(f"{' ' * (widths[0] + 2)}{note}"[:width])
    return lines


def legend(story: Story) -> str:
    """Return what the marks mean that were used."""
    used = {span.what for span in story.spans}
    return "   ".join(text for what, text in LEGEND.items() if what in used)


def _short(value: float) -> str:
    return "0 s" if abs(value) < 0.0005 else seconds(value) if value >= 1 else f"{value:.3f} s"


def _end(span: Span, now: float) -> float:
    return max(span.begins, now if span.ends is None else span.ends)


def _label(span: Span) -> str:
    if span.what == "attempt":
        return f"attempt {span.number}"
    return "held" if span.what == "wait" and span.outcome else span.what


def _lasted(span: Span, now: float) -> str:
    return _short(_end(span, now) - span.begins) + ("…" if span.ends is None else "")


def _bar(span: Span, first: float, last: float, now: float, room: int) -> str:
    """Draw one span to the scale of all; what lies outside, as leases do, is cut."""
    scale = (last - first) or 1.0
    start = max(0.0, (span.begins - first) / scale)
    end = min(1.0, (_end(span, now) - first) / scale)
    at = min(room - 1, int(start * room))
    length = max(1, min(room, round(end * room)) - at)
    bar = " " * at + FILL[span.what] * length
    return bar[: room - 1] + "…" if span.ends is None and len(bar) >= room else bar


def _note(span: Span) -> str:
    """Say what became of it, shortly."""
    if span.what == "attempt":
        end = {"COMPLETE": "COMPLETE", "RUNNING": "RUNNING"}.get(span.outcome, "")
        return end or f"{span.error or span.reason or span.outcome}"
    if span.what == "lease":
        return f"{span.worker[:8]} {span.message.replace(' process ', ':')}"
    return span.outcome.replace("_", " ") if span.what == "wait" else ""


def _shortened(spans: Sequence[Span]) -> list[Span]:
    """Leave out the middle of what is too long for anybody to read; the rows say by their numbers what."""
    if len(spans) <= MOST_ROWS:
        return list(spans)
    return [*spans[: MOST_ROWS // 2], *spans[-MOST_ROWS // 2 :]]
