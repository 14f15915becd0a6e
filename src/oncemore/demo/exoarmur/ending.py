"""What is shown of `oncemore demo exoarmur`: its scenes, the count, the audit stream, what to try next."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.audit import Idempotency, RetryAttempt, RetryExhausted, RetryRefused, RetrySucceeded
from oncemore.demo.pipeline.board import cut
from oncemore.demo.pipeline.ending import counted as table
from oncemore.demo.pipeline.ending import programs
from oncemore.demo.pipeline.live import wrapped
from oncemore.maintenance import copy
from oncemore.profiles.exoarmur.policy import built_in

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from oncemore.audit import AuditStream, Event
    from oncemore.demo.exoarmur.count import Counted
    from oncemore.demo.exoarmur.story import Story
    from oncemore.demo.pipeline.board import Line, Tint
    from oncemore.demo.pipeline.live import Terminal

#: How categories are called in the story, where their codes would take too much room.
ROOM, NAMES = 23, {str(one.code): name for name, one in built_in().items()}


def shown(terminal: Terminal, text: str, events: Iterable[Event], facts: Iterable[Line]) -> None:
    """Show a scene: what it is about, what was told of it, what came of it."""
    width = terminal.size()[0]
    rows: list[Line] = [[], *wrapped(text, width, "bold")]
    for event in events:
        told = of_event(event)
        if told is not None:
            words, tint = told
            name = NAMES.get(event.retry_category, event.retry_category)
            broken = textwrap.wrap(f"{event.operation}: {words}", max(20, width - ROOM - 2)) or [""]
            rows.append([(f"  {name:<{ROOM}}", "dim"), (broken[0], tint)])
            rows += [[(" " * (ROOM + 4), ""), (more, tint)] for more in broken[1:]]
    terminal.lines([*rows, *(cut(fact, width) for fact in facts)])


def of_event(event: Event) -> tuple[str, Tint] | None:
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


def closing(story: Story, found: Counted, took: float, *, keep: bool) -> int:
    """Show the count and what is left to see; return the exit code."""
    terminal, width = story.terminal, story.terminal.size()[0]
    terminal.lines([[]])
    terminal.say("Counted in the recorder of the hosts and in the streams; oncemore's log was not asked:")
    terminal.lines([[], *table(found, width), []])
    wrong = [*story.wrong, *found.faults]
    if not found.good:
        wrong.insert(0, "effects or messages were duplicated or lost: see the table")
    if wrong:
        careless = " This agent is careless on purpose: it keeps its keys to itself."
        why = careless if story.plan.careless else ""
        terminal.say(f"Otherwise than told: {'; '.join(wrong)}.{why}", "red")
    else:
        terminal.say("Every effect, message and event that was asked for is there, once.", "green")
    terminal.lines([[], *audited(found.audit, width), [], *per_category(found.audit, width), []])
    if keep:
        kept(story)
    terminal.lines(next_steps(story, keep=keep))
    terminal.say(f"It took {took:.0f} s.", "dim")
    return 1 if wrong else 0


def audited(audit: AuditStream, width: int) -> list[Line]:
    """Return what is in the audit stream: how much of each kind, and one of the kinds that tell most."""
    kinds = Counter(event.event_type for event in audit)
    told = ", ".join(f"{many} {kind}" for kind, many in sorted(kinds.items()))
    rows: list[Line] = [
        [("The audit stream AUDIT, on exoarmur.audit.append.v1", "bold")],
        *wrapped(f"{len(audit)} events, in order: {told}. Three of them:", width),
    ]
    hits = [event for event in audit if isinstance(event, Idempotency) and event.action == "hit"]
    for event in (*_first(audit, RetryAttempt), *hits[:1], *_first(audit, RetryExhausted)):
        rows += [[(line, "dim")] for line in textwrap.wrap(event.json(), width, subsequent_indent="    ")]
    return rows


def _first(audit: AuditStream, kind: type[Event]) -> list[Event]:
    return [event for event in audit if isinstance(event, kind)][:1]


def per_category(audit: AuditStream, width: int) -> list[Line]:
    """Return what came of the operations of each of the 17 categories, as the stream has it."""
    row = "{:<27}{:>11}{:>15}{:>13}{:>13}".format
    heads = ("category", "operations", "total_attempts", "success_rate", "avg_attempts")
    rows: list[Line] = [cut([(row(*heads), "bold")], width)]
    found = audit.per_category()
    for one in built_in().values():
        summed: Any = found.get(one.code)
        if summed is None:
            rows.append([(f"{one.code:<27}    nothing", "red")])
            continue
        told = row(
            one.code, summed.operations, summed.total_attempts, f"{summed.success_rate:.2f}",
            f"{summed.avg_attempts:.2f}",
        )  # fmt: skip
        rows.append(cut([(told, "")], width))
    return rows


def kept(story: Story) -> None:
    """Move the log out of the bus, which ends with the story, into a file beside the rest."""
    story.close()
    with oncemore.open(story.cast.store) as here, oncemore.open(story.folder / "log.db") as new:
        copy.copy(here, new, reason="the servers of the story are ended", by="oncemore demo")


def next_steps(story: Story, *, keep: bool) -> list[Line]:
    """Return what to try next: commands that work where they are read."""
    us, _ = programs()
    if not keep:
        steps = [
            (f"{us} demo exoarmur --keep --seed {story.plan.seed}", "the same again; log and events stay"),
            (f"{us} demo exoarmur --careless", "without keys: duplicates"),
        ]
    else:
        folder: Path = story.folder
        store, key = f"--store {folder}/log.db", story.agent.key("contain", host=story.plan.hosts[0])
        steps = [
            (f"{us} audit {folder}/audit.jsonl --patterns", "the table above"),
            (f"{us} audit {folder}/audit.jsonl --type retry_exhausted", "what gave up"),
            (f"{us} runs {store}", "every operation that had a key"),
            (f"{us} explain {key[:12]} {store}", "one containment, attempt by attempt"),
            (f"{us} replay --all {store}", "every decision computed again"),
        ]
    room = max(len(command) for command, _ in steps)
    wide = story.terminal.size()[0] >= room + 40
    rows: list[Line] = [[("What to try next", "bold")]]
    for command, what in steps:
        if wide:
            rows.append([(f"  {command.ljust(room)}  ", ""), (what, "dim")])
        else:
            rows += [[(f"  {command}", "")], [(f"      {what}", "dim")]]
    return [*rows, []]
