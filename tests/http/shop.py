"""A shop behind the middleware, on a real server.

    python -m tests.http.shop STORE BOOK EFFECT [WHERE [ATTEMPTS]]

Each order that is carried out is a line in the book, synced: what happened, whatever the log says. A process
with a WHERE kills itself there: `before` the line in the book is written, `effect` after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request  # noqa: TC002 - frameworks look
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import oncemore
import oncemore.http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

HOST = "127.0.0.1"


class Book:
    """The effects of the application."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def write(self, line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def lines(self) -> list[str]:
        return self._path.read_text(encoding="utf-8").splitlines()


class Shop:
    """The application, with configurable behaviour."""

    def __init__(self, book: Path, where: str = "") -> None:
        self.book, self.where = Book(book), where
        self.statuses: list[int] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    async def order(self, request: Request) -> Response:
        body = await request.body()
        if self.where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        self.book.write(f"{request.method} {body.decode()}")
        self.entered.set()
        if self.where == "effect":
            os.kill(os.getpid(), signal.SIGKILL)
        while not self.go_on.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.005)
        status = self.statuses.pop(0) if self.statuses else 201
        number = len(self.book.lines)
        answer = JSONResponse({"order": number}, status, {"Location": f"/orders/{number}", "X-Request": "é"})
        answer.set_cookie("session", f"secret-{number}")
        return answer

    async def plain(self, request: Request) -> Response:
        """Run a plain function in a thread, as frameworks do."""
        return await asyncio.to_thread(self._plain)

    def _plain(self) -> Response:
        attempt = oncemore.current()
        self.book.write(f"{attempt.step} {attempt.number}")
        return PlainTextResponse(f"attempt {attempt.number}")

    async def stream(self, request: Request) -> Response:
        count, size = int(request.query_params["count"]), int(request.query_params["size"])
        self.book.write(f"stream {count} {size}")

        async def parts() -> AsyncIterator[bytes]:
            for number in range(count):
                yield b"%d" % (number % 10) * size

        return StreamingResponse(parts())

    async def fails(self, request: Request) -> Response:
        self.book.write("fails")
        raise RuntimeError("the shop is on fire")

    def app(self) -> Starlette:
        methods = ["GET", "POST", "PUT", "PATCH"]
        return Starlette(
            routes=[
                Route("/orders", self.order, methods=methods),
                Route("/plain", self.plain, methods=methods),
                Route("/stream", self.stream, methods=methods),
                Route("/fails", self.fails, methods=methods),
            ]
        )


def who(scope: Any) -> str | None:
    """Return the principal from a header field of the test, or None."""
    fields = dict(scope["headers"])
    found = fields.get(b"x-user", b"anna").decode()
    return None if found == "nobody" else found


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application with uvicorn in a thread; yield its address."""
    with socket.create_server((HOST, 0)) as listener:
        config = uvicorn.Config(app, ws="none", log_config=None, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        until = time.monotonic() + 10
        while not server.started:
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.002)
        try:
            yield f"http://{HOST}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


def main(store: str, book: str, effect: str, where: str = "", attempts: str = "10") -> None:
    shop = Shop(Path(book), where)
    with oncemore.open(store) as engine, socket.create_server((HOST, 0)) as listener:
        options: Any = {"effect": effect, "principal": who, "engine": engine, "attempts": int(attempts)}
        app = oncemore.http.IdempotencyMiddleware(shop.app(), **options)
        print(listener.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, ws="none", log_config=None)).run([listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
