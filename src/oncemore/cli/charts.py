"""Charts of a policy's delays: block characters in a terminal, or an SVG file.

    after  from  planned  to
        1    20       20  30  ██│░
        2    40       40  50  █████│░

A solid bar is the shortest delay, a shaded bar the range of the jitter, the stroke the planned delay, and
dots are the delays of sample runs.
"""

from __future__ import annotations

from pathlib import Path

from oncemore.policy.explain import format_seconds
from oncemore.queries.charts import format_number, round_ticks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import OutputWriter
    from oncemore.queries.policy_schedule import DelayGraph, DelayRange, SampleDelays

MAX_ROWS = 24
MIN_BAR_WIDTH = 10
LEGEND = "█ shortest   ░ jitter   │ planned"


def draw_schedule(out: OutputWriter, graph: DelayGraph, svg: str | None) -> None:
    """Write the SVG file if one is given; else print JSON or a chart of block characters."""
    if svg is not None:
        _write_svg(out, graph, svg)
    elif out.in_json:
        out.write_json(graph)
    else:
        _print_chart(out, graph)


def schedule_title(graph: DelayGraph) -> str:
    """Return the name of the policy, its provider and its version."""
    provider = f" for {graph.provider}" if graph.provider else ""
    return f"{graph.name}{provider}, version {graph.version}"


def schedule_summary(graph: DelayGraph) -> str:
    """Return the number of attempts and the longest total delay."""
    worst = graph.worst
    if worst.calls == 1:
        return "1 attempt: no retry"
    return f"{worst.calls} attempts, at most {format_seconds(worst.delay_s)} of delays in total"


def _write_svg(out: OutputWriter, graph: DelayGraph, svg: str) -> None:
    from oncemore.cli.svg import render_svg

    text = render_svg(schedule_title(graph), schedule_summary(graph), graph.delays, graph.samples)
    if svg == "-":
        out.write_bytes(text.encode())
        return
    Path(svg).write_text(text, encoding="utf-8")
    if out.in_json:
        out.write_json({"svg": svg, "graph": graph})
    else:
        out.write_line(f"wrote {svg}")


def _print_chart(out: OutputWriter, graph: DelayGraph) -> None:
    out.write_line(schedule_title(graph), "bold")
    out.write_line(schedule_summary(graph))
    if not graph.delays:
        return
    out.write_line()
    for line in draw_chart(graph.delays, graph.samples, out.width):
        out.write_line(line)
    out.write_line()
    out.write_line(LEGEND + ("   • sample runs" if graph.samples else "") + "   (seconds)")
    for sample in graph.samples:
        out.write_line(f"seed {sample.seed}: {', '.join(f'{delay:.3f}' for delay in sample.delays_s)}", "dim")


def draw_chart(delays: Sequence[DelayRange], samples: Sequence[SampleDelays], width: int) -> list[str]:
    """Return the chart as lines of at most `width` columns; a bar has at least `MIN_BAR_WIDTH` columns."""
    labels = _row_labels(delays)
    margin = " " * (len(labels[0]) + 2)
    room = max(MIN_BAR_WIDTH, width - len(margin))
    top = max(delay.high_s for delay in delays) or 1.0
    # Two columns stay free, so that the stroke of the longest delay and a rounded bar fit.
    per_cell = top / (room - 2)
    rows = [labels[0]]
    for label, delay in zip(labels[1:], delays, strict=True):
        sampled = [sample.delays_s[delay.after - 1] for sample in samples]
        rows.append(f"{label}  {_draw_bar(delay, sampled, per_cell)}")
    return [*_shorten_rows(rows), *(margin + line for line in _draw_axis(top, per_cell, room))]


def _row_labels(delays: Sequence[DelayRange]) -> list[str]:
    cells = [("after", "from", "planned", "to")] + [
        (f"{d.after}", format_number(d.low_s), format_number(d.planned_s), format_number(d.high_s))
        for d in delays
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]


def _draw_bar(delay: DelayRange, sampled: Sequence[float], per_cell: float) -> str:
    low, high = round(delay.low_s / per_cell), round(delay.high_s / per_cell)
    cells = list("█" * low + "░" * (high - low))
    # The planned delay is drawn last: it must stay visible where a sample has the same column.
    for seconds, mark in [*((sample_s, "•") for sample_s in sampled), (delay.planned_s, "│")]:
        cell = int(seconds / per_cell)
        cells += " " * (cell + 1 - len(cells))
        cells[cell] = mark
    return "".join(cells)


def _draw_axis(top: float, per_cell: float, room: int) -> list[str]:
    """Return the axis and its numbers; a number that would touch the previous one is left out."""
    # The tolerance keeps a tick that floating point puts just above the longest delay.
    marked = [seconds for seconds in round_ticks(top, max(2, room // 10)) if seconds <= top * (1 + 1e-9)]
    line, numbers = ["─"] * (int(top / per_cell) + 1), ""
    for seconds in marked:
        cell = min(int(seconds / per_cell), len(line) - 1)
        line[cell] = "┴" if cell else "└"
        text = f"{format_number(seconds)} s" if seconds == marked[-1] else format_number(seconds)
        start = min(max(0, cell - len(format_number(seconds)) // 2), room - len(text))
        if not numbers or start > len(numbers):
            numbers = numbers.ljust(start) + text
    return ["".join(line), numbers]


#: Blocks of a column, by eighths of a cell.
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def draw_columns(values: Sequence[float], *, height: int, cell: int) -> list[str]:
    """Return values as columns of blocks, highest line first, with the numbers of the axis at the left.

    cell  width of one column, with its gap
    """
    ticks = round_ticks(max(values), 4)
    top = ticks[-1]
    # The lines next to the round numbers carry them; with a fitting height they are exact.
    numbered = {round(tick / top * height): format_number(tick) for tick in ticks}
    lines = []
    for line in range(height, 0, -1):
        # A cell below the top of its column is full; the cell of the top has the rest in eighths.
        eighths = (round(min(1.0, max(0.0, value / top * height - line + 1)) * 8) for value in values)
        label = numbered.get(line, "")
        text = "".join((_EIGHTHS[n] * (cell - 1)).ljust(cell) for n in eighths)
        lines.append(f"{label:>5} {'┤' if label else '│'}{text}".rstrip())
    return [*lines, f"{'0':>5} └{'─' * (cell * len(values) - 1)}"]


def _shorten_rows(rows: list[str]) -> list[str]:
    if len(rows) <= MAX_ROWS:
        return rows
    # The last rows stay, because they show the cap.
    first, last = rows[: MAX_ROWS - 6], rows[-5:]
    return [*first, f"… {len(rows) - len(first) - len(last)} delays not shown …", *last]
