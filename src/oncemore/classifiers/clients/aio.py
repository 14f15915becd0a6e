"""What the errors of the event loops' own streams mean: asyncio, anyio, trio.

Their cancellations are not here but with what never passes, in `classify`.
"""

from __future__ import annotations

from oncemore.classifiers.rules import talking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from oncemore.classifiers.rules import Table

_STREAMS: Final[Table] = {
    "BrokenResourceError": talking("CONNECTION_CLOSED"),  # the other side, or the wire
    "EndOfStream": ("transient", "maybe", "CONNECTION_CLOSED"),
    "IncompleteRead": ("transient", "maybe", "CONNECTION_CLOSED"),
    "ClosedResourceError": ("permanent", "maybe", ""),  # our own side closed it
    "BusyResourceError": ("permanent", "no", ""),  # two tasks at one stream: a bug
    "WouldBlock": ("transient", "no", "ERRNO_EAGAIN"),
}

TABLES: Final[dict[str, Table]] = {
    "asyncio": {
        "IncompleteReadError": ("transient", "maybe", "CONNECTION_CLOSED"),
        "LimitOverrunError": ("permanent", "maybe", ""),
        "InvalidStateError": ("permanent", "maybe", ""),
    },
    "anyio": _STREAMS,
    "trio": {**_STREAMS, "TooSlowError": ("transient", "maybe", "TIMEOUT")},
}
