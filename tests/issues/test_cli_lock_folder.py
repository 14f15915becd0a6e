"""`oncemore exec` with a log on a server keeps its locks in the temporary directory, which it checks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from oncemore.programs.exit_rules import ProgramNotStarted
from oncemore.programs.process import lock_program

if TYPE_CHECKING:
    from pathlib import Path


def test_a_program_does_not_start_with_a_lock_folder_that_others_can_write_to(tmp_path: Path) -> None:
    folder = tmp_path / f"oncemore-programs-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with (
        pytest.raises(ProgramNotStarted, match="can be written to by other users"),
        lock_program(folder, "a" * 64, bool),
    ):
        raise AssertionError
    folder.chmod(0o700)
    with lock_program(folder, "a" * 64, bool):
        assert (folder / ("a" * 64)).exists()


def test_a_lock_folder_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
    with (
        pytest.raises(ProgramNotStarted, match="locks is a symbolic link"),
        lock_program(tmp_path / "locks", "k", bool),
    ):
        raise AssertionError
