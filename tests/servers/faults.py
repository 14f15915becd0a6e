"""Small loopback servers that fail on purpose, for tests of clients with real faults.

A *behaviour* is a function of one accepted connection: it reads the request (or does not) and then
closes, resets, stalls, lies or answers. `serve(behaviour)` runs it on a free port of the loopback
address until the `with` block ends. Each connection gets its own thread, because a stalled client
must not block the next one; every wait of a server is limited by `PATIENCE`, and leaving the block
ends them all at once.

Faults without an accepted connection have functions of their own: `refusing()` holds a port without
a listener, `unanswered()` a listener whose queue is full, so that connecting never ends.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

#: The longest that any server here waits for anything, in seconds.
PATIENCE = 5.0

HOST = "127.0.0.1"


@dataclass
class Server:
    """A running server: its port and the requests that it received."""

    port: int
    scheme: str = "http"
    requests: list[bytes] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{HOST}:{self.port}/"

    def wait_for(self, requests: int) -> None:
        """Wait for a number of requests; a client that gave up may be ahead of the server."""
        until = time.monotonic() + PATIENCE
        while len(self.requests) < requests:
            assert time.monotonic() < until, f"{len(self.requests)} requests of {requests} arrived"
            time.sleep(0.002)


Behaviour = Callable[[socket.socket, Server], None]


def read_request(conn: socket.socket) -> bytes:
    """Read one HTTP request whole, so that closing afterwards is a close and not a reset."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = conn.recv(65536)
        if not got:
            return data
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    wanted = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            wanted = int(line.partition(b":")[2])
    if b"\r\nexpect: 100-continue" in head.lower():
        conn.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    while len(body) < wanted:
        got = conn.recv(65536)
        if not got:
            break
        body += got
    return head + b"\r\n\r\n" + body


def closes(conn: socket.socket, server: Server) -> None:
    """Read the request and close the connection without a reply."""
    server.requests.append(read_request(conn))


def resets(conn: socket.socket, server: Server) -> None:
    """Read the request, then end the connection with a TCP reset."""
    server.requests.append(read_request(conn))
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def stalls(conn: socket.socket, server: Server) -> None:
    """Read the request and never reply."""
    server.requests.append(read_request(conn))
    server.stopping.wait(PATIENCE)


def cuts(conn: socket.socket, server: Server) -> None:
    """Announce a body of a hundred bytes, send ten, and close."""
    server.requests.append(read_request(conn))
    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nContent-Type: text/plain\r\n\r\n0123456789")


def cuts_chunks(conn: socket.socket, server: Server) -> None:
    """Start a chunked body and close inside a chunk."""
    server.requests.append(read_request(conn))
    conn.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n0123456789")


def stalls_in_body(conn: socket.socket, server: Server) -> None:
    """Announce a body of a hundred bytes, send ten, then nothing."""
    cuts(conn, server)
    server.stopping.wait(PATIENCE)


def resets_in_body(conn: socket.socket, server: Server) -> None:
    """Announce a body of a hundred bytes, send ten, give the client time to read them, then reset."""
    cuts(conn, server)
    server.stopping.wait(0.05)
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def reads_nothing(_conn: socket.socket, server: Server) -> None:
    """Accept the connection and do not read the request."""
    server.stopping.wait(PATIENCE)


def talks_nonsense(conn: socket.socket, server: Server) -> None:
    """Reply with data that is not HTTP."""
    server.requests.append(read_request(conn))
    conn.sendall(b"what a lovely day\r\n\r\n")


def plain_text(conn: socket.socket, server: Server) -> None:
    """Answer a TLS greeting with plain text."""
    server.requests.append(conn.recv(65536))
    conn.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def answers(
    status: int, headers: dict[str, str] | None = None, body: bytes = b"{}", reason: str = "Because"
) -> Behaviour:
    """Make a behaviour that gives the same answer to every request."""
    fields = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
    fields["Content-Length"] = str(len(body))
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    answer = f"HTTP/1.1 {status} {reason}\r\n{head}\r\n".encode() + body

    def behave(conn: socket.socket, server: Server) -> None:
        server.requests.append(read_request(conn))
        conn.sendall(answer)

    return behave


@contextlib.contextmanager
def serve(behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Run `behaviour` for every connection to a free loopback port while the block lasts."""
    with socket.create_server((HOST, 0), backlog=16) as listener:
        server = Server(listener.getsockname()[1], "https" if tls else "http")
        threads = [threading.Thread(target=_accept, args=(listener, server, behaviour, tls), daemon=True)]
        threads[0].start()
        try:
            yield server
        finally:
            server.stopping.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            threads[0].join(PATIENCE + 1)


def _accept(
    listener: socket.socket, server: Server, behaviour: Behaviour, tls: ssl.SSLContext | None
) -> None:
    busy: list[threading.Thread] = []
    while not server.stopping.is_set():
        try:
            conn, _ = listener.accept()
        except OSError:
            break
        thread = threading.Thread(target=_handle, args=(conn, server, behaviour, tls), daemon=True)
        thread.start()
        busy.append(thread)
    for thread in busy:
        thread.join(PATIENCE + 1)


def _handle(conn: socket.socket, server: Server, behaviour: Behaviour, tls: ssl.SSLContext | None) -> None:
    conn.settimeout(PATIENCE)
    # The client may give up first; its reset is not an error of the server.
    with (
        contextlib.suppress(OSError),
        conn if tls is None else tls.wrap_socket(conn, server_side=True) as stream,
    ):
        behaviour(stream, server)


@contextlib.contextmanager
def refusing() -> Iterator[Server]:
    """Hold a port that refuses connections: bound, so that no other process gets it, but not listening."""
    with socket.socket() as held:
        held.bind((HOST, 0))
        yield Server(held.getsockname()[1])


@contextlib.contextmanager
def unanswered() -> Iterator[Server]:
    """Hold a port whose queue of new connections is full, so that the next one gets no answer."""
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(socket.socket())
        listener.bind((HOST, 0))
        listener.listen(0)
        for _ in range(4):
            filler = open_sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield Server(listener.getsockname()[1])
