"""A local HTTP server that answers as three carbon-intensity services do."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator


def _format(moment: datetime, suffix: str = ":00Z") -> str:
    return moment.strftime("%Y-%m-%dT%H:%M") + suffix


class GridServer(ThreadingHTTPServer):
    """Answers with one intensity; `fails` answers of 503 come first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _GridHandler)
        self.intensity: float | None = 620.0
        self.fails = 0
        self.token = ""
        self.body: bytes | None = None
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, query: dict[str, list[str]]) -> Any:
        now = datetime.now(UTC)
        earlier, later = now - timedelta(minutes=10), now + timedelta(minutes=20)
        if path == "/v3/carbon-intensity/latest":
            return {
                "zone": query["zone"][0], "carbonIntensity": self.intensity, "datetime": _format(earlier),
                "updatedAt": _format(now), "createdAt": _format(earlier),
                "emissionFactorType": "lifecycle", "isEstimated": True, "estimationMethod": "TIME_SLICER",
            }  # fmt: skip
        if path == "/v3/carbon-intensity/history":
            points = [{"carbonIntensity": 100, "datetime": _format(earlier - timedelta(hours=1))}]
            points.append({"carbonIntensity": self.intensity, "datetime": _format(earlier)})
            points.append({"carbonIntensity": None, "datetime": _format(now)})
            return {"zone": query["zone"][0], "history": points}
        if path == "/v3/forecast":
            return {
                "data": [
                    {"point_time": _format(earlier, ":00+00:00"), "value": self.intensity},
                    {"point_time": _format(later, ":00+00:00"), "value": 1.0},
                ],
                "meta": {
                    "region": query["region"][0], "signal_type": "co2_moer", "units": "lbs_co2_per_mwh",
                    "model": {"date": "2023-03-01"}, "generated_at": _format(now, ":00+00:00"),
                },
            }  # fmt: skip
        if path == "/intensity":
            intensity = {"forecast": self.intensity, "actual": None, "index": "high"}
            return {
                "data": [{"from": _format(earlier, "Z"), "to": _format(later, "Z"), "intensity": intensity}]
            }
        if path == "/price":
            return {"prices": [{"usd": 0.31}]}
        raise AssertionError(path)


class _GridHandler(BaseHTTPRequestHandler):
    server: GridServer

    def do_GET(self) -> None:
        server, parts = self.server, urlsplit(self.path)
        server.requests.append(self.path)
        given = self.headers.get("auth-token") or self.headers.get("authorization", "")
        status, content = 200, b""
        if server.fails > 0:
            server.fails -= 1
            status = 503
        elif server.token and server.token not in given:
            status = 401
        else:
            answer = server.answer(parts.path, parse_qs(parts.query))
            content = json.dumps(answer).encode() if server.body is None else server.body
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serve_grid() -> Iterator[GridServer]:
    """Run a server on a free port."""
    server = GridServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
