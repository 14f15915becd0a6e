"""Files are migrated whole or not at all, and problems are reported by file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import oncemore
from oncemore.migrate import files

if TYPE_CHECKING:
    from pathlib import Path

OLD = "import stamina\n\n\n@stamina.retry(on=OSError, attempts=3)\ndef load(): ...\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "orders.py").write_text(OLD)
    (tmp_path / "shop" / "orders.py").chmod(0o755)
    (tmp_path / "shop" / "plain.py").write_text("print('nothing to do')\n")
    for skipped in (".hidden", "node_modules", "env"):
        (tmp_path / skipped).mkdir()
        (tmp_path / skipped / "copy.py").write_text(OLD)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    return tmp_path


def test_files_below_folders_are_rewritten_once(project: Path) -> None:
    (project / "link.py").symlink_to(project / "shop" / "orders.py")
    (project / "broken.py").write_text("import stamina\ndef (")
    (project / "same.py").write_text("import stamina\n\nlater = stamina.retry\n")
    (project / "open.py").write_text(OLD.rstrip("\n"))
    report = files.migrate_paths("stamina", [str(project), str(project / "shop")])
    assert (report.files_read, report.rewritten, report.left_alone, report.problems) == (5, 2, 1, 1)
    assert all(not file.written for file in report.files)
    assert "\\ No newline at end of file" in "".join(file.diff for file in report.files)
    report = files.migrate_paths("stamina", [str(project)], write=True)
    assert [file.written for file in report.files] == [False, True, True, False]
    assert files.migrate_paths("stamina", [str(project)]).rewritten == 0
    with pytest.raises(oncemore.UsageError, match="does not exist"):
        files.migrate_paths("stamina", [str(project / "gone")])


def test_an_edit_during_the_migration_is_not_lost(project: Path) -> None:
    path = project / "shop" / "orders.py"
    original = files._write_diff

    def edit_meanwhile(*arguments: object) -> str:
        path.write_text(OLD + "# an edit\n")
        return original(*arguments)  # type: ignore[arg-type]

    with patch.object(files, "_write_diff", edit_meanwhile):
        report = files.migrate_paths("stamina", [str(path)], write=True)
    assert report.files[0].problem == "the file was changed while it was migrated; run the command again"
    assert path.read_text() == OLD + "# an edit\n"


def test_a_crash_before_the_rename_leaves_the_old_file(project: Path) -> None:
    path = project / "shop" / "orders.py"
    with patch("pathlib.Path.replace", side_effect=OSError(28, "No space left on device")):
        report = files.migrate_paths("stamina", [str(path)], write=True)
    assert report.files[0].problem == "not written: No space left on device"
    assert path.read_text() == OLD
    assert sorted(one.name for one in path.parent.iterdir()) == ["orders.py", "plain.py"]


def test_a_missing_library_names_the_extra(project: Path) -> None:
    with (
        patch.dict(sys.modules, {"libcst": None}),
        pytest.raises(oncemore.MissingExtra, match=r"pip install 'oncemore\[migrate\]'"),
    ):
        files.migrate_paths("stamina", [str(project)])
