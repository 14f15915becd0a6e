"""A shop behind the middleware, as an application of each kind, on a real server.

    python -m tests.http.shop FRONT STORE BOOK EFFECT [WHERE [ATTEMPTS]]

Each order that is carried out is a line in the book, synced: what happened, whatever the log says. A process
with a WHERE kills itself there: `before` the line in the book is written, `effect` after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import socketserver
import sys
import threading
import time
import wsgiref.simple_server
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oncemore
import oncemore.http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

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
    """The behaviour of the application, whatever framework it is written in."""

    def __init__(self, book: Path, where: str = "") -> None:
        self.book, self.where = Book(book), where
        self.statuses: list[int] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def begin_order(self, method: str, body: bytes) -> None:
        if self.where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        self.book.write(f"{method} {body.decode()}")
        self.entered.set()
        if self.where == "effect":
            os.kill(os.getpid(), signal.SIGKILL)

    def end_order(self) -> tuple[int, dict[str, str], bytes, str]:
        """Return the status, header fields, body and cookie of the response."""
        status = self.statuses.pop(0) if self.statuses else 201
        number = len(self.book.lines)
        fields = {"Location": f"/orders/{number}", "X-Request": "é", "Content-Type": "application/json"}
        body = json.dumps({"order": number}, separators=(",", ":")).encode()
        return status, fields, body, f"secret-{number}"

    def run_plain(self) -> str:
        attempt = oncemore.current()
        self.book.write(f"{attempt.step} {attempt.number}")
        return f"attempt {attempt.number}"

    def make_parts(self, count: str, size: str) -> Iterator[bytes]:
        self.book.write(f"stream {count} {size}")
        return (b"%d" % (number % 10) * int(size) for number in range(int(count)))

    def fail(self) -> Any:
        self.book.write("fails")
        raise RuntimeError("the shop is on fire")


def starlette_app(shop: Shop) -> Any:
    """Return the shop in Starlette."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def order(request: Any) -> Any:
        shop.begin_order(request.method, await request.body())
        while not shop.go_on.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.005)
        status, fields, body, cookie = shop.end_order()
        response = Response(body, status, fields)
        response.set_cookie("session", cookie)
        return response

    async def plain(request: Any) -> Any:
        """Run a plain function in a thread, as frameworks do."""
        return PlainTextResponse(await asyncio.to_thread(shop.run_plain))

    async def stream(request: Any) -> Any:
        return StreamingResponse(iterate_async(shop.make_parts(**request.query_params)))

    async def fails(request: Any) -> Any:
        shop.fail()

    methods = ["GET", "POST", "PUT", "PATCH"]
    views = {"/orders": order, "/plain": plain, "/stream": stream, "/fails": fails}
    return Starlette(routes=[Route(path, view, methods=methods) for path, view in views.items()])


