"""Performs the operations of delivery scripts, blocking or awaiting.

An interrupt during a send (Ctrl-C, cancellation) is raised after the outcome is stored. A write without an
answer from the store is not repeated: the pass ends with the error and the worker is retired, because its
claim may be stored; the next pass reads the stored state.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from oncemore._driver import OperationTable, run_script, run_script_async
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import PermanentError, UsageError, log_warning
from oncemore.events import DeliveryFailed, DeliveryHeld
from oncemore.log.encryption import decrypt_bytes
from oncemore.log.entry_codec import (
    build_event_write,
    build_write,
    decode_body,
    decode_head,
    was_notified_already,
)
from oncemore.log.record import NOWHERE, EventRecord, LoadedHead
from oncemore.log.store import Batch, HeadQuery, Stored
from oncemore.messaging.delivery import CheckStop, CountRuns, ListPendingEvents, ReadEventBody, SendEvent
from oncemore.messaging.message import make_message
from oncemore.retries.deadlines import run_with_timeout
from oncemore.retries.loop import CallFunction
from oncemore.steps.attempt import OURS
from oncemore.steps.operations import run_in_thread
from oncemore.steps.ops import (
    AppendChange,
    AskPermission,
    LoadHead,
    NotifyListeners,
    ReadClock,
    ReadLease,
    ReserveWorker,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Protocol

    from oncemore.log.record import RunRecord
    from oncemore.log.store import Conflict, Head
    from oncemore.messaging.message import EventMessage
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import WorkerIdentity
    from oncemore.steps.ops import Permission, Script

    class StopSignal(Protocol):
        """A stop flag: `threading.Event`, `asyncio.Event` or `trio.Event`."""

        def is_set(self) -> bool:
            """Return whether to stop."""


#: Later than any due time: the listing includes the waiting events, behind the due ones.
FAR_FUTURE = 1e15


class SinkTable:
    """Finds the sink of a topic: the one of its exact name, else of the first matching pattern."""

    def __init__(self, routes: Mapping[str, Callable[[EventMessage], Any]]) -> None:
        if not routes:
            raise UsageError("a relay needs a sink: OutboxRelay(engine, {'orders.*': sink})")
        for topic, sink in routes.items():
            if not isinstance(topic, str) or not 1 <= len(topic) <= 200:
                raise UsageError(f"topic is {topic!r}; it takes a text of 1 to 200 characters")
            if not callable(sink):
                raise UsageError(f"the sink of {topic!r} is {sink!r}; it takes a function of one message")
        self._routes = dict(routes)
        kinds = {_is_async_sink(sink) for sink in self._routes.values()}
        if len(kinds) > 1:
            raise UsageError("some sinks are async and some are not; make a relay for each kind")
        self.is_async = True in kinds
        self.has_internal_topics = any(topic.startswith(OURS) for topic in self._routes)

    def find_sink(self, topic: str) -> Any:
        """Return the sink of a topic, or None."""
        exact = self._routes.get(topic)
        if exact is not None:
            return exact
        # Notifications have their own sinks in the settings: the pattern "*" must not take them.
        required_prefix = OURS if topic.startswith(OURS) else ""
        matches = (
            sink
            for pattern, sink in self._routes.items()
            if fnmatchcase(topic, pattern) and pattern.startswith(required_prefix)
        )
        return next(matches, None)

    def has_sink(self, topic: str) -> bool:
        """Return whether a topic has a sink."""
        return self.find_sink(topic) is not None


def _is_async_sink(sink: Any) -> bool:
    return iscoroutinefunction(sink) or iscoroutinefunction(getattr(type(sink), "__call__", None))  # noqa: B004


class DeliveryDriver:
    """Performs the operations of delivery scripts on one engine, with at most one event in flight."""

    def __init__(
        self, engine: Engine, sinks: SinkTable, max_bytes: int, limit_s: float | None, stop: StopSignal | None
    ) -> None:
        self.engine, self._sinks, self._max_bytes, self._stop = engine, sinks, max_bytes, stop
        self._limit_s = limit_s
        # Ctrl-C or a cancellation during a send, until the outcome is stored.
        self.interrupt: BaseException | None = None
        self._identity: WorkerIdentity | None = None
        self._current_attempt: tuple[str, int] | None = None

    def list_pending_events(self, op: ListPendingEvents) -> tuple[LoadedHead, ...]:
        """Return the unfinished events."""
        heads = self.engine.store.list_heads(HeadQuery("event", due_by=FAR_FUTURE, limit=op.limit))
        return tuple(_make_loaded_head(head) for head in heads)

    def count_runs(self, op: CountRuns) -> tuple[int, str, str]:
        """Return the number of runs of an entity, the name of its step, and its dataset."""
        head = self.engine.store.load_head(op.entity)
        if head is None:
            return 0, "", ""
        run: RunRecord = decode_head(head.head)
        return run.run_number, run.step, run.dataset

    def ask_permission(self, op: AskPermission) -> Permission:
        """Return whether the operators' switches permit sending."""
        return self.engine.permissions.ask_permission(self.engine, op)

    def check_stop(self, op: CheckStop) -> bool:
        """Return whether to stop."""
        return self._stop is not None and self._stop.is_set()

    def load_head(self, op: LoadHead) -> LoadedHead:
        """Read the head of an event."""
        head = self.engine.store.load_head(op.entity)
        return LoadedHead(op.entity, 0, NOWHERE, None) if head is None else _make_loaded_head(head)

    def read_event_body(self, op: ReadEventBody) -> bytes | None:
        """Return the decrypted payload of an event, or None if it was pruned."""
        # Decrypted before the claim: a missing key must not count as a failure of the event.
        first = next(iter(self.engine.store.read_entries(op.entity)))
        return (
            None
            if first.body is None
            else decrypt_bytes(first.body, self.engine.cipher, op.entity, first.version)
        )

    def read_clock(self, op: ReadClock) -> float:
        """Return the store's time."""
        return self.engine.now()

    def read_lease(self, op: ReadLease) -> float:
        """Return the end of the lease on an attempt."""
        return self.engine.leases.lease_until(op.worker, op.entity, op.fence)

    def reserve_worker(self, op: ReserveWorker) -> str:
        """Return the name of this process's worker, which has a valid lease."""
        # In a restored copy of a store nothing may be sent: the original may be running, too.
        self.engine.copy_check.check_original()
        self._identity = self.engine.leases.current_identity()
        self.engine.policies.record_policy(self.engine, op.policy_name, op.policy)
        return self._identity.name

    def log_unsent_event(self, op: NotifyListeners) -> None:
        """Log that an event is dead or held, and notify the listeners: none is dropped silently (MSG-8)."""
        event = op.event
        if type(event) is DeliveryHeld:
            log_warning(
                f"event {event.event_id} ({event.topic}) is not sent: {event.text}; it is sent when the "
                "dataset permits it again (oncemore control dataset release)"
            )
            self.engine.listener.notify(event)
            return
        assert type(event) is DeliveryFailed
        log_warning(
            f"event {event.event_id} ({event.topic}) is dead after {event.attempts} attempts, "
            f"{event.reason}; it stays in the store: OutboxRelay.dead_letters() lists it, "
            "OutboxRelay.redeliver() has it sent again"
        )
        self.engine.listener.notify(event)

    def build_message(self, op: SendEvent) -> EventMessage:
        """Return the message of an event; raise `PermanentError` if it was pruned or is too large."""
        event = op.head.record
        if op.event_body is None:
            raise PermanentError(f"the payload of event {event.event_id} was pruned")
        size = len(op.event_body)
        if size > self._max_bytes:
            raise PermanentError(
                f"event {event.event_id} has {size:,} bytes; the limit is {self._max_bytes:,}"
            )
        return make_message(event, op.run_number, decode_body(op.event_body)["payload"])

    def find_sink(self, op: SendEvent) -> Any:
        """Return the sink of an event."""
        return self._sinks.find_sink(op.head.record.topic)

    def compute_limits(self, op: SendEvent) -> CallFunction:
        """Return the timeout of an attempt."""
        return CallFunction(op.head.record.attempt, self._limit_s)

    def handle_send_error(self, error: BaseException) -> BaseException:
        """Return the error of a send; remember an interrupt, to raise it after the outcome is stored."""
        if not isinstance(error, Exception):
            self.interrupt = error
        return error

    def encode_change(self, op: AppendChange) -> tuple[Batch, LoadedHead]:
        """Return the batch of a change, and the head as it will be once the batch is stored."""
        head, event = op.head, op.change.after
        change, now, notifier = op.change, self.engine.now(), self.engine.notifier
        notifications: tuple[Any, ...] = ()
        if notifier is not None:
            change, notifications = notifier.add_notifications(
                self.engine, head.entity, head.version, change, now
            )
        write = build_write(head.entity, head.version, head.hash, change, now, self.engine.cipher)
        if type(event) is EventRecord and event.state == "SENDING":
            # Registered before the write: no other thread of this process may take the attempt for lost.
            assert self._identity is not None
            assert SWITCHES_ENTITY in op.guards, "an event was claimed without reading the switches"
            attempt = (head.entity, event.attempt)
            self._identity.add_attempt(attempt)
            # Only after `add_attempt` succeeded: otherwise another driver may hold the attempt.
            self._current_attempt = attempt
        writes = (write, *(build_event_write(event, now, self.engine.cipher) for event in notifications))
        return Batch(writes, op.guards, op.sync), LoadedHead(head.entity, head.version + 1, write.hash, event)

    def apply_append_result(self, after: LoadedHead, result: Stored | Conflict) -> LoadedHead | None:
        """Return the new head, or None if the event or a guard had changed."""
        stored = isinstance(result, Stored)
        if not (stored and after.record.state == "SENDING"):
            self._leave_attempt()
        if not stored:
            # A changed switch may be the reason for the conflict.
            self.engine.permissions.drop_cached()
        if stored and after.record.state == "DEAD" and self.engine.notifier is not None:
            self.engine.notifier.wake_thread(self.engine)
        if self.interrupt is not None:
            raise self.interrupt
        return after if stored else None

    def abandon_attempt(self) -> None:
        """Retire the worker of an attempt whose outcome could not be stored, so that its lease ends."""
        if self._current_attempt is not None and self._identity is not None:
            self.engine.leases.retire_worker(self._identity)
            self._leave_attempt()

    def _leave_attempt(self) -> None:
        if self._current_attempt is not None and self._identity is not None:
            # Cleared first, so that an error below cannot make it leave twice.
            attempt, self._current_attempt = self._current_attempt, None
            self._identity.remove_attempt(attempt)
            if self._identity.retired:
                self.engine.leases.close_retired_worker(self._identity)


