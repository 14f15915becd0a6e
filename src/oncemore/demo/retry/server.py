"""A server that fails on purpose: real HTTP on the loopback address, and a log of what it saw.

Each path has one *fault*, a row of a table. A fault that asks for rest answers everybody who comes
back too early with the same refusal, as real services do, and the log marks such a visit. Callers are
told apart by the first part of the path (`/ours/busy`, `/naive/busy`), so that each finds the server
as the first one found it.

Every wait here ends when the server is closed, so that closing never takes long.
"""

from __future__ import annotations

import math
import time
from email.utils import formatdate
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from oncemore.demo.serving import QuietHandler, QuietServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

HOST = "127.0.0.1"
RESET = 0
ALWAYS = 1_000_000
#: A visit this little before the agreed time is no offence: two clocks are read, one after the other.
GRACE_S = 0.02
#: The longest that a connection may stay without a word.
PATIENCE_S = 10.0


class ScriptedFault(NamedTuple):
    """How a path fails.

    status  what it answers while it fails; RESET drops the connection
    times   how many visits fail, for a fault that asks for no rest
    rest_s  how long the server wants to be left alone after the first visit
    form    how Retry-After says so
    slow_s  how long the answer takes
    """

    status: int
    times: int = 1
    rest_s: float | None = None
    form: Literal["seconds", "date"] = "seconds"
    slow_s: float = 0.0


class ServerVisit(NamedTuple):
    """A line of the server's log; times are monotonic seconds.

    wished  when the server had asked this caller to come back, if it had
    early   whether the caller came before that
    slow    whether the answer was kept back
    """

    caller: str
    path: str
    at: float
    status: int
    wished: float | None
    early: bool
    slow: bool


class ServerReply(NamedTuple):
    """What is sent back, and how long after the question."""

    status: int
    headers: dict[str, str]
    after_s: float


class FlakyServer:
    """The server and its log; runs in threads of its own from `with` to the end of the block."""

    def __init__(self, faults: Mapping[str, ScriptedFault]) -> None:
        self._faults = faults
        self._visits: list[ServerVisit] = []
        self._wishes: dict[tuple[str, str], float] = {}
        self._lock = Lock()
        self.closing = Event()
        self._http = _FlakyHttpServer((HOST, 0), _FlakyHandler)
        self._http.flaky = self
        self._thread = Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    def url_for(self, caller: str, path: str) -> str:
        """Return where a caller finds a path."""
        return f"http://{HOST}:{self._http.server_address[1]}/{caller}{path}"

    def visits_of(self, caller: str, path: str) -> list[ServerVisit]:
        """Return a caller's visits to a path, in order."""
        with self._lock:
            return [visit for visit in self._visits if visit[:2] == (caller, path)]

    def answer_visit(self, caller: str, path: str) -> ServerReply:
        """Decide about a visit and write it down."""
        fault = self._faults.get(path, ScriptedFault(404, ALWAYS))
        with self._lock:
            number = 1 + sum(visit[:2] == (caller, path) for visit in self._visits)
            at = time.monotonic()
            wished = self._wishes.get((caller, path))
            early = wished is not None and at < wished - GRACE_S
            status = 200 if _has_recovered(fault, number, early) else fault.status
            after_s = fault.slow_s if number <= fault.times else 0.0
            self._visits.append(ServerVisit(caller, path, at, status, wished, early, after_s > 0))
            headers = self._retry_after_header(caller, path, fault) if status != 200 else {}
        return ServerReply(status, headers, after_s)

    def _retry_after_header(self, caller: str, path: str, fault: ScriptedFault) -> dict[str, str]:
        """Return the header that asks for rest; the time once named stays, whoever comes meanwhile."""
        if fault.rest_s is None:
            return {}
        now, wall = time.monotonic(), time.time()
        if fault.form == "date":  # dates have whole seconds: the next one that leaves enough rest
            date = math.ceil(wall + fault.rest_s)
            until = self._wishes.setdefault((caller, path), now + date - wall)
            return {"Retry-After": formatdate(round(wall + until - now), usegmt=True)}
        until = self._wishes.setdefault((caller, path), now + fault.rest_s)
        return {"Retry-After": f"{until - now:.3f}".rstrip("0").rstrip(".")}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _has_recovered(fault: ScriptedFault, number: int, early: bool) -> bool:
    """Whether a path works again: when its rest is over, or when it has failed often enough."""
    if fault.rest_s is not None:
        return number > 1 and not early
    return number > fault.times


class _FlakyHttpServer(QuietServer):
    flaky: FlakyServer


class _FlakyHandler(QuietHandler):
    server: _FlakyHttpServer
    timeout = PATIENCE_S

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Fail as the path's fault says."""
        caller, _, path = self.path.removeprefix("/").partition("/")
        status, headers, after_s = self.server.flaky.answer_visit(caller, f"/{path}")
        self.server.flaky.closing.wait(after_s)
        if status == RESET:
            self.reset_connection()
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()
