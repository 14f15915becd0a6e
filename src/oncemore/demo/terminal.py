"""Output of the demos: a live view that is redrawn in place, a countdown, or plain lines.

One frame is one write: the cursor moves up over the last frame, and each line is overwritten and cleared to
its end, which avoids flicker. Files, pipes, `NO_COLOR`, `TERM=dumb` and terminals too small for a frame get
plain lines. Standard library only, as `oncemore demo retry` promises.
"""

from __future__ import annotations

import logging
import os
import signal
import textwrap
import time
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    Tint = Literal["", "bold", "dim", "red", "green", "yellow"]
    Line = list[tuple[str, Tint]]

DEFAULT_SIZE = (80, 24)
MAX_PARAGRAPH_WIDTH = 100
#: Seconds between two steps of a countdown.
COUNTDOWN_STEP_S = 0.1
#: The exit code of a program that was ended by Ctrl-C, as shells have it.
STOPPED = 130
CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_HIDE_CURSOR, _SHOW_CURSOR = "\033[?25l", "\033[?25h"


@contextmanager
def silence_logging() -> Iterator[None]:
    """Keep oncemore's log messages off the screen; the demo itself shows stores and failures."""
    # A handler of its own keeps logging's last-resort handler from printing warnings to stderr.
    log, quiet = logging.getLogger("oncemore"), logging.NullHandler()
    level = log.level
    log.addHandler(quiet)
    try:
        yield
    finally:
        log.removeHandler(quiet)
        # A program of an example may have set it.
        log.setLevel(level)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit`, so that `finally` blocks end the child processes."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    names = (signal.SIGTERM, signal.SIGHUP)
    # The handlers are restored, because tests run several demos in one process.
    before = {name: signal.signal(name, stop) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


class LiveTerminal:
    """A terminal or a file that a demo writes to.

    live      whether frames can be drawn; if not, only lines and paragraphs may be written
    coloured  whether lines get colours
    """

    def __init__(self, out: TextIO, height: int = 0, *, plain: bool = False) -> None:
        self._out = out
        self._is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self.coloured = self._is_terminal and not os.environ.get("NO_COLOR") and not plain
        self.live = self.coloured and self.terminal_size()[1] > height
        self._drawn = 0
        self._cursor_hidden = False
        self._size = (0, 0)
        self._last = ""
        self._countdown_over = Event()
        self._countdown: Thread | None = None

    def terminal_size(self) -> tuple[int, int]:
        """Return columns and rows of the terminal; `COLUMNS` overrides, the default is 80 by 24."""
        try:
            columns, rows = os.get_terminal_size(self._out.fileno())
        except (OSError, ValueError):
            columns, rows = 0, 0
        override = os.environ.get("COLUMNS", "")
        if override.isdigit() and int(override):
            columns = int(override)
        return columns or DEFAULT_SIZE[0], rows or DEFAULT_SIZE[1]

    def draw_frame(self, frame: list[Line]) -> None:
        """Replace the last frame by this one; an unchanged frame is not written."""
        size, text = self.terminal_size(), "".join(f"{self._color_line(line)}\033[K\n" for line in frame)
        if text == self._last and size == self._size:
            return
        up = f"\033[{self._drawn}A\r" if self._drawn else _HIDE_CURSOR
        if self._drawn and size != self._size:
            # The terminal has wrapped the old lines in another way: their number is unknown.
            up = "\033[H\033[2J"
        # Set before the write: Ctrl-C can arrive when the terminal has the sequence and the write has not
        # returned. To show the cursor once too often is harmless, to leave it hidden is not.
        self._cursor_hidden = True
        self._out.write(f"{up}{text}\033[J")
        self._out.flush()
        self._drawn, self._size, self._last = len(frame), size, text

    def end_drawing(self) -> None:
        """Leave the last frame on the screen and show the cursor; safe to call again."""
        if self._cursor_hidden:
            self._out.write(_SHOW_CURSOR)
            self._out.flush()
            # Cleared after the write, for the same reason: an interrupted call can be repeated.
            self._cursor_hidden = False
        self._drawn, self._last = 0, ""

    def write_lines(self, lines: list[Line]) -> None:
        """Write lines as they are."""
        self.end_countdown()
        self._out.write("".join(f"{self._color_line(line)}\n" for line in lines))
        self._out.flush()

    def write_line(self, text: str = "", tint: Tint = "") -> None:
        """Write one line."""
        self.write_lines([[(text, tint)]])

    def write_paragraph(self, text: str, tint: Tint = "", lead: str = "") -> None:
        """Write a paragraph, wrapped to the width of the terminal."""
        self.write_lines(wrap_text(text, self.terminal_size()[0], tint, lead))

    def start_countdown(self, label: str, seconds: float) -> None:
        """Count down in a line that disappears at the end, or when something else is written."""
        self.end_countdown()
        if self._is_terminal and seconds > COUNTDOWN_STEP_S:
            over = self._countdown_over = Event()
            self._countdown = Thread(target=self._run_countdown, args=(label, seconds, over), daemon=True)
            self._countdown.start()

    def end_countdown(self) -> None:
        """End the countdown, if one runs."""
        if self._countdown is not None:
            self._countdown_over.set()
            self._countdown.join()
            self._countdown = None

    def _run_countdown(self, label: str, seconds: float, over: Event) -> None:
        end = time.monotonic() + seconds
        width = 0
        while (left := end - time.monotonic()) > 0 and not over.is_set():
            text = f"{label} {left:.1f} s"
            width = max(width, len(text))
            # Spaces instead of an escape sequence: NO_COLOR terminals may not get any.
            self._out.write("\r" + self._add_color(text.ljust(width), "dim"))
            self._out.flush()
            over.wait(min(COUNTDOWN_STEP_S, left))
        self._out.write("\r" + " " * width + "\r")
        self._out.flush()

    def _color_line(self, line: Line) -> str:
        return "".join(self._add_color(text, tint) for text, tint in line).rstrip()

    def _add_color(self, text: str, tint: Tint) -> str:
        return f"\033[{CODES[tint]}m{text}\033[0m" if tint and self.coloured else text


def wrap_text(text: str, width: int, tint: Tint = "", lead: str = "") -> list[Line]:
    """Return a paragraph as lines; later lines are indented by the length of `lead`."""
    wrapped = textwrap.wrap(
        text, max(20, min(width, MAX_PARAGRAPH_WIDTH)), initial_indent=lead,
        subsequent_indent=" " * len(lead), break_on_hyphens=False,
    )  # fmt: skip
    return [[(line, tint)] for line in wrapped]


def cut_line(line: Line, width: int) -> Line:
    """Return as much of a line as fits; a text that is cut ends in two dots."""
    out: Line = []
    for text, tint in line:
        if width <= 0:
            break
        out.append((text[:width] if len(text) <= width else text[: width - 2] + "..", tint))
        width -= len(text)
    return out
