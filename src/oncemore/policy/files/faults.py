"""Faults of a policy file: file, line, column, field and the allowed values.

Faults are collected, so that the author of a file sees all of them at once. Their number and the
length of a shown value are limited.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

MAX_FAULTS: Final = 20
MAX_SHOWN_CHARS: Final = 60
_YAML_WORDS: Final = ((None, "null"), (True, "true"), (False, "false"))


class FilePosition(Value):
    """A position in a file, counted from 1 like in editors; line 0 stands for the whole file."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class FileFault(Value):
    """One fault: its position, its field (if any), and a text with the allowed values."""

    mark: FilePosition
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.field}{' ' if self.field else ''}{self.text}"


class PolicyFileError(PolicyError):
    """A policy file cannot be used; `faults` lists all faults."""

    def __init__(self, faults: tuple[FileFault, ...], more: int = 0) -> None:
        self.faults = faults
        self.more = more
        lines = [str(fault) for fault in faults]
        if more:
            lines.append(f"and {more} more")
        super().__init__("\n".join(lines))

    # Without this, pickle would call `__init__` with the message instead of the faults.
    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.faults, self.more)


class FaultList:
    """Collects faults: each one once, and at most `MAX_FAULTS`."""

    def __init__(self) -> None:
        self._faults: dict[FileFault, None] = {}
        self._overflow = 0

    def add_fault(self, mark: FilePosition, field: str, text: str) -> None:
        """Add a fault; beyond the limit it is only counted."""
        fault = FileFault(mark, field, text)
        if fault in self._faults:
            return
        if len(self._faults) < MAX_FAULTS:
            self._faults[fault] = None
        else:
            self._overflow += 1

    def raise_if_any(self) -> None:
        """Raise `PolicyFileError` with all faults in the order of their positions, if there are any."""
        if self._faults:
            raise PolicyFileError(tuple(sorted(self._faults)), self._overflow)


def policy_file_error(mark: FilePosition, text: str, field: str = "") -> PolicyFileError:
    """Return the error for a file with a fault that ends the reading."""
    return PolicyFileError((FileFault(mark, field, text),))


def format_value(value: object) -> str:
    """Return a value for a message: on one line, escaped and shortened."""
    # As YAML writes them; compared by identity, because 1 == True.
    text = next((word for known, word in _YAML_WORDS if value is known), repr(value))
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def find_closest_word(word: str, known: Iterable[str]) -> str | None:
    """Return the known word closest to a misspelt one, or None."""
    # Imported here: only a file with a fault needs it.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word[:MAX_SHOWN_CHARS], list(known), 1, 0.6)), None)
