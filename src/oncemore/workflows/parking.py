"""Record that a workflow waits: a part of the script in `steps.flow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.log.record import RecordChange
from oncemore.steps.ops import CONFLICT, AppendChange, ParkRequest
from oncemore.steps.transitions import end_attempt, measured_body

if TYPE_CHECKING:
    from oncemore.log.record import LoadedHead
    from oncemore.steps.ops import AttemptOutcome, Script
    from oncemore.steps.plan import StepPlan


def park_run(plan: StepPlan, outcome: AttemptOutcome, now: float) -> Script:
    """Append that a workflow waits; return None to continue as any other caller would, or CONFLICT."""
    change = build_park(outcome.head, outcome.value, now)
    change = change._replace(body={**change.body, **measured_body(outcome, now)})
    return CONFLICT if (yield AppendChange(outcome.head, change)) is None else None


def build_park(head: LoadedHead, request: ParkRequest, now: float) -> RecordChange:
    """Return a workflow that waits: PENDING, owned by no worker; the attempt does not count.

    If an entry was added after the decision to wait, it may be the signal: the workflow is due at once, and
    decides again.
    """
    run = head.record
    until = min(request.until, run.deadline) if run.deadline else request.until
    if request.version not in (0, head.version):
        until = now
    after = end_attempt(run, "PENDING", request.reason, not_before=until, attempt_count=run.attempt_count - 1)
    return RecordChange(("PENDING", "JOURNAL"), run, after, {"journal": request.records})


def merge_parks(parks: list[ParkRequest]) -> ParkRequest:
    """Return one request for several waits: due when the first of them is over.

    A wait for a signal gives the reason, because a signal finds the run by it.
    """
    first = next((park for park in parks if park.version), min(parks, key=lambda park: park.until))
    records = tuple(record for park in parks for record in park.records)
    return ParkRequest(min(park.until for park in parks), first.reason, records, first.version)
