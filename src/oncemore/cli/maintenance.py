"""Maintenance: `oncemore store prune`, `erase`, `backup`, `accept-copy`, `move`, `sizes` and `verify`."""

from __future__ import annotations

import sys
from itertools import islice

import click

from oncemore.cli import params
from oncemore.cli.commands import (
    CommandReport,
    documented_command,
    flag_option,
    json_option,
    reason_option,
    store_command,
    store_option,
    value_option,
    write_report,
)
from oncemore.cli.decisions import decision_options
from oncemore.cli.output import OutputWriter
from oncemore.cli.params import DURATION
from oncemore.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from oncemore.maintenance.backup import StoreSizes
    from oncemore.maintenance.copy import CopyReport
    from oncemore.maintenance.prune import PruneReport
    from oncemore.steps.engine import Engine

MAX_DOUBTFUL_RUNS = 50
MOVE_EXAMPLES = """
oncemore store move .oncemore/log.db postgresql://db/work --reason "a second machine joins"
oncemore store move postgresql://db/work /srv/log.db --reason "back to one machine"
oncemore store move .oncemore/log.db postgresql://db/work --abandon --reason "not today"
"""
EVIDENCE_HINT = "Stop writing to this store, restore a backup, and keep this file as evidence."

yes_option = flag_option("--yes", "Do not ask for confirmation.")


def confirm_or_fail(yes: bool, question: str) -> None:
    """Ask the operator to confirm an action that cannot be undone; without a terminal, require --yes."""
    if not yes:
        # A cron job would wait forever for an answer, so it must decide beforehand.
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Confirm with --yes.", click.get_current_context())
        click.confirm(question, abort=True, err=True)


