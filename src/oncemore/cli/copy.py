"""`oncemore copy`: move a log from one store to another."""

from __future__ import annotations

import click

from oncemore.cli.commands import by_option, documented_command, json_option, reason_option
from oncemore.cli.maintenance import make_progress_counter
from oncemore.cli.output import OutputWriter

COPY_EXAMPLES = """
oncemore copy .oncemore/log.db postgresql://db/work --reason "a second machine joins"
oncemore copy postgresql://db/work /srv/log.db --reason "back to one machine"
oncemore copy .oncemore/log.db postgresql://db/work --abandon --reason "not today"
"""


@documented_command("copy", COPY_EXAMPLES)
@click.argument("source", metavar="FROM", help="The existing store: a path or a URL.")
@click.argument("target", metavar="TO", help="An empty store, or one that an interrupted copy began to fill.")
@click.option("--abandon", is_flag=True, help="Give up an unfinished move; work continues in FROM.")
@reason_option
@by_option
@json_option
def copy(source: str, target: str, abandon: bool, reason: str, by: str | None, in_json: bool) -> None:
    """Move a log to another store, every chain intact.

    FROM is closed first: no work starts there again. TO opens after both stores have been read back and have
    the same number of entries, the same heads and the same root. After a crash, repeat the command: it
    resumes. It is refused while a process works on FROM. Artifact files are not copied.
    """
    from oncemore.maintenance import copy
    from oncemore.open_engine import engine_from_settings
    from oncemore.queries.stores import open_existing, settings_for

    out = OutputWriter(in_json=in_json)
    # The target may be new, so it is opened by its settings; the source must exist.
    with open_existing(source) as old, engine_from_settings(settings_for(target)) as new:
        if abandon:
            copy.abandon_move(old, new, reason=reason, by=by)
            if in_json:
                out.write_json({"source": old.url, "stays": True})
            else:
                out.write_line(f"move abandoned; work continues in {old.url}", "green")
            return
        report = copy.move_log(old, new, reason=reason, by=by, progress=make_progress_counter("entries"))
    if in_json:
        out.write_json(report)
        return
    out.write_line(
        f"moved {report.entries:,} entries of {report.entities:,} entities to {report.target}", "green"
    )
    out.write_line(f"both stores have the root {report.root}")
    out.write_paragraph(
        f"{report.source} is closed: no work starts there again. Use the new URL from now on."
    )
    # Artifacts are files beside the old store, which the entries in the new store still name.
    if report.artifacts:
        out.write_paragraph(
            f"{report.artifacts:,} artifact files stay in their folder; give it with artifacts=", "yellow"
        )
    # Due times were written by the clock of the old store and are compared with that of the new one.
    if report.clock_lag_s:
        out.write_paragraph(
            f"The clock of the new store is {report.clock_lag_s:g} s behind: waiting runs start that much "
            "later.",
            "yellow",
        )
