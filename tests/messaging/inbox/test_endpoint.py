"""Messages over HTTP to a real server: responses, and processing once."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import oncemore
from oncemore.inbox import endpoint
from oncemore.outbox import OutboxRelay, WebhookSink
from tests.messaging.inbox.fake_queue import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.testing import FakeClock


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application on a free port."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started and time.monotonic() < until:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def post(url: str, content: Any, ident: str = "", **headers: str) -> httpx.Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if ident:
        fields["Idempotency-Key"] = f'"{ident}"'
    told: dict[str, Any] = {"content": content} if isinstance(content, bytes) else {"json": content}
    return httpx.post(url, headers=fields, timeout=20, trust_env=False, **told)


@pytest.mark.parametrize("colour", ["step", "step_awaited"])
def test_a_message_is_processed_once_and_answered_each_time(engine: oncemore.Engine, colour: str) -> None:
    shop = Shop()
    with served(endpoint(getattr(shop, colour), engine=engine)) as url:
        answers = [post(url, {"order": "A-1"}, "m1", correlation_id="c-1") for _ in range(2)]
        assert [(one.status_code, one.json()) for one in answers] == [
            (200, {"state": "done", "value": "A-1 booked"})
        ] * 2
        other = post(url, {"order": "A-2"}, "m1")
        assert (other.status_code, other.headers["content-type"]) == (422, "application/problem+json")
    assert (shop.booked, shop.correlations) == ([("A-1", 1)], ["c-1"])


def test_errors_are_problem_details(engine: oncemore.Engine, clock: FakeClock) -> None:
    shop = Shop()
    app = endpoint(shop.step, engine=engine, max_request=100)
    with served(app) as url:
        assert httpx.get(url, trust_env=False).status_code == 405
        assert post(url, {"order": "A"}).status_code == 400
        assert post(url, {"order": "A"}, "a", Idempotency_Key="two words").status_code in (400, 200)
        assert post(url, {"order": "A" * 200}, "b").status_code == 413
        unread = post(url, b"{", "c")
        assert (unread.status_code, "not JSON" in unread.json()["detail"]) == (422, True)
        assert post(url, {"amount": 1}, "d").status_code == 422
        assert engine.quarantine.list() == ()  # it is still with its sender
        shop.says = [ConnectionRefusedError()]
        later = post(url, {"order": "A-1"}, "e")
        assert (later.status_code, later.headers["retry-after"]) == (503, "90")
        clock.advance(91)
        assert post(url, {"order": "A-1"}, "e").status_code == 200
        shop.says = [oncemore.PermanentError("no such order")]
        for _ in range(2):
            failed = post(url, {"order": "A-2"}, "f")
            assert (failed.status_code, failed.json()["type"]) == (422, "urn:oncemore:idempotency:failed")
        assert [item.error["message"] for item in engine.quarantine.list()] == ["no such order"]


def test_a_message_can_be_submitted_for_a_worker(engine: oncemore.Engine) -> None:
    shop = Shop()
    with served(endpoint(shop.step, mode="submit", engine=engine)) as url:
        answers = [post(url, {"order": "A-1"}, "m1") for _ in range(2)]
        assert [one.status_code for one in answers] == [202, 202]
        assert len({one.json()["run"] for one in answers}) == 1
        oncemore.Worker(engine, [shop.step]).run_until_idle()
        done = post(url, {"order": "A-1"}, "m1")
        assert (done.status_code, done.json()["value"]) == (200, "A-1 booked")
        shop.says = [oncemore.PermanentError("no")]
        post(url, {"order": "A-2"}, "m2")
        oncemore.Worker(engine, [shop.step]).run_until_idle()
        assert post(url, {"order": "A-2"}, "m2").status_code == 422
    assert shop.booked == [("A-1", 1)]


@oncemore.step(effect="outbox", name="gives")
def give(order: str) -> None:
    oncemore.current().emit("orders.new", {"order": order})


@pytest.mark.parametrize("form", ["message", "cloudevents", "cloudevents-binary"])
def test_an_endpoint_accepts_events_of_a_relay_once_in_every_form(engine: oncemore.Engine, form: str) -> None:
    shop = Shop()
    with oncemore.context(correlation_id="c 1%"), engine:
        give("A-1")
    with served(endpoint(shop.step, engine=engine)) as url:
        hook = WebhookSink(url, form=form, source="/shop")
        got: list[Any] = []
        tally = OutboxRelay(engine, {"*": lambda message: got.append(message) or hook(message)}).run_once()
        assert tally.delivered == 1
        hook(got[0]._replace(attempt=2))
    assert shop.booked == [("A-1", 1)]
    assert shop.correlations == ["c 1%"]


def test_two_senders_may_have_the_same_ids_and_a_key_from_the_content_needs_none(
    engine: oncemore.Engine,
) -> None:
    shop = Shop()
    app = endpoint(shop.step, engine=engine, source=lambda scope: dict(scope["headers"])[b"x-who"].decode())
    with served(app) as url:
        for who in ("a", "b", "a"):
            assert post(url, {"order": "A-1"}, "1", X_Who=who).status_code == 200
    assert len(shop.booked) == 2
    with served(endpoint(shop.step, engine=engine, key=lambda content: content["order"])) as url:
        for _ in range(2):
            assert post(url, {"order": "B-1"}).status_code == 200
        assert post(url, {"odr": "B-1"}).status_code == 422
    assert len(shop.booked) == 3


def test_bad_endpoint_options_are_refused(engine: oncemore.Engine) -> None:
    shop = Shop()
    with pytest.raises(oncemore.UsageError, match="mode is 'later'"):
        endpoint(shop.step, mode="later")
    with pytest.raises(oncemore.UsageError, match="source is 3"):
        endpoint(shop.step, source=3)  # type: ignore[arg-type]
