"""Lines that demos print at their end: the table of effects, and commands to try next."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore.demo.terminal import cut_line, wrap_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oncemore.demo.effect_counts import EffectCount
    from oncemore.demo.terminal import Line

FIELDS = ("asked", "tried", "applied", "duplicated", "lost")


def count_lines(counts: Iterable[EffectCount], width: int) -> list[Line]:
    """Return the table of effects, one row per kind."""
    row = "{:<18}{:>7}{:>7}{:>9}{:>12}{:>6}".format
    lines: list[Line] = [[(row("effect", *FIELDS), "bold")]]
    lines += [[(row(*each), "red" if each.duplicated or each.lost else "green")] for each in counts]
    return [cut_line(line, width) for line in lines]


def command_lines(commands: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Return commands with their explanations, beside each other if the terminal is wide enough."""
    room = max(len(command) for command, _ in commands)
    # One layout for all of them, and commands are never wrapped: they are to be copied.
    is_wide = room + max(len(explanation) for _, explanation in commands) + 4 <= width
    lines: list[Line] = [[("What to try next", "bold")]]
    for command, explanation in commands:
        if is_wide:
            lines.append([(f"  {command.ljust(room)}  ", ""), (explanation, "dim")])
        else:
            lines += [[(f"  {command}", "")], *wrap_text(explanation, width, "dim", "      ")]
    return lines


def command_names() -> tuple[str, str]:
    """Return the words that call `oncemore` and its Python interpreter from the current directory."""
    # The command must work when it is copied, also without an activated environment.
    python = sys.executable
    beside = Path(python).with_name("oncemore")
    found = shutil.which("oncemore")
    if found is not None and Path(found) == beside:
        return "oncemore", python
    if beside.exists():
        # A virtual environment that is not activated: its path, as short as possible.
        near = beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
        return str(near), python
    return f"{python} -m oncemore", python
