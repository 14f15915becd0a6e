"""The drawings show the computed numbers: in blocks as exactly as cells can, in SVG to the hundredth."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncemore.cli.charts import MAX_ROWS, MIN_BAR_WIDTH, draw_chart, draw_columns
from oncemore.cli.svg import render_svg
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.queries.charts import format_number, round_ticks
from oncemore.queries.policy_schedule import list_delays, sample_delays

SVG = "{http://www.w3.org/2000/svg}"
LOOP = Policy(
    "loop", max_attempts=6, schedule=Schedule("exponential", 10.0, exponent="attempt"),
    jitter=Jitter("additive", 10.0), max_delay_s=900.0,
)  # fmt: skip
RULES = Policy("rules", max_attempts=5, schedule=Schedule("exponential", 0.5, exponent="attempt"))

policies = st.builds(
    Policy,
    max_attempts=st.integers(2, 40),
    schedule=st.builds(
        Schedule,
        st.sampled_from(["exponential", "linear"]),
        st.floats(0, 1e6, allow_subnormal=False),
        exponent=st.sampled_from(["attempt", "attempt-1"]),
    ),
    jitter=st.sampled_from(
        [Jitter("none"), Jitter("full"), Jitter("equal"), Jitter("decorrelated"), Jitter("additive", 10.0),
         Jitter("proportional", 0.2)]
    ),
    max_delay_s=st.floats(1e6, 1e7),
)  # fmt: skip


# Numbers.


@given(st.floats(1e-6, 1e9), st.integers(2, 20))
def test_an_axis_has_round_numbers_that_reach_the_top_and_no_more_than_asked(top: float, most: int) -> None:
    found = round_ticks(top, most)
    assert found[0] == 0
    assert found[-1] >= top * (1 - 1e-6)
    assert 2 <= len(found) <= most
    assert re.match(r"(1\.0|2\.0|2\.5|5\.0)e", f"{found[1]:.1e}")
    assert float(f"{found[1]:.1e}") == pytest.approx(found[1])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (670.0, "670"), (1675.0, "1675"), (0.25, "0.25"), (21.213633, "21.214"), (1e7, "10000000"),
     (0.00004, "4e-05"), (100.0, "100")],
)  # fmt: skip
def test_a_number_is_short_and_exact_to_a_thousandth(value: float, text: str) -> None:
    assert format_number(value) == text


# In a terminal.


def test_solid_is_certain_shaded_is_chance_and_the_stroke_is_the_plan() -> None:
    assert draw_chart(list_delays(LOOP), [], 80) == [
        "after  from  planned   to",
        "    1    20       20   30  ███│░",
        "    2    40       40   50  ██████│░",
        "    3    80       80   90  ████████████│░",
        "    4   160      160  170  ████████████████████████│░",
        "    5   320      320  330  █████████████████████████████████████████████████│░",
        "                           └──────────────┴──────────────┴───────────────┴─────",
        "                           0             100            200             300 s",
    ]


def test_runs_are_dots_within_the_shade() -> None:
    rows = draw_chart(list_delays(RULES), [sample_delays(RULES, "s")], 80)[1:5]
    bars = [row.partition("  ")[2].split()[-1] for row in rows]
    for bar, drawn, delay in zip(bars, sample_delays(RULES, "s").delays_s, list_delays(RULES), strict=True):
        assert bar.count("•") == 1
        assert set(bar) == set("░•│")
        assert bar.index("•") / len(bar) == pytest.approx(drawn / delay.high_s, abs=2 / len(bar))


@given(policies, st.integers(60, 200))
def test_a_drawing_is_never_wider_than_asked_unless_the_numbers_are(policy: Policy, width: int) -> None:
    rows = draw_chart(list_delays(policy), [sample_delays(policy, "s")], width)
    most = max(width, len(rows[0]) + 2 + MIN_BAR_WIDTH)
    assert all(len(row) <= most for row in rows)
    assert len(rows) <= MAX_ROWS + 2


def test_a_long_schedule_is_shortened_in_the_middle_and_says_by_how_much() -> None:
    rows = draw_chart(list_delays(Policy(max_attempts=100)), [], 80)
    assert "… 77 delays not shown …" in rows
    numbers = [int(row.split()[0]) for row in rows[1:-2] if row.split()[0].isdigit()]
    assert numbers == [*range(1, 18), *range(95, 100)]
    assert len(numbers) + 77 == 99


# As SVG.


def parsed(policy: Policy, seeds: list[str]) -> ElementTree.Element:
    text = render_svg(
        "heading", "below", list_delays(policy), [sample_delays(policy, seed) for seed in seeds]
    )
    return ElementTree.fromstring(text)  # noqa: S314 - our own text


def points(element: ElementTree.Element) -> list[tuple[float, float]]:
    pairs = (pair.split(",") for pair in element.attrib["points"].split())
    return [(float(x), float(y)) for x, y in pairs]


def seconds_at(root: ElementTree.Element, y: float) -> float:
    """What a height means, by the lines and numbers of the axis alone, as a reader would find it."""
    lines = [float(e.attrib["y1"]) for e in root.iter(f"{SVG}line") if e.get("class") in ("grid", "axis")]
    numbers = [
        float((e.text or "").removesuffix(" s"))
        for e in root.iter(f"{SVG}text")
        if e.get("text-anchor") == "end" and e.get("class") == "soft"
    ]
    bottom, top = max(lines), min(lines)
    return (bottom - y) / (bottom - top) * max(numbers)


@pytest.mark.parametrize("policy", [LOOP, RULES, Policy(max_attempts=2)], ids=["loop", "rules", "one wait"])
def test_the_points_of_the_picture_are_the_computed_ones(policy: Policy) -> None:
    root, waits = parsed(policy, ["a", "b"]), list_delays(policy)
    exact = waits[-1].high_s / 200
    read = lambda element: [seconds_at(root, y) for _, y in points(element)]  # noqa: E731
    (plan,) = (e for e in root.iter(f"{SVG}polyline") if e.get("class") == "plan")
    assert read(plan) == pytest.approx([wait.planned_s for wait in waits], abs=exact)
    runs = [e for e in root.iter(f"{SVG}polyline") if e.get("class") == "run"]
    for run, seed in zip(runs, ["a", "b"], strict=True):
        assert read(run) == pytest.approx(sample_delays(policy, seed).delays_s, abs=exact)
    (band,) = root.iter(f"{SVG}polygon")
    edge = sorted(read(band))
    both = [wait.low_s for wait in waits] + [wait.high_s for wait in waits]
    assert edge == pytest.approx(sorted(both if len(waits) > 1 else both * 2), abs=exact)


def test_who_does_not_see_the_picture_is_told_the_numbers() -> None:
    root = parsed(LOOP, ["a"])
    assert root.attrib["role"] == "img"
    named = root.attrib["aria-labelledby"].split()
    told = {e.attrib["id"]: e.text or "" for e in root if e.get("id") in named}
    assert told["title"] == "heading"
    assert "after attempt 5 320 to 330 s, 320 s planned" in told["desc"]
    assert "the seed a waits" in told["desc"]


def test_the_picture_needs_nothing_else_and_follows_light_and_dark() -> None:
    text = render_svg("h", "b", list_delays(LOOP), [])
    assert "prefers-color-scheme: dark" in text
    assert re.findall(r"https?:[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|@import|url\(|href|<image|on\w+=", text)
    assert 'class="background"' in text, (
        "without its own background, text could vanish on a page of its own colour"
    )


def test_one_attempt_is_drawn_as_no_retry() -> None:
    root = parsed(Policy(max_attempts=1), [])
    assert "no retry: one attempt, no waits" in [e.text for e in root.iter(f"{SVG}text")]
    assert not list(root.iter(f"{SVG}polygon"))


def test_a_name_cannot_break_out_of_the_picture() -> None:
    hostile = '</text><script>alert("&\x00\x1b]8;;")</script>'
    text = render_svg(hostile, hostile, list_delays(RULES), [sample_delays(RULES, hostile)])
    root = ElementTree.fromstring(text)  # noqa: S314 - our own text
    assert not list(root.iter(f"{SVG}script"))
    assert "\x1b" not in text


def test_columns_have_the_height_of_their_values_in_eighths() -> None:
    assert draw_columns([300, 150, 75, 0], height=6, cell=3) == [
        "  300 ┤██",
        "      │██",
        "  200 ┤██",
        "      │██ ██",
        "  100 ┤██ ██ ▄▄",
        "      │██ ██ ██",
        "    0 └───────────",
    ]
    assert draw_columns([0, 0], height=2, cell=2) == ["    1 ┤", "      │", "    0 └───"]
