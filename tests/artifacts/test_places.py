"""What every place promises: whole or not at all, never replaced by something else, removed only when old."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import MissingExtra, PolicyViolation, StoreError, UsageError
from oncemore.artifacts import object_store as edge
from oncemore.artifacts.backends import CHUNK_BYTES, FolderBackend, MemoryBackend
from oncemore.artifacts.object_store import BucketBackend
from oncemore.artifacts.store import ArtifactMissing, ArtifactStore
from tests.artifacts.conftest import LONG_AGO, age, alter, bytes_of, place_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.artifacts.backends import ArtifactBackend

DATA = b"some bytes" * 1000
DIGEST = sha256(DATA).hexdigest()


def nothing() -> None:
    """Allow it."""


def read(place: ArtifactBackend, digest: str, size: int) -> bytes:
    with ArtifactStore(lambda: place).open(digest, size) as file:
        return file.read()


def keep(place: ArtifactBackend, data: Any = DATA) -> tuple[str, int]:
    return ArtifactStore(lambda: place).write_content(data, nothing)


@pytest.mark.req("ART-1")
def test_equal_bytes_have_one_reference_and_one_object(place: ArtifactBackend) -> None:
    assert keep(place) == keep(place) == (DIGEST, len(DATA))
    assert [(found.digest, found.size) for found in place.list_objects()] == [(DIGEST, len(DATA))]
    assert bytes_of(place, DIGEST) == DATA


@pytest.mark.parametrize(
    "content",
    [
        lambda path: DATA,
        lambda path: bytearray(DATA),
        lambda path: memoryview(DATA),
        lambda path: path,
        str,
        lambda path: io.BytesIO(DATA),
        lambda path: path.open("rb"),
    ],
)
def test_content_is_bytes_a_path_or_a_file(
    place: ArtifactBackend, tmp_path: Path, content: Callable[[Path], Any]
) -> None:
    file = tmp_path / "some.bin"
    file.write_bytes(DATA)
    given = content(file)
    assert keep(place, given) == (DIGEST, len(DATA))
    getattr(given, "close", nothing)()


@pytest.mark.parametrize("content", [5, None, ["a"], "a text file"])
def test_anything_else_is_refused(place: ArtifactBackend, content: Any) -> None:
    with pytest.raises(UsageError, match="put takes"):
        keep(place, io.StringIO(content) if isinstance(content, str) else content)
    assert not list(place.list_objects())


def test_a_path_that_leads_nowhere_is_the_callers_own_error(place: ArtifactBackend) -> None:
    with pytest.raises(FileNotFoundError):
        keep(place, "no/such/file")


def test_nothing_is_an_object_too(place: ArtifactBackend) -> None:
    digest, size = keep(place, b"")
    assert (digest, size) == (sha256(b"").hexdigest(), 0)
    assert read(place, digest, 0) == b""


def test_what_is_read_can_be_searched_but_not_written(place: ArtifactBackend) -> None:
    keep(place)
    with ArtifactStore(lambda: place).open(DIGEST, len(DATA)) as file:
        file.seek(5)
        assert file.read(5) == b"bytes"
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")


def test_large_content_takes_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    class Zeros(io.RawIOBase):
        left = 32 * 1024 * 1024

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            given = min(size, self.left)
            self.left -= given
            return bytes(given)

    (tmp_path / "bucket").mkdir()
    for place in (FolderBackend(tmp_path), BucketBackend(f"file://{tmp_path}/bucket")):
        tracemalloc.start()
        digest, size = keep(place, Zeros())
        with ArtifactStore(lambda place=place: place).open(digest, size) as file:  # type: ignore[misc]
            assert file.read(10) == bytes(10)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert size == Zeros.left
        assert most < 12 * CHUNK_BYTES


def test_an_altered_object_is_neither_read_nor_replaced(place: ArtifactBackend) -> None:
    keep(place)
    alter(place, DIGEST)
    shelf = ArtifactStore(lambda: place)
    with pytest.raises(PolicyViolation, match="was altered") as caught:
        shelf.open(DIGEST, len(DATA))
    assert caught.value.code == "CHECKSUM_MISMATCH"
    with pytest.raises(PolicyViolation, match="was altered"):
        keep(place)
    assert bytes_of(place, DIGEST) != DATA
    assert isinstance(shelf.verify_object(DIGEST, len(DATA)), PolicyViolation)


def test_an_object_that_was_cut_short_is_altered(place: ArtifactBackend) -> None:
    keep(place)
    alter(place, DIGEST, lambda data: data[:-1])
    with pytest.raises(PolicyViolation, match="was altered"):
        ArtifactStore(lambda: place).open(DIGEST, len(DATA))


def test_a_missing_object_is_said_to_be_missing(place: ArtifactBackend) -> None:
    shelf = ArtifactStore(lambda: place)
    with pytest.raises(ArtifactMissing, match="is not in"):
        shelf.open(DIGEST, 1)
    assert shelf.verify_object(DIGEST, 1) == "missing"
    keep(place)
    assert shelf.verify_object(DIGEST, len(DATA)) == "valid"


def test_what_is_not_allowed_any_more_leaves_nothing(place: ArtifactBackend) -> None:
    def refuse() -> None:
        raise RuntimeError("taken over")

    with pytest.raises(RuntimeError):
        ArtifactStore(lambda: place).write_content(DATA, refuse)
    assert not list(place.list_objects())
    assert place.remove_leftovers(time.time() + 100) == 0


def test_only_what_is_old_is_removed(place: ArtifactBackend) -> None:
    keep(place)
    assert not place.remove_object(DIGEST, time.time() - 60)
    assert list(place.list_objects())
    assert place.remove_object(DIGEST, time.time() + 60)
    assert not list(place.list_objects())
    assert place.remove_object(DIGEST, time.time() + 60), "who is second finds it gone"


def test_a_place_knows_its_logs(place: ArtifactBackend) -> None:
    for log in ("sqlite:///a/log.db", "sqlite:///b/log.db", "sqlite:///a/log.db"):
        place.register_log(log)
    assert place.registered_logs() == {"sqlite:///a/log.db", "sqlite:///b/log.db"}


# A folder -------------------------------------------------------------------------------------------


def test_publishing_again_makes_an_object_young(tmp_path: Path) -> None:
    for place in (FolderBackend(tmp_path), MemoryBackend()):
        keep(place)
        age(place, DIGEST)
        assert next(place.list_objects()).modified == pytest.approx(LONG_AGO)
        keep(place)
        assert next(place.list_objects()).modified > time.time() - 60


def test_content_that_took_long_to_write_is_young_when_it_is_published(tmp_path: Path) -> None:
    folder = FolderBackend(tmp_path)
    stage = folder.start_upload()
    stage.write(DATA)
    (staged,) = (tmp_path / "writing").iterdir()
    os.utime(staged, (LONG_AGO, LONG_AGO))
    stage.publish_object(DIGEST, len(DATA))
    stage.close()
    assert next(folder.list_objects()).modified > time.time() - 60


def test_objects_are_private_read_only_and_in_folders_by_their_first_digits(tmp_path: Path) -> None:
    folder = FolderBackend(tmp_path)
    keep(folder)
    path = ArtifactStore(lambda: folder).path(DIGEST, len(DATA))
    assert path == tmp_path / "sha256" / DIGEST[:2] / DIGEST
    assert path.stat().st_mode & 0o777 == 0o400


def test_a_place_without_files_has_no_paths() -> None:
    for place in (MemoryBackend(), place_of("bucket", Path())):
        keep(place)
        with pytest.raises(UsageError, match="has no paths"):
            ArtifactStore(lambda place=place: place).path(DIGEST, len(DATA))  # type: ignore[misc]


def test_what_dead_writers_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    folder = FolderBackend(tmp_path)
    stage = folder.start_upload()
    stage.write(b"half")
    assert folder.remove_leftovers(time.time() - 60) == 0
    (rest,) = (tmp_path / "writing").iterdir()
    os.utime(rest, (LONG_AGO, LONG_AGO))
    assert folder.remove_leftovers(time.time() - 60) == 1
    with pytest.raises(FileNotFoundError):
        stage.publish_object(sha256(b"half").hexdigest(), 4)
    stage.close()
    assert not list(folder.list_objects())


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    folder = FolderBackend(tmp_path)
    keep(folder)
    stranger = tmp_path / "sha256" / DIGEST[:2] / "README"
    stranger.write_text("hello")
    assert [found.digest for found in folder.list_objects()] == [DIGEST]


def test_many_writers_of_the_same_bytes_leave_one_object(tmp_path: Path) -> None:
    folder, told = FolderBackend(tmp_path), []
    threads = [threading.Thread(target=lambda: told.append(keep(folder))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [(DIGEST, len(DATA))] * 16
    assert len(list(folder.list_objects())) == 1
    assert not list((tmp_path / "writing").iterdir())


def test_who_puts_what_is_being_collected_keeps_it(tmp_path: Path) -> None:
    folder, stop, removed = FolderBackend(tmp_path), threading.Event(), []

    def collect() -> None:
        while not stop.is_set():
            there = folder.object_path(DIGEST).exists()
            if folder.remove_object(DIGEST, time.time() - 60) and there:
                removed.append(1)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for _ in range(60):
            keep(folder)
            assert bytes_of(folder, DIGEST) == DATA
            os.utime(folder.object_path(DIGEST), (LONG_AGO, LONG_AGO))
    finally:
        stop.set()
        thread.join()
    assert removed, "nothing was collected meanwhile, so nothing was tried"


@pytest.fixture
def open_folder() -> Any:
    """A folder that other users can reach, as a shared one is."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name) / "artifacts"


