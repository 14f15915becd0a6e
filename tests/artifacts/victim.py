"""A process that puts an artifact away and is killed while it does.

victim.py points FOLDER    forks one child after the other: child n kills itself at the n-th thing that
                           it asks the system for, until one comes through; each has a folder of its own
victim.py large FOLDER     puts 100 MB away, one line per megabyte, and waits to be killed in the middle
"""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

import oncemore
from oncemore.log.sqlite.store import SqliteStore

MEGABYTE = 1024 * 1024
SIZE = 100 * MEGABYTE


@oncemore.step(effect="pure", name="window", artifact="window")
def window(day: str) -> Any:
    return oncemore.current().put(b"the window of " + day.encode() + bytes(MEGABYTE), date=day)


@oncemore.step(effect="pure", name="text")
def text(day: str) -> str:
    return day * 100_000


#: What a child is killed in, and around which calls.
WORK = {
    "window": (
        window,
        [(os, "fchmod fsync utime mkdir"), (Path, "replace open unlink"), (SqliteStore, "append")],
    ),
    "text": (text, [(os, "fsync"), (Path, "replace"), (SqliteStore, "append")]),
}


class Slow(io.RawIOBase):
    """100 MB that tell how far they are."""

    def __init__(self, *, tells: bool) -> None:
        self.at, self.tells = 0, tells

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self.tells:
            print(self.at, flush=True)
        data = self.at.to_bytes(8, "big") * (min(size, SIZE - self.at) // 8)
        self.at += len(data)
        return data


@oncemore.step(effect="pure", name="large", artifact="large")
def large(*, tells: bool = False) -> Any:
    return oncemore.current().put(Slow(tells=tells))


class Trap:
    """Kills this process before or after the n-th call of what it is put around."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def outer(*args: Any, **kwargs: Any) -> Any:
            self.step()
            try:
                return inner(*args, **kwargs)
            finally:
                self.step()

        setattr(owner, name, outer)


def points(name: str, folder: Path) -> None:
    work, traps = WORK[name]
    at = 0
    while True:
        at += 1
        child = os.fork()
        if child == 0:
            trap = Trap(at)
            for owner, names in traps:
                for each in names.split():
                    trap.around(owner, each)
            with oncemore.open(folder / str(at) / "log.db"):
                work("2026-11-15")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(at, os.WEXITSTATUS(status), flush=True)
            return


if __name__ == "__main__":
    where = Path(sys.argv[2])
    if sys.argv[1] in WORK:
        points(sys.argv[1], where)
    else:
        with oncemore.open(where / "log.db"):
            large(tells=True)
