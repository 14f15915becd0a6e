"""A real HTTP server that keeps its own log: what came when, and how much at once."""

from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class Request(NamedTuple):
    """A request: when it came, and what for."""

    at: float
    path: str


class Provider:
    """What the server does next, and what it has seen.

    status   what it answers; delay_s how long that takes; retry_after what it asks for, if anything
    most     up to how many at once it takes before it throttles; 0: any number
    """

    def __init__(self) -> None:
        self.status, self.delay_s, self.retry_after = 200, 0.0, ""
        self.most = 0
        self.requests: list[Request] = []
        self.under_way = self.peak = 0
        self.peaks: list[tuple[float, int]] = []
        #: When the answer to each request was ready, in the order of `requests`; infinite until then.
        self.ends: list[float] = []
        self.url = ""
        self._lock = threading.Lock()

    def began(self, path: str) -> tuple[int, int]:
        """Return the number of a request that came now, and the status of its answer."""
        with self._lock:
            number = len(self.requests)
            self.ends.append(math.inf)
            self.requests.append(Request(time.time(), path))
            self.under_way += 1
            self.peak = max(self.peak, self.under_way)
            self.peaks.append((time.time(), self.under_way))
            return number, 429 if self.most and self.under_way > self.most else self.status

    def ended(self, number: int) -> None:
        with self._lock:
            self.under_way -= 1
            self.ends[number] = time.time()

    def wait_for(self, count: int, total_timeout_s: float = 20.0) -> None:
        ends = time.monotonic() + total_timeout_s
        while len(self.requests) < count:
            assert time.monotonic() < ends, f"{len(self.requests)} requests of {count} came"
            time.sleep(0.005)


@contextmanager
def provider() -> Iterator[Provider]:
    """Run a server until the block ends."""
    told = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number, status = told.began(self.path)
            time.sleep(told.delay_s)
            body = self.path.encode()
            told.ended(number)  # before the answer: who has it may ask again at once
            try:
                self.send_response(status)
                if told.retry_after and status == 429:
                    self.send_header("Retry-After", told.retry_after)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # whoever asked was killed

        def log_message(self, *told: Any) -> None:
            """Say nothing: `requests` is the log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 200

    server = Server(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
