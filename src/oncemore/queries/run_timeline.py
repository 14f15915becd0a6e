"""The timeline of one run: its attempts, waits, idle times and leases, and its outputs.

attempt  from its claim to its outcome; open while it runs, or after its worker was lost
wait     from an outcome to the time at which the next attempt is due
idle     from that time until an attempt really starts
lease    of a worker that had an attempt: from its first heartbeat to its end
"""

from __future__ import annotations

from itertools import islice

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.entries import build_lineage, fold_runs
from oncemore.queries.runs import RunRow, add_stopping_switch, build_row, error_class
from oncemore.steps.history import build_records
from oncemore.workflows.journal import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.lineage.ids import RunLineage
    from oncemore.log import record
    from oncemore.log.store import Store
    from oncemore.queries.runs import FoundRun

MAX_ENTRIES = 20_000
MAX_SPANS = 2_000
MAX_OUTPUTS = 200
#: A worker that waits for the due time starts a moment after it; shorter idle times are not shown.
MIN_IDLE_S = 0.02


class TimeSpan(Value):
    """A span of time; `ends` is None while it lasts.

    what    "attempt", "wait", "idle" or "lease"
    number  the number of the attempt, or of the next attempt; for a lease, the number of heartbeats
    """

    what: str
    number: int
    begins: float
    ends: float | None
    outcome: str = ""
    reason: str = ""
    error: str = ""
    message: str = ""
    worker: str = ""
    fence: int = 0
    checkpoints: int = 0


class RunOutput(Value):
    """An event or an artifact of a run, and its present state."""

    kind: str
    name: str
    entity: str
    state: str
    digest: str = ""
    size: int = 0


class TimelineEntry(Value):
    """An entry of the run, with the state after it."""

    seq: int
    version: int
    at: float
    marks: tuple[str, ...]
    state: record.RunRecord
    body: dict[str, Any]


class RunTimeline(Value):
    """All that the log knows about a run.

    now      the store's time of the query
    lives    the ids of all runs of the key, oldest first
    given    the events and artifacts of the run
    steps    the entries of the run
    records  the same as records of the write-ahead log, with the ten fields of each; not of encrypted entries
    lineage  the ids of its inputs and outputs; None unless the run is complete
    """

    row: RunRow
    now: float
    lives: tuple[str, ...]
    arguments: Any
    result: Any
    spans: tuple[TimeSpan, ...]
    given: tuple[RunOutput, ...]
    steps: tuple[TimelineEntry, ...]
    lineage: RunLineage | None = None
    records: tuple[dict[str, Any], ...] = ()


def load_timeline(store: Store, found: FoundRun) -> RunTimeline:
    """Return the timeline of a run."""
    if store.load_head(found.entity) is None:
        raise UsageError(
            f"the head of {found.entity} is missing; `oncemore store doctor --rebuild` repairs it."
        )
    entries, run_ids = _load_entries(store, found)
    if not entries:
        raise UsageError(
            f"the entries of {found.run_id} are missing; `oncemore store doctor --rebuild` shows details."
        )
    # From the entries of the run: the head shows the key's last run, and this may be an earlier one.
    last = entries[-1]
    run = last.state
    row = build_row(found.entity, run, last.body, last.at, last.seq)
    # The switch is not part of the run; it is read from the switches of the store.
    (row,) = add_stopping_switch(store, [row])
    now = store.now()
    # Spans end up out of order, because a wait is known only when the next attempt begins.
    spans = sorted(_collect_spans(entries, now), key=lambda span: (span.begins, span.what))[:MAX_SPANS]
    bodies = {entry.version: entry.body for entry in entries}
    arguments = next((entry.body["arguments"] for entry in entries if "arguments" in entry.body), None)
    commit = bodies.get(run.commit_version, {}) if run.state == "COMPLETE" else {}
    result = {name: commit[name] for name in ("result", "spilled", "result_unavailable") if name in commit}
    has_lineage = bool(commit) and "sealed" not in commit
    return RunTimeline(
        row=row,
        now=now,
        lives=run_ids,
        arguments=arguments,
        result=result or None,
        spans=(*spans, *_lease_spans(store, spans, now)),
        given=tuple(islice(_list_outputs(store, found.entity, run, commit), MAX_OUTPUTS)),
        steps=entries,
        lineage=build_lineage(row.key, run, commit) if has_lineage else None,
        records=tuple(_list_records(found.entity, entries)),
    )


def _list_records(entity: str, entries: tuple[TimelineEntry, ...]) -> Iterator[dict[str, Any]]:
    """Yield the records of a run's entries; the body of an encrypted entry cannot be read here."""
    was_running = False
    for entry in entries:
        is_running = entry.state.state == "RUNNING"
        ends_attempt, was_running = was_running and not is_running, is_running
        if "sealed" not in entry.body:
            for record in build_records(
                entity, entry.marks, entry.state, entry.body, ends_attempt=ends_attempt
            ):
                yield {"seq": entry.seq, "at": entry.at, **record}


