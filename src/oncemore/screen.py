"""Where text is shown: plain everywhere, with colours and a countdown on a terminal only.

`NO_COLOR` (any value) and `TERM=dumb` are respected. All text is ASCII, so that no encoding refuses it.
"""

from __future__ import annotations

import os
import textwrap
import time
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from typing import TextIO

    Tint = Literal["", "bold", "dim", "red", "green", "yellow"]

WIDTH = 78
TICK_S = 0.1
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class TerminalStream:
    """A stream that people look at."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.live = out.isatty() and os.environ.get("TERM") != "dumb"
        self.coloured = self.live and not os.environ.get("NO_COLOR")
        self._over = Event()
        self._ticker: Thread | None = None

    def write_paragraph(self, text: str, tint: Tint = "", lead: str = "") -> None:
        """Show a paragraph, wrapped; its further lines stand below the first letter after the lead."""
        wrapped = textwrap.wrap(
            text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False
        )
        for line in wrapped:
            self.write_line(line, tint)

    def write_line(self, text: str = "", tint: Tint = "") -> None:
        """Show one line as it is."""
        self.end_countdown()
        self._out.write(self._add_color(text, tint) + "\n")
        self._out.flush()

    def start_countdown(self, what: str, seconds: float) -> None:
        """Count down in one line that vanishes; ends by itself, or when something else is shown."""
        self.end_countdown()
        if self.live and seconds > TICK_S:
            self._over = Event()
            self._ticker = Thread(target=self._run_countdown, args=(what, seconds, self._over), daemon=True)
            self._ticker.start()

    def end_countdown(self) -> None:
        """End the countdown, if one runs."""
        if self._ticker is not None:
            self._over.set()
            self._ticker.join()
            self._ticker = None

    def _run_countdown(self, what: str, seconds: float, over: Event) -> None:
        end = time.monotonic() + seconds
        width = 0
        while (left := end - time.monotonic()) > 0 and not over.is_set():
            text = f"{what} {left:.1f} s"
            width = max(width, len(text))
            self._out.write("\r" + self._add_color(text.ljust(width), "dim"))
            self._out.flush()
            over.wait(min(TICK_S, left))
        self._out.write("\r" + " " * width + "\r")
        self._out.flush()

    def _add_color(self, text: str, tint: Tint) -> str:
        return f"\033[{_CODES[tint]}m{text}\033[0m" if tint and self.coloured else text
