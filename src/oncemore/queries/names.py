"""Names that a person typed: in the form that the log keeps them, and the known ones that are close."""

from __future__ import annotations

from oncemore.policy.canonical_json import normalize_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    from oncemore._values import Value

    V = TypeVar("V", bound=Value)


def normalize_names(filters: V, *fields: str) -> V:
    """Return filters whose names are written as the log keeps names."""
    given = {field: getattr(filters, field) for field in fields}
    return filters._replace(**{field: normalize_name(name) for field, name in given.items() if name})


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" when a known name is close, else nothing."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=2, cutoff=0.7)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
