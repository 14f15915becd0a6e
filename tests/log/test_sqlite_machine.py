"""The lock between threads and processes, and the clock of the machine."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from oncemore._platform import get_boot_time
from oncemore.errors import StoreError
from oncemore.log.sqlite import commit, machine


def holder(path: Path) -> subprocess.Popen[str]:
    """Start a process that holds the lock of a file until it is killed."""
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('locked', flush=True); time.sleep(60)"
    )
    held = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert held.stdout is not None
    assert held.stdout.readline() == "locked\n"
    return held


def test_a_process_has_one_lock_for_each_store(tmp_path: Path) -> None:
    assert commit.store_lock(tmp_path / "log.db") is commit.store_lock(tmp_path / "log.db")
    assert commit.store_lock(tmp_path / "log.db") is not commit.store_lock(tmp_path / "other.db")


def test_one_thread_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    lock, inside, most = commit.FairFileLock(tmp_path / "log.db-door"), [0], [0]

    def work() -> None:
        for _ in range(50):
            with lock:
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


def test_a_thread_that_keeps_the_lock_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "LOCK_WAIT_S", 0.05)
    lock = commit.FairFileLock(tmp_path / "log.db-door")
    with lock, pytest.raises(StoreError, match="another thread has been writing"):
        lock.__enter__()
    with lock:
        pass


def test_a_waiter_gets_a_released_lock_soon_and_waits_for_a_stuck_one_without_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "STUCK_S", 0.1)
    lock, path = commit.FairFileLock(tmp_path / "log.db-door"), tmp_path / "log.db-door"
    held = holder(path)
    timer = threading.Timer(1.0, held.kill)
    timer.start()
    began, worked = time.monotonic(), time.process_time()
    with lock:
        waited, worked = time.monotonic() - began, time.process_time() - worked
    held.communicate(timeout=20)
    assert waited > 0.5
    assert worked < 0.5 * waited


def test_a_file_that_cannot_be_locked_is_reported_and_the_lock_stays_usable(tmp_path: Path) -> None:
    lock = commit.FairFileLock(tmp_path / "log.db-door")
    with lock:
        assert lock._file is not None
    read_only, write_only = os.pipe()
    real, lock._file = lock._file, read_only  # a pipe has no locks
    with pytest.raises(StoreError, match="cannot be locked"):
        lock.__enter__()
    lock._file = real
    with lock:
        pass
    os.close(read_only)
    os.close(write_only)


def test_a_boot_has_an_id_if_the_system_has_one(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("b00t\n")
    assert machine.boot_id(tmp_path / "boot_id") == "b00t"
    assert machine.boot_id(tmp_path / "none") == ""


def test_the_time_since_boot_only_grows() -> None:
    readings = [get_boot_time() for _ in range(100)]
    assert readings == sorted(readings)
    assert readings[0] > 0
