"""One attempt of a program: starts the guardian, collects the output, waits for the end.

The worker talks to the guardian over a socket in lines of JSON (`programs.guardian`). Closing the socket ends
the program, so an exception anywhere in the worker cannot leave it running.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.log.sqlite.files import make_private_folder
from oncemore.programs.exit_rules import ProgramLost, ProgramNotStarted, ProgramStillRunning
from oncemore.programs.output import OutputMatcher, OutputStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncemore.programs.output import OutputSpool
    from oncemore.programs.signals import SignalListener

#: A path, because importing the module would load ctypes into the worker.
GUARDIAN_FILE = Path(__file__).with_name("guardian.py")
#: How long to wait for the processes of a lost attempt to end.
LOCK_TIMEOUT_S = 15.0


class ProgramStart(Value):
    """The program to start, and the rules by which the guardian ends it."""

    path: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    stdin: str | None
    grace_s: float
    linger_s: float
    leave_running: bool
    outputs: tuple[str, ...]
    output_fds: tuple[int | None, int | None]


class ProgramExit(Value):
    """The end of a program: its exit code as shells have it, and the reason if the guardian ended it.

    ended_by      "limit" or "signal"; empty if the program ended by itself
    left_running  the number of processes that it left behind
    matched       whether a line of its output matched
    cpu_s         CPU time of the program and all its descendants that have ended
    memory_gb     largest memory of one of them
    """

    code: int
    ended_by: str
    left_running: int
    matched: bool
    notes: tuple[str, ...] = ()
    cpu_s: float = 0.0
    memory_gb: float = 0.0


def run_program(
    start: ProgramStart,
    limit_s: float | None,
    lock_fd: int,
    signals: SignalListener,
    spools: tuple[OutputSpool, OutputSpool],
    on_start: Callable[[], object] = lambda: None,
) -> ProgramExit:
    """Run a program until it and all its descendants have ended; `on_start` is called right before.

    lock_fd  a lock that the guardian holds as long as it lives
    spools   receive standard output and standard error
    """
    began = time.monotonic()
    worker_end, guardian_end = socket.socketpair()
    pipes = [os.pipe(), os.pipe()]
    try:
        guardian = _start_guardian(start, guardian_end, [write for _, write in pipes], lock_fd)
    finally:
        guardian_end.close()
        for _, write in pipes:
            os.close(write)
    matcher = OutputMatcher(start.outputs) if start.outputs else None
    streams = [
        OutputStream(read_fd, spool, target_fd, matcher, number)
        for number, ((read_fd, _), spool, target_fd) in enumerate(
            zip(pipes, spools, start.output_fds, strict=True)
        )
    ]
    try:
        # A signal during the start ends the attempt before the program exists.
        signals.raise_pending()
        on_start()
        worker_end.sendall(_encode_start(start, limit_s, began))
        with signals.forward_signals(partial(_forward_signal, worker_end)):
            message = _collect_output(worker_end, streams)
        notes = [stream.note for stream in streams if stream.note]
        matched = matcher is not None and matcher.finish_search(notes)
    finally:
        worker_end.close()  # after an exception, this makes the guardian kill the program
        for stream in streams:
            os.close(stream.read_fd)
        if matcher is not None:
            matcher.close()
        with suppress(subprocess.TimeoutExpired):
            guardian.wait(10)
    status = message["status"]
    # subprocess reports a signal as a negative status; shells add 128 to it.
    code = 128 + signal.SIGKILL if status is None else status if status >= 0 else 128 - status
    if status is None:
        notes.append("a process survived SIGKILL: it is blocked by a device that does not answer")
    return ProgramExit(
        code, message["why"], message["left"], matched, tuple(notes),
        cpu_s=message["cpu_s"], memory_gb=message["memory_kb"] * 1024 / 1e9,
    )  # fmt: skip


def _start_guardian(
    start: ProgramStart, connection: socket.socket, writes: list[int], lock_fd: int
) -> subprocess.Popen[bytes]:
    stdin = subprocess.DEVNULL if start.stdin is None else os.open(start.stdin, os.O_RDONLY | os.O_CLOEXEC)
    # "-I -S": the guardian needs neither the user's environment nor installed packages.
    command = [sys.executable, "-I", "-S", str(GUARDIAN_FILE), str(connection.fileno()), str(lock_fd)]
    try:
        return subprocess.Popen(  # noqa: S603 - our own file, by our own interpreter
            command, stdin=stdin, stdout=writes[0], stderr=writes[1], start_new_session=True,
            pass_fds=(connection.fileno(), lock_fd),
        )  # fmt: skip
    except OSError as error:
        raise ProgramNotStarted(error.errno, f"cannot start a process: {error.strerror}") from error
    finally:
        if stdin != subprocess.DEVNULL:
            os.close(stdin)


def _encode_start(start: ProgramStart, limit_s: float | None, began: float) -> bytes:
    # The limit began with the attempt, not with the guardian.
    left = None if limit_s is None else max(0.0, limit_s - (time.monotonic() - began))
    options = {
        "path": _encode_word(start.path), "argv": [_encode_word(word) for word in start.argv],
        "env": {_encode_word(name): _encode_word(value) for name, value in start.env.items()},
        "cwd": None if start.cwd is None else _encode_word(start.cwd),
        "limit_s": left, "grace_s": start.grace_s, "linger_s": start.linger_s, "leave": start.leave_running,
    }  # fmt: skip
    return json.dumps(options).encode() + b"\n"


def _encode_word(word: str) -> str:
    """Return the bytes of a word as text, one character per byte: not every word is UTF-8."""
    return os.fsencode(word).decode("latin-1")


def _forward_signal(connection: socket.socket, number: int, is_second: bool) -> None:
    command: dict[str, Any] = {"do": "kill"} if is_second else {"do": "end", "signal": number}
    with suppress(OSError):  # the guardian has ended
        connection.sendall(json.dumps(command).encode() + b"\n")


def _collect_output(connection: socket.socket, streams: list[OutputStream]) -> dict[str, Any]:
    """Pass on and keep output until the guardian says that the program is over; return its last message."""
    partial_line, pid = b"", 0
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        for stream in streams:
            selector.register(stream.read_fd, selectors.EVENT_READ, stream)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    if not key.data.read_available():
                        selector.unregister(key.fd)
                    continue
                received = _receive_bytes(connection)
                # Without the guardian no process kills the rest of the group.
                if not received:
                    _kill_group(pid)
                    raise ProgramLost("the guardian of the program died, and the program was killed")
                *lines, partial_line = (partial_line + received).split(b"\n")
                for message in map(json.loads, lines):
                    if "errno" in message:
                        raise ProgramNotStarted(message["errno"], os.strerror(message["errno"]))
                    pid = message.get("pid", pid)
                    if "over" in message:
                        for stream in streams:
                            stream.read_rest()
                        return message  # type: ignore[no-any-return]


def _receive_bytes(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def _kill_group(pid: int) -> None:
    """Kill the process group of a program whose guardian died."""
    if pid:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


@contextmanager
def lock_program(folder: Path, key: str, check: Callable[[], object]) -> Iterator[int]:
    """Hold the lock of a key, so that only one attempt of it runs on this machine.

    The log says when a worker is gone, but its guardian may need a moment longer to end the program. Both
    hold this lock, so the next worker waits for it. `check` is called while waiting and may raise.
    """
    path, deadline = folder / key, time.monotonic() + LOCK_TIMEOUT_S
    try:
        make_private_folder(folder)
    except StoreError as error:
        raise ProgramNotStarted(errno.EACCES, str(error)) from error
    while True:
        lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # The previous holder removes the file: a lock on the removed file would protect nothing.
            if _wait_for_lock(lock_fd, deadline, check) and _is_same_file(lock_fd, path):
                try:
                    yield lock_fd
                finally:
                    with suppress(OSError):
                        path.unlink()
                return
        finally:
            os.close(lock_fd)


def _wait_for_lock(lock_fd: int, deadline: float, check: Callable[[], object]) -> bool:
    while True:
        check()
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ProgramStillRunning(
                    f"the processes of an earlier attempt still run after {LOCK_TIMEOUT_S:g} s"
                ) from None
            time.sleep(0.01)
        else:
            return True


def _is_same_file(lock_fd: int, path: Path) -> bool:
    """Return whether the locked file is still the one at its path."""
    try:
        at_path = path.stat()
    except FileNotFoundError:
        return False
    locked = os.fstat(lock_fd)
    return (at_path.st_dev, at_path.st_ino) == (locked.st_dev, locked.st_ino)
