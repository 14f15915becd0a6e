"""`oncemore watch`: the overview of a store, live in the terminal."""

from __future__ import annotations

import sys
import time

from oncemore.cli.commands import (
    WholeNumber,
    documented_command,
    flag_option,
    json_option,
    store_option,
    value_option,
)
from oncemore.cli.output import OutputWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.queries.overview import AttentionItem, StoreOverview

EXAMPLES = """
oncemore watch
oncemore watch --rows 20 --store postgresql://db/shop
oncemore watch --once --json
"""
#: The shortest time between two frames, and the longest: due times count down without a change of the log.
MIN_FRAME_S, MAX_FRAME_S = 0.5, 2.0
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CLEAR_SCREEN = "\x1b[H\x1b[J"


@documented_command("watch", EXAMPLES)
@value_option("--rows", "N", "Number of rows in each part (10).", type=WholeNumber(1, 200), default=10)
@flag_option("--once", "Print one frame and end; this is the default if the output is not a terminal.")
@store_option
@json_option
def watch(rows: int, once: bool, store: str | None, in_json: bool) -> None:
    """Show what is stuck, why and what helps, live.

    Also what runs, and how much ended in the last hour. The view is renewed when the log changes, until
    Ctrl-C. It reads the store and changes nothing.
    """
    from oncemore.queries.activity import ActivityCounter
    from oncemore.queries.overview import load_overview
    from oncemore.queries.stores import open_for_viewing
    from oncemore.telemetry.alerts import AlertRules

    is_live = sys.stdout.isatty() and not once and not in_json
    out = OutputWriter(in_json=in_json)
    with open_for_viewing(store) as engine:
        activity = ActivityCounter(engine)
        if not is_live:
            overview = load_overview(engine, activity, AlertRules())
            if in_json:
                out.write_json(overview)
            else:
                print_overview(out, overview, rows)
            return
        _write(HIDE_CURSOR)
        try:
            while not out.is_reader_gone:
                position = engine.store.wait_for_change(0, 0.0)
                # Read before the screen is cleared: it is empty only while the text is written.
                overview = load_overview(engine, activity, AlertRules())
                _write(CLEAR_SCREEN)
                print_overview(out, overview, rows)
                # A busy log would redraw without a pause, so each frame stays for a moment.
                time.sleep(MIN_FRAME_S)
                engine.store.wait_for_change(position, MAX_FRAME_S - MIN_FRAME_S)
        finally:
            _write(SHOW_CURSOR)


def _write(codes: str) -> None:
    sys.stdout.write(codes)
    sys.stdout.flush()


def print_overview(out: OutputWriter, overview: StoreOverview, rows: int) -> None:
    """Print one frame: counts, alerts, what needs attention, then the running attempts."""
    from oncemore.queries.overview import MAX_COUNTED
    from oncemore.queries.times import format_age, format_time

    counts, minutes = overview.counts, overview.minutes
    attempts, retries, completed, failed, held = (
        sum(getattr(minute, name) for minute in minutes)
        for name in ("attempts", "retries", "completed", "failed", "held")
    )
    out.write_line(f"oncemore  {format_time(overview.now)}  {overview.url}", "bold")
    # A count that has reached its limit may be larger.
    due, waiting, stuck = (
        f"{count:,}{'+' * (count >= MAX_COUNTED)}" for count in (counts.due, counts.waiting, counts.held)
    )
    out.write_line(
        f"now: {counts.running:,} running, {due} due, {waiting} waiting, {stuck} held for a person"
    )
    out.write_line(
        f"last hour: {attempts:,} attempts, {retries:,} of them retries; {completed:,} completed, "
        f"{failed:,} failed, {held:,} held"
    )
    for alert in overview.alerts:
        out.write_paragraph(alert.text, "red")
    _print_attention(out, overview.attention, rows, overview.now)
    shown = overview.running[:rows]
    _print_title(out, "Running", len(shown), counts.running)
    if shown:
        out.write_table(
            [
                ("step", "attempt", "worker", "since"),
                *(
                    (each.step, f"{each.number}", each.worker[:8], format_age(each.began_at, overview.now))
                    for each in shown
                ),
            ]
        )


def _print_attention(out: OutputWriter, items: tuple[AttentionItem, ...], rows: int, now: float) -> None:
    from oncemore.queries.times import format_age

    _print_title(out, "Needs attention", len(items[:rows]), len(items))
    for item in items[:rows]:
        out.write_line(f"{item.title}  {item.subject[:36]}  {format_age(item.since, now)}", "yellow")
        for text in (item.detail, item.advice):
            out.write_paragraph(text, lead="  ")


def _print_title(out: OutputWriter, title: str, shown: int, count: int) -> None:
    number = f"{shown}" if shown == count else f"{shown} of {count:,}"
    out.write_line()
    out.write_line(f"{title} ({number})" if count else f"{title}: none", "bold" if count else "dim")
