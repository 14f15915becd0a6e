"""Artifacts in object storage, through `obstore`: S3, Google Cloud, Azure and compatible services.

    oncemore.open(url, artifacts="s3://bucket/prefix")

`obstore` finds credentials and regions in the environment or the machine's role. The key of an object is
`sha256/ab/abcd…` below the prefix. Bytes are staged in a temporary file, because the key is their digest,
and sent in bounded memory: small objects by a conditional put, large ones by a multipart upload.

Object storage has no lock. An existing object is verified and, if it is not young, sent again, so that
garbage collection sees it as young. A race remains between the last check of `remove_object` and the
deletion: content that has been garbage for a day and is stored again in that moment is lost, and the first
reader finds it missing. To exclude that, collect garbage while no worker runs.
"""

from __future__ import annotations

import io
import tempfile
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, BinaryIO

from oncemore import clock as clocks
from oncemore._redact import hide_credentials, mask_text
from oncemore.artifacts.backends import CHUNK_BYTES, StoredObject, check_digest, verify_digest
from oncemore.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Largest object of a single conditional put; larger ones are sent as multipart uploads.
SINGLE_PUT_BYTES = 8 * 1024 * 1024
#: Age in seconds after which an existing object is sent again.
FRESH_S = 30.0


class BucketBackend:
    """A bucket, or a prefix of one, in object storage."""

    is_shared = True

    def __init__(self, url: str, client: Any = None) -> None:
        self.url, self._address = hide_credentials(url), url
        self._client = client
        if client is None:
            # Fails here, at the line that names the bucket, if obstore is not installed.
            _import_obstore()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._address,)

    @property
    def client(self) -> Any:
        """The client of the storage, created at first use."""
        if self._client is None:
            from obstore.store import from_url

            try:
                self._client = from_url(self._address)
            except Exception as error:  # noqa: BLE001 - each kind of storage has errors of its own
                text = _first_line(error)
                raise UsageError(f"{self.url!r} is not an address of object storage: {text}") from None
        return self._client

    def start_upload(self) -> BucketUpload:
        """Return an upload to a temporary file."""
        return BucketUpload(self)

    def open_object(self, digest: str) -> BinaryIO:
        """Return the bytes of an object as a stream."""
        with _convert_errors():
            return io.BufferedReader(
                _ObjectStream(
                    iter(_import_obstore().get(self.client, _object_key(digest)).stream(CHUNK_BYTES))
                ),
                CHUNK_BYTES,
            )

    def object_path(self, digest: str) -> None:
        """Return None: there are no files."""

    def list_objects(self) -> Iterator[StoredObject]:
        """Return every object."""
        with _convert_errors():
            for page in _import_obstore().list(self.client, "sha256", chunk_size=1000):
                for item in page:
                    digest = item["path"].rpartition("/")[2]
                    yield StoredObject(digest, item["size"], item["last_modified"].timestamp())

    def remove_object(self, digest: str, before: float) -> bool:
        """Remove an object, unless a writer has sent it again."""
        with _convert_errors():
            # Read again, because the listing may be minutes old.
            stored = self._stat_object(digest)
            if stored is not None and stored.modified >= before:
                return False
            if stored is not None:
                _import_obstore().delete(self.client, _object_key(digest))
            return True

    def remove_leftovers(self, before: float) -> int:
        """Return 0: a lifecycle rule of the bucket has to remove unfinished multipart uploads."""
        return 0

    def register_log(self, log: str) -> None:
        """Store the address of a log as an object of its own."""
        with _convert_errors():
            _import_obstore().put(self.client, f"logs/{sha256(log.encode()).hexdigest()[:32]}", log.encode())

    def registered_logs(self) -> frozenset[str]:
        """Return the addresses of the registered logs."""
        with _convert_errors():
            paths = [item["path"] for page in _import_obstore().list(self.client, "logs") for item in page]
            return frozenset(
                bytes(_import_obstore().get(self.client, path).bytes()).decode() for path in paths
            )

    def upload_file(self, digest: str, size: int, file: BinaryIO) -> None:
        """Send a file, unless the same object exists and is young; an altered object stays."""
        with _convert_errors():
            stored = self._stat_object(digest)
            if stored is not None:
                # An altered object must stay as evidence: this raises before anything is sent.
                with self.open_object(digest) as existing:
                    verify_digest(existing, digest)
                if clocks.current.wall() - stored.modified < FRESH_S:
                    return
            self._send_file(digest, size, file, new=stored is None)

    def _send_file(self, digest: str, size: int, file: BinaryIO, *, new: bool) -> None:
        api = _import_obstore()
        # A multipart upload becomes an object only when all parts are there.
        if size > SINGLE_PUT_BYTES or not new:
            api.put(
                self.client,
                _object_key(digest),
                file,
                mode="overwrite",
                chunk_size=SINGLE_PUT_BYTES,
                max_concurrency=2,
            )
            return
        try:
            api.put(self.client, _object_key(digest), file.read(), mode="create")
        except api.exceptions.AlreadyExistsError:
            # Another worker has sent the same content since the check.
            with self.open_object(digest) as existing:
                verify_digest(existing, digest)

    def _stat_object(self, digest: str) -> StoredObject | None:
        try:
            metadata = _import_obstore().head(self.client, _object_key(digest))
        except FileNotFoundError:
            return None
        return StoredObject(digest, metadata["size"], metadata["last_modified"].timestamp())


class BucketUpload:
    """A temporary file that is sent to become an object."""

    def __init__(self, bucket: BucketBackend) -> None:
        self._bucket, self._file = bucket, tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)

    def publish_object(self, digest: str, size: int) -> None:
        """Send the file."""
        self._file.seek(0)
        self._bucket.upload_file(digest, size, self._file)

    def close(self) -> None:
        """Close and delete the file."""
        self._file.close()


class _ObjectStream(io.RawIOBase):
    """The bytes of an object as a file that is not seekable."""

    def __init__(self, chunks: Iterator[Any]) -> None:
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _convert_errors():
            while not self._left:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return 0
                self._left = memoryview(chunk)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


def _object_key(digest: str) -> str:
    check_digest(digest)
    return f"sha256/{digest[:2]}/{digest}"


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert errors of the client to `OSError`, as every backend raises it."""
    try:
        yield
    except _import_obstore().exceptions.BaseError as error:
        # Without the cause, whose text may show the credentials of a request.
        raise OSError(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without secrets; the other lines are debugging output."""
    return mask_text(str(error).partition("\n")[0])


def _import_obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
    except ImportError:
        raise MissingExtra(
            "artifacts in object storage need obstore: pip install 'oncemore[object-store]'"
        ) from None
    return obstore
