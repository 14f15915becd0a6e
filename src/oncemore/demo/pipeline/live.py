"""A terminal that is drawn on in place, or a stream of plain lines where there is none.

One frame is one write: the cursor goes up over the last frame, and every line is written over the old one
and cleared to its end, so that nothing flickers. When the size changes all is drawn anew. Plain is what
everybody else gets: files, pipes, `NO_COLOR`, `TERM=dumb`, and windows too small for a frame.
"""

from __future__ import annotations

import logging
import os
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from oncemore.demo.pipeline.board import Line, Tint

USUAL = (80, 24)
WIDEST_PROSE = 100
CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_HIDE, _SHOW = "\033[?25l", "\033[?25h"


@contextmanager
def silence_logging() -> Iterator[None]:
    """Keep what oncemore would log off the screen: stores that are made and work that fails are the story."""
    log, quiet = logging.getLogger("oncemore"), logging.NullHandler()
    log.addHandler(quiet)
    try:
        yield
    finally:
        log.removeHandler(quiet)


class LiveTerminal:
    """Where the story is shown.

    live  whether frames can be drawn; else only `say` and `lines` are of use
    """

    def __init__(self, out: TextIO, height: int, *, plain: bool = False) -> None:
        self._out = out
        shows = out.isatty() and os.environ.get("TERM") != "dumb"
        self.coloured = shows and not os.environ.get("NO_COLOR") and not plain
        self.live = self.coloured and self.terminal_size()[1] > height
        self._drawn = 0
        self._size = (0, 0)
        self._last = ""

    def terminal_size(self) -> tuple[int, int]:
        """Return columns and rows: of the terminal, or as `COLUMNS` says, or 80 by 24."""
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            columns, rows = 0, 0
        told = os.environ.get("COLUMNS", "")
        if told.isdigit() and int(told):
            columns = int(told)
        return columns or USUAL[0], rows or USUAL[1]

    def draw_frame(self, frame: list[Line]) -> None:
        """Show a frame in the place of the last one."""
        size, text = self.terminal_size(), "".join(f"{self._color_line(line)}\033[K\n" for line in frame)
        if text == self._last and size == self._size:
            return
        up = f"\033[{self._drawn}A\r" if self._drawn else _HIDE
        if self._drawn and size != self._size:
            up = "\033[H\033[2J"  # what was there is wrapped in another way now
        self._out.write(f"{up}{text}\033[J")
        self._out.flush()
        self._drawn, self._size, self._last = len(frame), size, text

    def end_drawing(self) -> None:
        """Leave the last frame where it is, and give the cursor back."""
        if self._drawn:
            self._out.write(_SHOW)
            self._out.flush()
        self._drawn, self._last = 0, ""

    def write_lines(self, lines: list[Line]) -> None:
        """Show lines as they are."""
        self._out.write("".join(f"{self._color_line(line)}\n" for line in lines))
        self._out.flush()

    def write_paragraph(self, text: str, tint: Tint = "", lead: str = "") -> None:
        """Show a paragraph, wrapped."""
        self.write_lines(wrap_text(text, self.terminal_size()[0], tint, lead))

    def _color_line(self, line: Line) -> str:
        return "".join(
            f"\033[{CODES[tint]}m{text}\033[0m" if tint and self.coloured else text for text, tint in line
        ).rstrip()


def wrap_text(text: str, width: int, tint: Tint = "", lead: str = "") -> list[Line]:
    """Return a paragraph as lines; the further ones stand below the first letter after the lead."""
    broken = textwrap.wrap(
        text, max(20, min(width, WIDEST_PROSE)), initial_indent=lead, subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
    )  # fmt: skip
    return [[(line, tint)] for line in broken]
