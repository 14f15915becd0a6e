"""Steps whose attempts run in processes of their own; what those do is told by files in a folder."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import oncemore
from oncemore.policy.backoff import Jitter, Schedule
from oncemore.policy.policy import Policy
from tests.storm.work import ready

QUICK = Policy("quick", max_attempts=3, schedule=Schedule("exponential", base=0.001), jitter=Jitter("full"))


class Plain(oncemore.TransientError):
    """Travels."""


class Picky(oncemore.TransientError):
    """Can be pickled, and not read again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Locked(oncemore.TransientError):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


def _loop() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def _hold_everything() -> None:
    ctypes.PyDLL(None).sleep(300)  # in C, and without letting another thread of Python run


def _ends() -> None:
    os._exit(3)


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Any] = {
    "loop": _loop,
    "hold": _hold_everything,
    "ends": _ends,
    "crash": _crash,
    "killed": _killed,
}


def _note(folder: str, text: str) -> None:
    file = os.open(Path(folder, "notes"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(file, f"{text}\n".encode())
    os.close(file)


@oncemore.step(effect="idempotent", policy=QUICK, isolate="process", timeout=3.0)
def fault(folder: str, what: str) -> int:
    """Go wrong at the first attempt."""
    number = oncemore.current().number
    _note(folder, f"{number} {os.getpid()}")
    if number == 1:
        FAULTS[what]()
    return number


@oncemore.step(effect="once", policy=QUICK, isolate="process", timeout=3.0)
def fault_once(folder: str, what: str) -> int:
    _note(folder, f"{oncemore.current().number} {os.getpid()}")
    FAULTS[what]()
    return 1


@oncemore.step(effect="outbox", policy=QUICK, isolate="process", timeout=20.0)
def parts(order: str) -> list[Any]:
    """Keep half, fail, go on from there, give events away."""
    attempt = oncemore.current()
    before = attempt.resume("nothing")
    attempt.emit("seen", {"number": attempt.number})
    if attempt.number == 1:
        attempt.checkpoint({"half": order})
        assert attempt.resume() == {"half": order}
        raise Plain("not yet")
    attempt.emit("done", {"number": attempt.number})
    return [before, attempt.number, attempt.fence, os.getpid()]


class Mute(oncemore.TransientError):
    """Can neither be pickled nor shown."""

    def __reduce__(self) -> Any:
        raise TypeError("no")

    def __str__(self) -> str:
        raise TypeError("no")


ERRORS: dict[str, Any] = {
    "mute": Mute,
    "plain": lambda: Plain("on its way"),
    "picky": lambda: Picky("one", "two"),
    "locked": Locked,
    "exit": lambda: SystemExit(3),
}


@oncemore.step(effect="pure", policy=QUICK.replace(max_attempts=1), isolate="process", timeout=20.0)
def fails(what: str) -> None:
    raise ERRORS[what]()


@oncemore.step(effect="pure", policy=QUICK, isolate="process", timeout=20.0)
def no_value_pure() -> Any:
    return lambda: 1


@oncemore.step(effect="idempotent", policy=QUICK, isolate="process", timeout=20.0)
def no_value(folder: str) -> Any:
    _note(folder, f"{oncemore.current().number} {os.getpid()}")
    return lambda: 1


@oncemore.step(effect="once", policy=QUICK, isolate="process", timeout=20.0)
def no_value_once(folder: str) -> Any:
    _note(folder, f"{oncemore.current().number} {os.getpid()}")
    return threading.Lock()


@oncemore.step(effect="idempotent", policy=QUICK, isolate="process")
def ticks(folder: str, how: str) -> None:
    """Have an effect every few milliseconds, for ever."""
    _note(folder, f"child {os.getpid()}")
    if how == "program":
        program = f"for n in $(seq 1500); do echo tick >> {folder}/notes; sleep 0.02; done"
        subprocess.run(["sh", "-c", program], check=True)
    for _ in range(1500):
        _note(folder, "tick")
        time.sleep(0.02)


def call_ticks(place: dict[str, str], how: str) -> None:
    with ready(place):
        ticks(str(Path(place["store"]).parent), how)


def call_fault(place: dict[str, str], what: str) -> None:
    with ready(place):
        fault(str(Path(place["store"]).parent), what)
