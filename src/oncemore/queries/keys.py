"""Compute idempotency keys (IDEM-4), and list all operations on one: hit, record, clear, expiry (IDEM-19).

The log holds every change: a result is recorded, cleared, pruned or erased. A hit changes nothing and is only
in the audit events that a sink wrote to a file, so both are read. An operation that both hold is taken from
the log; for a key without a log entry (records in memory), all operations come from the events.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.policy.canonical_json import exoarmur_key
from oncemore.queries import suggest_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import IO, Final

    from oncemore.audit.events import AuditEvent
    from oncemore.log.store import Store
    from oncemore.policy.canonical_json import Plain

KEY_FIELDS: Final = ("operation", "tenant_id", "correlation_id", "additional_params")


class ComputedKey(Value):
    """A key, its form, and the parts that it was computed from."""

    key: str
    form: str
    operation: str
    tenant_id: str
    correlation_id: str
    additional_params: Mapping[str, Plain]


def compute_key(parts: Mapping[str, Plain], form: str = "canonical") -> ComputedKey:
    """Return the key of named parts.

    form  "canonical", or "legacy" for keys in the printed form of the document
    """
    for name in parts:
        if name not in KEY_FIELDS:
            raise UsageError(
                f"a key has no part {name!r}{suggest_names(name, KEY_FIELDS)}; its parts are "
                f"{', '.join(KEY_FIELDS)}."
            )
    if not parts.get("operation"):
        raise UsageError("operation is missing; a key needs the name of the operation.")
    operation, tenant, correlation, params = (parts.get(name) for name in KEY_FIELDS)
    # exoarmur_key checks the types and names the part that has a wrong one.
    key = exoarmur_key(operation, tenant, correlation, params, legacy=form == "legacy")  # type: ignore[arg-type]
    return ComputedKey(key, form, str(operation), str(tenant or ""), str(correlation or ""), params or {})  # type: ignore[arg-type]


def parse_objects(text: str, max_objects: int = 100_000) -> Iterator[Mapping[str, Plain]]:
    """Yield the JSON objects of a text that holds one after the other, on one line or on several."""
    import re
    from json import JSONDecodeError, JSONDecoder

    decoder, space, position = JSONDecoder(object_pairs_hook=_refuse_duplicates), re.compile(r"\s*"), 0
    for count in range(max_objects + 1):
        # raw_decode does not skip leading white space.
        position = space.match(text, position).end()  # type: ignore[union-attr]
        if position == len(text):
            return
        try:
            value, position = decoder.raw_decode(text, position)
        except JSONDecodeError as error:
            raise UsageError(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}.") from None
        if not isinstance(value, dict):
            raise UsageError(f"expected an object with {', '.join(KEY_FIELDS)}, and found {value!r}.")
        if count < max_objects:
            yield value
    raise UsageError(f"more than {max_objects} objects; give fewer at a time.")


def _refuse_duplicates(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    """Raise `UsageError` for a name that occurs twice: the json module would silently take the last."""
    values: dict[str, Plain] = {}
    for name, value in pairs:
        if name in values:
            raise UsageError(f"{name!r} stands twice in one object; give it once.")
        values[name] = value
    return values


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
    # Imported here: computing a key needs neither, and must start fast.
    from datetime import datetime

    from oncemore.queries.audit import AuditTrail, EventFilter

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
