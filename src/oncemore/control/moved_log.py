"""Refuses operator decisions in a log that has been moved to another store.

A moved log (`maintenance.copy`) stays readable, but a decision in it would have no effect; the error names
the new URL. The version of the switches entity, which records the move, is a guard of every decision's write,
so that a decision made during the move is either in the copy or refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.control.model import LOG_MOVED, SWITCHES_ENTITY
from oncemore.control.permits import load_switches
from oncemore.errors import NotPermitted, StaleDecision
from oncemore.log.store import Batch, Stored
from oncemore.steps.ops import AppendChange, AskPermission, EndCall, Permission
from oncemore.steps.refusals import describe_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.log.store import Conflict, EntryWrite
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script

#: How often a write is repeated if switches change during it.
MAX_TRIES = 20
ASK_IF_MOVED = AskPermission((), "", begins=False)


def refuse_if_moved(subject: str) -> Script:
    """Return the end of a decision about `subject` in a log that has moved; None in any other log."""
    permission: Permission = yield ASK_IF_MOVED
    return EndCall(None, _moved_error(subject, permission)) if permission.stop else None


def append_decision(subject: str, op: AppendChange) -> Script:
    """Append the change of a decision; return the new head, None on a conflict, or the end in a moved log."""
    permission: Permission = yield ASK_IF_MOVED
    while not permission.stop:
        saved = yield op._replace(guards={**op.guards, **permission.guards})
        if saved is not None:
            return saved
        before, permission = permission, (yield ASK_IF_MOVED)
        # If a switch has changed, the conflict says nothing about the decision: the write is tried again.
        if permission.guards == before.guards:
            return None
    return EndCall(None, _moved_error(subject, permission))


def append_if_not_moved(engine: Engine, subject: str, writes: Sequence[EntryWrite]) -> Stored | Conflict:
    """Append the entries of a decision, unless the log has moved."""
    for _ in range(MAX_TRIES):
        answer = engine.store.append(Batch(tuple(writes), check_not_moved(engine, subject))).wait()
        # A conflict on the switches says nothing about the decision; every other one is the caller's.
        if isinstance(answer, Stored) or answer.entity != SWITCHES_ENTITY:
            return answer
    raise StaleDecision(
        f"nothing was changed: switches changed {MAX_TRIES} times during the write; look at them first"
    )


def check_not_moved(engine: Engine, subject: str) -> dict[str, int]:
    """Return the guards of a decision's write; raise `NotPermitted` if the log has moved."""
    version, control = load_switches(engine)
    if control.moved_to:
        raise _moved_error(subject, Permission({}, LOG_MOVED, control.moved_to))
    return {SWITCHES_ENTITY: version}


def _moved_error(subject: str, permit: Permission) -> Exception:
    if permit.stop != LOG_MOVED:
        return describe_block(f"a decision about {subject}", permit)
    return NotPermitted(
        f"nothing was decided about {subject}: this log has moved to {permit.name}; decide it there",
        LOG_MOVED,
    )


__all__ = ["append_decision", "append_if_not_moved", "check_not_moved", "refuse_if_moved"]
