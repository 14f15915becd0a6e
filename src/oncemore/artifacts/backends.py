"""Where the bytes of artifacts can be: what the engine asks of a place, and two of them.

A place keeps objects by the digest of their bytes. What every place promises:

* **Whole or not at all.** Bytes are staged out of everybody's sight and become an object in one move, when
  they are on the disk. Who dies before leaves a staged rest that is never read, and is swept away later.
* **Never replaced by something else.** An object that is there already is read and held against its digest
  before other bytes of the same digest take its place; one that was altered stays as it is, as evidence.
* **Removed only if nobody just used it.** Publishing makes an object young again; `remove` takes the age
  that it must have, and looks at it in the moment of removal.

Places raise `OSError` when they cannot do what they are asked for, and `Violation` when bytes are not what
their digest says. In a folder:

    sha256/ab/abcd…   an object; its owner may read it, and nobody may write it
    writing/…         staged bytes
    logs/…            which logs keep artifacts here: collecting for one must not forget the other
    lock              held shared to publish, and alone to remove

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
from oncemore._ids import nonce
from oncemore._values import Value
from oncemore.errors import StoreError, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

CHUNK = 1024 * 1024
_OBJECT = re.compile(r"[0-9a-f]{64}")


class Object(Value):
    """What is kept under a digest; `modified` is when it was last published, in POSIX seconds."""

    digest: str
    size: int
    modified: float


class Stage(Protocol):
    """Bytes on their way to become an object."""

    def write(self, data: bytes) -> object:
        """Take the next bytes."""

    def publish(self, digest: str, size: int) -> None:
        """Make them an object, in one move and for good."""

    def close(self) -> None:
        """Let go of what was not published."""


class Place(Protocol):
    """Keeps objects by digest.

    url     where it is, for people
    shared  whether another process can use it
    """

    url: str
    shared: bool

    def stage(self) -> Stage:
        """Return something to write to."""

    def open(self, digest: str) -> BinaryIO:
        """Return the bytes of an object, unverified; `FileNotFoundError` when there is none."""

    def path(self, digest: str) -> Path | None:
        """Return where an object is as a file of this machine, or None if it is none."""

    def objects(self) -> Iterator[Object]:
        """Return everything that is kept."""

    def remove(self, digest: str, before: float) -> bool:
        """Remove an object that was last published before a time; say whether it is gone."""

    def sweep(self, before: float) -> int:
        """Remove what dead writers left before a time; return how much of it there was."""

    def sign(self, log: str) -> None:
        """Remember that a log keeps artifacts here."""

    def signed(self) -> frozenset[str]:
        """Return the logs that keep artifacts here."""


def digest_of(file: BinaryIO) -> tuple[str, int]:
    """Return the digest and the number of the bytes that are left in a file, in bounded memory."""
    running, size = sha256(), 0
    while data := file.read(CHUNK):
        running.update(data)
        size += len(data)
    return running.hexdigest(), size


def check_digest(digest: object) -> None:
    """Refuse what is not a digest before it becomes a part of a path."""
    if not isinstance(digest, str) or not _OBJECT.fullmatch(digest):
        raise StoreError(f"{digest!r:.80} is not a digest: it takes 64 hex digits")


def hold(file: BinaryIO, digest: str) -> None:
    """Refuse bytes that are not what their digest says."""
    found, size = digest_of(file)
    if found != digest:
        raise altered(digest, found, size)


def altered(digest: str, found: str, size: int) -> Violation:
    """Return the error for bytes that are not what their digest says."""
    made = Violation(
        "CHECKSUM_MISMATCH",
        f"the object {digest} was altered: its {size:,} bytes have the digest {found}; it is neither used "
        "nor made anew; put back what was there, or remove it and run the step again",
    )
    vars(made).update(evidence={"expected": digest, "found": found, "found_size": size})
    return made


class Folder:
    """A folder of this machine."""

    shared = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.url = str(self.root)

    def where(self, digest: str) -> Path:
        """Return where an object is, if it is there."""
        check_digest(digest)
        return self.root / "sha256" / digest[:2] / digest

    def stage(self) -> FolderStage:
        """Return a file that only its writer knows, on the same file system as the objects."""
        writing = self.root / "writing"
        _make(writing)
        return FolderStage(self, writing / f"{os.getpid()}-{nonce():016x}")

    def open(self, digest: str) -> BinaryIO:
        """Return an object's file."""
        return self.where(digest).open("rb")

    def path(self, digest: str) -> Path:
        """Return an object's path."""
        return self.where(digest)

    def objects(self) -> Iterator[Object]:
        """Return every object; what does not look like one is left alone."""
        for file in sorted(self.root.glob("sha256/??/*")):
            with suppress(FileNotFoundError):  # removed meanwhile
                if _OBJECT.fullmatch(file.name):
                    found = file.stat()
                    yield Object(file.name, found.st_size, found.st_mtime)

    def find_open_paths(self) -> Iterator[Path]:
        """Return every path of the folder that other users may read, write or enter."""
        for path in chain((self.root,), self.root.rglob("*")):
            with suppress(FileNotFoundError):
                if path.lstat().st_mode & 0o077:
                    yield path

    def remove(self, digest: str, before: float) -> bool:
        """Remove an object, unless somebody published it anew."""
        file = self.where(digest)
        with self.locked(shared=False):
            try:
                if file.stat().st_mtime >= before:
                    return False
                file.unlink()
            except FileNotFoundError:
                pass
        return True

    def sweep(self, before: float) -> int:
        """Remove staged bytes that nobody has written to since."""
        swept = 0
        for file in self.root.glob("writing/*"):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < before:
                    file.unlink()
                    swept += 1
        return swept

    def sign(self, log: str) -> None:
        """Write a log's address into a file of its own."""
        logs, file = self.root / "logs", self._signature(log)
        _make(logs)
        if not file.exists():
            new = file.with_name(f"{file.name}.{nonce():016x}")
            with _create(new) as told:
                told.write(log.encode())
                told.flush()
                os.fsync(told.fileno())
            new.replace(file)
            _sync(logs)

    def has_signature(self, log: str) -> bool:
        """Whether a log keeps, or has kept, artifacts here."""
        return self._signature(log).exists()

    def remove_signature(self, log: str) -> bool:
        """Forget that a log kept artifacts here; its objects stay. Return whether it did."""
        found = self.has_signature(log)
        self._signature(log).unlink(missing_ok=True)
        return found

    def _signature(self, log: str) -> Path:
        return self.root / "logs" / sha256(log.encode()).hexdigest()[:32]

    def signed(self) -> frozenset[str]:
        """Return the addresses in those files."""
        files = (file for file in self.root.glob("logs/*") if "." not in file.name)
        return frozenset(file.read_text(encoding="utf-8") for file in files)

    @contextmanager
    def locked(self, *, shared: bool) -> Iterator[None]:
        """Hold the folder's lock; it ends with the file, also when the process dies."""
        import fcntl  # only files need it: a platform that lacks it has `memory:`

        held = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)


