"""`oncemore exec` says what it does: no retries, long waits, work that is done (issue 15, section 5)."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oncemore import cli
from oncemore.cli.params import format_span
from oncemore.testing import FakeClock
from tests.fixtures import _isolated

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["_isolated"]

README = Path(__file__).parents[2] / "README.md"
AGAIN = 'echo try; [ "$ONCEMORE_ATTEMPT" = 2 ]'


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


@pytest.mark.parametrize("asked", [["--policy", "p2-batch-reporting"], ["--attempts", "3"], ["--wait", "1s"]])
def test_retries_that_the_effect_forbids_are_named_before_the_start(
    capfd: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    assert cli.run_command(["exec", "--key", "k", *asked, "--", "sh", "-c", "echo started >&2; exit 1"]) == 1
    said = capfd.readouterr().err
    assert "--effect once, the default, never repeats a program that failed" in said
    assert said.index("never repeats") < said.index("\nstarted")


@pytest.mark.parametrize(
    "asked",
    [
        [],
        ["--attempts", "1"],
        ["--attempts", "3", "--effect", "idempotent"],
        ["--attempts", "3", "--retry-on-exit", "75"],
        ["--attempts", "3", "--retry-on-output", "busy"],
    ],
)
def test_where_retries_are_allowed_or_nobody_asked_nothing_is_said(
    capfd: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    assert cli.run_command(["exec", "--key", "k", *asked, "--", "true"]) == 0
    assert "never repeats" not in capfd.readouterr().err


def test_the_example_of_the_readme_is_tried_again(
    clock: FakeClock, capfd: pytest.CaptureFixture[str]
) -> None:
    (line,) = re.findall(r"(?m)^oncemore (exec .*)$", README.read_text())
    script = Path("monthly-report.sh")
    script.write_text(f"#!/bin/sh\n{AGAIN}\n")
    script.chmod(0o755)
    assert cli.run_command(shlex.split(line)) == 0
    assert capfd.readouterr().out == "try\ntry\n"
    assert sum(clock.delays) >= 30


def test_a_wait_of_more_than_a_minute_is_waited_for(
    clock: FakeClock, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["exec", "--key", "k", "--effect", "idempotent", "--wait", "2h", "--", "sh", "-c", AGAIN]
    assert cli.run_command(words) == 0
    assert sum(clock.delays) == pytest.approx(7200, abs=1)
    said = capfd.readouterr().err
    assert said.count("next attempt in 2 h 00 min") == 1


def test_with_max_wait_a_longer_one_is_left_to_a_later_call(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["exec", "--key", "k", "--effect", "idempotent", "--wait", "2m", "--max-wait", "1m"]
    assert cli.run_command([*words, "--", "sh", "-c", AGAIN]) == 120
    assert "is deferred until 20" in capfd.readouterr().err


def test_a_terminal_shows_a_countdown_in_one_line(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        words = ["exec", "--key", "k", "--effect", "idempotent", "--wait", "3s", "--", "sh", "-c", AGAIN]
        assert cli.run_command(words) == 0
        said = os.read(ours, 65536).decode()
    os.close(ours)
    shown = re.findall(r"\r\x1b\[Koncemore: next attempt in (\d)\.\d s", said)
    assert shown == ["3", "2", "1"]
    assert said.endswith("\r\x1b[K")


def test_a_second_call_says_that_nothing_ran_and_since_when_it_is_done(
    capfd: pytest.CaptureFixture[str],
) -> None:
    words = ["exec", "--key", "k", "--report", "report.json", "--", "echo", "hello"]
    assert cli.run_command(words) == 0
    assert "not run" not in capfd.readouterr().err
    first = json.loads(Path("report.json").read_text())
    assert cli.run_command(words) == 0
    out, said = capfd.readouterr()
    assert out == "hello\n"
    assert re.fullmatch(r"oncemore: not run: this work was completed at 20\d\d-[\d-]+ [\d:]+\n", said)
    second = json.loads(Path("report.json").read_text())
    assert (second["ran"], second["done_at"]) == (False, first["done_at"])
    assert cli.run_command([*words[:1], "--quiet", *words[1:]]) == 0
    assert capfd.readouterr() == ("", "")


def test_durations_are_shown_as_people_say_them() -> None:
    assert [format_span(s) for s in (0.1, 9.94, 45, 59.2, 125, 3720)] == [
        "0.1 s", "9.9 s", "45 s", "1 min 00 s", "2 min 05 s", "1 h 02 min",
    ]  # fmt: skip
