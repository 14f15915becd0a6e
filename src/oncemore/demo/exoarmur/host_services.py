"""The hosts that the agent acts on, and two services, in one process with a recorder.

Standard library only, and nothing of the engine: the final count must not come from the code that is counted.
The process exits when its standard input ends, and then kills the NATS servers of the demo, which would not
notice the end of the demo by themselves.

    POST /execute, /contain, /release    {"name": …}: an effect, once per `Idempotency-Key`; else every time
    POST /reputation                     {"name": …}: the reputation of a host; changes nothing
    POST /validate                       {"name": …, "action": …}: 422 for an unknown action

The plan has the faults of each path and name, in turn; later requests succeed. 503 and `reset` do nothing,
`drop` does the work and drops the connection, `stall` replies too late. An effect is recorded and synced to
the disk before the reply is sent.
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

from oncemore.demo.effect_counts import EffectRecorder
from oncemore.demo.local_server import HOST, QuietHandler, QuietServer

EFFECTS = ("execute", "contain", "release")
ACTIONS = ("quarantine_file", "block_address", "rotate_token")
STALL_S = 1.2


class HostRegistry:
    """The state of all hosts: the keys that were applied, and the faults to come."""

    def __init__(self, faults: dict[str, dict[str, list[str]]], recorder: EffectRecorder) -> None:
        self._faults, self._recorder = faults, recorder
        self._lock = threading.Lock()
        self._applied_keys: set[str] = set()

    def next_fault(self, path: str, name: str) -> str:
        """Return and record the fault of this request; "" for none."""
        with self._lock:
            queued = self._faults.get(path, {}).get(name, [])
            fault = queued.pop(0) if queued else ""
        self._recorder.write("requested", name, path=path, fault=fault)
        return fault

    def apply_effect(self, path: str, name: str, key: str | None) -> None:
        """Apply and record an effect; one with a known key is recorded as a duplicate."""
        with self._lock:
            is_known = key is not None and key in self._applied_keys
            if key is not None:
                self._applied_keys.add(key)
            self._recorder.write("duplicate" if is_known else "applied", name, path=path)


class HostHandler(QuietHandler):
    """One request to a host or a service."""

    timeout = 20.0

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Handle a request with its fault."""
        body = self.read_json()
        path, name = self.path.strip("/"), str(body["name"])
        fault = self.server.owner.next_fault(path, name)
        if fault == "503":
            return self.send_json(503, {})
        if fault == "reset":
            return self.reset_connection()
        # `drop` and `stall` lose the reply of work that is done.
        status, reply = self._handle_request(path, name, body)
        if fault == "stall":
            time.sleep(STALL_S)
        if fault == "drop":
            return self.reset_connection()
        return self.send_json(status, reply)

    def _handle_request(self, path: str, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path in EFFECTS:
            self.server.owner.apply_effect(path, name, self.headers["Idempotency-Key"])
            return 200, {"done": f"{path} {name}"}
        if path == "validate" and body.get("action") not in ACTIONS:
            return 422, {"detail": f"no such action: {body.get('action')}"}
        return 200, {"name": name, "reputation": "bad"}


def end_servers(folder: Path) -> None:
    """Kill the NATS servers that still run, by the process ids in their pid files."""
    for pid_file in folder.glob("*/pid"):
        try:
            pid = int(pid_file.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            # The id may have been reused: only a process with this configuration file is ours.
            if str(pid_file.with_name("nats.conf")) in words:
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):  # it has exited, as it should
            continue


def main() -> int:
    """Print the port and serve until standard input ends."""
    folder = Path(sys.argv[1])
    server = QuietServer((HOST, 0), HostHandler)
    faults = json.loads((folder / "services.json").read_text(encoding="utf-8"))["faults"]
    server.owner = HostRegistry(faults, EffectRecorder(folder))
    server.serve_in_thread()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    end_servers(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
