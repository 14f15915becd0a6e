"""What it costs to watch a durable step: off, with a listener, with OpenTelemetry, with Prometheus.

    python bench/telemetry.py            the tables, and a verdict for each goal
    python bench/telemetry.py --quick    the same in a few seconds, too noisy to believe
    python bench/telemetry.py --json     the same for a machine

The subjects run in turns on logs of their own (`_measure.py`): wall-clock time on disk with full durability,
and CPU time in memory (/dev/shm). OpenTelemetry has its SDK with a batch processor and an exporter that
drops the spans, so that what is measured is the cost inside the step and that of the processor's thread, and
not that of a network. `without hooks` is the same step with the calls that look for listeners taken out.
`two spans by hand` is a step without telemetry whose caller and function each start a span of their own, with
the names and attributes that ours have: what the SDK itself costs around a step. What we add to that is
printed too; it may be negative, because a thread makes most of our spans, many at a time. CPU time is that of
all threads: what the spans cost in sum.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from _durable import cpu, engine_at, timed, wall, work
from _measure import Effort, Goal, Group, Row, Subject, command, interleaved, ratios, spread
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from prometheus_client import CollectorRegistry

import oncemore
from oncemore.steps import observers
from oncemore.telemetry import enable_opentelemetry, enable_prometheus

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from _measure import Spread

WITHOUT, OFF, LISTENER = "without hooks", "off", "on_event"
OTEL, SAMPLED = "OpenTelemetry", "OpenTelemetry, one trace in ten"
HAND, HAND_SAMPLED = "two spans by hand", "two spans by hand, one trace in ten"
PROMETHEUS, ALL = "Prometheus", "both"
DISK, MEMORY = "a step, SQLite FULL", "a step, in memory"
US = 1e3


class Scale(NamedTuple):
    """How much is measured, on disk and in memory."""

    disk: Effort
    memory: Effort


FULL = Scale(
    Effort(rounds=41, batch_ns=60_000_000, most_s=60), Effort(rounds=41, batch_ns=30_000_000, most_s=40)
)
QUICK = Scale(Effort(rounds=2, batch_ns=2_000_000), Effort(rounds=2, batch_ns=2_000_000))


class DroppedSpans(SpanExporter):
    """An exporter that takes spans and does nothing with them."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


class NoHooks:
    """A step without the calls that look for listeners."""

    def __enter__(self) -> None:
        self._was = observers.is_observed
        observers.is_observed = lambda call, change: False

    def __exit__(self, *error: object) -> None:
        observers.is_observed = self._was


class Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


class WithOpenTelemetry:
    """Spans and metrics through the SDK."""

    def __init__(self, share: float = 1.0) -> None:
        self._traces = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
        self._metrics = MeterProvider([InMemoryMetricReader()])
        self._traces.add_span_processor(BatchSpanProcessor(DroppedSpans()))

    def __enter__(self) -> None:
        self._on = enable_opentelemetry(tracer_provider=self._traces, meter_provider=self._metrics)

    def __exit__(self, *error: object) -> None:
        self._on.disable()


def by_hand(name: str, engine: oncemore.Engine, clock: Any, share: float) -> Subject:
    """Return the subject that makes steps without telemetry, with two spans of the SDK around the work."""
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(share))
    provider.add_span_processor(BatchSpanProcessor(DroppedSpans()))
    tracer = provider.get_tracer("bench")
    attributes = {
        "oncemore.step.name": name,
        "oncemore.key": "0" * 64,
        "oncemore.run.id": "0" * 36,
        "oncemore.policy.name": "standard@1",
    }
    numbers = {"oncemore.attempt.number": 1, "oncemore.attempt.limit": 3}

    @oncemore.step(effect="idempotent", name=name)
    def inner(n: int) -> int:
        span = tracer.start_span("oncemore.attempt by hand", attributes=numbers)
        with trace.use_span(span, end_on_exit=True):
            return n

    step = inner.bind(engine)

    def outer(n: int) -> int:
        span = tracer.start_span("oncemore.run by hand", attributes=attributes)
        with trace.use_span(span, end_on_exit=True):
            return step(n)

    return Subject(name, timed(outer, clock))


class WithPrometheus:
    """Metrics in a registry."""

    def __enter__(self) -> None:
        self._on = enable_prometheus(CollectorRegistry())

    def __exit__(self, *error: object) -> None:
        self._on.disable()


class Both(ExitStack):
    def __init__(self, *parts: AbstractContextManager[Any]) -> None:
        super().__init__()
        self._parts = parts

    def __enter__(self) -> Both:
        for part in self._parts:
            self.enter_context(part)
        return self


def watched(name: str, step: Any, clock: Any, watching: Callable[[], AbstractContextManager[Any]]) -> Subject:
    """Return the subject that makes steps while something watches."""
    run = timed(step, clock)

    def measured(n: int) -> int:
        with watching():
            return run(n)

    return Subject(name, measured)


def compared(title: str, folder: Path, clock: Any, effort: Effort) -> Group:
    """Measure a step under each kind of watching, each on a log of its own."""
    spans, some_spans = WithOpenTelemetry(), WithOpenTelemetry(0.1)
    kinds: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        WITHOUT: NoHooks,
        OFF: Nothing,
        LISTENER: lambda: oncemore.on_event(lambda event: None),
        OTEL: lambda: spans,
        SAMPLED: lambda: some_spans,
        PROMETHEUS: WithPrometheus,
        ALL: lambda: Both(spans, WithPrometheus()),
    }
    with ExitStack() as stack:
        subjects = [
            watched(name, work.bind(engine_at(folder / f"{number}.db", stack)), clock, kind)
            for number, (name, kind) in enumerate(kinds.items())
        ]
        for name, share in ((HAND, 1.0), (HAND_SAMPLED, 0.1)):
            subjects.append(by_hand(name, engine_at(folder / f"{name}.db", stack), clock, share))
        costs = interleaved(subjects, effort)
    against = ratios(costs, OFF)
    rows = [Row(name, spread([one / US for one in own]), against[name]) for name, own in costs.items()]
    return Group(title, "µs CPU" if clock is cpu else "µs", OFF, rows)


def measured(options: Namespace) -> Iterator[Group]:
    scale = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(dir=".") as disk:
        yield compared(DISK, Path(disk), wall, scale.disk)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        yield compared(MEMORY, Path(memory), cpu, scale.memory)


def goals(groups: list[Group]) -> list[Goal]:
    """Off costs nothing that can be measured; on costs at most a tenth of a durable step."""
    disk, memory = groups
    without = memory.of(WITHOUT).ratio
    off = spread([1 / without.low, 1 / without.median, 1 / without.high])
    return [
        Goal("off", "over the step without hooks, CPU in memory", off, 1.02, 1.01),
        *(
            Goal("on", f"{name}, over off, on disk", disk.of(name).ratio, 1.10, 1.05)
            for name in (LISTENER, PROMETHEUS, OTEL, SAMPLED)
        ),
        *(
            Goal("on", f"{ours} less {hand}, in steps", our_share(disk, ours, hand), 0.10, 0.0, "")
            for ours, hand in ((OTEL, HAND), (SAMPLED, HAND_SAMPLED))
        ),
    ]


def our_share(group: Group, ours: str, by_hand: str) -> Spread:
    """Return what we add to two spans by hand, as a share of a step without telemetry."""
    share = (group.of(ours).cost.median - group.of(by_hand).cost.median) / group.of(OFF).cost.median
    return spread([share])


if __name__ == "__main__":
    command(__doc__, ["oncemore", "opentelemetry-sdk", "prometheus-client"], measured, goals)
