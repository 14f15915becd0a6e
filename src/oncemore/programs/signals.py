"""Signals that end us: passed on to the program, waited for where the log is written, obeyed everywhere else.

While `exec` starts, a signal ends it at once, with the signal's exit code: nothing has begun. From the first
write on, a first SIGINT, SIGTERM or SIGHUP goes to the program that runs, which has its grace to end; while
something is being written it waits; where we wait it ends the waiting. A second one is no longer patient: the
program is killed. What was ignored when we were started stays ignored, as `nohup` and background jobs want.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal has ended it; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class Cuts:
    """What has been heard, and who hears of it."""

    def __init__(self) -> None:
        self.number = 0
        self._is_starting = True
        self._count = 0
        self._patient = False
        self._forward: Callable[[int, bool], object] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in HEARD:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _hear(self, number: int, frame: object) -> None:
        if self._is_starting:
            os._exit(128 + number)  # an exception could come up where nobody expects one
        self._count += 1
        self.number = self.number or number
        if self._forward is not None and self._count <= 2:
            self._forward(number, self._count == 2)
        elif not (self._patient and self._count == 1):
            raise Interrupted(self.number)

    def check(self) -> None:
        """Raise what has been heard and was waited with."""
        if self.number:
            raise Interrupted(self.number)

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Let a first signal wait: what is under way is brought to its end."""
        before, self._patient, self._is_starting = self._patient, True, False
        try:
            yield
        finally:
            self._patient = before

    def impatient(self) -> None:
        """From here on a signal ends the waiting; one that came before does so now."""
        self._patient = False
        self.check()

    def patient_again(self) -> None:
        """From here on a first signal waits."""
        self._patient = True

    @contextmanager
    def passed_on(self, forward: Callable[[int, bool], object]) -> Iterator[None]:
        """Let a program hear of signals; told is also whether it was the second one."""
        self._forward = forward
        try:
            if self.number:
                forward(self.number, False)
            yield
        finally:
            self._forward = None