class FolderStage:
    """A file in the folder that becomes an object by being renamed."""

    def __init__(self, folder: Folder, path: Path) -> None:
        self._folder, self._path = folder, path
        self._file = _create(path)

    def write(self, data: bytes) -> None:
        """Write all of it: the file may take less at a time."""
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]

    def publish(self, digest: str, size: int) -> None:
        """Bring it to the disk, then into its place, then the place to the disk."""
        os.fchmod(self._file.fileno(), 0o400)
        os.fsync(self._file.fileno())
        target = self._folder.where(digest)
        with self._folder.locked(shared=True):
            for made in (target.parent.parent, target.parent):
                made.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError), target.open("rb") as there:
                hold(there, digest)
            os.utime(self._file.fileno())  # it is young from now on, however long it took to write
            self._path.replace(target)
            # Also if somebody else made the folders: they may not have come to this line.
            for folder in target.parents[:4]:
                _sync(folder)

    def close(self) -> None:
        """Close the file; what was not renamed goes."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _create(path: Path) -> io.FileIO:
    """Create a file for its owner alone, and open it to be written to."""
    return io.FileIO(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb")


def _make(folder: Path) -> None:
    """Make a folder and those above it; each is on the disk before anything is in it."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    """Bring a folder's entries to the disk; one that may not be read was there before us."""
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(at)
    finally:
        os.close(at)


class Memory:
    """This process: for engines on `memory:`, forgotten with them."""

    url = "memory:"
    shared = False

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, float]] = {}
        self._logs: set[str] = set()
        self._lock = Lock()

    def stage(self) -> MemoryStage:
        """Return a buffer."""
        return MemoryStage(self)

    def open(self, digest: str) -> BinaryIO:
        """Return an object's bytes."""
        if digest not in self.kept:
            raise FileNotFoundError(f"there is no object {digest}")
        return io.BufferedReader(io.BytesIO(self.kept[digest][0]))  # type: ignore[type-var,return-value,unused-ignore]

    def path(self, digest: str) -> None:
        """There are no files."""

    def objects(self) -> Iterator[Object]:
        """Return every object."""
        for digest, (data, modified) in sorted(self.kept.items()):
            yield Object(digest, len(data), modified)

    def remove(self, digest: str, before: float) -> bool:
        """Remove an object, unless somebody published it anew."""
        with self._lock:
            if digest in self.kept and self.kept[digest][1] >= before:
                return False
            self.kept.pop(digest, None)
            return True

    def sweep(self, before: float) -> int:
        """There is nothing that outlives its writer."""
        return 0

    def sign(self, log: str) -> None:
        """Remember it."""
        self._logs.add(log)

    def signed(self) -> frozenset[str]:
        """Return what is remembered."""
        return frozenset(self._logs)

    def publish(self, digest: str, data: bytes) -> None:
        """Keep bytes under their digest."""
        with self._lock:
            if digest in self.kept:
                hold(io.BytesIO(self.kept[digest][0]), digest)
            self.kept[digest] = (data, clocks.current.wall())


class MemoryStage:
    """A buffer that becomes an object."""

    def __init__(self, place: Memory) -> None:
        self._place, self._buffer = place, io.BytesIO()

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self._buffer.write(data)

    def publish(self, digest: str, size: int) -> None:
        """Hand the buffer over."""
        self._place.publish(digest, self._buffer.getvalue())

    def close(self) -> None:
        """Let go of the buffer."""
        self._buffer.close()
