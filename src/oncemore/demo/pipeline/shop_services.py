"""A payment provider and a webhook receiver that fail on purpose and record every effect.

Standard library only, and nothing of the engine: the final count must not come from the code that is counted.
They run in one process of their own, which is not killed, and which exits when its standard input ends.

    POST /charges      charges an order, once per `Idempotency-Key`; without a key, every time
    POST /messages     accepts a message, once per `Oncemore-Id`
    POST /kill-point   announces that the caller's transaction is committed

The plan has for each order the faults of its requests, in turn. An effect is recorded and synced to the disk
before the reply is sent. There are three *kill points*, at which the death of the caller does most harm:
after a charge, after a commit, after a delivery. There the server records the kill point and holds its reply
back until the caller is gone; one kill point at a time, each once, in this order.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from socket import MSG_PEEK
from typing import Any

from oncemore.demo.effect_counts import EffectRecorder
from oncemore.demo.local_server import HOST, QuietHandler, QuietServer

REFUSED = "402"
KILL_POINTS = ("after-charge", "after-commit", "after-delivery")
#: Longest time that a reply is held back, in case the caller is not killed.
HOLD_S = 8.0
#: Tolerance for a request before the agreed time: two processes read their clocks one after the other.
GRACE_S = 0.02


class ShopServices:
    """The state of the provider and the webhook receiver: receipts, message ids, requested waits."""

    def __init__(self, plan: dict[str, Any], recorder: EffectRecorder) -> None:
        self.plan, self.recorder = plan, recorder
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str], int] = {}
        self._not_before: dict[str, float] = {}
        self._receipts: dict[str, str] = {}
        self._message_ids: set[str] = set()
        self._kill_points = list(KILL_POINTS)
        self._holding = False

    def next_fault(self, path: str, order: str) -> str:
        """Return and record the fault of this request, as planned; "" for none."""
        with self._lock:
            number = self._requests[path, order] = self._requests.get((path, order), 0) + 1
            early = time.monotonic() < self._not_before.get(order, 0.0) - GRACE_S
        script = self.plan["faults"][path].get(order, [])
        fault = script[number - 1] if number <= len(script) else ""
        if REFUSED in script[:number]:
            # A refusal is permanent: a caller that was killed before the reply gets it again.
            fault = REFUSED
        self.recorder.write("requested", order, path=path, fault=fault, early=early)
        return str(fault)

    def start_wait(self, order: str) -> float:
        """Ask an order to stay away; return the seconds for Retry-After."""
        seconds = float(self.plan["retry_after_s"])
        with self._lock:
            self._not_before[order] = time.monotonic() + seconds
        return seconds

    def charge_order(self, order: str, key: str | None) -> str:
        """Charge an order and return the receipt; a known key returns its first receipt."""
        with self._lock:
            if key is not None and key in self._receipts:
                return self._receipts[key]
            # Requests without a key get a receipt each: that is the duplicate that the demo shows.
            receipt = f"R{len(self._receipts) + 1:03d}"
            self._receipts[key if key is not None else f"without a key {len(self._receipts)}"] = receipt
            self.recorder.write("charged", order, receipt=receipt)
        return receipt

    def accept_message(self, order: str, message_id: str) -> None:
        """Accept a message; one with a known id is recorded as a duplicate."""
        with self._lock:
            is_new = message_id not in self._message_ids
            self._message_ids.add(message_id)
            self.recorder.write("accepted" if is_new else "duplicate", order, id=message_id)

    def start_kill_point(self, name: str, order: str) -> bool:
        """Record the kill point and return True if it is the next one and none is active."""
        with self._lock:
            if self._holding or not self._kill_points or self._kill_points[0] != name:
                return False
            self._kill_points.pop(0)
            self._holding = True
        self.recorder.write("kill_point", order, kill_point=name)
        return True

    def end_kill_point(self) -> None:
        """Allow the next kill point."""
        with self._lock:
            self._holding = False


class ShopHandler(QuietHandler):
    """One request to the provider or the webhook receiver."""

    timeout = 20.0

    @property
    def services(self) -> ShopServices:
        """The state of both services."""
        services: ShopServices = self.server.owner
        return services

    def do_POST(self) -> None:  # noqa: N802 - the name that http.server asks for
        """Handle a request by its path."""
        handlers = {
            "/charges": self._handle_charge,
            "/messages": self._handle_message,
            "/kill-point": self._handle_kill_point,
        }
        handlers[self.path](self.read_json())

    def _handle_charge(self, body: dict[str, Any]) -> None:
        services, order = self.services, body["order"]
        fault = services.next_fault("charges", order)
        time.sleep(services.plan["takes_s"])
        if fault in ("429", "503", REFUSED):
            # A caller that was killed meanwhile does not see Retry-After, and cannot obey it.
            asks = fault == "429" and not self._is_caller_gone(0.0)
            headers = {"Retry-After": f"{services.start_wait(order):g}"} if asks else {}
            return self.send_json(int(fault), {}, headers)
        if fault == "reset":
            return self.reset_connection()
        receipt = services.charge_order(order, self.headers["Idempotency-Key"])
        if fault == "drop":
            return self.reset_connection()
        if fault == "slow":
            time.sleep(services.plan["slow_s"])
        if fault == "hold":
            self._hold_reply("after-charge", order)
        return self.send_json(200, {"receipt": receipt})

    def _handle_message(self, body: dict[str, Any]) -> None:
        services, order = self.services, body["payload"]["order"]
        fault = services.next_fault("messages", order)
        time.sleep(services.plan["takes_s"])
        if fault == "503":
            return self.send_json(503, {})
        # Accepted before the kill point: the sender dies without the reply.
        services.accept_message(order, self.headers["Oncemore-Id"])
        self._hold_reply("after-delivery", order)
        return self.send_json(200, {})

    def _handle_kill_point(self, body: dict[str, Any]) -> None:
        self._hold_reply("after-commit", body["order"])
        self.send_json(200, {})

    def _hold_reply(self, kill_point: str, order: str) -> None:
        """Wait until the caller is gone, if this kill point is due."""
        # A caller that is gone already cannot be killed here: the kill point is left for the next one.
        if not self._is_caller_gone(0.0) and self.services.start_kill_point(kill_point, order):
            self._is_caller_gone(HOLD_S)
            self.services.end_kill_point()

    def _is_caller_gone(self, timeout_s: float) -> bool:
        """Return whether the caller closes the connection within `timeout_s`."""
        self.connection.settimeout(timeout_s)
        try:
            # A caller that waits for its reply sends nothing, so that a readable socket is a closed one.
            return not self.connection.recv(1, MSG_PEEK)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:  # reset: the caller was killed
            return True
        finally:
            self.connection.settimeout(self.timeout)


def main() -> int:
    """Print the port and serve until standard input ends."""
    folder = Path(sys.argv[1])
    http = QuietServer((HOST, 0), ShopHandler)
    plan = json.loads((folder / "services.json").read_text(encoding="utf-8"))
    http.owner = ShopServices(plan, EffectRecorder(folder))
    http.serve_in_thread()
    print(http.server_address[1], flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
