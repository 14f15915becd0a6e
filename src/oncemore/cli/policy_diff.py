"""Prints how two policies differ."""

from __future__ import annotations

from oncemore._time_spans import seconds
from oncemore.cli.policy_sheet import flow
from oncemore.cli.ticks import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import Paper
    from oncemore.queries.policy_compare import Course, Difference, Step
    from oncemore.queries.policy_schedule import Delay

MARGIN = "  "
MOST_DELAYS = 12


def print_difference(paper: Paper, found: Difference) -> None:
    """Print fields, schedules and decisions, each only where they differ."""
    if found.same:
        paper.line(f"{found.a} and {found.b} decide alike in everything.", "green")
    if found.fields:
        _print_fields(paper, found)
    if not found.same:
        _print_schedule(paper, found)
        _print_courses(paper, found)


def _print_fields(paper: Paper, found: Difference) -> None:
    """Print short values in a table, and below it the lists that differ, by what only one of them has."""
    paper.line("Fields", "bold")
    lists = [one for one in found.fields if isinstance(one.a or one.b, list)]
    rows = [(one.field, flow(one.a), flow(one.b)) for one in found.fields if one not in lists]
    if rows:
        paper.table([("field", found.a, found.b), *rows], MARGIN)
    for one in lists:
        a, b = (list(side) if isinstance(side, list) else [] for side in (one.a, one.b))
        paper.line(f"{MARGIN}{one.field}" + (f" ({len(set(a) & set(b))} in both)" if set(a) & set(b) else ""))
        for name, mine, others in ((found.a, a, b), (found.b, b, a)):
            only = [item for item in mine if item not in others] or ["nothing more"]
            paper.say(flow(only), "", f"{MARGIN * 2}{name}: ")


def _print_schedule(paper: Paper, found: Difference) -> None:
    """Print both schedules beside each other: low, planned and high in seconds."""
    paper.line()
    if all(pair.a == pair.b for pair in found.schedule):
        paper.line("Delays: the same in every number")
        return
    paper.line("Delays in seconds: from, planned, to", "bold")
    rows = [("after", found.a, found.b, "")]
    rows += [
        (f"{pair.after}", _range(pair.a), _range(pair.b), "" if pair.a != pair.b else "same")
        for pair in found.schedule[:MOST_DELAYS]
    ]
    together = [
        f"{seconds(worst.delay_s)} for {worst.calls} calls" for worst in (found.worst_a, found.worst_b)
    ]
    paper.table([*rows, ("worst", *together, "")], MARGIN)
    if len(found.schedule) > MOST_DELAYS:
        paper.line(f"{MARGIN}({len(found.schedule) - MOST_DELAYS} further delays are not shown)")


def _range(delay: Delay | None) -> str:
    if delay is None:
        return "no attempt follows"
    return f"{shown(delay.low_s)}, {shown(delay.planned_s)}, {shown(delay.high_s)}"


def _print_courses(paper: Paper, found: Difference) -> None:
    """Print what both decide while the same failure comes again and again, where they part."""
    paper.line()
    apart = [course for course in found.courses if course.parts_at is not None]
    if not apart:
        paper.line(f"Decisions: the same in all {len(found.courses)} example situations")
        return
    paper.line(f"Decisions: they part in {len(apart)} of {len(found.courses)} example situations", "bold")
    width = max(len(found.a), len(found.b))
    for names, course in _grouped(apart):
        paper.say("; ".join(names), "", MARGIN)
        paper.say(_told(course.a), "", f"{MARGIN * 2}{found.a.ljust(width)}  ")
        paper.say(_told(course.b), "", f"{MARGIN * 2}{found.b.ljust(width)}  ")
    alike = [course.example for course in found.courses if course.parts_at is None]
    if alike:
        paper.say("; ".join(alike), "dim", f"{MARGIN}decided alike: ")


def _grouped(courses: Sequence[Course]) -> list[tuple[list[str], Course]]:
    """Put situations together that both treat in the same way."""
    groups: dict[tuple[str, str], tuple[list[str], Course]] = {}
    for course in courses:
        groups.setdefault((_told(course.a), _told(course.b)), ([], course))[0].append(course.example)
    return list(groups.values())


def _told(steps: Sequence[Step]) -> str:
    waits = [shown(step.delay_s) for step in steps if step.action == "retry"]
    last = steps[-1]
    end = "and so on" if last.action == "retry" else f"{last.action} ({last.reason})"
    return f"waits {', '.join(waits)} s, then {end}" if waits else end
