"""The metrics of runs in a registry of `prometheus_client`, and the application that serves it."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import prometheus_client

from oncemore.telemetry.metrics import BUCKETS_S, INSTRUMENTS, MetricSource

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from oncemore.telemetry.metrics import Instrument

_lock = Lock()
#: The source of each registry, so that a second call does not count everything twice.
_sources: dict[CollectorRegistry, MetricSource] = {}


class PrometheusBackend:
    """Updates the metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._metrics = {instrument: _make_metric(instrument, registry) for instrument in INSTRUMENTS}
        # The child of a metric for its label values: finding it through the metric costs more than updating.
        self._children: dict[tuple[str, tuple[str, ...]], Any] = {}

    def _find_child(self, instrument: Instrument, labels: tuple[str, ...]) -> Any:
        child = self._children.get((instrument.name, labels))
        if child is None:
            child = self._children[instrument.name, labels] = self._metrics[instrument].labels(*labels)
        return child

    def add_count(self, instrument: Instrument, labels: tuple[str, ...]) -> None:
        """Add one to a counter."""
        self._find_child(instrument, labels).inc()

    def record_seconds(self, instrument: Instrument, labels: tuple[str, ...], seconds: float) -> None:
        """Record a duration in a histogram."""
        self._find_child(instrument, labels).observe(seconds)

    def set_state(self, instrument: Instrument, labels: tuple[str, ...], value: int) -> None:
        """Set a gauge."""
        self._find_child(instrument, labels).set(value)

    def close(self) -> None:
        """Remove the metrics from the registry."""
        with _lock:
            _sources.pop(self._registry, None)
            for metric in self._metrics.values():
                self._registry.unregister(metric)


def metric_name(instrument: Instrument) -> str:
    """Return the name of an instrument as Prometheus writes it, with the unit at the end."""
    name = instrument.name.replace(".", "_")
    return f"{name}_seconds" if instrument.unit == "s" else name


def _make_metric(instrument: Instrument, registry: CollectorRegistry) -> Any:
    name, meaning, labels = metric_name(instrument), instrument.meaning, instrument.labels
    if instrument.kind == "counter":
        # The library adds _total to the name.
        return prometheus_client.Counter(name, meaning, labels, registry=registry)
    if instrument.kind == "histogram":
        return prometheus_client.Histogram(name, meaning, labels, registry=registry, buckets=BUCKETS_S)
    return prometheus_client.Gauge(name, meaning, labels, registry=registry)


def enable_registry(registry: CollectorRegistry | None) -> MetricSource:
    """Return the source that counts in a registry; make and enable it at the first call."""
    registry = prometheus_client.REGISTRY if registry is None else registry
    with _lock:
        source = _sources.get(registry)
        if source is None:
            source = _sources[registry] = MetricSource(PrometheusBackend(registry))
    # Outside of the lock: enabling twice does nothing.
    source.enable()
    return source


def make_app(registry: CollectorRegistry | None) -> Any:
    """Return the ASGI application that serves the metrics of a registry."""
    enable_registry(registry)
    return prometheus_client.make_asgi_app(prometheus_client.REGISTRY if registry is None else registry)
