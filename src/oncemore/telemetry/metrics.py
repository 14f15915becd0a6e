"""The metrics of runs: one table of instruments, and the source that computes them from events.

`MetricSource` is a listener of the process's events. It turns each event into updates of the instruments
below and passes them to a `MetricBackend`: OpenTelemetry or Prometheus. Both therefore show the same numbers.

Labels have few values: steps, outcomes, codes of errors, providers; never keys, tenants or texts. A label
with more than `MAX_LABEL_VALUES` values (a provider named by a customer, say) shows the rest as `_OTHER`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore import events
from oncemore._listeners import add_listener
from oncemore._values import Value

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from oncemore._listeners import EventSubscription
    from oncemore.events import ProcessEvent

    class MetricBackend(Protocol):
        """Receives the updates of instruments.

        `labels` has the values of the instrument's labels, in their order.
        """

        def add_count(self, instrument: Instrument, labels: tuple[str, ...]) -> None:
            """Add one to a counter."""

        def record_seconds(self, instrument: Instrument, labels: tuple[str, ...], seconds: float) -> None:
            """Record a duration in a histogram."""

        def set_state(self, instrument: Instrument, labels: tuple[str, ...], value: int) -> None:
            """Set a gauge."""

        def close(self) -> None:
            """Remove the instruments."""


class Instrument(Value):
    """One metric: its name as OpenTelemetry writes it, kind, unit, labels and meaning."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    meaning: str


ATTEMPTS = Instrument(
    "oncemore.attempts",
    "counter",
    "{attempt}",
    ("step", "outcome", "error"),
    "Ended attempts of durable steps: completed, failed, interrupted, or lost with their worker",
)
ATTEMPT_DURATION = Instrument(
    "oncemore.attempt.duration",
    "histogram",
    "s",
    ("step", "outcome"),
    "Time of one attempt, its part of the store included",
)
WAIT_DURATION = Instrument(
    "oncemore.wait.duration",
    "histogram",
    "s",
    ("step", "reason"),
    "Planned waits before the next attempt",
)
RUNS = Instrument(
    "oncemore.runs",
    "counter",
    "{run}",
    ("step", "outcome", "error"),
    "Runs by outcome: submitted, completed, failed, held, parked, or deferred before an attempt",
)
RUN_DURATION = Instrument(
    "oncemore.run.duration",
    "histogram",
    "s",
    ("step", "outcome"),
    "Time from the opening of a run to its end, all attempts and waits included",
)
RETRY_FAILURES = Instrument(
    "oncemore.retry.failures",
    "counter",
    "{attempt}",
    ("step", "action", "error"),
    "Failed attempts of oncemore.retry, by decision: retry, defer or stop",
)
BREAKER_STATE = Instrument(
    "oncemore.breaker.state",
    "gauge",
    "1",
    ("provider", "state"),
    "1 for the state that the circuit breaker of a provider has, 0 for the states that it has not",
)
INSTRUMENTS = (
    *(ATTEMPTS, ATTEMPT_DURATION, WAIT_DURATION, RUNS, RUN_DURATION),
    *(RETRY_FAILURES, BREAKER_STATE),
)
#: Upper bounds of the histograms' buckets, in seconds: from a local function to an hour.
BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
BREAKER_STATES = ("CLOSED", "OPEN", "HALF_OPEN")
#: The largest number of values of one label, and the value that stands for all further ones.
MAX_LABEL_VALUES, OTHER = 1000, "_OTHER"


