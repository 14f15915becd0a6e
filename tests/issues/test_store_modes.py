"""What a store keeps is readable by its owner alone, and lock folders belong to their user."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.artifacts.backends import FolderBackend
from oncemore.log.sqlite.files import make_private_folder
from oncemore.queries.doctor import check_store
from oncemore.queries.stores import open_read_only

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@oncemore.step(effect="pure", name="modes.report")
def report() -> list[str]:
    oncemore.current().put(b"1,2", name="table.csv")
    return ["a long line of text"] * 20_000


@pytest.fixture
def _open_umask() -> Iterator[None]:
    """The umask of a shell that hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_paths(folder: Path) -> list[str]:
    """Every path below a folder that other users may read, write or enter."""
    paths = [path for path in folder.rglob("*") if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    return sorted(str(path.relative_to(folder)) for path in paths)


@pytest.mark.usefixtures("_open_umask")
def test_everything_that_a_store_keeps_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with oncemore.open(".oncemore/log.db") as engine:
        report()
        assert len(list(FolderBackend(tmp_path / ".oncemore/artifacts").list_objects())) == 2, (
            "a file and a large result"
        )
        assert open_paths(tmp_path) == [".oncemore/.gitignore"]
        assert report() == report()
        assert engine.artifacts.list()[0].read() == b"1,2"


def test_the_doctor_reports_files_of_an_older_store_that_others_can_read(tmp_path: Path) -> None:
    path, folder = tmp_path / "log.db", tmp_path / "artifacts"
    with oncemore.open(path):
        report()
    with open_read_only(str(path)) as store:
        assert "rights of artifacts" not in {
            check.name for check in check_store(store, artifacts=FolderBackend(folder)).checks
        }
    for each in folder.rglob("*"):
        each.chmod(0o755 if each.is_dir() else 0o444)
    (tmp_path / "log.db-reserve").chmod(0o644)
    with open_read_only(str(path)) as store:
        found = {check.name: check for check in check_store(store, artifacts=FolderBackend(folder)).checks}
    assert found["rights of artifacts"].status == "warn"
    assert found["rights of artifacts"].advice == f"chmod -R go= {folder}"
    assert "log.db-reserve" in found["rights"].observation


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_lock_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(oncemore.StoreError, match=r"locks can be written to by other users; chmod 700"):
        make_private_folder(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_lock_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(oncemore.StoreError, match="locks belongs to another user"):
        make_private_folder(folder)
