"""The world of `oncemore demo exoarmur`: hosts that do as they are told, two services, and a recorder.

Standard library only, and nothing of oncemore: what counts at the end must not come from the one that is
counted. It runs as a process of its own, and ends when its standard input does; the servers of the bus, which
have no such sense, are ended with it by the ids that they wrote down.

    POST /execute, /contain, /release    {"name": …}: an effect, once per `Idempotency-Key`; else every time
    POST /reputation                     {"name": …}: what is known of a host; changes nothing
    POST /validate                       {"name": …, "action": …}: 422 for an action that nobody knows

How a visit fares stands in the plan: `faults` has for each path and name the answers in turn, and then all is
well. 503 and `reset` do nothing, `drop` does the work and drops the connection, `stall` answers too late.
What was applied is appended to the recorder and on the disk before anybody hears of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from oncemore.demo.pipeline.world import HOST, EffectRecorder
from oncemore.demo.serving import QuietHandler, QuietServer

EFFECTS = ("execute", "contain", "release")
ACTIONS = ("quarantine_file", "block_address", "rotate_token")
STALL_S = 1.2


class HostRegistry:
    """What the hosts know: which keys they have seen, and how each visit fares."""

    def __init__(self, faults: dict[str, dict[str, list[str]]], recorder: EffectRecorder) -> None:
        self._faults, self._recorder = faults, recorder
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    def next_fault(self, path: str, name: str) -> str:
        """Return how this visit fares; "" means well."""
        with self._lock:
            waiting = self._faults.get(path, {}).get(name, [])
            fault = waiting.pop(0) if waiting else ""
        self._recorder.write("asked", name, path=path, fault=fault)
        return fault

    def apply_effect(self, path: str, name: str, key: str | None) -> None:
        """Have an effect, unless the key is known."""
        with self._lock:
            known = key is not None and key in self._seen
            if key is not None:
                self._seen.add(key)
            self._recorder.write("known" if known else "applied", name, path=path)


class HostServer(QuietServer):
    """The server."""

    hosts: HostRegistry


class HostHandler(QuietHandler):
    """One visit."""

    server: HostServer
    timeout = 20.0

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Answer as the plan has it."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path, name = self.path.strip("/"), str(body["name"])
        fault = self.server.hosts.next_fault(path, name)
        if fault == "503":
            self._send_answer(503, {})
        elif fault == "reset":
            self.reset_connection()
        else:
            status, answer = self._handle_request(path, name, body)
            if fault == "stall":
                time.sleep(STALL_S)
            if fault == "drop":
                self.reset_connection()
            else:
                self._send_answer(status, answer)

    def _handle_request(self, path: str, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path in EFFECTS:
            self.server.hosts.apply_effect(path, name, self.headers["Idempotency-Key"])
            return 200, {"done": f"{path} {name}"}
        if path == "validate" and body.get("action") not in ACTIONS:
            return 422, {"detail": f"no such action: {body.get('action')}"}
        return 200, {"name": name, "reputation": "bad"}

    def _send_answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def end_servers(folder: Path) -> None:
    """End the servers of the bus that are still there: by the id that each wrote down, if it is its own."""
    for written in folder.glob("*/pid"):
        try:
            pid = int(written.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if str(written.with_name("nats.conf")) in words:
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):  # it is gone, as it should be
            continue


def main() -> int:
    """Serve until standard input ends; the first line said is the port."""
    folder = Path(sys.argv[1])
    server = HostServer((HOST, 0), HostHandler)
    faults = json.loads((folder / "world.json").read_text(encoding="utf-8"))["faults"]
    server.hosts = HostRegistry(faults, EffectRecorder(folder / "recorder.jsonl"))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    end_servers(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
