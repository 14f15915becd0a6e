"""A Core to call: real HTTP on the loopback address, findings and sessions in memory, faults on order.

    POST /v1/analyze                                    computes something; keeps nothing
    GET  /v1/findings/F, GET /v1/sessions/S             what is known
    POST /v1/sessions/S/findings/F/accept (reject, discuss), POST /v1/sessions/S/advance      session actions

A path can be told how its next requests end: with a status; `LOST` does the work and drops the connection
before its answer, `UNHEARD` drops it before the work, `STALLED` does the work and never answers. Whatever
came is written down in order, with the attempt that the caller says it is.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.demo.serving import QuietHandler, QuietServer

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

LOST, UNHEARD, STALLED = "lost", "unheard", "stalled"
PATIENCE_S = 20.0
DETAILS = {500: "internal error", 503: "overloaded", 404: "no such finding"}
STATUSES = {"accept": "accepted", "reject": "rejected"}


class CoreRequest(NamedTuple):
    """A request as Core saw it, and how it ended: a status, or the fault in a word."""

    method: str
    path: str
    ending: str
    at: float
    attempt: str
    request_id: str


class CoreServer:
    """A running Core; `url` is where, `visits` what came, `findings` and `sessions` what it knows."""

    def __init__(self) -> None:
        self.findings: dict[str, dict[str, Any]] = {"f-12": {"status": "open", "discussion": []}}
        self.sessions: dict[str, dict[str, Any]] = {"s-4": {"position": 1}}
        self.visits: list[CoreRequest] = []
        self.acted = 0
        self.closing = threading.Event()
        self._faults: dict[str, list[int | str]] = {}
        self._lock = threading.Lock()
        self._http = _CoreHttpServer(("127.0.0.1", 0), _CoreHandler)
        self._http.core = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def queue_faults(self, what: str, *endings: int | str) -> None:
        """Let the next requests of a method and path ("POST /v1/analyze") end so."""
        self._faults.setdefault(what, []).extend(endings)

    def requests_for(self, what: str) -> list[CoreRequest]:
        """Return the visits of a method and path, in order."""
        return [visit for visit in self.visits if f"{visit.method} {visit.path}" == what]

    def handle_request(self, method: str, path: str, said: Any, marks: tuple[str, str]) -> tuple[str, Any]:
        """Take a request in: do its work unless a fault comes first; return how it ends, and the answer."""
        with self._lock:
            at = time.monotonic()
            waiting = self._faults.get(f"{method} {path}")
            fault = waiting.pop(0) if waiting else None
            status, answer = 200, {}
            if isinstance(fault, int):
                status, answer = fault, {"detail": DETAILS.get(fault, "refused")}
            elif fault != UNHEARD:
                status, answer = self._run_request(method, path, said)
            ending = fault if isinstance(fault, str) else str(status)
            self.visits.append(CoreRequest(method, path, ending, at, *marks))
            return ending, answer

    def _run_request(self, method: str, path: str, said: Any) -> tuple[int, dict[str, Any]]:
        match method, path.strip("/").split("/"):
            case "POST", ["v1", "analyze"]:
                return 200, {"finding": "f-12", "of": said}
            case "GET", ["v1", "findings", name] if name in self.findings:
                return 200, self.findings[name]
            case "GET", ["v1", "sessions", name] if name in self.sessions:
                return 200, self.sessions[name]
            case "POST", ["v1", "sessions", name, "advance"] if name in self.sessions:
                self.acted += 1
                self.sessions[name]["position"] += 1
                return 200, self.sessions[name]
            case "POST", ["v1", "sessions", _, "findings", name, action] if name in self.findings:
                return 200, self._apply_action(self.findings[name], action, said)
        return 404, {"detail": DETAILS[404]}

    def _apply_action(self, finding: dict[str, Any], action: str, said: Any) -> dict[str, Any]:
        self.acted += 1
        if action == "discuss":
            finding["discussion"].append(said)
        else:
            finding["status"] = STATUSES[action]
        return finding

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


class _CoreHttpServer(QuietServer):
    core: CoreServer


class _CoreHandler(QuietHandler):
    server: _CoreHttpServer
    timeout = PATIENCE_S

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Answer a question."""
        self._send_answer(None)

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Take something in."""
        self._send_answer(json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or "null"))

    def _send_answer(self, said: Any) -> None:
        marks = self.headers.get("Oncemore-Attempt", ""), self.headers.get("X-Request-ID", "")
        ending, answer = self.server.core.handle_request(self.command, self.path, said, marks)
        if ending == STALLED:
            self.server.core.closing.wait(PATIENCE_S)
        if ending in (LOST, UNHEARD, STALLED):
            self.reset_connection()
            return
        data = json.dumps(answer).encode()
        self.send_response(int(ending))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
