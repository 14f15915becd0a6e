"""CAME: what became of one attempt of a job's item, wherever it was made.

An attempt is made with `Notes`, which are told what it meets; what an error says about the item is then read
from both (`came_of`). In a lane of the job the notes are the job's own (`workers.map`); in another process
(`workers.executors`) they are written down, and travel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore.errors import (
    AttemptTimeout,
    Blocked,
    CoolingDown,
    Failed,
    InProgress,
    Parked,
    Quarantined,
    ResultUnavailable,
    RetriesExhausted,
    StoreError,
    Uncertain,
)
from oncemore.steps.run import Run

if TYPE_CHECKING:
    from oncemore.limits.cooldown_step import Cooling
    from oncemore.policy.model import Failure
    from oncemore.steps.ops import Seen


class Came(NamedTuple):
    """What became of an item: its key, a word of `WORDS`, the error that says why, and how that counts.

    until   when it is due again; None where it is over or nobody knows
    stored  what is on record of the error that it had failed with before
    """

    key: str
    word: str
    error: str = ""
    until: float | None = None
    result: str = ""
    error_class: str = ""
    stored: dict[str, Any] | None = None


class Notes:
    """What an attempt of an item meets: its key, what it asks for, and how it fails."""

    def __init__(self) -> None:
        self.key, self.failed, self.code = "", False, ""
        self.resource, self.came_to = "", "SUCCESS"

    def asks(self, cooling: Cooling | None, seen: Seen) -> None:
        """Know what the item asks for; where that is there already, nobody is asked."""
        if cooling is not None:
            self.resource = cooling.entity
            there = seen.run is not None and seen.run.state == "COMPLETE"
            self.came_to = "SKIPPED_DUPLICATE" if there else "SUCCESS"

    def told(self, error: dict[str, Any], failure: Failure) -> None:
        """Know of a failed attempt."""
        self.failed, self.code = True, str(error.get("code", ""))

    def done(self) -> Came:
        """Return what became of an item whose attempt has succeeded."""
        return Came(self.key, "done", result=self.came_to)


#: What an error says about an item, and how that counts. The first that fits counts.
_SAYS: tuple[tuple[Any, str, str], ...] = (
    (ResultUnavailable, "done", "SUCCESS"),
    ((RetriesExhausted, AttemptTimeout), "failed", "RETRYABLE_FAILURE"),
    (Failed, "failed", "TERMINAL_FAILURE"),
    (Parked, "later", "RETRYABLE_FAILURE"),
    ((InProgress, StoreError), "later", ""),
    (Quarantined, "held", "QUARANTINE"),
    (Uncertain, "held", ""),
    (Blocked, "held", ""),
    (Exception, "refused", ""),
    (BaseException, "later", ""),
)


def came_of(error: BaseException, met: Notes) -> Came:
    """Return what an error says about an item."""
    if isinstance(error, CoolingDown):
        return Came(met.key, "skipped", str(error), None, error.outcome)
    word, result = next(row[1:] for row in _SAYS if isinstance(error, row[0]))
    if isinstance(error, Parked):
        return Came(met.key, word, str(error), error.until, result if met.failed else "", met.code)
    run = getattr(error, "run", None)
    stored = (run.error or {}) if isinstance(run, Run) else {}
    before = isinstance(error, Failed) and not met.failed and isinstance(run, Run)
    counts = met.code or str(stored.get("code", ""))
    return Came(met.key, word, str(error), None, result, counts, stored if before else None)
