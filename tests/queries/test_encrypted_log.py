"""Queries on encrypted bodies, with and without the key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import oncemore
from oncemore.queries.health import judge_store
from tests.queries.sealing import codec
from tests.queries.work import run_all_steps
from tests.shell import ROOT, run, told

if TYPE_CHECKING:
    from pathlib import Path


def test_an_encrypted_log_is_readable_with_and_without_its_key(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    engine = oncemore.open(path, codec=codec)
    run_all_steps(engine)
    assert judge_store(engine.store).healthy, "what cannot be read does not speak against it"
    engine.close()
    key = told("runs", "--store", str(path), "--step", "flaky")[0]["key"]
    without = run("show", key, "--store", str(path))
    assert without.returncode == 0
    assert "peer went away" not in without.stdout
    assert "encrypted with the key 'turned-1'" in " ".join(
        run("store", "tail", "--json", "--store", str(path)).stdout.split()
    )
    assert run("explain", key, "--store", str(path)).returncode == 0
    assert "encrypted" in run("store", "health", "--store", str(path)).stdout
    names = {
        "ONCEMORE_CODEC": "tests.queries.sealing:codec",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    with_key = run("explain", key, "--store", str(path), **names)
    assert "The policy's own delay is" in " ".join(with_key.stdout.split())
    held = run("quarantine", "list", "--ids", "--store", str(path), **names).stdout.split()[0]
    shown = run("quarantine", "show", held, "--store", str(path), **names)
    assert shown.returncode == 0, "a named store is opened with the codec of the settings, too"
    assert "Possible decisions" in shown.stdout
    whole = run("replay", "--all", "--store", str(path), **names)
    assert "12 decisions recomputed" in whole.stdout
