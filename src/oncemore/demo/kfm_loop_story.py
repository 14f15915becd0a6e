"""`oncemore demo kfm-loop`: one day of urgent and of patient work, played without and with carbon signals.

The same day is played twice on real engines and real SQLite files; only its hours pass at once. Every three
hours a nowcast (P0) has to be there within five minutes. At 17:00 six reports (P2) are ordered for the next
morning. Without signals they run at once, in the dirtiest hours. With signals the autonomy matrix of their
policy pauses them until the grid is clean. The nowcast of 18:00 fails twice, at the worst hour, and does not
wait for the grid. Afterwards every decision is computed again from the log.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import oncemore
from oncemore.cli.charts import draw_columns
from oncemore.demo.terminal import LiveTerminal, silence_logging
from oncemore.policy import files
from oncemore.queries.carbon import list_decisions, report_carbon
from oncemore.queries.replay import replay_run
from oncemore.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

    from oncemore.queries.carbon import CarbonReport

START = datetime(2026, 11, 3, 6, tzinfo=UTC)
#: Grid intensity in g/kWh and price in US cents per kWh, hour by hour from 06:00 on.
GRID = (288, 365, 430, 470, 455, 420, 398, 405, 440, 498, 560, 612, 620, 590, 505, 410, 320, 255,
        210, 195, 182, 176, 180, 214)  # fmt: skip
CENTS = (16, 21, 24, 24, 23, 22, 21, 21, 22, 24, 27, 30, 31, 29, 26, 21, 17, 13, 11, 10, 10, 9, 10, 12)
HOUR_S, TICK_S = 3600, 900
NOWCAST_HOURS, STORM_HOUR, ORDER_HOUR = range(0, 24, 3), 12, 11
SLO_S, REPORTS = 300.0, 6
NOWCAST_KWH, REPORT_KWH = 0.05, 0.6
#: Width of one hour in the chart.
CELL = 3
RULES = """
profile: patient-reports
version: "1"
description: reports that may wait for the night
priority: P2
retry_policy: {max_attempts: 4, base_delay_s: 60, jitter: none, max_delay_s: 900}
"""
AUTONOMY = """
telemetry_tuning: {enabled: true}
autonomy:
  carbon_intensity_g_per_kWh: {pause: 250, resume: 200}
  recheck_s: 900
