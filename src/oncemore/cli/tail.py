"""`oncemore tail`: print the end of the log, and follow it."""

from __future__ import annotations

import click

from oncemore.cli import completion
from oncemore.cli.commands import WholeNumber, documented_command, json_option, store_option
from oncemore.cli.output import OutputWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.cli.output import Color
    from oncemore.queries.tail import TailLine

EXAMPLES = """
oncemore tail
oncemore tail -f --step flows.load
oncemore tail -n 1000 --mark HARD_FAIL --json
"""
ENTITY_KINDS = ("run", "event", "artifact", "worker")
STATE_COLORS: dict[str, Color] = {"COMPLETE": "green", "HARD_FAIL": "red", "SOFT_FAIL": "yellow"}


@documented_command("tail", EXAMPLES)
@click.option("-n", "--lines", "count", metavar="N", type=WholeNumber(0, 1_000_000), default=20,
              help="Number of latest entries to print (20).")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Print new entries as they arrive, until Ctrl-C.")
@click.option("--kind", "kinds", metavar="WORD", type=click.Choice(ENTITY_KINDS), multiple=True,
              help=f"Kinds of entries: {', '.join(ENTITY_KINDS)}; default: all but worker.")  # fmt: skip
@click.option(
    "--mark", "marks", metavar="MARK", multiple=True, help="Only this mark, such as COMMIT or SOFT_FAIL."
)
@click.option("--step", metavar="NAME", shell_complete=completion.complete_steps, help="Only this step.")
@click.option("--tenant", metavar="NAME", help="Only this tenant.")
@click.option("--correlation", metavar="ID", help="Only this correlation id.")
@click.option("--error", metavar="CLASS", help="Only this error class.")
@store_option
@json_option
def tail(
    count: int,
    follow: bool,
    kinds: tuple[str, ...],
    marks: tuple[str, ...],
    store: str | None,
    in_json: bool,
    **filters: Any,
) -> None:
    """Print the end of the log, and follow it.

    One line per entry; with --json one JSON document per line.
    """
    from oncemore.queries.stores import open_read_only
    from oncemore.queries.tail import EntryFilter, LogTailer

    out = OutputWriter(in_json=in_json)
    # Heartbeats of workers would hide all other entries, so they are shown only on request.
    entry_filter = EntryFilter(kinds or ENTITY_KINDS[:-1], tuple(mark.upper() for mark in marks), **filters)
    with open_read_only(store) as opened:
        log = LogTailer(opened, entry_filter)
        for line in log.read_last_lines(count):
            _print_entry(out, line)
        while follow and not out.is_reader_gone:
            # This waits for the next append, so the loop does not use the processor.
            for line in log.read_new_lines():
                _print_entry(out, line)


def _print_entry(out: OutputWriter, line: TailLine) -> None:
    if out.in_json:
        out.write_json_line(line)
        return
    from oncemore.queries.times import format_time

    reason = f"{line.error}: {line.message}" if line.error else line.reason
    attempt = f" #{line.attempt}" if line.attempt else ""
    # An event or an artifact has no run id; the start of its name identifies it.
    name = line.run_id or line.name[:16]
    text = f"{format_time(line.at)}  {line.seq}  {' '.join(line.marks)}{attempt}  {line.step} {name}"
    out.write_line(f"{text}  {reason}" if reason else text, STATE_COLORS.get(line.state, ""))
