"""The two transitions of every attempt: its start and its end.

They set fields by position instead of `_replace(name=value)`: the names are half of the cost.
"""

from __future__ import annotations

from oncemore._values import make
from oncemore.log.record import FIELD_POSITIONS, RunRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from oncemore.policy.model import Effect, State

_POSITIONS: Final = FIELD_POSITIONS[RunRecord]
_STATE = _POSITIONS["state"]
_EFFECT = _POSITIONS["effect"]
_FENCE = _POSITIONS["fence"]
_ATTEMPT = _POSITIONS["attempt"]
_ATTEMPT_COUNT = _POSITIONS["attempt_count"]
_WORKER = _POSITIONS["worker"]
_STARTED_AT = _POSITIONS["started_at"]
_HELD_FOR = _POSITIONS["held_for"]
_REASON = _POSITIONS["reason"]
_BUDGET_DEBT = _POSITIONS["budget_debt"]


def begin_attempt(run: RunRecord, effect: Effect, worker: str, now: float) -> RunRecord:
    """Return a run whose next attempt has started: counted, under a new fence, no longer held."""
    values: list[Any] = list(run)
    values[_STATE], values[_EFFECT], values[_WORKER], values[_STARTED_AT] = "RUNNING", effect, worker, now
    # A new fence for every attempt, so that the late result of a timed-out attempt is rejected even when
    # both attempts belong to the same worker.
    values[_FENCE] += 1
    values[_ATTEMPT] += 1
    values[_ATTEMPT_COUNT] += 1
    values[_HELD_FOR], values[_REASON], values[_BUDGET_DEBT] = "", "", 0.0
    return make(RunRecord, values)


def end_attempt(run: RunRecord, state: State, reason: str, **changes: Any) -> RunRecord:
    """Return a run whose attempt has ended: it belongs to no worker and is not held."""
    values: list[Any] = list(run)
    values[_STATE], values[_REASON], values[_WORKER], values[_HELD_FOR] = state, reason, "", ""
    for name in changes:
        values[_POSITIONS[name]] = changes[name]
    return make(RunRecord, values)
