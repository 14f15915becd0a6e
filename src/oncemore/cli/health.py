"""Answering those who watch a worker: a supervisor, a load balancer, a cluster's probes.

`/healthz` says whether the process is any good: its loop goes round. It does not ask about the store: to
restart every worker because the database is away helps nobody. `/readyz` says whether it takes work: it has
also seen the store lately, and was not told to stop. Nothing here asks the store anything: a probe that waits
for a database that does not answer would look like a dead worker, and many probes would be load.
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

    from oncemore.workers.service import Worker
    from oncemore.workers.worker import Pulse

#: How long a loop may take to go round, and how long ago it may have seen the store, in seconds.
ROUND_S, SEEN_S = 30.0, 15.0
#: How long a client may take to ask.
ASK_S = 5.0


def place_of(text: str) -> tuple[str, int]:
    """Read `PORT` or `HOST:PORT`; 0 is any port that is free."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(
            f"{text!r} is no port; write 8080, or 0.0.0.0:8080 for everybody.", param_hint="'--health'"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def ailing(pulse: Pulse, path: str) -> str:
    """Say what is wrong with a worker, or nothing."""
    if pulse.turned_s is None:
        return "" if path == "/healthz" else "it has not begun, or is over"
    if pulse.stopping:
        return "" if path == "/healthz" else "it was told to stop"
    if pulse.turned_s > ROUND_S:
        return f"its loop has not gone round for {pulse.turned_s:.0f} s"
    if path == "/readyz" and (pulse.looked_s is None or pulse.looked_s > SEEN_S):
        return (
            "it has not seen the store yet"
            if pulse.looked_s is None
            else (f"it has not seen the store for {pulse.looked_s:.0f} s")
        )
    return ""


@contextmanager
def answering(worker: Worker, place: tuple[str, int] | None) -> Iterator[int]:
    """Answer as long as the block lasts; give the port, or 0 where nobody asked for it."""
    if place is None:
        yield 0
        return

    class Answer(BaseHTTPRequestHandler):
        timeout = ASK_S
        server_version, sys_version = "oncemore", ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path not in ("/healthz", "/readyz"):
                self._say(404, {"error": "there are /healthz and /readyz"})
                return
            wrong = ailing(worker.pulse, path)
            told = {"status": wrong or "ok", "under_way": len(worker.under_way), **worker.worked._asdict()}
            self._say(503 if wrong else 200, told)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _say(self, status: int, told: dict[str, object]) -> None:
            body = json.dumps(told).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *about: object) -> None:
            """Say nothing: a probe comes every few seconds."""

    try:
        server = ThreadingHTTPServer(place, Answer)
    except OSError as error:
        raise click.BadParameter(
            f"nothing can listen on {place[0]}:{place[1]}: {error.strerror or error}.",
            param_hint="'--health'",
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="oncemore-health", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
