"""A process in which work can look and compute, and change nothing outside of one folder.

Two nets. The kernel's (Landlock, where Linux has it) refuses writing outside of the folder whatever asks for
it, and from Linux 6.7 on TCP too; it does not cover UDP and Unix sockets. The interpreter's (audit hooks)
refuses the same, and also all other connections and other processes, and knows what was tried, so that work
which hides the refusal is found out all the same. Neither can be taken off.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Events of the interpreter that change files, and which of their arguments are paths.
_CHANGES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.link": (1,),
    "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
    "os.setxattr": (0,), "os.removexattr": (0,), "sqlite3.connect": (0,),
}  # fmt: skip
#: Events that reach out of the process.
_REACHES = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
    "pty.spawn",
)  # fmt: skip
_HARMLESS = ("/dev/null", ":memory:")


class Guard:
    """What was refused so far; `begin` closes the doors for good."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())
        self.refused: list[str] = []
        self.kernel = False

    def begin(self) -> None:
        """Refuse from now on."""
        self.kernel = _landlock(self.folder)
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if _writes(mode, flags):
                self._check("write", path)
        elif event in _CHANGES:
            for at in _CHANGES[event]:
                self._check(event, args[at])
        elif event in _REACHES:
            self._refuse(event, str(args[0])[:80] if args else "")

    def _check(self, what: str, path: Any) -> None:
        if isinstance(path, int) or path is None:
            return  # a descriptor that was opened before, or in the folder
        name = os.fsdecode(path)
        if name in _HARMLESS:
            return
        real = os.path.realpath(name)
        if real != self.folder and not real.startswith(self.folder + os.sep):
            self._refuse(what, name)

    def _refuse(self, what: str, which: str) -> None:
        told = f"{what} {which}".strip()
        self.refused.append(told)
        raise PermissionError(f"refused in a replay, where inputs are read-only and nothing leaves: {told}")


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


# Landlock -------------------------------------------------------------------------------------------

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the numbers of its calls, the same on all machines of Linux
_FILE_WRITE = 1 << 1
#: Write, remove, make and move, of every kind. The first version of Landlock cannot let anything be moved.
_CHANGING = _FILE_WRITE | sum(1 << bit for bit in range(4, 14))
_TRUNCATE, _OLDEST, _CAN_TRUNCATE = 1 << 14, 2, 3
#: To bind and to connect a TCP socket, and the version of Landlock that can refuse it.
_TCP, _CAN_TCP = 0b11, 4
_NO_NEW_PRIVILEGES = 38


class _Rules(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _landlock(folder: str) -> bool:
    """Let the kernel refuse changes outside of a folder, and TCP; return whether it does."""
    if sys.platform != "linux":
        return False
    call = ctypes.CDLL(None, use_errno=True)
    version = call.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < _OLDEST:
        return False
    changing = _CHANGING | (_TRUNCATE if version >= _CAN_TRUNCATE else 0)
    rules = _Rules(changing, _TCP if version >= _CAN_TCP else 0)
    # A version that does not know a field refuses it, unless it is 0.
    made = call.syscall(
        _CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0)
    )
    if made < 0:
        return False
    try:
        for path, allowed in ((folder, changing), ("/dev/null", _FILE_WRITE)):
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                beneath = _Beneath(allowed, handle)
                if call.syscall(_ADD, made, 1, ctypes.byref(beneath), ctypes.c_uint32(0)):
                    return False
            finally:
                os.close(handle)
        if call.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            return False
        return not call.syscall(_RESTRICT, made, ctypes.c_uint32(0))
    finally:
        os.close(made)
