"""Erase the data of a key's runs: the chain still verifies and names the actor and the reason.

An ERASE entry is appended to the run, then the bodies of all its entries and events are removed: arguments,
results, errors, checkpoints and payloads. Headers, hashes and the key stay, so that a later call raises
`KeyExpired` and runs nothing. Artifacts that no other run refers to are removed as well. After a crash the
task stays OPEN, and repeating the call removes the rest.

Hashed headers cannot be erased: the key, the names of step, dataset, tenant and artifacts, the correlation
id, times and digests. Backups, replicas and archives of the log are not reached.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.artifacts.gc import MIN_AGE_S, find_garbage
from oncemore.errors import InProgress, UsageError
from oncemore.governance.gate import load_open_review
from oncemore.governance.identity import authorize_run_decider
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import ArtifactRecord, RunRecord
from oncemore.log.store import HeadQuery
from oncemore.maintenance.prune import (
    PrunableRun,
    PruneCounter,
    load_events,
    mark_runs,
    remove_bodies,
)
from oncemore.maintenance.retention_rules import FINAL_STATES
from oncemore.maintenance.tasks import (
    MaintenanceTask,
    check_text,
    close_abandoned_tasks,
    find_abandoned_tasks,
    read_head_pages,
)

if TYPE_CHECKING:
    from oncemore.log.store import Head
    from oncemore.steps.engine import Engine

MIN_KEY_LENGTH = 8
#: How often and how long to wait for readers that keep erased bytes in the write-ahead log.
WAL_TRIES, WAL_RETRY_S = 20, 0.1


class EraseReport(Value):
    """The result of an erasure.

    key        the key of the run
    events     the number of events that lost their payloads
    artifacts  the digests of the removed artifacts
    remaining  one text for each thing that could not be removed now, with the reason
    """

    key: str
    events: int
    artifacts: tuple[str, ...]
    remaining: tuple[str, ...]


def erase_run(engine: Engine, run_or_key: Any, reason: str, by: str | None) -> EraseReport:
    """Erase the bodies of a key's runs; repeat the call to remove the remaining things of the first one."""
    reason, head = check_text("reason", reason), find_run(engine, run_or_key)
    decider = authorize_run_decider(engine, by, head.entity)
    abandoned = find_abandoned_tasks(engine, "erase")
    # Checked before the task begins, so that a refused call leaves no task in the log.
    _check_erasable(engine, head)
    with MaintenanceTask(engine, "erase", reason, decider, {"run": head.entity}) as task:
        head, events = _mark_erased(engine, task, head)
        artifacts, remaining = _remove_objects(engine, head.entity)
        remaining += _empty_wal(engine)
        close_abandoned_tasks(engine, abandoned)
        body = {"run": head.entity, "events": events, "artifacts": artifacts, "left": remaining}
        task.mark_done(1, {"erased": body})
    return EraseReport(head.entity.removeprefix("run/"), events, artifacts, remaining)


def find_run(engine: Engine, run_or_key: Any) -> Head:
    """Return the head of a run, given a `Run`, its key, or a prefix of the key that is unique."""
    text = str(getattr(run_or_key, "key", run_or_key)).removeprefix("run/")
    head = engine.store.load_head(f"run/{text}")
    if head is not None:
        return head
    if re.fullmatch(r"[0-9a-f]+", text) and len(text) >= MIN_KEY_LENGTH:
        following = engine.store.list_heads(HeadQuery("run", limit=2, after=f"run/{text}"))
        matches = [head for head in following if head.entity.startswith(f"run/{text}")]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise UsageError(f"several keys begin with {text}; give more digits")
    raise UsageError(
        f"there is no run with the key {text!r:.80} in {engine.url}; give the key, or {MIN_KEY_LENGTH} "
        "or more of its first digits (step.key(*args) shows it)"
    )


def _check_erasable(engine: Engine, head: Head) -> dict[str, int]:
    """Return the versions of a run's events; raise if the run or one of its events is not finished."""
    run, key = decode_head(head.head, RunRecord), head.entity.removeprefix("run/")[:12]
    if run.state == "RUNNING":
        raise InProgress(f"{run.step}: key {key} is RUNNING; erase it when the run has ended", run.worker)
    if run.state not in FINAL_STATES or run.held_for:
        raise UsageError(
            f"{run.step}: key {key} is {run.state}{', held' if run.held_for else ''}: it needs its "
            "arguments to continue; let the run end or settle it, then erase it"
        )
    if review := load_open_review(engine, run):
        raise UsageError(
            f"{run.step}: key {key} failed on sensitive data, and no person has decided about it yet: "
            f"oncemore escalations ack {review} --reason …"
        )
    events = load_events(engine, head.entity, run)
    waiting = sorted({event.topic for _, event in events.values() if event.state in ("PENDING", "SENDING")})
    if waiting:
        raise UsageError(
            f"{run.step}: key {key} has events that are not delivered ({', '.join(waiting)}); let a "
            "relay deliver them or give them up, then erase it"
        )
    return {name: version for name, (version, _) in events.items()}


def _mark_erased(engine: Engine, task: MaintenanceTask, head: Head) -> tuple[Head, int]:
    """Append ERASE to the run unless it has one, remove its bodies, and return its new head."""
    while True:
        events = _check_erasable(engine, head)
        run = decode_head(head.head, RunRecord)
        prunable = PrunableRun(head, run, events)
        if run.reason == "erased":
            # The bodies below ERASE may remain from a call that was killed; the body of ERASE itself stays.
            remove_bodies(engine, [prunable._replace(head=head._replace(version=head.version - 1))])
            return head, len(events)
        if mark_runs(engine, "ERASE", [prunable], {"erase": task.entry_body}, PruneCounter()):
            return find_run(engine, head.entity), len(events)
        # The compare-and-set failed: the run was pruned, or an event was sent again, in the meantime.
        head = find_run(engine, head.entity)


def _remove_objects(engine: Engine, entity: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove the artifacts that only this key refers to; return their digests, and notes on the rest."""
    if not engine.artifact_store.is_configured:
        return (), ()
    own = {
        artifact.digest
        for page in read_head_pages(engine.store, "artifact")
        for artifact in (decode_head(head.head, ArtifactRecord) for head in page)
        if artifact.run_entity == entity
    }
    if not own:
        return (), ()
    backend = engine.artifact_store.backend
    try:
        garbage, before = find_garbage((engine,), backend, MIN_AGE_S)
    except UsageError as error:
        # Another log shares the backend, so this engine cannot know all references.
        return (), (f"its artifacts: {error}",)
    removed = {
        stored.digest
        for stored in garbage
        if stored.digest in own and backend.remove_object(stored.digest, before)
    }
    present = {stored.digest for stored in backend.list_objects()}
    remaining = tuple(
        f"artifact {digest}: another run refers to it, or it is too young; collect() removes it "
        "as soon as that is possible"
        for digest in sorted((own - removed) & present)
    )
    return tuple(sorted(removed)), remaining


def _empty_wal(engine: Engine) -> tuple[str, ...]:
    """Empty the store's write-ahead log, so that no erased bytes stay there; wait for readers a while."""
    maintenance = engine.store.open_maintenance()
    obstacle = maintenance.checkpoint_wal()
    for _ in range(WAL_TRIES):
        if not obstacle:
            return ()
        clocks.current.sleep(WAL_RETRY_S)
        obstacle = maintenance.checkpoint_wal()
    return (f"the write-ahead file of the store: {obstacle}",)
