"""Errors of nats-py, against a real nats-server, with and without JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import nats.js.api
import nats.js.errors
import pytest

from oncemore.classifiers.classify import classify
from tests.servers import faults
from tests.servers import nats as servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


async def caught(act: Awaitable[object]) -> BaseException:
    try:
        await act
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


async def quiet(_error: Exception) -> None:
    """Ignore nats-py's fault callback; the tests check the raised exceptions."""


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    client = await nats.connect(url, error_cb=quiet, connect_timeout=2)
    try:
        yield client
    finally:
        await client.close()


def meaning(url: str, act: Callable[[Any], Awaitable[object]]) -> tuple[str, str, str]:
    """Connect, act, and return the raised exception."""

    async def main() -> BaseException:
        async with connected(url) as client:
            return await caught(act(client))

    return facts(asyncio.run(main()))


def test_a_request_without_responders_was_not_sent(nats_url: str) -> None:
    found = meaning(nats_url, lambda client: client.request("nobody", b"x", timeout=1))
    assert found == ("transient", "no", "NATS_NO_RESPONDERS")


def test_an_unanswered_request_may_have_been_sent(nats_url: str) -> None:
    async def silence(client: Any) -> None:
        await client.subscribe("silent")
        await client.request("silent", b"x", timeout=0.1)

    assert meaning(nats_url, silence) == ("transient", "maybe", "TIMEOUT_READ")


def test_a_server_without_jetstream_has_no_responders(nats_url: str) -> None:
    passing = ("transient", "no", "NATS_NO_RESPONDERS")
    assert meaning(nats_url, lambda client: client.jetstream().publish("a", b"x")) == passing
    assert meaning(nats_url, lambda client: client.jetstream().stream_info("S")) == passing


def test_a_message_that_the_client_refuses_is_permanent(nats_url: str) -> None:
    big = b"x" * 2_000_000
    found = meaning(nats_url, lambda client: client.publish("a", big))
    assert found == ("permanent", "no", "NATS_MAX_PAYLOAD")
    found = meaning(nats_url, lambda client: client.publish("a b", b""))
    assert found == ("permanent", "no", "EXC_BadSubjectError")


def test_a_closed_connection_may_be_opened_again(nats_url: str) -> None:
    async def closed(client: Any) -> None:
        await client.close()
        await client.publish("a", b"x")

    assert meaning(nats_url, closed) == ("transient", "maybe", "CONNECTION_CLOSED")


def connecting(url: str) -> tuple[str, str, str]:
    async def main() -> BaseException:
        client = nats.NATS()
        try:
            return await caught(
                client.connect(
                    url, error_cb=quiet, connect_timeout=0.2, allow_reconnect=False,
                    max_reconnect_attempts=1, reconnect_time_wait=0.01,
                )
            )  # fmt: skip
        finally:
            await client.close()  # one that could not be connected still holds its socket

    return facts(asyncio.run(main()))


def test_nothing_is_sent_where_no_connection_could_be_made() -> None:
    with faults.refusing() as server:
        assert connecting(f"nats://{faults.HOST}:{server.port}") == ("transient", "no", "CONNECTION_FAILED")
    assert connecting("nats://nohost.invalid:4222") == ("transient", "no", "CONNECTION_FAILED")
    with faults.serve(lambda _conn, _server: None) as server:
        assert connecting(f"nats://{faults.HOST}:{server.port}") == ("transient", "no", "CONNECTION_CLOSED")


def test_a_server_that_wants_a_password_is_permanent() -> None:
    with servers.running(jetstream=False, config="authorization { user: role, password: secret }") as (
        url,
        _,
    ):
        assert connecting(url) == ("permanent", "no", "NATS_AUTHORIZATION")


def test_an_account_without_jetstream_is_permanent() -> None:
    config = "accounts { A { users: [{user: role, password: secret}] } }"
    with servers.running(jetstream=True, config=config) as (url, _):
        url = url.replace("nats://", "nats://role:secret@")
        found = meaning(url, lambda client: client.jetstream().stream_info("S"))
    assert found == ("permanent", "no", "NATS_10039")


CONFLICT = ("conflict", "no", "NATS_WRONG_LAST_SEQUENCE")


def test_a_stale_revision_is_a_conflict_in_all_its_shapes(jetstream_url: str) -> None:
    async def main() -> list[BaseException]:
        async with connected(jetstream_url) as client:
            js = client.jetstream()
            bucket = await js.create_key_value(bucket="revisions")
            await bucket.put("key", b"1")
            await js.add_stream(name="EXPECT", subjects=["expect.>"])
            stale = {"Nats-Expected-Last-Subject-Sequence": "7"}
            return [
                await caught(bucket.create("key", b"2")),
                await caught(bucket.update("key", b"2", last=9)),
                await caught(bucket.delete("key", last=9)),
                await caught(js.publish("expect.a", b"x", headers=stale)),
            ]

    errors = asyncio.run(main())
    assert {type(error).__name__ for error in errors} == {"KeyWrongLastSequenceError", "BadRequestError"}
    assert [facts(error) for error in errors] == [CONFLICT] * 4


