"""The second place of checkpoints, outside of the store: a folder, object storage, or a NATS bucket.

    /srv/checkpoints                a folder, also file:///srv/checkpoints
    s3://bucket/prefix              object storage, through `obstore`
    nats://host:4222/BUCKET         a key-value bucket; it is created if it is missing

A checkpoint is one file, object or key, named by its size, and is never replaced. One that exists with other
bytes is a `LedgerMismatch`: the log has another history than the one that was copied. A place belongs to one
log.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from oncemore._redact import describe_value, mask_text
from oncemore._replace_file import replace_file
from oncemore.errors import LedgerMismatch, MissingExtra, StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

TIMEOUT_S = 10.0
_NAME = re.compile(r"(\d{16})\.checkpoint")
_NATS_ADDRESS = re.compile(r"(?P<server>(?:nats|tls)://[^/]+)/(?P<bucket>[A-Za-z0-9_-]+)")


class CheckpointPlace(Protocol):
    """A second place of checkpoints.

    url  its address, without credentials
    """

    url: str

    def write_note(self, size: int, note: str) -> None:
        """Store a checkpoint, unless it is there; raise `LedgerMismatch` if another one is."""

    def list_sizes(self) -> list[int]:
        """Return the sizes of all checkpoints, in order."""

    def read_note(self, size: int) -> str:
        """Return the checkpoint of a size."""


def open_place(address: str) -> CheckpointPlace:
    """Return the second place at an address."""
    if address.startswith(("nats://", "tls://")):
        return NatsPlace(address)
    if "://" in address and not address.startswith("file://"):
        return BucketPlace(address)
    if not address:
        raise UsageError("the second place of checkpoints has no address; it takes a folder or a URL")
    return FolderPlace(Path(address.removeprefix("file://")).expanduser())


def read_all_notes(place: CheckpointPlace) -> Iterator[tuple[str, str]]:
    """Yield all checkpoints of a place, each with its name for messages."""
    for size in place.list_sizes():
        yield f"{place.url}/{_note_name(size)}", place.read_note(size)


def _note_name(size: int) -> str:
    # As many digits as the largest size: names sort as numbers.
    return f"{size:016d}.checkpoint"


def _parse_name(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def _compare_notes(place: CheckpointPlace, size: int, existing: str, note: str) -> None:
    if existing != note:
        raise LedgerMismatch(
            f"{place.url} has another checkpoint of size {size} than the log: the log was changed or "
            "replaced since, or the place belongs to another log"
        )


class FolderPlace:
    """Checkpoints as files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.url = str(self._folder)

    def write_note(self, size: int, note: str) -> None:
        """Write the file of a checkpoint, unless it exists."""
        path = self._folder / _note_name(size)
        try:
            if path.exists():
                _compare_notes(self, size, path.read_text("utf-8"), note)
            else:
                replace_file(path, note.encode())
        except OSError as error:
            raise StoreError(f"the checkpoint cannot be copied to {path}: {error.strerror}") from error

    def list_sizes(self) -> list[int]:
        """Return the sizes of the files, in order; a folder that does not exist is empty."""
        # Other files in the folder, and half-written ones, have other names.
        names = [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else ()
        return sorted(size for name in names if (size := _parse_name(name)) is not None)

    def read_note(self, size: int) -> str:
        """Return the content of the file of a size."""
        return (self._folder / _note_name(size)).read_text("utf-8")


class BucketPlace:
    """Checkpoints as objects in object storage."""

    def __init__(self, address: str) -> None:
        from oncemore.artifacts.object_store import BucketBackend

        self._backend = BucketBackend(address)
        self.url = self._backend.url

    def write_note(self, size: int, note: str) -> None:
        """Store an object, unless it exists."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._convert_errors():
            try:
                obstore.put(self._backend.client, _note_name(size), note.encode(), mode="create")
            except AlreadyExistsError:
                _compare_notes(self, size, self.read_note(size), note)

    def list_sizes(self) -> list[int]:
        """Return the sizes of the objects, in order."""
        import obstore

        with self._convert_errors():
            names = [item["path"] for page in obstore.list(self._backend.client) for item in page]
        return sorted(size for name in names if (size := _parse_name(name)) is not None)

    def read_note(self, size: int) -> str:
        """Return the content of the object of a size."""
        import obstore

        with self._convert_errors():
            return bytes(obstore.get(self._backend.client, _note_name(size)).bytes()).decode()

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except BaseError as error:
            # Only the first line: the rest is debugging output and may show credentials.
            text = mask_text(str(error).partition("\n")[0])
            raise StoreError(f"the checkpoints in {self.url} cannot be reached: {text}") from None


class NatsPlace:
    """Checkpoints as keys of a NATS bucket; each operation opens a connection, because they are rare."""

    def __init__(self, address: str) -> None:
        from oncemore.log.nats.servers import hide_credentials, parse_servers

        match = _NATS_ADDRESS.fullmatch(address)
        if match is None:
            raise UsageError(f"{describe_value(address)} is not a place: it takes nats://host:port/BUCKET")
        try:
            import nats  # noqa: F401
        except ImportError as error:  # pragma: no cover - the extra is there in tests
            raise MissingExtra("checkpoints in NATS need nats-py; install oncemore[nats]") from error
        self._servers, self._bucket = parse_servers(match["server"]), match["bucket"]
        self.url = f"{hide_credentials(self._servers)}/{self._bucket}"

    def write_note(self, size: int, note: str) -> None:
        """Store a key, unless it exists."""

        async def create_key(bucket: Any) -> str:
            from nats.js.errors import KeyWrongLastSequenceError

            try:
                await bucket.create(_note_name(size), note.encode())
            except KeyWrongLastSequenceError:
                return str((await bucket.get(_note_name(size))).value.decode())
            return note

        _compare_notes(self, size, self._ask_bucket(create_key), note)

    def list_sizes(self) -> list[int]:
        """Return the sizes of the keys, in order."""

        async def list_keys(bucket: Any) -> list[str]:
            from nats.js.errors import NoKeysError

            try:
                return list(await bucket.keys())
            except NoKeysError:
                return []

        return sorted(size for name in self._ask_bucket(list_keys) if (size := _parse_name(name)) is not None)

    def read_note(self, size: int) -> str:
        """Return the value of the key of a size."""

        async def get_value(bucket: Any) -> str:
            return str((await bucket.get(_note_name(size))).value.decode())

        return str(self._ask_bucket(get_value))

    def _ask_bucket(self, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run a request on the bucket, in a thread of its own: the caller may run an event loop."""
        replies: list[Any] = []
        errors: list[BaseException] = []

        def run_request() -> None:
            try:
                replies.append(asyncio.run(asyncio.wait_for(self._connect_and_ask(ask), TIMEOUT_S)))
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread below
                errors.append(error)

        thread = threading.Thread(target=run_request, name="oncemore-checkpoints", daemon=True)
        thread.start()
        thread.join()
        if errors:
            text = mask_text(f"{type(errors[0]).__name__} {errors[0]}")
            raise StoreError(f"the checkpoints in {self.url} cannot be reached: {text}") from None
        return replies[0]

    async def _connect_and_ask(self, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        from nats.js.errors import BucketNotFoundError

        from oncemore.log.nats.servers import connect_first

        connection = await connect_first(self._servers, TIMEOUT_S)
        try:
            stream = connection.jetstream()
            try:
                bucket = await stream.key_value(self._bucket)
            except BucketNotFoundError:
                bucket = await stream.create_key_value(bucket=self._bucket)
            return await ask(bucket)
        finally:
            await connection.close()
