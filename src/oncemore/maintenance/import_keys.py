"""MOVING IN: keys that were done elsewhere are marked as done, without running anything.

A mark is one entry, PENDING to COMPLETE, with who says so and why; a call of the key then returns the value
that was given with it. Marks are stored in groups, each whole or not at all; a key that is known already
stays as it is, so that the same group may be marked again after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.control.moved_log import write_here
from oncemore.errors import UsageError
from oncemore.log.entry_codec import head_of
from oncemore.log.head_access import write_of
from oncemore.log.record import NOWHERE, Change, Run
from oncemore.log.store import Stored
from oncemore.steps.flow import new_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Call, Plan, Seen, Terms

IMPORTED: tuple[Any, ...] = ("PENDING", "DECISION", "COMPLETE")


class Moved(NamedTuple):
    """A key that was done elsewhere.

    seen  what the store knows of it
    body  what is kept of it: arguments, result, and who says so
    """

    plan: Plan
    call: Call
    terms: Terms
    seen: Seen
    body: dict[str, Any]


def result_of(plan: Plan, value: Any) -> Any:
    """Return a given value as a result is kept; one that has no form is refused."""
    try:
        return plan.encode(value)
    except Exception as fault:
        raise UsageError(f"the value given for {plan.name} cannot be kept: {fault}") from fault


def mark(engine: Engine, group: Sequence[Moved]) -> list[str]:
    """Mark keys as done; return for each "marked", "present", or why it is neither."""
    came_to = [_known(one.call, one.seen.run) for one in group]
    new: dict[str, int] = {}
    for at, one in enumerate(group):
        if not came_to[at]:
            came_to[at] = "present" if one.call.entity in new else "marked"
            new.setdefault(one.call.entity, at)
    while new:
        now = engine.now()
        writes = tuple(_written(engine, group[at], now) for at in new.values())
        answer = write_here(engine, "what was done elsewhere", writes)
        if isinstance(answer, Stored):
            break
        assert answer.head is not None
        at = new.pop(answer.entity)  # somebody else was at it meanwhile: as they left it, it stays
        came_to[at] = _known(group[at].call, head_of(answer.head.head, Run))
    return came_to


def would_mark(group: Sequence[Moved], seen: set[str]) -> list[str]:
    """Return what `mark` would return; nothing is written. `seen` are the keys that came before."""
    came_to = []
    for one in group:
        known = _known(one.call, one.seen.run) or ("present" if one.call.entity in seen else "marked")
        seen.add(one.call.entity)
        came_to.append(known)
    return came_to


def _known(call: Call, run: Run | None) -> str:
    """Return what a key's last run makes of a mark; nothing if there is none."""
    if run is None:
        return ""
    if call.input_hash and run.input_hash not in (call.input_hash, ""):
        return "the key belongs to other arguments"
    if run.state == "COMPLETE":
        return "present"
    return f"the key is {run.state}{', held' if run.held_for else ''} ({run.reason or 'under way'})"


def _written(engine: Engine, one: Moved, now: float) -> Any:
    begun = new_run(one.plan, one.call, one.terms, None, now)
    after = begun._replace(state="COMPLETE", reason="imported", committed=1)
    change = Change(IMPORTED, None, after, one.body)
    return write_of(one.call.entity, 0, NOWHERE, change, now, engine.seal)
