"""List the steps, workers, jobs and waiting workflows of a store."""

from __future__ import annotations

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from oncemore.log.store import Head, Store
    from oncemore.queries.runs import RunRow

#: The number of latest runs that the list of steps counts, and of workers and jobs that are listed.
MAX_COUNTED, MAX_LISTED = 100_000, 1_000
PAGE = 10_000
#: The order of the states in a summary; HELD is the status of runs that wait for an operator.
STATUSES = ("PENDING", "RUNNING", "SOFT_FAIL", "HELD", "HARD_FAIL", "COMPLETE")


class StepSummary(Value):
    """The runs of one step: the number of its latest runs by status.

    last_seq  the sequence number of the last entry of its runs
    """

    step: str
    runs: int
    counts: dict[str, int]
    last_seq: int


class StepList(Value):
    """The steps of a store.

    counted      the number of runs that were counted
    is_complete  whether these are all runs of the store
    """

    steps: tuple[StepSummary, ...]
    counted: int
    is_complete: bool


class WorkerProcess(Value):
    """A process that runs, or ran, work of the store.

    is_alive     whether its lease holds
    lease_until  the end of its lease, by the clock of the store
    running      the number of runs that it holds
    """

    name: str
    state: str
    is_alive: bool
    host: str
    pid: int
    started_at: float
    lease_until: float
    running: int


class JobRow(Value):
    """A job: one step called for many items (`work.map`)."""

    job_id: str
    step: str
    state: str
    items: int
    done: int
    failed: int
    held: int
    deferred: int
    skipped: int
    created_at: float
    ended_at: float
    worker: str


def list_steps(store: Store) -> StepList:
    """Return the steps of the latest runs with the number of runs by status, by name."""
    counts: dict[str, dict[str, int]] = {}
    last: dict[str, int] = {}
    counted = 0
    # The index of a head has its step and status, so no head is decoded.
    for head in _newest_runs(store):
        statuses = counts.setdefault(head.by.step, {})
        statuses[head.by.state] = statuses.get(head.by.state, 0) + 1
        last.setdefault(head.by.step, head.seq)
        counted += 1
    steps = tuple(
        StepSummary(
            step=step,
            runs=sum(counts[step].values()),
            counts={status: counts[step].get(status, 0) for status in STATUSES},
            last_seq=last[step],
        )
        for step in sorted(counts)
    )
    return StepList(steps=steps, counted=counted, is_complete=counted < MAX_COUNTED)


def _newest_runs(store: Store) -> Iterator[Head]:
    from oncemore.log.store import HeadQuery

    query = HeadQuery("run", newest_first=True, limit=PAGE)
    for _ in range(MAX_COUNTED // PAGE):
        page = list(store.list_heads(query))
        yield from page
        if len(page) < PAGE:
            return
        query = query._replace(before_seq=page[-1].seq)


def list_workers(store: Store, *, with_ended: bool = False) -> list[WorkerProcess]:
    """Return the processes of a store, most recently started first; without ended ones unless asked for."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import WorkerRecord
    from oncemore.log.store import HeadQuery

    now = store.now()
    running: dict[str, int] = {}
    for head in store.list_heads(HeadQuery("run", state="RUNNING", limit=MAX_COUNTED)):
        running[head.by.worker] = running.get(head.by.worker, 0) + 1
    rows = []
    for head in store.list_heads(HeadQuery("worker", limit=MAX_COUNTED)):
        record, name = decode_head(head.head, WorkerRecord), head.entity.removeprefix("worker/")
        if not with_ended and record.state != "ALIVE":
            continue
        rows.append(
            WorkerProcess(
                name=name,
                state=record.state,
                is_alive=record.state == "ALIVE" and record.lease_until > now,
                host=record.host,
                pid=record.pid,
                started_at=record.started_at,
                lease_until=record.lease_until,
                running=running.get(name, 0),
            )
        )
    return sorted(rows, key=lambda row: -row.started_at)[:MAX_LISTED]


def list_jobs(store: Store) -> list[JobRow]:
    """Return the jobs of a store: running ones first, then the latest."""
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import JobRecord
    from oncemore.log.store import HeadQuery

    heads = store.list_heads(HeadQuery("job", newest_first=True, limit=MAX_LISTED))
    records = [decode_head(head.head, JobRecord) for head in heads]
    # The fields of a row are those of the record, by name.
    names = JobRow._fields
    rows = [JobRow(**{name: getattr(record, name) for name in names}) for record in records]
    return sorted(rows, key=lambda row: row.state != "RUNNING")


def list_waiting_workflows(store: Store, limit: int = MAX_LISTED) -> list[RunRow]:
    """Return the workflows that sleep or wait for a signal, most recently changed first."""
    from oncemore.log.store import HeadQuery
    from oncemore.queries.runs import add_stopping_switch, make_row
    from oncemore.workflows.journal import SLEEPING, WAITING_FOR

    rows: list[RunRow] = []
    for state in ("PENDING", "SOFT_FAIL"):
        for word in (SLEEPING, WAITING_FOR):
            # The head is searched as text; the reason is compared again below.
            found = HeadQuery(
                "run", state=state, newest_first=True, head_contains=f'"{word}'.encode(), limit=limit
            )
            rows += [make_row(store, head) for head in store.list_heads(found)]
    waiting = {row.key: row for row in rows if row.reason.startswith((SLEEPING, WAITING_FOR))}
    ordered = sorted(waiting.values(), key=lambda row: -row.seq)[:limit]
    return add_stopping_switch(store, ordered)
