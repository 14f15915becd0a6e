"""SHIELD: a Ctrl-C that comes while a store is at work, or a thread starts, waits until that is done.

`Thread.start` waits in Python's own locks, which make "release unlocked lock" of a Ctrl-C that comes there.
"""

from __future__ import annotations

import os
import threading
from _signal import getsignal, signal  # type: ignore[import-not-found] # without enums: a tenth of the cost
from _thread import get_ident
from typing import Any


class Shield:
    """Lets a first Ctrl-C wait while the store does something, so that no lock is left behind locked.

    A second one gets through at once, wherever that is: `twice` says so. Only the main thread is ever
    interrupted. SIGTERM is treated alike where somebody handles it in Python.

    told  whether there was a first one before
    """

    _int: Any = None
    _term: Any = None
    _told = False
    _waits = 0
    twice = False

    def __init__(self, told: bool = False) -> None:
        if told:
            self._told = told

    def __enter__(self) -> None:
        if get_ident() == _main[0]:
            if callable(before := getsignal(2)):
                self._int = before
                signal(2, self._hear)
            if callable(term := getsignal(15)):
                self._term = term
                signal(15, self._hear)

    def _hear(self, number: int, frame: object) -> None:
        if not self._told:
            self._told, self._waits = True, number
            return
        self.twice, self._waits = True, 0
        self._lower()
        self._pass_on(number)

    def _lower(self) -> None:
        if self._int is not None:
            signal(2, self._int)
        if self._term is not None:
            signal(15, self._term)

    def _pass_on(self, number: int) -> None:
        before: Any = self._int if number == 2 else self._term
        before(number, None)

    def __exit__(self, *error: object) -> None:
        if self._int is not None or self._term is not None:
            self._lower()
            if self._waits:
                self._pass_on(self._waits)


def _find_main() -> None:
    _main[0] = threading.main_thread().ident or 0


_main = [0]
_find_main()
os.register_at_fork(after_in_child=_find_main)
