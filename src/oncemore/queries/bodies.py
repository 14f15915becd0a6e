"""What an entry's body says, to whoever may read it.

Bodies may be sealed with a key that the settings name (`codec`). Without it they stay closed: what is said
of them is that they are, and nothing else is missing.
"""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from oncemore.log.encryption import Seal
    from oncemore.log.store import Entry


def said(entry: Entry) -> dict[str, Any]:
    """Return what a body says; of one that was pruned nothing, of one that is sealed that it is."""
    from oncemore.errors import UsageError
    from oncemore.log.entry_codec import read_body

    try:
        return read_body(entry, key())
    except UsageError as fault:
        return {"sealed": str(fault)}


@cache
def key() -> Seal | None:
    """Return what opens sealed bodies, if the settings name it."""
    from oncemore.config import NAMES, settings

    told = settings(given=NAMES.keys() - {"codec"})
    if not told.codec:
        return None
    from oncemore.open_engine import engine_of

    return engine_of(told).seal
