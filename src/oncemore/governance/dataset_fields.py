"""The fields of a dataset that a person sets, their checks, and the file in which they can be written.

    datasets:
      survey-2026:
        care_label: "Public · Low-Risk"
        sensitivity: General
        status: restricted
        operations: [publish]

One table has the check of each field, for the file and for `engine.datasets`. Only `care_label` is required:
without it, an escalation would not show a reviewer how careful to be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oncemore.errors import UsageError
from oncemore.governance.dataset_model import (
    LEVELS,
    MAX_MASKING_LEVEL,
    RIGHTS,
    STATUSES,
    DatasetRecord,
)
from oncemore.policy.canonical_json import normalize_name
from oncemore.policy.files.faults import FaultList, FilePosition, find_closest_word, format_value
from oncemore.policy.files.file_reader import read_file
from oncemore.policy.files.yaml_reader import ListNode, MappingNode, ScalarNode, parse_yaml

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.policy.files.yaml_reader import MappingEntry

MAX_TEXT_LENGTH, MAX_OPERATIONS = 500, 100
#: The words with which a sensitivity or a classification begins; a misspelt one must not pass as harmless.
SENSITIVITIES = ("General", "Internal", "Confidential", "Sensitive")
CLASSIFICATIONS = ("Public", "Internal", "Confidential", "Restricted", "Sensitive")
_LEVEL_WORDS = ("None", *LEVELS)
#: Required when a dataset is registered.
REQUIRED_FIELDS = ("care_label",)


class DatasetEntry:
    """A dataset in a file: its id, its fields, and their positions for messages."""

    def __init__(self, dataset_id: str, fields: dict[str, Any], marks: dict[str, FilePosition]) -> None:
        self.dataset_id, self.fields, self.marks = dataset_id, fields, marks


def _check_text(value: Any) -> tuple[Any, str]:
    if not isinstance(value, str) or not 1 <= len(value.strip()) <= MAX_TEXT_LENGTH:
        return value, f"takes a text of 1 to {MAX_TEXT_LENGTH} characters"
    return value.strip(), ""


def _check_flag(value: Any) -> tuple[Any, str]:
    return value, "" if type(value) is bool else "takes true or false"


def _make_choice_check(choices: tuple[str, ...]) -> Callable[[Any], tuple[Any, str]]:
    """Return the check of a field with a closed list of words, in any case."""

    def check_choice(value: Any) -> tuple[Any, str]:
        # YAML reads an unquoted None as a text, and null as no value.
        found = {choice.lower(): choice for choice in choices}.get(str(value).strip().lower())
        return found, "" if found is not None else f"takes {', '.join(choices)}"

    return check_choice


def _make_label_check(words: tuple[str, ...]) -> Callable[[Any], tuple[Any, str]]:
    """Return the check of a text that begins with one of some words."""

    def check_label(value: Any) -> tuple[Any, str]:
        text, fault = _check_text(value)
        if not fault and not text.lower().startswith(tuple(word.lower() for word in words)):
            fault = f"takes a text that begins with {', '.join(words)}"
        return text, fault

    return check_label


def _check_operations(value: Any) -> tuple[Any, str]:
    items = [value] if isinstance(value, str) else value
    is_list = isinstance(items, list | tuple) and len(items) <= MAX_OPERATIONS
    if not is_list or any(_check_text(item)[1] for item in items):
        return value, f"takes up to {MAX_OPERATIONS} names of operations or steps"
    return sorted({normalize_name(item.strip()) for item in items}), ""


def _check_masking_level(value: Any) -> tuple[Any, str]:
    is_level = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_MASKING_LEVEL
    return value, "" if is_level else f"takes a whole number from 0 to {MAX_MASKING_LEVEL}"


#: The check of each field: value → the value to store, and the allowed values if it is not one of them.
FIELD_CHECKS: dict[str, Callable[[Any], tuple[Any, str]]] = {
    "care_label": _check_text,
    "sensitivity": _make_label_check(SENSITIVITIES),
    "sensitivity_level": _make_choice_check(_LEVEL_WORDS),
    "public_exposure_risk": _make_choice_check(_LEVEL_WORDS),
    "classification": _make_label_check(CLASSIFICATIONS),
    "jurisdiction": _check_text,
    "indigenous_rights_flag": _check_flag,
    "redaction_required": _check_flag,
    "fair_category": _check_text,
    "risk_category": _check_text,
    "data_steward": _check_text,
    "governance_ref": _check_text,
    "ethics_ref": _check_text,
    "sovereignty_policy": _check_text,
    "licence": _check_text,
    "rights": _make_choice_check(RIGHTS),
    "status": _make_choice_check(STATUSES),
    "operations": _check_operations,
    "masking_level": _check_masking_level,
}


def check_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataset as they are stored; raise `UsageError` for a wrong one."""
    checked = {}
    for name, value in fields.items():
        if name not in FIELD_CHECKS:
            raise UsageError(f"a dataset has no field {name!r}{_suggest_field(name)}")
        checked[name], fault = FIELD_CHECKS[name](value)
        if fault:
            raise UsageError(f"{name} is {format_value(value)}; it {fault}")
    return checked


