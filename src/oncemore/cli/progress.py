"""A bar for long work: on a terminal's stderr only, drawn over itself, and gone at the end."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PATIENCE_S = 0.5
EVERY_S = 0.1
BAR = 30


class Progress:
    """Shows how far something is; call it with what is done and what there is in all."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = what
        self._out = sys.stderr
        self._shows = self._out.isatty() and os.environ.get("TERM") != "dumb" and not quiet
        self._began = time.monotonic()
        self._next = self._began + PATIENCE_S
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, whole: int) -> None:
        """Draw the bar, if it is time to."""
        now = time.monotonic()
        if not self._shows or now < self._next or not whole:
            return
        self._next = now + EVERY_S
        part = min(1.0, done / whole)
        full = round(part * BAR)
        left = (now - self._began) * (1 / part - 1) if part else 0.0
        text = f"{self._what} [{'#' * full}{'.' * (BAR - full)}] {part:4.0%}, {left:.0f} s left"
        text = text[: _columns() - 1]
        self._out.write("\r" + text.ljust(self._width))
        self._out.flush()
        self._width = max(self._width, len(text))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            self._out.write("\r" + " " * self._width + "\r")
            self._out.flush()


def _columns() -> int:
    try:
        return max(20, os.get_terminal_size(sys.stderr.fileno()).columns)
    except (OSError, ValueError):
        return 80
