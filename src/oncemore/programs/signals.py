"""Handles SIGINT, SIGTERM and SIGHUP while `oncemore exec` runs.

While `exec` starts, a signal ends it at once with the signal's exit code, because no attempt has begun. From
the first write on, the first signal goes to the running program, which has its grace period to end; while
the log is written the signal is deferred; a wait between attempts ends. A second signal kills the program.
Signals that were ignored at the start stay ignored, as `nohup` and background jobs expect.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalReceived(BaseException):
    """A signal ended the call; `number` is the signal. A BaseException, as KeyboardInterrupt is."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number


class SignalListener:
    """Installs the handlers and decides for each signal: forward it, defer it, or raise it."""

    def __init__(self) -> None:
        self.number = 0
        self._is_starting = True
        self._count = 0
        self._is_deferring = False
        self._forward: Callable[[int, bool], object] | None = None
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in HANDLED_SIGNALS:
            previous = signal.getsignal(number)
            # `nohup` and shells start programs with ignored signals; a handler would undo that.
            if previous is not signal.SIG_IGN:
                self._previous_handlers[number] = previous
                signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, previous in self._previous_handlers.items():
            signal.signal(number, previous)

    def _on_signal(self, number: int, frame: object) -> None:
        # An exception could surface anywhere in the imports; nothing was written, so ending at once is safe.
        if self._is_starting:
            os._exit(128 + number)
        self._count += 1
        self.number = self.number or number
        if self._forward is not None and self._count <= 2:
            self._forward(number, self._count == 2)
        # A second signal is raised even while a write is in progress: the user insists.
        elif not (self._is_deferring and self._count == 1):
            raise SignalReceived(self.number)

    def raise_pending(self) -> None:
        """Raise `SignalReceived` if a signal was deferred."""
        if self.number:
            raise SignalReceived(self.number)

    @contextmanager
    def defer_signals(self) -> Iterator[None]:
        """Defer the first signal inside the block, so that a write in progress completes."""
        previous, self._is_deferring, self._is_starting = self._is_deferring, True, False
        try:
            yield
        finally:
            self._is_deferring = previous

    def stop_deferring(self) -> None:
        """Raise a deferred signal now, and later ones when they arrive."""
        self._is_deferring = False
        self.raise_pending()

    def resume_deferring(self) -> None:
        """Defer the first signal again."""
        self._is_deferring = True

    @contextmanager
    def forward_signals(self, forward: Callable[[int, bool], object]) -> Iterator[None]:
        """Pass signals to `forward(number, is_second)` inside the block, one that is pending first."""
        self._forward = forward
        try:
            if self.number:
                forward(self.number, False)
            yield
        finally:
            self._forward = None
