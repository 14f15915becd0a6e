"""`oncemore replay`: recompute states and decisions from the log, and compare them with the records."""

from __future__ import annotations

import click

from oncemore.cli import params
from oncemore.cli.commands import documented_command, flag_option, json_option, store_option, value_option
from oncemore.cli.output import OutputWriter, ProgressLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.log.store import Store
    from oncemore.maintenance.replay import ReplayDifference
    from oncemore.queries.recompute import RecomputedRun
    from oncemore.queries.replay import ReplayVerdict, ReplayWindow

EXAMPLES = """
oncemore replay b4b6cd73
oncemore replay --since 2026-11-16T14:00 --until 2026-11-16T15:00
oncemore replay --all --json
oncemore replay b4b6cd73 --verify --module flows.load
"""
MAX_SHOWN = 20


@documented_command("replay", EXAMPLES, {"Selection": "run since until all_"})
@click.argument("name", metavar="[RUN]", required=False, shell_complete=params.complete_runs,
                help="Id or key of a run, or a unique prefix of one.")  # fmt: skip
@value_option("--run", "RUN", "The RUN, as an option.", shell_complete=params.complete_runs)
@value_option("--since", "TIME", "All runs with entries since this time.")
@value_option("--until", "TIME", "All runs with entries until this time; default: now.")
@flag_option("--all all_", "The whole log.")
@flag_option("--current", "Also decide by the current policies, and report drift.")
@flag_option("--verify", "Run pure steps again in a scratch folder and compare results.")
@value_option("--module modules", "NAME", "With --verify: a module with your steps.", multiple=True)
@store_option
@json_option
def replay(
    name: str | None, run: str | None, since: str | None, until: str | None, all_: bool, current: bool,
    verify: bool, modules: tuple[str, ...], store: str | None, in_json: bool,
) -> int:  # fmt: skip
    """Recompute every decision and compare it byte by byte.

    Hash links, states and decisions are recomputed from the log alone; no step runs and nothing is written.
    Each difference is printed with both values. Exit code 1 if a record differs.
    """
    from oncemore.queries.stores import open_read_only

    # --run is the spelling of the program `kfm-replay` (REPLAY-1).
    run_name = run or name
    if sum((run_name is not None, since is not None or until is not None, all_)) != 1 or (run and name):
        raise click.UsageError(
            "Give a RUN, or a window (--since, --until), or --all.", click.get_current_context()
        )
    # Running every pure step of a whole log again would take as long as the log took.
    if verify and (all_ or not modules):
        problem = (
            "--verify needs a RUN or a window" if all_ else "--verify needs --module, the code of the steps"
        )
        raise click.UsageError(f"{problem}.", click.get_current_context())
    out = OutputWriter(in_json=in_json)
    with open_read_only(store) as opened:
        if run_name is None:
            window = _replay_window(opened, since, until, current, in_json)
            keys = [verdict.key for verdict in window.verdicts]
            computed = _recompute_runs(opened, keys, modules) if verify else []
            _print_window(out, window, computed)
            return 0 if window.all_agree and _all_verified(computed) else 1
        from oncemore.queries.replay import AGREES, replay_run
        from oncemore.queries.runs import find_run

        entity = find_run(opened, run_name).entity
        verdict = replay_run(opened, entity, current=current)
        computed = _recompute_runs(opened, [entity.removeprefix("run/")], modules) if verify else []
    _print_verdict(out, verdict, computed)
    return 0 if verdict.verdict == AGREES and _all_verified(computed) else 1


def _replay_window(
    store: Store, since: str | None, until: str | None, current: bool, in_json: bool
) -> ReplayWindow:
    from oncemore.queries.replay import replay_all, replay_window
    from oncemore.queries.times import parse_instant

    now = store.now()
    end = now if until is None else parse_instant(until, now)
    # Without --since, the window starts with the epoch.
    start = parse_instant(since or "0000000000", now)
    with ProgressLine("replaying", quiet=in_json) as progress:
        if since is None and until is None:
            return replay_all(store, current=current, progress=progress)
        return replay_window(store, start, end, current=current, progress=progress)


def _recompute_runs(store: Store, keys: Sequence[str], modules: tuple[str, ...]) -> list[RecomputedRun]:
    from oncemore.governance.datasets import list_datasets
    from oncemore.queries.recompute import RecomputeProcess
    from oncemore.queries.run_timeline import load_timeline
    from oncemore.queries.runs import find_run

    # The steps run in a process of their own: user code must not reach the store that is open here.
    with RecomputeProcess(modules) as process:
        return [
            # The datasets are read again for each run: one may have been blocked meanwhile.
            process.verify_run(load_timeline(store, find_run(store, key)), list_datasets(store))
            for key in keys
            if key
        ]


