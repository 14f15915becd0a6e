"""A real gRPC server on a loopback port that answers as the name of the called method says."""

from __future__ import annotations

import contextlib
import threading
from concurrent import futures
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The longest that the server keeps a call waiting, in seconds.
PATIENCE = 5.0


class Answers(grpc.GenericRpcHandler):
    """/any/UNAVAILABLE ends with that status; a few names do more."""

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def service(self, call: Any) -> Any:
        word = call.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self.answer(word, context))

    def answer(self, word: str, context: Any) -> bytes:
        if word == "stall":
            self.stopping.wait(PATIENCE)
        if word == "bug":
            raise ZeroDivisionError
        if word == "large":
            return b"x" * 100_000
        if word.startswith("pushback"):
            context.set_trailing_metadata((("grpc-retry-pushback-ms", word.removeprefix("pushback")),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        if word.startswith("info_"):
            context.abort_with_status(rpc_status.to_status(with_retry_info(word.removeprefix("info_"))))
        context.abort(grpc.StatusCode[word], "because")
        raise AssertionError("abort raises")


def with_retry_info(name: str, seconds: int = 3, nanos: int = 500_000_000) -> status_pb2.Status:
    """Make a status that asks to stay away for a while, as Google's services do."""
    number: int = grpc.StatusCode[name].value[0]
    status = status_pb2.Status(code=number, message="slow down")
    delay = duration_pb2.Duration(seconds=seconds, nanos=nanos)
    details = [error_details_pb2.ErrorInfo(reason="R"), error_details_pb2.RetryInfo(retry_delay=delay)]
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


@contextlib.contextmanager
def running() -> Iterator[int]:
    """Give the port of a server while the block lasts."""
    answers = Answers()
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(answers,))
    port: int = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        answers.stopping.set()
        server.stop(0).wait(PATIENCE)
