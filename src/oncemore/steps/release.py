"""Close the attempts that are still running when a process ends in order.

A worker that obeys SIGTERM, and a program that ends while its daemon threads work, cannot finish these
attempts. Left alone, they would be found as attempts of a dead worker and spend the run's `max_crashes`; a
service that is restarted often enough would then hold healthy work as poison. So each of them is closed as
interrupted, under its own fence, right before the process ends: the next worker continues the run at once.

    before the entry is stored    the attempt is lost with its process, as after a kill: one crash
    after it is stored            the run is due; a result that the thread still returns is rejected

Not closed here: a `once` attempt, because its outcome is not known and the next worker can ask `reconcile`;
and runs that count lost attempts as attempts (`max_crashes` is 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncemore.errors import StoreError
from oncemore.log.entry_codec import build_write, load_head
from oncemore.log.record import RecordChange
from oncemore.log.store import Batch, Stored
from oncemore.policy.closing import INTERRUPTED, close_run, closing_proof, count_lost_attempt
from oncemore.steps import refusals
from oncemore.steps.observers import report_change
from oncemore.steps.transitions import end_attempt

if TYPE_CHECKING:
    from oncemore.log.record import RunRecord
    from oncemore.steps.engine import Engine


def release_attempts(engine: Engine) -> int:
    """Close the running attempts of this process as interrupted; return how many were closed.

    Call it only when the process is about to end: the function of a released attempt may still be running,
    and another worker may start the run at once.
    """
    attempts = [attempt for worker in engine.leases.workers.values() for attempt in worker.list_attempts()]
    try:
        return sum(_release_attempt(engine, entity, fence) for entity, fence in attempts)
    except StoreError:
        # Without the store nothing can be released: the leases expire, and each attempt counts as a crash.
        return 0


def _release_attempt(engine: Engine, entity: str, fence: int) -> bool:
    head = load_head(engine.store, entity, engine.cipher)
    run: RunRecord | None = head.record
    if run is None or (run.state, run.fence) != ("RUNNING", fence) or run.worker not in engine.leases.workers:
        return False
    if run.effect == "once" or not run.max_crashes:
        return False
    now = engine.now()
    decision, counters = close_run(run, INTERRUPTED, now), count_lost_attempt(run, INTERRUPTED)
    after = end_attempt(run, "SOFT_FAIL", decision.reason, not_before=now, **counters)
    body = {"error": refusals.LOST[INTERRUPTED], "proof": closing_proof(decision)}
    change = RecordChange(("SOFT_FAIL",), run, after, body)
    write = build_write(entity, head.version, head.hash, change, now, engine.cipher)
    # A conflict means that the attempt has just ended by itself, which is better.
    is_stored = isinstance(engine.store.append(Batch((write,), {}, sync=True)).wait(), Stored)
    if is_stored:
        report_change(engine, entity, change, now)
    return is_stored
