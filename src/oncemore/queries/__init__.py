"""Read-only answers about policies, runs and stores, as frozen values for the CLI and the dashboard.

The folder may import every feature folder, and prints nothing; heavy modules are imported inside functions.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    from oncemore._values import Value
    from oncemore.policy.canonical_json import Plain

    V = TypeVar("V", bound=Value)


def to_plain(value: object) -> Plain:
    """Return a value in a form that JSON can hold: records become objects, bytes become text."""
    if hasattr(value, "_asdict"):
        return {name: to_plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): to_plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    # Paths and other values without a JSON form are shown by their text.
    return str(value)


def normalize_names(filters: V, *fields: str) -> V:
    """Return filters with the named fields in Unicode NFC.

    The log stores names in NFC; a terminal may send the same name in another form.
    """
    from oncemore.policy.canonical_json import normalize_name

    names = {field: getattr(filters, field) for field in fields}
    return filters._replace(**{field: normalize_name(name) for field, name in names.items() if name})


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" if a known name is similar, else an empty text."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=2, cutoff=0.7)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
