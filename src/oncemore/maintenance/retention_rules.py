"""Decide whether a run may be pruned, and name the reason if it may not.

    open          PENDING, RUNNING or SOFT_FAIL: it continues, or waits for a person
    quarantined   it failed, and a person has to look at it
    in_review     it failed on sensitive data, and a person has to decide about its escalation
    undelivered   one of its events is not delivered; a dead event may still be sent again
    young         it ended more recently than its own `retain_for` or the requested age
    unsaid        neither its step nor the caller of prune says how long to keep it

A pruned run leaves a tombstone: the key, its state and its hashes stay, so that the work is not done twice.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.log.record import RunRecord

FINAL_STATES = ("COMPLETE", "HARD_FAIL")
#: Every result is kept at least this long: a caller in another process may be about to read it.
MIN_AGE_S = 60.0


def find_keep_reason(run: RunRecord, now: float, older_than: float | None) -> str:
    """Return the reason to keep a run, as far as its head shows it; an empty text if there is none.

    The head does not hold the time at which the run ended. Its start is a lower bound, which excludes young
    runs without reading their entries.
    """
    if run.state not in FINAL_STATES or run.held_for:
        return "open"
    if older_than is None and not run.retain_s:
        return "unsaid"
    return check_age(run, max(run.started_at, run.created_at), now, older_than)


def check_age(run: RunRecord, ended: float, now: float, older_than: float | None) -> str:
    """Return "young" if a run ended too recently, by its own retention time or by the requested age."""
    return "young" if ended + max(run.retain_s, older_than or 0.0, MIN_AGE_S) > now else ""
