"""The registry of datasets: `engine.datasets`.

    engine.datasets.register("survey-2026", care_label="Public · Low-Risk", reason="first delivery")
    engine.datasets.label("survey-2026", care_label="Restricted · Tribal council only", reason="letter 17")
    engine.datasets.block("survey-2026", reason="withdrawn by the community")

A dataset is an entity of the log like every other, `dataset/<id>`. Each change is one entry with who, when,
why and the fields before and after. `governance.gate` compares the dataset with every attempt that names it.
Of two concurrent changes the second is applied on top of the first.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from oncemore._values import Value
from oncemore.control.moved_log import MAX_TRIES, append_if_not_moved
from oncemore.control.review import check_reason
from oncemore.errors import StaleDecision, UsageError
from oncemore.governance.dataset_fields import (
    REQUIRED_FIELDS,
    apply_fields,
    check_dataset_id,
    check_fields,
    find_lower_masking,
    find_weakening,
    read_dataset_file,
)
from oncemore.governance.dataset_model import (
    BLOCKED,
    OPEN,
    RESTRICTED,
    WITHDRAWN,
    DatasetRecord,
    dataset_entity,
    describe_dataset,
    is_sensitive,
)
from oncemore.governance.identity import authorize_decider
from oncemore.governance.role_model import OPERATOR, REVIEWER
from oncemore.log.entry_codec import build_write, decode_head, decode_header, load_head, read_body
from oncemore.log.record import RecordChange
from oncemore.log.store import HeadQuery, Stored
from oncemore.policy.files.faults import FaultList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from oncemore.governance.dataset_fields import DatasetEntry
    from oncemore.log.record import LoadedHead
    from oncemore.log.store import Store
    from oncemore.steps.engine import Engine

    Update = Callable[[DatasetRecord | None], DatasetRecord]

PAGE_SIZE = 1000
DATASET_MARKS: tuple[Any, ...] = ("DATASET", "DECISION")


class DatasetChange(Value):
    """One change of a dataset: the action, who, why, when, and the changed fields as (before, after)."""

    action: str
    by: str
    reason: str
    at: float
    changes: dict[str, Any]


def list_datasets(store: Store, state: str | None = None) -> tuple[DatasetRecord, ...]:
    """Return the registered datasets of a store by id, all or those with a state."""
    found: list[DatasetRecord] = []
    last = ""
    while True:
        page = list(store.list_heads(HeadQuery("dataset", state, limit=PAGE_SIZE, after=last)))
        found += [decode_head(head.head, DatasetRecord) for head in page]
        if len(page) < PAGE_SIZE:
            return tuple(sorted(found, key=lambda record: record.dataset_id))
        last = page[-1].entity


class Datasets:
    """The registered datasets of an engine's store: `engine.datasets`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<oncemore.Datasets of {self._engine.url}>"

    def __iter__(self) -> Iterator[DatasetRecord]:
        return iter(self.list())

    # Reading ----------------------------------------------------------------------------------------

    def get(self, dataset_id: str) -> DatasetRecord | None:
        """Return a dataset; None if it is not registered."""
        record: DatasetRecord | None = self._load_dataset(check_dataset_id(dataset_id)).record
        return record

    def list(self, *, status: str | None = None) -> tuple[DatasetRecord, ...]:
        """Return the registered datasets by id, all or those with a status."""
        state = None if status is None else check_fields({"status": status})["status"]
        return list_datasets(self._engine.store, state)

    def history(self, dataset_id: str) -> tuple[DatasetChange, ...]:
        """Return the changes of a dataset, oldest first."""
        entity = dataset_entity(check_dataset_id(dataset_id))
        changes = []
        for entry in self._engine.store.read_entries(entity):
            body = read_body(entry, self._engine.cipher)
            decision = body.get("decision", {})
            changes.append(
                DatasetChange(
                    action=decision.get("action", ""),
                    by=decision.get("actor", ""),
                    reason=decision.get("reason", ""),
                    at=decode_header(entry.header).at,
                    # Earlier versions stored them beside the decision.
                    changes=decision.get("changes") or body.get("changes", {}),
                )
            )
        return tuple(changes)

    # Changing ---------------------------------------------------------------------------------------

    def register(
        self, dataset_id: str, *, reason: str, by: str | None = None, **metadata: Any
    ) -> DatasetRecord:
        """Register a dataset with its metadata (GOV-16); `care_label` is required."""
        name, fields = check_dataset_id(dataset_id), check_fields(metadata)
        missing = [field for field in REQUIRED_FIELDS if field not in fields]
        if missing:
            raise UsageError(f"{', '.join(missing)} of dataset {name} is missing; it is shown to reviewers")

        def add_dataset(before: DatasetRecord | None) -> DatasetRecord:
            if before is not None:
                raise UsageError(
                    f"dataset {name} is registered already; change it with label, block or release"
                )
            return apply_fields(None, name, fields)

        return self._change_dataset(name, "register", add_dataset, reason, by)

    def label(self, dataset_id: str, *, reason: str, by: str | None = None, **metadata: Any) -> DatasetRecord:
        """Change metadata of a dataset; its status is changed by restrict, block, withdraw and release."""
        name, fields = check_dataset_id(dataset_id), check_fields(metadata)
        if not fields or "status" in fields:
            raise UsageError("label takes one or more fields of the dataset, and not its status")
        return self._change_dataset(
            name, "label", lambda before: self._relabel(before, name, fields), reason, by
        )

    def restrict(
        self, dataset_id: str, *, reason: str, operations: Sequence[str] = (), by: str | None = None
    ) -> DatasetRecord:
        """Permit only some operations on a dataset; none unless given."""
        fields = {"status": RESTRICTED, **check_fields({"operations": list(operations)})}
        return self._set_status(dataset_id, "restrict", fields, reason, by)

    def block(self, dataset_id: str, *, reason: str, by: str | None = None) -> DatasetRecord:
        """Block a dataset: no attempt on it begins any more."""
        return self._set_status(dataset_id, "block", {"status": BLOCKED}, reason, by)

    def withdraw(self, dataset_id: str, *, reason: str, by: str | None = None) -> DatasetRecord:
        """Mark a dataset as withdrawn by its community or owner: no attempt on it begins any more."""
        return self._set_status(dataset_id, "withdraw", {"status": WITHDRAWN}, reason, by)

    def release(self, dataset_id: str, *, reason: str, by: str | None = None) -> DatasetRecord:
        """Open a dataset again; runs that the gate has quarantined stay there until they are decided."""
        return self._set_status(dataset_id, "release", {"status": OPEN}, reason, by)

    def load(
        self, path: str | PathLike[str], *, reason: str, by: str | None = None
    ) -> tuple[DatasetRecord, ...]:
        """Register or change the datasets of a YAML file; return those that were changed.

        The whole file is checked first. A file cannot open a dataset that is restricted, blocked or withdrawn
        in the store, grant rights that the store denies, or lower a masking level.
        """
        entries = read_dataset_file(str(path))
        self._check_file(entries)
        changed = []
        for entry in entries:
            before = self.get(entry.dataset_id)
            after = self._change_dataset(entry.dataset_id, "load", partial(_apply_entry, entry), reason, by)
            if before != after:
                changed.append(after)
        return tuple(changed)

    # ------------------------------------------------------------------------------------------------

    def _check_file(self, entries: Sequence[DatasetEntry]) -> None:
        """Raise `PolicyFileError` if a file would permit more than the store does."""
        faults = FaultList()
        for entry in entries:
            before = self.get(entry.dataset_id)
            if before is None:
                continue
            field, text = find_weakening(before, apply_fields(before, entry.dataset_id, entry.fields))
            if field:
                faults.add_fault(entry.marks.get(field, entry.marks[""]), f"{entry.dataset_id}.{field}", text)
        faults.raise_if_any()

    def _relabel(self, before: DatasetRecord | None, name: str, fields: dict[str, Any]) -> DatasetRecord:
        after = apply_fields(_require_dataset(before, name), name, fields)
        assert before is not None
        field, text = find_lower_masking(before, after)
        if field:
            raise UsageError(f"{field} of dataset {name} {text}")
        return after

    def _set_status(
        self, dataset_id: str, action: str, fields: dict[str, Any], reason: str, by: str | None
    ) -> DatasetRecord:
        name = check_dataset_id(dataset_id)
        return self._change_dataset(
            name,
            action,
            lambda before: apply_fields(_require_dataset(before, name), name, fields),
            reason,
            by,
        )

    def _load_dataset(self, name: str) -> LoadedHead:
        return load_head(self._engine.store, dataset_entity(name), self._engine.cipher, DatasetRecord)

    def _change_dataset(
        self, name: str, action: str, update: Update, reason: str, by: str | None
    ) -> DatasetRecord:
        """Apply a change to a dataset, again after each conflict; return the dataset."""
        engine, text = self._engine, check_reason(reason)
        for _ in range(MAX_TRIES):
            head = self._load_dataset(name)
            before: DatasetRecord | None = head.record
            after = update(before)
            needs_reviewer = action == "release" or is_sensitive(before) or is_sensitive(after)
            decider = authorize_decider(engine, by, needed=REVIEWER if needs_reviewer else OPERATOR)
            # No entry without a change: the history lists only changes.
            if before is not None and describe_dataset(before) == describe_dataset(after):
                return before
            now = engine.now()
            after = after._replace(by=decider.actor, reason=text, changed_at=now)
            details = {"dataset": name, "changes": _compare_datasets(before, after)}
            body = {"decision": decider.make_decision(head, action, text, now, details)}
            change = RecordChange(DATASET_MARKS, before, after, body)
            write = build_write(head.entity, head.version, head.hash, change, now, engine.cipher)
            stored = append_if_not_moved(engine, f"dataset {name}", (write,))
            # The guard of an INTENT would detect the change too, but only after a refused write.
            engine.permissions.drop_cached()
            if isinstance(stored, Stored):
                return after
        raise StaleDecision(
            f"nothing was changed: dataset {name} changed {MAX_TRIES} times during the write; look at it"
        )


def _require_dataset(record: DatasetRecord | None, name: str) -> DatasetRecord:
    if record is None:
        raise UsageError(
            f"dataset {name} is not registered; register it first (oncemore control dataset register)"
        )
    return record


def _apply_entry(entry: DatasetEntry, before: DatasetRecord | None) -> DatasetRecord:
    """Return a dataset as its file has it; a change since the check keeps what is stricter."""
    after = apply_fields(before, entry.dataset_id, entry.fields)
    if before is not None and (weaker := find_weakening(before, after))[0]:
        raise UsageError(f"{weaker[0]} of dataset {entry.dataset_id} {weaker[1]}")
    return after


def _compare_datasets(before: DatasetRecord | None, after: DatasetRecord) -> dict[str, Any]:
    """Return the changed fields, each with its value before and after."""
    old = describe_dataset(before or DatasetRecord())
    new = describe_dataset(after)
    return {name: [old[name], new[name]] for name in new if old[name] != new[name]}