"""


class PlayedDay(NamedTuple):
    """The results of one day.

    nowcasts   the seconds until each nowcast was there, by the hour since the start
    storm      the run of the nowcast that failed twice
    reports    the hour since the start in which each report was done
    pause      the reason of the pause in words; empty if there was none
    decisions  decisions that were computed again, and how many of them differ
    """

    nowcasts: dict[int, float]
    storm: oncemore.Run[Any]
    reports: list[int]
    carbon: CarbonReport
    pause: str
    decisions: int
    differences: int


def write_inputs(folder: Path) -> dict[str, Any]:
    """Write the series of the day and both policies; return the setting `signals`."""
    # The cost is that of the energy alone.
    setting: dict[str, Any] = {"compute_unit_cost": 0.0}
    for name, values in (("grid_intensity", GRID), ("energy_price", [cents / 100 for cents in CENTS])):
        start = START.timestamp()
        rows = [f"{start + hour * HOUR_S:.0f},{value}" for hour, value in enumerate(values)]
        (folder / f"{name}.csv").write_text("time,value\n" + "\n".join(rows) + "\n")
        setting[name] = {"file": str(folder / f"{name}.csv")}
    (folder / "blind.yaml").write_text(RULES.replace("patient-", "blind-"))
    (folder / "aware.yaml").write_text(RULES + AUTONOMY)
    return setting


def play_day(folder: Path, signals: Mapping[str, Any], kind: str) -> PlayedDay:
    """Play the day under one of the two policies, in steps of a quarter of an hour."""
    # The jitter follows from the key, so that the demo always tells the same story.
    urgent = files.policy("p0-storm-nowcast").replace(jitter_seed="<sha256(idempotency_key)>")

    @oncemore.step(effect="pure", name="nowcast", policy=urgent, priority="P0")
    def nowcast(hour: int) -> str:
        clock.advance(5)
        oncemore.current().add_usage(energy_kwh=NOWCAST_KWH)
        if hour == STORM_HOUR and oncemore.current().number < 3:
            raise oncemore.TransientError("the radar does not answer")
        return f"nowcast {hour}"

    @oncemore.step(effect="pure", name="report", policy=str(folder / f"{kind}.yaml"))
    def report(number: int) -> str:
        clock.advance(600)
        oncemore.current().add_usage(energy_kwh=REPORT_KWH)
        return f"report {number}"

    nowcasts: dict[int, float] = {}
    reports: list[int] = []
    with (
        FakeClock(start=START) as clock,
        oncemore.open(folder / f"{kind}.db", signals=dict(signals)) as engine,
    ):
        # On a busy machine the first reading can take longer than a decision waits for it.
        while engine.signals is not None and not engine.signals.has_all:
            engine.signals.read_all(engine.now(), waits=True)
        for tick in range(len(GRID) * HOUR_S // TICK_S):
            began = tick * TICK_S
            clock.advance(max(0.0, began - clock.monotonic()))
            hour, is_full = began // HOUR_S, began % HOUR_S == 0
            if is_full and hour in NOWCAST_HOURS:
                with oncemore.context(deadline=engine.now() + SLO_S):
                    nowcast(hour)
                nowcasts[hour] = clock.monotonic() - began
            # One report at a time: what the matrix pauses is asked for again at the next tick.
            elif hour >= ORDER_HOUR and len(reports) < REPORTS:
                reports += [hour] if report.run(len(reports)).status == "COMPLETE" else []
        storm = nowcast.last_run(STORM_HOUR)
        assert storm is not None
        runs = [nowcast.last_run(hour) for hour in nowcasts] + [report.last_run(n) for n in range(REPORTS)]
        replays = [replay_run(engine.store, f"run/{run.key}") for run in runs if run]
        return PlayedDay(
            nowcasts=nowcasts,
            storm=storm,
            reports=reports,
            carbon=report_carbon(engine, None, None, None),
            pause=_find_pause(engine, kind),
            decisions=sum(one.decisions for one in replays),
            differences=sum(len(one.differences) for one in replays),
        )


def _find_pause(engine: oncemore.Engine, kind: str) -> str:
    """Return the first pause of the matrix in words; the blind policy has no matrix."""
    if kind == "blind":
        return ""
    sentences = [decision.sentence for decision in list_decisions(engine, "patient-reports")]
    return next((text for text in sentences if text.startswith("pause")), "")


# The story ------------------------------------------------------------------------------------------


def chart_lines(blind: PlayedDay, aware: PlayedDay) -> list[str]:
    """Return the grid of the day as columns, and below it what ran when."""
    lines = ["g CO2/kWh", *draw_columns(GRID, height=9, cell=CELL)]
    labels = "".join(f"{(START.hour + hour) % 24:02}".ljust(CELL * 3) for hour in range(0, len(GRID), 3))
    lines.append(f"{'':7}{labels}".rstrip())
    failed = {STORM_HOUR: "✗✓"}
    urgent = {hour: failed.get(hour, "✓") for hour in aware.nowcasts}
    for name, marks in (
        ("P0", urgent),
        ("P2 off", _count_by_hour(blind.reports)),
        ("P2 on", _count_by_hour(aware.reports)),
    ):
        cells = "".join(marks.get(hour, "·").ljust(CELL) for hour in range(len(GRID)))
        lines.append(f"{name:<7}{cells}".rstrip())
    return lines


def _count_by_hour(hours: list[int]) -> dict[int, str]:
    """Return the number of reports that were done in each hour."""
    return {hour: str(hours.count(hour)) for hour in hours}


def table_lines(blind: PlayedDay, aware: PlayedDay) -> list[str]:
    """Return energy, carbon and cost of both days with the difference."""
    lines = [f"{'':<14}{'signals off':>14}{'signals on':>14}{'difference':>14}"]
    for name, field, unit in (
        ("energy", "energy_kWh", "kWh"),
        ("carbon", "carbon_kgCO2e", "kg"),
        ("cost", "cost_usd", "USD"),
    ):
        before, after = (getattr(day.carbon.energy.total, field) for day in (blind, aware))
        change = f"{round((after - before) / before * 100):+d} %".replace("+0", "0").replace("-0", "0")
        lines.append(f"{name:<14}{before:>10.2f} {unit:<3}{after:>10.2f} {unit:<3}{change:>14}")
    return lines


def find_faults(blind: PlayedDay, aware: PlayedDay) -> list[str]:
    """Return what did not come out as the story says."""
    faults = []
    if max(aware.nowcasts.values()) > SLO_S or aware.storm.status != "COMPLETE":
        faults.append("a nowcast was late")
    if len(aware.reports) != REPORTS:
        faults.append("a report is missing")
    if not aware.carbon.energy.total.carbon_kgCO2e < blind.carbon.energy.total.carbon_kgCO2e:
        faults.append("the signals saved no carbon")
    if blind.differences or aware.differences:
        faults.append("a decision differs from its record")
    return faults


def _tell_storm(day: PlayedDay) -> str:
    """Return the paragraph about the nowcast that failed twice."""
    first, second = (proof["delay_s"] for proof in day.storm.proofs)
    tuned = day.storm.proofs[0]["terms"]["tuned"]
    asked = 1 + tuned["carbon"] + tuned["price"] / 2
    return (
        f"18:00, the worst hour. The radar does not answer twice. Grid and price ask for {asked:g} times the "
        f"wait; a P0 policy allows {tuned['stretch']:g}. The nowcast waits {first:.1f} s and {second:.1f} s, "
        f"and is there after {day.nowcasts[STORM_HOUR]:.0f} of {SLO_S:.0f} s."
    )


def main(out: TextIO, *, plain: bool = False) -> int:
    """Play both days and tell the story; return 1 if it did not come out."""
    terminal = LiveTerminal(out, plain=plain)
    with silence_logging(), tempfile.TemporaryDirectory(prefix="oncemore-demo-") as name:
        folder = Path(name)
        signals = write_inputs(folder)
        blind, aware = (play_day(folder, signals, kind) for kind in ("blind", "aware"))
        terminal.write_line("A day on the grid", "bold")
        terminal.write_paragraph(
            "Every three hours a storm nowcast (P0) has five minutes. At 17:00 six reports (P2) are ordered "
            "for the next morning. Here is the same day with carbon signals off and on:"
        )
        terminal.write_line()
        for line in chart_lines(blind, aware):
            terminal.write_line(line)
        terminal.write_line("       ✓ nowcast in time   ✗✓ after two failures   2, 3, 4 reports done", "dim")
        terminal.write_line()
        cause = aware.pause.removeprefix("pause: ")
        done = f"{(START.hour + aware.reports[0]) % 24:02}:00" if aware.reports else "never"
        terminal.write_paragraph(
            f"17:00, the reports. The autonomy matrix pauses them: {cause}. No attempt is counted. The "
            f"reports wait for a clean grid and run from {done} on, long before the morning."
        )
        terminal.write_paragraph(_tell_storm(aware))
        terminal.write_line()
        for line in table_lines(blind, aware):
            terminal.write_line(line)
        terminal.write_line()
        faults = find_faults(blind, aware)
        count = blind.decisions + aware.decisions
        terminal.write_paragraph(
            "; ".join(faults)
            or f"The same work, the same energy, every nowcast in time. All {count} decisions about retries, "
            "computed again from the log, come out the same.",
            "red" if faults else "green",
        )
        terminal.write_line("Next: oncemore demo kfm-loop --list, docs/reference/kfm.md", "dim")
    return 1 if faults else 0
