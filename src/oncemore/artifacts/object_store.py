"""Artifacts in object storage, by `obstore`: S3, Google Cloud, Azure, and what speaks like them.

    oncemore.open(url, artifacts="s3://bucket/prefix")

Credentials and regions come from where `obstore` finds them: the environment, or the machine's own role.
An object's key is `sha256/ab/abcd…` below the prefix. Bytes are staged in a temporary file, because the key
is their digest, and sent from there in bounded memory: small ones by a conditional put, which is refused
where an object is, large ones in parts, which become an object only when all are there.

There is no lock in object storage. An object that is there already is verified and, when it is not young,
sent again, so that collecting garbage sees it young. What is left is the moment between the last look of
`remove` and its deletion: content that has been garbage for a day, put again within that moment, would be
missed, and found missing by its first reader. Where that matters, collect while nothing runs.
"""

from __future__ import annotations

import io
import tempfile
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, BinaryIO

from oncemore import clock as clocks
from oncemore._redact import hide_credentials, masked
from oncemore.artifacts.backends import CHUNK, Object, check_digest, hold
from oncemore.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What is sent at once, by a conditional put; more goes in parts.
AT_ONCE = 8 * 1024 * 1024
#: An object that is found again and was last sent longer ago is sent again.
YOUNG_S = 30.0


class Bucket:
    """A place in object storage."""

    shared = True

    def __init__(self, url: str, client: Any = None) -> None:
        self.url, self._address = hide_credentials(url), url
        self._client = client
        if client is None:
            _obstore()  # whoever names object storage must have what speaks to it

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address,)

    @property
    def client(self) -> Any:
        """What speaks to the storage, made when it is first needed."""
        if self._client is None:
            from obstore.store import from_url

            try:
                self._client = from_url(self._address)
            except Exception as fault:  # noqa: BLE001 - each kind of storage has errors of its own
                text = _first_line(fault)
                raise UsageError(f"{self.url!r} is no address of object storage: {text}") from None
        return self._client

    def stage(self) -> BucketStage:
        """Return a temporary file."""
        return BucketStage(self)

    def open(self, digest: str) -> BinaryIO:
        """Return the bytes of an object as they come."""
        with _as_os_errors():
            return io.BufferedReader(
                _Stream(iter(_obstore().get(self.client, _key(digest)).stream(CHUNK))), CHUNK
            )

    def path(self, digest: str) -> None:
        """There are no files."""

    def objects(self) -> Iterator[Object]:
        """Return every object."""
        with _as_os_errors():
            for some in _obstore().list(self.client, "sha256", chunk_size=1000):
                for found in some:
                    digest = found["path"].rpartition("/")[2]
                    yield Object(digest, found["size"], found["last_modified"].timestamp())

    def remove(self, digest: str, before: float) -> bool:
        """Remove an object, unless somebody sent it again."""
        with _as_os_errors():
            found = self._found(digest)
            if found is not None and found.modified >= before:
                return False
            if found is not None:
                _obstore().delete(self.client, _key(digest))
            return True

    def sweep(self, before: float) -> int:
        """Parts of what was never finished are the storage's own to remove: set a lifecycle rule."""
        return 0

    def sign(self, log: str) -> None:
        """Keep a log's address as an object of its own."""
        with _as_os_errors():
            _obstore().put(self.client, f"logs/{sha256(log.encode()).hexdigest()[:32]}", log.encode())

    def signed(self) -> frozenset[str]:
        """Return those addresses."""
        with _as_os_errors():
            listed = [found["path"] for some in _obstore().list(self.client, "logs") for found in some]
            return frozenset(bytes(_obstore().get(self.client, path).bytes()).decode() for path in listed)

    def publish(self, digest: str, size: int, file: BinaryIO) -> None:
        """Send a file, unless the same is there and young; one that is there and altered stays."""
        with _as_os_errors():
            found = self._found(digest)
            if found is not None:
                with self.open(digest) as there:
                    hold(there, digest)
                if clocks.current.wall() - found.modified < YOUNG_S:
                    return
            self._send(digest, size, file, new=found is None)

    def _send(self, digest: str, size: int, file: BinaryIO, *, new: bool) -> None:
        api = _obstore()
        if size > AT_ONCE or not new:
            api.put(self.client, _key(digest), file, mode="overwrite", chunk_size=AT_ONCE, max_concurrency=2)
            return
        try:
            api.put(self.client, _key(digest), file.read(), mode="create")
        except api.exceptions.AlreadyExistsError:
            with self.open(digest) as there:  # somebody was faster, just now
                hold(there, digest)

    def _found(self, digest: str) -> Object | None:
        try:
            found = _obstore().head(self.client, _key(digest))
        except FileNotFoundError:
            return None
        return Object(digest, found["size"], found["last_modified"].timestamp())


class BucketStage:
    """A temporary file that becomes an object by being sent."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._file = bucket, tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        self._file.write(data)

    def publish(self, digest: str, size: int) -> None:
        """Send the file."""
        self._file.seek(0)
        self._bucket.publish(digest, size, self._file)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class _Stream(io.RawIOBase):
    """The bytes of an object as a file that cannot go back."""

    def __init__(self, pieces: Iterator[Any]) -> None:
        self._pieces, self._left = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _as_os_errors():
            while not self._left:
                piece = next(self._pieces, None)
                if piece is None:
                    return 0
                self._left = memoryview(piece)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def _key(digest: str) -> str:
    check_digest(digest)
    return f"sha256/{digest[:2]}/{digest}"


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Let the client's own errors be what places raise; their first line says what happened."""
    try:
        yield
    except _obstore().exceptions.BaseError as error:
        raise OSError(_first_line(error)) from None  # its cause would show the credentials of a request


def _first_line(error: Exception) -> str:
    """Return what the client says happened, without secrets; its other lines are its own debugging."""
    return masked(str(error).partition("\n")[0])


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
    except ImportError:
        raise MissingExtra(
            "artifacts in object storage need obstore: pip install 'oncemore[object-store]'"
        ) from None
    return obstore
