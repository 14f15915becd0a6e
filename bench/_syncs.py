"""How often SQLite waits for the disk, counted where it does so; and a disk that is slow on purpose.

SQLite reaches a file through a table of functions that hangs on the open file. For a connection of apsw we
hang a copy of that table there in which one function, `xSync`, is ours: it counts, and then either does what
it did before or, for a slow disk, sleeps instead. Nothing else goes through Python, so nothing else costs
more. (Counted against strace: the same number.)

A disk does not need Python's interpreter lock, so a slow one must not either: a sleep in Python would first
have to wait for a thread that computes, up to 5 ms. Where the processor is one that we can write for, the
sleep is 40 bytes of machine code that count and call `nanosleep`; elsewhere it is Python, and costs more.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILES = (apsw.SQLITE_FCNTL_FILE_POINTER, apsw.SQLITE_FCNTL_JOURNAL_POINTER)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
#: Functions in `sqlite3_io_methods`, by its version; its first field is the version itself.
_FUNCTIONS = {1: 12, 2: 16, 3: 18}
_SYNC = 5
_alive: list[Any] = []  # SQLite has pointers into these


@contextmanager
def opened() -> Iterator[list[apsw.Connection]]:
    """Collect the connections that are opened inside."""
    connections: list[apsw.Connection] = []
    apsw.connection_hooks.append(connections.append)
    try:
        yield connections
    finally:
        apsw.connection_hooks.remove(connections.append)


class Syncs:
    """Counts the syncs of connections that have written before; with `pause_s`, each is a sleep instead."""

    def __init__(self, connections: list[apsw.Connection], pause_s: float = 0.0) -> None:
        self._count = ctypes.c_longlong(0)
        self._pause_s = pause_s
        self._asleep = _nap(self._count, pause_s) if pause_s else None
        for connection in connections:
            if not connection.readonly("main"):
                for which in _FILES:
                    self._watch(connection, which)

    def each(self, run: Callable[[int], object], n: int) -> float:
        """Return how many syncs one of n things makes, checkpoints among them."""
        before = self.count
        run(n)
        return (self.count - before) / n

    @property
    def count(self) -> int:
        """How many there were."""
        return self._count.value

    def _watch(self, connection: apsw.Connection, which: int) -> None:
        pointer = ctypes.c_void_p()
        if not connection.file_control("main", which, ctypes.addressof(pointer)):
            raise RuntimeError("SQLite does not say where its file is")
        file = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))
        version = ctypes.cast(file[0], ctypes.POINTER(ctypes.c_int))[0]
        table = (ctypes.c_void_p * (1 + _FUNCTIONS[min(version, 3)]))()
        ctypes.memmove(table, file[0], ctypes.sizeof(table))
        ours = self._asleep or _Sync(self._synced(_Sync(table[_SYNC])))
        table[_SYNC] = ctypes.cast(ours, ctypes.c_void_p).value
        _alive.append((table, ours))
        file[0] = ctypes.addressof(table)

    def _synced(self, before: Any) -> Any:
        def sync(file: int, flags: int) -> int:
            self._count.value += 1
            if self._pause_s:
                time.sleep(self._pause_s)
                return 0
            return int(before(file, flags))

        return sync


def _nap(count: ctypes.c_longlong, pause_s: float) -> Any:
    """Return a function for `xSync` that counts and sleeps without the interpreter; or None."""
    if platform.machine() not in ("x86_64", "AMD64") or platform.system() != "Linux":
        return None
    libc = ctypes.CDLL(None)
    span = (ctypes.c_long * 2)(int(pause_s), int(pause_s % 1 * 1e9))
    code = b"".join(
        (
            b"\x48\x83\xec\x08",  # sub rsp, 8
            b"\x48\xb8" + struct.pack("<Q", ctypes.addressof(count)),  # mov rax, count
            b"\xf0\x48\xff\x00",  # lock inc qword [rax]
            b"\x48\xbf" + struct.pack("<Q", ctypes.addressof(span)),  # mov rdi, span
            b"\x31\xf6",  # xor esi, esi
            b"\x48\xb8" + struct.pack("<Q", _address(libc.nanosleep)),  # mov rax, nanosleep
            b"\xff\xd0",  # call rax
            b"\x31\xc0",  # xor eax, eax
            b"\x48\x83\xc4\x08",  # add rsp, 8
            b"\xc3",  # ret
        )
    )
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    _alive.append((page, span, count))
    return _Sync(ctypes.addressof(ctypes.c_char.from_buffer(page)))


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
