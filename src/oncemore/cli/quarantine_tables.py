"""Prints what waits for a person."""

from __future__ import annotations

from oncemore.queries.times import ago, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from oncemore.cli.output import Paper
    from oncemore.control.quarantine import Case, Item

HEADS = ("id", "since", "kind", "step", "attempts", "reason")
_CHOICES = {
    "release": "release  it goes on as it would have",
    "reject": "reject   it ends here",
    "rerun": "rerun    it goes on with more attempts",
    "approve": "approve  oncemore approve: it may begin",
    "settle": "settle   say whether it took effect: --applied JSON, or --not-applied",
}


def print_items(paper: Paper, items: Sequence[Item], now: float) -> None:
    """Print each on a line of its own, with the part of its id that tells it from the others."""
    if not items:
        paper.line("Nothing waits for a person.", "green")
        return
    size = _shortest([item.id for item in items])
    rows = [
        (item.id[:size], ago(item.since, now), item.kind, item.step, str(item.attempts), _why(item))
        for item in items
    ]
    paper.table([HEADS, *rows], right=(4,))
    paper.line()
    paper.say(f"`oncemore quarantine show {items[0].id[:size]}` has the evidence of the first.", "dim")


def _why(item: Item) -> str:
    code = item.error.get("code", "")
    return f"{item.reason}: {code}" if code else item.reason


def _shortest(ids: list[str]) -> int:
    """Return how many characters tell all ids apart; ids by time begin alike."""
    longest = max(map(len, ids))
    return next((n for n in range(8, longest) if len({one[:n] for one in ids}) == len(set(ids))), longest)


def print_case(paper: Paper, case: Case, now: float) -> None:
    """Print the evidence, and what can be decided."""
    item = case.item
    paper.line(f"{item.kind} {item.id} of {item.step}: {item.reason}", "yellow")
    paper.line()
    facts = [
        ("since", f"{shown(item.since)} ({ago(item.since, now)})"), ("effect", case.effect),
        ("attempts", str(item.attempts)), ("error", _error(item.error)), ("code", item.error.get("code", "")),
        ("rule", case.rule), ("input", case.input_hash), ("dataset", item.dataset), ("tenant", item.tenant),
        ("correlation", item.correlation_id), ("entity", item.entity), ("version", str(item.version)),
        *_bytes(case.artifact),
    ]  # fmt: skip
    paper.table([("what", "is"), *((name, text) for name, text in facts if text)])
    if case.proof is not None:
        paper.line()
        paper.say(str(case.proof.get("sentence", "")))
    _lines(paper, "Attempts", [_attempt(one) for one in case.attempts])
    _lines(paper, "Told", [f"{one.sink}: {_told(one, now)}" for one in case.told])
    _lines(paper, "Decided before", [_decided(one) for one in case.decisions])
    _lines(paper, "What can be decided", [_CHOICES[choice] for choice in case.choices])


def _lines(paper: Paper, title: str, lines: list[str]) -> None:
    if lines:
        paper.line()
        paper.line(title, "bold")
        for line in lines:
            paper.say(line, "", "  ")


def _error(error: dict[str, Any]) -> str:
    return f"{error.get('type', '')}: {error.get('message', '')}".strip(": ")


def _bytes(artifact: dict[str, Any] | None) -> list[tuple[str, str]]:
    if artifact is None:
        return []
    return [
        ("artifact", artifact["name"]), ("expected", artifact["expected"]), ("found", artifact["found"]),
    ]  # fmt: skip


def _attempt(one: Any) -> str:
    took = "" if one.ended is None else f", {one.ended - one.began:.3f} s"
    why = f": {_error(one.error)}" if one.error else ""
    return f"{one.number}  {shown(one.began)}{took}  {one.outcome}{why}"


def _told(one: Any, now: float) -> str:
    if one.state == "PENDING" and one.due > now:
        return f"to be told at {shown(one.due)}, with more of the same"
    return {"DELIVERED": "has arrived", "DEAD": "could not be delivered: it is in quarantine itself"}.get(
        one.state, "not yet"
    )


def _decided(made: dict[str, Any]) -> str:
    return f"{shown(made['at'])}  {made['what']} by {made['actor'] or 'somebody'}: {made['reason']}"
