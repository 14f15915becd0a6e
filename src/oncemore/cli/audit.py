"""`oncemore audit`: audit events that were written to a file."""

from __future__ import annotations

import sys

import click

from oncemore.cli.commands import Whole, json_option, leaf
from oncemore.cli.output import Paper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    from oncemore.audit.events import Event
    from oncemore.audit.stream import AuditStream
    from oncemore.cli.output import Tint

EXAMPLES = """
oncemore audit audit.jsonl
oncemore audit audit.jsonl -f --type retry_exhausted
oncemore audit audit.jsonl --category RETRY_KV_GET --tenant tenant-123 --json
oncemore audit audit.jsonl --patterns
"""
TINTS: dict[str, Tint] = {"retry_exhausted": "red", "retry_refused": "yellow", "retry_succeeded": "green"}
#: What stands in every event, and is printed in a place of its own.
COMMON = ("event_type", "retry_category", "operation", "timestamp", "trace_id")
HEADS = ("category", "operations", "total_attempts", "success_rate", "avg_attempts")


@leaf("audit", EXAMPLES, {"Which": "event_type retry_category operation tenant_id correlation_id"})
@click.argument("file", type=click.File(encoding="utf-8"), help="What a JsonLines sink wrote; - is stdin.")
@click.option("-n", "--lines", "count", metavar="N", type=Whole(0, 1_000_000), default=20,
              help="How many of the last events (20).")  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--patterns", is_flag=True, help="Sum up what came of operations, by category.")
@click.option("--type", "event_type", metavar="WORD", help="Of this type, as retry_exhausted.")
@click.option("--category", "retry_category", metavar="CODE", help="Of this category, as RETRY_KV_GET.")
@click.option("--operation", metavar="NAME", help="Of this operation.")
@click.option("--tenant", "tenant_id", metavar="NAME", help="Of this tenant.")
@click.option("--correlation", "correlation_id", metavar="ID", help="In this course of events.")
@json_option
def audit(file: IO[str], count: int, follow: bool, patterns: bool, in_json: bool, **asked: Any) -> None:
    """Print audit events of a file, and follow it.

    One line for each event; with --json one JSON document for each, as it was written. --patterns has one
    line for each category: how many operations ended, in how many attempts, and how many came good.
    """
    from oncemore.audit.events import KINDS
    from oncemore.queries.audit import Trail, Wanted, kept

    if asked["event_type"] not in (None, *KINDS):
        raise click.BadParameter(
            f"{asked['event_type']!r} is no type of event; there are {', '.join(KINDS)}.",
            click.get_current_context(), param_hint="'--type'",
        )  # fmt: skip
    if patterns and follow:
        raise click.UsageError("Give either --patterns or --follow.", click.get_current_context())
    paper, trail = Paper(in_json=in_json), Trail(file, file.name, Wanted(**asked))
    events = kept(trail)
    if trail.torn:
        lines = f"{trail.torn:,} lines of {file.name} are" if trail.torn > 1 else f"1 line of {file.name} is"
        Paper(sys.stderr).say(f"{lines} no JSON, and left out", "dim")
    if patterns:
        _print_patterns(paper, events)
        return
    for event in events.last(count):
        _print(paper, event)
    for event in trail.follow() if follow else ():
        _print(paper, event)
        if paper.hushed:
            return


def _print(paper: Paper, event: Event) -> None:
    if paper.in_json:
        paper.record(event.plain(version=2))
        return
    plain = event.plain(version=2)
    told = "  ".join(
        f"{name}={value:.3f}" if isinstance(value, float) else f"{name}={value}"
        for name, value in plain.items()
        if name not in COMMON and value is not None
    )
    head = f"{plain['timestamp']}  {event.event_type}  {event.retry_category}  {event.operation}"
    paper.line(f"{head}  {told}", TINTS.get(event.event_type, ""))


def _print_patterns(paper: Paper, events: AuditStream) -> None:
    found = events.per_category()
    if paper.in_json:
        paper.json({category: summary._asdict() for category, summary in found.items()})
        return
    if not found:
        paper.line("no operation has ended")
        return
    rows = [
        (
            category,
            f"{one.operations:,}",
            f"{one.total_attempts:,}",
            f"{one.success_rate:.2f}",
            f"{one.avg_attempts:.1f}",
        )
        for category, one in found.items()
    ]
    paper.table([HEADS, *rows], right=(1, 2, 3, 4))
    if events.dropped:
        paper.line(f"{events.dropped:,} older events were left out", "dim")
