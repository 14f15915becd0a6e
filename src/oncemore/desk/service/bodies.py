"""What an entry's body says, to whoever may read it.

Bodies may be sealed with a key that the settings name (`codec`). Without it they stay closed: what is said
of them is that they are, and nothing else is missing.
"""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.codec.seal import Seal
    from oncemore.store.base import Entry


def said(entry: Entry) -> dict[str, Any]:
    """Return what a body says; of one that was pruned nothing, of one that is sealed that it is."""
    from oncemore.codec.wire import read_body
    from oncemore.errors import UsageError

    try:
        return read_body(entry, key())
    except UsageError as fault:
        return {"sealed": str(fault)}


@cache
def key() -> Seal | None:
    """Return what opens sealed bodies, if the settings name it."""
    from oncemore.configured import NAMES, settings

    told = settings(given=NAMES.keys() - {"codec"})
    if not told.codec:
        return None
    from oncemore.opening import engine_of

    return engine_of(told).seal
