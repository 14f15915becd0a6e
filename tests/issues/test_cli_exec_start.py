"""A signal while `oncemore exec` starts ends it quietly, with the signal's exit code (issue 15)."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.programs.conftest import sandbox

if TYPE_CHECKING:
    from tests.programs.conftest import ExecSandbox

__all__ = ["sandbox"]

#: The program as `pip` installs it, but for a tracer that sends a signal at the n-th call of the start.
LAUNCHER = """
import os, sys
number, at, calls = int(os.environ["SIGNAL"]), int(os.environ["AT"]), 0

def trace(frame, event, argument):
    global calls
    if calls or frame.f_code.co_filename.endswith("oncemore/__init__.py"):
        calls += 1
    if calls == at + 1:
        sys.settrace(None)
        os.kill(os.getpid(), number)
    where = frame.f_code.co_filename, frame.f_code.co_name
    if at == COUNT and where[0].endswith("programs/process.py") and where[1] == "run_program":
        sys.settrace(None)
        with open("calls.txt", "w") as file:
            file.write(str(calls))

COUNT = 1 << 60
sys.settrace(trace)
from oncemore.cli import main
sys.exit(main())
"""


def test_at_every_moment_of_the_start(sandbox: ExecSandbox) -> None:
    launcher = sandbox.folder / "oncemore"
    launcher.write_text(LAUNCHER)
    command = [sys.executable, "-W", "error", str(launcher), "exec", "--quiet"]
    sandbox.run("--key", "a", "--", "true", program=command, SIGNAL="0", AT=str(1 << 60))
    calls = int((sandbox.folder / "calls.txt").read_text())  # until the program is started
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chosen = random.Random(seed)
    moments = [1, 2, 3, *(chosen.randrange(1, calls + 1) for _ in range(9))]
    started = []
    for moment in moments:
        number = chosen.choice((signal.SIGINT, signal.SIGTERM))
        changes = {"SIGNAL": str(int(number)), "AT": str(moment)}
        words = ("--key", f"k{moment}", "--", "sh", "-c", 'echo ran >> "$RAN"')
        program = sandbox.start(
            *words, program=command, changes=changes, stderr=subprocess.PIPE, start_new_session=True
        )
        started.append((moment, number, program))
    for moment, number, program in started:
        _, said = program.communicate(timeout=60)
        assert program.returncode == 128 + number, (moment, said)
        assert b"Traceback" not in said, (moment, said)
        assert b"Exception" not in said, (moment, said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_at_the_first_instruction_nothing_is_said(sandbox: ExecSandbox, number: signal.Signals) -> None:
    launcher = sandbox.folder / "oncemore"
    launcher.write_text(
        "import os, sys\nimport oncemore._version\n"
        f"os.kill(os.getpid(), {int(number)})\nfrom oncemore.cli import main\nmain()\n"
    )
    done = sandbox.run("--key", "k", "--", "true", program=[sys.executable, str(launcher), "exec"])
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, b"", b"")
    assert not (sandbox.folder / ".oncemore").exists()


def test_a_library_keeps_the_signals_of_python(sandbox: ExecSandbox) -> None:
    script = "import signal, oncemore; print(signal.getsignal(2) is signal.default_int_handler, "
    script += "signal.getsignal(15) is signal.SIG_DFL, signal.pthread_sigmask(0, ()))"
    (sandbox.folder / "other.py").write_text(script)
    for words in (["-c", script], ["-m", "other", "-m", "oncemore"], ["other.py"]):
        assert sandbox.run(program=[sys.executable, *words]).stdout == b"True True set()\n", words


def test_what_was_ignored_before_stays_ignored(sandbox: ExecSandbox) -> None:
    words = ("--quiet", "--key", "k", "--", "sh", "-c", "kill -INT $PPID; kill -INT $$; echo here")
    program = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "oncemore", "exec"]
    assert sandbox.run(*words, program=program).returncode == 0
