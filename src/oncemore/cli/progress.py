"""A progress bar on the terminal's stderr, which is removed at the end."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

# A command that ends within half a second shows no bar.
FIRST_DRAW_S = 0.5
REDRAW_S = 0.1
BAR_WIDTH = 30


class ProgressLine:
    """A progress bar; call it with the number of finished items and the total."""

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label = label
        self._out = sys.stderr
        self._is_visible = self._out.isatty() and os.environ.get("TERM") != "dumb" and not quiet
        self._started_at = time.monotonic()
        self._next_draw_at = self._started_at + FIRST_DRAW_S
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        """Draw the bar, unless it was drawn a moment ago."""
        now = time.monotonic()
        if not self._is_visible or now < self._next_draw_at or not total:
            return
        self._next_draw_at = now + REDRAW_S
        share = min(1.0, done / total)
        filled = round(share * BAR_WIDTH)
        left_s = (now - self._started_at) * (1 / share - 1) if share else 0.0
        text = f"{self._label} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%}, {left_s:.0f} s left"
        # A line as wide as the terminal would wrap, and the carriage return would not reach its start.
        text = text[: _terminal_columns() - 1]
        self._out.write("\r" + text.ljust(self._width))
        self._out.flush()
        self._width = max(self._width, len(text))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Overwritten with spaces: stdout may share the terminal, and its lines must not start in the bar.
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()


def _terminal_columns() -> int:
    try:
        return max(20, os.get_terminal_size(sys.stderr.fileno()).columns)
    except (OSError, ValueError):
        return 80
