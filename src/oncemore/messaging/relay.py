"""The relay: sends the events of a store to their sinks, in one pass or in a loop.

Every event goes to the sink of its topic, at least once, under a stable id. Any number of relays may share
one store: an event is claimed by a compare-and-set under the lease of the relay's process, so that only one
relay sends it at a time, and another takes over the events of a relay that died.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import UsageError, log_warning
from oncemore.governance.identity import (
    Decider,
    authorize_run_decider,
    is_deciding_by_credential,
    load_roles,
)
from oncemore.log.entry_codec import decode_head, load_head, read_body
from oncemore.log.record import EventRecord
from oncemore.log.store import HeadQuery
from oncemore.messaging.delivery import DeliveryStats, RelayOptions, deliver_due_events, redeliver_event
from oncemore.messaging.driver import DeliveryDriver, SinkTable, run_delivery, run_delivery_async
from oncemore.policy.backoff import Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from oncemore.log.encryption import BodyCipher
    from oncemore.log.record import LoadedHead
    from oncemore.messaging.driver import StopSignal
    from oncemore.messaging.message import EventMessage
    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine

#: Twenty attempts, the last after about eight hours. Unclassified errors are retried: a sink may raise any.
POLICY = Policy(
    "relay", max_attempts=20, schedule=Schedule("exponential", 1.0), max_delay_s=3600.0, unmatched="retry"
)
DEFAULT_MAX_BYTES = 1024 * 1024
MAX_DEAD_LISTED = 1000
#: The shortest pause between two passes, and the longest delay until the loop notices that it must stop.
MIN_WAIT_S, MAX_STOP_DELAY_S = 0.01, 0.2
#: How long `close()` waits for a sink that does not return.
GRACE_S = 60.0


class DeadLetter(Value):
    """An event that is not retried any more; it stays in the store until an operator has it sent again.

    reason    a stable code: not_retryable, max_attempts_exceeded
    error     the record of its last failure
    attempts  the number of attempts to send it
    """

    event_id: str
    topic: str
    reason: str
    error: dict[str, Any]
    attempts: int
    created: float
    correlation_id: str
    tenant: str


class RelayCore:
    """Sends the events of an engine's store; any number of relays may share a store."""

    def __init__(
        self,
        engine: Engine,
        routes: Mapping[str, Callable[[EventMessage], Any]],
        *,
        classify: Callable[[BaseException, float], Failure],
        describe: Callable[[BaseException, Failure | None], dict[str, Any]],
        policy: Policy = POLICY,
        batch: int = 256,
        max_bytes: int = DEFAULT_MAX_BYTES,
        poll_s: float = 1.0,
    ) -> None:
        _check_range("batch", batch, 1, 10_000)
        _check_range("max_bytes", max_bytes, 1, 64 * DEFAULT_MAX_BYTES)
        _check_range("poll_s", poll_s, 0.01, 3600)
        self._engine, self._sinks = engine, SinkTable(routes)
        self._options = RelayOptions(
            policy=policy,
            classify=classify,
            describe=describe,
            has_sink=self._sinks.has_sink,
            batch=batch,
            includes_notifications=self._sinks.has_internal_topics,
        )
        self._max_bytes, self._poll_s = max_bytes, poll_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self, stop: StopSignal | None = None) -> Any:
        """Send every due event and return the `DeliveryStats`; await it if the sinks are async."""
        drive = run_delivery_async if self._sinks.is_async else run_delivery
        return drive(self._make_driver(stop), deliver_due_events(self._options))

    def run(self, stop: StopSignal) -> Any:
        """Send events until `stop` is set, despite errors of the store; await it if the sinks are async."""
        return self._run_async(stop) if self._sinks.is_async else self._run_sync(stop)

    def start(self) -> Self:
        """Send events in a background thread until `close()`."""
        if self._sinks.is_async:
            raise UsageError("the sinks are async; await relay.run(stop) in your own task")
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._run_sync, args=(self._stop,), name="oncemore-relay", daemon=True
            )
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop after the current event and join the thread."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None:
            thread.join(GRACE_S)
            if thread.is_alive():
                log_warning(f"a relay was stopped, and its sink did not return within {GRACE_S:g} s")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def dead_letters(self, limit: int = MAX_DEAD_LISTED) -> tuple[DeadLetter, ...]:
        """Return the events that are not retried any more, with their reasons."""
        store = self._engine.store
        heads = list(store.list_heads(HeadQuery("event", state="DEAD", limit=limit)))
        return tuple(
            _make_dead_letter(
                decode_head(head.head, EventRecord), store.load_head(head.entity), self._engine.cipher
            )
            for head in heads
        )

    def redeliver(self, event_id: str, *, reason: str) -> None:
        """Have a dead or delivered event sent again; the reason is recorded."""
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError("reason is missing; it is recorded with the decision")
        engine = self._engine
        # Without roles, the actor of the context is recorded as it is, also an empty one.
        decider = Decider(CONTEXT.get().actor)
        if load_roles(engine) is not None or is_deciding_by_credential():
            event = load_head(engine.store, f"event/{event_id}", engine.cipher, EventRecord).record
            run_entity = "" if event is None else event.run_entity
            decider = authorize_run_decider(engine, decider.actor, run_entity)

        def decide(head: LoadedHead) -> dict[str, Any]:
            return decider.make_decision(head, "redeliver", reason, engine.now())

        run_delivery(self._make_driver(None), redeliver_event(event_id, decide))

    # ------------------------------------------------------------------------------------------------

    def _make_driver(self, stop: StopSignal | None) -> DeliveryDriver:
        return DeliveryDriver(
            self._engine, self._sinks, self._max_bytes, self._options.policy.timeout_s, stop
        )

    def _run_sync(self, stop: Any) -> None:
        while not stop.is_set():
            position = 0
            try:
                # Before the pass: an event that is appended during it must end the wait that follows.
                position = self._engine.store.wait_for_change(0, 0.0)
                self.run_once(stop)
            except Exception as error:  # noqa: BLE001 - a relay must survive an outage of the store
                self._log_failure(error)
                stop.wait(self._poll_s)
                continue
            self._wait_for_change(stop, position)

    def _wait_for_change(self, stop: Any, position: int) -> None:
        """Wait until the log grows beyond a position, or until `poll_s` has passed."""
        # The real clock, because the store waits in real time, also under a test's clock.
        deadline = clocks.Clock().monotonic() + self._poll_s
        stop.wait(MIN_WAIT_S)
        while not stop.is_set() and (left := deadline - clocks.Clock().monotonic()) > 0:
            if self._engine.store.wait_for_change(position, min(left, MAX_STOP_DELAY_S)) > position:
                return

    async def _run_async(self, stop: StopSignal) -> None:
        while not stop.is_set():
            try:
                await self.run_once(stop)
            except Exception as error:  # noqa: BLE001 - as in `_run_sync`
                self._log_failure(error)
            await clocks.current.pause(self._poll_s)

    def _log_failure(self, error: Exception) -> None:
        log_warning(f"a relay could not send events: {type(error).__name__}; it tries again")


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it takes {low:g} to {high:g}")


def _make_dead_letter(event: EventRecord, head: Any, cipher: BodyCipher | None) -> DeadLetter:
    body = {} if head is None else read_body(head, cipher)
    return DeadLetter(
        event_id=event.event_id,
        topic=event.topic,
        reason=event.reason,
        error=body.get("error", {}),
        attempts=event.attempt,
        created=event.created_at,
        correlation_id=event.correlation_id,
        tenant=event.tenant,
    )


__all__ = ["DEFAULT_MAX_BYTES", "POLICY", "DeadLetter", "DeliveryStats", "RelayCore"]
