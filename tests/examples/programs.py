"""Start the programs of examples/compare, wait for them and kill them."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from examples.compare.service import Service

#: How long a test waits for an event; a busy machine needs it, an idle one never does.
PATIENCE_S = 60.0


class Starter(Protocol):
    """Starts a program as written with a library, with arguments and environment variables."""

    def __call__(self, program: str, library: str, *args: str, **variables: str) -> subprocess.Popen[str]: ...


def finish(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the end of a program and return the words that it printed."""
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, "its standard error is below"
    return output.split()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, f"waited {PATIENCE_S:.0f} s for {what}"
        time.sleep(0.05)


def read_until(process: subprocess.Popen[str], word: str) -> None:
    """Read a line of a program; the limit of the test bounds the wait."""
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word


def kill_program(process: subprocess.Popen[str]) -> list[str]:
    """Kill a program as the kernel does; return the words that it printed."""
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE_S)
    return output.split()


def kill_while_held(process: subprocess.Popen[str], service: Service) -> list[str]:
    """Kill a program while its request is applied and not answered; return the words that it printed."""
    wait_until(lambda: service.held.is_set() or process.poll() is not None, "the request")
    assert service.held.is_set(), "it ended before its request; its standard error is below"
    words = kill_program(process)
    service.release()
    return words


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
