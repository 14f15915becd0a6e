"""A message that cannot be read becomes a dead letter at its first delivery, and blocks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import oncemore
from oncemore._redact import masked_message
from oncemore.inbox import Inbox, InboxStats, endpoint, sqs
from oncemore.messaging.inbox_flow import InboxMessage
from tests.fixtures import _isolated
from tests.issues.hostile_messages import BODIES, GOOD, ExitingText, make_step
from tests.messaging.inbox.fake_queue import Queue, drain

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["_isolated"]


@pytest.fixture
def engine() -> Iterator[oncemore.Engine]:
    with oncemore.open("memory:") as engine:
        yield engine


def test_a_message_that_cannot_be_read_is_a_dead_letter_at_once(engine: oncemore.Engine) -> None:
    booked: list[str] = []
    bodies = {**BODIES, "good": GOOD}
    queue = Queue(*(InboxMessage(f"x-{what}", "memory", body) for what, body in bodies.items()))
    queue.lanes = True  # all are in one lane: each waits for the one before
    inbox = drain(queue, make_step(booked))
    assert sorted(queue.told) == sorted(
        [*(("term", f"x-{what}", "unreadable") for what in BODIES), ("ack", "x-good")]
    )
    assert (booked, inbox.stats) == (["A-1"], InboxStats(done=1, dead=len(BODIES)))
    errors = {dead.event_id: dead.error for dead in inbox.dead_letters()}
    assert len(errors) == len(BODIES)
    assert {error["code"] for error in errors.values()} == {"UNREADABLE"}
    texts = [error["message"] for error in errors.values()]
    assert texts.count("the JSON of the message is nested too deeply") == 3
    assert "argument 'order' does not fit: Unprintable: (the message cannot be read: RuntimeError)" in texts


@pytest.mark.parametrize("option", ["key", "arguments", "tenant"])
@pytest.mark.parametrize("error", [KeyError("k"), SystemExit(2), MemoryError()])
def test_a_function_of_the_user_that_fails_on_a_message_makes_it_a_dead_letter(
    option: str, error: BaseException, engine: oncemore.Engine
) -> None:
    def fail(*_content: Any, **_arguments: Any) -> Any:
        raise error

    told = {"tenant": fail} if option == "tenant" else {}
    step = oncemore.step(effect="idempotent", name="issues.failing", **told)(lambda name: None)
    queue = Queue(InboxMessage("x1", "memory", GOOD))
    inbox = drain(queue, step, **({} if told else {option: fail}))
    assert queue.told == [("term", "x1", "unreadable")]
    assert len(inbox.dead_letters()) == 1


@pytest.mark.parametrize("body", [GOOD, b"{"])
def test_ids_and_headers_that_are_not_unicode_text_are_kept_escaped(
    body: bytes, engine: oncemore.Engine
) -> None:
    headers = {"x-\udcff": "a\ud800", "correlation-id": "c\udcff"}
    queue = Queue(InboxMessage("x1\ud800", "mem\udcffory", body, headers))
    inbox = drain(queue, make_step([]))
    assert [told[0] for told in queue.told] == (["ack"] if body == GOOD else ["term"])
    written = b"".join(entry.body for entry in engine.store.read_entries())
    for text in (b"x1\\\\ud800", b"x-\\\\udcff", b"mem\\\\udcffory"):
        assert (text in written) is (body != GOOD)
    assert len(inbox.dead_letters()) == (body != GOOD)


def test_a_correlation_id_with_control_characters_is_not_used(engine: oncemore.Engine) -> None:
    seen: list[str] = []

    @oncemore.step(effect="idempotent", name="issues.correlation")
    def read_correlation(order: Any) -> None:
        seen.append(oncemore.current().correlation_id)

    for number, told in enumerate(("a\x00b", "a\r\nb", "plain")):
        drain(
            Queue(InboxMessage(str(number), "memory", b'{"order": 1}', {"correlation-id": told})),
            read_correlation,
        )
    assert "plain" in seen
    assert not any("\x00" in one or "\n" in one for one in seen)


def test_an_interrupt_of_the_keyboard_still_ends_the_inbox(engine: oncemore.Engine) -> None:
    def interrupt(_content: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain(Queue(InboxMessage("x1", "memory", GOOD)), make_step([]), key=interrupt)


def _key_of(ident: str) -> dict[str, str]:
    return {"idempotency-key": f'"{ident}"'} if ident else {}


def post_all(
    app: Any,
    requests: list[tuple[str, bytes]],
    path: str = "/",
    headers: dict[str, str] | None = None,
) -> list[httpx.Response]:
    """Post messages, each as (id, body), an empty id for none, to an application in this process."""

    async def post() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://inbox") as client:
            return [
                await client.post(path, content=body, headers={**(headers or {}), **_key_of(ident)})
                for ident, body in requests
            ]

    return asyncio.run(post())


@pytest.mark.parametrize("mode", ["run", "submit"])
def test_over_http_each_of_them_is_a_problem_document_of_the_client(
    mode: str, engine: oncemore.Engine
) -> None:
    app = endpoint(make_step([]), engine=engine, mode=mode)
    answers = post_all(app, [*BODIES.items(), ("good", GOOD)])
    assert answers.pop().status_code == (200 if mode == "run" else 202)
    for what, answer in zip(BODIES, answers, strict=True):
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), what
        assert answer.json()["type"] == "urn:oncemore:idempotency:unreadable"
        assert answer.json()["detail"] or "exit" in what


def test_over_http_a_request_whose_sender_cannot_be_determined_is_refused(engine: oncemore.Engine) -> None:
    def find_sender(scope: Any) -> Any:
        return {"/number": 7}[scope["path"]]

    app = endpoint(make_step([]), engine=engine, source=find_sender)
    for path in ("/number", "/unknown"):
        (answer,) = post_all(app, [("m1", GOOD)], path)
        assert (answer.status_code, answer.json()["title"]) == (400, "The sender cannot be determined")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("sqs", region_name="eu-central-1")


def test_from_sqs_one_group_goes_on_after_each_of_them(engine: oncemore.Engine, client: Any) -> None:
    attributes = {"FifoQueue": "true", "VisibilityTimeout": "30"}
    queue = client.create_queue(QueueName="orders.fifo", Attributes=attributes)["QueueUrl"]
    texts = {}
    for what, body in BODIES.items():
        with contextlib.suppress(UnicodeDecodeError):
            texts[what] = body.decode() or " "
    for what, text in {**texts, "good": GOOD.decode()}.items():
        client.send_message(QueueUrl=queue, MessageBody=text, MessageGroupId="g", MessageDeduplicationId=what)
    booked: list[str] = []
    inbox = sqs(make_step(booked), queue, client=client, poll=0, engine=engine)
    inbox.drain()
    assert (booked, inbox.stats) == (["A-1"], InboxStats(done=1, dead=len(texts)))
    answer = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
    assert "Messages" not in answer


def test_from_sqs_a_body_that_is_not_unicode_text_is_a_dead_letter(engine: oncemore.Engine) -> None:
    class Client:
        """A queue of another make, whose JSON holds half a surrogate pair."""

        def __init__(self) -> None:
            self.messages = json.loads('[{"MessageId": "m", "ReceiptHandle": "r", "Body": "\\ud800"}]')
            self.deleted: list[str] = []

        def receive_message(self, **_asked: Any) -> dict[str, Any]:
            found, self.messages = self.messages, []
            return {"Messages": found}

        def delete_message(self, **asked: Any) -> None:
            self.deleted.append(asked["ReceiptHandle"])

    client = Client()
    inbox: Inbox = sqs(make_step([]), "https://sqs.example/1/orders", client=client, poll=0, engine=engine)
    inbox.drain()
    assert (inbox.stats, client.deleted) == (InboxStats(dead=1), ["r"])


def test_the_text_of_an_error_is_read_whatever_its_class_raises() -> None:
    class Interrupting(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    assert masked_message(ExitingText()) == "(the message cannot be read: SystemExit)"
    with pytest.raises(KeyboardInterrupt):
        masked_message(Interrupting())
