"""Everybody else: a provider that fails, a webhook's desk, and the recorder of what really happened.

Standard library only, and nothing of oncemore: what counts at the end must not come from the one that is
counted. It runs as a process of its own, which nobody kills, and ends when its standard input does, so
that it cannot outlive whoever started it.

    POST /charges   charges an order, once per `Idempotency-Key`; without one, every time
    POST /told      takes a message, once per `Oncemore-Id`
    POST /moment    whoever asks is about to do something; now and then the answer is kept back

How a request fares stands in the plan: `faults` has for each order the answers in turn, and then all is
well. What was charged and what was taken is appended to the recorder and on the disk before anybody hears
of it. *Moments* are three points at which a killed process would hurt most; the world holds its answer
there, writes that down, and goes on when the caller is gone. One at a time, each once, in this order.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import MSG_PEEK, SO_LINGER, SOL_SOCKET
from typing import Any

HOST = "127.0.0.1"
REFUSED = "402"
MOMENTS = ("charging", "committed", "telling")
#: How long an answer is held back for a caller who is not killed after all.
HELD_S = 8.0
#: A visit this little before the agreed time is no offence: two clocks are read, one after the other.
GRACE_S = 0.02


class EffectRecorder:
    """A file that is only appended to; a line is on the disk before its writer goes on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def write(self, what: str, order: str, **more: object) -> None:
        """Append what happened."""
        line = json.dumps({"at": round(time.time(), 4), "what": what, "order": order, **more}) + "\n"
        with self._lock:
            os.write(self._file, line.encode())
            os.fsync(self._file)


class ShopServices:
    """What the others know: who was charged, what was told, when somebody may come back."""

    def __init__(self, plan: dict[str, Any], recorder: EffectRecorder) -> None:
        self.plan, self.recorder = plan, recorder
        self._lock = threading.Lock()
        self._visits: dict[tuple[str, str], int] = {}
        self._rest: dict[str, float] = {}
        self._receipts: dict[str, str] = {}
        self._heard: set[str] = set()
        self._moments = list(MOMENTS)
        self._holding = False

    def next_fault(self, path: str, order: str) -> str:
        """Return how this visit fares, as the plan has it; "" means well."""
        with self._lock:
            number = self._visits[path, order] = self._visits.get((path, order), 0) + 1
            early = time.monotonic() < self._rest.get(order, 0.0) - GRACE_S
        script = self.plan["faults"][path].get(order, [])
        fault = script[number - 1] if number <= len(script) else ""
        if REFUSED in script[:number]:  # for good: whoever was killed before the answer gets it again
            fault = REFUSED
        self.recorder.write("asked", order, path=path, fault=fault, early=early)
        return str(fault)

    def start_rest(self, order: str) -> float:
        """Ask an order to stay away for a while."""
        seconds = float(self.plan["rest_s"])
        with self._lock:
            self._rest[order] = time.monotonic() + seconds
        return seconds

    def charge_order(self, order: str, key: str | None) -> str:
        """Charge an order and return the receipt; the same one for a key that is known."""
        with self._lock:
            if key is not None and key in self._receipts:
                return self._receipts[key]
            receipt = f"R{len(self._receipts) + 1:03d}"
            self._receipts[key if key is not None else f"without a key {len(self._receipts)}"] = receipt
            self.recorder.write("charged", order, receipt=receipt)
        return receipt

    def take_message(self, order: str, message: str) -> None:
        """Take a message, unless its id is known."""
        with self._lock:
            new = message not in self._heard
            self._heard.add(message)
            self.recorder.write("taken" if new else "known", order, id=message)

    def is_due_moment(self, moment: str, order: str) -> bool:
        """Whether this is the moment that is due; then the caller's answer is to be held back."""
        with self._lock:
            if self._holding or not self._moments or self._moments[0] != moment:
                return False
            self._moments.pop(0)
            self._holding = True
        self.recorder.write("moment", order, moment=moment)
        return True

    def advance_moment(self) -> None:
        """Let the next moment come."""
        with self._lock:
            self._holding = False


class ShopHttpServer(ThreadingHTTPServer):
    """The server; being left by a caller is part of the story."""

    daemon_threads = True
    world: ShopServices

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing when a caller hung up."""


class ShopHandler(BaseHTTPRequestHandler):
    """One request."""

    server: ShopHttpServer
    timeout = 20.0

    def do_POST(self) -> None:
        """Answer as the plan has it."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        {"/charges": self._handle_charge, "/told": self._handle_message, "/moment": self._handle_moment}[
            self.path
        ](body)

    def _handle_charge(self, body: dict[str, Any]) -> None:
        world, order, key = self.server.world, body["order"], self.headers["Idempotency-Key"]
        fault = world.next_fault("charges", order)
        time.sleep(world.plan["takes_s"])
        if fault in ("429", "503", REFUSED):
            # Whoever was killed meanwhile does not hear that it was asked to wait.
            asks = fault == "429" and not self._is_caller_gone(0.0)
            return self._send_refusal(int(fault), world.start_rest(order) if asks else None)
        if fault == "reset":
            return self._reset_connection()
        receipt = world.charge_order(order, key)
        if fault == "drop":
            return self._reset_connection()
        if fault == "slow":
            time.sleep(world.plan["slow_s"])
        if fault == "hold":
            self._hold_answer("charging", order)
        return self._send_answer(200, {"receipt": receipt})

    def _handle_message(self, body: dict[str, Any]) -> None:
        world, order = self.server.world, body["payload"]["order"]
        fault = world.next_fault("told", order)
        time.sleep(world.plan["takes_s"])
        if fault == "503":
            return self._send_refusal(503, None)
        world.take_message(order, self.headers["Oncemore-Id"])
        self._hold_answer("telling", order)
        return self._send_answer(200, {})

    def _handle_moment(self, body: dict[str, Any]) -> None:
        self._hold_answer("committed", body["order"])
        self._send_answer(200, {})

    def _hold_answer(self, moment: str, order: str) -> None:
        """Keep the answer back until the caller is gone; one who is gone already is no moment's."""
        if not self._is_caller_gone(0.0) and self.server.world.is_due_moment(moment, order):
            self._is_caller_gone(HELD_S)
            self.server.world.advance_moment()

    def _is_caller_gone(self, timeout_s: float) -> bool:
        """Whether the caller hangs up within a time; who waits for an answer says nothing else."""
        self.connection.settimeout(timeout_s)
        try:
            return not self.connection.recv(1, MSG_PEEK)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:  # reset: it was killed
            return True
        finally:
            self.connection.settimeout(self.timeout)

    def _send_refusal(self, status: int, rest_s: float | None) -> None:
        self._send_answer(status, {}, {} if rest_s is None else {"Retry-After": f"{rest_s:g}"})

    def _send_answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _reset_connection(self) -> None:
        """Drop the connection so that the caller's system sees a reset, and not a goodbye."""
        self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        os.close(self.connection.detach())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server uses
        """Keep the standard log lines off the screen; the recorder has it all."""


def main() -> int:
    """Serve until standard input ends; the first line said is the port."""
    folder = Path(sys.argv[1])
    http = ShopHttpServer((HOST, 0), ShopHandler)
    http.world = ShopServices(
        json.loads((folder / "world.json").read_text(encoding="utf-8")),
        EffectRecorder(folder / "recorder.jsonl"),
    )
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    print(http.server_address[1], flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
