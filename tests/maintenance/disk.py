"""A small disk for tests: a tmpfs of a few megabytes that can be filled."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Disk:
    """A mounted tmpfs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Fill the disk completely."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (65_536, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * size)  # short where there is little left
        assert self.left < 4096

    def free(self) -> None:
        """Free the space again."""
        self._filler.unlink(missing_ok=True)

    @property
    def left(self) -> int:
        there = os.statvfs(self.path)
        return there.f_bavail * there.f_frsize


@contextlib.contextmanager
def mount_disk(path: Path, size: str = "8m") -> Iterator[Disk]:
    """Mount a small disk; raise PermissionError if mounting is not permitted."""
    path.mkdir()
    run = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise PermissionError(errno.EPERM, run.stderr)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def may_mount(path: Path) -> bool:
    try:
        with mount_disk(path / "probe"):
            return True
    except PermissionError:
        return False
