"""`oncemore audit`: print the audit events of a store or of a file."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import click

from oncemore.cli.commands import (
    LazyGroup,
    WholeNumber,
    combine_options,
    documented_command,
    flag_option,
    json_option,
    store_option,
    value_option,
)
from oncemore.cli.output import OutputWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    from oncemore.audit.events import AuditEvent
    from oncemore.audit.sinks import AuditStream
    from oncemore.cli.output import Color
    from oncemore.queries.audit import AuditTrail, StoreTrail

    Trail = AuditTrail | StoreTrail

TAIL_EXAMPLES = """
oncemore audit tail
oncemore audit tail -f --type retry_exhausted
oncemore audit tail audit.jsonl -n 100 --json
"""
FILTER_EXAMPLES = """
oncemore audit filter --type retry_refused
oncemore audit filter audit.jsonl --category RETRY_KV_GET --tenant tenant-123 --json
"""
PATTERN_EXAMPLES = """
oncemore audit patterns
oncemore audit patterns audit.jsonl --json
"""
EVENT_COLORS: dict[str, Color] = {
    "retry_exhausted": "red",
    "retry_refused": "yellow",
    "retry_succeeded": "green",
}
#: Fields of every event; they are printed first, without their names, or not at all.
COMMON_FIELDS = ("event_type", "retry_category", "operation", "timestamp", "trace_id")
COLUMN_HEADS = ("category", "operations", "total_attempts", "success_rate", "avg_attempts")


@click.group(
    "audit",
    cls=LazyGroup,
    modules={
        "tail": "audit:print_tail",
        "filter": "audit:print_matching",
        "patterns": "audit:print_patterns",
    },
    examples=TAIL_EXAMPLES + FILTER_EXAMPLES.strip() + PATTERN_EXAMPLES,
)
def audit() -> None:
    """Print audit events, and summarize them by category.

    Without a FILE, the events of the durable runs of the store are computed from its log.
    """


_filter_options = combine_options(
    value_option("--type event_type", "WORD", "Only this event type, such as retry_exhausted."),
    value_option("--category retry_category", "CODE", "Only this category, such as RETRY_KV_GET."),
    value_option("--operation", "NAME", "Only this operation."),
    value_option("--tenant tenant_id", "NAME", "Only this tenant."),
    value_option("--correlation correlation_id", "ID", "Only this correlation id."),
)
_source_options = combine_options(
    click.argument(
        "file",
        type=click.File(encoding="utf-8"),
        required=False,
        help="File written by an AuditFile sink; - is stdin; without it, the store.",
    ),
    _filter_options,
    store_option,
    json_option,
)
_GROUPS = {"Filters": "event_type retry_category operation tenant_id correlation_id"}


@documented_command("tail", TAIL_EXAMPLES, _GROUPS)
@value_option(
    "-n --lines count", "N", "Number of latest events to print (20).",
    type=WholeNumber(0, 1_000_000), default=20,
)  # fmt: skip
@flag_option("-f --follow", "Print new events as they arrive, until Ctrl-C.")
@_source_options
def print_tail(count: int, follow: bool, in_json: bool, **source: Any) -> None:
    """Print the latest events, and follow them.

    One line per event; with --json one JSON document per event.
    """
    out = OutputWriter(in_json=in_json)
    with _open_trail(**source) as trail:
        for event in _latest_events(trail, count):
            _print_event(out, event)
        for event in trail.follow_events() if follow else ():
            _print_event(out, event)
            # Without this check, `audit tail -f | head` would follow forever.
            if out.is_reader_gone:
                return


@documented_command("filter", FILTER_EXAMPLES, _GROUPS)
@_source_options
def print_matching(in_json: bool, **source: Any) -> None:
    """Print all events that match, the oldest first."""
    out = OutputWriter(in_json=in_json)
    with _open_trail(**source) as trail:
        for event in trail.read_new_events():
            _print_event(out, event)
            if out.is_reader_gone:
                return
        _report_torn_lines(trail)


@documented_command("patterns", PATTERN_EXAMPLES, _GROUPS)
@_source_options
def print_patterns(in_json: bool, **source: Any) -> None:
    """Summarize the finished operations by category.

    For each category: the number of operations, their attempts and their success rate.
    """
    from oncemore.queries.audit import load_stream

    with _open_trail(**source) as trail:
        events = load_stream(trail)
        _report_torn_lines(trail)
    _print_patterns(OutputWriter(in_json=in_json), events)


@contextmanager
def _open_trail(file: IO[str] | None, store: str | None, **filters: Any) -> Iterator[Trail]:
    """Yield the events of a file or of a store."""
    from oncemore.audit.events import EVENT_TYPES
    from oncemore.queries.audit import AuditTrail, EventFilter, StoreTrail
    from oncemore.queries.stores import open_read_only

    context = click.get_current_context()
    if filters["event_type"] not in (None, *EVENT_TYPES):
        raise click.BadParameter(
            f"{filters['event_type']!r} is not an event type; the types are {', '.join(EVENT_TYPES)}.",
            context, param_hint="'--type'",
        )  # fmt: skip
    if file is not None and store is not None:
        raise click.UsageError("Give either a FILE or --store.", context)
    if file is not None:
        yield AuditTrail(file, file.name, EventFilter(**filters))
        return
    with open_read_only(store) as opened:
        yield StoreTrail(opened, EventFilter(**filters))


def _latest_events(trail: Trail, count: int) -> list[AuditEvent]:
    from oncemore.queries.audit import StoreTrail, load_stream

    if isinstance(trail, StoreTrail):
        return trail.read_last_events(count)
    # A file is read from its start, because its lines have no index.
    events = load_stream(trail)
    _report_torn_lines(trail)
    return events.newest(count)


def _report_torn_lines(trail: Trail) -> None:
    if trail.torn_lines:
        # A writer that was killed leaves an incomplete line; stderr keeps the events on stdout parsable.
        lines = f"{trail.torn_lines:,} lines" if trail.torn_lines > 1 else "1 line"
        OutputWriter(sys.stderr).write_paragraph(f"skipped {lines} of {trail.name}: not valid JSON", "dim")


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
