"""Prune finished runs, so that a log stays of a bounded size.

For each run that may be pruned (`maintenance.retention_rules`) two things happen, in this order:

    1  PRUNE is appended to the run: from then on a call of its key raises `KeyExpired`
    2  the bodies below it are removed, and those of its events; headers and hashes stay, the chain verifies

After a crash between them a pruned run still has bodies. The task stays OPEN and its start says since when
such runs may exist; the next prune repeats the second step for them. Runs are pruned in small groups, each in
one transaction. PRUNE is a compare-and-set on the run and its events: a run that changes meanwhile is kept.

The head of a pruned run is its tombstone. Tombstones are kept for ever, because only they prevent that a key
is done twice; `forget_keys_after` removes them and records their names in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._values import Value
from oncemore.errors import StoreError, UsageError, log_warning
from oncemore.governance.gate import load_open_review
from oncemore.governance.identity import Decider, authorize_decider, find_needed_role, read_decider
from oncemore.governance.log_order import LEAVES_FIELD, LeafPositions, has_checkpoints
from oncemore.governance.role_model import OPERATOR, REVIEWER
from oncemore.log.entry_codec import build_write, decode_head, decode_header, read_body
from oncemore.log.record import ArtifactRecord, EventRecord, RecordChange, RunRecord, WorkerRecord
from oncemore.log.store import Batch, Conflict, HeadQuery, Stored
from oncemore.maintenance.retention_rules import MIN_AGE_S, check_age, find_keep_reason
from oncemore.maintenance.tasks import (
    MaintenanceTask,
    check_text,
    close_abandoned_tasks,
    find_abandoned_tasks,
    list_tasks,
    read_head_pages,
)
from oncemore.policy.canonical_json import make_event_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

DAY_S = 86_400.0
#: A batch guards the version of every event of its runs; a group is closed when it has more events.
MAX_GUARDS = 1000
MAX_AGE_S = 100 * 366 * DAY_S


class PruneReport(Value):
    """The result of a prune, or of its preview.

    runs          the number of pruned runs
    events        the number of their events
    kept_runs     the number of runs that are kept, by reason: open, quarantined, in_review, sensitive,
                  undelivered, young, unsaid, moved
    dropped_keys  the number of removed tombstones: a call of these keys does the work again
    workers       the number of removed records of dead processes
    """

    runs: int
    events: int
    kept_runs: Mapping[str, int]
    dropped_keys: int
    workers: int


class PrunableRun(NamedTuple):
    """A run that may be pruned, and the versions that its events must still have."""

    head: Head
    run: RunRecord
    events: dict[str, int]


class PruneCounter:
    """Counters of one prune or erasure.

    decider  who prunes; an erasure asks for its role itself
    """

    def __init__(self, decider: Decider = Decider("")) -> None:  # noqa: B008 - a constant
        self._decider, self._is_permitted = decider, dict[str, bool]()
        self.runs = self.events = self.dropped_keys = self.workers = 0
        self.kept_runs: dict[str, int] = {}

    def may_prune(self, engine: Engine, dataset: str) -> bool:
        """Return whether the decider may prune runs of a dataset; each dataset is read once."""
        if self._decider.identity is None:
            return True
        if dataset not in self._is_permitted:
            is_plain = find_needed_role(engine, dataset) == OPERATOR
            self._is_permitted[dataset] = is_plain or self._decider.permits(REVIEWER)
        return self._is_permitted[dataset]

    def count_kept(self, reason: str) -> None:
        """Count a run that is kept."""
        self.kept_runs[reason] = self.kept_runs.get(reason, 0) + 1

    def count_pruned(self, prunable: PrunableRun) -> None:
        """Count a run that is pruned, and its events."""
        self.runs += 1
        self.events += len(prunable.events)

    def build_report(self) -> PruneReport:
        """Return the counters as a report."""
        return PruneReport(self.runs, self.events, self.kept_runs, self.dropped_keys, self.workers)


def prune_runs(
    engine: Engine,
    older_than: float | None,
    step: str | None,
    reason: str,
    by: str | None,
    forget_keys_after: float | None,
) -> PruneReport:
    """Prune the runs that may be pruned, and finish the work of prunes that were killed."""
    _check_seconds("older_than", older_than)
    _check_seconds("forget_keys_after", forget_keys_after)
    # A deleted key can be done again, also one of sensitive data.
    needed = OPERATOR if forget_keys_after is None else REVIEWER
    decider = authorize_decider(engine, by, needed=needed)
    options = {"older_than_s": older_than, "step": step, "forget_keys_after_s": forget_keys_after}
    counter, abandoned = PruneCounter(decider), find_abandoned_tasks(engine, "prune")
    killed_since = min((task.started_at for _, task in abandoned), default=float("inf"))
    with MaintenanceTask(engine, "prune", check_text("reason", reason), decider, options) as task:
        groups = _select_groups(
            engine, task.started_at, older_than, step=step, counter=counter, killed_since=killed_since
        )
        for group in groups:
            for prunable in mark_runs(engine, "PRUNE", group, {"prune": task.entry_body}, counter):
                counter.count_pruned(prunable)
        # After the prune: a run that was pruned just now is never old enough.
        # After the first entry of the task: the first checkpoint of a log waits for prunes without this.
        leaves = LeafPositions(engine) if has_checkpoints(engine) else None
        if forget_keys_after is not None:
            before = task.started_at - forget_keys_after
            _drop_keys(engine, task, step, before, leaves=leaves, counter=counter)
        _drop_workers(engine, task, leaves, counter)
        close_abandoned_tasks(engine, abandoned)
        report = counter.build_report()
        task.mark_done(counter.runs, {"asked": options, "pruned": report._asdict()})
    return report


def preview_prune(
    engine: Engine, older_than: float | None, step: str | None, forget_keys_after: float | None = None
) -> PruneReport:
    """Return the report that a prune would return, and write nothing."""
    _check_seconds("older_than", older_than)
    _check_seconds("forget_keys_after", forget_keys_after)
    # The same runs as the prune itself; a viewer may see what an operator would prune.
    counter = PruneCounter(read_decider(engine))
    if forget_keys_after is not None:
        before = engine.now() - forget_keys_after
        counter.dropped_keys = sum(
            _is_expired_tombstone(head, before)
            for page in read_head_pages(engine.store, "run", step)
            for head in page
        )
    for group in _select_groups(engine, engine.now(), older_than, step=step, counter=counter):
        for prunable in group:
            counter.count_pruned(prunable)
    return counter.build_report()


def _check_seconds(field: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and MIN_AGE_S <= value <= MAX_AGE_S):
        raise UsageError(f"{field} is {value!r}; it takes {MIN_AGE_S:g} to {MAX_AGE_S:g} seconds")


# Selection ------------------------------------------------------------------------------------------


def _select_groups(
    engine: Engine,
    now: float,
    older_than: float | None,
    *,
    step: str | None,
    counter: PruneCounter,
    killed_since: float = float("inf"),
) -> Iterator[list[PrunableRun]]:
    """Yield the runs that may be pruned in groups, and count those that are kept.

    killed_since  the start of the oldest killed prune: bodies of runs pruned since then are removed again
    """
    for page in read_head_pages(engine.store, "run", step):
        group: list[PrunableRun] = []
        pruned_before: dict[str, int] = {}
        for head in page:
            run = decode_head(head.head, RunRecord)
            if run.pruned_at:
                if run.pruned_at >= killed_since:
                    events = load_events(engine, head.entity, run)
                    pruned_before[head.entity] = head.version
                    pruned_before.update({name: version + 1 for name, (version, _) in events.items()})
                continue
            reason = find_keep_reason(run, now, older_than) or _find_entry_keep_reason(
                engine, head, run, now, older_than
            )
            if not reason and not counter.may_prune(engine, run.dataset):
                reason = "sensitive"
            delivered = None if reason else _load_delivered_events(engine, head.entity, run)
            if delivered is None:
                counter.count_kept(reason or "undelivered")
                continue
            group.append(PrunableRun(head, run, delivered))
            # All runs of a page share one batch unless they have too many events.
            if sum(len(prunable.events) for prunable in group) > MAX_GUARDS:
                yield group
                group = []
        if pruned_before:
            engine.store.open_maintenance().prune_bodies(pruned_before)
        if group:
            yield group


def _find_entry_keep_reason(
    engine: Engine, head: Head, run: RunRecord, now: float, older_than: float | None
) -> str:
    """Return the reason to keep a finished run that only its last entry shows."""
    if load_open_review(engine, run):
        return "in_review"
    for entry in engine.store.read_entries(head.entity, head.version - 1):
        if run.state == "HARD_FAIL" and "quarantine" in read_body(entry, engine.cipher):
            return "quarantined"
        return check_age(run, decode_header(entry.header).at, now, older_than)
    return "moved"  # the run was changed after its head was read


def load_events(engine: Engine, entity: str, run: RunRecord) -> dict[str, tuple[int, EventRecord]]:
    """Return the events of all runs of a key, with their versions."""
    events: dict[str, tuple[int, EventRecord]] = {}
    for number in range(1, run.run_number + 1):
        # The ids of a run's events are derived from its key and count up without gaps.
        ordinal = 0
        while True:
            name = f"event/{make_event_id(entity, number, ordinal)}"
            head = engine.store.load_head(name)
            if head is None:
                break
            events[name] = head.version, decode_head(head.head, EventRecord)
            ordinal += 1
    return events


def _load_delivered_events(engine: Engine, entity: str, run: RunRecord) -> dict[str, int] | None:
    """Return the versions of a key's events; None if one of them may still be sent."""
    events = load_events(engine, entity, run)
    if any(event.state != "DELIVERED" for _, event in events.values()):
        return None
    return {name: version for name, (version, _) in events.items()}


