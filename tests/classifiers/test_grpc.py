"""Errors of a real gRPC server, through grpc and grpc.aio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from oncemore.classifiers.classify import classify
from oncemore.classifiers.retry_after import delay_from_details, delay_from_status
from tests.classifiers.clients import caught
from tests.servers import faults
from tests.servers import grpc as servers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Call = Callable[..., None]


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with servers.running() as found:
        yield found


def blocking(port: int, word: str, patience: float = 5.0, request: bytes = b"", **options: int) -> None:
    limits = tuple((f"grpc.{name}", value) for name, value in options.items())
    with grpc.insecure_channel(f"{faults.HOST}:{port}", options=limits) as channel:
        channel.unary_unary(f"/any/{word}")(request, timeout=patience)


def streaming(port: int, word: str, patience: float = 5.0) -> None:
    with grpc.insecure_channel(f"{faults.HOST}:{port}") as channel:
        list(channel.unary_stream(f"/any/{word}")(b"", timeout=patience))


def awaiting(port: int, word: str, patience: float = 5.0) -> None:
    async def main() -> None:
        async with grpc.aio.insecure_channel(f"{faults.HOST}:{port}") as channel:
            await channel.unary_unary(f"/any/{word}")(b"", timeout=patience)

    asyncio.run(main())


STATUSES = {
    "INVALID_ARGUMENT": ("permanent", "no"),
    "NOT_FOUND": ("permanent", "no"),
    "ALREADY_EXISTS": ("conflict", "no"),
    "PERMISSION_DENIED": ("permanent", "no"),
    "UNAUTHENTICATED": ("permanent", "no"),
    "FAILED_PRECONDITION": ("permanent", "no"),
    "OUT_OF_RANGE": ("permanent", "no"),
    "UNIMPLEMENTED": ("permanent", "no"),
    "DATA_LOSS": ("permanent", "maybe"),
    "CANCELLED": ("permanent", "maybe"),
    "UNAVAILABLE": ("transient", "maybe"),
    "RESOURCE_EXHAUSTED": ("throttled", "no"),
    "ABORTED": ("transient", "no"),
    "DEADLINE_EXCEEDED": ("transient", "maybe"),
    "INTERNAL": ("transient", "maybe"),
    "UNKNOWN": ("transient", "maybe"),
}


def test_every_status_but_the_good_one_has_a_meaning() -> None:
    assert set(STATUSES) == {status.name for status in grpc.StatusCode} - {"OK"}


@pytest.mark.parametrize("call", [blocking, streaming, awaiting])
@pytest.mark.parametrize("status", STATUSES)
def test_the_status_decides(port: int, call: Call, status: str) -> None:
    found = classify(caught(call, port, status), 0.0)
    assert found == (*STATUSES[status], None, f"GRPC_{status}", "grpc:status")


@pytest.mark.parametrize("call", [blocking, streaming, awaiting])
def test_a_status_may_give_the_wait(port: int, call: Call) -> None:
    assert classify(caught(call, port, "info_RESOURCE_EXHAUSTED"), 0.0).retry_after == 3.5
    found = classify(caught(call, port, "info_UNAVAILABLE"), 0.0)
    assert found[:4] == ("throttled", "maybe", 3.5, "GRPC_UNAVAILABLE")
    assert classify(caught(call, port, "info_NOT_FOUND"), 0.0).retry_after is None


def test_a_server_may_push_back_and_may_forbid_a_retry(port: int) -> None:
    found = classify(caught(blocking, port, "pushback1500"), 0.0)
    assert found[:3] == ("throttled", "maybe", 1.5)
    for never in ("pushback-1", "pushbacksoon"):
        assert classify(caught(blocking, port, never), 0.0)[:3] == ("permanent", "maybe", None)


@pytest.mark.parametrize("call", [blocking, streaming, awaiting])
def test_no_answer_in_time_may_have_taken_effect(port: int, call: Call) -> None:
    error = caught(call, port, "stall", 0.1)
    assert facts(error) == ("transient", "maybe", "GRPC_DEADLINE_EXCEEDED")


def test_a_bug_in_the_server_is_unknown(port: int) -> None:
    assert facts(caught(blocking, port, "bug")) == ("transient", "maybe", "GRPC_UNKNOWN")


@pytest.mark.parametrize("call", [blocking, streaming, awaiting])
def test_a_refused_connection_is_unavailable_and_maybe_sent(call: Call) -> None:
    # A service that relays another's failure writes the same words, so they prove nothing.
    with faults.refusing() as server:
        error = caught(call, server.port, "UNAVAILABLE")
    assert facts(error) == ("transient", "maybe", "GRPC_UNAVAILABLE")


def test_a_message_that_is_too_large_stays_too_large(port: int) -> None:
    error = caught(lambda: blocking(port, "large", max_receive_message_length=100))
    assert facts(error) == ("permanent", "maybe", "GRPC_RESOURCE_EXHAUSTED")
    error = caught(lambda: blocking(port, "large", request=b"x" * 1000, max_send_message_length=100))
    assert facts(error) == ("permanent", "maybe", "GRPC_RESOURCE_EXHAUSTED")


def test_futures_that_were_cancelled_or_did_not_come() -> None:
    with faults.refusing() as server, grpc.insecure_channel(f"{faults.HOST}:{server.port}") as channel:
        ready = grpc.channel_ready_future(channel)
        assert facts(caught(lambda: ready.result(timeout=0.05))) == ("transient", "maybe", "TIMEOUT")
        ready.cancel()
        call = channel.unary_unary("/any/stall").future(b"", wait_for_ready=True, timeout=5)
        call.cancel()
        assert facts(caught(call.result)) == ("permanent", "maybe", "CANCELLED")


def test_an_error_without_a_status_is_unmatched() -> None:
    assert classify(grpc.RpcError(), 0.0).rule == "default:unmatched"


class Odd(grpc.RpcError):
    """A call that ended with metadata of any shape."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def trailing_metadata(self) -> Any:
        return self.metadata


