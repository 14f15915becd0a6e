"""The Django middleware without a server: settings, and details of Django's requests and responses."""

from __future__ import annotations

import asyncio
import sys
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.http import FileResponse, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory, override_settings

import oncemore
import oncemore.http
from tests.http import shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OPTIONS: dict[str, Any] = {"effect": "idempotent", "principal": "oncemore.http.same_principal"}


@pytest.fixture(autouse=True)
def _configured() -> None:
    shop.configure_django()
    assert settings.configured


@pytest.fixture
def engine() -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


def guard(view: Any, options: Any = None, **more: Any) -> oncemore.http.DjangoIdempotencyMiddleware:
    """Return a view behind the middleware, made with settings."""
    with override_settings(ONCEMORE_IDEMPOTENCY={**OPTIONS, **more} if options is None else options):
        return oncemore.http.DjangoIdempotencyMiddleware(view)


def make_request(body: bytes = b"one", key: str = "k1", **environ: Any) -> Any:
    return RequestFactory().post(
        "/orders", body, content_type="text/plain", headers={"Idempotency-Key": key}, **environ
    )


WRONG: dict[str, tuple[Any, str]] = {
    "no setting": ((), "the settings need ONCEMORE_IDEMPOTENCY, a dictionary of options; for example"),
    "no effect": ({"principal": "x.y"}, r"ONCEMORE_IDEMPOTENCY\['principal'\] is 'x.y': No module named 'x'"),
    "missing": ({"effect": "once"}, "missing 1 required keyword-only argument: 'principal'; for example"),
    "unknown": ({**OPTIONS, "path": "/"}, "unexpected keyword argument 'path'; for example"),
    "bad value": ({**OPTIONS, "effect": "maybe"}, "effect is 'maybe'; the choices are"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_settings_are_refused(case: str) -> None:
    options, message = WRONG[case]
    with pytest.raises(oncemore.UsageError, match=message):
        guard(lambda request: None, options)


def test_without_django_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "django.conf", None)
    with pytest.raises(oncemore.MissingExtra, match=r"pip install 'oncemore\[django\]'"):
        oncemore.http.DjangoIdempotencyMiddleware(lambda request: None)


def test_a_form_that_an_earlier_middleware_has_read_is_reported(engine: oncemore.Engine) -> None:
    app = guard(lambda request: HttpResponse("done"), engine=engine)
    request = RequestFactory().post("/orders", {"a": "1"}, headers={"Idempotency-Key": "k"})
    assert request.POST["a"] == "1"
    with pytest.raises(oncemore.UsageError, match="an earlier middleware has read the form"):
        app(request)


def test_the_view_can_read_the_form(engine: oncemore.Engine) -> None:
    app = guard(lambda request: HttpResponse(request.POST["a"]), engine=engine)
    for _ in range(2):
        request = RequestFactory().post("/orders", {"a": "1"}, headers={"Idempotency-Key": "k"})
        assert app(request).content == b"1"


def test_the_limits_and_errors_of_djangos_request_body(engine: oncemore.Engine) -> None:
    runs: list[Any] = []
    app = guard(lambda request: runs.append(request), engine=engine)
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=2):
        assert app(make_request()).status_code == 413

    class Broken(BytesIO):
        def read(self, *size: Any) -> bytes:
            raise ConnectionResetError

    assert app(make_request(**{"wsgi.input": Broken()})).status_code == 400
    small = guard(lambda request: runs.append(request), engine=engine, max_request=2)
    # Without a length, as in a chunked request to an async server.
    request = make_request()
    request.META["CONTENT_LENGTH"] = ""
    assert small(request).status_code == 413
    assert runs == []


def test_a_file_is_stored_and_replayed(engine: oncemore.Engine, tmp_path: Path) -> None:
    (tmp_path / "report").write_bytes(b"figures")
    files: list[Any] = []

    def view(request: Any) -> Any:
        files.append((tmp_path / "report").open("rb"))
        return FileResponse(files[-1], content_type="text/csv")

    app = guard(view, engine=engine)
    first, again = app(make_request()), app(make_request())
    assert (b"".join(first), again.content, again["Content-Type"]) == (b"figures", b"figures", "text/csv")
    first.close()
    assert [file.closed for file in files] == [True]


def test_a_large_stream_is_sent_from_a_file_and_not_stored(engine: oncemore.Engine) -> None:
    streams: list[Any] = []

    def view(request: Any) -> Any:
        response = StreamingHttpResponse(b"%07d" % number for number in range(20_000))
        response.set_cookie("session", "secret")
        streams.append(response)
        return response

    app = guard(view, engine=engine)
    app_small = guard(view, engine=engine, max_response=1000, name="small")
    whole = b"".join(app(make_request()))
    large = app_small(make_request())
    assert (b"".join(large), large.cookies["session"].value) == (whole, "secret")
    assert len(whole) == 140_000
    for response in streams:
        response.close()
    assert app(make_request()).content == whole
    assert app_small(make_request()).status_code == 409


def test_a_stream_that_breaks_is_an_error_of_the_application(engine: oncemore.Engine) -> None:
    def parts() -> Iterator[bytes]:
        yield b"one"
        raise RuntimeError("broken")

    app = guard(lambda request: StreamingHttpResponse(parts()), engine=engine)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            app(make_request())


def test_a_stored_response_keeps_exactly_its_fields(engine: oncemore.Engine) -> None:
    answer = oncemore.http.StoredResponse(201, b"found", [("Link", "</1>"), ("Link", "</2>"), ("X", "é")])

    def view(request: Any) -> Any:
        raise RuntimeError("fire")

    app = guard(view, engine=engine, effect="once", reconcile=lambda key, user: oncemore.applied(answer))
    with pytest.raises(RuntimeError, match="fire"):
        app(make_request())
    got = app(make_request())
    assert dict(got.items()) == {"link": "</1>, </2>", "x": "é", "idempotent-replayed": "true"}


def test_an_async_application_and_async_functions(engine: oncemore.Engine) -> None:
    runs: list[Any] = []

    async def view(request: Any) -> Any:
        runs.append(request)
        return StreamingHttpResponse(shop.iterate_async(iter((request.body, b"!"))))

    async def principal(request: Any) -> str | None:
        return request.headers.get("X-User")

    async def ask(**headers: str) -> Any:
        request = AsyncRequestFactory().post(
            "/orders", b"one", content_type="text/plain", headers={"Idempotency-Key": "k1", **headers}
        )
        response = await app(request)
        if not response.streaming:
            return response.content
        content = b"".join([part async for part in response])
        response.close()
        return content

    app = guard(view, engine=engine, principal=principal)
    told = [asyncio.run(ask(**{"X-User": user})) for user in ("anna", "anna", "bert")]
    assert (told, len(runs)) == ([b"one!"] * 3, 2)
    assert asyncio.run(ask()) == b"one!"  # without a principal it passes through
    assert len(runs) == 3


def test_a_server_that_cancels_the_request_does_not_stop_the_work(engine: oncemore.Engine) -> None:
    ended: list[str] = []

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def view(request: Any) -> Any:
            begun.set()
            await go_on.wait()
            ended.append("ended")
            return HttpResponse("done")

        app = guard(view, engine=engine, effect="once")
        request = AsyncRequestFactory().post("/orders", headers={"Idempotency-Key": "k1"})
        task = asyncio.create_task(app(request))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        async with asyncio.timeout(20):
            while (got := await app(request)).status_code == 409:  # noqa: ASYNC110 - the response tells
                await asyncio.sleep(0.001)
        assert (got.content, ended) == (b"done", ["ended"])

    asyncio.run(main())
