"""Steps declared pure, for replay --verify; some of them are not."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import oncemore

VERSION = os.environ.get("ONCEMORE_TEST_VERSION", "1")
SALT = os.environ.get("ONCEMORE_TEST_SALT", "")


@oncemore.step(effect="pure", name="mortal")
def mortal(x: int) -> int:
    if os.environ.get("ONCEMORE_TEST_MORTAL"):
        os._exit(9)
    return x


@oncemore.step(effect="pure", name="counts", version=VERSION)
def counts(path: str) -> int:
    return len(Path(path).read_bytes())


@oncemore.step(effect="pure", name="salted")
def salted(n: int) -> str:
    return f"{n}{SALT}"


@oncemore.step(effect="pure", name="samples")
def samples(n: int) -> list[float]:
    return [oncemore.current().seeded.random() for _ in range(n)]


@oncemore.step(effect="pure", name="awaits")
async def awaits(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1


@oncemore.step(effect="pure", name="charts")
def charts(n: int) -> oncemore.Artifact:
    return oncemore.current().put(f"chart {n}{SALT}".encode(), name="chart.txt")


@oncemore.step(effect="pure", name="large")
def large(n: int) -> str:
    return "x" * n


@oncemore.step(effect="pure", name="hides", ignore="token")
def hides(n: int, token: str) -> int:
    return n


@oncemore.step(effect="pure", name="hourly", bucket=0.001)
def hourly(n: int) -> int:
    return n


@oncemore.step(effect="once", name="inner")
def inner(path: str) -> str:
    with Path(path).open("a") as file:
        file.write("inner\n")
    return "done"


@oncemore.step(effect="pure", name="outer")
def outer(path: str) -> str:
    return inner(path)


@oncemore.step(effect="pure", name="meddles")
def meddles(path: str, how: str) -> str:
    with suppress(OSError):  # it hides what happened
        {
            "write": lambda: Path(path).write_text("changed"),
            "append": lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND)),
            "remove": lambda: Path(path).unlink(),
            "rename": lambda: Path(path).rename(path + ".old"),
            "connect": lambda: socket.create_connection(("127.0.0.1", 9), 1),
            "start": lambda: subprocess.run(["true"], check=False),
            "kernel": lambda: write_natively(path),
        }[how]()
    return "nothing happened"


def write_natively(path: str) -> None:
    """Write without the interpreter's functions, as a C library would."""
    import ctypes

    libc = ctypes.CDLL(None)
    handle = libc.open(path.encode(), os.O_WRONLY | os.O_TRUNC)
    if handle < 0:
        raise OSError("refused")
    libc.write(handle, b"changed", 7)
    libc.close(handle)


@oncemore.step(effect="pure", name="sleeps")
def sleeps(n: int) -> int:
    time.sleep(n if "ONCEMORE_TEST_SLEEP" in os.environ else 0)
    return n


@oncemore.step(effect="pure", name="dies")
def dies(n: int) -> int:
    if "ONCEMORE_TEST_SLEEP" in os.environ:
        os._exit(3)
    return n
