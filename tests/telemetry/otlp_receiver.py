"""A server for the OpenTelemetry protocol (OTLP over HTTP) that keeps the spans and metrics it receives."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class OtlpReceiver:
    """What was received: spans and metrics, as messages of the protocol.

    url    the address for OTEL_EXPORTER_OTLP_ENDPOINT
    flush  called before spans are read, so that the provider of this process has sent them
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []
        self.metrics: list[Any] = []
        self.scopes: set[tuple[str, str]] = set()
        self.flush: Callable[[], object] = bool

    def receive(self, path: str, body: bytes) -> bytes:
        """Parse a request; return the response."""
        if path == "/v1/traces":
            traces = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
            for resource in traces.resource_spans:
                for scope in resource.scope_spans:
                    self.scopes.add((scope.scope.name, scope.schema_url))
                    self.spans += scope.spans
            return trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
        assert path == "/v1/metrics"
        metrics = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
        for resource in metrics.resource_metrics:
            for scope in resource.scope_metrics:
                self.metrics += scope.metrics
        return metrics_service_pb2.ExportMetricsServiceResponse().SerializeToString()

    def named(self, name: str) -> list[Any]:
        """Return the spans of a name, in the order in which they began."""
        self.flush()
        found = [span for span in self.spans if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def points(self, name: str) -> dict[tuple[str, ...], Any]:
        """Return the last data points of a metric by the values of their attributes, sorted by name."""
        found = {}
        for metric in self.metrics:
            if metric.name == name:
                for point in getattr(metric, metric.WhichOneof("data")).data_points:
                    found[tuple(value for _, value in sorted(attributes(point).items()))] = point
        return found


def attributes(message: Any) -> dict[str, Any]:
    """Return the attributes of a span, an event or a data point."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in message.attributes}


@contextmanager
def run_receiver() -> Iterator[OtlpReceiver]:
    """Run a receiver on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            response = receiver.receive(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *values: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = OtlpReceiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
