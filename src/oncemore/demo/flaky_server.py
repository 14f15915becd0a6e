"""An HTTP server that fails on purpose and logs every request; used by `oncemore demo retry`.

Each path has one fault. A fault with `retry_after_s` refuses every request before that time is over, as real
services do, and the log marks such a request as early. Callers are distinguished by the first part of the
path (`/ours/busy`, `/naive/busy`), so that each of them finds a fresh server.
"""

from __future__ import annotations

import math
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Literal, NamedTuple

from oncemore.demo.local_server import LocalServer, QuietHandler

if TYPE_CHECKING:
    from collections.abc import Mapping

RESET = 0
ALWAYS = 1_000_000
#: Tolerance for a request before the agreed time: client and server read their clocks one after the other.
GRACE_S = 0.02
#: Longest time that a connection may stay idle.
IDLE_S = 10.0


class ScriptedFault(NamedTuple):
    """How a path fails.

    status         the status while it fails; RESET drops the connection
    times          how many requests fail, for a fault without `retry_after_s`
    retry_after_s  the wait that the server asks for after the first request
    form           how Retry-After is written
    slow_s         how long the reply takes
    """

    status: int
    times: int = 1
    retry_after_s: float | None = None
    form: Literal["seconds", "date"] = "seconds"
    slow_s: float = 0.0


class ServerRequest(NamedTuple):
    """A line of the server's log; times are monotonic seconds.

    not_before  the time before which the server had asked this caller not to come back
    early       whether the request came before that
    slow        whether the reply was delayed
    """

    caller: str
    path: str
    at: float
    status: int
    not_before: float | None
    early: bool
    slow: bool


class ServerReply(NamedTuple):
    """A reply, and its delay after the request."""

    status: int
    headers: dict[str, str]
    after_s: float


class FlakyServer(LocalServer):
    """The server and its log."""

    def __init__(self, faults: Mapping[str, ScriptedFault]) -> None:
        super().__init__(_FlakyHandler)
        self._faults = faults
        self._requests: list[ServerRequest] = []
        self._not_before: dict[tuple[str, str], float] = {}

    def url_for(self, caller: str, path: str) -> str:
        """Return the URL of a path for a caller."""
        return f"{self.url}/{caller}{path}"

    def requests_of(self, caller: str, path: str) -> list[ServerRequest]:
        """Return a caller's requests to a path, in order."""
        with self.lock:
            return [request for request in self._requests if request[:2] == (caller, path)]

    def answer_request(self, caller: str, path: str) -> ServerReply:
        """Log a request and return its reply."""
        fault = self._faults.get(path, ScriptedFault(404, ALWAYS))
        with self.lock:
            number = 1 + sum(request[:2] == (caller, path) for request in self._requests)
            at = time.monotonic()
            not_before = self._not_before.get((caller, path))
            early = not_before is not None and at < not_before - GRACE_S
            status = 200 if _has_recovered(fault, number, early) else fault.status
            # A slow path replies in time once it has been slow often enough.
            after_s = fault.slow_s if number <= fault.times else 0.0
            self._requests.append(
                ServerRequest(
                    caller=caller, path=path, at=at, status=status, not_before=not_before, early=early,
                    slow=after_s > 0,
                )
            )  # fmt: skip
            headers = self._retry_after_header(caller, path, fault) if status != 200 else {}
        return ServerReply(status, headers, after_s)

    def _retry_after_header(self, caller: str, path: str, fault: ScriptedFault) -> dict[str, str]:
        """Return the Retry-After header; early requests do not move the time that was named first."""
        if fault.retry_after_s is None:
            return {}
        now, wall = time.monotonic(), time.time()
        if fault.form == "date":
            # HTTP dates have whole seconds: the next one that is late enough.
            date = math.ceil(wall + fault.retry_after_s)
            until = self._not_before.setdefault((caller, path), now + date - wall)
            return {"Retry-After": formatdate(round(wall + until - now), usegmt=True)}
        until = self._not_before.setdefault((caller, path), now + fault.retry_after_s)
        return {"Retry-After": f"{until - now:.3f}".rstrip("0").rstrip(".")}


def _has_recovered(fault: ScriptedFault, number: int, early: bool) -> bool:
    """Return whether a path works again: its wait is over, or it has failed often enough."""
    if fault.retry_after_s is not None:
        return number > 1 and not early
    return number > fault.times


class _FlakyHandler(QuietHandler):
    timeout = IDLE_S

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Reply as the fault of the path says."""
        caller, _, path = self.path.removeprefix("/").partition("/")
        flaky: FlakyServer = self.server.owner
        status, headers, after_s = flaky.answer_request(caller, f"/{path}")
        # Instead of `sleep`, so that the end of the demo does not wait for a slow reply.
        flaky.closing.wait(after_s)
        if status == RESET:
            self.reset_connection()
        else:
            self.send_bytes(status, b"", headers)
