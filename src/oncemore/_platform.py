"""What differs between operating systems: names of `os` that Linux has and macOS or Windows lacks.

Linux is supported. Elsewhere `retry`, policies, the linter and the HTTP clients work, and steps whose store
is a server; docs/reference/platforms.md has the table. The modules of those parts take the names below,
because `os` has its own only where the system does. Parts for POSIX alone, such as the SQLite store, use `os`
and `fcntl` directly, and `require_posix` refuses them elsewhere before they are imported.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Flags of `os.open`; 0 where the system has no such flag. Python sets close-on-exec itself (PEP 446); the
#: flag closes the gap between two system calls.
CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
NO_BLOCKING = getattr(os, "O_NONBLOCK", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
#: Without it Windows would change line ends.
BINARY = getattr(os, "O_BINARY", 0)


#: The clock of the kernel that also runs while the machine sleeps; -1 where `time` has no clocks by number.
BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", -1))


def require_posix(part: str, instead: str) -> None:
    """Refuse a part of the package on a system without POSIX file locks and processes."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        from oncemore.errors import UsageError

        raise UsageError(
            f"{part} needs POSIX file locks and processes (the module fcntl): it is supported on Linux. "
            f"{instead}"
        ) from None


def run_after_fork(reset: Callable[[], object], *, before: Callable[[], object] = int) -> None:
    """Run a function in every forked child, and one before the fork; on Windows no process forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_child=reset)


def sync_data(descriptor: int) -> None:
    """Write the content of a file to the disk; macOS has no call that leaves out the file's times."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(folder: str | Path) -> None:
    """Make new and replaced names in a folder durable."""
    # Windows cannot open a folder as a file, and offers no such call.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY | CLOSE_ON_EXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def get_boot_time() -> float:
    """Return the seconds since boot; without such a clock, those of `time.monotonic`."""
    return time.monotonic() if BOOT_CLOCK < 0 else time.clock_gettime(BOOT_CLOCK)


def get_thread_clock() -> int:
    """Return the number of the CPU clock of this thread, which every thread can read; -1 if it has none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return -1
    from _thread import get_ident

    return time.pthread_getcpuclockid(get_ident())


def get_host_name() -> str:
    """Return the name of this machine."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket

    return socket.gethostname()
