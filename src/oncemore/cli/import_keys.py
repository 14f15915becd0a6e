"""`oncemore store import`: mark keys as complete that another system has processed."""

from __future__ import annotations

from pathlib import Path

import click

from oncemore.cli.commands import CommandReport, flag_option, store_command, value_option
from oncemore.cli.decisions import decision_options
from oncemore.cli.maintenance import make_progress_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import OutputWriter
    from oncemore.queries.import_keys import ImportReport
    from oncemore.steps.engine import Engine

EXAMPLES = """
oncemore store import --step shop.orders:pay done.csv --dry-run
oncemore store import --step shop.orders:pay done.csv --reason 'paid before we moved in'
oncemore store import --step shop.orders:pay --column order=id --result-column r a.csv
"""


@store_command("import", EXAMPLES, opener="open_or_create")
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV, or JSON Lines (.jsonl)."
)
@value_option("--step address", "MODULE:STEP", "The step of the keys.", required=True)
@value_option("--column pairs", "PARAMETER=COLUMN", "Column of a parameter.", multiple=True)
@value_option("--result-column", "COLUMN", "Column with the return values.")
@value_option("--ignore-column ignored", "COLUMN", "Column to ignore.", multiple=True)
@flag_option("--dry-run", "Check every line and write nothing.")
@value_option("--reason", "TEXT", "The reason; it is recorded.", default="imported")
@decision_options
def import_(
    engine: Engine,
    file: Path,
    address: str,
    pairs: tuple[str, ...],
    result_column: str | None,
    ignored: tuple[str, ...],
    dry_run: bool,
    reason: str,
    by: str | None,
) -> CommandReport:
    """Mark keys as complete that were processed elsewhere.

    No step runs. Each line of FILE is one key; its columns are the parameters of the step. A key that is
    complete already stays as it is. A key with a run in another state is listed as a conflict, and the exit
    code is 1.
    """
    from oncemore.queries.import_keys import KeyFile, check_key_file, import_key_file
    from oncemore.queries.step_commands import import_step

    # Bound to the engine of --store, which can differ from the store in the settings of the module.
    step = import_step(address).bind(engine)
    key_file = KeyFile(file, dict(_parse_column(pair) for pair in pairs), result_column, ignored)
    progress = make_progress_counter("lines")
    if dry_run:
        report = check_key_file(step, key_file, progress)
    else:
        report = import_key_file(engine, step, key_file, reason=reason, by=by, progress=progress)
    value = {**report._asdict(), "dry_run": dry_run}
    marked = "would mark" if dry_run else "marked"
    code = 1 if report.conflicts else 0
    return CommandReport(value, lambda out: _print_report(out, report, file, marked), code)


def _print_report(out: OutputWriter, report: ImportReport, file: Path, marked: str) -> None:
    out.write_line(
        f"{marked} {report.imported:,} of {report.lines:,} keys as complete; "
        f"{report.already_done:,} were complete already"
    )
    # FILE:LINE is a form that editors and terminals can open.
    for line, reason in report.conflicts_shown:
        out.write_line(f"{file}:{line}: {reason}", "yellow")
    # The report has all conflicts as a number, but keeps only the first ones.
    if report.conflicts > len(report.conflicts_shown):
        out.write_line(f"… and {report.conflicts - len(report.conflicts_shown):,} more", "yellow")


def _parse_column(text: str) -> tuple[str, str]:
    parameter, equals, column = text.partition("=")
    if not parameter or not equals or not column:
        raise click.BadParameter(f"{text!r} is not of the form PARAMETER=COLUMN.", param_hint="'--column'")
    return column, parameter
