"""`oncemore export runs` and `oncemore import-runs`: runs as documents, in the words of another system."""

from __future__ import annotations

from pathlib import Path

import click

from oncemore.cli.commands import json_option, leaf, store_option
from oncemore.cli.output import Paper

EXPORT = """
oncemore export runs 0193a000 --out run.jsonl
oncemore export runs 0193a000 4c9d884a --states states.yaml --out runs.jsonl
"""
IMPORT = """
oncemore import-runs runs.jsonl --states states.yaml --store other.db
"""
states_option = click.option(
    "--states",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Other names of the five states, as YAML or JSON: COMPLETE: succeeded.",
)


@leaf("runs", EXPORT)
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@states_option
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Write into this file; else to standard output.")  # fmt: skip
@store_option
def export_runs(names: tuple[str, ...], states: Path | None, out: Path | None, store: str | None) -> None:
    """Write runs as JSON Lines.

    One line for each entry, with everything that `import-runs` needs to read the run back as it was, and the
    states under the names of another vocabulary. The store is not changed. Bodies are in it as they are
    stored, sealed if they are.
    """
    from oncemore.queries.open_engine import looked_at
    from oncemore.queries.run_documents import export_runs, load_mapping
    from oncemore.queries.runs import find

    mapping = load_mapping(states)
    with looked_at(store) as opened:
        entities = dict.fromkeys(find(opened, name).entity for name in names)
        lines = list(export_runs(opened, entities, mapping))
    if out is None:
        for line in lines:
            Paper().line(line)
    else:
        out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@leaf("import-runs", IMPORT)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="What `oncemore export runs` has written.")  # fmt: skip
@states_option
@store_option
@json_option
def import_runs(file: Path, states: Path | None, store: str | None, in_json: bool) -> None:
    """Take over exported runs, as they were.

    With the same mapping of states that they were exported with. Every link is checked; a run that was
    altered, or that is not over, is refused. One that is there already stays as it is.
    """
    from oncemore.queries.open_engine import made
    from oncemore.queries.run_documents import import_runs, load_mapping

    mapping = load_mapping(states)
    with made(store) as engine, file.open(encoding="utf-8") as lines:
        found = import_runs(engine, lines, mapping)
    paper = Paper(in_json=in_json)
    if in_json:
        paper.json(found)
    else:
        paper.line(f"{found.runs:,} runs with {found.entries:,} entries came; {found.present:,} were there")