def test_a_read_only_folder_can_be_read_and_says_that_it_cannot_be_written(open_folder: Path) -> None:
    folder = FolderBackend(open_folder)
    keep(folder)
    for path in (open_folder, *open_folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        assert read(folder, DIGEST, len(DATA)) == DATA
        with pytest.raises(StoreError, match="cannot be written to: Permission denied"):
            keep(folder, b"other")
    finally:
        if root:
            os.seteuid(0)
        for path in (open_folder, *open_folder.rglob("*")):
            path.chmod(0o755)


def test_a_folder_below_one_that_may_not_be_read_works(open_folder: Path) -> None:
    root = os.geteuid() == 0
    above = open_folder / "above"
    (above / "artifacts").mkdir(parents=True)
    (above / "artifacts").chmod(0o777)
    above.chmod(0o111)
    if root:
        os.seteuid(65534)
    try:
        folder = FolderBackend(above / "artifacts")
        keep(folder)
        assert read(folder, DIGEST, len(DATA)) == DATA
    finally:
        if root:
            os.seteuid(0)
        above.chmod(0o755)


def test_a_full_disk_is_a_fault_of_storage_and_leaves_nothing(tmp_path: Path) -> None:
    import resource

    folder, soft = FolderBackend(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * CHUNK_BYTES + 5, soft[1]))
    try:
        with pytest.raises(StoreError, match="cannot be written to: File too large"):
            keep(folder, bytes(8 * CHUNK_BYTES))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
    assert not list(folder.list_objects())
    assert not list((tmp_path / "writing").iterdir())
    keep(folder, bytes(8 * CHUNK_BYTES))


