"""The guard of one program: its parent, and the end of everything that it started.

Run as a file of its own, by an interpreter that loads nothing else. It is told on a socket what to start; if
the other side is gone before that, nothing is started. Then

    the program ends             what it left behind has `linger_s` to end too; then it is ended
    its time is up, or we are    SIGTERM (or the signal that came) to its group and all its descendants, after
    told to end it               `grace_s` SIGKILL
    the other side goes away     SIGKILL at once: whoever takes over must not meet it

Descendants are found although they left the group: where the kernel can do it, the guard adopts whatever
loses its parent (a *subreaper*), so that all of them are below it. If the guard itself is killed, the kernel
kills the program.

It answers in lines of JSON: {"pid": …} or {"errno": …}, then {"over": …} when nothing is left.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36
#: How long what cannot be killed is waited for: a process that waits for a broken disk takes no signal.
KILL_S = 5.0
LOOK_S = 0.02
LONGEST = 64 * 1024 * 1024
#: What a terminal or a shutdown sends to all: the program hears of it from us.
DEAF = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def control(option: int, value: int) -> bool:
    """Ask the kernel for something about this process; return whether it can do that."""
    try:
        return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0  # type: ignore[no-any-return]
    except (OSError, AttributeError):
        return False


def descendants(of: int) -> set[int]:
    """Return all that is below a process, by what the kernel shows; nothing where it shows nothing."""
    below: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - pathlib costs more than the rest of this program
    except OSError:
        return set()
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # it is gone
            below.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    todo = [of]
    while todo:
        children = below.get(todo.pop(), [])
        todo += [child for child in children if child not in found]
        found.update(children)
    return found


class Guard:
    """One program and all that is below it."""

    def __init__(self, line: socket.socket, told: dict[str, Any]) -> None:
        self._line, self._told = line, told
        self._adopts = control(_SET_SUBREAPER, 1)
        self._wake, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._began = time.monotonic()
        self._heard = b""
        self.pid = 0
        self.status: int | None = None
        self.why = ""
        self.left = 0
        #: When the next step of the end is due, and which it is: "", "linger", "term", "kill".
        self._stage, self._due = "", self._began + told["limit_s"] if told["limit_s"] is not None else None

    def start(self) -> int:
        """Start the program; return 0, or the number of the error that it could not be started for."""
        # What was ignored when we were started stays so for the program, as `nohup` wants it.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in DEAF}
        tells, errors = os.pipe()
        me = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(me, errors, before)
        os.close(errors)
        failed = os.read(tells, 16)
        os.close(tells)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # the program's ends of its pipes are the program's alone
            os.dup2(nothing, stream)
        os.close(nothing)
        if failed:
            os.waitpid(self.pid, 0)
        return int(failed or b"0")

    def _become(self, guard: int, errors: int, before: dict[Any, Any]) -> NoReturn:
        """In the new process: be the program."""
        try:
            os.setsid()
            control(_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(127)  # it has died before the kernel knew whose end is ours
            for number in (*DEAF, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
                kept = before.get(number) == signal.SIG_IGN
                signal.signal(number, signal.SIG_IGN if kept else signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            told = self._told
            if told["cwd"] is not None:
                os.chdir(raw(told["cwd"]))
            env = {raw(name): raw(value) for name, value in told["env"].items()}
            os.execve(raw(told["path"]), [raw(word) for word in told["argv"]], env)  # noqa: S606 - without a shell
        except OSError as error:
            os.write(errors, b"%d" % (error.errno or 1))
        finally:
            os._exit(127)

    def watch(self) -> None:
        """Stay until nothing is left of the program, or what is left may stay."""
        while not self._over():
            pause = None if self._due is None else max(0.0, self._due - time.monotonic())
            if self._stage:
                pause = LOOK_S if pause is None else min(pause, LOOK_S)
            for at in select.select([self._line.fileno(), self._wake], [], [], pause)[0]:
                if at != self._wake:
                    self._listen()
                else:
                    os.read(self._wake, 4096)
            if self._due is not None and time.monotonic() >= self._due:
                self._advance()
            elif self._stage == "kill":
                self._signal(signal.SIGKILL)

    def _over(self) -> bool:
        """Take in what has ended; say whether that was all, or all that we wait for."""
        none = self._reap()
        if self.status is None:
            return False
        if none:
            return True
        if not self._stage:
            self._stage, self._due = "linger", time.monotonic() + self._told["linger_s"]
        return self._stage == "gone"

    def _reap(self) -> bool:
        """Take in every child that has ended; return whether there is none left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self._adopts or not _alive(self.pid)
            if pid == 0:
                return False
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def _advance(self) -> None:
        """Go to the next stage of the end: time is up for the one before."""
        if self._stage == "":
            self.end("limit", signal.SIGTERM)
        elif self._stage == "linger":
            self.left = len(descendants(os.getpid())) or 1
            if self._told["leave"]:
                self._stage = "gone"
            else:
                self.end(self.why, signal.SIGTERM)
        elif self._stage == "term":
            self.kill()
        else:
            self._stage = "gone"  # it does not die; whoever asked is told

    def end(self, why: str, number: int) -> None:
        """Ask everything to end, and wait for that as long as the grace is."""
        self.why, self._stage, self._due = why, "term", time.monotonic() + self._told["grace_s"]
        self._signal(number)

    def kill(self) -> None:
        """End everything now, again and again: what is just being started is not seen at first."""
        self._stage, self._due = "kill", time.monotonic() + KILL_S
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """Send a signal to the program's group and to all that is below us."""
        told = set()
        if self.status is None or not self._adopts:  # while it is there, its number is nobody else's
            told = _members(self.pid)
            with suppress(OSError):  # nobody is in it
                os.killpg(self.pid, number)
        for pid in descendants(os.getpid()) - told:
            with suppress(OSError):  # it is gone
                os.kill(pid, number)

    def _listen(self) -> None:
        """Do what we are told; when nobody is there any more, end everything at once."""
        try:
            said = self._line.recv(4096)
        except OSError:
            said = b""
        if not said:
            self.kill()
            while not (self._reap() and self.status is not None) and time.monotonic() < (self._due or 0):
                time.sleep(0.002)
                self._signal(signal.SIGKILL)
            os._exit(1)
        self.obey(said)

    def obey(self, said: bytes) -> None:
        """Do what whole lines say; a part of one waits for the rest."""
        *lines, self._heard = (self._heard + said).split(b"\n")
        for line in lines:
            word = json.loads(line)
            if word["do"] == "kill":
                self.why = self.why or "signal"
                self.kill()
            elif self._stage != "kill":
                self.end("signal", word["signal"])

    def tell(self, word: dict[str, Any]) -> None:
        """Say something to the other side; if that is gone, it is noticed where we listen."""
        with suppress(OSError):
            self._line.sendall(json.dumps(word).encode() + b"\n")


