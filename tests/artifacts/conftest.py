"""Every test has a folder of its own, an environment that says nothing, and each kind of place."""

from __future__ import annotations

import io
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.artifacts.backends import FolderBackend, MemoryBackend
from oncemore.artifacts.object_store import BucketBackend
from oncemore.log.entry_codec import decode_head
from oncemore.log.memory import MemoryStore
from oncemore.log.record import ArtifactRecord
from oncemore.log.store import HeadQuery
from oncemore.steps.engine import Engine
from tests.fixtures import _isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oncemore.artifacts.backends import ArtifactBackend

PLACES = ("folder", "memory", "bucket")
LONG_AGO = time.time() - 10 * 86_400


def place_of(kind: str, root: Path) -> ArtifactBackend:
    if kind == "folder":
        return FolderBackend(root / "artifacts")
    if kind == "memory":
        return MemoryBackend()
    from obstore.store import MemoryStore as Objects

    return BucketBackend("memory:///", Objects())


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactBackend:
    """One of each kind."""
    return place_of(request.param, tmp_path)


@pytest.fixture
def engine(place: ArtifactBackend) -> Iterator[Engine]:
    """The engine of all steps that a test calls, with each kind of place."""
    store = MemoryStore()
    with Engine(lambda: store, "memory:", place=lambda: place) as engine:
        yield engine


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Engine]:
    """An engine on SQLite, with a folder beside it."""
    with oncemore.open(tmp_path / "log.db") as engine:
        yield engine


def objects_of(engine: Engine) -> dict[str, bytes]:
    """Everything that is kept, as it is."""
    place = engine.artifact_store.backend
    return {found.digest: bytes_of(place, found.digest) for found in place.list_objects()}


def bytes_of(place: Any, digest: str) -> bytes:
    """The bytes of an object, unverified."""
    with place.open_object(digest) as file:
        return file.read()  # type: ignore[no-any-return]


def alter(place: Any, digest: str, change: Callable[[bytes], bytes] | None = None) -> None:
    """Flip one bit of an object behind everybody's back."""
    put(place, digest, (change or flipped)(bytes_of(place, digest)), time.time())


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def age(place: Any, digest: str, modified: float = LONG_AGO) -> None:
    """Make an object old; object storage cannot be told to."""
    put(place, digest, bytes_of(place, digest), modified)


def put(place: Any, digest: str, data: bytes, modified: float) -> None:
    if isinstance(place, FolderBackend):
        file = place.object_path(digest)
        file.chmod(0o644)
        file.write_bytes(data)
        file.chmod(0o444)
        os.utime(file, (modified, modified))
    elif isinstance(place, MemoryBackend):
        place.stored_objects[digest] = (data, modified)
    else:
        import obstore

        obstore.put(place.client, f"sha256/{digest[:2]}/{digest}", io.BytesIO(data))


def list_references(engine: Any, state: str = "STORED") -> list[ArtifactRecord]:
    """Return the references to artifacts in an engine's log."""
    heads = engine.store.list_heads(HeadQuery("artifact", state, float("inf"), limit=1000))
    return [decode_head(head.head, ArtifactRecord) for head in heads]


__all__ = ["_isolated"]
