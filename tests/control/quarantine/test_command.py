"""A program that is run for each message: as it is given, without a shell, and no longer than it may."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import UsageError
from oncemore.messaging import sinks
from oncemore.messaging.message import EventMessage
from oncemore.outbox import CommandSink, OutboxRelay
from tests.messaging.outbox.simulation import give, states
from tests.timing import is_process_alive, wait_until

if TYPE_CHECKING:
    from pathlib import Path

MESSAGE = EventMessage("an-id", "topic", {"text": "ö"}, "corr", "", 1000.0, "lane", 7, 2)


def python(source: str, **options: Any) -> CommandSink:
    return CommandSink([sys.executable, "-c", source], **options)


def test_a_program_gets_the_message_as_one_line_of_json(tmp_path: Path) -> None:
    python("import sys, pathlib; pathlib.Path('got').write_bytes(sys.stdin.buffer.read())")(MESSAGE)
    data = (tmp_path / "got").read_bytes()
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    assert json.loads(data) == {**MESSAGE.to_dict(), "attempt": 2}


def test_its_words_are_given_as_they_are_and_no_shell_reads_them(tmp_path: Path) -> None:
    words = ["$HOME", "; touch hacked", "`touch hacked`", "a b", "*", ""]
    source = "import sys, json, pathlib; pathlib.Path('got').write_text(json.dumps(sys.argv[1:]))"
    CommandSink([sys.executable, "-c", source, *words])(MESSAGE)
    assert json.loads((tmp_path / "got").read_text()) == words
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("code", [1, 75])
def test_a_program_that_does_not_end_well_has_not_delivered(code: int) -> None:
    with pytest.raises(oncemore.TransientError, match=f"exited with {code}"):
        python(f"import sys; sys.exit({code})")(MESSAGE)


def test_a_program_that_is_not_there_is_a_dead_letter() -> None:
    with oncemore.open("memory:") as engine:
        give("a", ["x"])
        OutboxRelay(engine, {"*": CommandSink(["no-such-program-anywhere"])}).run_once()
        assert states(engine) == {"DEAD": 1}
        (item,) = engine.quarantine
        assert item.error["code"] == "ERRNO_ENOENT"


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
open("pids.part", "w").write(f"{os.getpid()} {child}")
os.rename("pids.part", "pids")
time.sleep(600)
"""


def test_at_the_limit_it_is_killed_with_everything_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    communicate = sinks.subprocess.Popen.communicate

    def wait_for_start(self: Any, *args: Any, **named: Any) -> Any:
        """Begin to count the seconds when the program has started its own child."""
        wait_until((tmp_path / "pids").exists, "the program and its child")
        return communicate(self, *args, **named)

    monkeypatch.setattr(sinks.subprocess.Popen, "communicate", wait_for_start)
    with pytest.raises(TimeoutError, match=r"did not exit within 0\.5 s"):
        python(STUBBORN, timeout=0.5)(MESSAGE)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_process_alive, pids)), "the end of all that it started")


def test_a_program_that_reads_nothing_is_killed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    big = MESSAGE._replace(payload="x" * 1_000_000)
    with pytest.raises(TimeoutError):
        python("import time; time.sleep(600)", timeout=0.5)(big)
    python("pass")(big)  # it ends without having read anything, and well


def test_what_cuts_the_caller_off_ends_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Any, *told: Any, **named: Any) -> None:
        wait_until((tmp_path / "pids").exists, "the program and its child")
        raise KeyboardInterrupt

    monkeypatch.setattr(sinks.subprocess.Popen, "communicate", cut)
    with pytest.raises(KeyboardInterrupt):
        python(STUBBORN)(MESSAGE)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(map(is_process_alive, pids)), "the end of all that it started")


def test_a_program_that_is_gone_already_is_left_alone() -> None:
    process = sinks.subprocess.Popen([sys.executable, "-c", "pass"], start_new_session=True)
    process.wait(30)
    sinks._kill_process(process)
    assert process.returncode == 0


def test_it_is_shown_without_its_words() -> None:
    assert repr(CommandSink(["mail", "--password", "geheim"])) == "<oncemore.CommandSink mail>"


@pytest.mark.parametrize("argv", ["mail operator", b"mail", [], [""], ["mail", 7], ["mail", "a\0b"]])
def test_what_is_no_list_of_words_is_refused(argv: Any) -> None:
    with pytest.raises(UsageError, match="argv is"):
        CommandSink(argv)


@pytest.mark.parametrize("timeout", [0, -1, 601, True, "5"])
def test_a_limit_that_is_none_is_refused(timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout is"):
        CommandSink(["mail"], timeout=timeout)
    assert os.getpid()