def make_progress_counter(unit: str) -> Callable[..., object]:
    """Return a callback that shows progress on a terminal's stderr; it does nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda *progress: None

    def show_progress(done: int, total: int = 0) -> None:
        share = f" of {total:,} ({done / total:.0%})" if total else ""
        click.echo(f"\r{done:,}{share} {unit}", err=True, nl=bool(total and done >= total))

    return show_progress


@documented_command(
    "prune",
    "oncemore store prune --older-than 90d --dry-run\noncemore store prune\n"
    "oncemore store prune --step shop.pay",
)
@store_option
@value_option("--older-than", "TIME", "Runs that finished this long ago: 90d, 12h.", type=DURATION)
@value_option("--step", "NAME", "Only runs of this step.", shell_complete=params.complete_steps)
@flag_option("--dry-run", "Only print what would be deleted.")
@value_option(
    "--forget-keys-after",
    "TIME",
    "Also delete keys pruned this long ago. WORK WITH SUCH A KEY CAN RUN AGAIN.",
    type=DURATION,
)
@value_option("--reason", "TEXT", "The reason; it is recorded.", default="retention")
@decision_options
@yes_option
@json_option
def prune(
    store: str | None,
    older_than: float | None,
    step: str | None,
    dry_run: bool,
    forget_keys_after: float | None,
    reason: str,
    by: str | None,
    yes: bool,
    in_json: bool,
) -> int:
    """Delete the data of finished runs; keep their keys.

    Deletes arguments, results, errors and the payloads of delivered events. Without --older-than, only runs
    of steps with retain_for= are pruned. Runs that are open, held, in quarantine or have undelivered events
    are never touched. Keys stay, so no work runs twice.
    """
    from oncemore.queries.stores import open_existing

    # A dry run deletes no keys, so it needs no confirmation.
    if forget_keys_after is not None and not dry_run:
        confirm_or_fail(yes, "Work with a deleted key can run again. Delete the keys?")
    with open_existing(store) as engine:
        report = engine.prune(
            older_than=older_than, step=step, dry_run=dry_run, reason=reason, by=by,
            forget_keys_after=forget_keys_after,
        )  # fmt: skip
    value = {**report._asdict(), "dry_run": dry_run}
    return write_report(CommandReport(value, lambda out: _print_pruned(out, report, dry_run)), in_json)


def _print_pruned(out: OutputWriter, report: PruneReport, dry_run: bool) -> None:
    out.write_line(
        f"{'would prune' if dry_run else 'pruned'} {_format_runs(report.runs)}, {report.events} events"
    )
    for code, count in sorted(report.kept_runs.items()):
        out.write_line(f"kept {count}: {KEPT_REASONS[code]}", "dim")
    if report.dropped_keys:
        action = "would delete" if dry_run else "deleted"
        out.write_line(f"{action} {report.dropped_keys} keys; work with these keys can run again", "yellow")
    if report.workers:
        out.write_line(f"deleted the records of {report.workers} ended processes", "dim")


#: The reason codes are those of the JSON output.
KEPT_REASONS = {
    "open": "not finished",
    "quarantined": "in quarantine",
    "in_review": "in review: sensitive data",
    "sensitive": "sensitive data; a reviewer prunes them",
    "undelivered": "with undelivered events",
    "young": "not old enough",
    "unsaid": "without a retention time; give --older-than, or retain_for= on the step",
    "moved": "changed while this command ran",
}


def _format_runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


@documented_command(
    "erase", "oncemore store erase 9f86d081884c --reason 'asked to by the customer, case 17' --yes"
)
@click.argument("key", help="Key of the run, or its first 8 or more characters.")
@store_option
@reason_option
@decision_options
@yes_option
@json_option
def erase(key: str, store: str | None, reason: str, by: str | None, yes: bool, in_json: bool) -> int:
    """Erase all data of the runs of a key.

    Erases arguments, results, errors, events and files. This cannot be undone. The key stays, with the actor
    and the reason, and its work does not run again; the log still verifies. Backups are not touched. Exit
    code 1 if some data could not be erased.
    """
    from oncemore.queries.stores import open_existing

    # Asked before the store is opened, so that a refusal touches nothing.
    confirm_or_fail(yes, f"Erase all data of the runs of {key}? This cannot be undone.")
    with open_existing(store) as engine:
        report = engine.erase(key, reason=reason, by=by)

    def print_text(out: OutputWriter) -> None:
        out.write_line(f"erased {report.key}: {report.events} events, {len(report.artifacts)} files")
        for rest in report.remaining:
            out.write_paragraph(rest, "yellow", "not erased: ")

    return write_report(CommandReport(report, print_text, 1 if report.remaining else 0), in_json)


@store_command("backup", "oncemore store backup /backups/log-2026-11-16.db")
@click.argument("file", type=click.Path(dir_okay=False), help="The new file; an existing file is refused.")
@value_option("--reason", "TEXT", "The reason; it is recorded.", default="backup")
@decision_options
def backup(engine: Engine, file: str, reason: str, by: str | None) -> CommandReport:
    """Copy a store to a new file while it is in use.

    The copy is verified before it gets its name. No work with an effect runs on a copy until
    `oncemore store accept-copy --acknowledge`. Artifact files are beside the store; copy them as files.
    """
    report = engine.backup(file, reason=reason, by=by, progress=make_progress_counter("pages"))
    text = f"{report.path}: {report.entries:,} entries, {report.bytes:,} bytes, verified"
    return CommandReport(report, lambda out: out.write_line(text, "green"))


@documented_command(
    "accept-copy",
    "oncemore store accept-copy\noncemore store accept-copy --acknowledge --reason 'the original is lost'",
)
@store_option
@flag_option("--acknowledge", "Allow work on the copy; check the runs in doubt first.")
@value_option("--reason", "TEXT", "The reason; it is recorded.")
@decision_options
@json_option
def accept_copy(
    store: str | None, acknowledge: bool, reason: str | None, by: str | None, in_json: bool
) -> int:
    """Show whether a store is a held copy, and release it.

    A copy of a store is held: no work with an effect runs on it, because the original may have done the same
    work since the copy was made. Exit code 1 while the copy is held.
    """
    from oncemore.maintenance.backup import list_unfinished_runs
    from oncemore.queries.stores import open_existing

    # Only --acknowledge needs a reason, so the option is not a required one.
    if acknowledge and not reason:
        raise click.UsageError("Missing option '--reason'.", click.get_current_context())
    with open_existing(store) as engine:
        copy_notice = engine.store.open_maintenance().copy_notice()
        if acknowledge:
            engine.acknowledge(reason=reason or "", by=by)
        is_held = bool(copy_notice) and not acknowledge
        # One more than is printed, to know whether the list is complete.
        runs = list(islice(list_unfinished_runs(engine), MAX_DOUBTFUL_RUNS + 1)) if is_held else []

    def print_text(out: OutputWriter) -> None:
        if not copy_notice:
            out.write_line("This store is not a copy; no work is held.", "green")
        elif acknowledge:
            out.write_line("acknowledged: work can run on this store", "green")
        else:
            out.write_paragraph(f"held: {copy_notice}", "yellow")
            _print_doubtful_runs(out, runs)

    value = {"held": is_held, "why": copy_notice, "in_doubt": runs[:MAX_DOUBTFUL_RUNS]}
    return write_report(CommandReport(value, print_text, int(is_held)), in_json)


def _print_doubtful_runs(out: OutputWriter, runs: list[Any]) -> None:
    if runs:
        out.write_line()
        rows = [(run.key[:12], run.state, run.effect, run.step) for run in runs[:MAX_DOUBTFUL_RUNS]]
        out.write_table([("key", "state", "effect", "step"), *rows])
        if len(runs) > MAX_DOUBTFUL_RUNS:
            out.write_line("… and more", "dim")
    out.write_line()
    out.write_paragraph(
        "In doubt are the runs above, which may have continued in the original, and every key that this copy "
        "does not have: it may have been completed after the copy was made. Check these in the systems that "
        "the work writes to, mark completed keys (`oncemore store import`), then run "
        "`oncemore store accept-copy --acknowledge --reason …`."
    )


@store_command("sizes", "oncemore store sizes\noncemore store sizes --json")
def sizes(engine: Engine) -> CommandReport:
    """Print the number of entries and the disk space of a store."""
    measured = engine.measure_sizes()
    return CommandReport(measured, lambda out: _print_sizes(out, measured))


def _print_sizes(out: OutputWriter, sizes: StoreSizes) -> None:
    rows = [
        (kind, f"{size.entities:,}", f"{size.entries:,}", f"{size.bytes:,}")
        for kind, size in sorted(sizes.kinds.items())
    ]
    out.write_table([("kind", "entities", "entries", "bytes"), *rows], right=(1, 2, 3))
    out.write_line()
    # Only a store on this machine knows the free space of its disk.
    free = "unknown" if sizes.left is None else f"{sizes.left:,}"
    spaces = [("store", f"{sizes.file:,}"), ("write-ahead log", f"{sizes.wal:,}")]
    spaces += [("free in the store", f"{sizes.spare:,}"), ("free on the disk", free)]
    if sizes.artifacts is not None:
        spaces.append((f"artifacts ({sizes.artifacts:,})", f"{sizes.artifact_bytes:,}"))
    out.write_table([("space", "bytes"), *spaces], right=(1,))


@documented_command("verify", "oncemore store verify\noncemore store verify --json")
@store_option
@json_option
def verify(store: str | None, in_json: bool) -> int:
    """Verify the hash chain and the heads of a log.

    Also lists erased keys, with actor and reason. Exit code 1 if an entry or a head was altered, entries are
    missing, or a body is missing without a record of its removal.
    """
    from oncemore.queries.stores import open_existing

    out = OutputWriter(in_json=in_json)
    try:
        with open_existing(store) as engine:
            report = engine.verify()
    except StoreError as error:
        # A damaged log gets the hint about evidence instead of the usual message of the program.
        OutputWriter(sys.stderr, in_json=in_json).write_error(f"{error}.", EVIDENCE_HINT)
        return 1
    if in_json:
        out.write_json(report)
        return 0
    pruned = sum(removal.how == "pruned" for removal in report.forgotten)
    out.write_line(f"intact: {report.entries:,} entries of {report.entities:,} entities", "green")
    if pruned:
        out.write_line(f"{_format_runs(pruned)} pruned")
    # Pruning is routine and only counted; each erasure is listed, because an auditor asks for it.
    for removal in report.forgotten:
        if removal.how == "erased":
            actor, reason = removal.actor or "?", removal.reason or "?"
            out.write_line(f"erased {removal.key[:12]} of {removal.step}, by {actor}: {reason}")
    return 0


@documented_command("move", MOVE_EXAMPLES)
@click.argument("source", metavar="FROM", help="The existing store: a path or a URL.")
@click.argument("target", metavar="TO", help="An empty store, or one that an interrupted copy began to fill.")
@flag_option("--abandon", "Give up an unfinished move; work continues in FROM.")
@reason_option
@decision_options
@json_option
def move(source: str, target: str, abandon: bool, reason: str, by: str | None, in_json: bool) -> int:
    """Move a log to another store, every chain intact.

    FROM is closed first: no work starts there again. TO opens after both stores have been read back and have
    the same number of entries, the same heads and the same root. After a crash, repeat the command: it
    resumes. It is refused while a process works on FROM. Artifact files are not copied.
    """
    from oncemore.maintenance import copy
    from oncemore.open_engine import engine_from_settings
    from oncemore.queries.stores import open_existing, settings_for

    # The target may be new, so it is opened by its settings; the source must exist.
    with open_existing(source) as old, engine_from_settings(settings_for(target)) as new:
        if abandon:
            copy.abandon_move(old, new, reason=reason, by=by)
            text = f"move abandoned; work continues in {old.url}"
            result = CommandReport(
                {"source": old.url, "stays": True}, lambda out: out.write_line(text, "green")
            )
        else:
            report = copy.move_log(old, new, reason=reason, by=by, progress=make_progress_counter("entries"))
            result = CommandReport(report, lambda out: _print_moved(out, report))
    return write_report(result, in_json)


def _print_moved(out: OutputWriter, report: CopyReport) -> None:
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
