"""Searches the output of a program for expressions, in a process of its own because `re` cannot be stopped.

Run as a file of its own. The first line of standard input is JSON with the patterns; then follow frames: the
number of the stream (one byte), the length (four bytes), the bytes. The process exits with 0 at the first
match and with 1 if there is none. Expressions are searched in each line; a line of more than
`MAX_LINE_LENGTH` characters is searched in overlapping pieces.
"""

from __future__ import annotations

import json
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

EXIT_MATCH, EXIT_NO_MATCH, EXIT_WRONG = 0, 1, 2
MAX_LINE_LENGTH = 16_384
#: How many characters at the end of a piece are searched again with the next piece.
OVERLAP = 1_024


class LineMatcher:
    """Splits one stream into lines and searches them."""

    def __init__(self, patterns: list[re.Pattern[str]]) -> None:
        self._patterns, self._rest = patterns, b""

    def match_data(self, data: bytes) -> bool:
        """Search the lines that these bytes complete; return whether one matches."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        # A line without an end must not fill the memory: it is searched and cut here.
        if len(self._rest) > MAX_LINE_LENGTH:
            lines, self._rest = [*lines, self._rest], self._rest[-OVERLAP:]
        return any(self._match_line(line) for line in lines)

    def match_rest(self) -> bool:
        """Return whether the last line, which has no line end, matches."""
        return self._match_line(self._rest)

    def _match_line(self, line: bytes) -> bool:
        text = line.decode("utf-8", "replace").rstrip("\r")
        pieces = [
            text[at : at + MAX_LINE_LENGTH + OVERLAP] for at in range(0, max(len(text), 1), MAX_LINE_LENGTH)
        ]
        return any(pattern.search(piece) for pattern in self._patterns for piece in pieces)


def search_stream(file: BinaryIO) -> int:
    """Read frames until the first match or the end of the input; return the exit code."""
    patterns = [re.compile(pattern) for pattern in json.loads(file.readline())["patterns"]]
    # Two streams are two texts: a line of one never continues in the other.
    streams: dict[int, LineMatcher] = {}
    while len(head := file.read(5)) == 5:
        lines = streams.setdefault(head[0], LineMatcher(patterns))
        if lines.match_data(file.read(int.from_bytes(head[1:], "big"))):
            return EXIT_MATCH
    return EXIT_MATCH if any(lines.match_rest() for lines in streams.values()) else EXIT_NO_MATCH


if __name__ == "__main__":
    sys.exit(search_stream(sys.stdin.buffer))
