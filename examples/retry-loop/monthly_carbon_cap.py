"""Monthly carbon cap: reports are slowed near the cap, paused at it, and go on in the new month.

Every day of October one report (P2) is made, and one nowcast (P0). A report adds 0.15 kg of carbon; the
policy `p2-batch-reporting` allows 2 kg a month. One paused report is approved by a person and does not wait.
"""

from __future__ import annotations

import logging
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import oncemore
from oncemore.testing import FakeClock

DAY_S = 86_400
START = datetime(2026, 10, 14, 9, tzinfo=UTC)
DAYS = 18
#: A report takes 0.3 kWh, a nowcast 0.05; the grid is at 500 g/kWh.
REPORT_KWH, NOWCAST_KWH, GRID = 0.3, 0.05, 500


@oncemore.step(effect="pure", name="report", policy="p2-batch-reporting")
def report(day: str) -> str:
    """Make the report of a day."""
    oncemore.current().add_usage(energy_kwh=REPORT_KWH)
    return f"report of {day}"


@oncemore.step(effect="pure", name="nowcast", policy="p0-storm-nowcast")
def nowcast(day: str) -> str:
    """Make the nowcast of a day."""
    oncemore.current().add_usage(energy_kwh=NOWCAST_KWH)
    return f"nowcast of {day}"


class Month(NamedTuple):
    """What happened: the carbon of October's reports without the approved one, and the runs by day."""

    carbon_kg: float
    approved_kg: float
    reports: dict[str, oncemore.Run[Any]]
    nowcasts: dict[str, oncemore.Run[Any]]
    levels: list[str]


def play(folder: Path) -> Month:
    """Play the days of the month, then the first day of the next one."""
    levels: list[str] = []
    with (
        FakeClock(start=START) as clock,
        oncemore.open(folder / "log.db", signals={"grid_intensity": GRID}) as engine,
    ):
        days = []
        for number in range(DAYS):
            clock.advance(DAY_S if number else 0)
            day = f"{datetime.fromtimestamp(engine.now(), UTC):%Y-%m-%d}"
            days.append(day)
            run = report.run(day)
            nowcast.run(day)
            level = read_level(engine)
            if not levels or levels[-1] != level:
                print(f"{day}  {level}")
                levels.append(level)
        october = sum(carbon_of(report.last_run(day)) for day in days)
        print(f"October: {october:.2f} kg of at most 2 kg")
        # One more attempt than the cap allows is a person's decision, with a name and a reason.
        engine.approvals.approve(run, reason="the auditors wait for it", by="head of reporting")
        print(f"approved: {days[-1]} is {report.run(days[-1]).status}")
        approved = carbon_of(report.last_run(days[-1]))
        clock.advance(datetime(2026, 11, 1, 9, tzinfo=UTC).timestamp() - engine.now())
        reports = {day: report.run(day) for day in days}
        print(f"November: {sum(run.status == 'COMPLETE' for run in reports.values())} of {DAYS} reports done")
        return Month(october, approved, reports, {day: nowcast.last_run(day) for day in days}, levels)  # type: ignore[misc]


def read_level(engine: oncemore.Engine) -> str:
    """Return the decision of the matrix in words."""
    from oncemore.queries.carbon import list_matrices
    from oncemore.telemetry.autonomy_rules import describe_decision

    return describe_decision(next(one for one in list_matrices(engine) if one.name == "p2-batch-reporting"))


def carbon_of(run: oncemore.Run[Any] | None) -> float:
    """Return the carbon of a run in kg."""
    assert run is not None
    figures = [record["telemetry_snapshot"]["carbon_kgCO2e"] for record in run.records()]
    return sum(
        kg or 0.0 for kg, record in zip(figures, run.records(), strict=True) if record["kind"] == "COMMIT"
    )


def main() -> Month:
    """Play the month and print it."""
    # The story below says what the log messages would.
    logging.getLogger("oncemore").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        return play(Path(folder))


if __name__ == "__main__":
    main()
