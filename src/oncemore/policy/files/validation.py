"""Holds a file against the table of fields: names first, values later.

`canonical` gives every field its one name, whatever spelling the file used, and notes what is unknown,
misplaced or given twice. `value_of` and `values_of` read the values, when it is known which ones hold
(`inherit`). A check never stops at the first fault.
"""

from __future__ import annotations

import math
import re

from oncemore.policy.files.faults import Faults, Mark, nearest, shown
from oncemore.policy.files.fields import LONGEST_TEXT, MOST_ITEMS, RETRY, Row, allowed
from oncemore.policy.files.sections import FIELDS
from oncemore.policy.files.yaml_reader import Entry, Fields, Items, Scalar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final

    Node = Scalar | Items | Fields

#: What a wrong value is read as, so that the check can go on.
WRONG: Final = object()

_BY_NAME: Final = {spelling: row for row in RETRY for spelling in (row.name, *row.aliases)}


# Names.


def canonical(tree: Fields, rows: tuple[Row, ...], faults: Faults, path: str = "") -> Fields:
    """Return the fields under their own names, each knowing how and where it was written."""
    known = {spelling: row for row in rows for spelling in row.spellings}
    found: dict[str, Entry] = {}
    for key, entry in tree.entries.items():
        row, written = known.get(key), f"{path}{key}"
        if row is None:
            faults.add(entry.mark, written, _unknown(key, known))
        elif row.name in found:
            _twice(found[row.name], entry._replace(written=written), faults)
        else:
            shift = 1 if key == row.retries else 0
            node = _inside(entry.node, row, faults, f"{written}.")
            found[row.name] = Entry(written, entry.mark, node, shift)
    return Fields(found, tree.mark)


def _inside(node: Node, row: Row, faults: Faults, path: str) -> Node:
    """Give the names inside a section or a map their one form."""
    if not isinstance(node, Fields):
        return node
    match row.kind:
        case "section":
            return canonical(node, row.rows, faults, path)
        case "map":
            entries = {
                name: entry._replace(
                    written=f"{path}{name}",
                    node=canonical(entry.node, row.rows, faults, f"{path}{name}.")
                    if isinstance(entry.node, Fields)
                    else entry.node,
                )
                for name, entry in node.entries.items()
            }
            return Fields(entries, node.mark)
        case "ranges" | "floors":
            return _by_field(node, faults, path, ranges=row.kind == "ranges")
        case _:
            return node


def _by_field(node: Fields, faults: Faults, path: str, *, ranges: bool) -> Fields:
    """Name the fields that a bound is for: numbers, and in bounds the kind of jitter."""
    found: dict[str, Entry] = {}
    for key, entry in node.entries.items():
        row, written = _BY_NAME.get(key), f"{path}{key}"
        if row is None or not (row.kind in ("count", "number") or (ranges and row.name == "jitter")):
            numbers = [name for name, known in _BY_NAME.items() if known.kind in ("count", "number")]
            faults.add(entry.mark, written, _unknown(key, numbers))
        elif row.name in found:
            _twice(found[row.name], entry._replace(written=written), faults)
        else:
            found[row.name] = entry._replace(written=written)
    return Fields(found, node.mark)


def _twice(first: Entry, second: Entry, faults: Faults) -> None:
    text = (
        f"is the same field as {first.written}; it is given in line {first.mark.line} "
        f"and in line {second.mark.line}"
    )
    faults.add(second.mark, second.written, text)


def _unknown(key: str, known: Iterable[str]) -> str:
    """Say what a key that is not a field may have meant."""
    meant = nearest(key, known)
    if meant is not None:
        return f"is not a field; did you mean {meant}?"
    home = _HOMES.get(key)
    if home is not None:
        return f"is not a field here; it belongs {home}"
    return f"is not a field; known here are {', '.join(sorted(known))}"


def _homes(rows: tuple[Row, ...], inside: str) -> dict[str, str]:
    """Where each field lives, for those who put it one floor too high or too low."""
    found: dict[str, str] = {}
    for row in rows:
        if row.kind == "section":
            found = _homes(row.rows, f"into {row.name}") | found
    return found | {spelling: inside for row in rows for spelling in row.spellings}


_HOMES: Final = _homes(FIELDS, "to the top of the file")


def check_effect(tree: Fields, rows: tuple[Row, ...], lineage: tuple[str, ...], faults: Faults) -> None:
    """Refuse what would have no effect in a user's own file; `lineage` are the profiles that it extends."""
    table = {row.name: row for row in rows}
    for name, entry in tree.entries.items():
        row, node = table[name], entry.node
        if row.profile and row.profile not in lineage:
            text = f"is read by the front of {row.profile} only; extend {row.profile}, or remove it"
            faults.add(entry.mark, entry.written, text)
        elif row.inert_choices:
            for item in node.items if isinstance(node, Items) else ():
                if isinstance(item, Scalar) and item.value in row.inert_choices:
                    text = f"holds {item.value}, which has no effect: {row.inert}; remove {item.value}"
                    faults.add(item.mark, entry.written, text)
        elif row.inert:
            faults.add(entry.mark, entry.written, f"has no effect in a file of yours: {row.inert}; remove it")
        elif row.kind == "section" and isinstance(node, Fields):
            check_effect(node, row.rows, lineage, faults)


# Values.


def values_of(tree: Fields, rows: tuple[Row, ...], faults: Faults) -> dict[str, Any]:
    """Return the values of all fields that are given; a wrong one is noted and left out."""
    table = {row.name: row for row in rows}
    read = {name: value_of(table[name], entry, faults) for name, entry in tree.entries.items()}
    return {name: value for name, value in read.items() if value is not WRONG}


