"""Statements of RDF, and two forms of them: Turtle and JSON-LD. Both are written while they are read.

A statement is a subject, a predicate and an object. Subjects are IRIs, predicates are prefixed names
(`prov:used`), objects are a `Reference` to an IRI or prefixed name, or a `Literal`.
"""

from __future__ import annotations

import json
import re
from itertools import groupby

from oncemore._values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PREFIXES = {
    "crm": "http://www.cidoc-crm.org/cidoc-crm/",
    "dcat": "http://www.w3.org/ns/dcat#",
    "dct": "http://purl.org/dc/terms/",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "geo": "http://www.opengis.net/ont/geosparql#",
    "oncemore": "urn:oncemore:terms:",
    "prov": "http://www.w3.org/ns/prov#",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "schema": "https://schema.org/",
    "spdx": "http://spdx.org/rdf/terms#",
    "time": "http://www.w3.org/2006/time#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}
#: Characters that an IRI may not contain; they are percent-encoded.
_ILLEGAL_IN_IRI = re.compile(r'[\x00-\x20<>"{}|^`\\]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED = re.compile(r'[\\"\x00-\x1f\x7f]')


class Reference(Value):
    """An object that is an IRI; `is_name` if it is written as a prefixed name."""

    iri: str
    is_name: bool = False


class Literal(Value):
    """An object that is a value: its text and its datatype, as a prefixed name; empty for plain text."""

    text: str
    datatype: str = ""


class Statement(Value):
    """One statement of RDF."""

    subject: str
    predicate: str
    value: Reference | Literal


def refer(iri: str) -> Reference:
    """Return a reference to an IRI, with illegal characters percent-encoded."""
    return Reference(encode_iri(iri))


def name_type(name: str) -> Reference:
    """Return a reference to a class or property by its prefixed name."""
    return Reference(name, is_name=True)


def encode_iri(text: str) -> str:
    """Return a text as an IRI: characters that an IRI may not contain are percent-encoded."""
    return _ILLEGAL_IN_IRI.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), text)


def number(value: float) -> Literal:
    """Return a number as a literal."""
    if isinstance(value, int):
        return Literal(str(value), "xsd:integer")
    return Literal(repr(value), "xsd:double")


# Turtle ---------------------------------------------------------------------------------------------


def write_turtle(statements: Iterable[Statement], prefixes: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a Turtle document; statements of one subject that follow each other are joined."""
    for prefix in sorted(prefixes):
        yield f"@prefix {prefix}: <{PREFIXES[prefix]}> ."
    for subject, group in groupby(statements, key=lambda statement: statement.subject):
        rows = [f"{statement.predicate} {_format_object(statement.value)}" for statement in group]
        yield f"<{subject}>\n    " + " ;\n    ".join(rows) + " ."


def _format_object(value: Reference | Literal) -> str:
    if isinstance(value, Reference):
        return value.iri if value.is_name else f"<{value.iri}>"
    text = _ESCAPED.sub(lambda match: _ESCAPES.get(match[0], f"\\u{ord(match[0]):04X}"), value.text)
    return f'"{text}"^^{value.datatype}' if value.datatype else f'"{text}"'


# JSON-LD --------------------------------------------------------------------------------------------


def write_json_ld(statements: Iterable[Statement], prefixes: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a JSON-LD document: one node per line; a node may come in several parts."""
    context = {prefix: PREFIXES[prefix] for prefix in sorted(prefixes)}
    yield f'{{"@context": {json.dumps(context)}, "@graph": ['
    # Written by hand: the json module would need the whole list at once.
    separator = ""
    for subject, group in groupby(statements, key=lambda statement: statement.subject):
        node = json.dumps(_build_node(subject, group), ensure_ascii=False)
        yield f"{separator}{node}"
        separator = ","
    yield "]}"


def _build_node(subject: str, statements: Iterable[Statement]) -> dict[str, object]:
    node: dict[str, object] = {"@id": subject}
    for statement in statements:
        value = _json_object(statement)
        name = "@type" if statement.predicate == "rdf:type" else statement.predicate
        if name in node:
            known = node[name]
            node[name] = [*known, value] if isinstance(known, list) else [known, value]
        else:
            node[name] = value
    return node


def _json_object(statement: Statement) -> object:
    value = statement.value
    if isinstance(value, Reference):
        return value.iri if statement.predicate == "rdf:type" else {"@id": value.iri}
    return {"@value": value.text, "@type": value.datatype} if value.datatype else value.text
