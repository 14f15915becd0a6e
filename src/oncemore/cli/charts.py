"""A policy's schedule in a terminal: one row for each wait, drawn with block characters.

    after  from  planned  to
        1    20       20  30  ██│░
        2    40       40  50  █████│░

Solid is waited in any case, shaded is added by chance, the stroke is the plan, dots are sample runs.
"""

from __future__ import annotations

from oncemore.cli.ticks import shown, ticks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.queries.policy_schedule import Delay, Sample

MOST_ROWS = 24
NARROWEST = 10
LEGEND = "█ always waited   ░ by chance   │ planned"


def chart(delays: Sequence[Delay], samples: Sequence[Sample], width: int) -> list[str]:
    """Return the drawing as lines that are no longer than `width`, as far as the numbers leave room."""
    labels = _labels(delays)
    margin = " " * (len(labels[0]) + 2)
    room = max(NARROWEST, width - len(margin))
    top = max(delay.high_s for delay in delays) or 1.0
    per_cell = top / (room - 2)
    rows = [labels[0]]
    for label, delay in zip(labels[1:], delays, strict=True):
        at = [sample.delays_s[delay.after - 1] for sample in samples]
        rows.append(f"{label}  {_bar(delay, at, per_cell)}")
    return [*_shortened(rows), *(margin + line for line in _axis(top, per_cell, room))]


def _labels(delays: Sequence[Delay]) -> list[str]:
    cells = [("after", "from", "planned", "to")] + [
        (f"{d.after}", shown(d.low_s), shown(d.planned_s), shown(d.high_s)) for d in delays
    ]
    widths = [max(len(row[at]) for row in cells) for at in range(4)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]


def _bar(delay: Delay, at: Sequence[float], per_cell: float) -> str:
    low, high = round(delay.low_s / per_cell), round(delay.high_s / per_cell)
    cells = list("█" * low + "░" * (high - low))
    for seconds, mark in [*((one, "•") for one in at), (delay.planned_s, "│")]:
        cell = int(seconds / per_cell)
        cells += " " * (cell + 1 - len(cells))
        cells[cell] = mark
    return "".join(cells)


def _axis(top: float, per_cell: float, room: int) -> list[str]:
    """Draw the line below, with round numbers that leave space between them."""
    marked = [seconds for seconds in ticks(top, max(2, room // 10)) if seconds <= top * (1 + 1e-9)]
    line, numbers = ["─"] * (int(top / per_cell) + 1), ""
    for seconds in marked:
        cell = min(int(seconds / per_cell), len(line) - 1)
        line[cell] = "┴" if cell else "└"
        text = f"{shown(seconds)} s" if seconds == marked[-1] else shown(seconds)
        start = min(max(0, cell - len(shown(seconds)) // 2), room - len(text))
        if not numbers or start > len(numbers):
            numbers = numbers.ljust(start) + text
    return ["".join(line), numbers]


def _shortened(rows: list[str]) -> list[str]:
    if len(rows) <= MOST_ROWS:
        return rows
    first, last = rows[: MOST_ROWS - 6], rows[-5:]
    return [*first, f"… {len(rows) - len(first) - len(last)} waits left out …", *last]
