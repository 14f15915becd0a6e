"""The sandbox of a replay refuses TCP in the kernel, also to what does not ask the interpreter."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import ctypes, errno, pathlib, socket, struct, sys
from oncemore.maintenance.sandbox import SandboxGuard

libc = ctypes.CDLL(None, use_errno=True)  # before the doors close; its calls raise no audit event
guard = SandboxGuard(pathlib.Path(sys.argv[1]))
guard.activate_guard()
file = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(int(sys.argv[2])), b"\\x7f\\0\\0\\1")
answer = libc.connect(file, address, len(address))
print(guard.has_landlock, answer, errno.errorcode.get(ctypes.get_errno(), ""))
"""


def landlock_version() -> int:
    call = ctypes.CDLL(None, use_errno=True)
    return int(call.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


@pytest.mark.skipif(sys.platform != "linux" or landlock_version() < 4, reason="needs Landlock 4, Linux 6.7")
def test_a_library_in_c_cannot_connect_in_a_replay(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(server.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "-1", "EACCES"]
