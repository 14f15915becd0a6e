"""Checks a file against the field table: names first, values later.

`normalize_names` gives every field its canonical name and reports unknown, misplaced and duplicate
fields. `read_value` and `read_values` read the values after inheritance is resolved. No check stops at
the first fault.
"""

from __future__ import annotations

import math
import re

from oncemore.policy.files.faults import FaultList, FilePosition, find_closest_word, format_value
from oncemore.policy.files.fields import MAX_ITEMS, MAX_TEXT_LENGTH, RETRY_FIELDS, FieldSpec, describe_allowed
from oncemore.policy.files.sections import FILE_FIELDS
from oncemore.policy.files.yaml_reader import ListNode, MappingEntry, MappingNode, ScalarNode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final

    Node = ScalarNode | ListNode | MappingNode

#: Stands for a wrong value, so that the remaining values are still checked.
INVALID: Final = object()

_RETRY_BY_NAME: Final = {spelling: row for row in RETRY_FIELDS for spelling in (row.name, *row.aliases)}


# Names.


def normalize_names(
    tree: MappingNode, rows: tuple[FieldSpec, ...], faults: FaultList, path: str = ""
) -> MappingNode:
    """Return the fields under their canonical names; each entry keeps its spelling and position."""
    specs = {spelling: row for row in rows for spelling in row.spellings}
    entries: dict[str, MappingEntry] = {}
    for key, entry in tree.entries.items():
        row, written = specs.get(key), f"{path}{key}"
        if row is None:
            faults.add_fault(entry.mark, written, _describe_unknown(key, specs))
        elif row.name in entries:
            _add_duplicate_fault(entries[row.name], entry._replace(written_path=written), faults)
        else:
            shift = 1 if key == row.retries else 0
            node = _normalize_nested(entry.node, row, faults, f"{written}.")
            entries[row.name] = MappingEntry(written, entry.mark, node, shift)
    return MappingNode(entries, tree.mark)


def _normalize_nested(node: Node, row: FieldSpec, faults: FaultList, path: str) -> Node:
    """Return a section or map with canonical names inside."""
    if not isinstance(node, MappingNode):
        return node
    match row.kind:
        case "section":
            return normalize_names(node, row.rows, faults, path)
        case "map":
            entries = {
                name: entry._replace(
                    written_path=f"{path}{name}",
                    node=normalize_names(entry.node, row.rows, faults, f"{path}{name}.")
                    if isinstance(entry.node, MappingNode)
                    else entry.node,
                )
                for name, entry in node.entries.items()
            }
            return MappingNode(entries, node.mark)
        case "ranges" | "floors":
            return _normalize_bounds(node, faults, path, ranges=row.kind == "ranges")
        case _:
            return node


def _normalize_bounds(node: MappingNode, faults: FaultList, path: str, *, ranges: bool) -> MappingNode:
    """Return the fields of `bounds` or `minimums`: number fields, and in bounds the kind of jitter."""
    entries: dict[str, MappingEntry] = {}
    for key, entry in node.entries.items():
        row, written = _RETRY_BY_NAME.get(key), f"{path}{key}"
        if row is None or not (row.kind in ("count", "number") or (ranges and row.name == "jitter")):
            numbers = [name for name, spec in _RETRY_BY_NAME.items() if spec.kind in ("count", "number")]
            faults.add_fault(entry.mark, written, _describe_unknown(key, numbers))
        elif row.name in entries:
            _add_duplicate_fault(entries[row.name], entry._replace(written_path=written), faults)
        else:
            entries[row.name] = entry._replace(written_path=written)
    return MappingNode(entries, node.mark)


def _add_duplicate_fault(first: MappingEntry, second: MappingEntry, faults: FaultList) -> None:
    text = (
        f"is the same field as {first.written_path}; it is given in line {first.mark.line} "
        f"and in line {second.mark.line}"
    )
    faults.add_fault(second.mark, second.written_path, text)


