"""The outside world, as a process of its own: it writes down every effect that reaches it.

    python tests/storm/recorder.py SOCKET FILE

It knows nothing of oncemore and survives every worker. An effect is appended to a file (O_APPEND) and
synced before its sender is answered; one whose sender is dead by then is written down all the same. Like a
payment provider it applies an `idempotent` effect once per key, and keeps both: what it received and what it
applied. Every other effect is applied as often as it comes.

A question (`look`) is answered after everything that was sent before it, whoever sent it: what a dead
worker had sent is known by the time anybody asks for it.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from contextlib import suppress
from typing import Any

MOST_BYTES = 65_536


class Recorder:
    """Everything that was ever received, and where it is written."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self.count = 0
        self.receipts: dict[str, list[int]] = {}

    def effect(self, told: dict[str, Any]) -> dict[str, Any]:
        """Write an effect down; return its receipt: that of the first one where it is deduplicated."""
        self.count += 1
        known = self.receipts.setdefault(told["key"], [])
        applied = told["effect"] != "idempotent" or not known
        if applied:
            known.append(self.count)
        receipt = self.count if applied else known[0]
        at = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
        line = {"n": self.count, "at": at, "applied": applied, "receipt": receipt, **told}
        os.write(self.file, json.dumps(line).encode() + b"\n")
        return {"receipt": receipt, "applied": applied}

    def look(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return the receipts of a key."""
        return {"receipts": self.receipts.get(told["key"], [])}


def serve(address: str, path: str) -> None:
    """Take effects and questions until the standard input ends."""
    recorder = Recorder(path)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.bind(address)
    door.listen(1024)
    door.setblocking(False)
    ready = selectors.DefaultSelector()
    ready.register(door, selectors.EVENT_READ)
    ready.register(sys.stdin, selectors.EVENT_READ)
    pending: dict[socket.socket, bytes] = {}
    print("listening", flush=True)
    while True:
        if any(key.fileobj is sys.stdin for key, _ in ready.select()) and not sys.stdin.readline():
            return
        _accept(door, pending, ready)
        asked = _arrived(pending, ready)
        asked.sort(key=lambda one: one[1]["op"] == "look")
        answers = [(who, getattr(recorder, told.pop("op"))(told)) for who, told in asked]
        os.fsync(recorder.file)
        for who, answer in answers:
            with suppress(OSError):  # its sender is dead
                who.sendall(json.dumps(answer).encode() + b"\n")
            ready.unregister(who)
            who.close()


def _accept(door: socket.socket, pending: dict[socket.socket, bytes], ready: Any) -> None:
    with suppress(BlockingIOError):
        while True:
            who, _ = door.accept()
            who.setblocking(False)
            ready.register(who, selectors.EVENT_READ)
            pending[who] = b""


def _arrived(pending: dict[socket.socket, bytes], ready: Any) -> list[tuple[socket.socket, dict[str, Any]]]:
    """Read from everybody; return those whose line is whole, and forget those who left in the middle."""
    asked = []
    for who in list(pending):
        try:
            more = who.recv(MOST_BYTES)
        except BlockingIOError:
            continue
        except OSError:
            more = b""
        pending[who] += more
        if pending[who].endswith(b"\n"):
            asked.append((who, json.loads(pending.pop(who))))
        elif not more:
            del pending[who]
            ready.unregister(who)
            who.close()
    return asked


def ask(address: str, **told: Any) -> dict[str, Any]:
    """Tell the recorder something, and return its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(30)
        line.connect(address)
        line.sendall(json.dumps(told).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            more = line.recv(MOST_BYTES)
            if not more:
                raise ConnectionError("the recorder is gone")
            answer += more
    return json.loads(answer)  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
