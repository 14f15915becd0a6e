"""`oncemore store doctor` and `oncemore store health`: check a store."""

from __future__ import annotations

import click

from oncemore.cli.commands import (
    CommandReport,
    documented_command,
    flag_option,
    json_option,
    store_option,
    value_option,
    write_report,
)
from oncemore.cli.maintenance import confirm_or_fail, yes_option
from oncemore.cli.output import ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import Color, OutputWriter
    from oncemore.maintenance.rebuild import RebuildReport
    from oncemore.queries.doctor import DoctorReport
    from oncemore.queries.health import HealthReport
    from oncemore.queries.store_checks import DoctorCheck

DOCTOR_EXAMPLES = """
oncemore store doctor
oncemore store doctor --module flows.load --module flows.send
oncemore store doctor --rebuild
oncemore store doctor --rebuild --write
oncemore store doctor --remove-companions --yes
"""
HEALTH_EXAMPLES = """
oncemore store health
oncemore store health --store postgresql://host/database --json
oncemore store health --store again.db --against undisturbed.db
"""
STATUS_COLORS: dict[str, Color] = {"ok": "green", "warn": "yellow", "bad": "red"}


@documented_command("doctor", DOCTOR_EXAMPLES)
@flag_option("--rebuild", "Rebuild all heads from the log and compare them.")
@flag_option("--write", "With --rebuild: replace the heads that differ.")
@value_option("--module modules", "NAME", "A module with your steps; can be repeated.", multiple=True)
@flag_option(
    "--remove-companions",
    "If the database file is missing: remove its lock and other files, to start an EMPTY store.",
)
@yes_option
@store_option
@json_option
def doctor(
    rebuild: bool,
    write: bool,
    modules: tuple[str, ...],
    remove_companions: bool,
    yes: bool,
    store: str | None,
    in_json: bool,
) -> int:
    """Check a store, and print what to do next.

    The checks cover the engine, disk, clocks, hash chain, leases and stuck runs. Each one says ok, warn or
    bad, and what to do. Exit code 1 if a check is bad. Nothing is written without --write or
    --remove-companions.
    """
    from oncemore.queries.doctor import check_rebuild, check_store
    from oncemore.queries.stores import folder_of, open_read_only

    if write and not rebuild:
        raise click.UsageError(
            "--write needs --rebuild, which finds the heads to replace.", click.get_current_context()
        )
    # Before the store is opened: this option is for a store without a database file.
    if remove_companions:
        return _remove_companions(store, yes, in_json)
    # Without modules, the check of unknown steps only lists the steps of open runs.
    steps = None
    if modules:
        from oncemore.queries.step_commands import import_steps

        steps = import_steps(modules)
    with open_read_only(store) as opened:
        report = check_store(opened, steps, folder_of(store))
        if rebuild:
            with ProgressLine("rebuilding", quiet=in_json) as progress:
                check, rebuilt = check_rebuild(opened, progress)
            report = report._replace(checks=(*report.checks, check))
    # The read-only store is closed before the repair opens the same store for writing.
    if write and rebuilt is not None and rebuilt.wrong:
        report = _repair_heads(report, rebuilt, store, in_json)
    value = {**report._asdict(), "worst": report.worst}
    # A warning does not fail a script that runs `doctor` regularly.
    code = 1 if report.worst == "bad" else 0
    return write_report(CommandReport(value, lambda out: print_report(out, report), code), in_json)


def _remove_companions(store: str | None, yes: bool, in_json: bool) -> int:
    from oncemore.queries import stores

    confirm_or_fail(
        yes,
        "The next process will create an empty store, and all finished work can run again. "
        "Remove the companion files?",
    )
    removed = stores.remove_companions(store)
    text = f"removed {', '.join(removed)}" if removed else "There are no companion files."
    return write_report(CommandReport({"removed": removed}, lambda out: out.write_line(text)), in_json)


