"""The encoding of results: a value is encodable if and only if it decodes to an equal value of its type.

Plain values are tagged JSON (`log.tagged_json`); values with classes are encoded and decoded by the step's
return annotation (`log.typed_values`), as arguments are by theirs. The first caller gets the decoded value
too, so that the first and the second call behave alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from oncemore.log.tagged_json import PLAIN_VALUES, NotEncodable
from oncemore.log.typed_values import ValueCodec

if TYPE_CHECKING:
    from collections.abc import Mapping

_ADVICE = (
    f"return {PLAIN_VALUES}, annotate the function's return type with a dataclass or a model, register the "
    "type (oncemore.register_type), or put the bytes away as an artifact (current().put)"
)
#: The tag of values that earlier versions stored by the return annotation.
_EARLIER_TAG = "$typed"
#: Limit of an encoded result.
MAX_BYTES = 64 * 1024 * 1024


class ResultCodec:
    """Encodes and decodes the results of a step by its return annotation."""

    def __init__(self, annotation: Any = None, namespace: Mapping[str, Any] = {}) -> None:
        self._annotation = annotation
        self._values = ValueCodec(
            "the result",
            annotation,
            place="the step's return",
            advice=_ADVICE,
            namespace=namespace,
            is_lenient=True,
        )

    def encode(self, value: object) -> msgspec.Raw:
        """Return the JSON of a result for its body; raise `NotEncodable` with the reason."""
        data = msgspec.json.encode(self._values.encode(value))
        if len(data) > MAX_BYTES:
            raise NotEncodable(
                f"the result takes {len(data):,} bytes; the limit is {MAX_BYTES:,}, write an artifact"
            )
        return msgspec.Raw(data)

    def decode(self, plain: Any) -> Any:
        """Return the value of a result in a body, decoded from the store or just encoded."""
        if type(plain) is msgspec.Raw:
            plain = msgspec.json.decode(plain)
        if type(plain) is dict and plain.keys() == {_EARLIER_TAG}:
            return _convert_fields(plain[_EARLIER_TAG], self._annotation)
        return self._values.decode(plain)


_PLAIN = ResultCodec()


def encode_result(value: object) -> msgspec.Raw:
    """Return the JSON of a result of a step without a return annotation."""
    return _PLAIN.encode(value)


def result_value(plain: Any) -> Any:
    """Return the value of a result of a step without a return annotation."""
    return _PLAIN.decode(plain)


def _convert_fields(plain: Any, annotation: Any) -> Any:
    """Return a value that an earlier version stored as its fields."""
    if annotation is None or isinstance(annotation, str):
        raise NotEncodable(
            "the result was stored by the return annotation of the step, and the step has none now; "
            "annotate it again"
        )
    if not hasattr(annotation, "__pydantic_validator__"):
        return msgspec.convert(plain, annotation)
    # Imported here: pydantic is optional, and slow to import.
    from pydantic import TypeAdapter

    return TypeAdapter(annotation).validate_python(plain)
