"""A Core of the profile `lit`: findings and sessions in memory, behind HTTP, with faults on request.

    POST /v1/analyze                                    computes a finding and stores nothing
    GET  /v1/findings/F, GET /v1/sessions/S             the current state
    POST /v1/sessions/S/findings/F/accept (reject, discuss), POST /v1/sessions/S/advance      session actions

`queue_faults` sets how the next requests of a path end: with a status; `LOST` does the work and drops the
connection before the reply, `UNHEARD` drops it before the work, `STALLED` does the work and never replies.
Every request is logged with the attempt number that its client sends.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from oncemore.demo.local_server import LocalServer, QuietHandler

LOST, UNHEARD, STALLED = "lost", "unheard", "stalled"
#: Longest time that a stalled request is held.
STALL_S = 20.0
DETAILS = {500: "internal error", 503: "overloaded", 404: "no such finding"}
STATUSES = {"accept": "accepted", "reject": "rejected"}


class CoreRequest(NamedTuple):
    """A logged request; `ending` is its status or the name of its fault."""

    method: str
    path: str
    ending: str
    at: float
    attempt: str
    request_id: str


class CoreServer(LocalServer):
    """A running Core.

    visits  the log of requests
    acted   the number of session actions that were applied
    """

    def __init__(self) -> None:
        super().__init__(_CoreHandler)
        self.findings: dict[str, dict[str, Any]] = {"f-12": {"status": "open", "discussion": []}}
        self.sessions: dict[str, dict[str, Any]] = {"s-4": {"position": 1}}
        self.visits: list[CoreRequest] = []
        self.acted = 0
        self._faults: dict[str, list[int | str]] = {}

    def queue_faults(self, request: str, *endings: int | str) -> None:
        """Set the endings of the next requests of a method and path ("POST /v1/analyze")."""
        self._faults.setdefault(request, []).extend(endings)

    def requests_for(self, request: str) -> list[CoreRequest]:
        """Return the logged requests of a method and path, in order."""
        return [visit for visit in self.visits if f"{visit.method} {visit.path}" == request]

    def handle_request(self, method: str, path: str, body: Any, marks: tuple[str, str]) -> tuple[str, Any]:
        """Log a request and do its work unless a fault comes first; return its ending and the reply."""
        # One request at a time: the order of the log is the order of the effects.
        with self.lock:
            at = time.monotonic()
            queued = self._faults.get(f"{method} {path}")
            fault = queued.pop(0) if queued else None
            status, reply = 200, {}
            if isinstance(fault, int):
                status, reply = fault, {"detail": DETAILS.get(fault, "refused")}
            elif fault != UNHEARD:
                status, reply = self._run_request(method, path, body)
            # A lost reply is logged by its fault: the client never sees the status.
            ending = fault if isinstance(fault, str) else str(status)
            self.visits.append(CoreRequest(method, path, ending, at, *marks))
            return ending, reply

    def _run_request(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        match method, path.strip("/").split("/"):
            case "POST", ["v1", "analyze"]:
                return 200, {"finding": "f-12", "of": body}
            case "GET", ["v1", "findings", name] if name in self.findings:
                return 200, self.findings[name]
            case "GET", ["v1", "sessions", name] if name in self.sessions:
                return 200, self.sessions[name]
            case "POST", ["v1", "sessions", name, "advance"] if name in self.sessions:
                self.acted += 1
                self.sessions[name]["position"] += 1
                return 200, self.sessions[name]
            case "POST", ["v1", "sessions", _, "findings", name, action] if name in self.findings:
                return 200, self._apply_action(self.findings[name], action, body)
        return 404, {"detail": DETAILS[404]}

    def _apply_action(self, finding: dict[str, Any], action: str, body: Any) -> dict[str, Any]:
        self.acted += 1
        if action == "discuss":
            finding["discussion"].append(body)
        else:
            finding["status"] = STATUSES[action]
        return finding


class _CoreHandler(QuietHandler):
    timeout = STALL_S

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Handle a read."""
        self._handle(None)

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Handle a call with a body."""
        self._handle(self.read_json())

    def _handle(self, body: Any) -> None:
        # Both headers are set by the client under test.
        core: CoreServer = self.server.owner
        marks = self.headers.get("Oncemore-Attempt", ""), self.headers.get("X-Request-ID", "")
        ending, reply = core.handle_request(self.command, self.path, body, marks)
        if ending == STALLED:
            core.closing.wait(STALL_S)
        if ending in (LOST, UNHEARD, STALLED):
            self.reset_connection()
        else:
            self.send_json(int(ending), reply)