class MetricSource:
    """Computes the metrics of this process from its events, and passes them to a backend."""

    def __init__(self, backend: MetricBackend) -> None:
        self._backend = backend
        self._values: dict[str, set[str]] = {}
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.RunSubmitted: lambda event: self._count_run(event, "submitted"),
            events.RunDeferred: self._count_deferral,
            events.RunParked: lambda event: self._count_run(event, "parked"),
            events.RunTakenOver: lambda event: self._count_attempt(event, "lost", ""),
            events.RunHeld: lambda event: self._count_run(event, "held", event.error_code),
            events.RunCompleted: self._count_completion,
            events.RunFailed: self._count_failed_run,
            events.AttemptFailed: self._count_failed_attempt,
            events.AttemptInterrupted: lambda event: self._count_attempt(event, "interrupted", ""),
            events.BreakerChanged: self._show_breaker,
        }
        self._subscription: EventSubscription | None = None

    def enable(self) -> None:
        """Begin to count."""
        if self._subscription is None:
            self._subscription = add_listener(self.apply_event, self._handlers)

    def disable(self) -> None:
        """Stop counting, and remove the metrics."""
        if self._subscription is not None:
            self._subscription.unsubscribe()
            self._subscription = None
            self._backend.close()

    def apply_event(self, event: ProcessEvent) -> None:
        """Update the metrics that an event changes, if there are any."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def _limit_value(self, label: str, value: str) -> str:
        """Return the value of a label, or `_OTHER` if the label has too many values already."""
        # Without a lock: two threads may add one value too many, which does no harm.
        known = self._values.get(label)
        if known is None:
            known = self._values[label] = set()
        if value in known:
            return value
        if len(known) >= MAX_LABEL_VALUES:
            return OTHER
        known.add(value)
        return value

    def _count_attempt(self, event: Any, outcome: str, error: str) -> None:
        labels = (self._limit_value("step", event.step), outcome, self._limit_value("error", error))
        self._backend.add_count(ATTEMPTS, labels)

    def _count_run(self, event: Any, outcome: str, error: str = "") -> None:
        labels = (self._limit_value("step", event.step), outcome, self._limit_value("error", error))
        self._backend.add_count(RUNS, labels)

    def _count_completion(self, event: events.RunCompleted) -> None:
        backend, labels = self._backend, (self._limit_value("step", event.step), "completed")
        # A run that was reconciled, or had its artifact already, ended without an attempt.
        if not event.reason:
            backend.add_count(ATTEMPTS, (*labels, ""))
            backend.record_seconds(ATTEMPT_DURATION, labels, event.attempt_duration_s)
        backend.add_count(RUNS, (*labels, ""))
        backend.record_seconds(RUN_DURATION, labels, event.run_duration_s)

    def _count_failed_run(self, event: events.RunFailed) -> None:
        self._count_run(event, "failed", event.error_code)
        labels = (self._limit_value("step", event.step), "failed")
        self._backend.record_seconds(RUN_DURATION, labels, event.run_duration_s)

    def _count_failed_attempt(self, event: events.AttemptFailed) -> None:
        step = self._limit_value("step", event.step)
        if event.action in ("retry", "defer"):
            labels = (step, self._limit_value("reason", event.reason))
            self._backend.record_seconds(WAIT_DURATION, labels, event.delay_s)
        # `oncemore.retry` reports its failures only: its attempts cannot be counted as those of steps.
        if not event.key:
            error = self._limit_value("error", event.error_code)
            self._backend.add_count(RETRY_FAILURES, (step, event.action, error))
            return
        self._count_attempt(event, "failed", event.error_code)
        self._backend.record_seconds(ATTEMPT_DURATION, (step, "failed"), event.duration_s)

    def _count_deferral(self, event: events.RunDeferred) -> None:
        self._count_run(event, "deferred")
        labels = (self._limit_value("step", event.step), self._limit_value("reason", event.reason))
        self._backend.record_seconds(WAIT_DURATION, labels, event.delay_s)

    def _show_breaker(self, event: events.BreakerChanged) -> None:
        provider = self._limit_value("provider", event.provider)
        # Several providers under one name have no state that could be shown.
        if provider != OTHER:
            for state in BREAKER_STATES:
                labels = (provider, state.lower())
                self._backend.set_state(BREAKER_STATE, labels, int(state == event.state))
