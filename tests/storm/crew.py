"""Starting, stopping and killing worker processes, and the place they share.

Only processes that were started here are ever sent a signal, each by its number, and a number is not given
back to the system before its process was reaped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.storm.points import Point
from tests.timing import wait_until

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
#: What is no complaint: a new store, and Python's general doubts about forks and threads.
USUAL = (
    "created a new store",
    "use of fork() may lead to deadlocks",
    "pid = os.fork()",
    "self.pid = os.fork()",
)


def quiet_environment() -> dict[str, str]:
    """Return an environment without coverage: thousands of children would each write a file of it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}


class Warm:
    """The warm parent of all workers."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.storm.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=quiet_environment(),
        )

    def ask(self, **told: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the warm parent is gone"
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


class Child:
    """A worker process."""

    def __init__(self, warm: Warm, pid: int, errors: Path) -> None:
        self._warm, self.pid, self._errors = warm, pid, errors
        self.code: int | None = None

    def send(self, number: int) -> None:
        """Send a signal; one that has ended but was not reaped takes no harm."""
        assert self.code is None
        os.kill(self.pid, number)

    def state(self) -> str:
        """Return the kernel's letter for its state: R, S, T (stopped), Z …"""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def stopped(self) -> None:
        """Wait until it has stopped itself."""
        wait_until(lambda: self.state() in "TZ", "the worker stops")
        assert self.state() == "T", "it ended before it came to the moment"

    def wait(self, total_timeout: float = PATIENCE_S) -> int:
        """Wait for its end and return its exit code, negative for a signal."""
        if self.code is None:
            self.code = self._warm.ask(reap=self.pid, total_timeout=total_timeout)["code"]
            assert self.code is not None, (
                f"worker {self.pid} did not end within {total_timeout:g} s:\n{self._stack()}"
            )
        return self.code

    def _stack(self) -> str:
        """Return where it hangs."""
        self.send(signal.SIGUSR1)
        time.sleep(0.5)
        return self._errors.read_text()[-6000:] if self._errors.exists() else ""

    def kill(self) -> int:
        """Kill it, whatever it does, and return its exit code."""
        if self.code is None:
            self.send(signal.SIGKILL)
        return self.wait()


class Crew:
    """The place of one storm, and the workers in it."""

    def __init__(self, warm: Warm, folder: Path, store: str = "", lease_s: float = 60.0) -> None:
        self._warm, self.folder = warm, folder
        self.place = {
            "store": store or str(folder / "log.db"),
            "lease_s": f"{lease_s}",
            "recorder": str(folder / "r"),
            "acks": str(folder / "acks"),
        }
        self._left: list[Child] = []
        self._recorder = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests/storm/recorder.py"),
                self.place["recorder"],
                str(folder / "effects"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=quiet_environment(),
        )
        assert self._recorder.stdout is not None
        assert self._recorder.stdout.readline() == "listening\n"

    def start(self, what: str, /, **told: Any) -> Child:
        """Fork a worker that calls a function of `tests.storm.work`, or `module:function`."""
        told = {name: list(value) if isinstance(value, Point) else value for name, value in told.items()}
        where = what if ":" in what else f"tests.storm.work:{what}"
        answer = self._warm.ask(
            fork=where, args={"place": self.place, **told}, errors=str(self.folder / "errors")
        )
        child = Child(self._warm, answer["pid"], self.folder / "errors")
        self._left.append(child)
        return child

    def call(self, step: str, order: str, **told: Any) -> Child:
        """Fork a worker that calls one step."""
        return self.start("call", step=step, order=order, **told)

    def effects(self) -> list[dict[str, Any]]:
        """Return everything the recorder has received."""
        return _lines(self.folder / "effects")

    def acks(self) -> list[dict[str, Any]]:
        """Return everything that workers were told."""
        return _lines(self.folder / "acks")

    def complaints(self) -> str:
        """Return what workers wrote to their standard error, without what is no complaint."""
        path = self.folder / "errors"
        text = path.read_text() if path.exists() else ""
        return "\n".join(line for line in text.splitlines() if not any(usual in line for usual in USUAL))

    def close(self) -> None:
        """End every worker that is left, and the recorder."""
        for child in self._left:
            child.kill()
        self._recorder.communicate(timeout=PATIENCE_S)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # A line that is being written at this moment is not there yet: it has no end.
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
