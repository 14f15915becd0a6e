"""`oncemore limits cooldowns`: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.cli.cooldowns import format_countdown

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with one resource that rests, one that is held and one that is there."""
    (tmp_path / "oncemore.toml").write_text('store = "log.db"\n')
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("NO_COLOR", "1")
    turns = {"busy": oncemore.TransientError("busy"), "odd": oncemore.NeedsReview("DOUBT"), "well": None}
    once = oncemore.Policy("once", max_attempts=1)

    @oncemore.step(
        effect="idempotent", name="fetch", policy=once, provider=lambda name: f"p-{name}",
        cooldown=oncemore.Cooldown(lambda name: name),
    )  # fmt: skip
    def fetch(name: str) -> str:
        turn = turns[name]
        if turn is not None:
            raise turn
        return name

    with oncemore.open(tmp_path / "log.db"):
        fetch.map(list(turns), max_concurrency=1)


class Ran:
    """What a command printed, and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self.code = cli.run_command(["limits", "cooldowns", *words])
        self.out, self.err = capsys.readouterr()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def test_what_is_left_alone_is_listed_with_a_countdown(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("list",)):
        found = Ran(capsys, *words)
        head, busy, odd = found.out.splitlines()[:3]
        assert head.split() == [
            "resource",
            "provider",
            "state",
            "attempts",
            "eligible",
            "in",
            "last",
            "error",
        ]
        assert busy.split()[:4] == ["busy", "p-busy", "COOLING", "1"]
        assert "4 min" in busy or "5 min" in busy
        assert busy.endswith("TransientError")
        assert odd.split() == ["odd", "p-odd", "HELD", "1", "after", "release", "DOUBT"]
        assert found.code == 0
    every = Ran(capsys, "list", "--state", "all").out
    assert "well" in every
    assert "never: valid" in every
    assert Ran(capsys, "list", "--provider", "nobody").out == "No resources match.\n"
    assert [one["resource"] for one in Ran(capsys, "list", "--step", "fetch", "--json").json] == [
        "busy",
        "odd",
    ]
    (rests,) = Ran(capsys, "list", "--state", "COOLING", "--json").json
    assert (rests["skip"], rests["last_attempt_outcome"]) == ("SKIPPED_BACKOFF", "RETRYABLE_FAILURE")
    assert 0 < rests["left_s"] <= 300


def test_one_is_shown_with_its_record_and_last_error(capsys: pytest.CaptureFixture[str]) -> None:
    told = Ran(capsys, "show", "busy").out
    assert told.startswith("busy: SKIPPED_BACKOFF\n")
    for part in ("acquisition_status", "FAILED", "attempt_count_total", "TransientError: busy", "(in "):
        assert part in told
    plain = Ran(capsys, "show", "busy", "--json").json
    assert (plain["resource"]["resource"], plain["error"]["message"]) == ("busy", "busy")
    assert plain["entries"][0]["attempt_count_total"] == 1
    assert "last_successful_fingerprint" in Ran(capsys, "show", "well").out
    missing = Ran(capsys, "show", "nobody")
    assert (missing.code, "no step has requested 'nobody'" in missing.err) == (2, True)


@pytest.mark.req("COOL-10")
def test_a_release_is_recorded_with_who_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    made = Ran(capsys, "release", "odd", "--reason", "looked at it", "--by", "curator")
    assert made.out == "released odd, by curator\nThe next execution requests it.\n"
    shown = Ran(capsys, "show", "odd").out
    assert "odd: eligible" in shown
    assert "release by curator: looked at it" in shown
    plain = Ran(capsys, "release", "busy", "--reason", "it is back", "--json").json
    assert (plain["released"]["state"], plain["reason"]) == ("READY", "it is back")
    assert plain["by"]
    again = Ran(capsys, "release", "busy", "--reason", "again")
    assert (again.code, "steps may request it already" in again.err) == (2, True)
    assert Ran(capsys, "release", "busy").code == 2
    ready = Ran(capsys, "list", "--state", "READY").out
    assert "busy" in ready
    assert "now" in ready


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (60, "1 min"), (250, "4 min 10 s"), (3600, "1 h"), (83_100, "23 h 5 min"),
     (86_400, "1 d"), (90_000, "1 d 1 h")],
)  # fmt: skip
def test_a_countdown_has_two_units(seconds: float, text: str) -> None:
    assert format_countdown(seconds) == text
