"""Output is passed on as it arrives, kept unchanged, and bounded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import oncemore
from tests.programs.conftest import PROGRAM, RAN
from tests.timing import is_process_alive, wait_until

if TYPE_CHECKING:
    from tests.programs.conftest import ExecSandbox

EVERY_BYTE = r"""
import sys
sys.stdout.buffer.write(bytes(range(256)) * 300 + b"\xff\xfe\0")
sys.stderr.buffer.write(b"\x80e")
"""


def test_binary_output_is_passed_on_and_replayed_byte_for_byte(sandbox: ExecSandbox) -> None:
    sandbox.run("--key", "first", "--", "true")
    for _ in range(2):
        done = sandbox.run("--key", "k", "--", sys.executable, "-c", EVERY_BYTE)
        assert done.stdout == bytes(range(256)) * 300 + b"\xff\xfe\0"
        assert done.stderr.rpartition(b"\n")[2] == b"\x80e"  # after the remark that nothing was run


def test_output_arrives_before_the_program_ends(sandbox: ExecSandbox) -> None:
    script = "printf part; while [ ! -e go ]; do sleep 0.05; done; echo end"
    program = sandbox.start("--key", "k", "--", "sh", "-c", script, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert os.read(program.stdout.fileno(), 100) == b"part"  # without an end of line
    (sandbox.folder / "go").touch()
    assert program.communicate(timeout=60)[0] == b"end\n"


def test_output_of_200_mb_needs_little_memory_and_disk_and_notes_the_omission(sandbox: ExecSandbox) -> None:
    size, words = 200_000_000, ("--report", "r.json", "--key", "k", "--max-output", "1M", "--")
    command = ("sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x; echo the end")
    with sandbox.start(*words, *command, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        count, last, most = 0, b"", 0
        status = Path(f"/proc/{program.pid}/status")
        while data := program.stdout.read(1 << 20):
            count, last = count + len(data), data
            # Not what wait4 tells: that begins with the size of this process, which forked it.
            most = max([most, *map(int, re.findall(r"VmHWM:\s+(\d+) kB", status.read_text()))])
        program.wait(60)
    assert (program.returncode, count, last[-8:]) == (0, size + 8, b"the end\n")
    assert 0 < most < 200_000, f"{most} kB"
    kept = json.loads((sandbox.folder / "r.json").read_text())["program"]["stdout"]
    assert (kept["bytes"], kept["left_out"]) == (size + 8, size + 8 - 1024 * 1024)
    again = sandbox.run(*words, *command).stdout
    note = b"\n[oncemore: %d bytes are left out here]\n" % kept["left_out"]
    assert len(again) == kept["size"] == 1024 * 1024 + len(note)
    assert again.startswith(b"x" * 1000)
    assert again[512 * 1024 :].startswith(note)
    assert again.endswith(b"xthe end\n")


def test_a_reader_that_closes_its_end_does_not_stop_the_program(sandbox: ExecSandbox) -> None:
    script = 'i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; echo ran >> "$RAN"; exit 0'
    program = sandbox.start("--key", "k", "--", "sh", "-c", script, stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == b"line 0\n"
    program.stdout.close()
    assert (program.wait(60), sandbox.read_runs()) == (0, ["ran"])
    assert sandbox.run("--key", "k", "--", "sh", "-c", script).stdout.endswith(b"line 2999\n")


def test_streams_closed_from_the_start_do_not_matter(sandbox: ExecSandbox) -> None:
    words = [*PROGRAM, "--key", "k", "--", *RAN]
    code = "import os, sys; os.close(0); os.close(1); os.close(2); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=sandbox.folder,
        env=sandbox.environment(),
        timeout=60,
        check=False,
    )
    assert (done.returncode, sandbox.read_runs()) == (0, ["ran"])
    assert sandbox.run("--key", "k", "--", *RAN).stdout == b"out\n"


def test_the_time_limit_holds_while_the_reader_is_blocked(sandbox: ExecSandbox) -> None:
    script = (
        'echo $$ >> "$RAN"; while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done'
    )
    words = ("--key", "k", "--timeout", "1s", "--grace", "0.2s", "--attempts", "1", "--effect", "pure")
    program = sandbox.start(*words, "--", "sh", "-c", script, stdout=subprocess.PIPE)
    pid = int(sandbox.wait_for_lines(1)[0])
    wait_until(lambda: not is_process_alive(pid), "the end of a program that nobody reads", 20)
    program.communicate(timeout=60)
    assert program.returncode == 124


@pytest.mark.parametrize(("keep", "stored"), [("always", b"out\n"), ("failed", b"out\n"), ("never", b"")])
def test_keep_output_decides_about_the_output_of_a_failure(
    sandbox: ExecSandbox, keep: str, stored: bytes
) -> None:
    words = ("--key", "k", "--keep-output", keep, "--", "sh", "-c", "echo out; exit 9")
    assert sandbox.run(*words).stdout == b"out\n"
    assert sandbox.run(*words).stdout == stored


def test_keep_output_failed_does_not_keep_a_success(sandbox: ExecSandbox) -> None:
    words = ("--key", "k", "--keep-output", "failed", "--", *RAN)
    assert sandbox.run(*words).stdout == b"out\n"
    again = sandbox.run(*words)
    assert (again.returncode, again.stdout) == (0, b"")
    assert b"its stdout was not kept" in again.stderr


def test_the_output_of_every_attempt_is_an_artifact_even_of_failed_ones(sandbox: ExecSandbox) -> None:
    words = ("--key", "k", "--effect", "idempotent", "--wait", "0.01", "--")
    script = 'echo "try $ONCEMORE_ATTEMPT"; [ "$ONCEMORE_ATTEMPT" = 2 ]'
    assert sandbox.run(*words, "sh", "-c", script).stdout == b"try 1\ntry 2\n"
    with oncemore.open(sandbox.folder / ".oncemore" / "log.db") as engine:
        kept = {one.name: one.read() for one in engine.artifacts.list(step="exec")}
        assert kept == {"attempt-1/stdout": b"try 1\n", "attempt-2/stdout": b"try 2\n"}
        assert engine.artifacts.find_garbage(older_than=60) == ()
    assert sandbox.run(*words, "sh", "-c", script).stdout == b"try 2\n"


def test_altered_output_is_not_shown_and_the_exit_code_stays(sandbox: ExecSandbox) -> None:
    sandbox.run("--key", "k", "--", *RAN)
    for file in (sandbox.folder / ".oncemore" / "artifacts" / "sha256").glob("*/*"):
        file.chmod(0o644)
        file.write_bytes(b"forged\n")
    again = sandbox.run("--key", "k", "--", *RAN)
    assert (again.returncode, again.stdout) == (0, b"")
    assert b"its stdout cannot be shown" in again.stderr
    assert b"altered" in again.stderr


# Where there is no room.

#: Runs a program whose files may have so many bytes: to it the disk is full.
LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
os.execv(sys.argv[2], sys.argv[2:])
"""


