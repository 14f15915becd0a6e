"""Thrash control: a signal swings around its threshold, and newer inputs replace failing ones.

The grid intensity crosses 500 g/kWh ten times within an hour. Every five minutes a new tile arrives, and a
preview of it is made under `nowcast-previews.yaml`: slow at 500, back at 250, at least 15 minutes between two
changes. The radar of the first tiles is down: a tile that a newer one has replaced is withdrawn, not retried.
"""

from __future__ import annotations

import json
import logging
import tempfile
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import oncemore
from oncemore.queries.carbon import list_decisions
from oncemore.testing import FakeClock

HERE = Path(__file__).parent
START = datetime(2026, 11, 3, 16, tzinfo=UTC)
STEP_S, TICKS = 300, 13
#: Above and below 500 in turn: a crossing every five minutes; then clean hours.
SWINGS = [480, 520, 480, 520, 480, 520, 480, 520, 480, 520, 480]
#: The radar answers from this tile on.
RADAR_BACK = 3


class Hour(NamedTuple):
    """The crossings of the threshold, the decisions of the matrix, and the runs of the tiles."""

    crossings: int
    decisions: list[str]
    tiles: list[oncemore.Run[Any]]
    calls: list[int]


def write_grid(path: Path) -> None:
    """Write the signal as a JSON series: an hour of swings, then 240 g/kWh."""
    values = [*SWINGS, 240]
    start = START.timestamp()
    points = [{"time": start + n * STEP_S, "value": value} for n, value in enumerate(values)]
    path.write_text(json.dumps(points))


def play(folder: Path) -> Hour:
    """Play the hour, and the moment after it."""
    write_grid(folder / "grid.json")
    calls: list[int] = []

    @oncemore.step(effect="pure", name="preview", policy=str(HERE / "nowcast-previews.yaml"))
    def preview(tile: int) -> str:
        calls.append(tile)
        if tile < RADAR_BACK:
            raise oncemore.TransientError("the radar does not answer")
        return f"preview of tile {tile}"

    with (
        FakeClock(start=START) as clock,
        # Calls do not wait for retries here: the next tile comes first.
        oncemore.open(
            folder / "log.db",
            signals={"grid_intensity": {"file": str(folder / "grid.json")}},
            max_inline_wait_s=0,
        ) as engine,
    ):
        for tile in range(TICKS):
            before = preview.last_run(tile - 1) if tile else None
            if before is not None and before.status != "COMPLETE":
                with oncemore.context(actor="tile service"):
                    preview.cancel(tile - 1, reason=f"replaced by tile {tile}")
            preview.run(tile)
            clock.advance(STEP_S)
        runs = [preview.last_run(tile) for tile in range(TICKS)]
        decisions = [one.sentence for one in list_decisions(engine, "nowcast-previews")]
        crossings = sum((a < 500) != (b < 500) for a, b in pairwise(SWINGS))
        return Hour(crossings, decisions, [run for run in runs if run is not None], calls)


def main() -> Hour:
    """Play the hour and print it."""
    # The story below says what the log messages would.
    logging.getLogger("oncemore").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        hour = play(Path(folder))
        print(f"{hour.crossings} crossings of 500 g/kWh, {len(hour.decisions) - 1} changes:")
        print("\n".join(f"  {sentence}" for sentence in hour.decisions))
        for number, run in enumerate(hour.tiles[: RADAR_BACK + 1]):
            tries = hour.calls.count(number)
            print(f"tile {number}: {run.status} {run.reason or ''}".rstrip() + f", {tries} attempt(s)")
        return hour


if __name__ == "__main__":
    main()