def _all_verified(computed: Sequence[RecomputedRun]) -> bool:
    # A step with an effect cannot run again, so it is skipped, which is not a failure.
    return all(recomputed.verdict in ("equal", "skipped") for recomputed in computed)


def _print_verdict(out: OutputWriter, verdict: ReplayVerdict, computed: Sequence[RecomputedRun]) -> None:
    from oncemore.queries.times import format_time

    if out.in_json:
        out.write_json({**verdict._asdict(), "verified": computed})
        return
    out.write_line(f"{verdict.step}, key {verdict.key[:12]}, run {verdict.run_id}", "bold")
    rows = [("entry", "at", "state", "decision")]
    rows += [
        (
            f"{entry.seq}",
            format_time(entry.at, day=False),
            f"{entry.state} {entry.attempt or ''}".strip(),
            entry.sentence or " ".join(entry.marks),
        )
        for entry in verdict.states
    ]
    if len(rows) > 1:
        out.write_table(rows, "  ", right=(0,))
    _print_end(out, verdict)
    _print_recomputed(out, computed)


def _print_end(out: OutputWriter, verdict: ReplayVerdict) -> None:
    counts = f"{verdict.entries} entries, {verdict.decisions} decisions"
    if verdict.verdict == "agrees":
        out.write_line(f"agrees: {counts}, all as recorded; the state is {verdict.state}", "green")
    else:
        out.write_paragraph(
            f"{verdict.verdict}: {counts}{f'; {verdict.fault}' if verdict.fault else ''}", "red"
        )
        _print_differences(out, verdict.differences)


def _print_differences(out: OutputWriter, differences: Sequence[ReplayDifference]) -> None:
    for difference in differences[:MAX_SHOWN]:
        out.write_paragraph(
            f"entry {difference.seq}, attempt {difference.attempt}: {difference.what}", "", "  "
        )
        # One below the other, so that the eye finds the byte that differs.
        out.write_paragraph(_format_json(difference.recorded), "", "    recorded  ")
        out.write_paragraph(_format_json(difference.computed), "", "    computed  ")
    if len(differences) > MAX_SHOWN:
        out.write_line(f"  and {len(differences) - MAX_SHOWN} more; --json shows all", "dim")


def _format_json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def _print_recomputed(out: OutputWriter, computed: Sequence[RecomputedRun]) -> None:
    if not computed:
        return
    counts = {
        name: sum(run.verdict == name for run in computed)
        for name in ("equal", "differs", "failed", "skipped")
    }
    summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    out.write_line(f"recomputed: {summary}", "green" if _all_verified(computed) else "red")
    # Skipped runs share a few reasons, such as the effect of their step, so each reason is printed once.
    for reason in dict.fromkeys(run.reason for run in computed if run.verdict == "skipped"):
        count = sum(run.reason == reason for run in computed)
        out.write_paragraph(f"{count} skipped: {reason}", "", "  ")
    for run in [run for run in computed if run.verdict in ("differs", "failed")][:MAX_SHOWN]:
        if run.verdict == "differs":
            out.write_paragraph(
                f"{run.run_id}: {run.part} is recorded as {run.recorded}, computed as {run.computed}",
                "",
                "  ",
            )
        else:
            out.write_paragraph(f"{run.run_id}: {run.verdict}: {run.reason}", "", "  ")


def _print_window(out: OutputWriter, window: ReplayWindow, computed: Sequence[RecomputedRun]) -> None:
    if out.in_json:
        out.write_json({**window._asdict(), "verified": computed})
        return
    rows = [("verdict", "step", "run", "entries", "decisions", "state")]
    rows += [
        (
            verdict.verdict,
            verdict.step,
            verdict.run_id,
            f"{verdict.entries}",
            f"{verdict.decisions}",
            verdict.state,
        )
        for verdict in window.verdicts
    ]
    if len(rows) > 1:
        out.write_table(rows, right=(3, 4))
    disagreeing = [verdict for verdict in window.verdicts if verdict.verdict != "agrees"]
    for verdict in disagreeing[:MAX_SHOWN]:
        out.write_line()
        out.write_line(f"{verdict.step} {verdict.run_id}", "bold")
        _print_end(out, verdict)
    # The totals come last, where they stay visible in a terminal.
    totals = window.totals
    out.write_line()
    out.write_line(
        f"{totals.runs:,} runs: {totals.agrees:,} agree, {totals.drift:,} drift, {totals.damaged:,} damaged; "
        f"{totals.entries:,} entries, {totals.decisions:,} decisions recomputed",
        "green" if window.all_agree else "red",
    )
    _print_recomputed(out, computed)
