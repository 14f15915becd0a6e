"""Secrets in addresses, options and header fields: none is in an error, a log record or the store's bytes."""

from __future__ import annotations

import io
import logging
import traceback
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore._redact import describe_value, hide_credentials, mask_headers, mask_text, show_controls
from oncemore.cli.output import OutputWriter
from oncemore.inbox import endpoint, inbox_from_url, sqs
from oncemore.messaging.inbox_flow import InboxMessage
from oncemore.outbox import CommandSink, JetStreamSink, OutboxRelay, SqsSink, WebhookSink
from tests.fixtures import _isolated
from tests.issues.hostile_messages import make_step
from tests.issues.test_unreadable_messages import post_all
from tests.messaging.inbox.fake_queue import Queue, drain
from tests.steps.test_secrets import bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["_isolated"]

CANARY = "kanarie777vogel"


def show_all(call: Callable[[], Any]) -> str:
    """Return everything that a call shows: its value, or its error with all causes."""
    try:
        value = call()
    except Exception as error:
        return f"{error!r} {error} " + "".join(traceback.format_exception(error, limit=0))
    return f"{value!r} {value} {getattr(value, 'url', '')}"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"postgresql://ada@host/db?password=a@{CANARY}", "postgresql://ada@host/db?password=***"),
        (f"postgresql://host/db?password=a@{CANARY}", "postgresql://host/db?password=***"),
        (f"postgresql://host:5432/db?a=b&password={CANARY}@b", "postgresql://host:5432/db?a=b&password=***"),
        (f"postgresql://ada:{CANARY}@host/db", "postgresql://ada@host/db"),
        (f"postgresql://ada:a@{CANARY}@host/db?schema=x", "postgresql://ada@host/db?schema=x"),
        (f"postgresql://ada:a/{CANARY}?x@host/db", "postgresql://ada@host/db"),
        (f"postgresql://h1:5432,h2:5433/db?pass%77ord={CANARY}", "postgresql://h1:5432,h2:5433/db?pass%77ord=***"),
        (f"postgresql://host/db?sslpassword={CANARY}&sslmode=require", "postgresql://host/db?sslpassword=***&sslmode=require"),
        (f"postgresql://:{CANARY}@host/db", "postgresql://***@host/db"),
        ("postgresql://host:5432/db?host=/run/a@b", "postgresql://host:5432/db?host=/run/a@b"),
    ],
)  # fmt: skip
def test_the_address_of_a_store_is_shown_without_its_password(address: str, shown: str) -> None:
    assert oncemore.open(address).url == shown
    assert CANARY not in show_all(lambda: oncemore.open(address))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"nats://{CANARY}@host/bucket", "nats://***@host/bucket"),
        (f"s3://KEY:{CANARY}@bucket/prefix", "s3://***@bucket/prefix"),
        (f"az://bucket?sas_token={CANARY}&x=1", "az://bucket?sas_token=***&x=1"),
        (f"https://host/x?sig={CANARY}&se=2026", "https://host/x?sig=***&se=2026"),
        (f"https://host/x?X-Amz-Credential={CANARY}", "https://host/x?X-Amz-Credential=***"),
        ("https://host:8080/x?page=2", "https://host:8080/x?page=2"),
    ],
)
def test_an_address_is_shown_without_credentials(address: str, shown: str) -> None:
    assert hide_credentials(address) == shown


