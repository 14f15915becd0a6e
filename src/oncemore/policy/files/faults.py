"""What is wrong with a policy file, and where: file, line, column, field, what is allowed.

Faults are collected, so that a person who corrects a file sees all of them at once; there is a limit
to how many are kept and to how much of a wrong value is shown.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

MOST_FAULTS: Final = 20
MOST_SHOWN: Final = 60


class Mark(Value):
    """A place in a file, counted from 1 as editors do; line 0 is the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Fault(Value):
    """One thing that is wrong: where, in which field (if it is one), and what is allowed instead."""

    mark: Mark
    field: str
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.field}{' ' if self.field else ''}{self.text}"


class PolicyFileError(PolicyError):
    """A policy file cannot be used; `faults` holds everything that was found in it."""

    def __init__(self, faults: tuple[Fault, ...], more: int = 0) -> None:
        self.faults = faults
        self.more = more
        lines = [str(fault) for fault in faults]
        if more:
            lines.append(f"and {more} more")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.faults, self.more)


class Faults:
    """The faults found so far; each is kept once, and no more than `MOST_FAULTS` of them."""

    def __init__(self) -> None:
        self._found: dict[Fault, None] = {}
        self._more = 0

    def add(self, mark: Mark, field: str, text: str) -> None:
        """Keep one more fault, or count it when there are too many."""
        fault = Fault(mark, field, text)
        if fault in self._found:
            return
        if len(self._found) < MOST_FAULTS:
            self._found[fault] = None
        else:
            self._more += 1

    def check(self) -> None:
        """Raise what was found, in the order of the places; nothing found is nothing raised."""
        if self._found:
            raise PolicyFileError(tuple(sorted(self._found)), self._more)


def refuse(mark: Mark, text: str, field: str = "") -> PolicyFileError:
    """Return the error for a file that cannot even be read to its end."""
    return PolicyFileError((Fault(mark, field, text),))


def shown(value: object) -> str:
    """Return a value as a message shows it: on one line, escaped, and short."""
    text = {None: "null", True: "true", False: "false"}.get(value) if _plain(value) else repr(value)  # type: ignore[call-overload]
    assert text is not None
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelt one most likely means, or None."""
    from difflib import get_close_matches  # only a mistake pays for it

    return next(iter(get_close_matches(word[:MOST_SHOWN], list(known), 1, 0.6)), None)
