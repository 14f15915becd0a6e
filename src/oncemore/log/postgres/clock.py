"""The server's time, without a round trip each time somebody wants to know it.

A step asks for the time half a dozen times. To ask the server each time would be most of what the step costs,
and in an event loop everybody would wait for it. So the server is asked once a second; in between its time is
reckoned with a clock of this machine that goes on while the machine sleeps.

What the server says was true at some moment between question and answer: at the answer its time is what it
said, or up to the whole round trip more. A reckoning within these bounds stands. One outside them gives way
to the nearer bound, so that time does not jump to and fro with the network; it goes back only where the
server's own clock went back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from oncemore.log.sqlite import machine

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long the time is reckoned before the server is asked again, in seconds.
ASK_S = 1.0


class ServerClock:
    """What the time is at the server."""

    def __init__(self, ask: Callable[[], float]) -> None:
        self._ask = ask
        self._known: tuple[float, float] | None = None  # our clock's time, and the server's at that moment
        self._asking = threading.Lock()

    def now(self) -> float:
        """Return the server's time; where nobody else does already, ask for it once a second."""
        known = self._known
        mine = machine.since_boot()
        if known is not None:
            if mine - known[0] < ASK_S or not self._asking.acquire(blocking=False):
                return known[1] + mine - known[0]
        else:
            self._asking.acquire()
        try:
            self._known = known = self._asked(self._known)
        finally:
            self._asking.release()
        return known[1] + machine.since_boot() - known[0]

    def _asked(self, known: tuple[float, float] | None) -> tuple[float, float]:
        before = machine.since_boot()
        told = self._ask()
        after = machine.since_boot()
        if known is None:
            return after, told
        reckoned = known[1] + after - known[0]
        return after, min(max(reckoned, told), told + after - before)
