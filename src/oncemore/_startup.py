"""Signals while the program `oncemore` starts: it ends at once, with the signal's exit code and no traceback.

`import oncemore` loads this module only when the program is started (`oncemore …`, `python -m oncemore …`).
While it starts, nothing has begun that could be lost. `restore_signals` gives the usual handlers back;
`oncemore exec` replaces them by its own (`programs.signals`).
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

_USUAL = {SIGINT: default_int_handler, SIGTERM: SIG_DFL}


def is_program() -> bool:
    """Return whether this process was started as the program `oncemore`."""
    if sys.argv[0] != "-m":
        return os.path.basename(sys.argv[0]) in ("oncemore", "kfm-replay")  # noqa: PTH119 - pathlib is slow
    words = sys.orig_argv
    return "-moncemore" in words or ("-m" in words and words[words.index("-m") + 1 :][:1] == ["oncemore"])


def end_on_signals() -> None:
    """End the process at the first SIGINT or SIGTERM, unless it was started with that one ignored."""
    for number, usual in _USUAL.items():
        if getsignal(number) is usual:
            signal(number, _end)


def restore_signals() -> None:
    """Give SIGINT and SIGTERM the handlers that Python starts with."""
    for number, usual in _USUAL.items():
        if getsignal(number) is _end:
            signal(number, usual)


def _end(number: int, frame: object) -> None:
    os._exit(128 + number)


if is_program():
    end_on_signals()
