"""HERE: what people decide is written in the log that work goes by, and not in one that it has left.

A log that was moved (`maintenance.copy`) stays where it was, to be looked at. Whatever somebody decided there
would never be heard of: so it is refused, with the address of the log that counts. Each decision has what was
read of the move as a guard of its write, like an INTENT: one that is under way while the log is closed is
either in the copy or refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.control.model import CONTROL, MOVED
from oncemore.control.permits import read
from oncemore.errors import Blocked, StaleDecision
from oncemore.log.store import Batch, Stored
from oncemore.steps.ops import End, Permission, Permit, Save
from oncemore.steps.refusals import not_begun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.log.store import Conflict, Write
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script

#: How often a write is made anew where people turn switches meanwhile.
TRIES = 20
ASK = Permit((), "", begins=False)


def only_here(what: str, script: Script) -> Script:
    """Run a decision's script, if the log has not moved and does not meanwhile; `what` it is about."""
    permit: Permission = yield ASK
    op = next(script) if not permit.stop else None
    while type(op) is not End and not permit.stop:
        guarded = op._replace(guards={**op.guards, **permit.guards}) if type(op) is Save else op
        answer = yield guarded
        if type(op) is Save and answer is None:
            before, permit = permit, (yield ASK)
            if permit.guards != before.guards:
                continue  # it was not the decision that came too late: it is written anew, or refused
        op = script.send(answer)
    if permit.stop:
        script.close()
        op = End(None, _refusal(what, permit))
    yield op


def write_here(engine: Engine, what: str, writes: Sequence[Write]) -> Stored | Conflict:
    """Append what somebody has decided, if the log has not moved."""
    for _ in range(TRIES):
        answer = engine.store.append(Batch(tuple(writes), check_here(engine, what))).wait()
        if isinstance(answer, Stored) or answer.entity != CONTROL:
            return answer
    raise StaleDecision(f"nothing was changed: {TRIES} others turned switches meanwhile; look at them first")


def check_here(engine: Engine, what: str) -> dict[str, int]:
    """Refuse a decision in a log that has moved; return the guards of its write."""
    version, control = read(engine)
    if control.moved:
        raise _refusal(what, Permission({}, MOVED, control.moved))
    return {CONTROL: version}


def _refusal(what: str, permit: Permission) -> Exception:
    if permit.stop != MOVED:
        return not_begun(f"a decision about {what}", permit)
    return Blocked(
        f"nothing was decided about {what}: this log has moved to {permit.name}; decide it there",
        MOVED,
    )


__all__ = ["check_here", "only_here", "write_here"]