async def missing_key(js: Any) -> None:
    bucket = await js.create_key_value(bucket="keys")
    await bucket.get("nothing")


async def wrong_key(js: Any) -> None:
    bucket = await js.create_key_value(bucket="keys")
    await bucket.put("a b", b"")


async def too_many(js: Any) -> None:
    await js.add_stream(name="FULL", subjects=["full"], max_msgs=1, discard=nats.js.api.DiscardPolicy.NEW)
    await js.publish("full", b"")
    await js.publish("full", b"")


async def too_big(js: Any) -> None:
    await js.add_stream(name="SMALL", subjects=["small"], max_msg_size=1)
    await js.publish("small", b"xxx")


async def nothing_to_fetch(js: Any) -> None:
    await js.add_stream(name="EMPTY", subjects=["empty"])
    consumer = await js.pull_subscribe("empty", durable="d")
    await consumer.fetch(1, timeout=0.1)


ANSWERS: dict[str, tuple[Callable[[Any], Awaitable[object]], tuple[str, str, str]]] = {
    "no stream for the subject": (
        lambda js: js.publish("nowhere", b"x"),
        ("transient", "no", "NATS_NO_RESPONDERS"),
    ),
    "no such stream": (lambda js: js.stream_info("NOWHERE"), ("permanent", "no", "NATS_10059")),
    "no such bucket": (lambda js: js.key_value("nowhere"), ("permanent", "no", "NATS_404")),
    "no such key": (missing_key, ("permanent", "no", "NATS_404")),
    "no such kind of key": (wrong_key, ("permanent", "no", "EXC_InvalidKeyError")),
    "a full stream": (too_many, ("transient", "no", "NATS_10077")),
    "too big a message": (too_big, ("permanent", "no", "NATS_10054")),
    "not enough storage": (
        lambda js: js.add_stream(name="HUGE", subjects=["huge"], max_bytes=10**18),
        ("transient", "maybe", "NATS_10047"),
    ),
    "nothing to fetch": (nothing_to_fetch, ("transient", "maybe", "TIMEOUT_READ")),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_of_jetstream(jetstream_url: str, answer: str) -> None:
    act, wanted = ANSWERS[answer]
    assert meaning(jetstream_url, lambda client: act(client.jetstream(timeout=2))) == wanted


def test_a_publish_that_is_not_acknowledged_may_have_been_stored() -> None:
    with servers.running(jetstream=True) as (url, pid):

        async def main() -> BaseException:
            async with connected(url) as client:
                js = client.jetstream()
                await js.add_stream(name="S", subjects=["s"])
                os.kill(pid, signal.SIGSTOP)
                os.waitpid(pid, os.WUNTRACED)  # noqa: ASYNC222 - a moment, until all its threads stopped
                try:
                    return await caught(js.publish("s", b"x", timeout=0.1))
                finally:
                    os.kill(pid, signal.SIGCONT)

        assert facts(asyncio.run(main())) == ("transient", "maybe", "TIMEOUT_READ")


#: What one small server cannot be made to say.
UNPROVOKED = [
    (nats.js.errors.ServiceUnavailableError(code=503, err_code=10008), ("transient", "no", "NATS_10008")),
    (nats.js.errors.ServerError(code=500, err_code=10020), ("transient", "maybe", "NATS_10020")),
    (nats.js.errors.APIError(code=409, description="Leadership Change"), ("transient", "no", "NATS_409")),
    (nats.js.errors.APIError(code=409, description="Consumer Deleted"), ("permanent", "no", "NATS_409")),
    (nats.js.errors.APIError(code=408), ("transient", "maybe", "NATS_408")),
    (nats.js.errors.APIError(), ("permanent", "maybe", "EXC_APIError")),
    (nats.js.errors.FetchTimeoutError(), ("transient", "no", "NATS_NO_MESSAGES")),
    (nats.errors.OutboundBufferLimitError(), ("transient", "no", "NATS_BUFFER_FULL")),
    (nats.errors.UnexpectedEOF(), ("transient", "maybe", "CONNECTION_CLOSED")),
    (nats.errors.ConnectionReconnectingError(), ("transient", "maybe", "CONNECTION_FAILED")),
    (nats.errors.FlushTimeoutError(), ("transient", "maybe", "TIMEOUT_READ")),
    (nats.errors.SecureConnRequiredError(), ("permanent", "no", "TLS")),
    (nats.errors.Error("nats: 'Permissions Violation'"), ("permanent", "no", "NATS_PERMISSIONS")),
    (
        nats.errors.Error("nats: maximum connections exceeded"),
        ("transient", "no", "NATS_TOO_MANY_CONNECTIONS"),
    ),
    (nats.errors.Error("nats: something else"), ("permanent", "maybe", "EXC_Error")),
]


@pytest.mark.parametrize(("error", "wanted"), UNPROVOKED, ids=lambda value: str(value)[:40])
def test_errors_that_need_a_cluster_or_a_broken_server(error: Exception, wanted: object) -> None:
    assert facts(error) == wanted
