"""Charts as self-contained SVG: lines over time, and horizontal bars; with the numbers of their axes.

The command line, the reports and the dashboard draw with these functions. A chart has no scripts, fonts or
URLs. It has a title and a description for screen readers, shows no fact by color alone (every series has
its own dash pattern and mark, and its name beside it), draws its own background, and follows the reader's
light or dark theme. The same values always give the same bytes.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 108, 64
BAR_HEIGHT, BAR_GAP = 18, 10
#: Space at the left of bars for their names, in pixels, and the longest name that fits into it.
NAME_WIDTH, NAME_LENGTH = 190, 26
#: The most series of one chart: as many as there are dash patterns and marks.
MAX_SERIES = 6

BASE_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.background { fill: #ffffff } .head { font-size: 17px; font-weight: 600 } .soft { fill: #57606a }
.grid { stroke: #d0d7de; stroke-width: 1 } .axis { stroke: #57606a; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .background { fill: #0d1117 } .soft { fill: #9198a1 }
  .grid { stroke: #30363d } .axis { stroke: #9198a1 }
}
"""
_LIGHT = ("#0550ae", "#9a6700", "#1a7f37", "#cf222e", "#8250df", "#57606a")
_DARK = ("#a5d6ff", "#e3b341", "#56d364", "#ff7b72", "#d2a8ff", "#9198a1")
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 5", "4 2")
#: Marks of the series in a terminal and beside lines: a shape besides the color.
MARKS = "●○◆◇▲△"


def _series_style() -> str:
    """Return the style of all series, for the light and the dark theme."""
    light = "".join(
        f".s{n} {{ fill: none; stroke: {color}; stroke-width: 2; stroke-dasharray: {_DASHES[n] or 'none'} }} "
        f".f{n} {{ fill: {color} }}\n"
        for n, color in enumerate(_LIGHT)
    )
    dark = "".join(f".s{n} {{ stroke: {c} }} .f{n} {{ fill: {c} }} " for n, c in enumerate(_DARK))
    return f"{light}@media (prefers-color-scheme: dark) {{ {dark}}}\n"


class LineSeries(Value):
    """One line of a chart: its name and its points, in the order of x."""

    name: str
    points: tuple[tuple[float, float], ...]


class BarRow(Value):
    """One row of a bar chart: its name, one value per series, and a note beside the bar."""

    name: str
    values: tuple[float, ...]
    note: str = ""


# Numbers --------------------------------------------------------------------------------------------


def format_number(value: float) -> str:
    """Return a number rounded to thousandths without trailing zeros: 670, 0.25, 21.214; 4e-05 if smaller."""
    if value and abs(value) < 0.0005:
        return f"{value:.1g}"
    text = f"{value:.3f}"
    return text.rstrip("0").rstrip(".")


def round_ticks(top: float, max_ticks: int) -> list[float]:
    """Return at most `max_ticks` (but at least two) round numbers from 0 to the first at or above `top`."""
    step = _round_step(top / max(1, max_ticks - 1)) if top > 0 else 1.0
    count = max(1, math.ceil(top / step - 1e-9))
    return [step * n for n in range(count + 1)]


def _round_step(min_step: float) -> float:
    power = 10.0 ** math.floor(math.log10(min_step))
    return next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= min_step * (1 - 1e-9))


# Parts of an SVG document ---------------------------------------------------------------------------


def open_svg(
    heading: str, below: str, description: str, *, style: str, height: int = HEIGHT, ids: str = ""
) -> list[str]:
    """Return the first lines of an SVG document: size, title, description, style and headings.

    ids  a prefix of the ids, for several charts in one HTML page
    """
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="{ids}title {ids}desc">',
        f'<title id="{ids}title">{escape_xml(heading)}</title>',
        f'<desc id="{ids}desc">{escape_xml(description)}</desc>',
        f"<style>{style}</style>",
        f'<rect class="background" width="{WIDTH}" height="{height}"/>',
        render_text(LEFT, 30, heading, "start", "head"),
        render_text(LEFT, 50, below, "start", "soft"),
    ]


def render_text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    """Return a text element; `anchor` is start, middle or end."""
    styled = f' class="{kind}"' if kind else ""
    return f'<text{styled} x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}">{escape_xml(text)}</text>'


def format_points(corners: Iterable[tuple[float, float]]) -> str:
    """Return the points of a line or a polygon."""
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in corners)


def escape_xml(text: str) -> str:
    """Return text escaped for XML, without the characters that XML does not allow."""
    # Control characters and lone surrogates are not allowed in XML 1.0, not even escaped.
    allowed = "".join(c for c in text if c in "\t\n" or (c >= " " and not 0xD800 <= ord(c) <= 0xDFFF))
    escaped = allowed.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Quotation marks too: the same text may stand in an attribute of HTML.
    return escaped.replace('"', "&quot;")


# Lines ----------------------------------------------------------------------------------------------


