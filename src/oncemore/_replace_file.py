"""Replace a file in one step: a reader finds the old or the new content, and a crash leaves one of them.

The order, and the meaning of a crash after each part:

    1. the content in a temporary file of the same folder    the old file; a hidden file is left behind
    2. its bytes on the disk                                 the same
    3. the rename                                            the old or the new file, whole
    4. the folder on the disk                                the new file

All files that the package writes for others to read go through here: exports, proofs, signatures, prepared
decisions, copies of checkpoints, and sources that the linter or a migration has changed.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path

from oncemore._platform import sync_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

PRIVATE_MODE = 0o600


@contextmanager
def open_replacement(path: Path, mode: int = PRIVATE_MODE) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces the one at a path when the block ends without an error.

    mode  the permissions of the new file
    """
    import tempfile

    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because a rename is atomic only within a file system.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            # Before the content: a private file must not be readable for a moment, nor a public one private.
            # Windows has no such permissions.
            if hasattr(os, "fchmod"):
                os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
    # The name itself is durable only after the folder is.
    sync_folder(path.parent)


def replace_file(path: Path, content: bytes, mode: int = PRIVATE_MODE) -> None:
    """Write a file that replaces the one at a path; by default only the owner may read it."""
    with open_replacement(path, mode) as file:
        file.write(content)


def read_default_mode() -> int:
    """Return the permissions that a new file of this process has."""
    # The mask can only be read by setting it; the other value lasts for two system calls.
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask
