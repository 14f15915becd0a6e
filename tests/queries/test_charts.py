"""Charts: SVG that parses and names its series, and the same in a terminal."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from oncemore.queries.charts import (
    MARKS,
    BarRow,
    LineSeries,
    draw_bars,
    draw_lines,
    render_bar_chart,
    render_line_chart,
)

RISING = LineSeries("rising <1>", ((0.0, 0.0), (10.0, 5.0)))
FLAT = LineSeries("flat", ((0.0, 2.0), (10.0, 2.0)))
SVG = "{http://www.w3.org/2000/svg}"


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 - our own document


def test_a_line_chart_has_one_line_per_series_with_its_name_and_a_description() -> None:
    words = {"x_label": "time", "y_label": "kg", "ids": "a-"}
    chart = render_line_chart("Carbon", "2 runs", [RISING, FLAT], **words)
    root = parse(chart)
    lines = root.findall(f"{SVG}polyline")
    assert [line.find(f"{SVG}title").text for line in lines] == ["rising <1>", "flat"]  # type: ignore[union-attr]
    assert len({line.get("class") for line in lines}) == 2
    assert "rising <1> goes from 0 to 5" in (root.find(f"{SVG}desc").text or "")  # type: ignore[union-attr]
    assert root.get("aria-labelledby") == "a-title a-desc"
    assert chart == render_line_chart(
        "Carbon", "2 runs", [RISING, FLAT], x_label="time", y_label="kg", ids="a-"
    )


def test_points_of_a_line_are_in_proportion() -> None:
    (line,) = parse(render_line_chart("h", "b", [RISING], x_label="x", y_label="y")).findall(f"{SVG}polyline")
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in str(line.get("points")).split())
    assert x0 < x1
    assert y0 > y1  # a higher value is drawn further up
    (flat,) = parse(render_line_chart("h", "b", [FLAT], x_label="x", y_label="y")).findall(f"{SVG}polyline")
    assert len({point.split(",")[1] for point in str(flat.get("points")).split()}) == 1


def test_charts_without_values_say_so_and_too_many_series_are_refused() -> None:
    assert "no values" in render_line_chart("h", "b", [], x_label="x", y_label="y")
    assert "no values" in render_bar_chart("h", "b", ["a"], [], unit="kWh")
    assert draw_lines([], 80) == draw_bars(["a"], [], 80, unit="s") == ["no values"]
    with pytest.raises(ValueError, match="at most 6 series"):
        render_line_chart("h", "b", [FLAT] * 7, x_label="x", y_label="y")
    single = LineSeries("one", ((3.0, 1.0),))
    assert parse(render_line_chart("h", "b", [single], x_label="x", y_label="y")) is not None
    assert any(MARKS[0] in line for line in draw_lines([single], 40)[:-1])


def test_bars_are_stacked_and_as_long_as_their_values() -> None:
    rows = [
        BarRow("etl.load with a name that is too long for it", (2.0, 1.0)),
        BarRow("x", (0.0, 0.5), "note"),
    ]
    root = parse(render_bar_chart("Energy", "b", ["first", "retries"], rows, unit="kWh"))
    bars = [one for one in root.findall(f"{SVG}rect") if one.get("class") != "background"]
    widths = [float(bar.get("width", "0")) for bar in bars]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.02)
    assert widths[3] == pytest.approx(widths[1] / 2, abs=0.02)
    assert "etl.load with a name that is too long for it retries" not in "".join(root.itertext())
    lines = draw_bars(["first", "retries"], rows, 100, unit="kWh")
    assert lines[0].count("█") == pytest.approx(2 * lines[0].count("░"), abs=1)
    assert lines[1].endswith("note")
    assert lines[-1] == "█ first   ░ retries"


def test_lines_in_a_terminal_keep_their_width_and_marks() -> None:
    late = LineSeries("late", ((5.0, 1.0), (10.0, 1.0)))
    for width in (30, 80, 200):
        lines = draw_lines([RISING, FLAT, late], width)
        assert max(map(len, lines[:-1])) <= width
        for mark in MARKS[:3]:
            assert any(mark in line for line in lines[:-1])
    assert lines[-1] == f"{MARKS[0]} rising <1>   {MARKS[1]} flat   {MARKS[2]} late"
