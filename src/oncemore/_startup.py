"""Signal handlers while the command line starts: exit at once, with the signal's exit code and no traceback.

`import oncemore` loads this module only for the command line (`oncemore …`, `python -m oncemore …`). During
the start no work has begun, so that none can be lost. `restore_signals` sets Python's handlers again;
`oncemore exec` installs its own (`programs.signals`).
"""

from __future__ import annotations

import os
import sys
from _signal import (  # type: ignore[import-not-found] # without enums: a tenth of the cost
    SIG_DFL,
    SIGINT,
    SIGTERM,
    default_int_handler,
    getsignal,
    signal,
)

#: The handlers that Python starts with.
_DEFAULTS = {SIGINT: default_int_handler, SIGTERM: SIG_DFL}


def is_program() -> bool:
    """Return whether this process was started as the program `oncemore`."""
    if sys.argv[0] != "-m":
        return os.path.basename(sys.argv[0]) in ("oncemore", "kfm-replay")  # noqa: PTH119 - pathlib is slow
    words = sys.orig_argv
    return "-moncemore" in words or ("-m" in words and words[words.index("-m") + 1 :][:1] == ["oncemore"])


def end_on_signals() -> None:
    """Exit at the first SIGINT or SIGTERM, unless the process was started with that signal ignored."""
    for number, default in _DEFAULTS.items():
        if getsignal(number) is default:
            signal(number, _end)


def restore_signals() -> None:
    """Set Python's default handlers of SIGINT and SIGTERM again."""
    for number, default in _DEFAULTS.items():
        if getsignal(number) is _end:
            signal(number, default)


def _end(number: int, frame: object) -> None:
    # Without cleanup: the interpreter may be in the middle of an import.
    os._exit(128 + number)


if is_program():
    end_on_signals()