def check_dataset_id(dataset_id: Any) -> str:
    """Return the id of a dataset; raise `UsageError` if it is not a text of 1 to 200 characters."""
    if not isinstance(dataset_id, str) or not 1 <= len(dataset_id.strip()) <= 200:
        raise UsageError(
            f"the id of the dataset is {dataset_id!r:.80}; it takes a text of 1 to 200 characters"
        )
    return normalize_name(dataset_id)


def apply_fields(before: DatasetRecord | None, dataset_id: str, fields: dict[str, Any]) -> DatasetRecord:
    """Return a dataset with checked fields changed."""
    changes = dict(fields)
    if "status" in changes:
        changes["state"] = changes.pop("status")
    return (before or DatasetRecord(dataset_id=dataset_id))._replace(**changes)


def find_weakening(before: DatasetRecord, after: DatasetRecord) -> tuple[str, str]:
    """Return the field by which a file would permit more than the store does, and a text; empty if none.

    A file that was written before a dataset was blocked must not release it when it is loaded again.
    """
    if STATUSES.index(after.state) < STATUSES.index(before.state):
        return (
            "status",
            f"is {before.state.lower()} in the store; only oncemore control dataset release opens it",
        )
    if RIGHTS.index(after.rights) < RIGHTS.index(before.rights):
        return "rights", f"are {before.rights} in the store; only oncemore control dataset label changes that"
    return find_lower_masking(before, after)


def find_lower_masking(before: DatasetRecord, after: DatasetRecord) -> tuple[str, str]:
    """Return the field that would lower the masking of a dataset, and a text; empty if none (GOV-4)."""
    if after.masking_level < before.masking_level:
        text = f"is {before.masking_level} in the store; a level may stay or rise, and not fall"
        return "masking_level", text
    return "", ""


# The file -------------------------------------------------------------------------------------------


def read_dataset_file(path: str) -> list[DatasetEntry]:
    """Return the datasets of a file; raise `PolicyFileError` with the line of every fault."""
    tree = parse_yaml(read_file(path)[0], path)
    faults = FaultList()
    for name, entry in tree.entries.items():
        if name != "datasets":
            faults.add_fault(entry.mark, name, "is unknown; the file has one field: datasets")
    listed = tree.entries.get("datasets")
    if listed is None or not isinstance(listed.node, MappingNode) or not listed.node.entries:
        faults.add_fault(tree.mark if listed is None else listed.mark, "datasets", "has no datasets by id")
        entries: dict[str, MappingEntry] = {}
    else:
        entries = listed.node.entries
    datasets = [_read_dataset(dataset_id, entry, faults) for dataset_id, entry in entries.items()]
    faults.raise_if_any()
    return datasets


def _read_dataset(dataset_id: str, entry: MappingEntry, faults: FaultList) -> DatasetEntry:
    """Return one dataset of a file; add a fault for every wrong field."""
    fields: dict[str, Any] = {}
    marks = {"": entry.mark}
    try:
        dataset_id = check_dataset_id(dataset_id)
    except UsageError as error:
        faults.add_fault(entry.mark, "", str(error))
    found = entry.node.entries if isinstance(entry.node, MappingNode) else {}
    for name, field in found.items():
        marks[name] = field.mark
        if name not in FIELD_CHECKS:
            faults.add_fault(field.mark, f"{dataset_id}.{name}", f"is unknown{_suggest_field(name)}")
            continue
        value = _plain_value(field.node)
        fields[name], fault = FIELD_CHECKS[name](value)
        if fault:
            faults.add_fault(field.mark, f"{dataset_id}.{name}", f"is {format_value(value)}; it {fault}")
    for name in REQUIRED_FIELDS:
        if name not in found:
            faults.add_fault(entry.mark, f"{dataset_id}.{name}", "is missing")
    return DatasetEntry(dataset_id, fields, marks)


def _plain_value(node: ScalarNode | ListNode | MappingNode) -> Any:
    """Return the value of a node; None for a mapping, which no field takes."""
    if isinstance(node, ScalarNode):
        return node.value
    return [_plain_value(item) for item in node.items] if isinstance(node, ListNode) else None


def _suggest_field(name: str) -> str:
    closest = find_closest_word(name, FIELD_CHECKS)
    return f"; did you mean {closest}?" if closest else f"; the fields are {', '.join(FIELD_CHECKS)}"