def _describe_unknown(key: str, known: Iterable[str]) -> str:
    """Return the message for an unknown key, with the field that was probably meant."""
    # A misspelt name of this group is more likely than a field of another group.
    suggestion = find_closest_word(key, known)
    if suggestion is not None:
        return f"is not a field; did you mean {suggestion}?"
    location = _LOCATIONS.get(key)
    if location is not None:
        return f"is not a field here; it belongs {location}"
    return f"is not a field; known here are {', '.join(sorted(known))}"


def _map_locations(rows: tuple[FieldSpec, ...], inside: str) -> dict[str, str]:
    """Return the location of each field, for messages about a field in the wrong group."""
    locations: dict[str, str] = {}
    for row in rows:
        if row.kind == "section":
            locations = _map_locations(row.rows, f"into {row.name}") | locations
    # The outermost location wins over the same name in a section.
    return locations | {spelling: inside for row in rows for spelling in row.spellings}


_LOCATIONS: Final = _map_locations(FILE_FIELDS, "to the top of the file")


def check_effect(
    tree: MappingNode, rows: tuple[FieldSpec, ...], lineage: tuple[str, ...], faults: FaultList
) -> None:
    """Add a fault for each field without effect in a user's file; `lineage` are its extended profiles."""
    table = {row.name: row for row in rows}
    for name, entry in tree.entries.items():
        row, node = table[name], entry.node
        if row.profile and row.profile not in lineage:
            text = f"is read only by the facade of {row.profile}; extend {row.profile}, or remove it"
            faults.add_fault(entry.mark, entry.written_path, text)
        elif row.inert:
            faults.add_fault(
                entry.mark, entry.written_path, f"has no effect in your own file: {row.inert}; remove it"
            )
        elif row.kind == "section" and isinstance(node, MappingNode):
            check_effect(node, row.rows, lineage, faults)


# Values.


def read_values(tree: MappingNode, rows: tuple[FieldSpec, ...], faults: FaultList) -> dict[str, Any]:
    """Return the values of all given fields; a wrong value is reported and left out."""
    table = {row.name: row for row in rows}
    read = {name: read_value(table[name], entry, faults) for name, entry in tree.entries.items()}
    return {name: value for name, value in read.items() if value is not INVALID}