def _make_loaded_head(head: Head) -> LoadedHead:
    return LoadedHead(head.entity, head.version, head.hash, decode_head(head.head, EventRecord))


def run_delivery(driver: DeliveryDriver, script: Script) -> Any:
    """Run a script to its end in this thread; return its value."""
    try:
        return run_script(script, DELIVERY_OPERATIONS, driver)
    except BaseException:
        driver.abandon_attempt()
        raise


async def run_delivery_async(
    driver: DeliveryDriver, script: Script, operations: OperationTable | None = None
) -> Any:
    """Run a script to its end in this task, on asyncio or trio; return its value."""
    try:
        return await run_script_async(script, operations or DELIVERY_OPERATIONS, driver)
    except BaseException:
        driver.abandon_attempt()
        raise


def _append_change(driver: DeliveryDriver, op: AppendChange) -> LoadedHead | None:
    while True:
        batch, after = driver.encode_change(op)
        result = driver.engine.store.append(batch).wait()
        # If another process has written the same notification first, build the batch again without it.
        if not was_notified_already(op, batch, result):
            return driver.apply_append_result(after, result)


async def _append_change_async(driver: DeliveryDriver, op: AppendChange) -> LoadedHead | None:
    if driver.interrupt is not None:
        # A cancelled task must not await: block the event loop for this one write.
        return _append_change(driver, op)
    while True:
        batch, after = driver.encode_change(op)
        result = await driver.engine.store.append(batch)
        if not was_notified_already(op, batch, result):
            return driver.apply_append_result(after, result)


