"""Output of `oncemore demo exoarmur`: scenes, counts, the audit stream, and commands to try next."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.audit import Idempotency, RetryAttempt, RetryExhausted, RetryRefused, RetrySucceeded
from oncemore.demo.summary_lines import command_lines, command_names, count_lines
from oncemore.demo.terminal import cut_line, wrap_text
from oncemore.maintenance import copy
from oncemore.profiles.exoarmur.policy import builtin_categories

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oncemore.audit import AuditEvent, AuditStream
    from oncemore.demo.exoarmur.scenes import ExoarmurScenes
    from oncemore.demo.exoarmur.stream_counts import EffectReport
    from oncemore.demo.terminal import Line, LiveTerminal, Tint

#: Names of the categories by their codes, which are too long for a column.
NAME_WIDTH, NAMES = 23, {str(one.code): name for name, one in builtin_categories().items()}


def print_scene(
    terminal: LiveTerminal, text: str, events: Iterable[AuditEvent], facts: Iterable[Line]
) -> None:
    """Print a scene: its introduction, its audit events, its results."""
    width = terminal.terminal_size()[0]
    rows: list[Line] = [[], *wrap_text(text, width, "bold")]
    for event in events:
        description = describe_event(event)
        if description is not None:
            words, tint = description
            name = NAMES.get(event.retry_category, event.retry_category)
            # A no-break space keeps a number and its unit on one line.
            text = f"{event.operation}: {words}"
            wrapped = textwrap.wrap(text, max(20, width - NAME_WIDTH - 2)) or [""]
            wrapped = [line.replace("\xa0", " ") for line in wrapped]
            rows.append([(f"  {name:<{NAME_WIDTH}}", "dim"), (wrapped[0], tint)])
            rows += [[(" " * (NAME_WIDTH + 4), ""), (more, tint)] for more in wrapped[1:]]
    terminal.write_lines([*rows, *(cut_line(fact, width) for fact in facts)])


def describe_event(event: AuditEvent) -> tuple[str, Tint] | None:
    """Return an event in a few words; None for a success at the first attempt."""
    match event:
        case RetryAttempt():
            which = f"{event.attempt_number} of {event.max_attempts} failed"
            return f"{which}, {event.exception_type}; again in {event.delay_seconds:.2f}\xa0s", "yellow"
        case RetryExhausted():
            most = event.total_attempts
            return f"{most} of {most} failed, {event.final_exception_type}; given up", "red"
        case RetryRefused():
            return f"refused: {event.reason}", "yellow"
        case RetrySucceeded() if event.total_attempts > 1:
            return f"succeeded at attempt {event.total_attempts}", "green"
        case Idempotency() if event.action == "hit":
            return "hit: already done, not done again", "green"
    return None


def print_summary(demo: ExoarmurScenes, report: EffectReport, took_s: float, *, keep: bool) -> int:
    """Print the counts, the audit stream and commands to try next; return the exit code."""
    terminal, width = demo.terminal, demo.terminal.terminal_size()[0]
    terminal.write_line()
    terminal.write_paragraph("Counted in the hosts' record and in the streams; oncemore's log was not read:")
    terminal.write_lines([[], *count_lines(report.counts, width), []])
    wrong = [*demo.wrong, *report.faults]
    if not report.is_exact:
        wrong.insert(0, "effects or messages were duplicated or lost: see the table")
    if wrong:
        careless = " This agent is careless on purpose: it does not send its keys."
        reason = careless if demo.plan.careless else ""
        terminal.write_paragraph(f"Unexpected: {'; '.join(wrong)}.{reason}", "red")
    else:
        terminal.write_paragraph(
            "Every effect, message and event that was asked for is there, once.", "green"
        )
    terminal.write_lines(
        [[], *audit_lines(report.audit, width), [], *category_lines(report.audit, width), []]
    )
    if keep:
        export_log(demo)
    terminal.write_lines([*command_lines(next_steps(demo, keep=keep), width), []])
    terminal.write_paragraph(f"It took {took_s:.0f} s.", "dim")
    return 1 if wrong else 0


def audit_lines(audit: AuditStream, width: int) -> list[Line]:
    """Return the number of audit events of each kind, and three examples."""
    kinds = Counter(event.event_type for event in audit)
    numbers = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    rows: list[Line] = [
        [("The audit stream AUDIT, on exoarmur.audit.append.v1", "bold")],
        *wrap_text(f"{len(audit)} events, in order: {numbers}. Three of them:", width),
    ]
    hits = [event for event in audit if isinstance(event, Idempotency) and event.action == "hit"]
    # A retry, a hit and an exhaustion show the fields of all kinds.
    for event in (*_first_event(audit, RetryAttempt), *hits[:1], *_first_event(audit, RetryExhausted)):
        rows += [[(line, "dim")] for line in textwrap.wrap(event.to_json(), width, subsequent_indent="    ")]
    return rows


def _first_event(audit: AuditStream, kind: type[AuditEvent]) -> list[AuditEvent]:
    return [event for event in audit if isinstance(event, kind)][:1]


def category_lines(audit: AuditStream, width: int) -> list[Line]:
    """Return the table of the 17 categories, computed from the audit stream."""
    row = "{:<27}{:>11}{:>15}{:>13}{:>13}".format
    heads = ("category", "operations", "total_attempts", "success_rate", "avg_attempts")
    rows: list[Line] = [cut_line([(row(*heads), "bold")], width)]
    summaries = audit.per_category()
    for one in builtin_categories().values():
        summary: Any = summaries.get(one.code)
        if summary is None:
            rows.append([(f"{one.code:<27}    nothing", "red")])
            continue
        text = row(
            one.code, summary.operations, summary.total_attempts, f"{summary.success_rate:.2f}",
            f"{summary.avg_attempts:.2f}",
        )  # fmt: skip
        rows.append(cut_line([(text, "")], width))
    return rows


def export_log(demo: ExoarmurScenes) -> None:
    """Move the log from the NATS servers, which end with the demo, into a file."""
    # A log can be moved only while no engine works on it.
    demo.close()
    with oncemore.open(demo.processes.store) as old, oncemore.open(demo.folder / "log.db") as new:
        copy.move_log(old, new, reason="the servers of the demo end", by="oncemore demo")


def next_steps(demo: ExoarmurScenes, *, keep: bool) -> list[tuple[str, str]]:
    """Return commands to try next, with explanations."""
    command, _ = command_names()
    if not keep:
        return [
            (
                f"{command} demo exoarmur --keep --seed {demo.plan.seed}",
                "the same again; keeps log and events",
            ),
            (f"{command} demo exoarmur --careless", "without keys: duplicates"),
        ]
    folder, key = demo.folder, demo.agent.compute_key("contain", host=demo.plan.hosts[0])
    store = f"--store {folder}/log.db"
    return [
        (f"{command} audit patterns {folder}/audit.jsonl", "the table above"),
        (f"{command} audit filter {folder}/audit.jsonl --type retry_exhausted", "operations that gave up"),
        (f"{command} runs {store}", "every operation that had a key"),
        (f"{command} explain {key[:12]} {store}", "one containment, attempt by attempt"),
        (f"{command} replay --all {store}", "every decision computed again"),
    ]
