"""A line on a terminal that tells how far a job is; nothing where nobody looks."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

WIDTH = 24
#: How often the line is drawn at most.
EVERY_S = 0.1


class Bar:
    """Draws the line over and over, at most ten times a second.

    total   how many items there will be; None if nobody knows
    stream  where to; nothing is drawn where that is no terminal
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        stream: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._clock = label, total, clock
        there = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._stream = stream if there else None
        self._began, self._drawn = clock(), 0.0

    def draw(self, counts: Mapping[str, int], *, last: bool = False) -> None:
        """Show how many items came to what."""
        now = self._clock()
        if self._stream is None or not (last or now - self._drawn >= EVERY_S):
            return
        self._drawn = now
        over = sum(counts.values())
        others = "".join(f", {count} {word}" for word, count in counts.items() if count and word != "done")
        speed = over / (now - self._began) if now > self._began else 0.0
        self._write(
            self._stream, f"\r\x1b[K{self._label} {self._share(over)}{others}, {speed:.1f}/s" + "\n" * last
        )

    def _share(self, over: int) -> str:
        if not self._total:
            return str(over)
        full = min(WIDTH, WIDTH * over // self._total)
        return f"[{'#' * full}{'.' * (WIDTH - full)}] {over}/{self._total}"

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):  # whoever looked has gone; the job goes on
            self._stream = None
