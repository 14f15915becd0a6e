"""Processes the messages of an inbox: heartbeats, the call of the step, and the answer to the queue.

The queue is answered after everything is stored. If the answer is lost, the queue delivers the message again,
and the inbox finds its run in the log.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.audit.error_record import error_to_record
from oncemore.errors import Error, log_warning
from oncemore.messaging.dead_letters import make_dead_letter_sink
from oncemore.messaging.driver import DELIVERY_OPERATIONS, DeliveryDriver, SinkTable, run_delivery_async
from oncemore.messaging.inbox_flow import (
    OUTCOME_COUNTERS,
    AnswerQueue,
    CallStep,
    InboxMessage,
    MessageOutcome,
    dead_letter_topic,
    redelivery_delay_s,
    take_message,
)
from oncemore.messaging.relay import DEFAULT_MAX_BYTES

if TYPE_CHECKING:
    from oncemore.messaging.inbox_message import StepCall
    from oncemore.messaging.inbox_step import MessageStep
    from oncemore.messaging.sources.source import MessageSource, ReceivedMessage

#: A message whose step call raises unexpectedly becomes a dead letter after this many deliveries.
MAX_DELIVERIES = 20
#: How long an answer to the queue may take.
REPLY_TIMEOUT_S = 10.0


class InboxStats(Value):
    """The number of messages per result.

    done         their work was done now
    duplicate    their work had been done before; the step was not called
    deferred     their work is due later or running elsewhere; the queue delivers them again
    held         their work is in quarantine
    dead         stored as dead letters: unreadable, or permanently failed
    store_error  the store could not be used; the queue delivers them again
    unanswered   the queue could not be answered; it delivers them again
    """

    done: int = 0
    duplicate: int = 0
    deferred: int = 0
    held: int = 0
    dead: int = 0
    store_error: int = 0
    unanswered: int = 0


class MessageHandler:
    """Processes the messages of one source with one step, an async step on the event loop, else in threads.

    stopping  set when the inbox stops: messages that were received and not begun go back to the queue
    """

    def __init__(self, source: MessageSource, step: MessageStep, stopping: threading.Event) -> None:
        self._source, self._step, self._stopping = source, step, stopping
        self._counts: dict[str, int] = {}
        self._pool: ThreadPoolExecutor | None = None
        self.active_threads, self._lock = 0, threading.Lock()

    @property
    def stats(self) -> InboxStats:
        """The number of messages per result so far."""
        return InboxStats(**self._counts)

    def open_pool(self, max_threads: int) -> None:
        """Create the threads for a plain step."""
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="oncemore-inbox")

    def close_pool(self) -> None:
        """Shut the thread pool down without waiting for a step that does not return."""
        assert self._pool is not None
        self._pool.shutdown(wait=False)

    async def handle_lane(self, lane: list[ReceivedMessage]) -> None:
        """Process the messages of one lane in order; after a deferred one, defer all later ones, too."""
        heartbeats = [asyncio.create_task(self._send_heartbeats(delivery)) for delivery in lane]
        deferral: AnswerQueue | None = None
        try:
            for delivery, heartbeat in zip(lane, heartbeats, strict=True):
                if deferral is None and not self._stopping.is_set():
                    deferral = await self._handle_message(delivery, heartbeat)
                    continue
                # It was not begun: another inbox may process it now.
                await cancel_task(heartbeat)
                await self._answer_queue(delivery, deferral or AnswerQueue("nak"))
                self._count_result("deferred")
        finally:
            for heartbeat in heartbeats:
                heartbeat.cancel()

    async def _handle_message(
        self, delivery: ReceivedMessage, heartbeat: asyncio.Task[None]
    ) -> AnswerQueue | None:
        """Process one message; return the answer if it was deferred, else None."""
        try:
            result, answer = await self._run_message_script(delivery, heartbeat)
        except Exception as error:  # noqa: BLE001 - usually an error of the store: the queue delivers it again
            self.log_warning(f"could not process message {delivery.message.id[:80]!r}", error)
            result = MessageOutcome("store_error")
            answer = AnswerQueue("nak", redelivery_delay_s(result, 0.0))
            await cancel_task(heartbeat)
            await self._answer_queue(delivery, answer)
        self._count_result(OUTCOME_COUNTERS[result.outcome])
        return answer if answer.verb == "nak" else None

    async def _run_message_script(
        self, delivery: ReceivedMessage, heartbeat: asyncio.Task[None]
    ) -> tuple[MessageOutcome, AnswerQueue]:
        """Run the script of a message to its end; return its outcome and the answer to the queue."""
        script = take_message(delivery.message, self._step.name)
        sinks = SinkTable({dead_letter_topic(self._step.name): make_dead_letter_sink(self._step)})
        driver = DeliveryDriver(self._step.engine, sinks, DEFAULT_MAX_BYTES, None, None)
        answer = AnswerQueue("nak")

        async def answer_queue(context: object, op: AnswerQueue) -> None:
            nonlocal answer
            # A heartbeat after the answer would override it: SQS would hide the message for longer.
            await cancel_task(heartbeat)
            await self._answer_queue(delivery, op)
            answer = op

        operations = DELIVERY_OPERATIONS.replace_operations(
            {}, {CallStep: lambda _, op: self._call_step(op.message), AnswerQueue: answer_queue}
        )
        outcome = await run_delivery_async(driver, script, operations)
        return outcome, answer

    async def _call_step(self, message: InboxMessage) -> MessageOutcome:
        call = self._step.read_message(message)
        if isinstance(call, MessageOutcome):
            return call
        try:
            if self._step.is_async:
                return await self._step.call_step_async(call)
            assert self._pool is not None
            # A thread of the pool does not inherit the context, for example the correlation id.
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, lambda: context.run(self._call_in_thread, call)
            )
        except Exception as error:  # noqa: BLE001 - not an outcome of the step: a bug in it or in oncemore
            self.log_warning(f"could not process message {message.id[:80]!r}", error)
            is_last = message.delivery_count >= MAX_DELIVERIES
            return MessageOutcome(
                "failed" if is_last else "store_error", error={"code": "", **error_to_record(error)}
            )

    def _call_in_thread(self, call: StepCall) -> MessageOutcome:
        with self._lock:
            self.active_threads += 1
        try:
            return self._step.call_step(call)
        finally:
            with self._lock:
                self.active_threads -= 1

    async def _send_heartbeats(self, delivery: ReceivedMessage) -> None:
        """Tell the queue at intervals that a message is being processed, or it would deliver it again."""
        while True:
            await asyncio.sleep(self._source.heartbeat_s)
            try:
                await self._source.extend_lease(delivery)
            except Exception as error:  # noqa: BLE001 - at worst the message is delivered twice
                self.log_warning("could not send a heartbeat for a message", error)

    async def _answer_queue(self, delivery: ReceivedMessage, op: AnswerQueue) -> None:
        source = self._source
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                if op.verb == "ack":
                    await source.ack(delivery)
                elif op.verb == "nak":
                    await source.nak(delivery, op.delay_s)
                else:
                    await source.terminate(delivery, op.reason)
        except Exception as error:  # noqa: BLE001 - the queue delivers it again, and its run is found
            self._count_result("unanswered")
            self.log_warning(f"could not {op.verb} message {delivery.message.id[:80]!r}", error)

    def _count_result(self, counter: str) -> None:
        self._counts[counter] = self._counts.get(counter, 0) + 1

    def log_warning(self, text: str, error: BaseException | None) -> None:
        """Log a problem of the inbox."""
        # Only our own errors are shown in full: the text of another one may contain a secret.
        shown = error if isinstance(error, Error) else type(error).__name__
        log_warning(f"an inbox {text}: {shown}")


async def cancel_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.wait({task})
