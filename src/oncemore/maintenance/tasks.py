"""Maintenance tasks in the log: who ran one, when, why, and whether it finished.

A task is an entity like every other: OPEN when it starts, DONE when all of its work is done. A task that is
OPEN although its worker is gone was killed. All maintenance work is safe to repeat, so the next task of the
same kind repeats it and closes the abandoned one.
"""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Any

from oncemore.errors import StaleDecision, StoreError, UsageError
from oncemore.log.entry_codec import build_write, decode_head, new_uuid7
from oncemore.log.record import NOWHERE, LoadedHead, MaintenanceRecord, RecordChange
from oncemore.log.store import Batch, HeadQuery, Stored
from oncemore.policy.canonical_json import normalize_name
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from oncemore.governance.identity import Decider
    from oncemore.log.store import Head, Store
    from oncemore.steps.engine import Engine

TASK_MARKS: tuple[Any, ...] = ("MAINTENANCE",)
PAGE_SIZE = 100
MAX_TEXT_LENGTH = 1000


def check_text(field: str, text: Any, default: str = "") -> str:
    """Return an actor or a reason, or the default if it is empty.

    Raise `UsageError` for an empty or overlong text: it is stored in the log and cannot be corrected later.
    """
    if text is None or text == "":
        text = default
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_TEXT_LENGTH:
        raise UsageError(
            f"{field} is {text!r:.80}; it takes a text of 1 to {MAX_TEXT_LENGTH} characters: it is recorded"
        )
    return text


def resolve_actor(by: str | None) -> str:
    """Return the actor to record: the given name, the context's actor, or the user of this process."""
    return normalize_name(check_text("by", by or CONTEXT.get().actor, _current_user()))


def _current_user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a user id without a name
        return "unknown user"


class MaintenanceTask:
    """A running maintenance task; use it as a context manager and call `mark_done` at the end.

    Leaving the block without `mark_done` keeps the task OPEN, as a killed process does. In a store with roles
    its first entry is the decision to run it, signed if the decider signs.

    details  what the decision says besides the kind of the task: the run to erase, the file to write
    """

    def __init__(
        self, engine: Engine, kind: str, reason: str, decider: Decider, details: dict[str, Any] | None = None
    ) -> None:
        self._engine, self._version, self._hash = engine, 0, NOWHERE
        now = engine.now()
        self.entity = decider.find_signed_entity("maintenance") or f"maintenance/{new_uuid7(now)}"
        self._first_body = {}
        if decider.identity is not None:
            # Before anything else: a decision that is only prepared leaves no trace.
            head = LoadedHead(self.entity, 0, NOWHERE, None)
            self._first_body["decision"] = decider.make_decision(head, kind, reason, now, details)
        self._identity = engine.leases.current_identity()
        self._state = MaintenanceRecord(
            state="OPEN",
            task=kind,
            actor=decider.actor,
            reason=reason,
            started_at=now,
            ended_at=0.0,
            run_count=0,
            worker=self._identity.name,
        )
        # The worker's lease now also covers this task, so that no other process closes it.
        self._identity.add_attempt((self.entity, 0))

    @property
    def started_at(self) -> float:
        """When the task started, in the store's time."""
        return self._state.started_at

    @property
    def entry_body(self) -> dict[str, str]:
        """The reference to this task that its entries on runs carry."""
        return {"actor": self._state.actor, "reason": self._state.reason, "task": self.entity}

    def __enter__(self) -> Self:
        self._append_state(None, self._state, self._first_body)
        return self

    def __exit__(self, *error: object) -> None:
        self._identity.remove_attempt((self.entity, 0))
        # A retired worker is kept alive until its last run or task is over.
        if self._identity.retired:
            self._engine.leases.close_retired_worker(self._identity)

    def append_note(self, body: dict[str, Any]) -> None:
        """Record a part of the work before it is done, so that a crash cannot hide it."""
        self._append_state(self._state, self._state, body)

    def mark_done(self, runs: int, body: dict[str, Any]) -> None:
        """Record that the task is finished, and for how many runs."""
        after = self._state._replace(state="DONE", ended_at=self._engine.now(), run_count=runs)
        self._append_state(self._state, after, body)
        self._state = after

    def _append_state(
        self, before: MaintenanceRecord | None, after: MaintenanceRecord, body: dict[str, Any]
    ) -> None:
        engine = self._engine
        change = RecordChange(TASK_MARKS, before, after, body)
        write = build_write(self.entity, self._version, self._hash, change, engine.now(), engine.cipher)
        # A task has one writer. A conflict means that another process took it for abandoned.
        reply = engine.store.append(Batch((write,))).wait()
        if not isinstance(reply, Stored):
            # A new task has a random name, unless it is that of a presented signature.
            if self._version == 0:
                raise StaleDecision(f"nothing was done: {self.entity} exists, the signature was used before")
            raise StoreError(f"{self.entity} was written by another process; start the task again")
        self._version, self._hash = self._version + 1, write.hash


def read_head_pages(
    store: Store, kind: str, step: str | None = None, state: str | None = None, page_size: int = 0
) -> Iterator[list[Head]]:
    """Yield all heads of a kind in pages, ordered by entity."""
    after, limit = "", page_size or PAGE_SIZE
    # The name of an entity begins with its kind: with the prefix, a store does not read all other heads.
    query = HeadQuery(kind, state, None, step, limit=limit, prefix=f"{kind}/")
    while page := list(store.list_heads(query._replace(after=after))):
        yield page
        after = page[-1].entity


def list_tasks(
    engine: Engine, kind: str | None = None, state: str | None = None
) -> Iterator[tuple[str, MaintenanceRecord]]:
    """Yield the tasks of a store with their entities, oldest first."""
    # The ids are UUIDv7, so their order is the order of time.
    for page in read_head_pages(engine.store, "maintenance", kind, state):
        yield from ((head.entity, decode_head(head.head, MaintenanceRecord)) for head in page)


def find_abandoned_tasks(engine: Engine, kind: str) -> list[tuple[str, MaintenanceRecord]]:
    """Return the tasks of a kind that are OPEN although the lease of their worker has ended."""
    now = engine.now()
    tasks = list_tasks(engine, kind, "OPEN")
    return [
        (entity, task) for entity, task in tasks if engine.leases.lease_until(task.worker, entity, 0) <= now
    ]


def close_abandoned_tasks(engine: Engine, abandoned: list[tuple[str, MaintenanceRecord]]) -> None:
    """Record that abandoned tasks are done, after the caller has repeated their work.

    The append is a compare-and-set without a retry: if two processes close the same task, the first one
    closes it and the second one changes nothing.
    """
    for entity, task in abandoned:
        head = engine.store.load_head(entity)
        if head is not None and decode_head(head.head, MaintenanceRecord) == task:
            change = RecordChange(TASK_MARKS, task, task._replace(state="DONE", ended_at=engine.now()))
            write = build_write(entity, head.version, head.hash, change, engine.now(), engine.cipher)
            engine.store.append(Batch((write,))).wait()
