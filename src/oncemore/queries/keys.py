"""Idempotency keys from given parameters (IDEM-4), as the library computes them."""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.policy.canonical_json import exoarmur_key
from oncemore.queries.names import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Final

    from oncemore.policy.canonical_json import Plain

FIELDS: Final = ("operation", "tenant_id", "correlation_id", "additional_params")


class Key(Value):
    """A key, its form, and what it was computed from."""

    key: str
    form: str
    operation: str
    tenant_id: str
    correlation_id: str
    additional_params: Mapping[str, Plain]


def key_of(parts: Mapping[str, Plain], form: str = "canonical") -> Key:
    """Return the key of named parts; `form` is canonical, or legacy for keys of the printed form."""
    for name in parts:
        if name not in FIELDS:
            raise UsageError(
                f"a key has no part {name!r}{nearest(name, FIELDS)}; its parts are {', '.join(FIELDS)}."
            )
    if not parts.get("operation"):
        raise UsageError("operation is missing; a key needs the name of what is done.")
    operation, tenant, correlation, params = (parts.get(name) for name in FIELDS)
    # What has the wrong type is refused there, with its name.
    made = exoarmur_key(operation, tenant, correlation, params, legacy=form == "legacy")  # type: ignore[arg-type]
    return Key(made, form, str(operation), str(tenant or ""), str(correlation or ""), params or {})  # type: ignore[arg-type]


def documents(text: str, most: int = 100_000) -> Iterator[Mapping[str, Plain]]:
    """Yield the JSON objects that stand in a text one after the other, on one line or on many."""
    import re
    from json import JSONDecodeError, JSONDecoder

    decoder, space, at = JSONDecoder(object_pairs_hook=_once), re.compile(r"\s*"), 0
    for count in range(most + 1):
        at = space.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except JSONDecodeError as fault:
            raise UsageError(f"not JSON at line {fault.lineno}, column {fault.colno}: {fault.msg}.") from None
        if not isinstance(value, dict):
            raise UsageError(f"expected an object with {', '.join(FIELDS)}, and found {value!r}.")
        if count < most:
            yield value
    raise UsageError(f"more than {most} objects; give fewer at a time.")


def _once(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    """Refuse a name that stands twice: which of the two the key would be made from is anybody's guess."""
    made: dict[str, Plain] = {}
    for name, value in pairs:
        if name in made:
            raise UsageError(f"{name!r} stands twice in one object; give it once.")
        made[name] = value
    return made
