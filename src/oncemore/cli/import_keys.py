"""`oncemore import`: keys that were done elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from oncemore.cli.commands import json_option, leaf, store_option
from oncemore.cli.maintenance import by_option, count_on_terminal
from oncemore.cli.output import Paper

EXAMPLES = """
oncemore import --step shop.orders:pay done.csv --dry-run
oncemore import --step shop.orders:pay done.csv --reason 'paid before we moved in'
oncemore import --step shop.orders:pay --column order=id --result-column out done.csv
"""


@leaf("import", EXAMPLES)
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="CSV, or JSON Lines (.jsonl)."
)
@click.option("--step", "address", metavar="MODULE:STEP", required=True, help="Whose keys they are.")
@click.option("--column", "pairs", metavar="PARAMETER=COLUMN", multiple=True, help="Which column is which.")
@click.option("--result-column", metavar="COLUMN", help="The column with what the work returned.")
@click.option("--ignore-column", "ignored", metavar="COLUMN", multiple=True, help="A column to leave out.")
@click.option("--dry-run", is_flag=True, help="Check every line and write nothing.")
@click.option("--reason", metavar="TEXT", default="imported", help="Why; it is recorded.")
@by_option
@store_option
@json_option
def bring_in(
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
    """Mark keys as done that were done elsewhere.

    Nothing is run. Each line of FILE is a key: its columns are the step's parameters. Keys that are done stay
    as they are; those that are anything else are listed, and the exit code is 1.
    """
    from oncemore.queries.import_keys import Sheet, bring_in, would_bring_in
    from oncemore.queries.modules import step_of
    from oncemore.queries.open_engine import made

    with made(store) as engine:
        step = step_of(address).on(engine)
        sheet = Sheet(file, dict(_pair(pair) for pair in pairs), result_column, ignored)
        progress = count_on_terminal("lines")
        if dry_run:
            found = would_bring_in(step, sheet, progress)
        else:
            found = bring_in(engine, step, sheet, reason=reason, by=by, progress=progress)
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json({**found._asdict(), "dry_run": dry_run})
    else:
        paper.line(
            f"{'would mark' if dry_run else 'marked'} {found.marked:,} of {found.lines:,} as done; "
            f"{found.present:,} were so already"
        )
        for line, why in found.shown:
            paper.line(f"{file}:{line}: {why}", "yellow")
        if found.conflicts > len(found.shown):
            paper.line(f"… and {found.conflicts - len(found.shown):,} more", "yellow")
    return 1 if found.conflicts else 0


def _pair(text: str) -> tuple[str, str]:
    parameter, equals, column = text.partition("=")
    if not parameter or not equals or not column:
        raise click.BadParameter(f"{text!r} is not of the form PARAMETER=COLUMN.", param_hint="'--column'")
    return column, parameter
