"""Steps that other processes can import, and what they leave behind: lines in a file, rows in a database."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.context import CONTEXT
from oncemore.steps.entered_engine import current_engine

if TYPE_CHECKING:
    from pathlib import Path


def note(path: str, line: object) -> None:
    """Write a line to a file that nobody else's line can get into: the world that counts effects."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def noted(path: Path) -> list[str]:
    """The lines of such a file."""
    return path.read_text().split() if path.exists() else []


#: Tries again at once: a test has no time to wait.
HASTY = Policy("hasty", max_attempts=3, schedule=Schedule("exponential", base=0.001), jitter=Jitter("full"))


class Throttled(Exception):
    """Asks for less; known to the classifier below in every process that has this module."""


class Fragile(Exception):
    """Cannot be made anew from what pickle keeps of it."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(f"{why} ({code})")


@oncemore.classifier(Throttled)
def meaning(error: BaseException) -> oncemore.Failure | None:
    """Say what it means."""
    return oncemore.Failure("throttled", "no", 0.01, "SLOW_DOWN") if isinstance(error, Throttled) else None


@oncemore.step(effect="idempotent")
def where(n: int, seconds: float = 0.0) -> int:
    """Tell in which process it ran."""
    time.sleep(seconds)
    return os.getpid()


@oncemore.step(effect="idempotent")
async def awhere(n: int) -> int:
    """The same, awaited."""
    await asyncio.sleep(0.01)
    return os.getpid()


@oncemore.step(effect="idempotent")
async def aslow(n: int, path: str) -> int:
    """Take a while, awaited."""
    note(path, n)
    await asyncio.sleep(1)
    return n


@oncemore.step(effect="idempotent")
def around(n: int) -> list[Any]:
    """Tell what a call carries, and on which engine it is."""
    engine = current_engine()
    assert engine is not None
    return [list(CONTEXT.get()), engine.lease_s, engine.url]


@oncemore.step(effect="idempotent", provider=lambda name: name[0])
def asks(name: str) -> str:
    """Meet what a provider does: b throttles once, c refuses in a way of its own, d's answer has no form."""
    if name[0] == "b" and oncemore.current().number == 1:
        raise Throttled
    if name[0] == "c":
        raise Fragile("no such product", 7)
    if name[0] == "d":
        return object()  # type: ignore[return-value]
    return name


@oncemore.step(effect="pure")
def formless(n: int) -> Any:
    """Return what cannot be kept."""
    return lambda: n


@oncemore.step(effect="idempotent", policy=HASTY.replace(max_crashes=3))
def poison(n: int, path: str) -> int:
    """Kill whoever runs it, if it is item 3."""
    note(path, n)
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return n


@oncemore.step(effect="idempotent", policy=HASTY)
def stumbles(n: int, path: str) -> int:
    """Kill whoever makes its first attempt, if it is item 3."""
    note(path, n)
    if n == 3 and oncemore.current().number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


@oncemore.step(effect="idempotent")
def leaves(n: int) -> int:
    """End the program, or be interrupted."""
    if n == 1:
        raise SystemExit(3)
    if n == 2:
        raise KeyboardInterrupt
    return n


@oncemore.step(effect="transactional", policy=HASTY)
def book(n: int, ledger: str, seconds: float) -> int:
    """Write a row."""
    rows = oncemore.current().transaction(sqlite3.connect(ledger, timeout=30, isolation_level=None))
    time.sleep(seconds)
    rows.execute("INSERT INTO orders VALUES (?)", (n,))
    return n


@oncemore.step(effect="once")
def pay(n: int, path: str, seconds: float) -> int:
    """Do what must not be done twice."""
    time.sleep(seconds)
    note(path, n)
    time.sleep(seconds)
    return n


@oncemore.step(effect="idempotent")
def counts(n: int, path: str, seconds: float = 0.0) -> int:
    """Leave a line."""
    note(path, n)
    time.sleep(seconds)
    return n


class Shop:
    """Something with methods that are steps."""

    def __init__(self, name: str) -> None:
        self.name = name

    @oncemore.step(effect="idempotent", ignore="self")
    def sells(self, n: int) -> str:
        """Sell something."""
        return f"{self.name} {n}"


@oncemore.step(effect="idempotent")
def hidden(n: int) -> int:
    """Be found under another name only."""
    return n


shown, hidden = hidden, 7  # type: ignore[assignment]


class Codec:
    """Turns every byte around: no cipher, but nobody reads it by accident."""

    id = "around"

    def encode(self, data: bytes, /) -> bytes:
        """Turn them."""
        return bytes(255 - byte for byte in data)

    decode = encode


def bad_start() -> None:
    """Fail at the start of a process, quietly."""
    os.close(2)
    raise RuntimeError("no licence on this machine")


def kill_some(pids: list[int], how_many: int, pick: Any, between: tuple[float, float]) -> list[int]:
    """Kill processes, one after another, chosen by chance; return those that were there to be killed."""
    killed = []
    for _ in range(how_many if pids else 0):
        time.sleep(pick.uniform(*between))
        pid = pick.choice(pids)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
    return killed
