"""`oncemore migrate`: rewrite code that uses tenacity, backoff or stamina."""

from __future__ import annotations

import click

from oncemore.cli.commands import CommandReport, flag_option, report_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.cli.output import OutputWriter
    from oncemore.migrate.files import MigratedFile, MigrationReport

EXAMPLES = """
oncemore migrate tenacity src
oncemore migrate backoff src/shop/orders.py --write
oncemore migrate stamina . --check
"""


@report_command("migrate", EXAMPLES)
@click.argument(
    "library", type=click.Choice(["tenacity", "backoff", "stamina"]), help="The library to leave."
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", help="Files and folders of Python code.")
@flag_option("--diff", "Show the changes, and write nothing. The default.")
@flag_option("--check", "Write nothing; exit code 1 if a call would be rewritten.")
@flag_option("--write", "Replace the files.")
@flag_option("--exact", "Leave calls as they are if the new call would differ in anything.")
def migrate(
    library: str, paths: tuple[str, ...], diff: bool, check: bool, write: bool, exact: bool
) -> CommandReport:
    """Rewrite calls of another retry library to oncemore.

    The attempts and delays stay the same.

    Each call is listed: rewritten, with all that the new call does differently, or left alone, with the
    reason. Formatting and comments are kept. The code is read and never executed. Exit code 2 if a file
    cannot be read, parsed or written.
    """
    if diff + check + write > 1:
        raise click.UsageError("Give one of --diff, --check and --write.", click.get_current_context())
    from oncemore.migrate.files import migrate_paths

    # A file with a problem is more than work to do, so it has the exit code of an error.
    report = migrate_paths(library, paths, write=write, exact=exact)
    would_change = check and report.rewritten > 0
    exit_code = 2 if report.problems else int(would_change)
    show_diff = not (check or write)
    return CommandReport(report, lambda out: _print_report(out, report, show_diff, write), exit_code)


def _print_report(out: OutputWriter, report: MigrationReport, show_diff: bool, wrote: bool) -> None:
    if show_diff:
        # Without wrapping, so that the output can be given to `patch`.
        for file in report.files:
            for line in file.diff.splitlines():
                out.write_line(line)
    for file in report.files:
        _print_file(out, file)
    done = "rewritten" if wrote else "to rewrite"
    out.write_line(
        f"{_format_count(report.files_read, 'file')} read, "
        f"{_format_count(report.rewritten, 'call')} of {report.library} {done}, "
        f"{report.left_alone} left alone",
        "green" if not report.problems else "red",
    )
    if report.rewritten and not wrote:
        out.write_line("Nothing was written; --write replaces the files.")


def _print_file(out: OutputWriter, file: MigratedFile) -> None:
    for call in file.calls:
        place = f"{file.path}:{call.line}: {call.call}"
        if not call.is_rewritten:
            out.write_line(f"{place}: left alone: {call.reason}", "yellow")
            continue
        out.write_line(f"{place}: {'rewritten' if file.written else 'to rewrite'}")
        for difference in call.differences:
            out.write_line(f"    differs: {difference}", "yellow")
        for note in call.notes:
            out.write_line(f"    note: {note}")
    if file.problem:
        out.write_line(f"{file.path}: {file.problem}", "red")


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
