"""Real processes that keep house, killed with SIGKILL at random moments: nothing is lost, nothing is half."""

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
from oncemore.outbox import Relay
from oncemore.queries.import_keys import Sheet, bring_in
from oncemore.testing import FakeClock
from tests.house.steps import finished, imported, person

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
KILLS = 60 if os.environ.get("ONCEMORE_TORTURE") else 8


@pytest.fixture
def chance() -> random.Random:
    seed = os.environ.get("ONCEMORE_STORM_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_STORM_SEED={seed}")
    return random.Random(seed)


def killed(what: str, store: Path, folder: Path, after: float) -> bool:
    """Let a process keep house for a moment, then kill it; return whether it was still at it."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", "tests.house.victim", what, str(store), str(folder)]
    with subprocess.Popen(command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(after)
        process.kill()
        rest, _ = process.communicate(timeout=60)
    return process.returncode == -signal.SIGKILL and "over" not in rest


def test_a_prune_that_is_killed_anywhere_is_finished_by_the_next(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    store, count = tmp_path / "log.db", 800
    with oncemore.open(store):
        for n in range(count):
            finished(f"n{n}")
    kills = 0
    for _ in range(KILLS):
        kills += killed("prune", store, tmp_path, chance.uniform(0.0, 0.05))
        with oncemore.open(store) as engine:
            engine.verify()
    with FakeClock() as clock, oncemore.open(store) as engine:
        gone = [n for n in range(count) if (run := finished.last(f"n{n}")) is not None and run.state.pruned]
        clock.advance(90_000.0)
        engine.prune(older_than=3600)
        assert all(chore.state == "DONE" for chore in engine.chores())
        engine.verify()
        left = sum(b"value of" in (entry.body or b"") for entry in engine.store.entries())
        for n in range(0, count, 100):
            with pytest.raises(oncemore.KeyExpired):
                finished(f"n{n}")
    print(f"{kills} kills; {len(gone)} of {count} were pruned by those that were killed")
    assert kills >= KILLS // 2
    record_property("kills while keeping house", kills)
    assert left == 0


def test_an_erasure_that_is_killed_anywhere_is_finished_by_repeating_it(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    store, count = tmp_path / "log.db", 60
    with oncemore.open(store) as engine:
        for n in range(count):
            person(f"canary-{n}")
            finished(f"kept {n}")
        Relay(engine, {"*": lambda message: None}).run_once()
    kills = 0
    for _ in range(KILLS):
        kills += killed("erase", store, tmp_path, chance.uniform(0.0, 0.1))
        with oncemore.open(store) as engine:
            engine.verify()
    with oncemore.open(store) as engine:
        for n in range(count):
            assert engine.erase(person.key(f"canary-{n}"), reason="r", by="b").left == ()
            with pytest.raises(oncemore.KeyExpired):
                person(f"canary-{n}")
            assert finished(f"kept {n}") == f"value of kept {n}"
        assert all(chore.state == "DONE" for chore in engine.chores())
        assert len(engine.verify().forgotten) == count
    data = b"".join(file.read_bytes() for file in tmp_path.glob("log.db*") if file.is_file())
    assert data.count(b"canary-") == 0
    assert kills >= KILLS // 2
    record_property("kills while keeping house", kills)


def test_a_backup_that_is_killed_anywhere_leaves_a_whole_file_or_none(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    store, folder = tmp_path / "log.db", tmp_path / "backups"
    folder.mkdir()
    with oncemore.open(store):
        for n in range(500):
            finished(f"n{n}")
    kills = 0
    for _ in range(KILLS):
        kills += killed("backup", store, folder, chance.uniform(0.0, 0.2))
        for copy in folder.glob("*.db"):
            with oncemore.open(copy) as engine:
                engine.verify()
                assert "it is a backup of" in engine.store.house().held()
                assert finished("n7") == "value of n7"
                engine.close()
    with oncemore.open(store) as engine:
        engine.verify()
        left = list(folder.glob(".*.part"))
        engine.backup(folder / "last.db", by="b")
        assert all(chore.state == "DONE" for chore in engine.chores())
        assert not list(folder.glob(".*")), "what killed ones left is gone"
    whole = list(folder.glob("[0-9]*.db"))
    print(f"{kills} kills; {len(whole)} whole backups, {len(left)} left in the middle")
    assert kills == KILLS
    record_property("kills while keeping house", kills)


def test_an_import_that_is_killed_anywhere_is_finished_by_the_next_and_nothing_is_run(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    store, sheet, count = tmp_path / "log.db", tmp_path / "done.csv", 6_000
    sheet.write_text("order,result\n" + "".join(f"{n},r{n}\n" for n in range(count)))
    with oncemore.open(store):
        finished("first")
    kills = 0
    for _ in range(KILLS):
        kills += killed("import", store, tmp_path, chance.uniform(0.0, 0.25))
        with oncemore.open(store) as engine:
            engine.verify()
            marked = [n for n in range(0, count, 97) if imported.last(n) is not None]
            assert marked == list(range(0, count, 97))[: len(marked)], "groups are whole, and in their order"
    with oncemore.open(store) as engine:
        found = bring_in(engine, imported, Sheet(sheet, {}, "result"), reason="r", by="b")
        assert found.marked + found.present == count
        assert found.conflicts == 0
        assert all(chore.state == "DONE" for chore in engine.chores())
        for n in range(0, count, 200):
            assert imported(n) == f"r{n}"
        engine.verify()
    print(f"{kills} kills; {found.present} of {count} keys were marked by those that were killed")
    assert kills >= KILLS // 2
    record_property("kills while keeping house", kills)
