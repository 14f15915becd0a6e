"""The metrics of runs as instruments of OpenTelemetry."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import Observation

from oncemore._platform import run_after_fork
from oncemore._version import __version__
from oncemore.errors import log_warning
from oncemore.log.group_commit import InterruptShield
from oncemore.telemetry.metrics import BREAKER_STATE, BUCKETS_S, INSTRUMENTS

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider

    from oncemore.telemetry.metrics import Instrument

#: The semantic conventions whose names the attributes use where they exist.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
#: The number of metric updates that are collected before they are applied.
BATCH_SIZE = 64
#: The number of updates that may wait; a step that adds one more applies all of them itself.
MAX_UPDATES = 10_000
#: Names of labels as attributes; `error.type` is a name of the conventions.
ATTRIBUTE_NAMES = {
    "step": "oncemore.step.name",
    "outcome": "oncemore.outcome",
    "error": "error.type",
    "reason": "oncemore.reason",
    "action": "oncemore.action",
    "provider": "oncemore.provider",
    "state": "oncemore.breaker.state",
}


#: The context of an update. Empty: the span that is current when it is applied may be that of another step.
_NO_CONTEXT = Context()


class OpenTelemetryBackend:
    """Updates the instruments of a meter, many updates at a time, in a thread of its own.

    An update through the SDK takes longer than everything else that a step does for its metrics. So updates
    are collected, and a thread applies them when there are `BATCH_SIZE` of them, mostly while a step waits
    for its disk. A reader of the metrics applies the rest first, so that nothing is missing.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter("oncemore", __version__, provider, SCHEMA_URL)
        self._updates: deque[tuple[Instrument, tuple[str, ...], float]] = deque()
        self._thread: threading.Thread | None = None
        self._is_needed = threading.Event()
        # Held while updates are applied: a reader must not overtake the ones that the thread has taken.
        self._applying = threading.Lock()
        self._is_closed = False
        _backends.add(self)
        self._attributes: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
        self._states: dict[tuple[str, ...], int] = {}
        make: dict[str, Any] = {
            "counter": meter.create_counter,
            "histogram": lambda *values: meter.create_histogram(
                *values, explicit_bucket_boundaries_advisory=BUCKETS_S
            ),
            # The SDK reads observable instruments first, then everything else.
            "gauge": lambda name, *values: meter.create_observable_gauge(name, [self._read_states], *values),
        }
        self._instruments = {one.name: make[one.kind](one.name, one.unit, one.meaning) for one in INSTRUMENTS}

    def add_count(self, instrument: Instrument, labels: tuple[str, ...]) -> None:
        """Add one to a counter."""
        self._updates.append((instrument, labels, 1))
        if len(self._updates) >= BATCH_SIZE:
            self._apply_soon()

    def record_seconds(self, instrument: Instrument, labels: tuple[str, ...], seconds: float) -> None:
        """Record a duration in a histogram."""
        self._updates.append((instrument, labels, seconds))
        if len(self._updates) >= BATCH_SIZE:
            self._apply_soon()

    def set_state(self, instrument: Instrument, labels: tuple[str, ...], value: int) -> None:
        """Set a gauge."""
        self._states[labels] = value

    def _apply_soon(self) -> None:
        """Let the thread apply the updates; start it if it does not run, or not in this process."""
        if len(self._updates) >= MAX_UPDATES:
            # The thread does not keep up: the steps wait for it instead of filling the memory.
            self.apply_updates()
            return
        if self._thread is None or not self._thread.is_alive():
            # Two callers may start one each, which does no harm: both end with the backend.
            thread = self._thread = threading.Thread(
                target=self._run_thread, name="oncemore-metrics", daemon=True
            )
            with InterruptShield():
                thread.start()
        self._is_needed.set()

    def _run_thread(self) -> None:
        """Apply the updates whenever there are enough of them, until the backend is closed."""
        while not self._is_closed:
            self._is_needed.wait()
            self._is_needed.clear()
            try:
                self.apply_updates()
            except Exception as error:  # noqa: BLE001 - metrics must not end the work, and the next ones may pass
                log_warning(f"metrics could not be updated: {type(error).__name__}")

    def reset_after_fork(self) -> None:
        """In a forked child: leave the parent's updates to the parent; its thread may have held the lock."""
        self._updates.clear()
        self._applying, self._is_needed = threading.Lock(), threading.Event()

    def apply_updates(self) -> None:
        """Apply the updates that were collected so far."""
        counts: dict[tuple[Instrument, tuple[str, ...]], int] = {}
        updates = self._updates
        with self._applying:
            # As many as there are now: steps that add more must not keep a reader here.
            for _ in range(len(updates)):
                instrument, labels, value = updates.popleft()
                if instrument.kind == "counter":
                    counts[instrument, labels] = counts.get((instrument, labels), 0) + 1
                else:
                    attributes = self._attributes_of(instrument, labels)
                    self._instruments[instrument.name].record(value, attributes, _NO_CONTEXT)
            for (instrument, labels), count in counts.items():
                attributes = self._attributes_of(instrument, labels)
                self._instruments[instrument.name].add(count, attributes, _NO_CONTEXT)

    def _read_states(self, options: CallbackOptions) -> list[Observation]:
        """Return the states of breakers; the SDK calls this whenever it reads the metrics."""
        self.apply_updates()
        return [
            Observation(value, self._attributes_of(BREAKER_STATE, labels))
            for labels, value in list(self._states.items())
        ]

    def _attributes_of(self, instrument: Instrument, labels: tuple[str, ...]) -> dict[str, str]:
        known = (instrument.name, labels)
        attributes = self._attributes.get(known)
        if attributes is None:
            pairs = zip(instrument.labels, labels, strict=True)
            # `error.type` is absent on success.
            attributes = {ATTRIBUTE_NAMES[label]: value for label, value in pairs if value}
            self._attributes[known] = attributes
        return attributes

    def close(self) -> None:
        """Apply the remaining updates; the instruments of a meter cannot be removed."""
        self.apply_updates()
        self._is_closed = True
        self._is_needed.set()
        self._states.clear()


_backends: weakref.WeakSet[OpenTelemetryBackend] = weakref.WeakSet()


def _reset_backends_after_fork() -> None:
    for backend in list(_backends):
        backend.reset_after_fork()


run_after_fork(_reset_backends_after_fork)