def test_objects_that_vanish_while_they_are_listed_are_not_listed(tmp_path: Path) -> None:
    folder = FolderBackend(tmp_path)
    keep(folder)
    (tmp_path / "sha256" / "ff").mkdir()
    (tmp_path / "sha256" / "ff" / ("f" * 64)).symlink_to("nowhere")
    (tmp_path / "writing" / "gone").symlink_to("nowhere")
    assert [found.digest for found in folder.list_objects()] == [DIGEST]
    assert folder.remove_leftovers(time.time()) == 0


# Object storage -------------------------------------------------------------------------------------


def test_a_bucket_sends_large_content_in_parts(tmp_path: Path) -> None:
    place, data = place_of("bucket", tmp_path), os.urandom(1024) * 9 * 1024
    digest, size = keep(place, data)
    assert size > edge.SINGLE_PUT_BYTES
    assert read(place, digest, size) == data


def test_a_bucket_sends_again_what_is_not_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of("bucket", tmp_path)
    keep(place)
    first = next(place.list_objects()).modified
    keep(place)
    assert next(place.list_objects()).modified == first
    monkeypatch.setattr(edge, "FRESH_S", -1.0)
    time.sleep(0.01)
    keep(place)
    assert next(place.list_objects()).modified > first


def test_a_bucket_whose_object_appears_meanwhile_verifies_it(tmp_path: Path) -> None:
    place: Any = place_of("bucket", tmp_path)
    keep(place)
    place._send_file(DIGEST, len(DATA), io.BytesIO(DATA), new=True)
    alter(place, DIGEST)
    with pytest.raises(PolicyViolation, match="was altered"):
        place._send_file(DIGEST, len(DATA), io.BytesIO(DATA), new=True)


