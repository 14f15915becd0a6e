"""The timeline of a run in a terminal: one row per attempt, delay and lease, drawn to one scale.

    +0 s      attempt 1  0.004 s  █                          CONNECTION_RESET
    +0.004 s  delay      0.021 s  ░
    +0.025 s  attempt 2  0.003 s   █                         COMPLETE
              lease       1.70 s  ━━━━━━━━━━━━━━━━━━━━━━━━━  01a1e242 host:4711

A solid bar is an attempt, a shaded bar a decided delay, dots are time in which the run was due and no worker
claimed it, a stroke is a lease. A row that has not ended yet ends with ….
"""

from __future__ import annotations

from oncemore.policy.explain import format_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.queries.run_timeline import RunTimeline, TimeSpan

FILL_CHARACTERS = {"attempt": "█", "wait": "░", "idle": "·", "lease": "━"}
LEGEND_TEXTS = {"attempt": "█ attempt", "wait": "░ delay", "idle": "· due, not claimed", "lease": "━ lease"}
MAX_ROWS = 60
MIN_BAR_WIDTH = 10
NOTE_WIDTH = 24


def draw_timeline(timeline: RunTimeline, width: int) -> list[str]:
    """Return the timeline as lines of at most `width` columns; a bar has at least `MIN_BAR_WIDTH`."""
    spans = _shorten_spans([span for span in timeline.spans if span.what != "lease"])
    leases = [span for span in timeline.spans if span.what == "lease"]
    if not spans:
        return []
    # Leases do not count for the scale: a worker lives much longer than one run.
    first = min(span.begins for span in spans)
    last = max(_span_end(span, timeline.now) for span in spans)
    rows = [
        (
            f"+{_format_duration(span.begins - first)}" if span.what != "lease" else "",
            _span_label(span),
            _span_duration(span, timeline.now),
        )
        for span in (*spans, *leases)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lead = sum(widths) + 6
    # On a narrow terminal the note of an attempt gets a line of its own below the bar.
    has_note_column = width - lead >= MIN_BAR_WIDTH + NOTE_WIDTH
    room = max(MIN_BAR_WIDTH, width - lead - (NOTE_WIDTH + 2 if has_note_column else 0))
    lines = []
    for row, span in zip(rows, (*spans, *leases), strict=True):
        cells = f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  "
        bar = _draw_bar(span, first, last, timeline.now, room)
        note = _span_note(span)
        if has_note_column:
            lines.append(f"{cells}{bar:<{room}}  {note[:NOTE_WIDTH]}".rstrip())
        else:
            lines.append((cells + bar).rstrip()[:width])
            if note and span.what != "lease":
                lines.append(f"{' ' * (widths[0] + 2)}{note}"[:width])
    return lines


def timeline_legend(timeline: RunTimeline) -> str:
    """Return the meaning of the characters in this timeline."""
    used = {span.what for span in timeline.spans}
    return "   ".join(text for what, text in LEGEND_TEXTS.items() if what in used)


def _format_duration(value: float) -> str:
    return "0 s" if abs(value) < 0.0005 else format_seconds(value) if value >= 1 else f"{value:.3f} s"


def _span_end(span: TimeSpan, now: float) -> float:
    return max(span.begins, now if span.ends is None else span.ends)


def _span_label(span: TimeSpan) -> str:
    if span.what == "attempt":
        return f"attempt {span.number}"
    if span.what == "wait":
        # A delay with an outcome is a hold: it ends with a decision, not at a time.
        return "held" if span.outcome else "delay"
    return span.what


def _span_duration(span: TimeSpan, now: float) -> str:
    return _format_duration(_span_end(span, now) - span.begins) + ("…" if span.ends is None else "")


def _draw_bar(span: TimeSpan, first: float, last: float, now: float, room: int) -> str:
    """Draw one span to the common scale; the part outside of it is cut, as with most leases."""
    scale = (last - first) or 1.0
    start = max(0.0, (span.begins - first) / scale)
    end = min(1.0, (_span_end(span, now) - first) / scale)
    column = min(room - 1, int(start * room))
    # At least one column, so that an attempt of a millisecond beside a delay of an hour is visible.
    length = max(1, min(room, round(end * room)) - column)
    bar = " " * column + FILL_CHARACTERS[span.what] * length
    return bar[: room - 1] + "…" if span.ends is None and len(bar) >= room else bar


def _span_note(span: TimeSpan) -> str:
    """Return the outcome of an attempt, the owner of a lease, or the reason of a hold."""
    if span.what == "attempt":
        if span.outcome in ("COMPLETE", "RUNNING"):
            return span.outcome
        return span.error or span.reason or span.outcome
    if span.what == "lease":
        return f"{span.worker[:8]} {span.message.replace(' process ', ':')}"
    return span.outcome.replace("_", " ") if span.what == "wait" else ""


def _shorten_spans(spans: Sequence[TimeSpan]) -> list[TimeSpan]:
    """Drop the middle of a long timeline; the numbers of the attempts show the gap."""
    if len(spans) <= MAX_ROWS:
        return list(spans)
    return [*spans[: MAX_ROWS // 2], *spans[-MAX_ROWS // 2 :]]
