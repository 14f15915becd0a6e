"""RETAIN: what may be forgotten of a run, and why not where it may not.

Only what is over can go, and only when nothing of it can come back:

    open          PENDING, RUNNING or SOFT_FAIL: it goes on, or waits for a person
    quarantined   it failed in a way that a person has to look at
    undelivered   an event that it gave away has not arrived; a dead one may still be sent again
    young         it ended less than its own `retain_for` ago, or less than was asked for
    unsaid        nobody said how long it is to be kept: neither its step nor whoever prunes

What is forgotten leaves a tombstone: the key, its state and its hashes stay, so that it is not done twice.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.log.record import Run

OVER = ("COMPLETE", "HARD_FAIL")
#: How long even the shortest-lived result is kept: somebody may be waiting for it right now.
LEAST_S = 60.0


def cannot_go(run: Run, now: float, older_than: float | None) -> str:
    """Return why a run stays, as far as its state alone tells; empty if it may go.

    It cannot have ended before it was created, which is all that its state tells about that.
    """
    if run.state not in OVER or run.held_for:
        return "open"
    if older_than is None and not run.retain_s:
        return "unsaid"
    return is_young(run, max(run.began, run.created), now, older_than)


def is_young(run: Run, ended: float, now: float, older_than: float | None) -> str:
    """Return "young" if a run ended too short a time ago; its own time and the time asked for both hold."""
    return "young" if ended + max(run.retain_s, older_than or 0.0, LEAST_S) > now else ""
