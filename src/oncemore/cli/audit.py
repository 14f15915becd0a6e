"""`oncemore audit`: print the audit events of a file."""

from __future__ import annotations

import sys

import click

from oncemore.cli.commands import WholeNumber, documented_command, flag_option, json_option, value_option
from oncemore.cli.output import OutputWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from oncemore.audit.events import AuditEvent
    from oncemore.audit.sinks import AuditStream
    from oncemore.cli.output import Color

EXAMPLES = """
oncemore audit audit.jsonl
oncemore audit audit.jsonl -f --type retry_exhausted
oncemore audit audit.jsonl --category RETRY_KV_GET --tenant tenant-123 --json
oncemore audit audit.jsonl --patterns
"""
EVENT_COLORS: dict[str, Color] = {
    "retry_exhausted": "red",
    "retry_refused": "yellow",
    "retry_succeeded": "green",
}
#: Fields of every event; they are printed first, without their names, or not at all.
COMMON_FIELDS = ("event_type", "retry_category", "operation", "timestamp", "trace_id")
COLUMN_HEADS = ("category", "operations", "total_attempts", "success_rate", "avg_attempts")


@documented_command(
    "audit", EXAMPLES, {"Filters": "event_type retry_category operation tenant_id correlation_id"}
)
@click.argument(
    "file", type=click.File(encoding="utf-8"), help="File written by an AuditFile sink; - is stdin."
)
@value_option(
    "-n --lines count",
    "N",
    "Number of latest events to print (20).",
    type=WholeNumber(0, 1_000_000),
    default=20,
)
@flag_option("-f --follow", "Print new events as they arrive, until Ctrl-C.")
@flag_option("--patterns", "Summarize the finished operations by category.")
@value_option("--type event_type", "WORD", "Only this event type, such as retry_exhausted.")
@value_option("--category retry_category", "CODE", "Only this category, such as RETRY_KV_GET.")
@value_option("--operation", "NAME", "Only this operation.")
@value_option("--tenant tenant_id", "NAME", "Only this tenant.")
@value_option("--correlation correlation_id", "ID", "Only this correlation id.")
@json_option
def audit(file: IO[str], count: int, follow: bool, patterns: bool, in_json: bool, **filters: Any) -> None:
    """Print the audit events of a file, and follow it.

    One line per event; with --json one JSON document per event, as it was written. --patterns prints one
    line per category: the number of finished operations, their attempts and their success rate.
    """
    from oncemore.audit.events import EVENT_TYPES
    from oncemore.queries.audit import AuditTrail, EventFilter, load_stream

    if filters["event_type"] not in (None, *EVENT_TYPES):
        raise click.BadParameter(
            f"{filters['event_type']!r} is not an event type; the types are {', '.join(EVENT_TYPES)}.",
            click.get_current_context(), param_hint="'--type'",
        )  # fmt: skip
    if patterns and follow:
        raise click.UsageError("Give either --patterns or --follow.", click.get_current_context())
    out, trail = OutputWriter(in_json=in_json), AuditTrail(file, file.name, EventFilter(**filters))
    events = load_stream(trail)
    if trail.torn_lines:
        # A writer that was killed leaves an incomplete line; stderr keeps the events on stdout parsable.
        lines = f"{trail.torn_lines:,} lines" if trail.torn_lines > 1 else "1 line"
        OutputWriter(sys.stderr).write_paragraph(f"skipped {lines} of {file.name}: not valid JSON", "dim")
    if patterns:
        _print_patterns(out, events)
        return
    for event in events.newest(count):
        _print_event(out, event)
    for event in trail.follow_events() if follow else ():
        _print_event(out, event)
        # Without this check, `audit -f | head` would follow the file forever.
        if out.is_reader_gone:
            return


def _print_event(out: OutputWriter, event: AuditEvent) -> None:
    if out.in_json:
        out.write_json_line(event.to_dict(version=2))
        return
    fields = event.to_dict(version=2)
    details = "  ".join(
        f"{name}={value:.3f}" if isinstance(value, float) else f"{name}={value}"
        for name, value in fields.items()
        if name not in COMMON_FIELDS and value is not None
    )
    lead = f"{fields['timestamp']}  {event.event_type}  {event.retry_category}  {event.operation}"
    out.write_line(f"{lead}  {details}", EVENT_COLORS.get(event.event_type, ""))


def _print_patterns(out: OutputWriter, events: AuditStream) -> None:
    summaries = events.per_category()
    if out.in_json:
        out.write_json({category: summary._asdict() for category, summary in summaries.items()})
        return
    if not summaries:
        out.write_line("No operation has finished.")
        return
    rows = [
        (
            category,
            f"{summary.operations:,}",
            f"{summary.total_attempts:,}",
            f"{summary.success_rate:.2f}",
            f"{summary.avg_attempts:.1f}",
        )
        for category, summary in summaries.items()
    ]
    out.write_table([COLUMN_HEADS, *rows], right=(1, 2, 3, 4))
    if events.dropped_events:
        # The stream keeps a bounded number of events, so the summary does not cover the oldest.
        out.write_line(f"{events.dropped_events:,} older events are not included", "dim")
