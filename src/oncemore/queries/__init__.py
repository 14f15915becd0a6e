"""What people ask, answered in plain frozen values; the command line and the dashboard print them.

Nothing here prints, colours, or knows a terminal or a page. Answers load when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from oncemore.policy.canonical_json import Plain


def plain(value: object) -> Plain:
    """Return an answer as plain values, ready for JSON: records become objects, bytes their text."""
    if hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
