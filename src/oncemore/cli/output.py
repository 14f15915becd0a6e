"""Where commands write: text for people, JSON for programs, and never both on one stream.

Colours are used on a terminal only, and not with `NO_COLOR` (any value) or `TERM=dumb`; nothing is
said by colour alone. Characters that the stream's encoding lacks are replaced by ASCII ones. When the
reader of a pipe goes away, the paper falls silent and the command goes on to its exit code: a check
that failed has failed, however much of it was read.
"""

from __future__ import annotations

import os
import sys

from oncemore._redact import show_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final, Literal, TextIO

    Tint = Literal["", "bold", "dim", "red", "green", "yellow"]

USUAL_WIDTH = 80
NARROWEST = 40
NARROW_COLUMN = 20
WIDEST_PROSE = 100

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
#: What a stream that cannot show the left shows instead.
_ASCII: Final = str.maketrans({
    "█": "#", "░": ":", "│": "|", "─": "-", "└": "+", "┴": "+", "•": "o", "…": "...", "→": "->",
    "━": "=", "·": ".", "▒": "%", "✓": "+",
})  # fmt: skip


def hush(out: TextIO) -> None:
    """Let everything that is still to come on a broken stream go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


class Paper:
    """A stream, and how it is written on."""

    def __init__(self, out: TextIO | None = None, *, in_json: bool = False) -> None:
        self._out = sys.stdout if out is None else out
        self.in_json = in_json
        self.hushed = False  # whether the reader has gone away
        self.is_terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self.coloured = self.is_terminal and not os.environ.get("NO_COLOR") and not in_json
        self._ascii = not _can_show(self._out, "█░│─•")

    @property
    def width(self) -> int:
        """The columns there are: of the terminal, or as `COLUMNS` says, or 80."""
        told = os.environ.get("COLUMNS", "")
        if told.isdigit() and int(told) > 0:
            return max(NARROWEST, int(told))
        try:
            return max(NARROWEST, os.get_terminal_size(self._out.fileno()).columns or USUAL_WIDTH)
        except (OSError, ValueError):
            return USUAL_WIDTH

    def line(self, text: str = "", tint: Tint = "") -> None:
        """Write one line; what would steer a terminal is shown instead of sent."""
        shown = show_controls(text.rstrip())
        self._write(f"\033[{_CODES[tint]}m{shown}\033[0m" if tint and self.coloured else shown)

    def status(self, text: str) -> None:
        """Replace the last, unfinished line of a terminal; an empty text takes it away."""
        self._write("\r\033[K" + show_controls(text)[: self.width - 1], end="")

    def ids(self, names: Sequence[str]) -> None:
        """Write names for another command: one on each line, or with --json a list of them."""
        if self.in_json:
            self.json(names)
        else:
            for name in names:
                self.line(name)

    def say(self, text: str, tint: Tint = "", lead: str = "") -> None:
        """Write a paragraph, wrapped; its further lines stand below the first letter after the lead."""
        from textwrap import wrap

        width = min(self.width, WIDEST_PROSE)
        hang = " " * len(lead)
        # A path or a digest is never broken: it could not be copied any more.
        lines = wrap(
            text, width, initial_indent=lead, subsequent_indent=hang, break_on_hyphens=False,
            break_long_words=False,
        )  # fmt: skip
        for line in lines:
            self.line(line, tint)

    def table(self, rows: Sequence[Sequence[str]], indent: str = "", *, right: Iterable[int] = ()) -> None:
        """Write rows in columns, the first row as their heads; the last column is wrapped."""
        shift = set(right)
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        last = min(widths[-1], NARROW_COLUMN)  # a longer one is wrapped
        gap = "  " if len(indent) + sum(widths[:-1]) + last + 2 * (len(widths) - 1) <= self.width else " "
        for number, row in enumerate(rows):
            cells = [
                cell.rjust(width) if at in shift else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row[:-1], widths, strict=False))
            ]
            lead = indent + "".join(f"{cell}{gap}" for cell in cells)
            end = row[-1].rjust(widths[-1]) if len(row) - 1 in shift else row[-1]
            self._cell(lead, end, "dim" if number == 0 else "")

    def _cell(self, lead: str, last: str, tint: Tint) -> None:
        room = self.width - len(lead)
        if len(last) <= room or room < NARROW_COLUMN:
            self.line(lead + last, tint)
        else:
            from textwrap import wrap

            first, *others = wrap(last, room, break_on_hyphens=False, break_long_words=False)
            for text, before in [(first, lead), *((other, " " * len(lead)) for other in others)]:
                self.line(before + text, tint)

    def json(self, value: object) -> None:
        """Write one JSON document."""
        self._write(_dumped(value, 2))

    def record(self, value: object) -> None:
        """Write one of several JSON documents, on a line of its own."""
        self._write(_dumped(value, None))

    def raw(self, data: bytes) -> None:
        """Write bytes as they are, whatever the stream's encoding."""
        try:
            self._out.flush()
            self._out.buffer.write(data)
            self._out.buffer.flush()
        except BrokenPipeError:
            self._hush()

    def _hush(self) -> None:
        self.hushed = True
        hush(self._out)

    def error(self, message: str, hint: str = "") -> None:
        """Write what went wrong and what to do next."""
        if self.in_json:
            self.record({"error": {"message": message, **({"hint": hint} if hint else {})}})
        else:
            lead = "oncemore: "
            for line in message.splitlines():
                self.say(line, "red", lead)
                lead = " " * len(lead)
            if hint:
                self.say(hint, "", lead)

    def _write(self, text: str, end: str = "\n") -> None:
        if self._ascii:
            coding = self._out.encoding or "ascii"
            text = text.translate(_ASCII).encode(coding, "backslashreplace").decode(coding)
        try:
            self._out.write(text + end)
            self._out.flush()
        except BrokenPipeError:
            self._hush()


def _can_show(out: TextIO, text: str) -> bool:
    try:
        text.encode(out.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def _dumped(value: object, indent: int | None) -> str:
    """Return JSON in ASCII, which every stream can carry and every reader reads alike."""
    import json

    from oncemore.queries import plain

    return json.dumps(plain(value), indent=indent)
