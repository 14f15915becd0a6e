"""`oncemore migrate` as a person uses it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.shell import run

if TYPE_CHECKING:
    from pathlib import Path

OLD = "import stamina\n\n\n@stamina.retry(on=OSError, attempts=3)\ndef load(): ...\n"
FOREVER = "import tenacity\n\n\n@tenacity.retry\ndef load(): ...\n"


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


def test_the_default_shows_the_change_and_writes_nothing(project: Path) -> None:
    shown = run("migrate", "stamina", str(project))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "-@stamina.retry(on=OSError, attempts=3)\n" in shown.stdout
    assert "+    on=OSError,\n" in shown.stdout or "+@oncemore.retry(on=OSError" in shown.stdout
    assert "orders.py:4: stamina.retry: to rewrite\n    differs: total_timeout" in shown.stdout
    assert "2 files read, 1 call of stamina to rewrite, 0 left alone" in shown.stdout
    assert shown.stdout.endswith("Nothing was written; --write replaces the files.\n")
    assert (project / "shop" / "orders.py").read_text() == OLD


def test_check_says_by_its_exit_code_whether_there_is_work(project: Path) -> None:
    assert run("migrate", "stamina", str(project), "--check").returncode == 1
    assert run("migrate", "backoff", str(project), "--check").returncode == 0
    assert run("migrate", "stamina", str(project), "--check", "--exact").returncode == 0
    assert run("migrate", "stamina", str(project), "--check", "--write").returncode == 2


def test_write_replaces_the_file_and_keeps_its_mode(project: Path) -> None:
    link = project / "link.py"
    link.symlink_to(project / "shop" / "orders.py")
    report = json.loads(run("migrate", "stamina", str(project), "--write", "--json").stdout)
    assert (report["rewritten"], report["problems"], report["files_read"]) == (1, 0, 2)
    written = project / "shop" / "orders.py"
    assert written.read_text().startswith("import oncemore\n")
    assert written.stat().st_mode & 0o777 == 0o755
    assert link.is_symlink()
    assert (project / "env" / "copy.py").read_text() == OLD
    assert run("migrate", "stamina", str(project), "--check").returncode == 0


def test_calls_that_are_left_alone_and_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(FOREVER)
    (tmp_path / "b.py").write_text("import tenacity\ndef (")
    shown = run("migrate", "tenacity", str(tmp_path))
    assert shown.returncode == 2
    assert "a.py:4: tenacity.retry: left alone: it has no arguments and repeats for ever" in shown.stdout
    assert "b.py: it cannot be parsed" in shown.stdout


def test_a_path_that_does_not_exist_is_a_usage_error(tmp_path: Path) -> None:
    shown = run("migrate", "tenacity", str(tmp_path / "gone"))
    assert shown.returncode == 2
    assert "does not exist; give files or folders" in shown.stderr
