"""`oncemore report carbon` and `oncemore control autonomy`: snapshots by key and time, and the decisions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import oncemore
from oncemore import cli
from oncemore.queries.carbon import report_carbon
from oncemore.queries.energy import load_energy
from oncemore.queries.recorded_runs import RecordedRunFilter
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLICY = """
profile: nightly
version: '1'
priority: P2
retry_policy: {max_attempts: 3, base_delay_s: 10, jitter: none, max_delay_s: 900}
telemetry_tuning: {enabled: true}
autonomy:
  carbon_intensity_g_per_kWh: {slow: 500, resume: 250}
  min_dwell_s: 0
carbon_budget: {cap_kgCO2e: 5}
"""
HOUR = 3600.0


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[oncemore.Engine, float]]:
    """A day with two reports: one at a clean grid, and one that fails once at a dirty grid."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nightly.yaml").write_text(POLICY)
    failing = [ConnectionError("busy")]

    @oncemore.step(effect="pure", policy="nightly.yaml", name="report")
    def report(month: str) -> str:
        oncemore.current().add_usage(energy_kwh=0.001)
        if month == "dirty" and failing:
            raise failing.pop()
        return month

    with FakeClock() as clock:
        start = oncemore.open(tmp_path / "log.db").now()
        (tmp_path / "grid.csv").write_text(f"{start - 60},200\n{start + HOUR / 2},620\n")
        signals = {"grid_intensity": {"file": "grid.csv"}}
        with oncemore.open(tmp_path / "log.db", signals=signals) as engine:
            report("clean")
            clock.advance(HOUR)
            report("dirty")
            yield engine, start


def shell(*words: str) -> str:
    with CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).isolation() as streams:
        assert cli.run_command([*words, "--store", "log.db"]) == 0, streams[1].getvalue().decode()
        return streams[0].getvalue().decode()


@pytest.mark.req("CLI-3")
def test_the_snapshots_of_a_key_and_a_window_and_nothing_else(day: tuple[oncemore.Engine, float]) -> None:
    engine, start = day
    everything = report_carbon(engine)
    assert [row.attempt for row in everything.rows] == [1, 1, 2]
    clean, dirty = everything.rows[0].key, everything.rows[1].key
    assert [row.key for row in report_carbon(engine, clean).rows] == [clean]
    assert [row.key for row in report_carbon(engine, dirty[:12]).rows] == [dirty, dirty]
    late = report_carbon(engine, since=start + HOUR / 2)
    assert [row.key for row in late.rows] == [dirty, dirty]
    assert report_carbon(engine, clean, since=start + HOUR / 2).rows == ()
    last = everything.rows[-1].at
    only = report_carbon(engine, dirty, since=last, until=last)
    assert [row.attempt for row in only.rows] == [2]
    # The second attempt is a retry, also where the window leaves the first one out.
    assert only.energy.retry_share == 1.0
    assert everything.energy.total.attempts == 3
    assert everything.energy.retries.attempts == 1
    assert report_carbon(engine, limit=1).is_cut_off
    with pytest.raises(oncemore.UsageError, match="limit is 0"):
        report_carbon(engine, limit=0)


@pytest.mark.req("CLI-4", "AUTO-6")
def test_each_row_shows_the_decision_in_force_at_its_time(day: tuple[oncemore.Engine, float]) -> None:
    rows = report_carbon(day[0]).rows
    assert [(row.decision, row.action) for row in rows] == [
        ("nightly#1", "run"), ("nightly#2", "slow"), ("nightly#2", "slow"),
    ]  # fmt: skip
    assert "grid intensity 620" in rows[1].reason
    text = shell("report", "carbon")
    assert "slow (nightly#2)" in text
    assert "3 attempts: 3" in text
    assert "retries caused 33% of the energy" in text
    listed: Any = json.loads(shell("report", "carbon", rows[0].key, "--json"))
    (attempt,) = listed["attempts"]
    assert attempt["snapshot"] == rows[0].snapshot
    assert (attempt["decision"], attempt["action"]) == ("nightly#1", "run")
    assert "No attempt ended" in shell("report", "carbon", "--until", "2001-01-01")


@pytest.mark.req("TELEM-6")
def test_one_input_set_reaches_a_delay_a_decision_and_a_figure(day: tuple[oncemore.Engine, float]) -> None:
    engine, _ = day
    rows = report_carbon(engine).rows
    explained: Any = json.loads(shell("control", "autonomy", "explain", "nightly", "--json"))
    # The matrix decided by 620 g/kWh, …
    assert explained[-1]["proof"]["inputs"]["readings"]["grid_intensity"]["value"] == 620.0
    # … the retry of the attempt was stretched by the same reading and slowed by that decision, …
    shown: Any = json.loads(shell("explain", rows[1].run_id, "--json"))
    proof = next(part["proof"] for part in shown["told"] if part["proof"])
    assert proof["inputs"]["readings"]["grid_intensity"]["value"] == 620.0
    assert proof["inputs"]["autonomy"]["id"] == "nightly#2"
    assert proof["delay_s"] == 40.0
    # … and the carbon of the attempt is its energy at that intensity.
    assert rows[1].snapshot["grid_intensity_g_per_kWh"] == 620.0
    assert rows[1].snapshot["carbon_kgCO2e"] == rows[1].snapshot["energy_kWh"] * 620 / 1000
    # … which is a part of the figure on the energy page of the dashboard.
    period = load_energy(engine, RecordedRunFilter(0.0, 4e9))
    assert period.totals.carbon_kg == pytest.approx(sum(row.snapshot["carbon_kgCO2e"] for row in rows))


def test_the_matrix_is_shown_and_explained(day: tuple[oncemore.Engine, float]) -> None:
    text = shell("control", "autonomy")
    assert "nightly" in text
    assert "slow" in text
    assert "file grid.csv" in shell("control", "autonomy", "explain", "nightly")
    with CliRunner().isolation() as streams:
        assert cli.run_command(["control", "autonomy", "explain", "daily", "--store", "log.db"]) != 0
        assert "there is no matrix 'daily'" in streams[1].getvalue().decode()


def test_an_empty_store_says_what_would_fill_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with oncemore.open(tmp_path / "log.db", energy="off") as engine:

        @oncemore.step(effect="pure", name="plain")
        def plain() -> int:
            return 1

        plain()
        assert report_carbon(engine).rows[0].decision == ""
        assert "1 of them have no energy figure" in shell("report", "carbon")
        assert "No matrix yet" in shell("control", "autonomy")
