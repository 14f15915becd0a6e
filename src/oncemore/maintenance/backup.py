"""Back up a log, release a restored copy, and measure the size of a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.governance.identity import authorize_decider
from oncemore.governance.role_model import REVIEWER
from oncemore.log.entry_codec import decode_head
from oncemore.log.record import RunRecord
from oncemore.maintenance.tasks import (
    MaintenanceTask,
    check_text,
    close_abandoned_tasks,
    find_abandoned_tasks,
    list_tasks,
    read_head_pages,
)
from oncemore.maintenance.verify import verify_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from oncemore.log.record import MaintenanceRecord
    from oncemore.log.store import EntitySizes, Entry, Head
    from oncemore.steps.engine import Engine

#: States of a run that the original may have continued after the copy was made.
OPEN_STATES = ("PENDING", "RUNNING", "SOFT_FAIL")


class StoreSizes(Value):
    """The size of a store, in bytes.

    kinds            by kind of entity: the numbers of entities, entries and bytes
    file, wal        the store's file and its write-ahead log
    spare            free pages inside the file, reused by the next entries
    left             free space on the disk; None if it is unknown
    artifacts        the number of stored objects; None without an artifact store
    artifact_bytes   the size of all stored objects
    """

    kinds: Mapping[str, EntitySizes]
    file: int
    wal: int
    spare: int
    left: int | None
    artifacts: int | None
    artifact_bytes: int


class BackupReport(Value):
    """A finished backup: its path, its size, and the numbers of entries and entities that were verified."""

    path: str
    bytes: int
    entries: int
    entities: int


class UnfinishedRun(Value):
    """A run of a copy that was open when the copy was made: the original may have continued it."""

    key: str
    step: str
    state: str
    effect: str
    attempt: int
    created: float


def measure_sizes(engine: Engine) -> StoreSizes:
    """Count the entities and artifacts of a store, and measure the space that they use."""
    space, sizes = engine.store.open_maintenance().measure_space(in_detail=True), None
    if engine.artifact_store.is_configured:
        sizes = [stored.size for stored in engine.artifact_store.backend.list_objects()]
    return StoreSizes(
        kinds=dict(space.kinds),
        file=space.file,
        wal=space.wal,
        spare=space.spare,
        left=space.left,
        artifacts=None if sizes is None else len(sizes),
        artifact_bytes=sum(sizes or ()),
    )


def list_task_records(engine: Engine) -> tuple[MaintenanceRecord, ...]:
    """Return the records of all maintenance tasks, oldest first."""
    return tuple(task for _, task in list_tasks(engine))


def write_backup(
    engine: Engine,
    path: str | os.PathLike[str],
    reason: str,
    by: str | None,
    progress: Callable[[int, int], object] | None,
) -> BackupReport:
    """Write a verified copy of the log to a new file."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UsageError(f"path is {path!r}; it takes the path of a new file")
    # The path is recorded in the log, where a relative one would mean nothing.
    to = Path(path).expanduser().absolute()
    entries = entities = 0

    def check_copy(copied: Iterator[Entry], heads: Iterator[Head]) -> None:
        nonlocal entries, entities
        entries, entities = verify_copy(copied, heads)

    # A killed backup left a temporary file at most; the store removes it when it writes the next one.
    abandoned = find_abandoned_tasks(engine, "backup")
    decider, details = authorize_decider(engine, by), {"path": str(to)}
    with MaintenanceTask(engine, "backup", check_text("reason", reason), decider, details) as task:
        engine.store.open_maintenance().write_backup(to, check_copy, progress or (lambda done, of: None))
        close_abandoned_tasks(engine, abandoned)
        task.mark_done(entities, {"backup": {"path": str(to), "entries": entries}})
    return BackupReport(str(to), to.stat().st_size, entries, entities)


def acknowledge_copy(engine: Engine, reason: str, by: str | None) -> None:
    """Release a restored copy, so that steps may run on it.

    The acknowledgement is recorded before the store is released: after a crash in between the copy is still
    held, and the operator repeats the command.
    """
    # Work that the original has done since would be done again: this is not an operator's to permit.
    decider = authorize_decider(engine, by, needed=REVIEWER)
    maintenance = engine.store.open_maintenance()
    notice = maintenance.copy_notice()
    if not notice:
        raise UsageError(f"{engine.url} is not held; there is nothing to acknowledge")
    with MaintenanceTask(engine, "restore", check_text("reason", reason), decider) as task:
        # The reason why it was held is recorded, because the store forgets it with the next line.
        task.append_note({"restore": {"held": notice}})
        maintenance.acknowledge_copy()
        engine.copy_check.notice = ""
        task.mark_done(0, {})


def list_unfinished_runs(engine: Engine) -> Iterator[UnfinishedRun]:
    """Yield the runs of a copy that were open when it was made; the original may have continued them."""
    for page in read_head_pages(engine.store, "run"):
        for head in page:
            run = decode_head(head.head, RunRecord)
            if run.state in OPEN_STATES:
                yield UnfinishedRun(
                    key=head.entity.removeprefix("run/"),
                    step=run.step,
                    state=run.state,
                    effect=run.effect,
                    attempt=run.attempt,
                    created=run.created_at,
                )
