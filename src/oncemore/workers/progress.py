"""Progress line of a job on a terminal; nothing is drawn if the stream is not a terminal."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

BAR_WIDTH = 24
#: The shortest time between two redraws.
REDRAW_S = 0.1


class ProgressBar:
    """Draws the progress line, at most ten times a second.

    total   the number of items; None if it is unknown
    stream  the terminal; nothing is drawn on any other stream
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        stream: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._clock = label, total, clock
        # A dumb terminal cannot erase the line, so each redraw would append to it.
        is_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._stream = stream if is_terminal else None
        self._began, self._drawn = clock(), 0.0

    def draw_line(self, counts: Mapping[str, int], *, last: bool = False) -> None:
        """Draw the number of items by outcome."""
        now = self._clock()
        if self._stream is None or not (last or now - self._drawn >= REDRAW_S):
            return
        self._drawn = now
        finished = sum(counts.values())
        rest = "".join(f", {count} {word}" for word, count in counts.items() if count and word != "done")
        speed = finished / (now - self._began) if now > self._began else 0.0
        self._write_text(
            self._stream,
            f"\r\x1b[K{self._label} {self._format_share(finished)}{rest}, {speed:.1f}/s" + "\n" * last,
        )

    def _format_share(self, finished: int) -> str:
        if not self._total:
            return str(finished)
        full = min(BAR_WIDTH, BAR_WIDTH * finished // self._total)
        return f"[{'#' * full}{'.' * (BAR_WIDTH - full)}] {finished}/{self._total}"

    def _write_text(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            # The terminal is closed. The job continues without a progress line.
            self._stream = None
