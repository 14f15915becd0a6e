"""Killed for real, anywhere on the way from the first byte to COMMIT: whole or not at all, and once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from oncemore.steps.history import verify_chain
from tests.artifacts import victim
from tests.artifacts.conftest import LONG_AGO, age, list_references, objects_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.steps.engine import Engine

ROOT = Path(__file__).resolve().parents[2]


def command(what: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.artifacts.victim", what, str(folder)]


def whole(engine: Engine) -> None:
    """Every object that a reader can find is what its name says."""
    for digest, data in objects_of(engine).items():
        assert sha256(data).hexdigest() == digest


def killed(what: str, folder: Path) -> int:
    """Kill a process at every point of some work; return how many there were."""
    done = subprocess.run(command(what, folder), cwd=ROOT, capture_output=True, text=True, check=True)
    last, code = map(int, done.stdout.split())
    assert code == 0, done.stderr
    return last


def test_killed_at_every_point_a_large_result_is_there_or_its_run_goes_on(tmp_path: Path) -> None:
    last, committed = killed("text", tmp_path), 0
    assert last > 15
    for at in range(1, last + 1):
        with oncemore.open(tmp_path / str(at) / "log.db") as engine:
            whole(engine)
            run = victim.text.last_run("2026-11-15")
            done = run is not None and run.status == "COMPLETE"
            assert len(list(list_references(engine))) == done
            committed += done
            assert victim.text("2026-11-15") == "2026-11-15" * 100_000
            assert len(objects_of(engine)) == 1
    assert 2 <= committed < last


def test_killed_at_every_point_an_artifact_is_whole_or_not_there(tmp_path: Path) -> None:
    last = killed("window", tmp_path)
    assert last > 25, "too few points for the trap to have been in the way"
    computed = []
    for at in range(1, last + 1):
        with oncemore.open(tmp_path / str(at) / "log.db") as engine:
            computed.append(recovered(engine, finished=at == last))
    assert computed[-1] is False
    assert computed.count(False) >= 2, "at least one was killed after its COMMIT"
    assert computed.count(True) > 20


def recovered(engine: Engine, *, finished: bool) -> bool:
    """Hold what a killed process left to its promises; say whether the work had to be done again."""
    whole(engine)
    before = engine.artifacts.list()
    run = victim.window.last_run("2026-11-15")
    committed = run is not None and run.status == "COMPLETE"
    assert bool(before) == committed, "a reference is there if and only if COMMIT is"
    assert committed or not finished
    made = victim.window("2026-11-15")
    assert made.read().startswith(b"the window of 2026-11-15")
    assert engine.artifacts.list() == [made]
    run = victim.window.last_run("2026-11-15")
    assert run is not None
    assert sum(each["kind"] == "COMMIT" for each in run.records()) == 1
    verify_chain(engine.store.read_entries())
    for rest in Path(engine.artifact_store.backend.url).glob("writing/*"):
        os.utime(rest, (LONG_AGO, LONG_AGO))
    age(engine.artifact_store.backend, made.digest)
    assert engine.artifacts.collect_garbage().objects == 0
    assert not list(Path(engine.artifact_store.backend.url).glob("writing/*"))
    assert list(objects_of(engine)) == [made.digest]
    return not committed


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that puts 100 MB away."""
    with subprocess.Popen(command("large", tmp_path), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.req("ART-6")
def test_a_kill_in_the_middle_of_100_megabytes_leaves_nothing_that_can_be_read(
    tmp_path: Path, writer: subprocess.Popen[str]
) -> None:
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= victim.SIZE // 2:
            break
    writer.send_signal(signal.SIGKILL)
    assert writer.wait(10) == -signal.SIGKILL
    with oncemore.open(tmp_path / "log.db") as engine:
        (rest,) = (tmp_path / "artifacts" / "writing").iterdir()
        assert victim.SIZE // 4 < rest.stat().st_size < victim.SIZE
        assert objects_of(engine) == {}
        assert engine.artifacts.list() == []
        made = victim.large()
        assert made.size == victim.SIZE
        assert engine.artifact_store.verify_object(made.digest, made.size) == "valid"
        assert engine.artifacts.list() == [made]
        os.utime(rest, (time.time() - 7200, time.time() - 7200))
        assert engine.artifacts.collect_garbage(older_than=3600).leftovers == 1
