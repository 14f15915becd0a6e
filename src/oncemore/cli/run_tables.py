"""Prints runs: as a list, as a story with its timeline, and explained."""

from __future__ import annotations

from oncemore._time_spans import seconds
from oncemore.queries.times import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.cli.output import Paper, Tint
    from oncemore.queries.explain import Explained
    from oncemore.queries.run_timeline import Step, Story
    from oncemore.queries.runs import Row

HEADS = ("changed", "state", "step", "run", "tries", "why")
MARGIN = "  "
LONGEST_TEXT = 400
#: From how many columns on ids are whole, and how much of one tells runs apart before that.
WIDE, SHORT = 110, 18
A_YEAR_S = 300 * 86_400.0
MOST_STEPS = 60
TINTS: dict[str, Tint] = {"COMPLETE": "green", "HARD_FAIL": "red", "SOFT_FAIL": "yellow"}


def print_runs(paper: Paper, rows: Sequence[Row], limit: int, now: float) -> None:
    """Print each run on a line of its own."""
    if not rows:
        paper.line("no run is like that")
        return
    whole = paper.width >= WIDE
    paper.table([HEADS, *(_cells(row, now, whole) for row in rows)], right=(4,))
    if len(rows) == limit:
        paper.line()
        paper.say(f"These are the newest {limit}; --limit shows more, --since and --step fewer.", "dim")


def _cells(row: Row, now: float, whole: bool) -> tuple[str, ...]:
    at = shown(row.changed)
    changed = at[5:19] if now - row.changed < A_YEAR_S else at[:16]
    name = row.run_id if whole else row.run_id[:SHORT]
    return (changed, row.state, row.step, name, f"{row.attempts}/{row.allowed}", _why(row, now))


def _why(row: Row, now: float) -> str:
    if row.held_for:
        return f"held: {row.held_for.replace('_', ' ')}"
    if row.stopped:
        return f"stopped: {row.stopped}"
    told = row.error or row.reason
    if row.state not in ("PENDING", "SOFT_FAIL"):
        return told
    due = f"due in {seconds(row.not_before - now)}" if row.not_before > now else "due now"
    return f"{told}, {due}" if told else due


def print_story(paper: Paper, story: Story) -> None:
    """Print everything about a run."""
    from oncemore.cli.timeline import legend, timeline

    row = story.row
    took = seconds(max(0.0, row.changed - row.created))
    paper.line(
        f"{row.step}  {row.state}{f', {row.reason}' if row.reason else ''}", TINTS.get(row.state, "bold")
    )
    tries = f"{row.attempts} of {row.allowed} attempts"
    paper.line(f"{MARGIN}run {row.run_id}")
    paper.say(f"{tries}, {took} from {shown(row.created)} to {shown(row.changed, day=False)}", "", MARGIN)
    _print_facts(paper, story)
    lines = timeline(story, paper.width)
    if lines:
        paper.line()
        for line in lines:
            paper.line(line)
        paper.line(legend(story), "dim")
    _print_errors(paper, story)
    _print_given(paper, story)
    _print_steps(paper, story.steps)
    paper.line()
    paper.say(f"`oncemore explain {row.run_id}` says why.", "dim")


def _print_facts(paper: Paper, story: Story) -> None:
    row = story.row
    facts = [("key", row.key), ("effect", row.effect), ("policy", row.policy), ("tenant", row.tenant)]
    facts += [("dataset", row.dataset), ("correlation", row.correlation_id)]
    if row.held_for:
        facts.append(("held for", row.held_for.replace("_", " ")))
    if row.stopped:
        facts.append(("stopped by", row.stopped))
    if len(story.lives) > 1:
        others = [life for life in story.lives if life != row.run_id]
        facts.append(("other runs", ", ".join(others[:5])))
    facts += [
        (name, _text(value))
        for name, value in (("arguments", story.arguments), ("result", story.result))
        if value
    ]
    for name, text in facts:
        if text:
            paper.say(text, "", f"{MARGIN}{name:<12}")


def _text(value: object) -> str:
    """Return a stored value on one line, cut where nobody reads on."""
    import json

    text = json.dumps(value, ensure_ascii=False, default=str)
    return (
        text
        if len(text) <= LONGEST_TEXT
        else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters; --json has all)"
    )


def _print_errors(paper: Paper, story: Story) -> None:
    failed = [span for span in story.spans if span.what == "attempt" and span.error]
    if failed:
        paper.line()
        for span in failed[-20:]:
            paper.say(f"{span.error}: {span.message}", "", f"{MARGIN}attempt {span.number}: ")


def _print_given(paper: Paper, story: Story) -> None:
    if story.given:
        paper.line()
        rows = [("left", "name", "state", "what")]
        rows += [
            (one.kind, one.name, one.state, f"{one.size:,} bytes, {one.digest}" if one.digest else one.entity)
            for one in story.given
        ]
        paper.table(rows, MARGIN)


def _print_steps(paper: Paper, steps: Sequence[Step]) -> None:
    paper.line()
    rows = [("entry", "at", "marks", "state")]
    cut = steps if len(steps) <= MOST_STEPS else (*steps[: MOST_STEPS // 2], *steps[-MOST_STEPS // 2 :])
    rows += [
        (
            f"{step.seq}",
            shown(step.at, day=False),
            " ".join(step.marks),
            step.state.state + (f", {step.state.reason}" if step.state.reason else ""),
        )
        for step in cut
    ]
    paper.table(rows, MARGIN, right=(0,))
    if len(steps) > len(cut):
        paper.line(
            f"{MARGIN}{len(steps) - len(cut)} entries in the middle are left out; --json has all", "dim"
        )


def print_explained(paper: Paper, found: Explained) -> None:
    """Print what happened and why, a paragraph for each attempt."""
    paper.line(f"{found.step}, key {found.key[:12]}, run {found.run_id}: {found.state}", "bold")
    for told in found.told:
        paper.line()
        for text in told.sentences:
            paper.say(text)
    if found.standing:
        paper.line()
        for text in found.standing:
            paper.say(text)
