"""One attempt of a program: started behind its guard, passed through, kept, ended.

Bytes are passed on as they come and written to their spool at the same time; nothing of them is held in
memory. A reader of ours that is slow slows the program down, as any pipe does; its time limit is kept by the
guard meanwhile. A reader that has gone is no reason to stop: the program has work to do, and its output is
kept.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.errors import StoreError, TransientError
from oncemore.log.sqlite.files import make_private_folder
from oncemore.programs import output_match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncemore.programs.output_spool import Spool
    from oncemore.programs.signals import Cuts

HERE = Path(__file__).parent
CHUNK = 64 * 1024
#: How long, in all, an expression may keep the program waiting, and how long it may take at the end.
STALL_S = 5.0
#: How long the processes of a lost attempt are waited for.
ALONE_S = 15.0


class NotStarted(OSError):
    """The kernel refused to start the program: nothing has happened."""


class ProgramLost(TransientError):
    """The guard of a program has died: what became of the program is not known."""


class StillThere(TransientError):
    """The processes of an earlier attempt are still there."""


class Start(Value):
    """What is started, and how it is ended."""

    path: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    stdin: str | None
    grace_s: float
    linger_s: float
    leave: bool
    outputs: tuple[str, ...]
    through: tuple[int | None, int | None]


class Ended(Value):
    """How it ended: the exit code as shells have it, and why if we ended it ("limit", "signal").

    left     how many processes it had left behind
    matched  whether a line of its output matched
    """

    code: int
    why: str
    left: int
    matched: bool
    notes: tuple[str, ...] = ()


def run(
    start: Start,
    limit_s: float | None,
    held: int,
    cuts: Cuts,
    spools: tuple[Spool, Spool],
    begins: Callable[[], object] = lambda: None,
) -> Ended:
    """Run a program to its end, and to that of all it has started; `begins` is called right before it."""
    began = time.monotonic()
    ours, theirs = socket.socketpair()
    pipes = [os.pipe(), os.pipe()]
    try:
        guard = _guard(start, theirs, [write for _, write in pipes], held)
    finally:
        theirs.close()
        for _, write in pipes:
            os.close(write)
    looks = Match(start.outputs) if start.outputs else None
    streams = [
        Stream(read, spool, through, looks, number)
        for number, ((read, _), spool, through) in enumerate(zip(pipes, spools, start.through, strict=True))
    ]
    try:
        cuts.check()
        begins()
        ours.sendall(_order(start, limit_s, began))
        with cuts.passed_on(lambda number, again: _pass_on(ours, number, again)):
            told = _listened(ours, streams)
        notes = [stream.note for stream in streams if stream.note]
        matched = looks is not None and looks.found(notes)
    finally:
        ours.close()  # if it is not over, this is the end of it
        for stream in streams:
            os.close(stream.at)
        if looks is not None:
            looks.close()
        with suppress(subprocess.TimeoutExpired):
            guard.wait(10)
    status = told["status"]
    code = 128 + signal.SIGKILL if status is None else status if status >= 0 else 128 - status
    if status is None:
        notes.append("a process does not die; it waits for a device that does not answer")
    return Ended(code, told["why"], told["left"], matched, tuple(notes))


def _guard(start: Start, line: socket.socket, writes: list[int], held: int) -> subprocess.Popen[bytes]:
    at = subprocess.DEVNULL if start.stdin is None else os.open(start.stdin, os.O_RDONLY | os.O_CLOEXEC)
    words = [sys.executable, "-I", "-S", str(HERE / "guardian.py"), str(line.fileno()), str(held)]
    try:
        return subprocess.Popen(  # noqa: S603 - our own file, by our own interpreter
            words, stdin=at, stdout=writes[0], stderr=writes[1], start_new_session=True,
            pass_fds=(line.fileno(), held),
        )  # fmt: skip
    except OSError as error:
        raise NotStarted(error.errno, f"cannot start a process: {error.strerror}") from error
    finally:
        if at != subprocess.DEVNULL:
            os.close(at)


def _order(start: Start, limit_s: float | None, began: float) -> bytes:
    left = None if limit_s is None else max(0.0, limit_s - (time.monotonic() - began))
    told = {
        "path": _text(start.path), "argv": [_text(word) for word in start.argv],
        "env": {_text(name): _text(value) for name, value in start.env.items()},
        "cwd": None if start.cwd is None else _text(start.cwd),
        "limit_s": left, "grace_s": start.grace_s, "linger_s": start.linger_s, "leave": start.leave,
    }  # fmt: skip
    return json.dumps(told).encode() + b"\n"


def _text(word: str) -> str:
    """Return the bytes of a word as text, one character each: not every word is UTF-8."""
    return os.fsencode(word).decode("latin-1")


def _pass_on(line: socket.socket, number: int, again: bool) -> None:
    word: dict[str, Any] = {"do": "kill"} if again else {"do": "end", "signal": number}
    with suppress(OSError):  # it is over
        line.sendall(json.dumps(word).encode() + b"\n")


def _listened(line: socket.socket, streams: list[Stream]) -> dict[str, Any]:
    """Pass on and keep what comes until the guard says that it is over."""
    heard, pid = b"", 0
    with selectors.DefaultSelector() as waiting:
        waiting.register(line, selectors.EVENT_READ)
        for stream in streams:
            waiting.register(stream.at, selectors.EVENT_READ, stream)
        while True:
            for key, _ in waiting.select():
                if key.data is not None:
                    if not key.data.take():
                        waiting.unregister(key.fd)
                    continue
                said = _received(line)
                if not said:
                    _put_down(pid)
                    raise ProgramLost("the guard of the program has died; the program was killed")
                *lines, heard = (heard + said).split(b"\n")
                for told in map(json.loads, lines):
                    if "errno" in told:
                        raise NotStarted(told["errno"], os.strerror(told["errno"]))
                    pid = told.get("pid", pid)
                    if "over" in told:
                        for stream in streams:
                            stream.drain()
                        return told  # type: ignore[no-any-return]


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except OSError:
        return b""


def _put_down(pid: int) -> None:
    """Kill the group of a program that has lost its guard."""
    if pid:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


class Stream:
    """One stream of a program: where it comes from, and where it goes."""

    def __init__(self, at: int, spool: Spool, through: int | None, looks: Match | None, number: int) -> None:
        self.at, self.note = at, ""
        self._spool, self._through, self._looks, self._number = spool, through, looks, number
        os.set_blocking(at, False)

    def take(self) -> bool:
        """Pass on and keep what is there; return whether more can come."""
        try:
            data = os.read(self.at, CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._spool.write(data)
        if self._looks is not None:
            self._looks.feed(self._number, data)
        if self._through is not None:
            self._pass(self._through, data)
        return True

    def drain(self) -> None:
        """Take what is left; whoever still holds the other end is not waited for."""
        while select.select([self.at], [], [], 0)[0] and self.take():
            continue

    def _pass(self, to: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(to, left) :]
            except BlockingIOError:  # somebody else made it so: the stream is not ours alone
                select.select([], [to], [], 1.0)
            except BrokenPipeError:
                self._through = None  # the reader has seen enough
                return
            except OSError as error:
                self._through = None
                self.note = f"output could not be passed on: {error.strerror}"
                return


class Match:
    """Expressions that are looked for in the output, in a process that can be stopped."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", str(HERE / "output_match.py")],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._to = self._process.stdin.fileno()
        os.set_blocking(self._to, False)
        self._stalled, self._open = 0.0, True
        self._send(json.dumps({"patterns": patterns}).encode() + b"\n")

    def feed(self, number: int, data: bytes) -> None:
        """Let it look at the next bytes of a stream."""
        if self._open:
            self._send(bytes([number]) + len(data).to_bytes(4, "big") + data)

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left and self._open:
            try:
                left = left[os.write(self._to, left) :]
            except BlockingIOError:
                began = time.monotonic()
                select.select([], [self._to], [], max(0.0, STALL_S - self._stalled))
                self._stalled += time.monotonic() - began
                self._open = self._stalled < STALL_S
            except BrokenPipeError:
                self._open = False  # it has found something

    def found(self, notes: list[str]) -> bool:
        """Say whether something matched; an expression that takes too long has not."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        self._open = False
        try:
            return process.wait(max(0.1, STALL_S - self._stalled)) == output_match.MATCH
        except subprocess.TimeoutExpired:
            notes.append(
                f"--retry-on-output took more than {STALL_S:g} s and was given up; write a simpler expression"
            )
            return False

    def close(self) -> None:
        """Be done with it."""
        if self._process is not None:
            self._process.kill()
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None


@contextmanager
def alone(folder: Path, key: str, check: Callable[[], object]) -> Iterator[int]:
    """Be the only one on this machine who runs a key, until the guard is gone too.

    A log says when a worker is gone, and its guard may need a moment longer. Both hold this lock; whoever
    takes over waits for it. `check` raises what ends the waiting.
    """
    path, ends = folder / key, time.monotonic() + ALONE_S
    try:
        make_private_folder(folder)
    except StoreError as error:
        raise NotStarted(errno.EACCES, str(error)) from error
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if _locked(held, ends, check) and _same(held, path):
                try:
                    yield held
                finally:
                    with suppress(OSError):
                        path.unlink()
                return
        finally:
            os.close(held)


def _locked(held: int, ends: float, check: Callable[[], object]) -> bool:
    while True:
        check()
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= ends:
                raise StillThere(
                    f"the processes of an earlier attempt are still there after {ALONE_S:g} s"
                ) from None
            time.sleep(0.01)
        else:
            return True


def _same(held: int, path: Path) -> bool:
    """Whether a file is still the one at its path: who had it before us may have removed it."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(held)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