REFUSED: dict[str, Callable[[], Any]] = {
    "control of another scheme": lambda: oncemore.open("a.db", control=f"redis://ada:{CANARY}@host/x"),
    "control without a bucket": lambda: oncemore.open("a.db", control=f"nats://ada:{CANARY}@host"),
    "control with a bad port": lambda: oncemore.open("a.db", control=f"nats://ada:{CANARY}@host:x/bucket"),
    "control of another type": lambda: oncemore.open("a.db", control=[f"nats://ada:{CANARY}@host/x"]),
    "notify of another scheme": lambda: oncemore.open("a.db", notify=f"smtp://ada:{CANARY}@host/x"),
    "notify of another type": lambda: oncemore.open("a.db", notify={"x": [f"https://ada:{CANARY}@host/x"]}),
    "notify without a list": lambda: oncemore.open("a.db", notify=7.5),
    "notify with a password": lambda: oncemore.open("a.db", notify=f"https://ada:{CANARY}@host/x"),
    "notify with a bad header": lambda: oncemore.open(
        "a.db", notify=[{"webhook": "https://host/", "headers": {"X-Api-Key": f"{CANARY}\r\nX: y"}}]
    ),
    "notify with an unknown option": lambda: oncemore.open(
        "a.db", notify=[{"webhook": f"https://host/{CANARY}", "password": CANARY}]
    ),
    "notify of two kinds": lambda: oncemore.open("a.db", notify=[{"webhook": CANARY, "file": CANARY}]),
    "a command in one text": lambda: CommandSink(f"notify --password {CANARY}"),
    "a command with a number": lambda: CommandSink(["notify", "--password", CANARY, 7]),  # type: ignore[list-item]
    "a command's repr": lambda: CommandSink(["notify", "--password", CANARY]),
    "a webhook's repr": lambda: WebhookSink(
        f"https://host/{CANARY}?token={CANARY}", headers={"Cookie": CANARY}
    ),
    "a queue's repr": lambda: SqsSink(f"https://ada:{CANARY}@sqs.example/1/queue"),
    "a stream's repr": lambda: JetStreamSink(f"nats://ada:{CANARY}@host"),
    "a stream's bad address": lambda: JetStreamSink(f"nats://ada:{CANARY}@host:x"),
    "a sink of a relay": lambda: OutboxRelay(oncemore.open("memory:"), {"*": f"smtp://ada:{CANARY}@host"}),
    "artifacts in a store that is none": lambda: (
        oncemore.open(
            "a.db", artifacts=f"swift://ada:{CANARY}@bucket/x?secret={CANARY}"
        ).artifact_store.backend.client
    ),
    "artifacts in a bucket": lambda: (
        oncemore.open("a.db", artifacts=f"s3://KEY:{CANARY}@bucket/x").artifact_store.backend
    ),
    "artifacts of another type": lambda: oncemore.open("a.db", artifacts=[f"s3://KEY:{CANARY}@b"]),  # type: ignore[arg-type]
    "a store of another scheme": lambda: oncemore.open(f"oracle://ada:{CANARY}@host/db"),
    "a store of another type": lambda: oncemore.open([f"postgresql://ada:{CANARY}@host/db"]),  # type: ignore[arg-type]
    "a store in NATS": lambda: oncemore.open(f"nats://ada:{CANARY}@host/Bad-Name"),
    "a store in NATS with a token": lambda: oncemore.open(f"nats://{CANARY}@host/ns"),
    "an inbox of another scheme": lambda: inbox_from_url(make_step([]), f"kafka://ada:{CANARY}@host/x"),
    "an inbox with a bad port": lambda: inbox_from_url(make_step([]), f"nats://ada:{CANARY}@host:x/S/c"),
    "an inbox without a queue": lambda: sqs(make_step([]), f"https://ada:{CANARY}@sqs.example"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_no_refusal_and_no_repr_shows_a_secret(what: str) -> None:
    assert CANARY not in show_all(REFUSED[what])


@pytest.mark.parametrize(
    "text",
    [
        'store = ["postgresql://ada:{0}@host/db"]', 'control = "redis://ada:{0}@host/x"',
        'notify = "smtp://ada:{0}@host/x"', 'notify = [{{command = "notify --password {0}"}}]',
        'notify = [{{webhook = "https://ada:{0}@host/"}}]', 'artifacts = 7\nstore = "oracle://ada:{0}@host/db"',
    ],
)  # fmt: skip
def test_no_settings_file_is_quoted_with_its_secrets(text: str, tmp_path: Path) -> None:
    (tmp_path / "oncemore.toml").write_text(text.format(CANARY))
    shown = show_all(lambda: oncemore.step(effect="pure", name="issues.settings")(lambda: 1)())
    assert "Error" in shown
    assert CANARY not in shown


def test_a_failed_delivery_keeps_no_secret_of_its_sink(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    step = oncemore.step(effect="outbox", name="issues.emit")(lambda: oncemore.current().emit("t", {"x": 1}))
    routes = {
        "t": WebhookSink(f"http://127.0.0.1:1/{CANARY}?token={CANARY}", headers={"X-Api-Key": CANARY}),
    }
    with oncemore.open(tmp_path / "log.db") as engine:
        step()
        assert OutboxRelay(engine, routes).run_once().failed == 1
        shown = bytes_of(tmp_path).decode(errors="replace") + caplog.text
    assert "issues.emit" in shown
    assert CANARY not in shown


FIELDS = {
    "authorization": f"Bearer {CANARY}",
    "proxy-authorization": CANARY,
    "cookie": f"sid={CANARY}",
    "set-cookie": CANARY,
    "x-api-key": CANARY,
    "apikey": CANARY,
    "x-auth-token": CANARY,
    "x-amz-security-token": CANARY,
    "x-csrf-token": CANARY,
    "x-functions-key": CANARY,
    "webhook-signature": f"v1,{CANARY}",
    "x-session": CANARY,
    "x-xsrf": CANARY,
    "code": CANARY,
    "ocp-apim-subscription-key": CANARY,
    "x-note": f"password={CANARY}",
    "x-forwarded-uri": f"/x?access_token={CANARY}",
}


@pytest.mark.parametrize("way", ["queue", "http"])
def test_a_dead_letter_keeps_no_secret_header_field(
    way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    plain = {"content-type": "application/json", "x-plain": "visible", "ce-id": "7", "idempotency-key": "k1"}
    with oncemore.open(tmp_path / "log.db") as engine:
        if way == "queue":
            drain(Queue(InboxMessage("m1", "memory", b"{", {**FIELDS, **plain})), make_step([]))
        else:
            step = oncemore.step(effect="idempotent", name="issues.fails")(fail_for_good)
            app = endpoint(step, engine=engine)
            assert (
                post_all(app, [("m1", b'{"name": "A"}')], headers={**FIELDS, **plain})[0].status_code == 422
            )
        (item,) = engine.quarantine.list()
        shown = (
            bytes_of(tmp_path).decode(errors="replace") + caplog.text + repr(engine.quarantine.show(item.id))
        )
    assert "visible" in shown
    assert '["authorization","***"]' in shown
    assert CANARY not in shown


def fail_for_good(name: str) -> None:
    raise oncemore.PermanentError("no")


def test_header_fields_that_a_message_is_read_by_stay_as_they_are() -> None:
    fields = {
        "content-type": "application/cloudevents+json", "ce-id": "token=7", "ce-source": "/a?key=b",
        "oncemore-id": "x", "correlation-id": "code=1", "nats-msg-id": "password=1", "idempotency-key": '"k"',
        "x-author": "somebody", "x-status-code": "500", "x-remaining-tokens": "7", "x-tokyo": "a",
    }  # fmt: skip
    assert mask_headers(fields) == fields


STEERING = [
    *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029\u200b\ufeff\u00ad",
    *"\x1b\x07\x9b\r\x7f\U000e0041\ud800",
]


@pytest.mark.parametrize("sign", STEERING, ids=ascii)
def test_no_character_that_steers_a_terminal_passes(sign: str) -> None:
    out = io.StringIO()
    OutputWriter(out).write_line(f"a{sign}b")
    assert sign not in out.getvalue()
    assert "\\" in out.getvalue()
    assert sign not in mask_text(f"a{sign}b")
    assert show_controls("plain text, äöü, 漢字") == "plain text, äöü, 漢字"


def test_values_of_options_are_shown_short_and_without_secrets() -> None:
    assert describe_value("x" * 200) == repr("x" * 79 + "…")
    assert describe_value({"password": CANARY, "n": 1}) == "{'password': '***', 'n': 1}"
    assert describe_value(f"host=db password={CANARY}") == "'host=db password=***'"
