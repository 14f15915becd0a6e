"""Backends for the bytes of artifacts: the protocol, a folder, and memory.

A backend stores objects by the digest of their bytes. Every backend guarantees:

* **Complete or absent.** Bytes are staged in a private file and become an object in one rename, after they
  are on disk. A writer that dies before leaves a staged file that is never read and is removed later.
* **Never replaced by other bytes.** An existing object is verified before bytes of the same digest replace
  it; an altered object stays as it is, as evidence.
* **Removed only if unused.** Publishing makes an object young again; `remove_object` takes the age that it
  must have, and checks it at the removal.

Backends raise `OSError` when an operation fails, and `PolicyViolation` when bytes do not match their digest.
In a folder:

    sha256/ab/abcd…   an object; its owner may read it, and no user may write it
    writing/…         staged bytes
    logs/…            the logs with artifacts here: garbage collection for one must not forget the rest
    lock              held shared to publish, and exclusively to remove

Folders are 0700 and files 0600 or less: results and captured output are as private as the log.
"""

from __future__ import annotations

import io
import os
import re
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from oncemore import clock as clocks
from oncemore._platform import sync_folder
from oncemore._values import Value
from oncemore.errors import PolicyViolation, StoreError
from oncemore.log.entry_codec import new_nonce

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

CHUNK_BYTES = 1024 * 1024
_DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")


class StoredObject(Value):
    """An object in a backend; `modified` is the time it was last published, in POSIX seconds."""

    digest: str
    size: int
    modified: float


class ObjectUpload(Protocol):
    """Staged bytes that become an object."""

    def write(self, data: bytes) -> object:
        """Append bytes."""

    def publish_object(self, digest: str, size: int) -> None:
        """Make the bytes an object, atomically and durably."""

    def close(self) -> None:
        """Discard bytes that were not published."""


class ArtifactBackend(Protocol):
    """Stores objects by digest.

    url        its address, for messages
    is_shared  whether another process can use it
    """

    url: str
    is_shared: bool

    def start_upload(self) -> ObjectUpload:
        """Return a new upload."""

    def open_object(self, digest: str) -> BinaryIO:
        """Return the bytes of an object, unverified; `FileNotFoundError` when there is none."""

    def object_path(self, digest: str) -> Path | None:
        """Return the path of an object on this machine, or None if the backend has no files."""

    def list_objects(self) -> Iterator[StoredObject]:
        """Return all objects."""

    def remove_object(self, digest: str, before: float) -> bool:
        """Remove an object that was last published before a time; return whether it is absent now."""

    def remove_leftovers(self, before: float) -> int:
        """Remove staged bytes of dead writers from before a time; return their number."""

    def register_log(self, log: str) -> None:
        """Record that a log has artifacts here."""

    def registered_logs(self) -> frozenset[str]:
        """Return the logs that have artifacts here."""


def compute_digest(file: BinaryIO, copy: BinaryIO | None = None) -> tuple[str, int]:
    """Return the digest and the size of the rest of a file, in bounded memory; write its bytes to `copy`."""
    hasher, size = sha256(), 0
    while data := file.read(CHUNK_BYTES):
        hasher.update(data)
        size += len(data)
        if copy is not None:
            copy.write(data)
    return hasher.hexdigest(), size


def check_digest(digest: object) -> None:
    """Raise `StoreError` if a value is not a digest, before it becomes part of a path."""
    if not isinstance(digest, str) or not _DIGEST_PATTERN.fullmatch(digest):
        raise StoreError(f"{digest!r:.80} is not a digest: it takes 64 hex digits")


def verify_digest(file: BinaryIO, digest: str) -> None:
    """Raise `PolicyViolation` if bytes do not match their digest."""
    actual_digest, size = compute_digest(file)
    if actual_digest != digest:
        raise altered_object_error(digest, actual_digest, size)