def _load_entries(store: Store, found: FoundRun) -> tuple[tuple[TimelineEntry, ...], tuple[str, ...]]:
    """Return the entries of a run, and the ids of all runs of its key."""
    entries, run_ids = [], dict[str, None]()
    for entry, header, run, body in fold_runs(store, found.entity, MAX_ENTRIES):
        # A dictionary keeps the order of the runs and drops repetitions.
        run_ids[run.run_id] = None
        # Entries of the other runs of the key are folded too, since each state builds on the last one.
        if run.run_id == found.run_id:
            entries.append(TimelineEntry(entry.seq, header.version, header.at, header.marks, run, body))
    return tuple(entries), tuple(run_ids)


def _collect_spans(entries: tuple[TimelineEntry, ...], now: float) -> Iterator[TimeSpan]:
    """Yield the attempts, and the waits and idle times between them."""
    attempt: TimeSpan | None = None
    wait: TimeSpan | None = None
    for entry in entries:
        run = entry.state
        if "INTENT" in entry.marks:
            if wait is not None:
                yield from _split_wait(wait, entry.at)
            attempt = TimeSpan(
                "attempt", run.attempt, entry.at, None, "RUNNING", worker=run.worker, fence=run.fence
            )
        elif attempt is not None and "CHECKPOINT" in entry.marks:
            attempt = attempt._replace(checkpoints=attempt.checkpoints + 1)
        elif attempt is not None and run.state != "RUNNING":
            error = entry.body.get("error") or {}
            yield attempt._replace(
                ends=entry.at,
                outcome=run.state,
                reason=run.reason,
                error=error_class(error),
                message=str(error.get("message", "")),
            )
            attempt = None
        # Every later entry of a waiting run, such as an operator's decision, starts its wait again.
        if run.state in ("PENDING", "SOFT_FAIL"):
            wait = TimeSpan("wait", run.attempt + 1, entry.at, run.not_before or entry.at, reason=run.reason)
            wait = wait._replace(outcome=run.held_for)
    if attempt is not None:
        yield attempt
    if entries[-1].state.state in ("PENDING", "SOFT_FAIL") and wait is not None:
        yield from _split_wait(wait, None, now)


def _split_wait(wait: TimeSpan, next_attempt_at: float | None, now: float = 0.0) -> Iterator[TimeSpan]:
    """Yield a wait, and the idle time between its due time and the next attempt (None: not started)."""
    assert wait.ends is not None
    due = max(wait.begins, wait.ends)
    if wait.outcome or due >= NEVER:  # it waits for a person or a signal, not for a time
        yield wait._replace(ends=next_attempt_at)
        return
    if due > wait.begins:
        yield wait._replace(ends=due)
    late = (now if next_attempt_at is None else next_attempt_at) - due
    if late > MIN_IDLE_S:
        yield TimeSpan("idle", wait.number, due, next_attempt_at)


def _lease_spans(store: Store, spans: list[TimeSpan], now: float) -> Iterator[TimeSpan]:
    """Yield the leases of the workers that had an attempt."""
    from oncemore.steps.history import fold_entries

    for worker in dict.fromkeys(span.worker for span in spans if span.worker):
        heartbeats = [
            (header.at, state) for header, state, _ in fold_entries(store.read_entries(f"worker/{worker}"))
        ]
        if heartbeats:
            last_at, last = heartbeats[-1]
            # A worker that ends in order writes a last entry; a lost one only stops renewing its lease.
            ends = last.lease_until if last.state == "ALIVE" else last_at
            is_alive = last.state == "ALIVE" and last.lease_until > now and not store.is_worker_gone(worker)
            yield TimeSpan(
                what="lease",
                number=len(heartbeats) - 1,
                begins=heartbeats[0][0],
                ends=None if is_alive else ends,
                outcome="ALIVE" if is_alive else "ENDED" if last.state != "ALIVE" else "EXPIRED",
                message=f"{last.host} process {last.pid}",
                worker=worker,
            )


def _list_outputs(
    store: Store, entity: str, run: record.RunRecord, commit: dict[str, Any]
) -> Iterator[RunOutput]:
    """Yield the artifacts and events of a finished run, given the body of its COMMIT."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import ArtifactRecord, EventRecord
    from oncemore.policy.canonical_json import artifact_entity, make_event_id

    for plain in commit.get("artifacts", ()):
        artifact = plain["$artifact"]
        reference = artifact_entity(entity, run.cfg_hash, artifact["name"])
        head = store.load_head(reference)
        state = "" if head is None else decode_head(head.head, ArtifactRecord).state
        yield RunOutput("artifact", artifact["name"], reference, state, artifact["digest"], artifact["size"])
    # The ids of events count up without gaps; the first missing one ends the list.
    for ordinal in range(MAX_OUTPUTS if commit else 0):
        head = store.load_head(f"event/{make_event_id(entity, run.run_number, ordinal)}")
        if head is None:
            return
        event: EventRecord = decode_head(head.head, EventRecord)
        yield RunOutput("event", event.topic, head.entity, event.state)
