"""Signed webhooks (Standard Webhooks 1.0), and the signature or bearer token that an endpoint demands."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import oncemore
from oncemore.config import load_settings
from oncemore.inbox import endpoint
from oncemore.messaging.signature import SecretSource, decode_key, find_signature_fault, sign_message
from oncemore.outbox import OutboxRelay, WebhookSink
from tests.fixtures import _isolated, clock
from tests.issues.hostile_messages import make_step
from tests.steps.test_secrets import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.testing import FakeClock

__all__ = ["_isolated", "clock"]

#: The published test vector of the Standard Webhooks libraries; computed again with openssl.
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
IDENT, TIMESTAMP, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OTHER_KEY = "whsec_" + base64.b64encode(b"another key of 32 bytes, as told").decode()
TOKEN = "kanarie-token-0123456789"
GOOD = b'{"name": "A-1"}'


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[oncemore.Engine]:
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", KEY)
    monkeypatch.setenv("OTHER_KEY", OTHER_KEY)
    monkeypatch.setenv("INBOX_TOKEN", TOKEN)


def decode(key: str) -> bytes:
    return base64.b64decode(key.removeprefix("whsec_"))


def test_the_published_test_vector_is_computed_and_accepted() -> None:
    fields = sign_message([decode(KEY)], IDENT, TIMESTAMP, BODY)
    assert fields == {
        "webhook-id": IDENT, "webhook-timestamp": str(TIMESTAMP), "webhook-signature": SIGNED,
    }  # fmt: skip
    assert find_signature_fault([decode(KEY)], *fields.values(), BODY, TIMESTAMP + 300.0) == ""


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"message_id": ""}, "are required"),
        ({"timestamp": ""}, "are required"),
        ({"signatures": ""}, "are required"),
        ({"message_id": "msg_other"}, "no signature matches"),
        ({"message_id": f"{IDENT}.1"}, "has a dot"),
        ({"body": BODY + b" "}, "no signature matches"),
        ({"timestamp": str(TIMESTAMP + 1)}, "no signature matches"),
        ({"timestamp": "hello"}, "not a number"),
        ({"timestamp": f"-{TIMESTAMP}"}, "not a number"),
        ({"timestamp": "١٦١٤٢٦٥٣٣٠"}, "not a number"),
        ({"timestamp": "9" * 5000}, "not a number"),
        ({"now": TIMESTAMP + 301.0}, "more than 300 seconds"),
        ({"now": TIMESTAMP - 301.0}, "more than 300 seconds"),
        ({"signatures": "v1,"}, "no signature matches"),
        ({"signatures": SIGNED[:8]}, "no signature matches"),
        ({"signatures": SIGNED.replace("v1,", "v2,")}, "no signature matches"),
        ({"signatures": "v1,ü"}, "no signature matches"),
        ({"keys": [decode(OTHER_KEY)]}, "no signature matches"),
        ({"signatures": " ".join(["v1,AAAA"] * 20 + [SIGNED])}, "no signature matches"),
        ({"signatures": f"v1,AAAA v2,x {SIGNED} v1,BBBB"}, ""),
        ({"keys": [decode(OTHER_KEY), decode(KEY)]}, ""),
    ],
)
def test_a_message_that_was_changed_or_is_old_is_refused(changed: dict[str, Any], fault: str) -> None:
    asked: dict[str, Any] = {
        "keys": [decode(KEY)], "message_id": IDENT, "timestamp": str(TIMESTAMP), "signatures": SIGNED,
        "body": BODY, "now": float(TIMESTAMP),
    }  # fmt: skip
    found = find_signature_fault(**{**asked, **changed})
    assert fault in found
    assert bool(fault) is bool(found)


# An endpoint ----------------------------------------------------------------------------------------


def post(app: Any, body: bytes = GOOD, headers: Any = ()) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://inbox") as client:
            return await client.post("/", content=body, headers=headers)

    return asyncio.run(send())


def signed(ident: str, body: bytes = GOOD, key: str = KEY, age_s: float = 0.0) -> dict[str, str]:
    """Return the fields of a signed message, computed apart from the product."""
    at = str(int(time.time() - age_s))
    digest = hmac.new(decode(key), f"{ident}.{at}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": ident, "webhook-timestamp": at, "webhook-signature": signature}


def test_an_endpoint_can_demand_a_signature(engine: oncemore.Engine, tmp_path: Path) -> None:
    booked: list[str] = []
    app = endpoint(make_step(booked), engine=engine, signing_key=["env:OTHER_KEY", "env:HOOK_KEY"])
    fields = signed("m1")
    for refused in (
        {}, {"idempotency-key": '"m1"'}, {**fields, "webhook-id": "m2"},
        signed("m1", key="whsec_" + "A" * 32), signed("m1", age_s=400), signed("m1", age_s=-400),
        signed("m1", b"other"), [*fields.items(), ("webhook-id", "m1")],
    ):  # fmt: skip
        answer = post(app, headers=refused)
        assert (answer.status_code, answer.headers["content-type"]) == (401, "application/problem+json")
        assert "www-authenticate" in answer.headers
    assert booked == []
    assert [post(app, headers=fields).status_code for _ in range(2)] == [200, 200]
    assert post(app, headers=signed("m1", key=OTHER_KEY)).status_code == 200
    assert booked == ["A-1"]
    # The id is the one that is signed: another key of another field does not make it another message.
    replay = {**fields, "idempotency-key": '"another"', "oncemore-id": "another"}
    assert post(app, headers=replay).status_code == 200
    assert booked == ["A-1"]
    assert post(app, b'{"name": "A-2"}', signed("m1", b'{"name": "A-2"}')).status_code == 422


def test_an_endpoint_can_demand_a_bearer_token_and_asks_for_it_before_it_reads(
    engine: oncemore.Engine, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\nthe-token-that-comes-next\n")
    app = endpoint(make_step([]), engine=engine, bearer_token="file:tokens", max_request=100)
    key = {"idempotency-key": '"m1"'}
    for value in ("", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü"):
        answer = post(app, headers={**key, "authorization": value.encode("latin-1")})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="inbox"')
    twice = [("authorization", f"Bearer {TOKEN}")] * 2
    assert post(app, headers=[*key.items(), *twice]).status_code == 401
    assert post(app, b"x" * 200).status_code == 401
    for token in (TOKEN, "the-token-that-comes-next"):
        assert post(app, headers={**key, "authorization": f"bearer {token}"}).status_code == 200
    assert TOKEN.encode() not in bytes_of(tmp_path / ".").replace((tmp_path / "tokens").read_bytes(), b"")


def test_with_both_a_request_needs_both(engine: oncemore.Engine) -> None:
    app = endpoint(make_step([]), engine=engine, signing_key="env:HOOK_KEY", bearer_token="env:INBOX_TOKEN")
    token = {"authorization": f"Bearer {TOKEN}"}
    assert [post(app, headers=each).status_code for each in (token, signed("m1"))] == [401, 401]
    assert post(app, headers={**token, **signed("m1")}).status_code == 200


def test_a_key_that_goes_away_closes_the_endpoint_and_a_new_one_opens_it(
    engine: oncemore.Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    app = endpoint(make_step([]), engine=engine, signing_key=f"file:{file}")
    file.unlink()
    answer = post(app, headers=signed("m1"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "key cannot be read (FileNotFoundError)" in caplog.text
    file.write_text(OTHER_KEY)
    assert post(app, headers=signed("m1", key=OTHER_KEY)).status_code == 200


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (KEY, "takes env:NAME or file:PATH"),
        ("", "takes env:NAME or file:PATH"),
        ("env:", "takes env:NAME or file:PATH"),
        ([], "takes env:NAME or file:PATH"),
        (["env:HOOK_KEY", KEY], "takes env:NAME or file:PATH"),
        ("env:NOT_THERE", "the environment variable NOT_THERE is not set"),
        ("env:SHORT", "env:SHORT cannot be used: it has 3 bytes; a key has 24 to 64"),
        ("env:NOT_BASE64", "env:NOT_BASE64 cannot be used: it is not Base64"),
        ("env:MANY", "has 11 secrets; it takes 1 to 10"),
        ("file:not-there", "not-there cannot be read (FileNotFoundError)"),
        ("file:empty", "empty is empty"),
        ("file:binary", "binary cannot be read (UnicodeDecodeError)"),
        ("file:open", "mode 0666) is writable by every user"),
        (oncemore.Secret("whsec_AAAA"), "a Secret cannot be used: it has 3 bytes"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_and_not_shown(
    told: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "whsec_AAAA")
    monkeypatch.setenv("NOT_BASE64", KEY + "!")
    monkeypatch.setenv("MANY", " ".join([KEY] * 11))
    for name, content in (("empty", b"\n"), ("binary", b"\xff"), ("open", KEY.encode())):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "open").chmod(0o666)
    with pytest.raises(oncemore.UsageError) as refused:
        endpoint(make_step([]), signing_key=told)
    assert says in str(refused.value)
    assert KEY[6:] not in str(refused.value)


def test_a_short_token_is_refused_and_a_secret_may_be_given_in_code(engine: oncemore.Engine) -> None:
    with pytest.raises(oncemore.UsageError, match="it has 5 characters; a token has 16 or more"):
        endpoint(make_step([]), bearer_token=oncemore.Secret("short"))
    source = SecretSource("signing_key", [oncemore.Secret(KEY), "env:HOOK_KEY"], decode_key)
    assert repr(source) == "<signing_key from a Secret, env:HOOK_KEY>"
    app = endpoint(make_step([]), engine=engine, signing_key=oncemore.Secret(KEY))
    assert post(app, headers=signed("m1")).status_code == 200


# Deliveries -----------------------------------------------------------------------------------------


def emit_event() -> None:
    oncemore.current().emit("orders.new", {"name": "A-1"})


@pytest.mark.parametrize("form", ["message", "cloudevents", "cloudevents-binary"])
def test_each_attempt_of_a_delivery_is_signed_and_a_signed_endpoint_takes_it_once(
    form: str, engine: oncemore.Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.messaging.inbox.test_endpoint import served

    caplog.set_level(logging.DEBUG)
    booked: list[str] = []
    with served(endpoint(make_step(booked), engine=engine, signing_key="env:HOOK_KEY")) as url:
        sink = WebhookSink(url, form=form, signing_key=["env:OTHER_KEY", "env:HOOK_KEY"])
        assert KEY[6:] not in repr(sink)
        oncemore.step(effect="outbox", name="issues.emit")(emit_event)()
        tally = OutboxRelay(engine, {"orders.*": sink}).run_once()
    assert (tally.delivered, booked) == (1, ["A-1"])
    shown = bytes_of(tmp_path).decode(errors="replace") + caplog.text
    assert "orders.new" in shown
    assert KEY[6:] not in shown
    assert OTHER_KEY[6:] not in shown


def test_a_new_attempt_has_a_new_timestamp_under_the_same_id(
    engine: oncemore.Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = WebhookSink("http://127.0.0.1:1/", signing_key="env:HOOK_KEY")
    first = sink._sign_attempt("abc", BODY)
    clock.advance(60)
    second = sink._sign_attempt("abc", BODY)
    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) == 60
    assert first["webhook-id"] == second["webhook-id"] == "abc"
    assert first["webhook-signature"] != second["webhook-signature"]


def test_without_its_key_a_delivery_waits_and_is_not_sent_unsigned(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = WebhookSink("http://127.0.0.1:1/", signing_key="env:LATER_KEY")
    oncemore.step(effect="outbox", name="issues.emit")(emit_event)()
    relay = OutboxRelay(engine, {"*": sink})
    tally = relay.run_once()
    assert (tally.failed, tally.dead) == (1, 0)
    with pytest.raises(oncemore.UsageError, match="header 'Webhook-Id' is set by the webhook itself"):
        WebhookSink("http://host/", signing_key="env:HOOK_KEY", headers={"Webhook-Id": "x"})


def test_notices_can_be_signed_and_settings_name_the_key_by_its_place(tmp_path: Path) -> None:
    hook = '{webhook = "https://host/x", signing_key = '
    for told, kept in (
        ('"env:HOOK_KEY"', ["env:HOOK_KEY"]),
        ('["env:HOOK_KEY", "file:keys/old"]', ["env:HOOK_KEY", f"file:{tmp_path}/keys/old"]),
    ):
        (tmp_path / "oncemore.toml").write_text(f"notify = [{hook}{told}}}]\n")
        (found,) = json.loads(load_settings().notify)
        assert found["signing_key"] == kept
    (tmp_path / "oncemore.toml").write_text(f'notify = [{hook}"{KEY}"}}]\n')
    with pytest.raises(oncemore.UsageError, match="signing_key takes env:NAME") as refused:
        load_settings()
    assert KEY[6:] not in str(refused.value)
