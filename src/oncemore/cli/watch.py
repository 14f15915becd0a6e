"""`oncemore watch`: a live view of a store in the terminal."""

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
    from collections.abc import Sequence

    from oncemore.queries.runs import RunRow
    from oncemore.queries.watch_view import WatchView

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
@value_option("--rows", "N", "Number of runs in each part (10).", type=WholeNumber(1, 200), default=10)
@flag_option("--once", "Print one frame and end; this is the default if the output is not a terminal.")
@store_option
@json_option
def watch(rows: int, once: bool, store: str | None, in_json: bool) -> None:
    """Show running, waiting, held and failed runs, live.

    The view is renewed when the log changes, until Ctrl-C.
    """
    from oncemore.queries.stores import open_read_only
    from oncemore.queries.watch_view import load_watch_view

    is_live = sys.stdout.isatty() and not once and not in_json
    out = OutputWriter(in_json=in_json)
    with open_read_only(store) as opened:
        if not is_live:
            view = load_watch_view(opened, rows)
            if in_json:
                out.write_json(view)
            else:
                print_view(out, view)
            return
        _write(HIDE_CURSOR)
        try:
            while not out.is_reader_gone:
                position = opened.wait_for_change(0, 0.0)
                # Read before the screen is cleared: it is empty only while the text is written.
                view = load_watch_view(opened, rows)
                _write(CLEAR_SCREEN)
                print_view(out, view)
                # A busy log would redraw without a pause, so each frame stays for a moment.
                time.sleep(MIN_FRAME_S)
                opened.wait_for_change(position, MAX_FRAME_S - MIN_FRAME_S)
        finally:
            _write(SHOW_CURSOR)


def _write(codes: str) -> None:
    sys.stdout.write(codes)
    sys.stdout.flush()


def print_view(out: OutputWriter, view: WatchView) -> None:
    """Print one frame: the rates of the last minute, then the runs that need attention first."""
    from oncemore.queries.times import format_time

    activity = view.activity
    out.write_line(f"oncemore  {format_time(view.at)}", "bold")
    out.write_line(
        f"last minute: {activity.attempts:,} attempts, {activity.completed:,} completed, "
        f"{activity.retries:,} retried, {activity.failed:,} failed"
    )
    _print_part(out, "Held for an operator", view.held, view.at)
    _print_part(out, "Running", view.running, view.at)
    _print_part(out, "Waiting", view.waiting, view.at)
    _print_part(out, "Failed in the last day", view.failed, view.at)


def _print_part(out: OutputWriter, title: str, rows: Sequence[RunRow], now: float) -> None:
    from oncemore.cli.run_tables import print_run_table

    out.write_line()
    out.write_line(f"{title} ({len(rows)})" if rows else f"{title}: none", "bold" if rows else "dim")
    if rows:
        print_run_table(out, rows, now)