def _repair_heads(
    report: DoctorReport, rebuilt: RebuildReport | None, store: str | None, in_json: bool
) -> DoctorReport:
    """Replace the heads that differ, compare again, and return the report with both results."""
    from oncemore.maintenance.rebuild import repair_heads
    from oncemore.queries.doctor import check_rebuild
    from oncemore.queries.store_checks import DoctorCheck
    from oncemore.queries.stores import open_for_repair

    with open_for_repair(store) as opened, ProgressLine("writing", quiet=in_json) as progress:
        total, repaired = 0, 1
        # One comparison reports a bounded number of wrong heads, so a damaged store needs several rounds.
        while rebuilt is not None and rebuilt.wrong and repaired:
            repaired = repair_heads(opened, rebuilt, progress)
            total += repaired
            check, rebuilt = check_rebuild(opened, progress)
    note = DoctorCheck("repair", "ok", f"{total:,} heads were rebuilt from the log")
    # The last check is the comparison before the repair; the new one replaces it.
    return report._replace(checks=(*report.checks[:-1], note, check))


def print_report(out: OutputWriter, report: DoctorReport) -> None:
    """Print one line per check, and the advice below it."""
    out.write_line(report.url, "bold")
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        _print_check(out, check, width)


def _print_check(out: OutputWriter, check: DoctorCheck, width: int) -> None:
    # Only problems are colored, so that they stand out among the ok lines.
    lead = f"{check.status:<4}  {check.name:<{width}}  "
    out.write_paragraph(check.observation, STATUS_COLORS[check.status] if check.status != "ok" else "", lead)
    for example in check.examples:
        out.write_line(f"{' ' * len(lead)}{example}", "dim")
    if check.advice:
        out.write_paragraph(check.advice, "", f"{' ' * (len(lead) - 2)}→ ")


@documented_command("health", HEALTH_EXAMPLES)
@value_option("--against", "URL", "Another store: results complete in both must be equal.")
@store_option
@json_option
def health(against: str | None, store: str | None, in_json: bool) -> int:
    """Judge a store by the four criteria of a trustworthy pipeline.

    (1) Running work again gives the same result. (2) States follow from the log. (3) No work is computed
    twice. (4) A proof explains every decision. Exit code 1 if a criterion does not hold. Active switches are
    listed but do not count.
    """
    from contextlib import ExitStack

    from oncemore.queries.health import judge_store
    from oncemore.queries.stores import artifact_store_of, open_read_only

    with ExitStack() as stack:
        opened = stack.enter_context(open_read_only(store))
        other = stack.enter_context(open_read_only(against)) if against else None
        progress = stack.enter_context(ProgressLine("checking", quiet=in_json))
        report = judge_store(opened, artifact_store_of(store), progress, other)
    code = 0 if report.healthy else 1
    return write_report(CommandReport(report, lambda out: print_health(out, report), code), in_json)


def print_health(out: OutputWriter, report: HealthReport) -> None:
    """Print the four criteria and the verdict."""
    out.write_line(report.url, "bold")
    for criterion in report.criteria:
        color: Color = "" if criterion.holds else "red"
        lead = f"{'holds ' if criterion.holds else 'FAILS '} {criterion.number}  "
        out.write_paragraph(f"{criterion.name}: {criterion.observation}", color, lead)
        for example in criterion.examples:
            out.write_line(f"{' ' * len(lead)}{example}", "dim")
    _print_switches(out, report)
    out.write_line("healthy" if report.healthy else "not healthy", "green" if report.healthy else "red")


def _print_switches(out: OutputWriter, report: HealthReport) -> None:
    """Print one line per active switch; a stopped store is easily taken for a broken one."""
    from oncemore.queries.times import format_time

    if report.moved_to:
        out.write_line(
            f"moved     this log has been moved to {report.moved_to}; no work starts here", "yellow"
        )
    for switch in report.switches:
        since = format_time(switch.at)
        out.write_line(
            f"stopped   switch {switch.name} is on since {since}, by {switch.by}: {switch.reason}", "yellow"
        )
