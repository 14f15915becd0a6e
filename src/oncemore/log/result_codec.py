"""The encoding of results: a value is encodable if and only if it decodes to an equal value of its type.

Plain values are tagged JSON (`log.tagged_json`). Dataclasses, msgspec structs and pydantic models are encoded
and decoded by the step's return annotation: the bytes hold their fields, never a class name, so stored data
cannot choose the code that runs. A value that the encoding would change is refused. The first caller gets the
decoded value too, so that the first and the second call behave alike.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oncemore.log.tagged_json import PLAIN_VALUES, NotEncodable, TaggedEncoder, untag_value

_PLAIN = TaggedEncoder(
    advice=f"return {PLAIN_VALUES}, annotate the function's return type with a dataclass or a model, or put "
    "the bytes away as an artifact (current().put)"
)
_TYPED = "$typed"
#: Limit of an encoded result.
MAX_BYTES = 64 * 1024 * 1024


def encode_result(value: object, annotation: Any = None) -> msgspec.Raw:
    """Return the JSON of a result for its body; raise `NotEncodable` with the reason."""
    try:
        plain = _PLAIN.tag_value(value, "the result")
    except NotEncodable as error:
        if annotation is None or annotation is Any:
            raise
        plain = {_TYPED: _annotated_fields(value, annotation, error)}
    data = msgspec.json.encode(plain)
    if len(data) > MAX_BYTES:
        raise NotEncodable(
            f"the result takes {len(data):,} bytes; the limit is {MAX_BYTES:,}, write an artifact"
        )
    return msgspec.Raw(data)


def decode_result(data: bytes, annotation: Any = None) -> Any:
    """Decode the JSON of a result."""
    return result_value(msgspec.json.decode(data), annotation)


def result_value(plain: Any, annotation: Any = None) -> Any:
    """Return the value of a result in a body, decoded from the store or just encoded."""
    if type(plain) is msgspec.Raw:
        plain = msgspec.json.decode(plain)
    if type(plain) is dict and plain.keys() == {_TYPED}:
        if annotation is None:
            raise NotEncodable(
                "the result was stored by the return annotation of the step, and the step has none now; "
                "annotate it again"
            )
        return _convert_plain(plain[_TYPED], annotation)
    return untag_value(plain)


def _annotated_fields(value: object, annotation: Any, reason: NotEncodable) -> Any:
    """Return the fields of an annotated value, after a check that they decode to an equal value."""
    try:
        model = _pydantic_adapter(annotation)
        plain = msgspec.to_builtins(value) if model is None else model.dump_python(value, mode="json")
        decoded = _convert_plain(msgspec.json.decode(msgspec.json.encode(plain)), annotation)
    except Exception as error:  # noqa: BLE001 - a user's type may raise anything
        raise NotEncodable(
            f"{reason}; its annotation {_annotation_name(annotation)} cannot encode it either: {error}"
        ) from None
    if type(decoded) is not type(value) or decoded != value:
        raise NotEncodable(
            f"the result changes when it is stored as {_annotation_name(annotation)}: {type(value).__name__}"
        )
    return plain


def _convert_plain(plain: Any, annotation: Any) -> Any:
    model = _pydantic_adapter(annotation)
    return msgspec.convert(plain, annotation) if model is None else model.validate_python(plain)


def _pydantic_adapter(annotation: Any) -> Any:
    """Return pydantic's adapter if the annotation is a pydantic model, else None."""
    if not hasattr(annotation, "__pydantic_validator__"):
        return None
    # Imported here: pydantic is optional, and slow to import.
    from pydantic import TypeAdapter

    return TypeAdapter(annotation)


def _annotation_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
