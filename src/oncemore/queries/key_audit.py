"""List all idempotency operations on one key in order: hit, record, clear, expiry (IDEM-19).

The log holds every change: a result is recorded, cleared, pruned or erased. A hit changes nothing and is only
in the audit events that a sink wrote to a file, so both are read. An operation that both hold is taken from
the log; for a key without a log entry (records in memory), all operations come from the events.
"""

from __future__ import annotations

from datetime import datetime

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.audit import AuditTrail, EventFilter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

    from oncemore.audit.events import AuditEvent
    from oncemore.log.store import Store

ACTIONS = ("hit", "record", "clear", "expiry")


class KeyOperation(Value):
    """One operation on the record of a key.

    action          one of ACTIONS
    source          "log", or the name of the file of audit events
    entry           the entity and version of the log entry
    """

    at: float
    action: str
    correlation_id: str
    operation: str
    source: str
    entry: str = ""


def list_key_operations(store: Store, key: str, files: Iterable[IO[str]]) -> tuple[str, list[KeyOperation]]:
    """Return the complete key and its operations in order of time; raise `UsageError` if there are none.

    key  the key or a prefix of it
    """
    whole_key, logged = _find_logged(store, key)
    events = [operation for file in files for operation in _read_events(file, whole_key)]
    # The audit also has records and clears; counting them again would double those of the log.
    operations = logged + [operation for operation in events if operation.action == "hit" or not logged]
    if not operations:
        raise UsageError(
            f"there is no key {key!r} in this log; `oncemore runs` lists the keys of the log, and --audit "
            "FILE names a file of audit events"
        )
    return whole_key, sorted(operations, key=lambda operation: operation.at)


def _find_logged(store: Store, key: str) -> tuple[str, list[KeyOperation]]:
    from oncemore.queries.runs import find_run

    entity = f"run/{key}"
    if store.load_head(entity) is None:
        try:
            entity = find_run(store, key).entity
        except UsageError:
            return key, []  # the key may still be in a file of audit events
    return entity.removeprefix("run/"), list(_read_log(store, entity))


def _read_log(store: Store, entity: str) -> Iterator[KeyOperation]:
    from oncemore.log.entry_codec import decode_header
    from oncemore.log.record import RunRecord, apply_header

    state: RunRecord | None = None
    for entry in store.read_entries(entity):
        header = decode_header(entry.header)
        state = apply_header(state, header.sets)
        action = ""
        # The marks of an entry are kinds of records; these three change what a second call returns.
        if "COMMIT" in header.marks:
            action = "record"
        elif "PRUNE" in header.marks or "ERASE" in header.marks:
            action = "expiry"
        elif "DECISION" in header.marks and header.sets.get("reason") == "cleared":
            action = "clear"
        if action:
            yield KeyOperation(
                at=header.at,
                action=action,
                correlation_id=state.correlation_id,
                operation=state.step,
                source="log",
                entry=f"{entity}#{entry.version}",
            )


def _read_events(file: IO[str], key: str) -> Iterator[KeyOperation]:
    for event in AuditTrail(file, file.name, EventFilter()).read_new_events():
        # Events of other keys are in the same file.
        action = _find_action(event, key)
        if action:
            at = datetime.fromisoformat(str(event.to_dict()["timestamp"])).timestamp()
            correlation_id = str(event.to_dict().get("correlation_id") or "")
            yield KeyOperation(at, action, correlation_id, event.operation, file.name)


def _find_action(event: AuditEvent, key: str) -> str:
    """Return the action of an event on a key; an empty text if the event is about something else."""
    plain = event.to_dict()
    if plain.get("idempotency_key") != key:
        return ""
    return {"idempotency": str(plain.get("action")), "idempotency_cleared": "clear"}.get(event.event_type, "")
