"""Python's own exceptions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
import trio

import oncemore.errors as ours
from oncemore.classifiers.classify import classify
from tests.classifiers.clients import caught
from tests.servers import faults

if TYPE_CHECKING:
    from pathlib import Path


def facts(error: BaseException) -> tuple[str, str, str]:
    found = classify(error, 0.0)
    return found.kind, found.sent, found.code


MEANINGS = {
    ConnectionError(): ("transient", "maybe", "CONNECTION_ERROR"),
    ConnectionRefusedError(): ("transient", "no", "CONNECTION_REFUSED"),
    ConnectionResetError(): ("transient", "maybe", "CONNECTION_RESET"),
    ConnectionAbortedError(): ("transient", "maybe", "CONNECTION_ABORTED"),
    BrokenPipeError(): ("transient", "maybe", "CONNECTION_CLOSED"),
    TimeoutError(): ("transient", "maybe", "TIMEOUT"),
    TimeoutError(errno.ETIMEDOUT, "x"): ("transient", "maybe", "TIMEOUT"),
    BlockingIOError(): ("transient", "maybe", "ERRNO_EAGAIN"),
    InterruptedError(): ("transient", "maybe", "ERRNO_EINTR"),
    OSError(errno.ENETUNREACH, "x"): ("transient", "maybe", "ERRNO_ENETUNREACH"),
    OSError(errno.EHOSTUNREACH, "x"): ("transient", "maybe", "ERRNO_EHOSTUNREACH"),
    OSError(errno.ENOSPC, "x"): ("transient", "maybe", "ERRNO_ENOSPC"),
    OSError(errno.EDQUOT, "x"): ("transient", "maybe", "ERRNO_EDQUOT"),
    OSError(errno.EMFILE, "x"): ("transient", "no", "ERRNO_EMFILE"),
    OSError(errno.ENFILE, "x"): ("transient", "no", "ERRNO_ENFILE"),
    OSError(errno.EADDRNOTAVAIL, "x"): ("transient", "no", "ERRNO_EADDRNOTAVAIL"),
    OSError(errno.EIO, "x"): ("transient", "maybe", "ERRNO_EIO"),
    OSError(errno.EBUSY, "x"): ("transient", "no", "ERRNO_EBUSY"),
    OSError(errno.EROFS, "x"): ("permanent", "no", "ERRNO_EROFS"),
    OSError(errno.EXDEV, "x"): ("permanent", "maybe", "ERRNO_EXDEV"),
    OSError("without a number"): ("permanent", "maybe", "EXC_OSError"),
    OSError(123456, "no such number"): ("permanent", "maybe", "EXC_OSError"),
    FileNotFoundError(): ("permanent", "no", "ERRNO_ENOENT"),
    PermissionError(): ("permanent", "no", "ERRNO_EACCES"),
    FileExistsError(): ("conflict", "no", "ERRNO_EEXIST"),
    socket.gaierror(socket.EAI_AGAIN, "x"): ("transient", "no", "DNS"),
    socket.gaierror(socket.EAI_NONAME, "x"): ("transient", "no", "DNS"),
    socket.herror(1, "x"): ("transient", "no", "DNS"),
    ssl.SSLError(1, "x"): ("permanent", "maybe", "TLS"),
    ssl.SSLCertVerificationError(1, "x"): ("permanent", "no", "TLS"),
    ssl.SSLEOFError(8, "x"): ("transient", "maybe", "CONNECTION_CLOSED"),
    ssl.SSLZeroReturnError(6, "x"): ("transient", "maybe", "CONNECTION_CLOSED"),
    ValueError(): ("permanent", "maybe", "EXC_ValueError"),
    TypeError(): ("permanent", "maybe", "EXC_TypeError"),
    KeyError(): ("permanent", "maybe", "EXC_KeyError"),
    ZeroDivisionError(): ("permanent", "maybe", "EXC_ZeroDivisionError"),
    ModuleNotFoundError(): ("permanent", "maybe", "EXC_ModuleNotFoundError"),
    NotImplementedError(): ("permanent", "maybe", "EXC_NotImplementedError"),
    DeprecationWarning(): ("permanent", "maybe", "EXC_DeprecationWarning"),
    RuntimeError(): ("permanent", "maybe", "EXC_RuntimeError"),
    Exception(): ("permanent", "maybe", "EXC_Exception"),
    BaseException(): ("permanent", "maybe", "EXC_BaseException"),
    subprocess.TimeoutExpired("x", 1): ("transient", "maybe", "TIMEOUT"),
    asyncio.IncompleteReadError(b"", 1): ("transient", "maybe", "CONNECTION_CLOSED"),
    anyio.EndOfStream(): ("transient", "maybe", "CONNECTION_CLOSED"),
    anyio.ClosedResourceError(): ("permanent", "maybe", "EXC_ClosedResourceError"),
    trio.TooSlowError(): ("transient", "maybe", "TIMEOUT"),
}


@pytest.mark.parametrize("error", MEANINGS, ids=lambda error: repr(error)[:60])
def test_an_exception_of_python_has_one_meaning(error: BaseException) -> None:
    assert facts(error) == MEANINGS[error]


def test_a_rule_is_named_by_the_class_that_it_is_about() -> None:
    class Lost(ConnectionResetError):
        pass

    assert classify(Lost(), 0.0).rule == "builtins:ConnectionResetError"
    assert classify(RuntimeError(), 0.0).rule == "default:unmatched"
    assert classify(OSError("?"), 0.0).rule == "default:unmatched"


NEVER = [
    asyncio.CancelledError(),
    concurrent.futures.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(1),
    GeneratorExit(),
    MemoryError(),
    RecursionError(),
]


@pytest.mark.parametrize("error", NEVER, ids=lambda error: type(error).__name__)
def test_cancellation_and_exit_are_never_retried(error: BaseException) -> None:
    error.__cause__ = ConnectionRefusedError()
    assert classify(error, 0.0).kind == "permanent"
    subclass = type("Mixed", (type(error),), {})
    assert classify(subclass(), 0.0).kind == "permanent"
    wrapped = RuntimeError()
    wrapped.__cause__ = error
    assert classify(wrapped, 0.0).kind == "permanent"


def test_an_error_that_is_never_retried_stays_so_with_other_bases() -> None:
    class Both(ConnectionError, concurrent.futures.CancelledError):
        pass

    assert facts(Both()) == ("permanent", "maybe", "CANCELLED")


def test_a_trio_cancellation_never_passes() -> None:
    async def main() -> BaseException:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept = error
                raise
        return kept

    assert facts(trio.run(main)) == ("permanent", "maybe", "CANCELLED")


def test_a_timeout_is_retryable_by_its_cause_and_the_code_names_it() -> None:
    with faults.unanswered() as server:
        connect = caught(lambda: socket.create_connection((faults.HOST, server.port), 0.1))
    with (
        faults.serve(faults.reads_nothing) as server,
        socket.create_connection((faults.HOST, server.port), 0.1) as conn,
        conn.makefile("rb") as stream,
    ):
        read = caught(stream.read)
    causes = {
        "TIMEOUT_CONNECT": (connect, True),
        "TIMEOUT_READ": (read, True),
        "TIMEOUT_ATTEMPT_LIMIT": (ours.AttemptTimeout("one attempt"), True),
        "DEADLINE": (ours.DeadlineExceeded("the whole call"), False),
    }
    for code, (error, passing) in causes.items():
        found = classify(error, 0.0)
        assert (found.code, found.may_pass) == (code, passing)


def test_our_own_errors_are_final_and_keep_the_original_code() -> None:
    assert facts(ours.UsageError("x")) == ("permanent", "no", "EXC_UsageError")
    assert facts(ours.PolicyError("x")) == ("permanent", "no", "EXC_PolicyError")
    assert facts(ours.MissingExtra("x")) == ("permanent", "no", "EXC_MissingExtra")
    assert facts(ours.RetriesExhausted("x", 7)) == ("permanent", "maybe", "RETRIES_EXHAUSTED")
    assert facts(ours.IllegalTransition("x")) == ("permanent", "maybe", "EXC_IllegalTransition")
    error = ours.StepFailed("it did not come good")
    error.__cause__ = ConnectionRefusedError()
    assert facts(error) == ("permanent", "no", "CONNECTION_REFUSED")


def test_errors_raised_by_users_are_classified_by_their_names() -> None:
    assert facts(ours.TransientError("deferred")) == ("transient", "maybe", "TransientError")
    assert facts(ours.PermanentError("never")) == ("permanent", "maybe", "PermanentError")
    for code in ours.VIOLATIONS:
        error = ours.PolicyViolation(code, "a rule is broken")
        assert facts(error) == ("permanent", "maybe", code)
        assert facts(caught(wrap, error)) == ("permanent", "maybe", code), "also under a wrapper"


def wrap(error: BaseException) -> None:
    raise RuntimeError("step failed") from error


def test_a_bad_json_document_is_permanent() -> None:
    assert facts(caught(json.loads, "{")) == ("permanent", "maybe", "EXC_JSONDecodeError")


def test_a_broken_stream_is_classified_by_its_cause() -> None:
    async def main(port: int) -> None:
        stream = await anyio.connect_tcp(faults.HOST, port)
        async with stream:
            await stream.send(b"GET / HTTP/1.1\r\n\r\n")
            await stream.receive()

    for backend in ("asyncio", "trio"):
        with faults.serve(faults.resets) as server:
            error = caught(lambda: anyio.run(main, server.port, backend=backend))  # noqa: B023
        assert facts(error) == ("transient", "maybe", "CONNECTION_RESET")


def test_a_full_disk_is_transient_and_says_so() -> None:
    if not os.path.exists("/dev/full"):  # noqa: PTH110 - a device, not a file of ours
        pytest.skip("there is no /dev/full on this platform")

    def write() -> None:
        with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
            full.write(b"x")

    assert facts(caught(write)) == ("transient", "maybe", "ERRNO_ENOSPC")


def test_a_real_missing_file_and_a_real_existing_one(tmp_path: Path) -> None:
    assert facts(caught((tmp_path / "nothing").read_bytes)) == ("permanent", "no", "ERRNO_ENOENT")
    assert facts(caught(tmp_path.read_bytes)) == ("permanent", "no", "ERRNO_EISDIR")
    assert facts(caught(tmp_path.mkdir)) == ("conflict", "no", "ERRNO_EEXIST")


OUT_OF_DESCRIPTORS = """
import sys
import httpx, requests, resource, socket, urllib.error
from oncemore.classifiers.classify import classify
from oncemore.policy.model import Failure