def value_of(row: Row, entry: Entry, faults: Faults) -> Any:
    """Return the value of one field, or `WRONG` after noting what is allowed."""
    node = entry.node
    if row.nullable and isinstance(node, Scalar) and node.value is None:
        return None
    return _READERS[row.kind](row, entry, faults)


def _wrong(row: Row, entry: Entry, faults: Faults, mark: Mark | None = None, hint: str = "") -> Any:
    """Note that a value is not what the field takes; the range is told in the file's own counting."""
    node = entry.node
    kinds = {Items: "a list", Fields: "a group of fields"}
    value = shown(node.value) if isinstance(node, Scalar) else kinds[type(node)]
    told = row._replace(low=row.low - entry.shift, high=row.high - entry.shift)
    text = f"is {value}; it must be {allowed(told)}{hint}"
    faults.add(mark or node.mark, entry.written, text)
    return WRONG


def _text(row: Row, entry: Entry, faults: Faults) -> Any:
    node = entry.node
    if not isinstance(node, Scalar):
        return _wrong(row, entry, faults)
    value = node.value
    if node.dated or isinstance(value, (int, float)):
        return _wrong(row, entry, faults, hint="; put it in quotes")
    if not isinstance(value, str) or (row.choices and value not in row.choices):
        meant = nearest(value, row.choices) if isinstance(value, str) else None
        return _wrong(row, entry, faults, hint=f"; did you mean {meant}?" if meant else "")
    if not value or len(value) > LONGEST_TEXT:
        return _wrong(row, entry, faults, hint=f" of 1 to {LONGEST_TEXT} characters")
    if row.pattern and not re.fullmatch(row.pattern, value):
        return _wrong(row, entry, faults, hint=f" of the form {row.pattern}")
    return value


def _date(row: Row, entry: Entry, faults: Faults) -> Any:
    from datetime import date  # only files with a date pay for it

    node = entry.node
    try:
        return date.fromisoformat(node.value).isoformat()  # type: ignore[union-attr, arg-type]
    except (TypeError, ValueError, AttributeError):
        return _wrong(row, entry, faults)


def _number(row: Row, entry: Entry, faults: Faults) -> Any:
    node = entry.node
    value = node.value if isinstance(node, Scalar) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return _wrong(row, entry, faults)
    value += entry.shift
    if not row.low <= value <= row.high or (row.above and value == row.low):
        return _wrong(row, entry, faults)
    if row.kind == "count":
        return value if isinstance(value, int) else _wrong(row, entry, faults)
    return float(value)


def _flag(row: Row, entry: Entry, faults: Faults) -> Any:
    value = entry.node.value if isinstance(entry.node, Scalar) else None
    if not isinstance(value, bool) or (row.kind == "yes" and not value) or (row.kind == "no" and value):
        return _wrong(row, entry, faults)
    return value


def _list(row: Row, entry: Entry, faults: Faults) -> Any:
    """Read each item as a value of its own, so that a fault names its place."""
    node = entry.node
    if not isinstance(node, Items):
        return _wrong(row, entry, faults)
    if len(node.items) > MOST_ITEMS or (row.kind == "numbers" and not node.items):
        return _wrong(row, entry, faults, hint=f" with 1 to {MOST_ITEMS} items")
    each = row._replace(kind=row.kind.removesuffix("s"))
    read = [
        value_of(each, Entry(f"{entry.written}[{at}]", item.mark, item), faults)
        for at, item in enumerate(node.items, 1)
    ]
    if row.whole and WRONG not in read and {*read} != {*row.choices}:
        return _wrong(row, entry, faults)
    return WRONG if WRONG in read else tuple(read)


def _section(row: Row, entry: Entry, faults: Faults) -> Any:
    if not isinstance(entry.node, Fields):
        return _wrong(row, entry, faults)
    return values_of(entry.node, row.rows, faults)


def _map(row: Row, entry: Entry, faults: Faults) -> Any:
    node = entry.node
    if not isinstance(node, Fields):
        return _wrong(row, entry, faults)
    read = {name: _READERS[_EACH[row.kind]](row, inner, faults) for name, inner in node.entries.items()}
    return {name: value for name, value in read.items() if value is not WRONG}


def _range(row: Row, entry: Entry, faults: Faults) -> Any:
    """Read a low and a high; of jitter, the kinds that are allowed."""
    node = entry.node
    if entry.written.rpartition(".")[2] == "jitter":
        return _list(_BY_NAME["jitter"]._replace(kind="texts"), entry, faults)
    both = node.items if isinstance(node, Items) else ()
    read = [_number(_ANY_NUMBER, Entry(entry.written, item.mark, item), faults) for item in both]
    if len(read) != 2 or WRONG in read or read[0] > read[1]:
        faults.add(node.mark, entry.written, "must be a list of two numbers, low and high")
        return WRONG
    return tuple(read)


def _floor(row: Row, entry: Entry, faults: Faults) -> Any:
    return _number(_ANY_NUMBER, entry, faults)


_ANY_NUMBER: Final = Row("", "number", "")
_EACH: Final = {"map": "section", "ranges": "range", "floors": "floor"}
_READERS: Final[dict[str, Callable[[Row, Entry, Faults], Any]]] = {
    "text": _text,
    "date": _date,
    "count": _number,
    "number": _number,
    "flag": _flag,
    "yes": _flag,
    "no": _flag,
    "texts": _list,
    "numbers": _list,
    "section": _section,
    "map": _map,
    "ranges": _map,
    "floors": _map,
    "range": _range,
    "floor": _floor,
}
