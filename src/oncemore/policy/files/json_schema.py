"""Generates the JSON Schema of policy files and the tables of the reference page from the field table.

The schema (draft 2020-12) covers the checks that editors and other tools can do: names, kinds and ranges.
Contradicting fields, bounds and inheritance are checked by the loader only.
"""

from __future__ import annotations

from itertools import combinations

from oncemore.policy.files.fields import (
    CLASSIFY_FIELDS,
    COOLDOWN_FIELDS,
    ENVELOPE_FIELDS,
    MAX_ITEMS,
    MAX_TEXT_LENGTH,
    NAME_PATTERN,
    POLICY_FIELDS,
    RETRY_FIELDS,
    FieldSpec,
    describe_allowed,
)
from oncemore.policy.files.sections import FILE_FIELDS, SECTION_FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Final

#: Groups of fields that occur in several places; the schema defines each once in `$defs`.
_SHARED_GROUPS: Final = {
    RETRY_FIELDS: "retry_policy",
    CLASSIFY_FIELDS: "classify",
    COOLDOWN_FIELDS: "cooldown",
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of policy files."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:oncemore:policy-file:1",
        "title": "oncemore policy file",
        **_object_schema(FILE_FIELDS),
        "$defs": {name: _object_schema(rows) for rows, name in _SHARED_GROUPS.items()},
    }


def _object_schema(rows: tuple[FieldSpec, ...]) -> dict[str, Any]:
    """Return the schema of a group of fields with all spellings, of which a file may use one."""
    properties = {spelling: _spelling_schema(row, spelling) for row in rows for spelling in row.spellings}
    # A field may be given under one spelling only: every pair of spellings together is refused.
    twice = [{"required": list(pair)} for row in rows for pair in combinations(row.spellings, 2)]
    result: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return result | ({"not": {"anyOf": twice}} if twice else {})


def _spelling_schema(row: FieldSpec, spelling: str) -> dict[str, Any]:
    """Return the schema of a field under one of its spellings."""
    # `max_retries` counts one less than `max_attempts`, so its limits are one lower as well.
    if spelling == row.retries:
        shifted = row._replace(low=row.low - 1, high=row.high - 1)
        return _field_schema(shifted, f"{row.meaning}, without the first: {row.name} less 1")
    return _field_schema(row, row.meaning if spelling == row.name else f"{row.name}: {row.meaning}")


def _field_schema(row: FieldSpec, meaning: str) -> dict[str, Any]:
    kind = _KIND_SCHEMAS[row.kind](row)
    if row.nullable:
        kind = {"anyOf": [kind, {"type": "null"}]}
    return {"description": meaning, **kind}


def _text_schema(row: FieldSpec) -> dict[str, Any]:
    if row.choices:
        return {"enum": list(row.choices)}
    result: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT_LENGTH}
    return result | ({"pattern": f"^(?:{row.pattern})$"} if row.pattern else {})


def _number_schema(row: FieldSpec) -> dict[str, Any]:
    low = "exclusiveMinimum" if row.above else "minimum"
    return {"type": "integer" if row.kind == "count" else "number", low: row.low, "maximum": row.high}


def _list_schema(row: FieldSpec) -> dict[str, Any]:
    item = row._replace(kind=row.kind.removesuffix("s"))
    min_items = (
        {"minItems": len(row.choices) if row.whole else 1} if row.whole or row.kind == "numbers" else {}
    )
    return {"type": "array", "items": _KIND_SCHEMAS[item.kind](item), **min_items, "maxItems": MAX_ITEMS}


def _group_schema(row: FieldSpec) -> dict[str, Any]:
    name = _SHARED_GROUPS.get(row.rows)
    return {"$ref": f"#/$defs/{name}"} if name else _object_schema(row.rows)


def _named_schema(value: dict[str, Any]) -> dict[str, Any]:
    names = {"pattern": f"^(?:{NAME_PATTERN})$"}
    return {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": value,
        "maxProperties": MAX_ITEMS,
    }


