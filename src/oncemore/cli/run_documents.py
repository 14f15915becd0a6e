"""`oncemore export runs` and `oncemore store import-runs`: runs as JSON Lines for other systems."""

from __future__ import annotations

from pathlib import Path

import click

from oncemore.cli.commands import CommandReport, documented_command, store_command, store_option, value_option
from oncemore.cli.decisions import decision_options
from oncemore.cli.output import OutputWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.steps.engine import Engine

EXPORT_EXAMPLES = """
oncemore export runs 0193a000 --out run.jsonl
oncemore export runs 0193a000 4c9d884a --states states.yaml --out runs.jsonl
"""
IMPORT_EXAMPLES = """
oncemore store import-runs runs.jsonl --states states.yaml --store other.db
"""
states_option = value_option(
    "--states",
    "FILE",
    "Mapping of the five states to other names, YAML or JSON: COMPLETE: succeeded.",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)


@documented_command("runs", EXPORT_EXAMPLES)
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@states_option
@value_option(
    "--out file",
    "FILE",
    "Write to this file; default: standard output.",
    type=click.Path(dir_okay=False, path_type=Path),
)
@store_option
def export_runs(names: tuple[str, ...], states: Path | None, file: Path | None, store: str | None) -> None:
    """Write runs as JSON Lines.

    One line per entry, with all data that `import-runs` needs to restore the run, and with the state names
    of another system. The store is not changed. Bodies are exported as stored; encrypted ones stay encrypted.
    """
    from oncemore.queries.run_documents import export_runs, load_mapping
    from oncemore.queries.runs import find_run
    from oncemore.queries.stores import open_read_only

    mapping = load_mapping(states)
    with open_read_only(store) as opened:
        # Two names can mean the same run, by its id and by its key; it is exported once.
        entities = dict.fromkeys(find_run(opened, name).entity for name in names)
        lines = list(export_runs(opened, entities, mapping))
    # All lines are read before the first is written: an error must not leave half a file.
    if file is None:
        for line in lines:
            OutputWriter().write_line(line)
    else:
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


# The target of an import is often a new store.
@store_command("import-runs", IMPORT_EXAMPLES, opener="open_or_create")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="Output of `oncemore export runs`.")  # fmt: skip
@states_option
@value_option("--reason", "TEXT", "The reason; it is recorded.", default="imported")
@decision_options
def import_runs(
    engine: Engine, file: Path, states: Path | None, reason: str, by: str | None
) -> CommandReport:
    """Import exported runs unchanged.

    Use the same mapping of states as for the export. Every hash link is verified; a run that was altered or
    is not finished is refused. A run that the store has already stays as it is.
    """
    from oncemore.queries.run_documents import import_runs, load_mapping

    mapping = load_mapping(states)
    with file.open(encoding="utf-8") as lines:
        report = import_runs(engine, lines, mapping, reason=reason, by=by)
    text = (
        f"imported {report.runs:,} runs with {report.entries:,} entries; "
        f"{report.present:,} were in the store already"
    )
    return CommandReport(report, lambda out: out.write_line(text))
