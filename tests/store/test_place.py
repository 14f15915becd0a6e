"""The place of a store's file: its door between threads and processes, and the machine's clock."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from oncemore.errors import StoreError
from oncemore.log.sqlite import machine


def holder(path: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock of a file until it is killed."""
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('shut', flush=True); time.sleep(60)"
    )
    held = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None
    assert held.stdout.readline() == "shut\n"
    return held


def test_a_process_has_one_door_for_each_store(tmp_path: Path) -> None:
    assert machine.door(tmp_path / "log.db") is machine.door(tmp_path / "log.db")
    assert machine.door(tmp_path / "log.db") is not machine.door(tmp_path / "other.db")


def test_one_thread_at_a_time_passes_the_door(tmp_path: Path) -> None:
    door, inside, most = machine.Door(tmp_path / "log.db-door"), [0], [0]

    def work() -> None:
        for _ in range(50):
            with door:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1]


def test_a_thread_that_stays_inside_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DOOR_WAIT_S", 0.05)
    door = machine.Door(tmp_path / "log.db-door")
    with door, pytest.raises(StoreError, match="another thread has been writing"):
        door.__enter__()
    with door:
        pass


def test_a_waiter_passes_soon_after_the_door_opens_and_one_that_is_stuck_waits_without_working(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PLAINLY_STUCK_S", 0.1)
    door, path = machine.Door(tmp_path / "log.db-door"), tmp_path / "log.db-door"
    held = holder(path)
    timer = threading.Timer(1.0, held.kill)
    timer.start()
    began, worked = time.monotonic(), time.process_time()
    with door:
        waited, worked = time.monotonic() - began, time.process_time() - worked
    held.communicate(timeout=20)
    assert waited > 0.5
    assert worked < 0.5 * waited


def test_a_door_that_cannot_be_locked_is_reported_and_shuts_nobody_out(tmp_path: Path) -> None:
    door = machine.Door(tmp_path / "log.db-door")
    with door:
        assert door._file is not None
    read_only, write_only = os.pipe()
    real, door._file = door._file, read_only  # a pipe has no locks
    with pytest.raises(StoreError, match="cannot be locked"):
        door.__enter__()
    door._file = real
    with door:
        pass
    os.close(read_only)
    os.close(write_only)


def test_boots_are_told_apart_by_an_id_where_the_system_has_one(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("b00t\n")
    assert machine.boot_id(tmp_path / "boot_id") == "b00t"
    assert machine.boot_id(tmp_path / "none") == ""


def test_the_time_since_boot_only_grows() -> None:
    readings = [machine.since_boot() for _ in range(100)]
    assert readings == sorted(readings)
    assert readings[0] > 0