def test_a_bucket_by_its_address_and_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    place = BucketBackend(f"file://{tmp_path}/bucket")
    keep(place)
    again = pickle.loads(pickle.dumps(place))  # noqa: S301 - our own
    assert again.url == place.url
    assert read(again, DIGEST, len(DATA)) == DATA
    assert place.remove_leftovers(time.time()) == 0


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="is not an address of object storage"):
        keep(BucketBackend("nowhere://at/all"))


def test_storage_that_fails_is_a_fault_of_storage(tmp_path: Path) -> None:
    from obstore.store import LocalStore

    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "sha256").write_text("a file where a folder must be")
    place = BucketBackend("s3://fails", LocalStore(tmp_path / "bucket"))
    with pytest.raises(StoreError, match="artifacts in s3://fails cannot be written to"):
        keep(place)


def test_object_storage_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"oncemore\[object-store\]"):
        oncemore.open("memory:", artifacts="s3://bucket")


# Which place ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "artifacts", "url"),
    [
        ("log.db", None, "artifacts"),
        ("sqlite:///state/log.db", None, "state/artifacts"),
        ("log.db", "files", "files"),
        ("log.db", Path("files"), "files"),
        ("memory:", "files", "files"),
    ],
)
def test_a_folder_beside_the_log_unless_told(tmp_path: Path, store: str, artifacts: Any, url: str) -> None:
    engine = oncemore.open(store, artifacts=artifacts)
    assert engine.artifact_store.backend.url == str(tmp_path / url)
    assert not (tmp_path / url).exists(), "nothing is made before it is used"


def test_other_places_by_their_addresses(tmp_path: Path) -> None:
    assert (
        oncemore.open("log.db", artifacts=f"file://{tmp_path}/x").artifact_store.backend.url
        == f"{tmp_path}/x"
    )
    assert isinstance(oncemore.open("log.db", artifacts="memory:").artifact_store.backend, MemoryBackend)
    assert isinstance(oncemore.open("memory:").artifact_store.backend, MemoryBackend)
    assert oncemore.open("log.db", artifacts="s3://bucket/x").artifact_store.backend.url == "s3://bucket/x"
    with pytest.raises(UsageError, match="artifacts is 5"):
        oncemore.open("log.db", artifacts=5)  # type: ignore[arg-type]


def test_a_store_without_a_folder_has_no_place_unless_told() -> None:
    engine = oncemore.open("postgresql://host/database")
    assert not engine.artifact_store.is_configured
    with pytest.raises(UsageError, match="configure one with"):
        engine.artifacts.collect_garbage()


def test_the_settings_name_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from oncemore.config import load_settings
    from oncemore.open_engine import find_engine

    (tmp_path / "oncemore.toml").write_text('artifacts = "files"\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert load_settings().artifacts == str(tmp_path / "files")
    assert find_engine().artifact_store.backend.url == str(tmp_path / "files")
    monkeypatch.setenv("ONCEMORE_ARTIFACTS", "s3://bucket")
    assert find_engine().artifact_store.backend.url == "s3://bucket", "another place is another engine"
    monkeypatch.setenv("ONCEMORE_STORE", "postgresql://host/database")
    monkeypatch.setenv("ONCEMORE_ARTIFACTS", "")
    monkeypatch.chdir(tmp_path.parent)
    assert not find_engine().artifact_store.is_configured