# Pruning --------------------------------------------------------------------------------------------


def mark_runs(
    engine: Engine, mark: str, group: list[PrunableRun], body: dict[str, Any], counter: PruneCounter
) -> list[PrunableRun]:
    """Append PRUNE or ERASE to runs, then remove their bodies; return the runs that were marked.

    A run that has changed since it was read, or with a changed event, is left out and counted as kept.
    """
    marks: Any = (mark,)
    while group:
        now = engine.now()
        writes = []
        for head, run, _ in group:
            after = run._replace(pruned_at=now)
            if mark == "ERASE":
                after = after._replace(reason="erased")
            run_body = {name: {**value, "below": head.version + 1} for name, value in body.items()}
            change = RecordChange(marks, run, after, run_body)
            writes.append(build_write(head.entity, head.version, head.hash, change, now, engine.cipher))
        # The events are guarded too: a relay or an operator may send one of them again at this moment.
        guards = {name: version for prunable in group for name, version in prunable.events.items()}
        reply = engine.store.append(Batch(tuple(writes), guards)).wait()
        if isinstance(reply, Stored):
            remove_bodies(engine, group)
            return group
        group = _drop_conflicting(reply, group, counter)
    return []


def _drop_conflicting(
    conflict: Conflict, group: list[PrunableRun], counter: PruneCounter
) -> list[PrunableRun]:
    """Return a group without the run that caused a conflict."""
    counter.count_kept("moved")
    return [
        prunable
        for prunable in group
        if conflict.entity != prunable.head.entity and conflict.entity not in prunable.events
    ]