GOOD = servers.with_retry_info("UNAVAILABLE").SerializeToString()


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        [("grpc-status-details-bin", b"")],
        [("grpc-status-details-bin", b"\xff" * 50)],
        [("grpc-status-details-bin", GOOD[:-1])],
        [("grpc-status-details-bin", GOOD[: len(GOOD) // 2])],
        [("grpc-status-details-bin", b"\x00" * 70_000)],
        [("grpc-status-details-bin", "text")],
        [("grpc-retry-pushback-ms", b"1")],
        [("a",)],
        ["grpc-retry-pushback-ms"],
    ],
)
def test_malformed_metadata_are_ignored(metadata: Any) -> None:
    assert classify(Odd(metadata), 0.0)[:4] == ("transient", "maybe", None, "GRPC_UNAVAILABLE")


def test_a_retry_info_is_parsed_as_protobuf_encodes_it() -> None:
    assert delay_from_status(GOOD) == 3.5
    assert delay_from_status(servers.with_retry_info("UNAVAILABLE", 0, 0).SerializeToString()) == 0
    assert (
        delay_from_status(servers.with_retry_info("UNAVAILABLE", 315_576_000_000, 0).SerializeToString())
        == 1e9
    )
    assert delay_from_status(servers.with_retry_info("UNAVAILABLE", -5, 0).SerializeToString()) is None
    assert delay_from_status(b"\x09" + b"x" * 8 + b"\x0d" + b"x" * 4 + GOOD) == 3.5, (
        "fields of fixed size are skipped"
    )
    assert delay_from_status(b"\x0b" + GOOD) is None, "a group is none of ours"
    assert delay_from_status(b"\x08\x01" * 300 + GOOD) is None, "there is a limit to the fields that are read"
    for end in range(len(GOOD)):
        assert delay_from_status(GOOD[:end]) in (None, 3.0, 3.5, 0.0)


def test_a_retry_info_in_json_is_read_too() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"}
    assert delay_from_details([{"@type": "other"}, info]) == 1.5
    for odd in (None, "x", [], [None], [{**info, "retryDelay": 5}], [{**info, "retryDelay": "1e9s"}]):
        assert delay_from_details(odd) is None