request = httpx.Request("GET", "http://127.0.0.1/")
date = {"Retry-After": "Sun, 06 Nov 1994 08:49:47 GMT"}
late = httpx.HTTPStatusError("x", request=request, response=httpx.Response(429, headers=date))
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
held = []
loaded = set(sys.modules)
try:
    while True:
        held.append(socket.socket())
except OSError as error:
    empty = classify(error, 784111777.0)
    full = classify(late, 784111777.0)
    group = classify(ExceptionGroup("", [error, late, ValueError()]), 784111777.0)
new = set(sys.modules) - loaded
for sock in held:
    sock.close()
assert not new, new
assert empty == Failure("transient", "no", None, "ERRNO_EMFILE", "builtins:OSError"), empty
assert full == Failure("throttled", "no", 10.0, "HTTP_429", "http:status"), full
assert group.kind == "permanent", group
"""


def test_classifying_needs_no_file_descriptor_and_no_import() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 20
    subprocess.run([sys.executable, "-c", OUT_OF_DESCRIPTORS], check=True, timeout=60)


LIGHT = """
import sys
before = set(sys.modules)
import oncemore.classifiers.classify, oncemore.audit.fingerprint
heavy = "typing enum dataclasses re datetime email inspect logging json ssl socket asyncio traceback".split()
new = set(sys.modules) - before
assert not new & set(heavy), new & set(heavy)
foreign = {m.partition(".")[0] for m in new} - set(sys.stdlib_module_names) - {"oncemore"}
assert not foreign, foreign
"""


def test_loading_the_classifiers_loads_no_heavy_and_no_third_party_module() -> None:
    # -S: what the environment's own start-up files load is not ours.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, "-S", "-c", LIGHT], check=True, timeout=60, env=env)
