"""The inbox: receives messages from a queue, a limited number at a time, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from oncemore.classifiers.classify import ensure_plugins_loaded
from oncemore.errors import UsageError
from oncemore.messaging.dead_letters import make_dead_letter_relay
from oncemore.messaging.inbox_flow import dead_letter_topic
from oncemore.messaging.inbox_step import MessageStep
from oncemore.messaging.message_handler import REPLY_TIMEOUT_S, InboxStats, MessageHandler, cancel_task
from oncemore.messaging.sources.source import group_lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oncemore.messaging.relay import DeadLetter
    from oncemore.messaging.sources.source import MessageSource, ReceivedMessage
    from oncemore.steps.engine import Engine

MAX_CONCURRENCY = 1000
#: The pause after an error of the queue.
QUEUE_RETRY_S = 1.0
#: How long a cancelled task has to store that it was interrupted.
CANCEL_GRACE_S = 5.0


class Inbox:
    """Receives messages from a queue and calls a step once for each, however often it is delivered.

    source       the queue
    step         a function decorated with `oncemore.step`
    key          identifies the work of a message: by default the message's id; a function of the content; or
                 "arguments" for the key that a call of the step with these arguments has
    arguments    a function of the content that returns the step's arguments by name
    concurrency  the number of messages that are processed at once
    grace_s      how long messages in progress may take after the inbox was stopped
    poll_s       the interval of looking for released dead letters
    """

    def __init__(
        self,
        source: MessageSource,
        step: Any,
        *,
        engine: Engine | None = None,
        key: Callable[[Any], Any] | str | None = None,
        arguments: Callable[[Any], Mapping[str, Any]] | None = None,
        concurrency: int = 5,
        grace_s: float = 30.0,
        poll_s: float = 2.0,
    ) -> None:
        is_integer = isinstance(concurrency, int) and not isinstance(concurrency, bool)
        if not is_integer or not 1 <= concurrency <= MAX_CONCURRENCY:
            raise UsageError(f"concurrency is {concurrency!r}; it takes 1 to {MAX_CONCURRENCY}")
        self._source, self._step = source, MessageStep.create_from(step, engine, key, arguments)
        self._concurrency, self._grace_s, self._poll_s = concurrency, grace_s, poll_s
        self._stopping = threading.Event()
        self._handler = MessageHandler(source, self._step, self._stopping)
        self._active_tasks: dict[asyncio.Task[Any], str] = {}
        self._loop_and_stop_event: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        ensure_plugins_loaded()

    def __repr__(self) -> str:
        return f"<oncemore.Inbox {self._source.name} for {self._step.name}>"

    @property
    def stats(self) -> InboxStats:
        """The number of messages per result so far."""
        return self._handler.stats

    @property
    def active_ids(self) -> tuple[str, ...]:
        """The ids of the messages that are being processed; of a lane, the id of its first message."""
        return tuple(self._active_tasks.values())

    @property
    def running_threads(self) -> int:
        """The number of plain steps that still run in threads after `run()` stopped waiting for them."""
        return self._handler.active_threads

    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters of this step; `oncemore quarantine` lists and releases them."""
        topic = dead_letter_topic(self._step.name)
        letters = make_dead_letter_relay(self._step).dead_letters()
        return tuple(letter for letter in letters if letter.topic == topic)

    def run(self) -> InboxStats:
        """Process messages until `stop()`, SIGTERM or Ctrl-C; messages in progress are finished first."""
        return asyncio.run(self._run_with_signals(until_empty=False))

    def drain(self) -> InboxStats:
        """Process the messages that are in the queue now, and return."""
        return asyncio.run(self._run_with_signals(until_empty=True))

    async def serve(self) -> InboxStats:
        """Process messages until `stop()`, like `run()`, in the caller's task."""
        return await self._serve_queue(until_empty=False)

    def stop(self) -> None:
        """Receive no more messages; may be called from any thread, also before the inbox has started."""
        self._stopping.set()
        if self._loop_and_stop_event is not None:
            loop, stop_event = self._loop_and_stop_event
            # The loop may have been closed just now.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(stop_event.set)

    # ------------------------------------------------------------------------------------------------

    async def _run_with_signals(self, until_empty: bool) -> InboxStats:
        loop, handled = asyncio.get_running_loop(), []
        # Python delivers signals to the main thread only, and the program's own handlers stay in place.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    loop.add_signal_handler(number, self.stop)
                    handled.append(number)
        try:
            return await self._serve_queue(until_empty)
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    async def _serve_queue(self, until_empty: bool) -> InboxStats:
        stop_event = asyncio.Event()
        self._loop_and_stop_event = asyncio.get_running_loop(), stop_event
        self._handler.open_pool(self._concurrency)
        redelivery: asyncio.Task[None] | None = None
        try:
            if await self._open_source(stop_event):
                redelivery = asyncio.create_task(self._redeliver_released())
                await self._receive_messages(until_empty, stop_event)
            await self._drain_tasks()
        finally:
            if redelivery is not None:
                redelivery.cancel()
                await asyncio.wait({redelivery}, timeout=CANCEL_GRACE_S)
            with suppress(Exception):
                await asyncio.wait_for(self._source.close(), REPLY_TIMEOUT_S)
            self._handler.close_pool()
            self._loop_and_stop_event = None
            # So that the inbox can be started again.
            self._stopping.clear()
        return self.stats

    async def _open_source(self, stop_event: asyncio.Event) -> bool:
        """Connect to the queue, with any number of tries; return False if the inbox was stopped before."""
        while not self._stopping.is_set():
            try:
                opening = asyncio.ensure_future(self._source.open())
                stopped = asyncio.ensure_future(stop_event.wait())
                await asyncio.wait({opening, stopped}, return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
                if not opening.done():
                    await cancel_task(opening)
                    return False
                opening.result()
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - the queue may start later than the inbox
                self._handler.log_warning("could not connect to its queue", error)
                await _wait_or_stop(stop_event, QUEUE_RETRY_S)
            else:
                return True
        return False

    async def _receive_messages(self, until_empty: bool, stop_event: asyncio.Event) -> None:
        while not self._stopping.is_set():
            room = self._concurrency - len(self._active_tasks)
            if not room:
                await self._wait_for_room(stop_event)
                continue
            # A queue may hold back the next message of a group until the one in progress is answered.
            was_idle = not self._active_tasks
            try:
                deliveries = await self._source.receive(room)
            except Exception as error:  # noqa: BLE001 - an inbox must survive an outage of its queue
                self._handler.log_warning("could not receive messages from its queue", error)
                await _wait_or_stop(stop_event, QUEUE_RETRY_S)
                continue
            for lane in group_lanes(deliveries):
                self._start_lane(lane)
            if until_empty and not deliveries and was_idle:
                return

    def _start_lane(self, lane: list[ReceivedMessage]) -> None:
        task = asyncio.create_task(self._handler.handle_lane(lane))
        self._active_tasks[task] = lane[0].message.id
        task.add_done_callback(self._on_lane_done)

    def _on_lane_done(self, task: asyncio.Task[Any]) -> None:
        del self._active_tasks[task]
        if not task.cancelled() and task.exception() is not None:
            self._handler.log_warning("left a message to be delivered again", task.exception())

    async def _wait_for_room(self, stop_event: asyncio.Event) -> None:
        stopped = asyncio.ensure_future(stop_event.wait())
        await asyncio.wait({*self._active_tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()

    async def _drain_tasks(self) -> None:
        """Wait for the messages in progress; cancel those that take too long, to be delivered again."""
        if self._active_tasks:
            await asyncio.wait(set(self._active_tasks), timeout=self._grace_s)
        for task in list(self._active_tasks):
            task.cancel()
        if self._active_tasks:
            await asyncio.wait(set(self._active_tasks), timeout=CANCEL_GRACE_S)

    async def _redeliver_released(self) -> None:
        """Process released dead letters again, at intervals, while the inbox is open."""
        while True:
            try:
                relay = make_dead_letter_relay(self._step)
                if self._step.is_async:
                    await relay.run_once(self._stopping)
                else:
                    await asyncio.to_thread(relay.run_once, self._stopping)
            except Exception as error:  # noqa: BLE001 - the store may be unavailable for a moment
                self._handler.log_warning("could not look for released dead letters", error)
            await asyncio.sleep(self._poll_s)


async def _wait_or_stop(stop_event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop_event.wait(), seconds)