def remove_bodies(engine: Engine, group: list[PrunableRun]) -> None:
    """Remove the bodies of runs below their last mark, and all bodies of their events."""
    bodies = {prunable.head.entity: prunable.head.version + 1 for prunable in group}
    bodies.update({name: version + 1 for prunable in group for name, version in prunable.events.items()})
    engine.store.open_maintenance().prune_bodies(bodies)


# Tombstones and workers -----------------------------------------------------------------------------


def _drop_keys(
    engine: Engine,
    task: MaintenanceTask,
    step: str | None,
    before: float,
    *,
    leaves: LeafPositions | None,
    counter: PruneCounter,
) -> None:
    """Remove tombstones of runs that were pruned before a time, with their events and artifact references.

    Their names are recorded first. That entry is also the end of the log, so that the last seq stays.
    """
    references = _group_references(engine)
    for page in read_head_pages(engine.store, "run", step):
        dropped: dict[str, tuple[int, str]] = {}
        count = 0
        for head in page:
            if _is_expired_tombstone(head, before):
                run = decode_head(head.head, RunRecord)
                dropped[head.entity] = head.version, head.hash.hex()
                count += 1
                for name in (*load_events(engine, head.entity, run), *references.get(head.entity, ())):
                    dependent = engine.store.load_head(name)
                    assert dependent is not None
                    dropped[name] = dependent.version, dependent.hash.hex()
        if dropped:
            forgotten = [[name, *last] for name, last in dropped.items()]
            task.append_note({"forgotten": forgotten, **_describe_leaves(leaves, dropped)})
            engine.store.open_maintenance().drop_entities(
                {name: version for name, (version, _) in dropped.items()}
            )
            counter.dropped_keys += count


def _describe_leaves(leaves: LeafPositions | None, entities: Iterable[str]) -> dict[str, Any]:
    """Return the record of the entries of entities by which the checkpoints of the log still hold."""
    return {} if leaves is None else {LEAVES_FIELD: leaves.describe_entities(entities)}


def _is_expired_tombstone(head: Head, before: float) -> bool:
    """Return whether a head is the tombstone of a run that was pruned before a time."""
    return 0.0 < decode_head(head.head, RunRecord).pruned_at < before


def _group_references(engine: Engine) -> dict[str, list[str]]:
    """Return the entities of all artifact references, by the run that they belong to."""
    references: dict[str, list[str]] = {}
    for page in read_head_pages(engine.store, "artifact"):
        for head in page:
            run_entity = decode_head(head.head, ArtifactRecord).run_entity
            references.setdefault(run_entity, []).append(head.entity)
    return references


def _drop_workers(
    engine: Engine, task: MaintenanceTask, leaves: LeafPositions | None, counter: PruneCounter
) -> None:
    """Remove the records of workers that have been dead for a day and have no open work."""
    # A run or event in progress needs its worker's record: the next worker reads there that the lease ended.
    needed = {open_task.worker for _, open_task in list_tasks(engine, state="OPEN")}
    for kind, state in (("run", "RUNNING"), ("event", "SENDING")):
        query = HeadQuery(kind, state, limit=2**31 - 1)
        needed |= {head.by.worker for head in engine.store.list_heads(query)}
    for page in read_head_pages(engine.store, "worker"):
        dead = {
            head.entity: head.version
            for head in page
            if decode_head(head.head, WorkerRecord).lease_until < task.started_at - DAY_S
            and head.entity.partition("/")[2] not in needed
        }
        if dead:
            task.append_note({"workers": list(dead), **_describe_leaves(leaves, dead)})
            try:
                counter.workers += engine.store.open_maintenance().drop_entities(dead)
            except StoreError as error:
                # On PostgreSQL only the owner of the schema may delete rows. The prune itself succeeded.
                log_warning(f"the records of dead processes could not be removed: {error}")
                return