def altered_object_error(digest: str, actual_digest: str, size: int) -> PolicyViolation:
    """Return the error for bytes that do not match their digest."""
    error = PolicyViolation(
        "CHECKSUM_MISMATCH",
        f"the object {digest} was altered: its {size:,} bytes have the digest {actual_digest}; it is neither "
        "used nor replaced; restore the original bytes, or remove the object and run the step again",
    )
    vars(error).update(evidence={"expected": digest, "found": actual_digest, "found_size": size})
    return error


class FolderBackend:
    """A folder on this machine."""

    is_shared = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.url = str(self.root)

    def start_upload(self) -> FolderUpload:
        """Return an upload to a private file."""
        # In the same file system as the objects: a rename across file systems is not atomic.
        writing = self.root / "writing"
        _make_folder(writing)
        return FolderUpload(self, writing / f"{os.getpid()}-{new_nonce():016x}")

    def open_object(self, digest: str) -> BinaryIO:
        """Return an object's file."""
        return self.object_path(digest).open("rb")

    def object_path(self, digest: str) -> Path:
        """Return the path of an object, which may not exist."""
        check_digest(digest)
        return self.root / "sha256" / digest[:2] / digest

    def list_objects(self) -> Iterator[StoredObject]:
        """Return every object; ignore files with other names."""
        for file in sorted(self.root.glob("sha256/??/*")):
            # Garbage collection in another process may remove a file after it was listed.
            with suppress(FileNotFoundError):
                if _DIGEST_PATTERN.fullmatch(file.name):
                    status = file.stat()
                    yield StoredObject(file.name, status.st_size, status.st_mtime)

    def find_open_paths(self) -> Iterator[Path]:
        """Return every path of the folder that other users may read, write or enter."""
        for path in chain((self.root,), self.root.rglob("*")):
            with suppress(FileNotFoundError):
                if path.lstat().st_mode & 0o077:
                    yield path

    def remove_object(self, digest: str, before: float) -> bool:
        """Remove an object, unless a writer has published it again."""
        file = self.object_path(digest)
        # Exclusive, so that no writer publishes between the check of the age and the removal.
        with self.hold_lock(shared=False):
            try:
                if file.stat().st_mtime >= before:
                    return False
                file.unlink()
            except FileNotFoundError:
                pass
        return True

    def remove_leftovers(self, before: float) -> int:
        """Remove staged files that were last written before a time."""
        count = 0
        for file in self.root.glob("writing/*"):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < before:
                    file.unlink()
                    count += 1
        return count

    def register_log(self, log: str) -> None:
        """Write the address of a log to a file of its own."""
        logs, file = self.root / "logs", self._registration_file(log)
        _make_folder(logs)
        if not file.exists():
            # Renamed into place, so that a reader never sees a part of an address.
            new = file.with_name(f"{file.name}.{new_nonce():016x}")
            with _create(new) as new_file:
                new_file.write(log.encode())
                new_file.flush()
                os.fsync(new_file.fileno())
            new.replace(file)
            _sync_folder(logs)

    def is_registered(self, log: str) -> bool:
        """Whether a log has, or had, artifacts here."""
        return self._registration_file(log).exists()

    def unregister_log(self, log: str) -> bool:
        """Remove the registration of a log; its objects stay. Return whether it was registered."""
        was_registered = self.is_registered(log)
        self._registration_file(log).unlink(missing_ok=True)
        return was_registered

    def _registration_file(self, log: str) -> Path:
        return self.root / "logs" / sha256(log.encode()).hexdigest()[:32]

    def registered_logs(self) -> frozenset[str]:
        """Return the addresses of the registered logs."""
        # A name with a dot is a temporary file of `register_log`.
        files = (file for file in self.root.glob("logs/*") if "." not in file.name)
        return frozenset(file.read_text(encoding="utf-8") for file in files)

    @contextmanager
    def hold_lock(self, *, shared: bool) -> Iterator[None]:
        """Hold the lock of the folder; the kernel releases it if the process dies."""
        # Imported here: a platform without fcntl can still use `memory:`.
        import fcntl

        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class FolderUpload:
    """A staged file that becomes an object by a rename."""

    def __init__(self, folder: FolderBackend, path: Path) -> None:
        self._folder, self._path = folder, path
        self._file = _create(path)

    def write(self, data: bytes) -> None:
        """Write all bytes."""
        # The file is unbuffered, and one write may take only some of the bytes.
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]

    def publish_object(self, digest: str, size: int) -> None:
        """Sync the file, rename it to its object path, and sync the folders."""
        os.fchmod(self._file.fileno(), 0o400)
        os.fsync(self._file.fileno())
        target = self._folder.object_path(digest)
        with self._folder.hold_lock(shared=True):
            for parent in (target.parent.parent, target.parent):
                parent.mkdir(mode=0o700, exist_ok=True)
            # An altered object must stay as evidence: this raises before the rename.
            with suppress(FileNotFoundError), target.open("rb") as existing:
                verify_digest(existing, digest)
            # Its age counts from now, even if it took long to write.
            os.utime(self._file.fileno())
            self._path.replace(target)
            # Also folders of another process: that may have died before it synced them.
            for folder in target.parents[:4]:
                _sync_folder(folder)

    def close(self) -> None:
        """Close the file, and delete it if it was not published."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _create(path: Path) -> io.FileIO:
    """Create a file that only its owner can read, and open it for writing."""
    return io.FileIO(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb")


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents; each is on disk before the next is created in it."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    # A folder that this user cannot read was not created here, so it existed before.
    with suppress(PermissionError):
        sync_folder(folder)


class MemoryBackend:
    """The memory of this process, for engines on `memory:`."""

    url = "memory:"
    is_shared = False

    def __init__(self) -> None:
        self.stored_objects: dict[str, tuple[bytes, float]] = {}
        self._logs: set[str] = set()
        self._lock = Lock()

    def start_upload(self) -> MemoryUpload:
        """Return an upload to a buffer."""
        return MemoryUpload(self)

    def open_object(self, digest: str) -> BinaryIO:
        """Return the bytes of an object as a file."""
        if digest not in self.stored_objects:
            raise FileNotFoundError(f"there is no object {digest}")
        return io.BufferedReader(io.BytesIO(self.stored_objects[digest][0]))  # type: ignore[type-var,return-value,unused-ignore]

    def object_path(self, digest: str) -> None:
        """Return None: there are no files."""

    def list_objects(self) -> Iterator[StoredObject]:
        """Return every object."""
        for digest, (data, modified) in sorted(self.stored_objects.items()):
            yield StoredObject(digest, len(data), modified)

    def remove_object(self, digest: str, before: float) -> bool:
        """Remove an object, unless a writer has published it again."""
        with self._lock:
            if digest in self.stored_objects and self.stored_objects[digest][1] >= before:
                return False
            self.stored_objects.pop(digest, None)
            return True

    def remove_leftovers(self, before: float) -> int:
        """Return 0: a buffer ends with its writer."""
        return 0

    def register_log(self, log: str) -> None:
        """Record that a log has artifacts here."""
        self._logs.add(log)

    def registered_logs(self) -> frozenset[str]:
        """Return the registered logs."""
        return frozenset(self._logs)

    def publish_bytes(self, digest: str, data: bytes) -> None:
        """Store bytes under their digest."""
        with self._lock:
            if digest in self.stored_objects:
                verify_digest(io.BytesIO(self.stored_objects[digest][0]), digest)
            self.stored_objects[digest] = (data, clocks.current.wall())


class MemoryUpload:
    """A buffer that becomes an object."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._backend, self._buffer = backend, io.BytesIO()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._buffer.write(data)

    def publish_object(self, digest: str, size: int) -> None:
        """Store the content of the buffer."""
        self._backend.publish_bytes(digest, self._buffer.getvalue())

    def close(self) -> None:
        """Free the buffer."""
        self._buffer.close()
