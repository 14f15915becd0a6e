"""Printing of runs, for `oncemore runs`, `show` and `explain`."""

from __future__ import annotations

from oncemore.policy.explain import format_seconds
from oncemore.queries.times import format_time
from oncemore.workflows.journal import NEVER, describe_records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import Color, OutputWriter
    from oncemore.queries.explain import RunExplanation
    from oncemore.queries.run_timeline import RunTimeline, TimelineEntry
    from oncemore.queries.runs import RunRow

COLUMN_HEADS = ("changed", "state", "id", "step", "arguments", "tries", "reason")
MARGIN = "  "
MAX_TEXT_LENGTH = 400
#: The shortest prefix of a key that identifies a run in a list.
MIN_ID_LENGTH = 8
#: The widest column of arguments, as a share of the terminal, and the narrowest.
ARGUMENTS_SHARE, MIN_ARGUMENTS_WIDTH = 0.25, 12
SHOW_YEAR_AFTER_S = 300 * 86_400.0
MAX_ENTRIES = 60
MAX_ERRORS = 20
STATE_COLORS: dict[str, Color] = {
    "COMPLETE": "green",
    "HARD_FAIL": "red",
    "SOFT_FAIL": "yellow",
    "RUNNING": "bold",
}


def print_runs(out: OutputWriter, rows: Sequence[RunRow], limit: int, now: float) -> None:
    """Print one line per run."""
    if not rows:
        out.write_line("No runs match.")
        return
    print_run_table(out, rows, now)
    # As many rows as the limit: there may be more, which must not go unnoticed.
    if len(rows) == limit:
        out.write_line()
        out.write_paragraph(
            f"Only the latest {limit} runs are shown; use --limit for more, --since or --step to filter.",
            "dim",
        )


def print_run_table(out: OutputWriter, rows: Sequence[RunRow], now: float) -> None:
    """Print a table of runs, with the color of each state."""
    ids = shorten_keys([row.key for row in rows])
    width = max(MIN_ARGUMENTS_WIDTH, round(ARGUMENTS_SHARE * out.width))
    cells = [_run_cells(row, short, now, width) for row, short in zip(rows, ids, strict=True)]
    out.write_table([COLUMN_HEADS, *cells], right=(5,), colors=STATE_COLORS)


def shorten_keys(keys: Sequence[str]) -> list[str]:
    """Return prefixes of keys, all of one length, that are unique in the list."""
    length = MIN_ID_LENGTH
    distinct = set(keys)
    while len({key[:length] for key in distinct}) < len(distinct):
        length += 1
    return [key[:length] for key in keys]


def _run_cells(row: RunRow, short_key: str, now: float, width: int) -> tuple[str, ...]:
    time = format_time(row.changed)
    # A recent time needs no year, an old one no seconds; both take the same width.
    changed = time[5:19] if now - row.changed < SHOW_YEAR_AFTER_S else time[:16]
    from oncemore.queries.run_pages import describe_arguments

    arguments = describe_arguments(row)
    return (
        changed,
        row.state,
        short_key,
        row.step,
        arguments if len(arguments) <= width else f"{arguments[: width - 1]}…",
        f"{row.attempts}/{row.max_attempts}",
        _format_reason(row, now),
    )


def _format_reason(row: RunRow, now: float) -> str:
    # A hold or a switch needs an operator, so it is shown rather than the last error.
    if row.held_for:
        return f"held: {row.held_for.replace('_', ' ')}"
    if row.stopped_by:
        return f"stopped: {row.stopped_by}"
    reason = row.error or row.reason
    if row.state not in ("PENDING", "SOFT_FAIL"):
        return reason
    if row.not_before >= NEVER:
        return reason
    due = f"due in {format_seconds(row.not_before - now)}" if row.not_before > now else "due now"
    return f"{reason}, {due}" if reason else due


def print_timeline(out: OutputWriter, timeline: RunTimeline) -> None:
    """Print everything about a run: facts, timeline, errors, outputs and entries."""
    from oncemore.cli.timeline import draw_timeline, timeline_legend

    row = timeline.row
    # The clock of a store can be set back, so a duration could come out negative.
    duration = format_seconds(max(0.0, row.changed - row.created))
    out.write_line(
        f"{row.step}  {row.state}{f', {row.reason}' if row.reason else ''}",
        STATE_COLORS.get(row.state, "bold"),
    )
    tries = f"{row.attempts} of {row.max_attempts} attempts"
    if row.crashes:
        tries += f" and {row.crashes} of {row.max_crashes} crashes"
    out.write_line(f"{MARGIN}run {row.run_id}")
    out.write_paragraph(
        f"{tries}, {duration} from {format_time(row.created)} to {format_time(row.changed, day=False)}",
        "",
        MARGIN,
    )
    _print_facts(out, timeline)
    lines = draw_timeline(timeline, out.width)
    if lines:
        out.write_line()
        for line in lines:
            out.write_line(line)
        out.write_line(timeline_legend(timeline), "dim")
    _print_errors(out, timeline)
    _print_journal(out, timeline)
    _print_outputs(out, timeline)
    _print_entries(out, timeline.steps)
    out.write_line()
    out.write_paragraph(f"Reasons: `oncemore explain {row.run_id}`", "dim")


