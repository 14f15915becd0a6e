"""Remove what macOS or Windows lacks from this interpreter: `import absent_names` is the first statement.

The standard library chooses its own way by platform while it is imported, so the modules that do are loaded
before the names go. What is left is what a module of ours finds there: no `fcntl`, no `os.fork`, no SIGKILL.
The folders /proc and /sys do not exist either. `ONCEMORE_TEST_PLATFORM` says which of the two is meant.

This shows that our code asks for nothing that is absent. It does not show how the other system behaves.
"""

# ruff: noqa: F401 - imported for their effect
import asyncio
import builtins
import concurrent.futures
import http.client
import io
import logging
import multiprocessing.util
import os
import random
import selectors
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLATFORM = os.environ["ONCEMORE_TEST_PLATFORM"]
#: Python's documentation names the systems that have each of these.
MODULES = {
    "windows": {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"},
    "macos": set(),
}[PLATFORM]
LINUX_ONLY = (
    *("O_DIRECT", "O_PATH", "O_TMPFILE", "SCHED_BATCH", "copy_file_range", "eventfd", "fdatasync"),
    *("getrandom", "memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "sched_getaffinity"),
    *("sched_setaffinity", "splice", "waitid"),
)
POSIX_ONLY = (
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "WNOHANG", "chown", "fchmod"),
    *("fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getuid"),
    *("killpg", "lchown", "mkfifo", "nice", "posix_spawn", "pread", "pwrite", "register_at_fork"),
    *("setpgid", "setsid", "statvfs", "sysconf", "uname", "wait3", "wait4", "waitpid"),
)
SIGNALS = (
    *("SIGALRM", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGUSR1"),
    *("SIGUSR2", "SIGXFSZ", "alarm", "pthread_kill", "pthread_sigmask", "setitimer", "sigwait"),
)


class AbsentModules:
    """Refuses to find the modules that the platform lacks."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide_kernel_files(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the standard library that finds nothing below /proc and /sys."""

    def refuse(path: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *rest, **options)

    return refuse


def remove(module: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


sys.meta_path.insert(0, AbsentModules)  # type: ignore[arg-type]
for name in MODULES:
    sys.modules.pop(name, None)
for module in (builtins, io):
    module.open = hide_kernel_files(open)  # type: ignore[attr-defined]
os.open, os.stat = hide_kernel_files(os.open), hide_kernel_files(os.stat)  # type: ignore[assignment]
remove(os, LINUX_ONLY)
remove(time, ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"))
if PLATFORM == "windows":
    import _signal

    remove(os, POSIX_ONLY)
    remove(signal, SIGNALS)
    remove(_signal, SIGNALS)
    remove(time, ("clock_gettime", "CLOCK_MONOTONIC", "CLOCK_REALTIME"))
