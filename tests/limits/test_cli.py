"""`oncemore limits breakers` and `oncemore limits rates`: what people see of gates, and what they can say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore import cli
from oncemore.queries import limits

if TYPE_CHECKING:
    from pathlib import Path

    from oncemore.testing import FakeClock


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "140")

    def run(*words: str, code: int = 0) -> str:
        assert cli.run_command([*words, "--store", str(tmp_path / "log.db")]) == code
        out = capsys.readouterr()
        return out.out if code == 0 else out.err

    return run


@pytest.fixture
def log(tmp_path: Path, clock: FakeClock) -> None:
    """A log with two breakers: one is open, one has failed once and was well again."""
    with oncemore.open(tmp_path / "log.db"):
        for name, failures in (("stac", 1), ("eso", 3)):
            breaker = oncemore.Breaker(name, failures=failures, shared=True)
            with pytest.raises(ConnectionResetError), breaker:
                raise ConnectionResetError("down")


@pytest.mark.usefixtures("log")
def test_the_list_has_those_first_that_are_open(said: Any) -> None:
    lines = said("limits", "breakers", "list").splitlines()
    assert lines[0].split()[:2] == ["provider", "state"]
    assert lines[1].split()[:2] == ["stac", "OPEN"]
    assert "5 min" in lines[1] or "4 min" in lines[1]
    assert "CONNECTION_RESET" in lines[1]
    assert lines[2].split()[:3] == ["eso", "CLOSED", "now"]
    assert "1 of 3 operations" in lines[2]
    told = json.loads(said("limits", "breakers", "list", "--json", "--state", "OPEN"))
    assert [(one["name"], one["state"], one["open_count"]) for one in told] == [("stac", "OPEN", 1)]
    assert 290 < told[0]["open_for_s"] <= 300


@pytest.mark.usefixtures("log")
def test_without_a_command_all_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONCEMORE_STORE", str(tmp_path / "log.db"))
    assert cli.run_command(["limits", "breakers"]) == 0
    assert "stac" in capsys.readouterr().out
    assert cli.run_command(["limits", "rates"]) == 0
    assert "No concurrency limit, rate limit or retry budget has been used yet." in capsys.readouterr().out


@pytest.mark.usefixtures("log")
def test_one_is_shown_with_what_happened_to_it(said: Any) -> None:
    text = said("limits", "breakers", "show", "stac")
    assert text.startswith("stac: OPEN\n  next call allowed in")
    assert "opens after 1 operations, for 5 min 0 s; opened 1 times" in text
    assert "CONNECTION_RESET" in text
    told = json.loads(said("limits", "breakers", "show", "stac", "--json"))
    assert [move["state"] for move in told["events"]] == ["OPEN"]
    assert "there is no breaker 'nobody' in this store; it has eso, stac" in said(
        "limits", "breakers", "show", "nobody", code=2
    )


@pytest.mark.usefixtures("log")
def test_a_reset_needs_a_reason_and_is_on_record(said: Any, tmp_path: Path) -> None:
    assert "--reason" in said("limits", "breakers", "reset", "stac", code=2)
    assert (
        said("limits", "breakers", "reset", "stac", "--reason", "our own network", "--by", "operator")
        == "stac: CLOSED\n"
    )
    text = said("limits", "breakers", "show", "stac")
    assert "operator: our own network" in text
    told = json.loads(said("limits", "breakers", "reset", "eso", "--reason", "again", "--json"))
    assert (told["state"], told["failures"]) == ("CLOSED", 0)
    with oncemore.open(tmp_path / "log.db"):
        assert oncemore.Breaker("stac", shared=True).state == "CLOSED"
    assert "there is no breaker 'nobody'" in said(
        "limits", "breakers", "reset", "nobody", "--reason", "x", code=2
    )


def test_a_probe_under_way_is_told(said: Any, tmp_path: Path, clock: FakeClock) -> None:
    with oncemore.open(tmp_path / "log.db"):
        breaker = oncemore.Breaker("stac", rate=0.5, minimum_calls=1, cooldown_s=20, shared=True)
        with pytest.raises(ConnectionResetError), breaker:
            raise ConnectionResetError
        clock.advance(21)
        with breaker:
            text = said("limits", "breakers", "show", "stac")
            assert text.startswith("stac: HALF_OPEN\n")
            assert "is probing the provider" in text
            assert "opens after 50% of calls" in text


def test_nothing_that_failed_is_said_so(said: Any, tmp_path: Path) -> None:
    with oncemore.open(tmp_path / "log.db") as engine:
        engine.leases.current_identity()
    assert said("limits", "breakers", "list") == "No breakers match.\n"
    assert "it has none: nothing has failed yet" in said("limits", "breakers", "show", "x", code=2)
    assert "there is no resource 'x' in this store; it has none" in said(
        "limits", "rates", "show", "x", code=2
    )
    assert json.loads(said("limits", "rates", "list", "--json")) == []


def test_a_failure_of_a_run_is_told_with_the_run(said: Any, tmp_path: Path, clock: FakeClock) -> None:
    @oncemore.step(effect="idempotent", name="poll", breaker=oncemore.Breaker("stac", failures=1))
    def poll() -> None:
        raise ConnectionResetError("by the peer")

    with oncemore.open(tmp_path / "log.db") as engine:
        run = poll.run()
        _, moves = limits.load_breaker(engine, "stac")
        assert moves[0].run == run.key
    text = " ".join(said("limits", "breakers", "show", "stac").split())
    assert f"CONNECTION_RESET: by the peer (run {run.key[:12]})" in text
