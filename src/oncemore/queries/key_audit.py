"""All idempotency operations of one key, in order: hit, record, clear, expiry (IDEM-19).

The log has what changes it: a result is recorded, cleared, pruned or erased. A hit changes nothing and is not
in the log; it is in the audit events that a sink wrote to a file. So both are read. Of what both have, the
log's entry counts; for a key that is in no log (records in memory), the events do.
"""

from __future__ import annotations

from datetime import datetime

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.queries.audit import Trail, Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO

    from oncemore.audit.events import Event
    from oncemore.log.store import Store

ACTIONS = ("hit", "record", "clear", "expiry")


class KeyOperation(Value):
    """One operation on a key's record.

    action          one of ACTIONS
    source          "log", or the name of the file of audit events
    entry           where it stands in the log
    """

    at: float
    action: str
    correlation_id: str
    operation: str
    source: str
    entry: str = ""


def list_key_operations(store: Store, key: str, files: Iterable[IO[str]]) -> tuple[str, list[KeyOperation]]:
    """Return the whole key, and its operations in the order of time; a key that nobody knows is refused."""
    whole, logged = _find_logged(store, key)
    events = [one for file in files for one in _read_events(file, whole)]
    found = logged + [one for one in events if one.action == "hit" or not logged]
    if not found:
        raise UsageError(
            f"there is no key {key!r} in this log; `oncemore runs` lists those that are there, and --audit "
            "FILE names a file of audit events"
        )
    return whole, sorted(found, key=lambda one: one.at)


def _find_logged(store: Store, key: str) -> tuple[str, list[KeyOperation]]:
    from oncemore.queries.runs import find

    entity = f"run/{key}"
    if store.head(entity) is None:
        try:
            entity = find(store, key).entity
        except UsageError:
            return key, []
    return entity.removeprefix("run/"), list(_read_log(store, entity))


def _read_log(store: Store, entity: str) -> Iterator[KeyOperation]:
    from oncemore.log.entry_codec import header_of
    from oncemore.log.record import Run, fold

    state: Run | None = None
    for entry in store.entries(entity):
        header = header_of(entry.header)
        state = fold(state, header.sets)
        action = ""
        if "COMMIT" in header.marks:
            action = "record"
        elif "PRUNE" in header.marks or "ERASE" in header.marks:
            action = "expiry"
        elif "DECISION" in header.marks and header.sets.get("reason") == "cleared":
            action = "clear"
        if action:
            where = f"{entity}#{entry.version}"
            yield KeyOperation(header.at, action, state.correlation_id, state.step, "log", where)


def _read_events(file: IO[str], key: str) -> Iterator[KeyOperation]:
    for event in Trail(file, file.name, Wanted()).new():
        action = _action_of(event, key)
        if action:
            at = datetime.fromisoformat(str(event.plain()["timestamp"])).timestamp()
            correlation_id = str(event.plain().get("correlation_id") or "")
            yield KeyOperation(at, action, correlation_id, event.operation, file.name)


def _action_of(event: Event, key: str) -> str:
    plain = event.plain()
    if plain.get("idempotency_key") != key:
        return ""
    return {"idempotency": str(plain.get("action")), "idempotency_cleared": "clear"}.get(event.event_type, "")