def test_an_artifact_that_cannot_be_written_does_not_fail_the_work(sandbox: ExecSandbox) -> None:
    done = sandbox.run("--key", "k", "--", *RAN, ONCEMORE_ARTIFACTS="/dev/null/nowhere")
    assert (done.returncode, done.stdout, sandbox.read_runs()) == (0, b"out\n", ["ran"])
    assert b"its stdout was not stored" in done.stderr
    again = sandbox.run("--key", "k", "--", *RAN, ONCEMORE_ARTIFACTS="/dev/null/nowhere")
    assert (again.returncode, sandbox.read_runs()) == (0, ["ran"])


def test_a_full_disk_for_output_does_not_stop_the_program(sandbox: ExecSandbox) -> None:
    assert sandbox.run("--key", "first", "--", "true").returncode == 0
    program = [sys.executable, "-c", LIMITED, "600000", *PROGRAM]
    script = 'head -c 3000000 /dev/zero; echo ran >> "$RAN"'
    done = sandbox.run("--key", "k", "--", "sh", "-c", script, program=program)
    assert (done.returncode, len(done.stdout), sandbox.read_runs()) == (0, 3_000_000, ["ran"])
    assert b"its stdout was not stored: File too large" in done.stderr


@pytest.mark.parametrize("store", ["/dev/null/log.db", "sqlite:///", "gopher://host/x"])
def test_an_unusable_store_runs_nothing(sandbox: ExecSandbox, store: str) -> None:
    done = sandbox.run("--key", "k", "--store", store, "--", *RAN)
    assert (done.returncode, done.stdout, sandbox.read_runs()) == (125, b"", [])
    assert done.stderr.startswith(b"oncemore: ")


def test_a_full_store_runs_nothing(sandbox: ExecSandbox) -> None:
    done = sandbox.run("--key", "k", "--", *RAN, program=[sys.executable, "-c", LIMITED, "8000", *PROGRAM])
    assert (done.returncode, sandbox.read_runs()) == (125, [])


def test_a_slow_reader_slows_the_program_down_and_loses_nothing(sandbox: ExecSandbox) -> None:
    with sandbox.start("--key", "k", "--", "sh", "-c", "seq 1 60000", stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        time.sleep(0.5)
        assert len(program.stdout.read().splitlines()) == 60_000
    assert program.returncode == 0
