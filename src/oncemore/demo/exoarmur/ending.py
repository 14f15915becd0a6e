"""What is shown of `oncemore demo exoarmur`: its scenes, the count, the audit stream, what to try next."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.audit import Idempotency, RetryAttempt, RetryExhausted, RetryRefused, RetrySucceeded
from oncemore.demo.pipeline.board import cut_line
from oncemore.demo.pipeline.ending import command_names
from oncemore.demo.pipeline.ending import count_lines as table
from oncemore.demo.pipeline.live import wrap_text
from oncemore.maintenance import copy
from oncemore.profiles.exoarmur.policy import builtin_categories

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from oncemore.audit import AuditEvent, AuditStream
    from oncemore.demo.exoarmur.count import EffectReport
    from oncemore.demo.exoarmur.story import ExoarmurDemo
    from oncemore.demo.pipeline.board import Line, Tint
    from oncemore.demo.pipeline.live import LiveTerminal

#: How categories are called in the story, where their codes would take too much room.
NAME_WIDTH, NAMES = 23, {str(one.code): name for name, one in builtin_categories().items()}


def print_scene(
    terminal: LiveTerminal, text: str, events: Iterable[AuditEvent], facts: Iterable[Line]
) -> None:
    """Show a scene: what it is about, what was told of it, what came of it."""
    width = terminal.terminal_size()[0]
    rows: list[Line] = [[], *wrap_text(text, width, "bold")]
    for event in events:
        told = describe_event(event)
        if told is not None:
            words, tint = told
            name = NAMES.get(event.retry_category, event.retry_category)
            broken = textwrap.wrap(f"{event.operation}: {words}", max(20, width - NAME_WIDTH - 2)) or [""]
            rows.append([(f"  {name:<{NAME_WIDTH}}", "dim"), (broken[0], tint)])
            rows += [[(" " * (NAME_WIDTH + 4), ""), (more, tint)] for more in broken[1:]]
    terminal.write_lines([*rows, *(cut_line(fact, width) for fact in facts)])


def describe_event(event: AuditEvent) -> tuple[str, Tint] | None:
    """Return what an event says, in a few words; None for what went as it should."""
    match event:
        case RetryAttempt():
            which = f"{event.attempt_number} of {event.max_attempts} failed"
            return f"{which}, {event.exception_type}; again in {event.delay_seconds:.2f} s", "yellow"
        case RetryExhausted():
            most = event.total_attempts
            return f"{most} of {most} failed, {event.final_exception_type}; given up", "red"
        case RetryRefused():
            return f"refused: {event.reason}", "yellow"
        case RetrySucceeded() if event.total_attempts > 1:
            return f"good at attempt {event.total_attempts}", "green"
        case Idempotency() if event.action == "hit":
            return "hit: it is done, and not done again", "green"
    return None


def print_ending(story: ExoarmurDemo, found: EffectReport, took: float, *, keep: bool) -> int:
    """Show the count and what is left to see; return the exit code."""
    terminal, width = story.terminal, story.terminal.terminal_size()[0]
    terminal.write_lines([[]])
    terminal.write_paragraph(
        "Counted in the recorder of the hosts and in the streams; oncemore's log was not asked:"
    )
    terminal.write_lines([[], *table(found, width), []])
    wrong = [*story.wrong, *found.faults]
    if not found.is_exact:
        wrong.insert(0, "effects or messages were duplicated or lost: see the table")
    if wrong:
        careless = " This agent is careless on purpose: it keeps its keys to itself."
        why = careless if story.plan.careless else ""
        terminal.write_paragraph(f"Otherwise than told: {'; '.join(wrong)}.{why}", "red")
    else:
        terminal.write_paragraph(
            "Every effect, message and event that was asked for is there, once.", "green"
        )
    terminal.write_lines([[], *audit_lines(found.audit, width), [], *category_lines(found.audit, width), []])
    if keep:
        export_log(story)
    terminal.write_lines(next_steps(story, keep=keep))
    terminal.write_paragraph(f"It took {took:.0f} s.", "dim")
    return 1 if wrong else 0


def audit_lines(audit: AuditStream, width: int) -> list[Line]:
    """Return what is in the audit stream: how much of each kind, and one of the kinds that tell most."""
    kinds = Counter(event.event_type for event in audit)
    told = ", ".join(f"{many} {kind}" for kind, many in sorted(kinds.items()))
    rows: list[Line] = [
        [("The audit stream AUDIT, on exoarmur.audit.append.v1", "bold")],
        *wrap_text(f"{len(audit)} events, in order: {told}. Three of them:", width),
    ]
    hits = [event for event in audit if isinstance(event, Idempotency) and event.action == "hit"]
    for event in (*_first_event(audit, RetryAttempt), *hits[:1], *_first_event(audit, RetryExhausted)):
        rows += [[(line, "dim")] for line in textwrap.wrap(event.to_json(), width, subsequent_indent="    ")]
    return rows


def _first_event(audit: AuditStream, kind: type[AuditEvent]) -> list[AuditEvent]:
    return [event for event in audit if isinstance(event, kind)][:1]


def category_lines(audit: AuditStream, width: int) -> list[Line]:
    """Return what came of the operations of each of the 17 categories, as the stream has it."""
    row = "{:<27}{:>11}{:>15}{:>13}{:>13}".format
    heads = ("category", "operations", "total_attempts", "success_rate", "avg_attempts")
    rows: list[Line] = [cut_line([(row(*heads), "bold")], width)]
    found = audit.per_category()
    for one in builtin_categories().values():
        summed: Any = found.get(one.code)
        if summed is None:
            rows.append([(f"{one.code:<27}    nothing", "red")])
            continue
        told = row(
            one.code, summed.operations, summed.total_attempts, f"{summed.success_rate:.2f}",
            f"{summed.avg_attempts:.2f}",
        )  # fmt: skip
        rows.append(cut_line([(told, "")], width))
    return rows


def export_log(story: ExoarmurDemo) -> None:
    """Move the log out of the bus, which ends with the story, into a file beside the rest."""
    story.close()
    with oncemore.open(story.cast.store) as here, oncemore.open(story.folder / "log.db") as new:
        copy.move_log(here, new, reason="the servers of the story are ended", by="oncemore demo")


def next_steps(story: ExoarmurDemo, *, keep: bool) -> list[Line]:
    """Return what to try next: commands that work where they are read."""
    us, _ = command_names()
    if not keep:
        steps = [
            (f"{us} demo exoarmur --keep --seed {story.plan.seed}", "the same again; log and events stay"),
            (f"{us} demo exoarmur --careless", "without keys: duplicates"),
        ]
    else:
        folder: Path = story.folder
        store, key = f"--store {folder}/log.db", story.agent.compute_key("contain", host=story.plan.hosts[0])
        steps = [
            (f"{us} audit {folder}/audit.jsonl --patterns", "the table above"),
            (f"{us} audit {folder}/audit.jsonl --type retry_exhausted", "what gave up"),
            (f"{us} runs {store}", "every operation that had a key"),
            (f"{us} explain {key[:12]} {store}", "one containment, attempt by attempt"),
            (f"{us} replay --all {store}", "every decision computed again"),
        ]
    room = max(len(command) for command, _ in steps)
    wide = story.terminal.terminal_size()[0] >= room + 40
    rows: list[Line] = [[("What to try next", "bold")]]
    for command, what in steps:
        if wide:
            rows.append([(f"  {command.ljust(room)}  ", ""), (what, "dim")])
        else:
            rows += [[(f"  {command}", "")], [(f"      {what}", "dim")]]
    return [*rows, []]
