"""HTTP servers on the loopback address for the demos: quiet, JSON, able to reset a connection.

Standard library only: the processes that record effects use this module, and must share no code with the
engine whose work they count.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "127.0.0.1"
#: Seconds between two looks at the shutdown flag: the default of half a second would delay every exit.
POLL_S = 0.02


class QuietServer(ThreadingHTTPServer):
    """HTTP server with one daemon thread per request and without error output."""

    daemon_threads = True
    # A stalled request would otherwise delay the end of the demo.
    block_on_close = False
    #: The object that the handlers work on, such as a `LocalServer`.
    owner: Any = None

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of a request: clients that are killed or time out are part of the demos."""

    def serve_in_thread(self) -> threading.Thread:
        """Start serving in a daemon thread and return the thread."""
        thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        return thread


class QuietHandler(BaseHTTPRequestHandler):
    """Request handler with JSON replies and without log lines."""

    server: QuietServer

    def read_json(self) -> Any:
        """Return the request body, decoded; None if there is none."""
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or "null")

    def send_json(self, status: int, body: object, headers: Mapping[str, str] | None = None) -> None:
        """Send a reply with a JSON body."""
        self.send_bytes(
            status, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}
        )

    def send_bytes(self, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        """Send a reply with these bytes and their length."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def reset_connection(self) -> None:
        """Close the connection so that the client sees ECONNRESET."""
        # Zero linger time makes the kernel send RST instead of FIN.
        self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        os.close(self.connection.detach())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server uses
        """Drop the log lines of http.server; each server records its requests itself."""


class LocalServer:
    """Base of the servers that run inside the demo's process, from `with` to the end of the block."""

    def __init__(self, handler: type[QuietHandler]) -> None:
        # Handlers that wait do so on `closing`, so that the end of the block never takes long.
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self._http = QuietServer((HOST, 0), handler)
        self._http.owner = self
        self.url = f"http://{HOST}:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread = self._http.serve_in_thread()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
