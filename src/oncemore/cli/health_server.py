"""HTTP health checks of a worker, for supervisors, load balancers and Kubernetes probes; and its metrics.

`/healthz` reports whether the worker's loop is running. It ignores the store, because restarting every worker
does not repair a database. `/readyz` reports whether the worker claims runs: it has also read the store
recently and is not stopping. Neither handler reads the store: a probe that waits for a database would make a
live worker look dead, and frequent probes would add load.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.workers.worker import Worker
    from oncemore.workers.worker_report import WorkerHealth

#: Maximum age of the last pass of the loop, and of the last read of the store, in seconds.
MAX_LOOP_S, MAX_STORE_AGE_S = 30.0, 15.0
#: A client that opens a connection and sends nothing must not occupy a thread for long.
REQUEST_TIMEOUT_S = 5.0


def parse_listen_address(text: str, option: str = "--health") -> tuple[str, int]:
    """Parse `PORT` or `HOST:PORT`; the port 0 selects a free one."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(
            f"{text!r} is not a port; write 8080, or 0.0.0.0:8080 to listen on all interfaces.",
            param_hint=f"'{option}'",
        )
    # `[::1]:8080`: the brackets belong to the notation of the URL, not to the address.
    return host.strip("[]") or "127.0.0.1", int(port)


def find_problem(worker_health: WorkerHealth, path: str) -> str:
    """Return the problem of a worker as a sentence; an empty text if it has none."""
    if worker_health.loop_age_s is None:
        return "" if path == "/healthz" else "the worker has not started, or has ended"
    # A stopping worker is alive until its runs have finished, but must get no new traffic.
    if worker_health.stopping:
        return "" if path == "/healthz" else "the worker is stopping"
    if worker_health.loop_age_s > MAX_LOOP_S:
        return f"the worker's loop has not run for {worker_health.loop_age_s:.0f} s"
    age_s = worker_health.store_read_age_s
    if path == "/readyz" and age_s is None:
        return "the worker has not read the store yet"
    if path == "/readyz" and age_s is not None and age_s > MAX_STORE_AGE_S:
        return f"the worker has not read the store for {age_s:.0f} s"
    return ""


@contextmanager
def serve_health(worker: Worker, address: tuple[str, int] | None) -> Iterator[int]:
    """Serve health checks inside the block; yield the port, or 0 without an address."""
    if address is None:
        yield 0
        return

    class HealthHandler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version, sys_version = "oncemore", ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path not in ("/healthz", "/readyz"):
                self._send_json(404, {"error": "unknown path; use /healthz or /readyz"})
                return
            problem = find_problem(worker.health, path)
            state = {"status": problem or "ok", "under_way": len(worker.active_keys)}
            self._send_json(503 if problem else 200, {**state, **worker.stats._asdict()})

        def do_HEAD(self) -> None:
            self.do_GET()

        def _send_json(self, status: int, document: dict[str, object]) -> None:
            body = json.dumps(document).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *values: object) -> None:
            """Log nothing: probes arrive every few seconds."""

    try:
        server = ThreadingHTTPServer(address, HealthHandler)
    except OSError as error:
        raise click.BadParameter(
            f"cannot listen on {address[0]}:{address[1]}: {error.strerror or error}.", param_hint="'--health'"
        ) from error
    # A client that is still connected must not keep the process of a finished worker alive.
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="oncemore-health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serve_metrics(address: tuple[str, int] | None) -> Iterator[int]:
    """Serve the metrics of this process to Prometheus inside the block; yield the port, or 0 if not asked."""
    if address is None:
        yield 0
        return
    from oncemore.telemetry import enable_prometheus

    source = enable_prometheus()
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(address[1], address[0])
    except OSError as error:
        source.disable()
        raise click.BadParameter(
            f"cannot listen on {address[0]}:{address[1]}: {error.strerror or error}.",
            param_hint="'--metrics'",
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        source.disable()
