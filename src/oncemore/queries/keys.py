"""Compute idempotency keys from their parts (IDEM-4), as the library does."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.policy.canonical_json import exoarmur_key
from oncemore.queries import suggest_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Final

    from oncemore.policy.canonical_json import Plain

KEY_FIELDS: Final = ("operation", "tenant_id", "correlation_id", "additional_params")


class ComputedKey(Value):
    """A key, its form, and the parts that it was computed from."""

    key: str
    form: str
    operation: str
    tenant_id: str
    correlation_id: str
    additional_params: Mapping[str, Plain]


def compute_key(parts: Mapping[str, Plain], form: str = "canonical") -> ComputedKey:
    """Return the key of named parts.

    form  "canonical", or "legacy" for keys in the printed form of the document
    """
    for name in parts:
        if name not in KEY_FIELDS:
            raise UsageError(
                f"a key has no part {name!r}{suggest_names(name, KEY_FIELDS)}; its parts are "
                f"{', '.join(KEY_FIELDS)}."
            )
    if not parts.get("operation"):
        raise UsageError("operation is missing; a key needs the name of the operation.")
    operation, tenant, correlation, params = (parts.get(name) for name in KEY_FIELDS)
    # exoarmur_key checks the types and names the part that has a wrong one.
    key = exoarmur_key(operation, tenant, correlation, params, legacy=form == "legacy")  # type: ignore[arg-type]
    return ComputedKey(key, form, str(operation), str(tenant or ""), str(correlation or ""), params or {})  # type: ignore[arg-type]


def parse_objects(text: str, max_objects: int = 100_000) -> Iterator[Mapping[str, Plain]]:
    """Yield the JSON objects of a text that holds one after the other, on one line or on several."""
    import re
    from json import JSONDecodeError, JSONDecoder

    decoder, space, position = JSONDecoder(object_pairs_hook=_refuse_duplicates), re.compile(r"\s*"), 0
    for count in range(max_objects + 1):
        # raw_decode does not skip leading white space.
        position = space.match(text, position).end()  # type: ignore[union-attr]
        if position == len(text):
            return
        try:
            value, position = decoder.raw_decode(text, position)
        except JSONDecodeError as error:
            raise UsageError(f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}.") from None
        if not isinstance(value, dict):
            raise UsageError(f"expected an object with {', '.join(KEY_FIELDS)}, and found {value!r}.")
        if count < max_objects:
            yield value
    raise UsageError(f"more than {max_objects} objects; give fewer at a time.")


def _refuse_duplicates(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    """Raise `UsageError` for a name that occurs twice: the json module would silently take the last."""
    values: dict[str, Plain] = {}
    for name, value in pairs:
        if name in values:
            raise UsageError(f"{name!r} stands twice in one object; give it once.")
        values[name] = value
    return values
