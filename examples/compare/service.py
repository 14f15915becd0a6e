"""The services that the programs here call, in one process on this machine: they fail as services do.

    python examples/compare/service.py         on port 8000, for trying a program by hand

The tests start it too, and read from it how often each request came.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

#: How many requests of one thumbnail in ten fail, and how long each takes.
THUMBNAIL_S = 0.02
ORDERS = [
    {"customer": "north", "amount": 30},
    {"customer": "south", "amount": 12},
    {"customer": "north", "amount": -1},
    {"customer": "south", "amount": 8},
]


class Reply(NamedTuple):
    """A response; a status of 0 closes the connection without one."""

    status: int
    body: Any = None
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


class Service(ThreadingHTTPServer):
    """The services, and what they have seen.

    requests   how often each method and path was called
    times      when, in monotonic seconds
    applied    the first body of each effect, by path and idempotency key
    hold       paths whose requests are applied and then not answered, until `release()`
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), RequestHandler)
        self.requests: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}
        self.applied: dict[tuple[str, str], Any] = {}
        self.hold: set[str] = set()
        self.held = threading.Event()
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._released = threading.Event()

    @property
    def url(self) -> str:
        """Return the address of the service."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> None:
        """Serve in a thread of its own."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def release(self) -> None:
        """Answer the requests on hold, and hold no more."""
        self.hold.clear()
        self._released.set()

    def handle_call(self, method: str, path: str, key: str, body: Any) -> Reply:
        """Record a request, act on it, and return the response."""
        with self._lock:
            self.requests[f"{method} {path}"] += 1
            self.times.setdefault(path, []).append(time.monotonic())
            number = self.requests[f"{method} {path}"]
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return self._post(path, key, body) if method == "POST" else self._get(path, number)
        finally:
            with self._lock:
                self._at_once -= 1

    def _get(self, path: str, number: int) -> Reply:
        match path.split("/")[1:]:
            case ["forecast", "atlantis"]:
                return Reply(404, {"error": "no such place"})
            case ["forecast", place]:
                # A busy server, then a connection that is lost.
                script = {1: Reply(503, None, {"Retry-After": "1"}), 2: Reply(0)}
                return script.get(number, Reply(200, {"place": place, "sky": "clear"}))
            case ["exports", _]:
                return Reply(200, {"state": "ready", "rows": 42} if number > 3 else {"state": "running"})
            case ["thumbnails", name]:
                time.sleep(THUMBNAIL_S)
                return Reply(503) if name.endswith("0") and number == 1 else Reply(200, {"bytes": 100})
            case ["orders", _]:
                return Reply(200, ORDERS)
        return Reply(404)

    def _post(self, path: str, key: str, body: Any) -> Reply:
        """Apply an effect once per idempotency key; the response of a repetition is the same."""
        with self._lock:
            key = key or f"request-{self.requests[f'POST {path}']}"
            self.applied.setdefault((path, key), body)
            number = [used for used_path, used in self.applied if used_path == path].index(key) + 1
        if path in self.hold:
            self.held.set()
            self._released.wait(60)
        return Reply(200, {"id": f"{path[1:]}-{number}"})


class RequestHandler(BaseHTTPRequestHandler):
    """Read one request and write the response of the service."""

    protocol_version = "HTTP/1.1"
    server: Service

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer("GET", None)

    def do_POST(self) -> None:
        """Answer a POST."""
        self._answer("POST", json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}"))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Print nothing."""

    def _answer(self, method: str, body: Any) -> None:
        reply = self.server.handle_call(method, self.path, self.headers.get("Idempotency-Key", ""), body)
        self.close_connection = True
        if not reply.status:
            return
        content = json.dumps(reply.body).encode()
        try:
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
        except ConnectionError:
            pass  # the caller was killed meanwhile


if __name__ == "__main__":
    print("http://127.0.0.1:8000", flush=True)
    Service(8000).serve_forever()
