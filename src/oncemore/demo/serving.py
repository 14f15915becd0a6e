"""What the servers of the stories have in common: they are quiet, and can hang up on a caller for real."""

from __future__ import annotations

import os
import struct
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SO_LINGER, SOL_SOCKET


class QuietServer(ThreadingHTTPServer):
    """Serves each caller in a thread that nobody waits for."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing when a caller hung up: being left is part of the story."""


class QuietHandler(BaseHTTPRequestHandler):
    """Answers, or drops the connection."""

    def reset_connection(self) -> None:
        """Drop the connection so that the caller's system sees a reset, and not a goodbye."""
        self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        os.close(self.connection.detach())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server uses
        """Keep the standard log lines off the screen; what happened is kept in order elsewhere."""