def _send_event(driver: DeliveryDriver, op: SendEvent) -> BaseException | None:
    try:
        message, sink, invoke = driver.build_message(op), driver.find_sink(op), driver.compute_limits(op)
        if invoke.limit_s is None:
            sink(message)
        else:
            from oncemore.retries import timeouts

            timeouts.run_in_helper(message.topic, invoke, lambda: sink(message))
    except BaseException as error:  # noqa: BLE001 - returned as a value, on which the script decides
        return driver.handle_send_error(error)
    return None


async def _send_event_async(driver: DeliveryDriver, op: SendEvent) -> BaseException | None:
    try:
        message, invoke = driver.build_message(op), driver.compute_limits(op)
        sending = driver.find_sink(op)(message)
        await (sending if invoke.limit_s is None else run_with_timeout(message.topic, invoke, sending))
    except BaseException as error:  # noqa: BLE001 - returned as a value, on which the script decides
        return driver.handle_send_error(error)
    return None


async def _ask_permission_async(driver: DeliveryDriver, op: AskPermission) -> Permission:
    if not driver.engine.permissions.has_external:
        return driver.ask_permission(op)
    # An external source of switches may block, for example on the network.
    return await run_in_thread(driver.ask_permission, op)  # type: ignore[no-any-return]


DELIVERY_OPERATIONS = OperationTable(
    {
        ListPendingEvents: DeliveryDriver.list_pending_events,
        CountRuns: DeliveryDriver.count_runs,
        CheckStop: DeliveryDriver.check_stop,
        LoadHead: DeliveryDriver.load_head,
        ReadEventBody: DeliveryDriver.read_event_body,
        ReadClock: DeliveryDriver.read_clock,
        ReadLease: DeliveryDriver.read_lease,
        ReserveWorker: DeliveryDriver.reserve_worker,
        NotifyListeners: DeliveryDriver.log_unsent_event,
        AskPermission: DeliveryDriver.ask_permission,
        AppendChange: _append_change,
        SendEvent: _send_event,
    },
    {
        AppendChange: _append_change_async,
        SendEvent: _send_event_async,
        AskPermission: _ask_permission_async,
    },
)
