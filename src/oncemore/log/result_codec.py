"""Results as bytes: encodable if and only if reading gives an equal value of the same type.

Plain values are tagged JSON (`log.tagged_json`). Dataclasses, msgspec structs and pydantic models go by the
step's return annotation, which is also what reads them: the bytes hold their fields, never a class name,
so that stored data cannot choose what code runs. What an encoding would change is refused; a caller of
the first run gets the decoded value too, so that run 1 and run 2 behave alike.
"""

from __future__ import annotations

from typing import Any

import msgspec

from oncemore.log.tagged_json import PLAIN_VALUES, NoForm, Tagger, untag
from oncemore.policy.canonical_json import LARGEST_INTEGER

_PLAIN = Tagger(
    advice=f"return {PLAIN_VALUES}, annotate the function's return type with a dataclass or a model, or put "
    "the bytes away as an artifact (current().put)"
)
_TYPED = "$typed"
MOST_BYTES = 64 * 1024 * 1024
#: A result that takes more is kept as an artifact, beside the log.
LARGE_BYTES = 256 * 1024
#: Characters of a text that is written as it is, with the rest of its body.
SHORT = 1024


def encode(value: object, annotation: Any = None) -> msgspec.Raw:
    """Return the JSON of a result, ready to be a part of a body, or say why it has none."""
    try:
        plain = _PLAIN.tag(value, "the result")
    except NoForm as fault:
        if annotation is None or annotation is Any:
            raise
        plain = {_TYPED: _fields(value, annotation, fault)}
    data = msgspec.json.encode(plain)
    if len(data) > MOST_BYTES:
        raise NoForm(f"the result takes {len(data):,} bytes; {MOST_BYTES:,} is the most, write an artifact")
    return msgspec.Raw(data)


def is_itself(value: Any) -> bool:
    """Whether a result can be a part of a body as it is: small, and what its JSON stands for."""
    kind = type(value)
    if kind is int:
        return bool(-LARGEST_INTEGER <= value <= LARGEST_INTEGER)
    if kind is str:
        return len(value) <= SHORT and value.isascii()
    return value is None or kind is bool


def large(encoded: Any) -> bool:
    """Whether an encoded result is better kept beside the log than in it."""
    return type(encoded) is msgspec.Raw and memoryview(encoded).nbytes > LARGE_BYTES


def decode(data: bytes, annotation: Any = None) -> Any:
    """Return the value that the JSON of a result stands for."""
    return value_of(msgspec.json.decode(data), annotation)


def value_of(plain: Any, annotation: Any = None) -> Any:
    """Return the value that a body's result stands for, read or just written."""
    if type(plain) is msgspec.Raw:
        plain = msgspec.json.decode(plain)
    if type(plain) is dict and plain.keys() == {_TYPED}:
        if annotation is None:
            raise NoForm("the result was stored by a return annotation that the step no longer has")
        return _typed(plain[_TYPED], annotation)
    return untag(plain)


def _fields(value: object, annotation: Any, fault: NoForm) -> Any:
    """Return the fields of an annotated value, once it is sure that they give it back."""
    try:
        model = _adapter(annotation)
        plain = msgspec.to_builtins(value) if model is None else model.dump_python(value, mode="json")
        again = _typed(msgspec.json.decode(msgspec.json.encode(plain)), annotation)
    except Exception as error:  # noqa: BLE001 - anything a user's type may raise means: no form
        raise NoForm(f"{fault}; by its annotation {_name(annotation)} neither: {error}") from None
    if type(again) is not type(value) or again != value:
        raise NoForm(f"the result changes when it is stored as {_name(annotation)}: {type(value).__name__}")
    return plain


def _typed(plain: Any, annotation: Any) -> Any:
    model = _adapter(annotation)
    return msgspec.convert(plain, annotation) if model is None else model.validate_python(plain)


def _adapter(annotation: Any) -> Any:
    """Return pydantic's own reader where the annotation is one of its models, else None."""
    if not hasattr(annotation, "__pydantic_validator__"):
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(annotation)


def _name(annotation: Any) -> str:
    return getattr(annotation, "__name__", None) or str(annotation)
