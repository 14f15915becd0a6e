"""Real processes: a switch that stops two of them at once, a copy that is killed with SIGKILL anywhere."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.control.model import SWITCHES_ENTITY
from oncemore.errors import NotPermitted
from oncemore.log.entry_codec import decode_header
from oncemore.maintenance import copy
from tests.control.shop import ship

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
KILLS = 40 if os.environ.get("ONCEMORE_TORTURE") else 2


@pytest.fixture
def chance() -> random.Random:
    seed = os.environ.get("ONCEMORE_STORM_SEED", f"{random.SystemRandom().getrandbits(32):08x}")
    print(f"ONCEMORE_STORM_SEED={seed}")
    return random.Random(seed)


def started(*words: str) -> subprocess.Popen[str]:
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(120)
@pytest.mark.req("AUTO-7")
def test_a_switch_stops_two_processes_between_two_attempts(tmp_path: Path) -> None:
    log = tmp_path / "log.db"
    with oncemore.open(log) as engine:
        engine.store.wait_for_change(0, 0.0)
        shops = [started("tests.control.shop", str(log), name) for name in ("one", "two")]
        try:
            for shop in shops:
                assert shop.stdout is not None
                assert shop.stdout.readline() == "ready\n"
            for turn in range(3):
                while engine.store.wait_for_change(0, 1.0) < 100 * (turn + 1):
                    pass
                engine.switches.on(reason="stop", by="operator")
                for shop in shops:
                    assert shop.stdout is not None
                    assert shop.stdout.readline().endswith(": switch\n")
                engine.switches.off(reason="go", by="operator")
        finally:
            for shop in shops:
                os.kill(shop.pid, signal.SIGKILL)
                shop.communicate(timeout=60)
        stopped, begun = False, 0
        for entry in engine.store.read_entries():
            header = decode_header(entry.header)
            if entry.entity == SWITCHES_ENTITY:
                stopped = header.sets["state"] == "STOPPED"
            elif "INTENT" in header.marks:
                begun += 1
                assert not stopped, f"entry {entry.seq}: an attempt begins while the switch is on"
        assert begun > 50


@pytest.mark.timeout(180)
def test_a_copy_that_is_killed_anywhere_is_finished_by_the_next(
    tmp_path: Path, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    kills = 0
    for number in range(KILLS):
        old, new = tmp_path / f"old-{number}.db", tmp_path / f"new-{number}.db"
        with oncemore.open(old):
            for order in range(60):
                ship(f"{order}")
        died_at = chance.randrange(0, 120)
        with started("tests.control.victim", str(old), str(new)) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "over\n" or int(line) >= died_at:
                    break
            process.kill()
            process.communicate(timeout=60)
        kills += process.returncode == -signal.SIGKILL
        with oncemore.open(old), pytest.raises(NotPermitted):
            ship("new")
        with oncemore.open(old) as source, oncemore.open(new) as target:
            found = copy.move_log(source, target, reason="go on")
            assert found.entries == 2 * 60 + 4, "runs, a worker with its end, their policy, and the switches"
        with oncemore.open(new) as target:
            assert target.verify().entries == found.entries + 1
            run = ship.last_run("3")
            assert run is not None
            assert run.status == "COMPLETE"
            assert ship("new") == "shipped new"
    record_property("copies killed", kills)
    assert kills
