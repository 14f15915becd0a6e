"""`oncemore init workflows` writes files and never replaces a changed one by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore import __version__
from tests.shell import run

if TYPE_CHECKING:
    from pathlib import Path


def test_workflows_are_written_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    first = run("init", "workflows", "--folder", str(folder))
    assert first.returncode == 0, first.stderr
    assert sorted(one.name for one in folder.iterdir()) == [
        "faircare-validate.yml", "kfm-ci.yml", "telemetry-export.yml",
    ]  # fmt: skip
    text = (folder / "kfm-ci.yml").read_text()
    assert f"oncemore[supply-chain]=={__version__}" in text
    assert "VERSION" not in text
    assert run("init", "workflows", "--folder", str(folder)).stdout.count("unchanged") == 3
    # What they pin is checked by the command that they call.
    assert run("check", "supply-chain", str(tmp_path)).returncode == 0


def test_a_changed_file_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    changed = tmp_path / "kfm-ci.yml"
    changed.write_text("name: mine\n")
    refused = run("init", "workflows", "--folder", str(tmp_path))
    assert refused.returncode == 2
    assert "exists and differs; give --replace" in " ".join(refused.stderr.split())
    assert [one.name for one in tmp_path.iterdir()] == ["kfm-ci.yml"]
    assert run("init", "workflows", "--folder", str(tmp_path), "--replace").returncode == 0
    assert changed.read_text().startswith("# Made by")
