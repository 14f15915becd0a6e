"""Bodies that are sealed stay closed without their key, and say so; with it nothing is missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import oncemore
from oncemore.queries.health import health
from tests.looking.sealing import codec
from tests.looking.work import everything
from tests.shell import ROOT, run, told

if TYPE_CHECKING:
    from pathlib import Path


def test_a_sealed_log_is_looked_at_with_and_without_its_key(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    engine = oncemore.open(path, codec=codec)
    everything(engine)
    assert health(engine.store).healthy, "what cannot be read does not speak against it"
    engine.close()
    key = told("runs", "--store", str(path), "--step", "flaky")[0]["key"]
    without = run("show", key, "--store", str(path))
    assert without.returncode == 0
    assert "peer went away" not in without.stdout
    assert "sealed with the key 'turned-1'" in " ".join(
        run("tail", "--json", "--store", str(path)).stdout.split()
    )
    assert run("explain", key, "--store", str(path)).returncode == 0
    assert "sealed" in run("health", "--store", str(path)).stdout
    names = {
        "ONCEMORE_CODEC": "tests.looking.sealing:codec",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    with_key = run("explain", key, "--store", str(path), **names)
    assert "The policy's own delay is" in " ".join(with_key.stdout.split())
    held = run("quarantine", "list", "--ids", "--store", str(path), **names).stdout.split()[0]
    shown = run("quarantine", "show", held, "--store", str(path), **names)
    assert shown.returncode == 0, "a named store is opened with the codec of the settings, too"
    assert "What can be decided" in shown.stdout
    whole = run("replay", "--all", "--store", str(path), **names)
    assert "12 decisions computed again" in whole.stdout