def read_value(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    """Return the value of one field, or `INVALID` after adding a fault with the allowed values."""
    node = entry.node
    if row.nullable and isinstance(node, ScalarNode) and node.value is None:
        return None
    return _READERS[row.kind](row, entry, faults)


def _add_value_fault(
    row: FieldSpec, entry: MappingEntry, faults: FaultList, mark: FilePosition | None = None, hint: str = ""
) -> Any:
    """Add a fault for a wrong value; the range is shown in the counting of the file."""
    node = entry.node
    kinds = {ListNode: "a list", MappingNode: "a group of fields"}
    value = format_value(node.value) if isinstance(node, ScalarNode) else kinds[type(node)]
    # `max_retries` shows a range that is one lower than that of `max_attempts`.
    shown = row._replace(low=row.low - entry.shift, high=row.high - entry.shift)
    text = f"is {value}; it must be {describe_allowed(shown)}{hint}"
    faults.add_fault(mark or node.mark, entry.written_path, text)
    return INVALID


def _read_text(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    node = entry.node
    if not isinstance(node, ScalarNode):
        return _add_value_fault(row, entry, faults)
    value = node.value
    # YAML reads an unquoted 2026-01-31 or 1.0 as another type; the author probably meant a text.
    if node.looks_like_date or isinstance(value, (int, float)):
        return _add_value_fault(row, entry, faults, hint="; put it in quotes")
    if not isinstance(value, str) or (row.choices and value not in row.choices):
        suggestion = find_closest_word(value, row.choices) if isinstance(value, str) else None
        return _add_value_fault(
            row, entry, faults, hint=f"; did you mean {suggestion}?" if suggestion else ""
        )
    if not value or len(value) > MAX_TEXT_LENGTH:
        return _add_value_fault(row, entry, faults, hint=f" of 1 to {MAX_TEXT_LENGTH} characters")
    if row.pattern and not re.fullmatch(row.pattern, value):
        return _add_value_fault(row, entry, faults, hint=f" of the form {row.pattern}")
    return value


def _read_date(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    # Imported here: only files with a date need it.
    from datetime import date

    node = entry.node
    try:
        return date.fromisoformat(node.value).isoformat()  # type: ignore[union-attr, arg-type]
    except (TypeError, ValueError, AttributeError):
        return _add_value_fault(row, entry, faults)


def _read_number(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    node = entry.node
    value = node.value if isinstance(node, ScalarNode) else None
    # `bool` is a subclass of `int`; .inf and .nan are YAML numbers.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return _add_value_fault(row, entry, faults)
    value += entry.shift
    if not row.low <= value <= row.high or (row.above and value == row.low):
        return _add_value_fault(row, entry, faults)
    if row.kind == "count":
        return value if isinstance(value, int) else _add_value_fault(row, entry, faults)
    return float(value)


def _read_flag(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    value = entry.node.value if isinstance(entry.node, ScalarNode) else None
    if not isinstance(value, bool) or (row.kind == "yes" and not value) or (row.kind == "no" and value):
        return _add_value_fault(row, entry, faults)
    return value


def _read_list(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    """Return a list; each item is checked by itself, so that a fault has its own position."""
    node = entry.node
    if not isinstance(node, ListNode):
        return _add_value_fault(row, entry, faults)
    if len(node.items) > MAX_ITEMS or (row.kind == "numbers" and not node.items):
        return _add_value_fault(row, entry, faults, hint=f" with 1 to {MAX_ITEMS} items")
    item_spec = row._replace(kind=row.kind.removesuffix("s"))
    values = [
        read_value(item_spec, MappingEntry(f"{entry.written_path}[{number}]", item.mark, item), faults)
        for number, item in enumerate(node.items, 1)
    ]
    if row.whole and INVALID not in values and {*values} != {*row.choices}:
        return _add_value_fault(row, entry, faults)
    return INVALID if INVALID in values else tuple(values)


def _read_section(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    if not isinstance(entry.node, MappingNode):
        return _add_value_fault(row, entry, faults)
    return read_values(entry.node, row.rows, faults)


def _read_map(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    node = entry.node
    if not isinstance(node, MappingNode):
        return _add_value_fault(row, entry, faults)
    values = {
        name: _READERS[_ITEM_KINDS[row.kind]](row, inner, faults) for name, inner in node.entries.items()
    }
    return {name: value for name, value in values.items() if value is not INVALID}


def _read_range(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    """Return a pair of low and high; for jitter, the allowed kinds."""
    node = entry.node
    if entry.written_path.rpartition(".")[2] == "jitter":
        return _read_list(_RETRY_BY_NAME["jitter"]._replace(kind="texts"), entry, faults)
    items = node.items if isinstance(node, ListNode) else ()
    values = [
        _read_number(_ANY_NUMBER, MappingEntry(entry.written_path, item.mark, item), faults) for item in items
    ]
    if len(values) != 2 or INVALID in values or values[0] > values[1]:
        faults.add_fault(node.mark, entry.written_path, "must be a list of two numbers, low and high")
        return INVALID
    return tuple(values)


def _read_minimum(row: FieldSpec, entry: MappingEntry, faults: FaultList) -> Any:
    return _read_number(_ANY_NUMBER, entry, faults)


_ANY_NUMBER: Final = FieldSpec("", "number", "")
_ITEM_KINDS: Final = {"map": "section", "ranges": "range", "floors": "floor"}
_READERS: Final[dict[str, Callable[[FieldSpec, MappingEntry, FaultList], Any]]] = {
    "text": _read_text,
    "date": _read_date,
    "count": _read_number,
    "number": _read_number,
    "flag": _read_flag,
    "yes": _read_flag,
    "no": _read_flag,
    "texts": _read_list,
    "numbers": _read_list,
    "section": _read_section,
    "map": _read_map,
    "ranges": _read_map,
    "floors": _read_map,
    "range": _read_range,
    "floor": _read_minimum,
}
