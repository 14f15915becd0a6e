"""Child processes of a demo, and the folder and the exit code of a demo that starts some."""

from __future__ import annotations

import os
import secrets
import selectors
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.demo.terminal import STOPPED, exit_on_signals
from oncemore.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    from oncemore.demo.terminal import LiveTerminal

#: Longest wait for a line from a child process.
READ_LINE_S = 20.0


class ChildProcesses:
    """Starts Python processes in a folder and ends them all in `close`.

    A child has its standard input from here, and exits when that ends: children do not survive a demo that is
    killed itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = str(Path(oncemore.__file__).parents[1])
        # Settings of the user's shell must not change the demo.
        env = {name: value for name, value in os.environ.items() if not name.startswith("ONCEMORE_")}
        self._env = {**env, "PYTHONPATH": os.pathsep.join(filter(None, [source, env.get("PYTHONPATH")]))}
        self._processes: list[subprocess.Popen[str]] = []

    def start_python(self, *words: str) -> subprocess.Popen[str]:
        """Start the Python interpreter with these arguments; its errors go to `errors.txt`."""
        with (self.folder / "errors.txt").open("a", encoding="utf-8") as errors:
            process = subprocess.Popen(  # noqa: S603 - Python, with files of ours
                [sys.executable, *words], cwd=self.folder, env=self._env, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=errors, text=True,
                # A session of its own: Ctrl-C reaches only the demo, which then ends its children.
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def start_server(self, module: str) -> str:
        """Start a module that serves HTTP and prints its port; return its URL."""
        process = self.start_python("-m", module, str(self.folder))
        return f"http://127.0.0.1:{int(read_line(process, module))}"

    def close(self) -> None:
        """Kill the children that still run, by process id, and wait for all."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    # Closing flushes, which fails if the child has already exited.
                    with suppress(OSError):
                        pipe.close()


def read_line(process: subprocess.Popen[str], name: str) -> str:
    """Return the next line that a child process prints; raise `Error` if none comes in time."""
    out: IO[str] | Any = process.stdout
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        line = out.readline().strip() if selector.select(READ_LINE_S) else ""
    if not line:
        raise Error(f"{name} printed nothing; run with --keep and see errors.txt in the folder")
    return str(line)


def run_in_folder(terminal: LiveTerminal, run: Callable[[Path], int], *, keep: bool) -> int:
    """Run a demo in a new temporary folder and return its exit code; the folder is deleted unless kept."""
    folder = Path(tempfile.mkdtemp(prefix="oncemore-demo-"))
    try:
        with exit_on_signals():
            return run(folder)
    except KeyboardInterrupt:
        terminal.end_drawing()  # does nothing unless Ctrl-C has interrupted the first call
        terminal.write_lines([[], [("Stopped.", "")]])
        return STOPPED
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def draw_seed() -> str:
    """Return a short random seed; the demo prints it, so that a run can be repeated."""
    return secrets.token_hex(2)
