"""What is made from the table of fields for others: the JSON Schema, and the tables of the reference page.

The schema (draft 2020-12) says what editors and other tools can check before oncemore does: names,
kinds, ranges. Fields that contradict each other, bounds and inheritance are left to the loader.
"""

from __future__ import annotations

from itertools import combinations

from oncemore.policy.files.fields import (
    CLASSIFY,
    COOLDOWN,
    ENVELOPE,
    LONGEST_TEXT,
    MOST_ITEMS,
    NAME,
    POLICIES,
    RETRY,
    Row,
    allowed,
)
from oncemore.policy.files.sections import FIELDS, SECTIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Final

#: Groups of fields that stand in several places, and are written once.
_SHARED: Final = {RETRY: "retry_policy", CLASSIFY: "classify", COOLDOWN: "cooldown"}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of policy files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:oncemore:policy-file:1",
        "title": "oncemore policy file",
        **_object(FIELDS),
        "$defs": {name: _object(rows) for rows, name in _SHARED.items()},
    }


def _object(rows: tuple[Row, ...]) -> dict[str, Any]:
    """Return the schema of a group of fields, under all their spellings, of which one may be used."""
    properties = {spelling: _spelt(row, spelling) for row in rows for spelling in row.spellings}
    twice = [{"required": list(pair)} for row in rows for pair in combinations(row.spellings, 2)]
    found: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"not": {"anyOf": twice}} if twice else {})


def _spelt(row: Row, spelling: str) -> dict[str, Any]:
    """Return the schema of a field under one of its names."""
    if spelling == row.retries:
        less = row._replace(low=row.low - 1, high=row.high - 1)
        return _described(less, f"{row.meaning}, without the first: {row.name} less 1")
    return _described(row, row.meaning if spelling == row.name else f"{row.name}: {row.meaning}")


def _described(row: Row, meaning: str) -> dict[str, Any]:
    kind = _KINDS[row.kind](row)
    if row.nullable:
        kind = {"anyOf": [kind, {"type": "null"}]}
    return {"description": meaning, **kind}


def _text(row: Row) -> dict[str, Any]:
    if row.choices:
        return {"enum": list(row.choices)}
    found: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": LONGEST_TEXT}
    return found | ({"pattern": f"^(?:{row.pattern})$"} if row.pattern else {})


def _number(row: Row) -> dict[str, Any]:
    low = "exclusiveMinimum" if row.above else "minimum"
    return {"type": "integer" if row.kind == "count" else "number", low: row.low, "maximum": row.high}


def _list(row: Row) -> dict[str, Any]:
    each = row._replace(kind=row.kind.removesuffix("s"))
    least = {"minItems": len(row.choices) if row.whole else 1} if row.whole or row.kind == "numbers" else {}
    return {"type": "array", "items": _KINDS[each.kind](each), **least, "maxItems": MOST_ITEMS}


def _group(row: Row) -> dict[str, Any]:
    name = _SHARED.get(row.rows)
    return {"$ref": f"#/$defs/{name}"} if name else _object(row.rows)


def _named(each: dict[str, Any]) -> dict[str, Any]:
    names = {"pattern": f"^(?:{NAME})$"}
    return {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": each,
        "maxProperties": MOST_ITEMS,
    }


def _by_field(each: dict[str, Any]) -> dict[str, Any]:
    names = [name for row in RETRY if row.kind in ("count", "number") for name in (row.name, *row.aliases)]
    return {"type": "object", "properties": dict.fromkeys(names, each), "additionalProperties": False}


def _ranges() -> dict[str, Any]:
    made = _by_field({"type": "array", "items": _A_NUMBER, "minItems": 2, "maxItems": 2})
    jitter = next(row for row in RETRY if row.name == "jitter")
    made["properties"]["jitter"] = _list(jitter._replace(kind="texts"))
    return made


_A_NUMBER: Final = _number(Row("", "number", ""))
_KINDS: Final[dict[str, Callable[[Row], dict[str, Any]]]] = {
    "text": _text,
    "date": lambda row: {"type": "string", "format": "date"},
    "count": _number,
    "number": _number,
    "flag": lambda row: {"type": "boolean"},
    "yes": lambda row: {"const": True},
    "no": lambda row: {"const": False},
    "texts": _list,
    "numbers": _list,
    "section": _group,
    "map": lambda row: _named(_group(row)),
    "ranges": lambda row: _ranges(),
    "floors": lambda row: _by_field(_A_NUMBER),
}


# The reference page.


def reference() -> str:
    """Return the tables of the reference page, in Markdown."""
    parts = (
        ("The file", ENVELOPE, "Only a policy is required, and in a governed file `version`."),
        ("Policies", POLICIES, ""),
        ("A policy", RETRY, "In `retry_policy`, in each of `policies`, and in those of `providers`."),
        ("Sections for steps, workers and fronts", SECTIONS, _EFFECT),
    )
    return "\n".join(line for title, rows, text in parts for line in _part(title, rows, text))


_EFFECT: Final = (
    "Every field has an effect, or states what always holds and takes no other value. What is marked "
    "*packaged only* has no effect in this version; a file of yours that holds it is refused, and one that "
    "extends a packaged profile inherits it as a statement."
)


def _part(title: str, rows: tuple[Row, ...], text: str) -> Iterator[str]:
    yield from (f"### {title}", "")
    yield from (text, "") if text else ()
    yield from ("| field | also written | takes | means |", "| --- | --- | --- | --- |")
    yield from _lines(rows, "")
    yield ""


def _where(row: Row) -> str:
    """Say which files may hold a field, where not all may."""
    if row.inert:
        only = f" ({', '.join(row.inert_choices)})" if row.inert_choices else ""
        return f"; *packaged only{only}: {row.inert}*"
    return f"; *only in files that extend `{row.profile}`*" if row.profile else ""


def _lines(rows: tuple[Row, ...], path: str) -> Iterator[str]:
    for row in rows:
        also = ", ".join(f"`{alias}`" for alias in row.aliases)
        if row.retries:
            also += f", `{row.retries}` (calls less 1)"
        shared = _SHARED.get(row.rows)
        deeper = f"{path}{row.name}." + ("*." if row.kind == "map" else "")
        each = "names, each with " if row.kind == "map" else ""
        takes = f"{each}the fields of a `{shared}`" if shared and shared != row.name else allowed(row)
        yield f"| `{path}{row.name}` | {also} | {takes} | {row.meaning.replace('<', '&lt;')}{_where(row)} |"
        if row.rows and row.rows is not RETRY and not (path and shared):
            yield from _lines(row.rows, deeper)
