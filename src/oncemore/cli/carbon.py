"""`oncemore report carbon` and `oncemore control autonomy`: measured figures, and decisions of matrices."""

from __future__ import annotations

import click

from oncemore.cli.commands import CommandReport, LazyGroup, store_command, value_option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.cli.output import OutputWriter
    from oncemore.queries.carbon import CarbonReport, CarbonRow, MatrixDecision
    from oncemore.steps.engine import Engine
    from oncemore.telemetry.autonomy_rules import AutonomyRecord

CARBON_EXAMPLES = """
oncemore report carbon
oncemore report carbon 0193a000 --since 7d
oncemore report carbon --since 2026-11-01 --until 2026-12-01 --json
"""
AUTONOMY_EXAMPLES = """
oncemore control autonomy
oncemore control autonomy explain p2-batch-reporting
"""
AUTONOMY_COMMANDS = {"show": "carbon:show", "explain": "carbon:explain"}
CARBON_HEADS = ("time", "step", "attempt", "state", "Wh", "gCO2e", "USD", "seconds", "method", "matrix")
MATRIX_HEADS = ("matrix", "level", "since", "until", "kgCO2e", "failures", "reason")


@store_command("carbon", CARBON_EXAMPLES)
@click.argument("run", required=False, metavar="[RUN]", help="Id or key of a run, or the beginning of it.")
@value_option("--since", "TIME", "Attempts that ended since: 2h, 7d, 14:05, 2026-11-16T14:05Z.")
@value_option("--until", "TIME", "Attempts that ended until this time.")
def carbon(engine: Engine, run: str | None, since: str | None, until: str | None) -> CommandReport:
    """List energy, carbon and cost of attempts.

    Each row is the telemetry snapshot of one attempt that ended. `-` is a figure that cannot be computed;
    --json has the reason. The last column is the decision of the autonomy matrix at that time.
    """
    from oncemore.queries.carbon import report_carbon
    from oncemore.queries.times import parse_instant

    # Relative times count from the clock of the store, as its entries do.
    now = engine.now()
    start, end = (None if text is None else parse_instant(text, now) for text in (since, until))
    report = report_carbon(engine, run, start, end)
    return CommandReport(_describe_report(report), lambda out: _print_carbon(out, report))


def _describe_report(report: CarbonReport) -> dict[str, Any]:
    return {
        "attempts": [row._asdict() for row in report.rows],
        "total": report.energy.total._asdict(),
        "retries": report.energy.retries._asdict(),
        "retry_share": report.energy.retry_share,
        "methods": report.energy.methods,
        "is_cut_off": report.is_cut_off,
    }


def _print_carbon(out: OutputWriter, report: CarbonReport) -> None:
    from oncemore.telemetry.energy import to_grams, to_watt_hours

    if not report.rows:
        out.write_line("No attempt ended in that time.", "green")
        return
    out.write_table([CARBON_HEADS, *(_carbon_cells(row) for row in report.rows)])
    total, share = report.energy.total, report.energy.retry_share
    grams, noun = to_grams(total.carbon_kgCO2e), "attempt" if total.attempts == 1 else "attempts"
    out.write_line(
        f"{total.attempts} {noun}: {to_watt_hours(total.energy_kWh):.4g} Wh, {grams:.4g} gCO2e, "
        f"{total.cost_usd:.4g} USD; retries caused {share:.0%} of the energy."
    )
    if total.unmeasured:
        out.write_line(f"{total.unmeasured} of them have no energy figure.", "yellow")
    if report.is_cut_off:
        out.write_line(f"Only the last {len(report.rows)} are listed; narrow the time.", "yellow")


def _carbon_cells(row: CarbonRow) -> tuple[str, ...]:
    from oncemore.queries.times import format_time

    snapshot = row.snapshot
    # Wh and g: the figures of one attempt in kWh and kg would be all zeros.
    figures = (
        _format_figure(snapshot["energy_kWh"], 1000),
        _format_figure(snapshot["carbon_kgCO2e"], 1000),
        _format_figure(snapshot["cost_usd"], 1),
        _format_figure(snapshot["duration_s"], 1),
    )
    # Policies without a matrix have no decision; neither have attempts before the first one.
    matrix = f"{row.action} ({row.decision})" if row.decision else "-"
    start = (format_time(row.at)[:19], row.step, str(row.attempt), row.state)
    return *start, *figures, snapshot["method"] or "-", matrix


def _format_figure(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{value * factor:.4g}"


# The matrix -----------------------------------------------------------------------------------------


@click.group(
    "autonomy",
    cls=LazyGroup,
    modules=AUTONOMY_COMMANDS,
    examples=AUTONOMY_EXAMPLES,
    default_command="show",
)
def autonomy() -> None:
    """Show whether work runs, is slowed, paused or escalated.

    A policy file with the sections `autonomy` or `carbon_budget` has a matrix. It is recorded when an attempt
    under that policy first begins. The default command is `show`.
    """


@store_command("show", "oncemore control autonomy show\noncemore control autonomy show --json")
def show(engine: Engine) -> CommandReport:
    """Show the level of every matrix, its budget and its inbox."""
    from oncemore.queries.carbon import list_matrices

    matrices = list_matrices(engine)
    return CommandReport(
        [record._asdict() for record in matrices], lambda out: _print_matrices(out, matrices)
    )


@store_command("explain", AUTONOMY_EXAMPLES)
@click.argument(
    "name", metavar="MATRIX", help="Name of the policy file, as `oncemore control autonomy` lists it."
)
def explain(engine: Engine, name: str) -> CommandReport:
    """Explain the decisions of one matrix.

    When each was made, by which signals, and until when it held.
    """
    from oncemore.queries.carbon import list_decisions

    decisions = list_decisions(engine, name)
    return CommandReport(
        [decision._asdict() for decision in decisions], lambda out: _print_decisions(out, decisions)
    )


def _print_matrices(out: OutputWriter, matrices: Sequence[AutonomyRecord]) -> None:
    from oncemore.queries.times import format_time

    if not matrices:
        out.write_line("No matrix yet; a policy with `autonomy` or `carbon_budget` has one.", "green")
        return
    # What is reserved counts as spent: that is how the matrix decides.
    rows = [
        (
            record.name, record.level, format_time(record.since)[:19],
            format_time(record.until)[:19] if record.level == "pause" else "-",
            f"{record.spent_kg + sum(record.reserved.values()):.4g}" if record.period_start else "-",
            str(len(record.inbox)), record.reason,
        )
        for record in matrices
    ]  # fmt: skip
    out.write_table([MATRIX_HEADS, *rows])


def _print_decisions(out: OutputWriter, decisions: Sequence[MatrixDecision]) -> None:
    from oncemore.queries.times import format_time

    for decision in decisions:
        end = f", until {format_time(decision.until)[:19]}" if decision.until else ""
        out.write_line(f"{format_time(decision.at)[:19]}  {decision.id}  {decision.sentence}{end}")
        for name, reading in decision.proof["inputs"]["readings"].items():
            if "value" in reading:
                age = reading.get("age_s")
                old = f", {age:.0f} s old" if age else ""
                out.write_line(f"    {name} {reading['value']:g} from {reading['source']}{old}")
            # A signal without a source is no news.
            elif reading["unavailable"] != "no source is configured":
                out.write_line(f"    {name} unknown: {reading['unavailable']}")
