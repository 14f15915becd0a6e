"""Live updates: one waiter on the store for all open pages.

The feed waits for the store's change notification in one thread, for any number of open pages. After a
change it lets every stream compare its page with the one that it sent last; pages with the same address and
role are rendered once. Two limits keep the cost for the workers small: a page is rendered at most once a
second, and if rendering all pages takes long, the pause grows, so that it uses at most a tenth of a core.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    Regions = dict[str, str]

#: The shortest pause between two updates, and the longest one: leases and due times also end without a write.
MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 10.0
#: The share of one core that rendering may use.
MAX_LOAD = 0.1
#: A comment line on an idle stream, so that a proxy does not close it and a closed browser is noticed.
KEEP_ALIVE = ": idle\n\n"
MAX_STREAMS = 500


class LiveFeed:
    """Wakes all open streams when the store has changed.

    wait_for_change  waits until the last seq is above the given one or a time-out, and returns it: the
                     method of a store
    """

    def __init__(self, wait_for_change: Callable[[int, float], int]) -> None:
        self._wait_for_change = wait_for_change
        self._round = asyncio.Condition()
        self._round_number = 0
        self._task: asyncio.Task[None] | None = None
        self._rendered: dict[Hashable, tuple[int, asyncio.Task[Regions]]] = {}
        self._spent_s = 0.0
        self._is_closed = False
        self.stream_count = 0

    async def follow_changes(self) -> AsyncIterator[int]:
        """Yield the number of a round after every change, and at least every ten seconds."""
        self.stream_count += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run_rounds())
            number = self._round_number
            while True:
                yield number
                async with self._round:
                    # The task that runs the rounds notifies every stream of a new number.
                    while self._round_number == number and not self._is_closed:
                        await self._round.wait()
                    number = self._round_number
                if self._is_closed:
                    return
        finally:
            self.stream_count -= 1
            # Without pages the feed does not touch the store.
            if self.stream_count == 0 and self._task is not None:
                self._task.cancel()
                self._task = None
                self._rendered.clear()

    async def end_streams(self) -> None:
        """End all streams, so that a server can stop without cutting them off."""
        self._is_closed = True
        async with self._round:
            self._round.notify_all()

    async def render_once(self, number: int, page: Hashable, render: Callable[[], Regions]) -> Regions:
        """Return the parts of a page in a round; of all streams with the same page, one renders it."""
        made_in, task = self._rendered.get(page, (-1, None))
        if task is None or made_in < number:
            task = asyncio.create_task(self._measure_render(render))
            self._rendered[page] = number, task
        # A stream that is closed while it waits must not cancel the rendering for other streams.
        return await asyncio.shield(task)

    async def _measure_render(self, render: Callable[[], Regions]) -> Regions:
        def measure() -> Regions:
            # The time of the processor: on a busy machine the time of the clock says little about the load.
            started = time.thread_time()
            try:
                return render()
            finally:
                self._spent_s += time.thread_time() - started

        return await run_in_threadpool(measure)

    async def _run_rounds(self) -> None:
        position = await run_in_threadpool(self._wait_for_change, 0, 0.0)
        while True:
            spent_s, self._spent_s = self._spent_s, 0.0
            await asyncio.sleep(min(MAX_PAUSE_S, max(MIN_PAUSE_S, spent_s / MAX_LOAD)))
            try:
                position = await run_in_threadpool(self._wait_for_change, position, MAX_PAUSE_S)
            except Exception:  # noqa: BLE001 - the pages show the error of the store; the feed goes on
                await asyncio.sleep(MAX_PAUSE_S)
            async with self._round:
                self._round_number += 1
                # Pages that no stream follows any more are forgotten with the round they were rendered in.
                self._rendered = {
                    page: kept for page, kept in self._rendered.items() if kept[0] >= self._round_number - 2
                }
                self._round.notify_all()


def encode_event(name: str, data: str) -> str:
    """Return one event of a stream in the format of server-sent events."""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {name}\n{lines}\n"


def find_changed_regions(sent: dict[str, str], regions: dict[str, str]) -> dict[str, str]:
    """Return the regions that differ from those that were sent last."""
    return {name: html for name, html in regions.items() if sent.get(name) != html}