def _by_field_schema(value: dict[str, Any]) -> dict[str, Any]:
    # Bounds and minimums exist for numbers only; `_ranges_schema` adds the kind of jitter.
    names = [
        name for row in RETRY_FIELDS if row.kind in ("count", "number") for name in (row.name, *row.aliases)
    ]
    return {"type": "object", "properties": dict.fromkeys(names, value), "additionalProperties": False}


def _ranges_schema() -> dict[str, Any]:
    result = _by_field_schema({"type": "array", "items": _ANY_NUMBER, "minItems": 2, "maxItems": 2})
    jitter = next(row for row in RETRY_FIELDS if row.name == "jitter")
    result["properties"]["jitter"] = _list_schema(jitter._replace(kind="texts"))
    return result


_ANY_NUMBER: Final = _number_schema(FieldSpec("", "number", ""))
_KIND_SCHEMAS: Final[dict[str, Callable[[FieldSpec], dict[str, Any]]]] = {
    "text": _text_schema,
    "date": lambda row: {"type": "string", "format": "date"},
    "count": _number_schema,
    "number": _number_schema,
    "flag": lambda row: {"type": "boolean"},
    "yes": lambda row: {"const": True},
    "no": lambda row: {"const": False},
    "texts": _list_schema,
    "numbers": _list_schema,
    "section": _group_schema,
    "map": lambda row: _named_schema(_group_schema(row)),
    "ranges": lambda row: _ranges_schema(),
    "floors": lambda row: _by_field_schema(_ANY_NUMBER),
}


# Tables of the reference page, docs/reference/policy-files.md.


def reference_tables() -> str:
    """Return the tables of the reference page in Markdown."""
    parts = (
        ("The file", ENVELOPE_FIELDS, "Only a policy is required, and in a governed file `version`."),
        ("Policies", POLICY_FIELDS, ""),
        ("A policy", RETRY_FIELDS, "In `retry_policy`, in each of `policies`, and in those of `providers`."),
        ("Sections for steps, workers and facades", SECTION_FIELDS, _EFFECT),
    )
    return "\n".join(line for title, rows, text in parts for line in _table_section(title, rows, text))


_EFFECT: Final = (
    "Every field has an effect, or states a fact and takes no other value. A field marked *packaged only* "
    "has no effect in this version; a file of your own with it is refused, and a file that extends a "
    "packaged profile inherits it as a statement."
)


def _table_section(title: str, rows: tuple[FieldSpec, ...], text: str) -> Iterator[str]:
    yield from (f"### {title}", "")
    yield from (text, "") if text else ()
    yield from ("| field | also written | takes | means |", "| --- | --- | --- | --- |")
    yield from _table_rows(rows, "")
    yield ""


def _file_note(row: FieldSpec) -> str:
    """Return a note about the files that may contain a field, if not all may."""
    if row.inert:
        return f"; *packaged only: {row.inert}*"
    return f"; *only in files that extend `{row.profile}`*" if row.profile else ""


def _table_rows(rows: tuple[FieldSpec, ...], path: str) -> Iterator[str]:
    for row in rows:
        spellings = ", ".join(f"`{alias}`" for alias in row.aliases)
        if row.retries:
            spellings += f", `{row.retries}` (calls less 1)"
        # A shared group is described once; other places refer to it.
        shared = _SHARED_GROUPS.get(row.rows)
        inner_path = f"{path}{row.name}." + ("*." if row.kind == "map" else "")
        prefix = "names, each with " if row.kind == "map" else ""
        takes = (
            f"{prefix}the fields of a `{shared}`" if shared and shared != row.name else describe_allowed(row)
        )
        meaning = row.meaning.replace("<", "&lt;") + _file_note(row)
        yield f"| `{path}{row.name}` | {spellings} | {takes} | {meaning} |"
        if row.rows and row.rows is not RETRY_FIELDS and not (path and shared):
            yield from _table_rows(row.rows, inner_path)
