"""The server's time, without a round trip for each reading.

A step reads the clock about six times. A round trip each time would be most of the cost of a step, and would
block the event loop. So the server is asked once a second, and in between its time is extrapolated with a
clock of this machine that also runs while the machine sleeps.

The reply of the server was correct at some moment between request and reply: at the reply, the server's time
is that value, or up to a round trip more. An extrapolated time within these bounds is kept. Otherwise the
nearer bound is used, so that time does not jump with the network; it goes back only if the server's own clock
went back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from oncemore.log.sqlite import machine

if TYPE_CHECKING:
    from collections.abc import Callable

#: Interval between two requests to the server, in seconds.
ASK_S = 1.0


class ServerClock:
    """The clock of a server, extrapolated between requests."""

    def __init__(self, ask: Callable[[], float]) -> None:
        self._ask = ask
        # The local time and the server's time at the same moment; None before the first request.
        self._known: tuple[float, float] | None = None
        self._asking = threading.Lock()

    def now(self) -> float:
        """Return the server's time; ask the server once a second, in one thread at a time."""
        known = self._known
        local = machine.seconds_since_boot()
        if known is not None:
            # If another thread is asking, the extrapolated time is good enough.
            if local - known[0] < ASK_S or not self._asking.acquire(blocking=False):
                return known[1] + local - known[0]
        else:
            self._asking.acquire()
        try:
            self._known = known = self._ask_server(self._known)
        finally:
            self._asking.release()
        return known[1] + machine.seconds_since_boot() - known[0]

    def _ask_server(self, known: tuple[float, float] | None) -> tuple[float, float]:
        before = machine.seconds_since_boot()
        server_time = self._ask()
        after = machine.seconds_since_boot()
        if known is None:
            return after, server_time
        extrapolated = known[1] + after - known[0]
        return after, min(max(extrapolated, server_time), server_time + after - before)
