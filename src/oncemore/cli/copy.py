"""`oncemore copy`: a log moves from one store to another."""

from __future__ import annotations

import click

from oncemore.cli.commands import json_option, leaf
from oncemore.cli.maintenance import by_option, count_on_terminal, reason_option
from oncemore.cli.output import Paper

COPY = """
oncemore copy .oncemore/log.db postgresql://db/work --reason "a second machine joins"
oncemore copy postgresql://db/work /srv/log.db --reason "back to one machine"
oncemore copy .oncemore/log.db postgresql://db/work --abandon --reason "not today"
"""


@leaf("copy", COPY)
@click.argument("source", metavar="FROM", help="The store that there is: a path or an address.")
@click.argument("target", metavar="TO", help="An empty store, or one that such a copy has begun to fill.")
@click.option(
    "--abandon", is_flag=True, help="Let the log stay where it was; only before all of it has come."
)
@reason_option
@by_option
@json_option
def copy(source: str, target: str, abandon: bool, reason: str, by: str | None, in_json: bool) -> None:
    """Move a log to another store, every chain intact.

    FROM is closed first: nothing begins there any more. TO opens when all of it has come and both were read
    again: as many entries, the same heads, the same root. What was killed is safe to repeat, and goes on
    where it was. Refused while somebody works on FROM. Files that steps have put away are not copied.
    """
    from oncemore.maintenance import copy
    from oncemore.open_engine import engine_of
    from oncemore.queries.open_engine import there, told

    paper = Paper(in_json=in_json)
    with there(source) as here, engine_of(told(target)) as new:
        if abandon:
            copy.abandon(here, new, reason=reason, by=by)
            if in_json:
                paper.json({"source": here.url, "stays": True})
            else:
                paper.line(f"{here.url} stays where it is; work goes on there", "green")
            return
        found = copy.copy(here, new, reason=reason, by=by, progress=count_on_terminal("entries"))
    if in_json:
        paper.json(found)
        return
    paper.line(f"{found.entries:,} entries of {found.entities:,} entities are in {found.target}", "green")
    paper.line(f"the same in both, by the root {found.root}")
    paper.say(f"{found.source} is closed: nothing begins there any more. Use the new address from now on.")
    if found.artifacts:
        paper.say(
            f"{found.artifacts:,} files that steps have put away are where they were; say so with artifacts=",
            "yellow",
        )
    if found.behind_s:
        paper.say(
            f"The clock of the new store is {found.behind_s:g} s behind: what waits, waits longer.", "yellow"
        )
