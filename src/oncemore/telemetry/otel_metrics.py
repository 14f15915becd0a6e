"""The metrics of runs as instruments of OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import Observation

from oncemore._version import __version__
from oncemore.telemetry.metrics import BREAKER_STATE, BUCKETS_S, INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import CallbackOptions, MeterProvider

    from oncemore.telemetry.metrics import Instrument

#: The semantic conventions whose names the attributes use where they exist.
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
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
    """Updates the instruments of a meter; the queue of reports calls it, one thread at a time.

    provider  None for the global one
    flush     makes the reports that wait; called when the metrics are read, so that nothing is missing
    """

    def __init__(self, provider: MeterProvider | None, flush: Callable[[], object]) -> None:
        meter = metrics.get_meter("oncemore", __version__, provider, SCHEMA_URL)
        self._flush = flush
        self._counts: dict[tuple[Instrument, tuple[str, ...]], int] = {}
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
        """Add one to a counter, with the next `apply_counts`."""
        known = (instrument, labels)
        self._counts[known] = self._counts.get(known, 0) + 1

    def record_seconds(self, instrument: Instrument, labels: tuple[str, ...], seconds: float) -> None:
        """Record a duration in a histogram."""
        attributes = self._attributes_of(instrument, labels)
        self._instruments[instrument.name].record(seconds, attributes, _NO_CONTEXT)

    def set_state(self, instrument: Instrument, labels: tuple[str, ...], value: int) -> None:
        """Set a gauge."""
        self._states[labels] = value

    def apply_counts(self) -> None:
        """Add what was counted to the counters: one call of the SDK for many runs."""
        counts, self._counts = self._counts, {}
        for (instrument, labels), count in counts.items():
            attributes = self._attributes_of(instrument, labels)
            self._instruments[instrument.name].add(count, attributes, _NO_CONTEXT)

    def _read_states(self, options: CallbackOptions) -> list[Observation]:
        """Return the states of breakers; the SDK calls this whenever it reads the metrics."""
        self._flush()
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
        """Forget the states of breakers; the instruments of a meter cannot be removed."""
        self._states.clear()
