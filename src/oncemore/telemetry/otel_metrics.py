"""The metrics of runs as instruments of OpenTelemetry."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.metrics import Observation

from oncemore._version import __version__
from oncemore.telemetry.metrics import BREAKER_STATE, BUCKETS_S, INSTRUMENTS

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider

    from oncemore.telemetry.metrics import Instrument

#: The semantic conventions whose names the attributes use where they exist.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
#: The number of metric updates that are collected before they are applied.
BATCH_SIZE = 64
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


class OpenTelemetryBackend:
    """Updates the instruments of a meter, many updates at a time.

    An update through the SDK takes twice as long if its code is not in the processor's cache. So updates are
    collected and applied together: when there are `BATCH_SIZE` of them, and when the metrics are read.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter("oncemore", __version__, provider, SCHEMA_URL)
        self._updates: deque[tuple[Instrument, tuple[str, ...], float]] = deque()
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
            self.apply_updates()

    def record_seconds(self, instrument: Instrument, labels: tuple[str, ...], seconds: float) -> None:
        """Record a duration in a histogram."""
        self._updates.append((instrument, labels, seconds))
        if len(self._updates) >= BATCH_SIZE:
            self.apply_updates()

    def set_state(self, instrument: Instrument, labels: tuple[str, ...], value: int) -> None:
        """Set a gauge."""
        self._states[labels] = value

    def apply_updates(self) -> None:
        """Apply the updates that were collected; several threads may do so at once."""
        counts: dict[tuple[Instrument, tuple[str, ...]], int] = {}
        updates = self._updates
        while True:
            # Not by its length: another thread may take the last one in between.
            try:
                instrument, labels, value = updates.popleft()
            except IndexError:
                break
            if instrument.kind == "counter":
                counts[instrument, labels] = counts.get((instrument, labels), 0) + 1
            else:
                self._instruments[instrument.name].record(value, self._attributes_of(instrument, labels))
        for (instrument, labels), count in counts.items():
            self._instruments[instrument.name].add(count, self._attributes_of(instrument, labels))

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
        self._states.clear()
