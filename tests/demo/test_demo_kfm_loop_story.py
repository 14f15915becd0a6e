"""`oncemore demo kfm-loop` without options: the story of one day, and what it says is checked."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from oncemore import cli
from oncemore.demo import kfm_loop_story as story

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> tuple[story.PlayedDay, story.PlayedDay]:
    folder: Path = tmp_path_factory.mktemp("day")
    signals = story.write_inputs(folder)
    return story.play_day(folder, signals, "blind"), story.play_day(folder, signals, "aware")


Days = tuple[story.PlayedDay, story.PlayedDay]


def test_reports_move_to_the_clean_hours_and_the_energy_stays(days: Days) -> None:
    blind, aware = days
    worst, best = ({story.GRID[hour] for hour in day.reports} for day in days)
    assert min(worst) > 600
    assert max(best) < 250
    assert len(aware.reports) == len(blind.reports) == story.REPORTS
    before, after = blind.carbon.energy.total, aware.carbon.energy.total
    assert after.energy_kWh == pytest.approx(before.energy_kWh, rel=1e-3)
    assert after.carbon_kgCO2e < 0.5 * before.carbon_kgCO2e
    assert after.cost_usd < 0.5 * before.cost_usd
    assert "grid intensity 612 g/kWh" in aware.pause
    assert blind.pause == ""


def test_the_nowcast_of_the_worst_hour_fails_twice_and_is_in_time(days: Days) -> None:
    for day in days:
        assert [attempt.outcome for attempt in day.storm.attempts] == ["SOFT_FAIL", "SOFT_FAIL", "COMPLETE"]
        assert all(proof["clamps"] == ["max_stretch"] for proof in day.storm.proofs)
        assert 20 < day.nowcasts[story.STORM_HOUR] < story.SLO_S
        assert sorted(day.nowcasts) == list(story.NOWCAST_HOURS)


def test_every_decision_is_computed_again_from_the_log(days: Days) -> None:
    assert [(day.decisions, day.differences) for day in days] == [(2, 0), (2, 0)]
    assert story.find_faults(*days) == []


def test_a_story_that_did_not_come_out_says_so(days: Days) -> None:
    blind, aware = days
    late = aware._replace(nowcasts={12: 301.0}, reports=aware.reports[1:], differences=1)
    assert story.find_faults(blind, late) == [
        "a nowcast was late",
        "a report is missing",
        "a decision differs from its record",
    ]
    assert story.find_faults(aware, aware) == ["the signals saved no carbon"]


def test_the_command_fails_if_the_story_does_not_hold(monkeypatch: pytest.MonkeyPatch, days: Days) -> None:
    monkeypatch.setattr(
        story, "play_day", lambda folder, signals, kind: days[kind == "aware"]._replace(reports=[])
    )
    out = io.StringIO()
    assert story.main(out, plain=True) == 1
    assert "a report is missing" in out.getvalue()


def test_the_command_tells_the_same_story_every_time_on_80_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = []
    for _ in range(2):
        assert cli.run_command(["demo", "kfm-loop", "--plain"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    lines = texts[0].splitlines()
    assert max(map(len, lines)) <= 80
    assert 30 <= len(lines) <= 45
    assert any(line.startswith("P2 on") and line.count("3") == 2 for line in lines)
    assert "carbon              2.43 kg       0.94 kg          -61 %" in lines
    assert "come out the same." in texts[0]
