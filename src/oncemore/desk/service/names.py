"""Names that nobody knows, and the ones that may have been meant."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean …?)" when a known name is close, else nothing."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=2, cutoff=0.7)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
