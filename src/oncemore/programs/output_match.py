"""Looks for expressions in what a program prints: in a process of its own, because `re` cannot be stopped.

Run as a file of its own. The first line that it reads is JSON with the patterns; then come frames: the number
of the stream (one byte), the length (four bytes), the bytes. It ends with 0 at the first match and with 1 if
there is none. A match is looked for in each line, and in a line of more than `LONGEST` characters in pieces.
"""

from __future__ import annotations

import json
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

MATCH, NONE, WRONG = 0, 1, 2
LONGEST = 16_384
#: How much of a piece is seen again with the next one.
OVERLAP = 1_024


class Lines:
    """One stream, looked at line by line."""

    def __init__(self, patterns: list[re.Pattern[str]]) -> None:
        self._patterns, self._rest = patterns, b""

    def match(self, data: bytes) -> bool:
        """Take the next bytes; say whether a line that they end holds what is looked for."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST:
            lines, self._rest = [*lines, self._rest], self._rest[-OVERLAP:]
        return any(self._in(line) for line in lines)

    def end(self) -> bool:
        """Say whether what is left without an end of line holds it."""
        return self._in(self._rest)

    def _in(self, line: bytes) -> bool:
        text = line.decode("utf-8", "replace").rstrip("\r")
        pieces = [text[at : at + LONGEST + OVERLAP] for at in range(0, max(len(text), 1), LONGEST)]
        return any(pattern.search(piece) for pattern in self._patterns for piece in pieces)


def look(file: BinaryIO) -> int:
    """Read to the first match or the end."""
    patterns = [re.compile(pattern) for pattern in json.loads(file.readline())["patterns"]]
    streams: dict[int, Lines] = {}
    while len(head := file.read(5)) == 5:
        lines = streams.setdefault(head[0], Lines(patterns))
        if lines.match(file.read(int.from_bytes(head[1:], "big"))):
            return MATCH
    return MATCH if any(lines.end() for lines in streams.values()) else NONE


if __name__ == "__main__":
    sys.exit(look(sys.stdin.buffer))