def _print_facts(out: OutputWriter, timeline: RunTimeline) -> None:
    row = timeline.row
    facts = [("key", row.key), ("effect", row.effect), ("policy", row.policy), ("tenant", row.tenant)]
    facts += [("dataset", row.dataset), ("correlation", row.correlation_id)]
    if row.held_for:
        facts.append(("held for", row.held_for.replace("_", " ")))
    if row.stopped_by:
        facts.append(("stopped by", row.stopped_by))
    # A rerun starts a new run under the same key.
    if len(timeline.lives) > 1:
        other_ids = [run_id for run_id in timeline.lives if run_id != row.run_id]
        facts.append(("other runs", ", ".join(other_ids[:5])))
    facts += [
        (name, _format_value(value))
        for name, value in (("arguments", timeline.arguments), ("result", timeline.result))
        if value
    ]
    for name, text in facts:
        if text:
            out.write_paragraph(text, "", f"{MARGIN}{name:<12}")


def _format_value(value: object) -> str:
    """Return a stored value as JSON on one line, cut after `MAX_TEXT_LENGTH` characters."""
    import json

    text = json.dumps(value, ensure_ascii=False, default=str)
    return (
        text
        if len(text) <= MAX_TEXT_LENGTH
        else f"{text[:MAX_TEXT_LENGTH]}… ({len(text):,} characters; --json shows all)"
    )


def _print_errors(out: OutputWriter, timeline: RunTimeline) -> None:
    failed = [span for span in timeline.spans if span.what == "attempt" and span.error]
    if failed:
        out.write_line()
        for span in failed[-MAX_ERRORS:]:
            out.write_paragraph(f"{span.error}: {span.message}", "", f"{MARGIN}attempt {span.number}: ")


def _print_journal(out: OutputWriter, timeline: RunTimeline) -> None:
    """Print the sleeps, waits, signals and values of a workflow, in order."""
    rows = [
        (format_time(entry.at), line)
        for entry in timeline.steps
        if "JOURNAL" in entry.marks or "SIGNAL" in entry.marks
        for line in describe_records(entry.body.get("journal", ()))
    ]
    if rows:
        out.write_line()
        # The end of a long list is what the workflow does now.
        out.write_table([("at", "workflow"), *rows[-MAX_ENTRIES:]], MARGIN)
        if len(rows) > MAX_ENTRIES:
            out.write_line(
                f"{MARGIN}{len(rows) - MAX_ENTRIES} earlier lines are not shown; --json shows all", "dim"
            )


def _print_outputs(out: OutputWriter, timeline: RunTimeline) -> None:
    if timeline.given:
        out.write_line()
        rows = [("output", "name", "state", "content")]
        # An artifact has a size and a digest; an event has only its entity.
        rows += [
            (
                output.kind,
                output.name,
                output.state,
                f"{output.size:,} bytes, {output.digest}" if output.digest else output.entity,
            )
            for output in timeline.given
        ]
        out.write_table(rows, MARGIN)


def _print_entries(out: OutputWriter, entries: Sequence[TimelineEntry]) -> None:
    out.write_line()
    rows = [("entry", "at", "marks", "state")]
    # The beginning and the end explain a long run; the middle repeats itself.
    half = MAX_ENTRIES // 2
    shown = entries if len(entries) <= MAX_ENTRIES else (*entries[:half], *entries[-half:])
    rows += [
        (
            f"{entry.seq}",
            format_time(entry.at, day=False),
            " ".join(entry.marks),
            entry.state.state + (f", {entry.state.reason}" if entry.state.reason else ""),
        )
        for entry in shown
    ]
    out.write_table(rows, MARGIN, right=(0,))
    if len(entries) > len(shown):
        out.write_line(
            f"{MARGIN}{len(entries) - len(shown)} entries in the middle are not shown; --json shows all",
            "dim",
        )


def print_explanation(out: OutputWriter, explanation: RunExplanation) -> None:
    """Print the explanation of a run, one paragraph per attempt."""
    out.write_line(
        f"{explanation.step}, key {explanation.key[:12]}, run {explanation.run_id}: {explanation.state}",
        "bold",
    )
    for attempt in explanation.told:
        out.write_line()
        for text in attempt.sentences:
            out.write_paragraph(text)
    # What the run waits for now comes after the attempts.
    if explanation.standing:
        out.write_line()
        for text in explanation.standing:
            out.write_paragraph(text)
