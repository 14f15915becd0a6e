"""Restrict a process to reading, computing, and writing inside one folder.

Two mechanisms do this. Landlock, on Linux kernels that have it, refuses writes outside of the folder, and TCP
from Linux 6.7 on; it does not cover UDP and Unix sockets. Audit hooks of the interpreter refuse the same, all
other connections and new processes. They also record every refusal, so that a step that swallows the
`PermissionError` is still reported. Neither can be removed from inside the process.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Audit events that change files, with the positions of the arguments that are paths.
_CHANGE_EVENTS = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.link": (1,),
    "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
    "os.setxattr": (0,), "os.removexattr": (0,), "sqlite3.connect": (0,),
}  # fmt: skip
#: Audit events that connect to other machines or start processes.
_OUTSIDE_EVENTS = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty",
    "pty.spawn",
)  # fmt: skip
_ALLOWED_PATHS = ("/dev/null", ":memory:")


class SandboxGuard:
    """The restrictions of this process, and the actions that were refused since `refused` was cleared."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())
        self.refused: list[str] = []
        self.has_landlock = False

    def activate_guard(self) -> None:
        """Restrict this process; it cannot be undone."""
        self.has_landlock = _apply_landlock(self.folder)
        sys.addaudithook(self._on_audit_event)

    def _on_audit_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if _opens_for_writing(mode, flags):
                self._check_path("write", path)
        elif event in _CHANGE_EVENTS:
            for position in _CHANGE_EVENTS[event]:
                self._check_path(event, args[position])
        elif event in _OUTSIDE_EVENTS:
            self._refuse_action(event, str(args[0])[:80] if args else "")

    def _check_path(self, action: str, path: Any) -> None:
        if isinstance(path, int) or path is None:
            return  # a descriptor that was opened before the restriction, or in the folder
        name = os.fsdecode(path)
        if name in _ALLOWED_PATHS:
            return
        # A symbolic link in the folder may point outside of it.
        real = os.path.realpath(name)
        if real != self.folder and not real.startswith(self.folder + os.sep):
            self._refuse_action(action, name)

    def _refuse_action(self, action: str, target: str) -> None:
        refused = f"{action} {target}".strip()
        self.refused.append(refused)
        raise PermissionError(
            f"a replay may neither write outside of its folder nor connect to anything: {refused}"
        )


def _opens_for_writing(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(flag in mode for flag in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITE_FLAGS)


# Landlock -------------------------------------------------------------------------------------------

# System call numbers; they are the same on all architectures of Linux.
_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446
_WRITE_RIGHT = 1 << 1
#: The rights to write, remove, create and move files of every type. Version 1 of Landlock cannot grant moves,
#: so version 2 is required.
_CHANGE_RIGHTS = _WRITE_RIGHT | sum(1 << bit for bit in range(4, 14))
_TRUNCATE_RIGHT, _MIN_VERSION, _TRUNCATE_VERSION = 1 << 14, 2, 3
#: The rights to bind and connect TCP sockets, and the first version of Landlock that knows them.
_TCP_RIGHTS, _TCP_VERSION = 0b11, 4
_NO_NEW_PRIVILEGES = 38


class _LandlockRuleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64))


class _LandlockPathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def _apply_landlock(folder: str) -> bool:
    """Make the kernel refuse TCP and changes outside of a folder; return whether it does."""
    if sys.platform != "linux":
        return False
    # The standard library has no Landlock functions, and glibc has no wrappers for the system calls.
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_SYS_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < _MIN_VERSION:
        return False
    changing = _CHANGE_RIGHTS | (_TRUNCATE_RIGHT if version >= _TRUNCATE_VERSION else 0)
    rules = _LandlockRuleset(changing, _TCP_RIGHTS if version >= _TCP_VERSION else 0)
    # A kernel that does not know the last field accepts it only if it is 0.
    ruleset = libc.syscall(
        _SYS_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        return False
    try:
        for path, allowed in ((folder, changing), ("/dev/null", _WRITE_RIGHT)):
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                beneath = _LandlockPathRule(allowed, handle)
                if libc.syscall(_SYS_ADD_RULE, ruleset, 1, ctypes.byref(beneath), ctypes.c_uint32(0)):
                    return False
            finally:
                os.close(handle)
        # An unprivileged process must give up new privileges before it may restrict itself.
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            return False
        return not libc.syscall(_SYS_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
