"""Find faults of a store and of its runs, each with advice for the operator.

Every check returns `ok`, `warn` or `bad`. All checks but the rebuild are quick: they read the runs that are
due or running, the live workers, and the end of the log.
"""

from __future__ import annotations

from itertools import islice

from oncemore._values import Value
from oncemore.errors import StoreError
from oncemore.policy.explain import format_seconds
from oncemore.queries.runs import HELD
from oncemore.queries.store_checks import (
    BAD,
    CLOCK_TOLERANCE_S,
    MAX_HEADS,
    OK,
    WARN,
    DoctorCheck,
    check_storage,
    format_count,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from oncemore.artifacts.backends import FolderBackend
    from oncemore.log.record import RunRecord
    from oncemore.log.store import Head, Store
    from oncemore.maintenance.rebuild import RebuildReport

    Progress = Callable[[int, int], object]
    Runs = list[tuple[Head, RunRecord]]

#: A run or event that has been due for longer than this is reported: no worker or relay takes it.
OVERDUE_S = 300.0


class DoctorReport(Value):
    """All checks of a store."""

    url: str
    engine: str
    checks: tuple[DoctorCheck, ...]

    @property
    def worst(self) -> str:
        """The worst status of all checks."""
        statuses = {check.status for check in self.checks}
        return next(status for status in (BAD, WARN, OK) if status in statuses or status == OK)


def check_store(
    store: Store, known_steps: Iterable[str] | None = None, artifacts: FolderBackend | None = None
) -> DoctorReport:
    """Run all checks but the rebuild.

    known_steps  the names of the steps that the caller's modules define; None if it named no modules
    artifacts    the folder of the artifacts, if they are in a local folder
    """
    # The runs are loaded once, because several checks need them.
    facts = store.open_maintenance().describe_store()
    running, waiting = _load_runs(store, state="RUNNING"), _load_waiting_runs(store)
    checks = [
        DoctorCheck("engine", OK, facts.engine),
        *check_storage(store, artifacts),
        *_check_leases(store, running),
        _check_overdue_runs(store, waiting),
        _check_held_runs(waiting),
        _check_switches(store),
        *_check_events(store),
        *_check_known_steps(running, waiting, known_steps),
    ]
    return DoctorReport(facts.url, facts.engine, tuple(checks))


def _load_runs(store: Store, **query: Any) -> Runs:
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.store import HeadQuery

    return [
        (head, decode_head(head.head))
        for head in store.list_heads(HeadQuery("run", limit=MAX_HEADS, **query))
    ]


def _load_waiting_runs(store: Store) -> Runs:
    """Return the runs that wait for a time or for a person; the index of due runs lacks the latter."""
    return _load_runs(store, due_by=float("inf")) + _load_runs(store, state=HELD)


def _run_labels(runs: Iterable[tuple[Head, RunRecord]]) -> tuple[str, ...]:
    return tuple(f"{run.step} {run.run_id}" for _, run in islice(runs, 5))


def _check_leases(store: Store, running: Runs) -> Iterator[DoctorCheck]:
    from oncemore.log.entry_codec import decode_head
    from oncemore.log.record import WorkerRecord
    from oncemore.log.store import HeadQuery

    now = store.now()
    heads = list(store.list_heads(HeadQuery("worker", state="ALIVE", limit=MAX_HEADS)))
    workers = {head.by.worker: decode_head(head.head, WorkerRecord) for head in heads}
    # A worker may be dead before its lease ends: its lock file shows that at once on SQLite.
    alive = [
        name
        for name, worker in workers.items()
        if worker.lease_until > now and not store.is_worker_gone(name)
    ]
    yield DoctorCheck(
        "workers",
        OK,
        f"{format_count(len(alive), 'worker')} alive, {len(workers) - len(alive)} lost (did not shut down)",
        examples=tuple(f"{name}, {workers[name].host} process {workers[name].pid}" for name in alive[:5]),
    )
    lost = [(head, run) for head, run in running if run.worker not in alive]
    if lost:
        yield DoctorCheck(
            "leases",
            WARN,
            format_count(
                len(lost),
                "run is RUNNING although its worker is gone",
                "runs are RUNNING although their workers are gone",
            ),
            "call the step again, or start a worker: it closes the attempt and continues by the effect's "
            "class",
            _run_labels(lost),
        )
    else:
        count = format_count(len(running), "run is", "runs are")
        yield DoctorCheck("leases", OK, f"{count} RUNNING, all under a live lease")
    # A lease can end later than its length allows only if a clock was ahead when it was renewed.
    ahead = [
        name
        for name, worker in workers.items()
        if worker.lease_until - now > worker.lease_s + CLOCK_TOLERANCE_S
    ]
    if ahead:
        yield DoctorCheck(
            "clocks of workers",
            WARN,
            f"{format_count(len(ahead), 'lease lasts', 'leases last')} too long",
            "a clock was ahead, or was set back; the runs of these workers can be taken over only later",
            tuple(ahead[:5]),
        )


def _check_overdue_runs(store: Store, waiting: Runs) -> DoctorCheck:
    now = store.now()
    scheduled = [(head, run) for head, run in waiting if not run.held_for]
    overdue = [(head, run) for head, run in scheduled if run.not_before < now - OVERDUE_S]
    if overdue:
        # A run that was submitted without a time has no due time; it is due since it was created.
        oldest = max(now - (run.not_before or run.created_at) for _, run in overdue)
        count = format_count(len(overdue), "run has", "runs have")
        return DoctorCheck(
            "stuck runs",
            WARN,
            f"{count} been due for up to {format_seconds(oldest)}, and no worker has started",
            "call the step again, or start a worker that knows it",
            _run_labels(overdue),
        )
    count = format_count(len(scheduled), "run waits for its", "runs wait for their")
    return DoctorCheck("stuck runs", OK, f"{count} time, none overdue")


def _check_held_runs(waiting: Runs) -> DoctorCheck:
    held = [(head, run) for head, run in waiting if run.held_for]
    if not held:
        return DoctorCheck("held runs", OK, "no run waits for a person")
    return DoctorCheck(
        "held runs",
        WARN,
        f"{format_count(len(held), 'run waits', 'runs wait')} for a person",
        "`oncemore quarantine list` lists them; `oncemore quarantine show ID` shows facts and choices",
        _run_labels(held),
    )


def _check_switches(store: Store) -> DoctorCheck:
    from oncemore.queries.runs import describe_switch, load_switches

    board = load_switches(store)
    # A moved log stops all work, so its switches no longer matter.
    if board.moved_to:
        return DoctorCheck(
            "switches",
            WARN,
            f"this log has moved to {board.moved_to}; nothing begins here any more",
            "use that store; `oncemore store move --help` describes how to return",
        )
    if board.active:
        return DoctorCheck(
            "switches",
            WARN,
            f"{format_count(len(board.active), 'switch is', 'switches are')} on: work waits",
            "`oncemore control switch off` releases it",
            tuple(describe_switch(board, name) for name in list(board.active)[:5]),
        )
    return DoctorCheck("switches", OK, "no switch is on in this log")


def _check_events(store: Store) -> Iterator[DoctorCheck]:
    from oncemore.log.store import HeadQuery

    now = store.now()
    # The index of due events also holds those in SENDING, because their relay may have died.
    overdue = list(store.list_heads(HeadQuery("event", due_by=now - OVERDUE_S, limit=MAX_HEADS)))
    if overdue:
        yield DoctorCheck(
            "events",
            WARN,
            f"{format_count(len(overdue), 'event has', 'events have')} waited for more than {OVERDUE_S:g} s",
            "start a relay, or find out why it cannot deliver",
            tuple(f"{head.by.step} {head.entity}" for head in overdue[:5]),
        )


def _check_known_steps(running: Runs, waiting: Runs, known: Iterable[str] | None) -> Iterator[DoctorCheck]:
    """Check that the named modules define the steps of all open runs."""
    steps = {run.step for _, run in (*running, *waiting)}
    if known is None:
        if steps:
            yield DoctorCheck(
                "code",
                OK,
                f"open runs belong to {', '.join(sorted(steps)[:5])}",
                "name the modules of your steps with --module, to check that they define all of these steps",
            )
        return
    # No worker can continue a run of a step that was renamed or deleted.
    unknown = sorted(steps - set(known))
    if unknown:
        yield DoctorCheck(
            "code",
            WARN,
            f"no named module defines {', '.join(unknown[:5])}",
            "restore the step under this name, or end its runs by an operator's decision",
            _run_labels((head, run) for head, run in (*running, *waiting) if run.step in unknown),
        )
    else:
        yield DoctorCheck("code", OK, "the named modules define the step of every open run")


def check_rebuild(
    store: Store, progress: Progress = lambda done, whole: None
) -> tuple[DoctorCheck, RebuildReport | None]:
    """Rebuild all heads from the log and compare them; return the check, and the report for a repair."""
    from oncemore.maintenance.rebuild import rebuild_heads

    try:
        report = rebuild_heads(store, progress)
    except StoreError as error:
        advice = "stop writing to this store; restore a backup, and keep this file as evidence"
        return DoctorCheck("rebuild", BAD, str(error), advice), None
    entries = format_count(report.entries, "entry", "entries")
    compared = f"{entries}, {format_count(report.heads, 'head')} compared"
    if not report.wrong:
        return DoctorCheck("rebuild", OK, f"{compared}, all equal"), report
    examples = tuple(
        f"{mismatch.entity}: {mismatch.what}{' in ' + ', '.join(mismatch.fields) if mismatch.fields else ''}"
        for mismatch in report.wrong[:5]
    )
    # A head without its entries cannot be rebuilt: entries at the end of the log are lost.
    lost = [mismatch for mismatch in report.wrong if mismatch.right is None]
    if lost:
        observation = f"{compared}; {format_count(len(lost), 'head refers', 'heads refer')} to lost entries"
        advice = "the log was truncated: restore a backup, and keep this file as evidence"
    else:
        observation = f"{compared}; {format_count(len(report.wrong), 'head is', 'heads are')} wrong"
        advice = "oncemore store doctor --rebuild --write repairs them from the log"
    return DoctorCheck("rebuild", BAD, observation, advice, examples), report