def render_line_chart(
    heading: str,
    below: str,
    series: Sequence[LineSeries],
    *,
    x_label: str,
    y_label: str,
    format_x: Callable[[float], str] = format_number,
    ids: str = "",
) -> str:
    """Return an SVG document with up to `MAX_SERIES` lines; without any point it says so in words."""
    _check_series(len(series))
    # All series share one scale: their distance is what the chart shows.
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    # The name of the vertical axis stands below the heading: above the axis is the legend.
    under = f"{y_label}; {below}" if below else y_label
    described = _describe_lines(series, x_label, y_label)
    parts = open_svg(heading, under, described, style=BASE_STYLE + _series_style(), ids=ids)
    if not xs:
        return _close_svg([*parts, render_text(WIDTH / 2, HEIGHT / 2, "no values", "middle")])
    # From 0, because a cut axis exaggerates differences.
    scale = round_ticks(max(0.0, *ys), 7)
    first, last = min(xs), max(xs)

    def place_x(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - first) / (last - first or 1.0)

    def place_y(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / scale[-1]

    parts += _render_y_scale(scale, place_y)
    parts += [
        render_text(place_x(x), HEIGHT - BOTTOM + 20, format_x(x), anchor, "soft")
        for x, anchor in _label_places(first, last, len(format_x(last)))
    ]
    parts.append(render_text(WIDTH / 2, HEIGHT - BOTTOM + 40, x_label, "middle", "soft"))
    for n, one in enumerate(series):
        placed = [(place_x(x), place_y(y)) for x, y in one.points]
        parts.append(f'<polyline class="s{n}" points="{format_points(placed)}"><title>{escape_xml(one.name)}'
                     "</title></polyline>")  # fmt: skip
        # The mark of the series at its end, so that the lines can be told apart without color.
        parts += [render_text(x, y - 4, MARKS[n], "middle", f"f{n}") for x, y in placed[-1:]]
    return _close_svg([*parts, *_render_legend([one.name for one in series])])


def _label_places(first: float, last: float, length: int) -> list[tuple[float, str]]:
    """Return the positions of the labels below a line chart with their anchors."""
    if first == last:
        return [(first, "start")]
    # Five labels of more than ten characters would touch each other.
    inner = (2,) if length > 10 else (1, 2, 3)
    return [(first, "start"), *((first + (last - first) * n / 4, "middle") for n in inner), (last, "end")]


def _render_y_scale(scale: Sequence[float], place_y: Callable[[float], float]) -> list[str]:
    lines: list[str] = []
    for value in scale:
        y = place_y(value)
        lines.append(f'<line class="{"grid" if value else "axis"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
                     f'y1="{y:.2f}" y2="{y:.2f}"/>')  # fmt: skip
        lines.append(render_text(LEFT - 8, y + 4, format_number(value), "end", "soft"))
    return lines


def _render_legend(names: Sequence[str], *, is_filled: bool = False) -> list[str]:
    """Return the names of the series with their samples, in as many rows as they need.

    is_filled  whether the series are areas; they have no dash pattern then
    """
    lines, x, y = [], float(LEFT), 74.0
    for n, name in enumerate(names):
        # 7.2 pixels are the average width of a letter in this size.
        width = 32 + 7.2 * (len(name) + 2)
        if x > LEFT and x + width > WIDTH:
            x, y = float(LEFT), y + 18
        sample = (
            f'<rect class="f{n}" x="{x:.2f}" y="{y - 11:.2f}" width="26" height="12"/>'
            if is_filled
            else f'<line class="s{n}" x1="{x:.2f}" x2="{x + 26:.2f}" y1="{y - 4:.2f}" y2="{y - 4:.2f}"/>'
        )
        text = name if is_filled else f"{MARKS[n]} {name}"
        lines += [sample, render_text(x + 32, y, text, "start", "soft")]
        x += width + 14
    return lines


def _describe_lines(series: Sequence[LineSeries], x_label: str, y_label: str) -> str:
    """Return the ends of all lines in words, for readers who do not see the chart."""
    ends = [
        f"{one.name} goes from {format_number(one.points[0][1])} to {format_number(one.points[-1][1])}"
        for one in series
        if one.points
    ]
    return f"{y_label} over {x_label}: {'; '.join(ends) or 'no values'}."


def _check_series(count: int) -> None:
    if count > MAX_SERIES:
        raise ValueError(f"a chart shows at most {MAX_SERIES} series, not {count}")


def _close_svg(parts: Sequence[str]) -> str:
    return "\n".join([*parts, "</svg>"]) + "\n"


# Bars -----------------------------------------------------------------------------------------------


def render_bar_chart(
    heading: str, below: str, names: Sequence[str], rows: Sequence[BarRow], *, unit: str, ids: str = ""
) -> str:
    """Return an SVG document with one horizontal bar per row; the values of a row are stacked.

    names  the names of the stacked parts
    """
    _check_series(len(names))
    height = TOP + max(1, len(rows)) * (BAR_HEIGHT + BAR_GAP) + 30
    described = "; ".join(_describe_bar(names, row) for row in rows)
    style = BASE_STYLE + _series_style()
    parts = open_svg(
        heading, below, f"In {unit}: {described or 'no values'}.", style=style, height=height, ids=ids
    )
    if not rows:
        return _close_svg([*parts, render_text(WIDTH / 2, height / 2, "no values", "middle")])
    # 110 pixels stay free for the number behind the longest bar.
    longest = max(sum(row.values) for row in rows) or 1.0
    per_unit = (WIDTH - LEFT - NAME_WIDTH - 110) / longest
    for number, row in enumerate(rows):
        parts += _render_bar(row, TOP + number * (BAR_HEIGHT + BAR_GAP), per_unit, unit)
    return _close_svg([*parts, *_render_legend(names, is_filled=True)])


def _describe_bar(names: Sequence[str], row: BarRow) -> str:
    parts = [f"{name} {format_number(value)}" for name, value in zip(names, row.values, strict=True)]
    return f"{row.name} {', '.join(parts)}"


def _render_bar(row: BarRow, y: float, per_unit: float, unit: str) -> list[str]:
    name = row.name if len(row.name) <= NAME_LENGTH else f"{row.name[: NAME_LENGTH - 1]}…"
    lines, x = [render_text(LEFT + NAME_WIDTH - 40, y + 14, name, "end")], LEFT + NAME_WIDTH - 30.0
    for n, value in enumerate(row.values):
        width = max(0.0, value * per_unit)
        lines.append(f'<rect class="f{n}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" '
                     f'height="{BAR_HEIGHT}"><title>{escape_xml(row.name)}: {format_number(value)} '
                     f"{escape_xml(unit)}</title></rect>")  # fmt: skip
        x += width
    note = row.note or f"{format_number(sum(row.values))} {unit}"
    return [*lines, render_text(x + 8, y + 14, note, "start", "soft")]


# In a terminal --------------------------------------------------------------------------------------

TERMINAL_ROWS = 12
#: Fills of the stacked parts of a bar.
FILLS = "█░▒▓━─"
MIN_COLUMNS = 20


def draw_lines(
    series: Sequence[LineSeries], width: int, *, format_x: Callable[[float], str] = format_number
) -> list[str]:
    """Return a line chart as text of at most `width` columns; each series has its own mark."""
    _check_series(len(series))
    # Without points there is no scale.
    points = [point for one in series for point in one.points]
    if not points:
        return ["no values"]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    scale = round_ticks(max(0.0, *(y for _, y in points)), 5)
    margin = max(len(format_number(value)) for value in scale)
    columns = max(MIN_COLUMNS, width - margin - 3)
    grid = [[" "] * columns for _ in range(TERMINAL_ROWS + 1)]
    # The first series is drawn last: it is the one that the others are compared with.
    per_column = (last - first) / (columns - 1)
    for n, one in reversed(list(enumerate(series))):
        for column in range(columns):
            y = _value_between(one.points, first + per_column * column)
            if y is not None:
                grid[TERMINAL_ROWS - round(TERMINAL_ROWS * y / scale[-1])][column] = MARKS[n]
    ticks = {TERMINAL_ROWS - round(TERMINAL_ROWS * value / scale[-1]): value for value in scale}
    lines = [
        f"{format_number(ticks[row]) if row in ticks else '':>{margin}} │{''.join(cells)}".rstrip()
        for row, cells in enumerate(grid)
    ]
    low, high = format_x(first), format_x(last)
    gap = max(1, columns - len(low) - len(high))
    legend = "   ".join(f"{MARKS[n]} {one.name}" for n, one in enumerate(series))
    return [*lines, f"{'':>{margin}} └{'─' * columns}", f"{'':>{margin}}  {low}{' ' * gap}{high}", legend]


def _value_between(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """Return the value of a line at x, between two of its points; None outside of the line."""
    # Rounding may put the last column a little behind the last point.
    place = bisect_left(points, (x, -math.inf))
    if place == len(points):
        return points[-1][1] if points and math.isclose(x, points[-1][0]) else None
    right = points[place]
    if right[0] == x or not place:
        return right[1] if math.isclose(right[0], x) else None
    left = points[place - 1]
    return left[1] + (right[1] - left[1]) * (x - left[0]) / (right[0] - left[0])


def draw_bars(names: Sequence[str], rows: Sequence[BarRow], width: int, *, unit: str) -> list[str]:
    """Return a bar chart as text of at most `width` columns; the parts of a bar have their own fill."""
    _check_series(len(names))
    if not rows:
        return ["no values"]
    margin = max(len(row.name) for row in rows)
    notes = [row.note or f"{format_number(sum(row.values))} {unit}" for row in rows]
    room = max(MIN_COLUMNS, width - margin - max(map(len, notes)) - 4)
    per_cell = (max(sum(row.values) for row in rows) or 1.0) / room
    lines = []
    for row, note in zip(rows, notes, strict=True):
        # The ends are rounded, not the lengths: so the whole bar has the length of the sum.
        ends = [round(sum(row.values[: n + 1]) / per_cell) for n in range(len(row.values))]
        starts = [0, *ends]
        bar = "".join(FILLS[n] * max(0, end - starts[n]) for n, end in enumerate(ends))
        lines.append(f"{row.name:>{margin}} {bar} {note}")
    return [*lines, "   ".join(f"{FILLS[n]} {name}" for n, name in enumerate(names))]
