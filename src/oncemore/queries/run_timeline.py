"""One run from its first entry to its last: attempts, waits, leases, what it left, as spans of time.

attempt  from its claim to its outcome; still open if somebody is at it, or was
wait     from an outcome to the time that was decided
idle     from then on, until somebody came: nobody had to wait so long
lease    of a worker that had an attempt: from its first sign of life to its end
"""

from __future__ import annotations

from itertools import islice

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.bodies import said
from oncemore.queries.control import with_stops
from oncemore.queries.lineage import lineage_of
from oncemore.queries.runs import Row, error_class, row_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from oncemore.log import record
    from oncemore.log.store import Store
    from oncemore.maintenance.lineage import Lineage
    from oncemore.queries.runs import Found

MOST_ENTRIES = 20_000
MOST_SPANS = 2_000
MOST_GIVEN = 200
#: Somebody who waits for the time comes a moment after it.
SHORTEST_IDLE_S = 0.02


class Span(Value):
    """A stretch of time; `ends` is None while it lasts.

    what    "attempt", "wait", "idle", "lease"
    number  of the attempt, or of the one that is waited for
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


class Given(Value):
    """What a run left: an event or an artifact, and what has become of it."""

    kind: str
    name: str
    entity: str
    state: str
    digest: str = ""
    size: int = 0


class Step(Value):
    """An entry of the run, as it is stored."""

    seq: int
    version: int
    at: float
    marks: tuple[str, ...]
    state: record.Run
    body: dict[str, Any]


class Story(Value):
    """A run, told.

    now      the store's time when it was told
    lives    ids of all runs of the key, the first one first
    lineage  what it used and left, under ids that another run of the same work has too; None unless complete
    """

    row: Row
    now: float
    lives: tuple[str, ...]
    arguments: Any
    result: Any
    spans: tuple[Span, ...]
    given: tuple[Given, ...]
    steps: tuple[Step, ...]
    lineage: Lineage | None = None


def story(store: Store, found: Found) -> Story:
    """Tell a run."""
    head = store.head(found.entity)
    if head is None:
        raise UsageError(f"the head of {found.entity} is missing; `oncemore doctor --rebuild` puts it right.")
    steps, lives = _steps(store, found)
    if not steps:
        raise UsageError(f"the entries of {found.run_id} are missing; `oncemore doctor --rebuild` says more.")
    run = steps[-1].state
    row = row_of(store, head)
    if run.run_id != row.run_id:  # an earlier life: told as it ended
        row = _earlier(row, steps[-1])
    (row,) = with_stops(store, [row])
    now = store.now()
    spans = sorted(_spans(steps, now), key=lambda span: (span.begins, span.what))[:MOST_SPANS]
    bodies = {step.version: step.body for step in steps}
    arguments = next((step.body["arguments"] for step in steps if "arguments" in step.body), None)
    done = bodies.get(run.committed, {}) if run.state == "COMPLETE" else {}
    result = {name: done[name] for name in ("result", "spilled", "result_unavailable") if name in done}
    return Story(
        row, now, lives, arguments, result or None, (*spans, *_leases(store, spans, now)),
        tuple(islice(_given(store, found.entity, run, done), MOST_GIVEN)), steps,
        lineage_of(row.key, run, arguments, done) if done and "sealed" not in done else None,
    )  # fmt: skip


def _steps(store: Store, found: Found) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    from oncemore.steps.run import told

    entries = list(islice(store.entries(found.entity), MOST_ENTRIES))
    bare = (entry._replace(body=None) for entry in entries)
    steps, lives = [], dict[str, None]()
    for entry, (header, state, _) in zip(entries, told(bare), strict=True):
        lives[state.run_id] = None
        if state.run_id == found.run_id:
            steps.append(Step(entry.seq, header.version, header.at, header.marks, state, said(entry)))
    return tuple(steps), tuple(lives)


def _earlier(row: Row, last: Step) -> Row:
    run, error = last.state, last.body.get("error") or {}
    return row._replace(
        run_id=run.run_id, state=run.state, reason=run.reason, held_for=run.held_for,
        error=error_class(error), message=str(error.get("message", "")), attempts=run.tried,
        allowed=run.allowed, runs=run.runs, created=run.created, changed=last.at,
        not_before=run.not_before, worker=run.worker, seq=last.seq,
    )  # fmt: skip


def _spans(steps: tuple[Step, ...], now: float) -> Iterator[Span]:
    """Return attempts, and what was between them."""
    open_: Span | None = None
    waits: Span | None = None
    for step in steps:
        run = step.state
        if "INTENT" in step.marks:
            if waits is not None:
                yield from _waited(waits, step.at)
            open_ = Span("attempt", run.attempt, step.at, None, "RUNNING", worker=run.worker, fence=run.fence)
        elif open_ is not None and "CHECKPOINT" in step.marks:
            open_ = open_._replace(checkpoints=open_.checkpoints + 1)
        elif open_ is not None and run.state != "RUNNING":
            error = step.body.get("error") or {}
            yield open_._replace(
                ends=step.at, outcome=run.state, reason=run.reason, error=error_class(error),
                message=str(error.get("message", "")),
            )  # fmt: skip
            open_ = None
        if run.state in ("PENDING", "SOFT_FAIL"):
            waits = Span("wait", run.attempt + 1, step.at, run.not_before or step.at, reason=run.reason)
            waits = waits._replace(outcome=run.held_for)
    if open_ is not None:
        yield open_
    last = steps[-1].state
    if last.state in ("PENDING", "SOFT_FAIL") and waits is not None:
        yield from _waited(waits, None, now)


def _waited(waits: Span, came: float | None, now: float = 0.0) -> Iterator[Span]:
    """Return a wait, and how long nobody came after it; `came` is None if nobody has."""
    assert waits.ends is not None
    due = max(waits.begins, waits.ends)
    if waits.outcome:  # held: until a person decides, whatever the clock says
        yield waits._replace(ends=came)
        return
    if due > waits.begins:
        yield waits._replace(ends=due)
    late = (now if came is None else came) - due
    if late > SHORTEST_IDLE_S:
        yield Span("idle", waits.number, due, came)


def _leases(store: Store, spans: list[Span], now: float) -> Iterator[Span]:
    """Return the leases of those who had an attempt."""
    from oncemore.steps.run import told

    for worker in dict.fromkeys(span.worker for span in spans if span.worker):
        signs = [(header.at, state) for header, state, _ in told(store.entries(f"worker/{worker}"))]
        if signs:
            _, last = signs[-1]
            ends = last.until if last.state == "ALIVE" else signs[-1][0]
            lasts = last.state == "ALIVE" and last.until > now and not store.gone(worker)
            yield Span(
                "lease", len(signs) - 1, signs[0][0], None if lasts else ends,
                "ALIVE" if lasts else "ENDED" if last.state != "ALIVE" else "EXPIRED",
                message=f"{last.host} process {last.pid}", worker=worker,
            )  # fmt: skip


def _given(store: Store, entity: str, run: record.Run, done: dict[str, Any]) -> Iterator[Given]:
    """Return the events and artifacts of a finished run."""
    from oncemore.log.entry_codec import head_of
    from oncemore.log.record import Kept, Outgoing
    from oncemore.policy.canonical_json import event_id_of, reference

    for plain in done.get("artifacts", ()):
        told = plain["$artifact"]
        ref = reference(entity, run.cfg_hash, told["name"])
        known = store.head(ref)
        state = "" if known is None else head_of(known.head, Kept).state
        yield Given("artifact", told["name"], ref, state, told["digest"], told["size"])
    for ordinal in range(MOST_GIVEN if done else 0):
        head = store.head(f"event/{event_id_of(entity, run.runs, ordinal)}")
        if head is None:
            return
        event: Outgoing = head_of(head.head, Outgoing)
        yield Given("event", event.topic, head.entity, event.state)
