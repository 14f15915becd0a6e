"""Off-hours slowdown: at night a report runs one part at a time, and is still done in time.

The report has 52 parts of 30 minutes and 0.5 kWh each; four of them may run at once. It starts at 18:00 and
is due at 09:00. From 20:00 to 06:00 the policy `night-report.yaml` says slow: one part at a time, and twice
the delay before a retry. One part fails once in the evening, another one at night.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import oncemore
from oncemore.testing import FakeClock

HERE = Path(__file__).parent
START = datetime(2026, 11, 3, 18, tzinfo=UTC)
DUE_S, PART_S, PART_KWH, PARTS, AT_ONCE = 15 * 3600, 1800, 0.5, 52, 4
#: The parts whose first attempt fails: one in the evening, one at night.
FAILING = {2: "evening", 20: "night"}
#: How long a part waits for others to begin, in real seconds: the program counts who is there.
MEET_S = 0.1


class Wave(NamedTuple):
    """Four parts: when they began (hours since the start), how many ran at once, how long they took."""

    began_h: float
    at_once: int
    hours: float

    @property
    def kwh_per_hour(self) -> float:
        """Energy per hour."""
        return AT_ONCE * PART_KWH / self.hours

    @property
    def is_night(self) -> bool:
        """Whether it began between 20:00 and 06:00."""
        return 2 <= self.began_h < 12


class Night(NamedTuple):
    """The waves, the number of finished parts, the end in hours, and the delays of both retries."""

    waves: list[Wave]
    parts: int
    ended_h: float
    delays_s: dict[str, float]


class ParallelCounter:
    """Counts how many parts are at work at the same time."""

    def __init__(self) -> None:
        self._changed, self._active, self.most = threading.Condition(), 0, 0

    def do_part(self) -> None:
        """Be at work until all four are there, or nobody else has come."""
        with self._changed:
            self._active += 1
            self.most = max(self.most, self._active)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= AT_ONCE, MEET_S)
            self._active -= 1


def play(folder: Path) -> Night:
    """Play the night, wave by wave."""
    counters: list[ParallelCounter] = []

    @oncemore.step(effect="pure", name="report.part", policy=str(HERE / "night-report.yaml"))
    def make_part(number: int) -> int:
        oncemore.current().add_usage(energy_kwh=PART_KWH)
        if number in FAILING and oncemore.current().number == 1:
            raise oncemore.TransientError("the warehouse is busy")
        counters[-1].do_part()
        return number

    with (
        FakeClock(start=START) as clock,
        oncemore.open(folder / "log.db", max_inline_wait_s=3600) as engine,
        oncemore.context(deadline=engine.now() + DUE_S),
    ):
        waves, done = [], 0
        for first in range(0, PARTS, AT_ONCE):
            counters.append(ParallelCounter())
            began = clock.monotonic()
            done += make_part.map(range(first, first + AT_ONCE), max_concurrency=AT_ONCE).counts["done"]
            # The time of the wave follows from how many of its parts ran at once.
            clock.advance(PART_S * AT_ONCE / counters[-1].most)
            hours = (clock.monotonic() - began) / 3600
            waves.append(Wave(began / 3600, counters[-1].most, hours))
        delays = {when: make_part.run(number).proofs[0]["delay_s"] for number, when in FAILING.items()}
        return Night(waves, done, clock.monotonic() / 3600, delays)


def main() -> Night:
    """Play the night and print it."""
    # The story below says what the log messages would.
    logging.getLogger("oncemore").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        night = play(Path(folder))
    for wave in night.waves:
        clock = f"{int(18 + wave.began_h) % 24:02}:{int(wave.began_h % 1 * 60):02}"
        bar = "█" * round(wave.kwh_per_hour * 4)
        print(f"{clock}  {wave.at_once} at once  {wave.kwh_per_hour:3.1f} kWh an hour  {bar}")
    print(f"delay of a retry: {night.delays_s['evening']:.0f} s in the evening,", end=" ")
    print(f"{night.delays_s['night']:.0f} s at night")
    end = night.ended_h - 6
    print(f"{night.parts} parts done at {int(end):02}:{int(end % 1 * 60):02}, due at 09:00")
    return night


if __name__ == "__main__":
    main()
