"""Maintenance processes killed with SIGKILL at random moments lose nothing and leave nothing half done.

Each test kills 4 of them in `make test`, 60 in `make torture`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.outbox import OutboxRelay
from oncemore.queries.import_keys import KeyFile, import_key_file
from oncemore.testing import FakeClock
from tests.maintenance.steps import finished, imported, person

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
TORTURE = bool(os.environ.get("ONCEMORE_TORTURE"))
KILLS = 60 if TORTURE else 4


@pytest.fixture
def chance() -> random.Random:
    seed = os.environ.get("ONCEMORE_STORM_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_STORM_SEED={seed}")
    return random.Random(seed)


def kill_process(what: str, store: Path, folder: Path, after: float) -> bool:
    """Start a maintenance process, kill it after a moment, and return whether it was still running."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", "tests.maintenance.victim", what, str(store), str(folder)]
    with subprocess.Popen(command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(after)
        process.kill()
        rest, _ = process.communicate(timeout=60)
    return process.returncode == -signal.SIGKILL and "over" not in rest


def test_a_killed_prune_is_finished_by_the_next(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    store, count = tmp_path / "log.db", 800 if TORTURE else 400
    with oncemore.open(store):
        for n in range(count):
            finished(f"n{n}")
    kills = 0
    for _ in range(KILLS):
        kills += kill_process("prune", store, tmp_path, chance.uniform(0.0, 0.05))
        with oncemore.open(store) as engine:
            engine.verify()
    with FakeClock() as clock, oncemore.open(store) as engine:
        gone = [
            n for n in range(count) if (run := finished.last_run(f"n{n}")) is not None and run.state.pruned_at
        ]
        clock.advance(90_000.0)
        engine.prune(older_than=3600)
        assert all(task.state == "DONE" for task in engine.maintenance_tasks())
        engine.verify()
        left = sum(b"value of" in (entry.body or b"") for entry in engine.store.read_entries())
        for n in range(0, count, 100):
            with pytest.raises(oncemore.KeyExpired):
                finished(f"n{n}")
    print(f"{kills} kills; {len(gone)} of {count} were pruned by those that were killed")
    assert kills >= KILLS // 2
    record_property("kills while keeping house", kills)
    assert left == 0


def test_a_killed_erasure_is_finished_by_repeating_it(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    store, count = tmp_path / "log.db", 60
    with oncemore.open(store) as engine:
        for n in range(count):
            person(f"canary-{n}")
            finished(f"kept {n}")
        OutboxRelay(engine, {"*": lambda message: None}).run_once()
    kills = 0
    for _ in range(KILLS):
        kills += kill_process("erase", store, tmp_path, chance.uniform(0.0, 0.1))
        with oncemore.open(store) as engine:
            engine.verify()
    with oncemore.open(store) as engine:
        for n in range(count):
            assert engine.erase(person.key(f"canary-{n}"), reason="r", by="b").remaining == ()
            with pytest.raises(oncemore.KeyExpired):
                person(f"canary-{n}")
            assert finished(f"kept {n}") == f"value of kept {n}"
        assert all(task.state == "DONE" for task in engine.maintenance_tasks())
        assert len(engine.verify().forgotten) == count
    data = b"".join(file.read_bytes() for file in tmp_path.glob("log.db*") if file.is_file())
    assert data.count(b"canary-") == 0
    assert kills >= KILLS // 2
    record_property("kills while keeping house", kills)


def test_a_killed_backup_leaves_a_complete_file_or_none(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    store, folder = tmp_path / "log.db", tmp_path / "backups"
    folder.mkdir()
    with oncemore.open(store):
        for n in range(500):
            finished(f"n{n}")
    kills = 0
    for _ in range(KILLS):
        kills += kill_process("backup", store, folder, chance.uniform(0.0, 0.2))
        for copy in folder.glob("*.db"):
            with oncemore.open(copy) as engine:
                engine.verify()
                assert "it is a backup of" in engine.store.open_maintenance().copy_notice()
                assert finished("n7") == "value of n7"
                engine.close()
    with oncemore.open(store) as engine:
        engine.verify()
        left = list(folder.glob(".*.part"))
        engine.backup(folder / "last.db", by="b")
        assert all(task.state == "DONE" for task in engine.maintenance_tasks())
        assert not list(folder.glob(".*")), "what killed ones left is gone"
    whole = list(folder.glob("[0-9]*.db"))
    print(f"{kills} kills; {len(whole)} whole backups, {len(left)} left in the middle")
    assert kills == KILLS
    record_property("kills while keeping house", kills)


def test_a_killed_import_is_finished_by_the_next_and_runs_nothing(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    store, sheet, count = tmp_path / "log.db", tmp_path / "done.csv", 6_000
    sheet.write_text("order,result\n" + "".join(f"{n},r{n}\n" for n in range(count)))
    with oncemore.open(store):
        finished("first")
    kills = 0
    for _ in range(KILLS):
        kills += kill_process("import", store, tmp_path, chance.uniform(0.0, 0.25))
        with oncemore.open(store) as engine:
            engine.verify()
            marked = [n for n in range(0, count, 97) if imported.last_run(n) is not None]
            assert marked == list(range(0, count, 97))[: len(marked)], "groups are whole, and in their order"
    with oncemore.open(store) as engine:
        found = import_key_file(engine, imported, KeyFile(sheet, {}, "result"), reason="r", by="b")
        assert found.imported + found.already_done == count
        assert found.conflicts == 0
        assert all(task.state == "DONE" for task in engine.maintenance_tasks())
        for n in range(0, count, 200):
            assert imported(n) == f"r{n}"
        engine.verify()
    print(f"{kills} kills; {found.already_done} of {count} keys were marked by those that were killed")
    assert kills >= KILLS // 2
    record_property("kills while keeping house", kills)
