"""Workers that are killed between sleeps and signals: every order ends once, with its own word."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.steps.history import verify_chain
from tests.timing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
ORDERS, KILLS = 6, 4


@pytest.fixture
def flow(tmp_path: Path) -> Any:
    """The module of the workflow, in the folder where the workers are started."""
    shutil.copy(HERE / "killed.py", tmp_path / "killed_flow.py")
    spec = importlib.util.spec_from_file_location("killed_flow", tmp_path / "killed_flow.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Fleet:
    """Worker processes that this test starts and kills."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self._command = [sys.executable, "-m", "oncemore", "worker", "killed_flow", "--store", store_url]
        self._folder, self.processes = folder, list[subprocess.Popen[str]]()

    def start_worker(self) -> None:
        """Start a worker, and wait until it works."""
        # A store that cannot see a dead process waits for its lease.
        environment = {**os.environ, "ONCEMORE_LEASE_S": "2"}
        process = subprocess.Popen(
            self._command, cwd=self._folder, env=environment, stderr=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        assert process.stderr is not None
        while "worker started for" not in (line := process.stderr.readline()):
            assert line, "it ended before it had begun"

    def kill_worker(self) -> None:
        """Kill the worker that was started last."""
        process = self.processes[-1]
        process.send_signal(signal.SIGKILL)
        process.wait(20)


@pytest.fixture
def fleet(tmp_path: Path, store_url: str) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, store_url)
    yield fleet
    for process in fleet.processes:
        process.kill()
        process.wait(20)
        assert process.stderr is not None
        process.stderr.close()


@pytest.mark.parametrize("store_url", ["sqlite", "postgres", "nats"], indirect=True)
def test_orders_end_once_with_their_own_word_through_kills(
    store_url: str, flow: Any, fleet: Fleet, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    with oncemore.open(store_url) as engine:
        runs = [flow.order.submit(number) for number in range(ORDERS)]
        for number, run in enumerate(runs[: ORDERS // 2]):
            run.signal("word", f"early-{number}", signal_id="only")
        for _ in range(KILLS):
            fleet.start_worker()
            # A moment for the worker to get somewhere; where exactly is left to chance.
            time.sleep(chance.uniform(0.0, 0.3))
            fleet.kill_worker()
            for number in range(ORDERS // 2, ORDERS):
                if chance.random() < 0.3 and flow.order.last_run(number).status != "COMPLETE":
                    runs[number].signal("word", f"late-{number}", signal_id="only")
        for number in range(ORDERS // 2, ORDERS):
            if flow.order.last_run(number).status != "COMPLETE":
                runs[number].signal("word", f"late-{number}", signal_id="only")
        fleet.start_worker()
        wait_until(
            lambda: all(run.wait(0.2).status == "COMPLETE" for run in runs), f"all orders (seed {seed})"
        )
        _check_orders(flow, tmp_path, seed)
        verify_chain(engine.store.read_entries())


def _check_orders(flow: Any, folder: Path, seed: int) -> None:
    notes = Counter((folder / "notes.txt").read_text().splitlines())
    for number in range(ORDERS):
        word = f"{'early' if number < ORDERS // 2 else 'late'}-{number}"
        run = flow.order.last_run(number)
        assert run.value == [f"ended {word}", "nothing"], f"seed {seed}"
        text = run.explain()
        assert text.count("received signal") == 1, f"seed {seed}"
        assert text.count("took signal") == 1, f"seed {seed}: {text}"
        assert text.count("sleeps until") == 2, f"seed {seed}: {text}"
        assert {line for line in notes if line.startswith(f"{number} word")} == {f"{number} word {word}"}
        for stage in ("began", "slept", f"ended {word}"):
            # Repeated only by a kill between the effect and its record.
            assert 1 <= notes[f"{number} {stage}"] <= 1 + KILLS, f"seed {seed}"