def _members(group: int) -> set[int]:
    """Return who in our session tree is in a group: they were sent the signal with it."""
    found = set()
    for pid in descendants(os.getpid()):
        try:
            if os.getpgid(pid) == group:
                found.add(pid)
        except OSError:
            continue
    return found


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def raw(text: str) -> bytes:
    """Return bytes that came as text: one character each, whatever their encoding."""
    return text.encode("latin-1")


def heard(line: socket.socket) -> tuple[dict[str, Any] | None, bytes]:
    """Return what is to be started, and what was said after it: a signal may come right behind the order.

    None if the other side is gone before it has said all of it.
    """
    said = b""
    while b"\n" not in said:
        more = line.recv(65536)
        if not more or len(said) > LONGEST:
            return None, b""
        said += more
    order, _, rest = said.partition(b"\n")
    return json.loads(order), rest


def main(words: list[str]) -> None:
    """Be the guard; the words are the numbers of the socket and of what is held as long as we live."""
    for word in words:
        os.set_inheritable(int(word), False)
    line = socket.socket(fileno=int(words[0]))
    told, rest = heard(line)
    if told is None:
        return
    guard = Guard(line, told)
    failed = guard.start()
    if failed:
        guard.tell({"errno": failed})
        return
    guard.tell({"pid": guard.pid})
    guard.obey(rest)
    guard.watch()
    guard.tell({"over": True, "status": guard.status, "why": guard.why, "left": guard.left})


if __name__ == "__main__":
    main(sys.argv[1:])
