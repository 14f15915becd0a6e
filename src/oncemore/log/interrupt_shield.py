"""Delaying a Ctrl-C while the store works or a thread starts.

`Thread.start` waits in Python's own locks, and a Ctrl-C there raises "release unlocked lock".
"""

from __future__ import annotations

import os
import threading

# The module behind `signal`, without its enums: a tenth of the cost of each call.
from _signal import getsignal, signal  # type: ignore[import-not-found]
from _thread import get_ident
from typing import Any

_SIGINT, _SIGTERM = 2, 15


class InterruptShield:
    """Context manager that delays the first Ctrl-C until its end, so that no lock remains locked.

    A second Ctrl-C is delivered at once; `twice` is True then. Only the main thread is ever interrupted.
    SIGTERM is delayed in the same way if a Python function handles it.

    was_interrupted  whether there was a first Ctrl-C before
    """

    # Class attributes are the defaults: most shields see no signal and set none of them.

    _int: Any = None
    _term: Any = None
    _was_interrupted = False
    _delayed_signal = 0
    twice = False

    def __init__(self, was_interrupted: bool = False) -> None:
        if was_interrupted:
            self._was_interrupted = was_interrupted

    def __enter__(self) -> None:
        if get_ident() == _main[0]:
            if callable(handler := getsignal(_SIGINT)):
                self._int = handler
                signal(_SIGINT, self._on_signal)
            if callable(handler := getsignal(_SIGTERM)):
                self._term = handler
                signal(_SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if not self._was_interrupted:
            self._was_interrupted, self._delayed_signal = True, number
            return
        self.twice, self._delayed_signal = True, 0
        self._restore_handler()
        self._deliver_signal(number)

    def _restore_handler(self) -> None:
        if self._int is not None:
            signal(_SIGINT, self._int)
        if self._term is not None:
            signal(_SIGTERM, self._term)

    def _deliver_signal(self, number: int) -> None:
        handler: Any = self._int if number == _SIGINT else self._term
        handler(number, None)

    def __exit__(self, *error: object) -> None:
        if self._int is not None or self._term is not None:
            self._restore_handler()
            if self._delayed_signal:
                self._deliver_signal(self._delayed_signal)


def _find_main_thread() -> None:
    # The forking thread becomes the main thread of the child.
    _main[0] = threading.main_thread().ident or 0


_main = [0]
_find_main_thread()
os.register_at_fork(after_in_child=_find_main_thread)
