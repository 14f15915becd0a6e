"""`oncemore import`: mark keys as complete that another system has processed."""

from __future__ import annotations

from pathlib import Path

import click

from oncemore.cli.commands import by_option, documented_command, json_option, store_option
from oncemore.cli.maintenance import make_progress_counter
from oncemore.cli.output import OutputWriter

EXAMPLES = """
oncemore import --step shop.orders:pay done.csv --dry-run
oncemore import --step shop.orders:pay done.csv --reason 'paid before we moved in'
oncemore import --step shop.orders:pay --column order=id --result-column out done.csv
"""


@documented_command("import", EXAMPLES)
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV, or JSON Lines (.jsonl)."
)
@click.option("--step", "address", metavar="MODULE:STEP", required=True, help="The step of the keys.")
@click.option("--column", "pairs", metavar="PARAMETER=COLUMN", multiple=True, help="Column of a parameter.")
@click.option("--result-column", metavar="COLUMN", help="Column with the return values.")
@click.option("--ignore-column", "ignored", metavar="COLUMN", multiple=True, help="Column to ignore.")
@click.option("--dry-run", is_flag=True, help="Check every line and write nothing.")
@click.option("--reason", metavar="TEXT", default="imported", help="The reason; it is recorded.")
@by_option
@store_option
@json_option
def import_(
    file: Path,
    address: str,
    pairs: tuple[str, ...],
    result_column: str | None,
    ignored: tuple[str, ...],
    dry_run: bool,
    reason: str,
    by: str | None,
    store: str | None,
    in_json: bool,
) -> int:
    """Mark keys as complete that were processed elsewhere.

    No step runs. Each line of FILE is one key; its columns are the parameters of the step. A key that is
    complete already stays as it is. A key with a run in another state is listed as a conflict, and the exit
    code is 1.
    """
    from oncemore.queries.import_keys import KeyFile, check_key_file, import_key_file
    from oncemore.queries.step_commands import import_step
    from oncemore.queries.stores import open_or_create

    with open_or_create(store) as engine:
        # Bound to the engine of --store, which can differ from the store in the settings of the module.
        step = import_step(address).bind(engine)
        key_file = KeyFile(file, dict(_parse_column(pair) for pair in pairs), result_column, ignored)
        progress = make_progress_counter("lines")
        if dry_run:
            report = check_key_file(step, key_file, progress)
        else:
            report = import_key_file(engine, step, key_file, reason=reason, by=by, progress=progress)
    out = OutputWriter(in_json=in_json)
    if in_json:
        out.write_json({**report._asdict(), "dry_run": dry_run})
    else:
        out.write_line(
            f"{'would mark' if dry_run else 'marked'} {report.imported:,} of {report.lines:,} keys as "
            f"complete; {report.already_done:,} were complete already"
        )
        # FILE:LINE is a form that editors and terminals can open.
        for line, reason_text in report.conflicts_shown:
            out.write_line(f"{file}:{line}: {reason_text}", "yellow")
        # The report has all conflicts as a number, but keeps only the first ones.
        if report.conflicts > len(report.conflicts_shown):
            out.write_line(f"… and {report.conflicts - len(report.conflicts_shown):,} more", "yellow")
    return 1 if report.conflicts else 0


def _parse_column(text: str) -> tuple[str, str]:
    parameter, equals, column = text.partition("=")
    if not parameter or not equals or not column:
        raise click.BadParameter(f"{text!r} is not of the form PARAMETER=COLUMN.", param_hint="'--column'")
    return column, parameter
