"""Output of commands: either text or JSON on one stream, and a progress bar on stderr.

Colors are used on a terminal only, and not with `NO_COLOR` (any value) or `TERM=dumb`; no fact is shown by
color alone. Characters missing from the stream's encoding are replaced by ASCII. If the reader closes the
pipe, the rest of the output is discarded and the command still ends with its own exit code.
"""

from __future__ import annotations

import os
import sys
import time

from oncemore._redact import show_controls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Final, Literal, Self, TextIO

    Color = Literal["", "bold", "dim", "red", "green", "yellow"]

DEFAULT_WIDTH = 80
MIN_WIDTH = 40
MIN_COLUMN_WIDTH = 20
MAX_PROSE_WIDTH = 100

_COLOR_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
#: Replacements for a stream with an encoding that lacks these characters.
_ASCII_REPLACEMENTS: Final = str.maketrans({
    "█": "#", "░": ":", "│": "|", "─": "-", "└": "+", "┴": "+", "•": "o", "…": "...", "→": "->",
    "━": "=", "·": ".", "▒": "%", "✓": "+",
})  # fmt: skip


def discard_output(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, so that later writes cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class OutputWriter:
    """Writes lines, tables, errors and JSON to one stream.

    is_reader_gone  whether the reader of the pipe has closed it; a following command stops then
    """

    def __init__(self, stream: TextIO | None = None, *, in_json: bool = False) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.in_json = in_json
        self.is_reader_gone = False
        self.is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self.has_colors = self.is_terminal and not os.environ.get("NO_COLOR") and not in_json
        self._is_ascii_only = not _can_encode(self._stream, "█░│─•")

    @property
    def width(self) -> int:
        """The number of columns: `COLUMNS`, else that of the terminal, else 80."""
        columns = os.environ.get("COLUMNS", "")
        if columns.isdigit() and int(columns) > 0:
            return max(MIN_WIDTH, int(columns))
        try:
            return max(MIN_WIDTH, os.get_terminal_size(self._stream.fileno()).columns or DEFAULT_WIDTH)
        except (OSError, ValueError):
            return DEFAULT_WIDTH

    def write_line(self, text: str = "", color: Color = "", *, word: str = "") -> None:
        """Write one line; control characters are escaped, so that stored text cannot control the terminal.

        word  the only part of the line that gets the color
        """
        shown = show_controls(text.rstrip())
        if color and self.has_colors:
            before, part, after = shown.partition(word) if word else ("", shown, "")
            shown = f"{before}\033[{_COLOR_CODES[color]}m{part}\033[0m{after}"
        self._write_text(shown)

    def status(self, text: str) -> None:
        """Replace the unfinished last line of a terminal; an empty text removes it."""
        self._write_text("\r\033[K" + show_controls(text)[: self.width - 1], end="")

    def write_paragraph(self, text: str, color: Color = "", lead: str = "") -> None:
        """Write a wrapped paragraph; its further lines are indented by the length of the lead."""
        from textwrap import wrap

        width = min(self.width, MAX_PROSE_WIDTH)
        hang = " " * len(lead)
        # A path or a digest is never broken, because a broken one cannot be copied from the terminal.
        lines = wrap(
            text, width, initial_indent=lead, subsequent_indent=hang, break_on_hyphens=False,
            break_long_words=False,
        )  # fmt: skip
        for line in lines:
            self.write_line(line, color)

    def write_table(
        self,
        rows: Sequence[Sequence[str]],
        indent: str = "",
        *,
        right: Iterable[int] = (),
        colors: Mapping[str, Color] | None = None,
    ) -> None:
        """Write rows in columns, the first row as header; the last column is wrapped.

        right   the numbers of right-aligned columns
        colors  the colors of cells by their text, such as the names of states
        """
        right_aligned = set(right)
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        # A narrow terminal gets one space between columns. The last column can be wrapped, so only its
        # minimum width counts.
        last = min(widths[-1], MIN_COLUMN_WIDTH)
        gap = "  " if len(indent) + sum(widths[:-1]) + last + 2 * (len(widths) - 1) <= self.width else " "
        for number, row in enumerate(rows):
            cells = [
                cell.rjust(width) if column in right_aligned else cell.ljust(width)
                for column, (cell, width) in enumerate(zip(row[:-1], widths, strict=False))
            ]
            lead = indent + "".join(f"{cell}{gap}" for cell in cells)
            end = row[-1].rjust(widths[-1]) if len(row) - 1 in right_aligned else row[-1]
            if number == 0:
                self._write_row(lead, end, "dim")
            else:
                word = next((cell for cell in row if colors is not None and cell in colors), "")
                self._write_row(lead, end, colors[word] if colors is not None and word else "", word)

    def _write_row(self, lead: str, last: str, color: Color, word: str = "") -> None:
        room = self.width - len(lead)
        first, rest = last, list[str]()
        if len(last) > room >= MIN_COLUMN_WIDTH:
            from textwrap import wrap

            first, *rest = wrap(last, room, break_on_hyphens=False, break_long_words=False)
        self.write_line(lead + first, color, word=word)
        for line in rest:
            self.write_line(" " * len(lead) + line, "" if word else color)

    def write_json(self, value: object) -> None:
        """Write one JSON document."""
        self._write_text(_dump_json(value, 2))

    def write_json_line(self, value: object) -> None:
        """Write one of several JSON documents, on a line of its own."""
        self._write_text(_dump_json(value, None))

    def write_bytes(self, data: bytes) -> None:
        """Write bytes unchanged, without the stream's encoding."""
        try:
            self._stream.flush()
            # The text before is flushed first; it would otherwise appear after the bytes.
            self._stream.buffer.write(data)
            self._stream.buffer.flush()
        except BrokenPipeError:
            self._discard_rest()

    def _discard_rest(self) -> None:
        self.is_reader_gone = True
        discard_output(self._stream)

    def write_error(self, message: str, hint: str = "") -> None:
        """Write an error and the next step; with --json as one JSON document."""
        if self.in_json:
            self.write_json_line({"error": {"message": message, **({"hint": hint} if hint else {})}})
        else:
            lead = "oncemore: "
            for line in message.splitlines():
                self.write_paragraph(line, "red", lead)
                lead = " " * len(lead)
            if hint:
                self.write_paragraph(hint, "", lead)

    def _write_text(self, text: str, end: str = "\n") -> None:
        if self._is_ascii_only:
            encoding = self._stream.encoding or "ascii"
            text = text.translate(_ASCII_REPLACEMENTS).encode(encoding, "backslashreplace").decode(encoding)
        try:
            self._stream.write(text + end)
            self._stream.flush()
        except BrokenPipeError:
            self._discard_rest()


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def _dump_json(value: object, indent: int | None) -> str:
    """Return JSON in ASCII, which every stream can encode."""
    import json

    from oncemore.queries import to_plain

    return json.dumps(to_plain(value), indent=indent)


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