async def iterate_async(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def flask_app(shop: Shop) -> Any:
    """Return the shop in Flask."""
    import flask

    app = flask.Flask("shop")

    def order() -> Any:
        shop.begin_order(flask.request.method, flask.request.get_data())
        assert shop.go_on.wait(30)
        status, fields, body, cookie = shop.end_order()
        response = flask.Response(body, status, fields)
        response.set_cookie("session", cookie)
        return response

    def stream() -> Any:
        return flask.Response(shop.make_parts(**flask.request.args))

    views = {"/orders": order, "/plain": shop.run_plain, "/stream": stream, "/fails": shop.fail}
    for path, view in views.items():
        app.add_url_rule(path, path, view, methods=["GET", "POST", "PUT", "PATCH"])
    return app


def django_views(find_shop: Callable[[Any], Shop], *, is_async: bool) -> list[Any]:
    """Return the URL patterns of the shop in Django."""
    from django.http import HttpResponse, StreamingHttpResponse
    from django.urls import path

    def finish(shop: Shop) -> Any:
        status, fields, body, cookie = shop.end_order()
        response = HttpResponse(body, status=status, headers=fields)
        response.set_cookie("session", cookie)
        return response

    def order(request: Any) -> Any:
        shop = find_shop(request)
        shop.begin_order(request.method, request.body)
        assert shop.go_on.wait(30)
        return finish(shop)

    async def order_async(request: Any) -> Any:
        shop = find_shop(request)
        shop.begin_order(request.method, request.body)
        while not shop.go_on.is_set():  # noqa: ASYNC110 - it is set in another thread
            await asyncio.sleep(0.005)
        return finish(shop)

    def stream(request: Any) -> Any:
        parts = find_shop(request).make_parts(**request.GET.dict())
        return StreamingHttpResponse(iterate_async(parts) if is_async else parts)

    def plain(request: Any) -> Any:
        return HttpResponse(find_shop(request).run_plain())

    def fails(request: Any) -> Any:
        find_shop(request).fail()

    views = {"orders": order_async if is_async else order, "plain": plain, "stream": stream, "fails": fails}
    return [path(name, view) for name, view in views.items()]


def configure_django() -> None:
    """Give the process settings, which it can get only once."""
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    settings.ROOT_URLCONF = __name__  # each request brings its own URL patterns


def django_app(shop: Shop, *, is_async: bool, **options: Any) -> Any:
    """Return the shop in Django, with the middleware in its settings."""
    from django.core.handlers.asgi import ASGIHandler
    from django.core.handlers.wsgi import WSGIHandler
    from django.test import override_settings

    configure_django()
    middleware = ["tests.http.shop.FindShop", "oncemore.http.DjangoIdempotencyMiddleware"]
    # A handler reads the middleware and its options once; what it reads later is the same for all shops.
    with override_settings(MIDDLEWARE=middleware, ONCEMORE_IDEMPOTENCY=options):
        handler = (ASGIHandler if is_async else WSGIHandler)()
    urls = type("Urls", (), {"urlpatterns": django_views(lambda request: shop, is_async=is_async)})
    return DjangoFront(handler, urls, is_async)


class DjangoFront:
    """A handler with the URL patterns of its own shop, which it passes on with each request."""

    def __init__(self, handler: Any, urls: Any, is_async: bool) -> None:
        self._handler, self._urls, self._is_async = handler, urls, is_async

    def __call__(self, request: Any, *server: Any) -> Any:
        request[URLS] = self._urls
        if not self._is_async or request["type"] == "http":
            return self._handler(request, *server)
        return serve_lifespan(*server)


URLS = "tests.urls"


class FindShop:
    """A middleware of Django that selects the URL patterns of the shop."""

    sync_capable = async_capable = True

    def __new__(cls, get_response: Any) -> Any:
        from asgiref.sync import iscoroutinefunction

        async def find_async(request: Any) -> Any:
            request.urlconf = request.scope[URLS]
            return await get_response(request)

        def find(request: Any) -> Any:
            request.urlconf = request.environ[URLS]
            return get_response(request)

        return find_async if iscoroutinefunction(get_response) else find


def name_user(user: str) -> str | None:
    """Return the principal of a header field of the test, or None."""
    return None if user == "nobody" else user


def who(scope: Any) -> str | None:
    return name_user(dict(scope["headers"]).get(b"x-user", b"anna").decode())


def make_app(front: str, shop: Shop, **options: Any) -> Any:
    """Return a shop of a kind behind the middleware of that kind."""
    if front == "asgi":
        return oncemore.http.IdempotencyMiddleware(starlette_app(shop), **{"principal": who, **options})
    if front == "wsgi":
        app = flask_app(shop)
        options = {"principal": lambda environ: name_user(environ.get("HTTP_X_USER", "anna")), **options}
        app.wsgi_app = oncemore.http.WsgiIdempotencyMiddleware(app.wsgi_app, **options)
        return app
    options = {"principal": lambda request: name_user(request.headers.get("X-User", "anna")), **options}
    return django_app(shop, is_async=front == "django-async", **options)


#: The kinds of servers, and whether their applications are async.
FRONTS = {"asgi": True, "wsgi": False, "django": False, "django-async": True}


async def serve_lifespan(receive: Any, send: Any) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


class ThreadingServer(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """A WSGI server with a thread per request."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about clients that hang up."""


class QuietHandler(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *told: Any) -> None:
        """Say nothing about requests."""


@contextlib.contextmanager
def serving(app: Any, *, is_async: bool = True) -> Iterator[str]:
    """Serve an application in a thread; yield its address."""
    with serving_async(app) if is_async else serving_threads(app) as url:
        yield url


@contextlib.contextmanager
def serving_threads(app: Any) -> Iterator[str]:
    server = wsgiref.simple_server.make_server(HOST, 0, app, ThreadingServer, QuietHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@contextlib.contextmanager
def serving_async(app: Any) -> Iterator[str]:
    import uvicorn

    with socket.create_server((HOST, 0)) as listener:
        config = uvicorn.Config(
            app, interface="asgi3", ws="none", log_config=None, timeout_graceful_shutdown=5
        )
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


def main(front: str, store: str, book: str, effect: str, where: str = "", attempts: str = "10") -> None:
    shop = Shop(Path(book), where)
    with oncemore.open(store) as engine:
        app = make_app(front, shop, effect=effect, engine=engine, attempts=int(attempts))
        with serving(app, is_async=FRONTS[front]) as url:
            print(url, flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
