"""The guardian of one program: its parent process, which ends it together with everything that it started.

Run as a file of its own, by an interpreter that loads nothing else. The worker sends the options over a
socket; if the worker is gone before that, nothing is started. Then

    the program ends              its descendants have `linger_s` to end too; then they are ended
    the time limit is reached,    SIGTERM (or the signal that the worker received) to the group and all
    or the worker sends "end"     descendants; SIGKILL after `grace_s`
    the worker goes away          SIGKILL at once: the next worker must not run beside this program

Descendants are found even if they left the group: where the kernel supports it, the guardian is a subreaper,
which adopts every orphan below it. If the guardian itself is killed, the kernel kills the program.

The guardian answers in lines of JSON: {"pid": …} or {"errno": …}, then {"over": …} when no process is left.
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
#: How long to wait for a process that SIGKILL does not end: one blocked by a broken disk takes no signal.
KILL_TIMEOUT_S = 5.0
POLL_S = 0.02
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
#: A terminal or a shutdown sends these to every process; the program receives them from the guardian only.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def set_process_option(option: int, value: int) -> bool:
    """Set an option of this process by prctl; return whether the kernel supports it."""
    try:
        return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0  # type: ignore[no-any-return]
    except (OSError, AttributeError):
        return False


def find_descendants(ancestor: int) -> set[int]:
    """Return all descendants of a process by /proc; an empty set where /proc is not available."""
    children_of: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - pathlib costs more than the rest of this program
    except OSError:
        return set()
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    # The name of the process, in parentheses, may hold blanks and parentheses itself.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue  # the process ended after the listing
            children_of.setdefault(parent, []).append(int(name))
    descendants: set[int] = set()
    pending = [ancestor]
    while pending:
        children = children_of.get(pending.pop(), [])
        pending += [child for child in children if child not in descendants]
        descendants.update(children)
    return descendants


class ProgramGuardian:
    """One program and all its descendants."""

    def __init__(self, connection: socket.socket, options: dict[str, Any]) -> None:
        self._socket, self._options = connection, options
        self._is_subreaper = set_process_option(_SET_SUBREAPER, 1)
        # A SIGCHLD writes a byte into this pipe, so that `select` returns when a child has ended.
        self._wakeup_fd, wakeup_write_fd = os.pipe()
        os.set_blocking(wakeup_write_fd, False)
        signal.set_wakeup_fd(wakeup_write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

        self._partial_line = b""
        self.pid = 0
        self.status: int | None = None
        self.ended_by = ""
        self.left_running = 0
        #: CPU time of all ended processes, and the largest memory of one of them, in KiB.
        self.cpu_s, self.memory_kb = 0.0, 0
        #: The stage of the end: "" (the program runs), "linger", "term", "kill" or "gone".
        self._stage = ""
        limit_s = options["limit_s"]
        self._stage_ends_at = None if limit_s is None else time.monotonic() + limit_s

    def start_program(self) -> int:
        """Start the program; return 0, or the errno of the start that failed."""
        # The program keeps ignoring the signals that were ignored at our start, as `nohup` expects.
        ignored_before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED_SIGNALS}
        error_read_fd, error_write_fd = os.pipe()
        guardian_pid = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._exec_program(guardian_pid, error_write_fd, ignored_before)
        os.close(error_write_fd)
        # The pipe closes on a successful exec, so the read returns nothing then.
        error_number = os.read(error_read_fd, 16)
        os.close(error_read_fd)
        devnull = os.open(os.devnull, os.O_RDWR)
        # Only the program may hold the write ends of its pipes, or the worker would see no end of output.
        for stream in (0, 1, 2):
            os.dup2(devnull, stream)
        os.close(devnull)
        if error_number:
            os.waitpid(self.pid, 0)
        return int(error_number or b"0")

    def _exec_program(
        self, guardian_pid: int, error_write_fd: int, ignored_before: dict[Any, Any]
    ) -> NoReturn:
        """Become the program; runs in the child process after the fork."""
        try:
            os.setsid()
            set_process_option(_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guardian_pid:
                os._exit(127)  # the guardian died before the kernel knew that its death ends this process
            for number in (*IGNORED_SIGNALS, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
                # Python ignores SIGPIPE and SIGXFSZ itself; a program expects the defaults.
                is_ignored = ignored_before.get(number) == signal.SIG_IGN
                signal.signal(number, signal.SIG_IGN if is_ignored else signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            options = self._options
            if options["cwd"] is not None:
                os.chdir(decode_bytes(options["cwd"]))
            env = {decode_bytes(name): decode_bytes(value) for name, value in options["env"].items()}
            os.execve(decode_bytes(options["path"]), [decode_bytes(word) for word in options["argv"]], env)  # noqa: S606 - without a shell
        except OSError as error:
            os.write(error_write_fd, b"%d" % (error.errno or 1))
        finally:
            os._exit(127)

    def wait_for_end(self) -> None:
        """Wait until no process is left, or until the ones that are left may stay."""
        while not self._is_finished():
            pause = None if self._stage_ends_at is None else max(0.0, self._stage_ends_at - time.monotonic())
            if self._stage:
                pause = POLL_S if pause is None else min(pause, POLL_S)
            for ready in select.select([self._socket.fileno(), self._wakeup_fd], [], [], pause)[0]:
                if ready != self._wakeup_fd:
                    self._read_commands()
                else:
                    os.read(self._wakeup_fd, 4096)
            if self._stage_ends_at is not None and time.monotonic() >= self._stage_ends_at:
                self._enter_next_stage()
            # Processes that were being forked during the first SIGKILL are only found afterwards.
            elif self._stage == "kill":
                self._signal_all(signal.SIGKILL)

    def _is_finished(self) -> bool:
        """Reap ended children; return whether the wait is over."""
        all_ended = self._reap_children()
        if self.status is None:
            return False
        if all_ended:
            return True
        if not self._stage:
            self._stage, self._stage_ends_at = "linger", time.monotonic() + self._options["linger_s"]
        return self._stage == "gone"

    def _reap_children(self) -> bool:
        """Reap every child that has ended; return whether no process is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                # Without a subreaper orphans are not our children; the group is all that can be asked for.
                return self._is_subreaper or not _is_group_alive(self.pid)
            if pid == 0:
                return False
            # With that of its own children that it waited for; orphans become children of this subreaper.
            self.cpu_s += usage.ru_utime + usage.ru_stime
            self.memory_kb = max(self.memory_kb, usage.ru_maxrss)
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def _enter_next_stage(self) -> None:
        """Enter the next stage of the end, because the time of the current one is up."""
        if self._stage == "":
            self.terminate_all("limit", signal.SIGTERM)
        elif self._stage == "linger":
            self.left_running = len(find_descendants(os.getpid())) or 1
            if self._options["leave"]:
                self._stage = "gone"
            else:
                self.terminate_all(self.ended_by, signal.SIGTERM)
        elif self._stage == "term":
            self.kill_all()
        else:
            self._stage = "gone"  # not even SIGKILL worked: the worker reports a status of None

    def terminate_all(self, reason: str, number: int) -> None:
        """Send a signal to every process, and give them the grace period to end."""
        self.ended_by, self._stage, self._stage_ends_at = (
            reason,
            "term",
            time.monotonic() + self._options["grace_s"],
        )
        self._signal_all(number)

    def kill_all(self) -> None:
        """Send SIGKILL to every process; `wait_for_end` repeats it until all are gone."""
        self._stage, self._stage_ends_at = "kill", time.monotonic() + KILL_TIMEOUT_S
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        """Send a signal to the program's group and to all descendants outside of it."""
        group: set[int] = set()
        # After the program was reaped the kernel may give its number to another process group.
        if self.status is None or not self._is_subreaper:
            group = _group_members(self.pid)
            with suppress(OSError):  # the group has no members
                os.killpg(self.pid, number)
        for pid in find_descendants(os.getpid()) - group:
            with suppress(OSError):  # the process has ended
                os.kill(pid, number)

    def _read_commands(self) -> None:
        """Read commands from the worker; if the worker is gone, kill everything at once and exit."""
        try:
            received = self._socket.recv(4096)
        except OSError:
            received = b""
        if not received:
            self.kill_all()
            # `wait_for_end` polls every 20 ms; a worker that takes over should not have to wait for that.
            while not (self._reap_children() and self.status is not None) and time.monotonic() < (
                self._stage_ends_at or 0
            ):
                time.sleep(0.002)
                self._signal_all(signal.SIGKILL)
            os._exit(1)
        self.run_commands(received)

    def run_commands(self, received: bytes) -> None:
        """Run the commands in complete lines; keep an incomplete line for the next call."""
        *lines, self._partial_line = (self._partial_line + received).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "kill":
                self.ended_by = self.ended_by or "signal"
                self.kill_all()
            elif self._stage != "kill":
                self.terminate_all("signal", command["signal"])

    def send_message(self, message: dict[str, Any]) -> None:
        """Send a message to the worker; `_read_commands` notices if the worker is gone."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")


def _group_members(group: int) -> set[int]:
    """Return the descendants of this process that are in a process group."""
    members = set()
    for pid in find_descendants(os.getpid()):
        with suppress(OSError):  # the process has ended
            if os.getpgid(pid) == group:
                members.add(pid)
    return members


def _is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def decode_bytes(text: str) -> bytes:
    """Return the bytes of a JSON string that has one character per byte; words need not be UTF-8."""
    return text.encode("latin-1")


def receive_options(connection: socket.socket) -> tuple[dict[str, Any] | None, bytes]:
    """Return the options of the program, and the bytes after them: a signal may follow at once.

    Returns None for the options if the worker went away before it sent all of them.
    """
    received = b""
    while b"\n" not in received:
        data = connection.recv(65536)
        if not data or len(received) > MAX_MESSAGE_BYTES:
            return None, b""
        received += data
    options, _, rest = received.partition(b"\n")
    return json.loads(options), rest


def main(arguments: list[str]) -> None:
    """Run the guardian; the arguments are file descriptors: the socket, and a lock held until the exit."""
    # The program must inherit neither the socket nor the lock: both have to close with the guardian.
    for argument in arguments:
        os.set_inheritable(int(argument), False)
    connection = socket.socket(fileno=int(arguments[0]))
    options, rest = receive_options(connection)
    if options is None:
        return
    guardian = ProgramGuardian(connection, options)
    error_number = guardian.start_program()
    if error_number:
        guardian.send_message({"errno": error_number})
        return
    guardian.send_message({"pid": guardian.pid})
    guardian.run_commands(rest)
    guardian.wait_for_end()
    # One message: the worker stops reading after it.
    end = {"status": guardian.status, "why": guardian.ended_by, "left": guardian.left_running}
    usage = {"cpu_s": round(guardian.cpu_s, 6), "memory_kb": guardian.memory_kb}
    guardian.send_message({"over": True, **end, **usage})


if __name__ == "__main__":
    main(sys.argv[1:])
