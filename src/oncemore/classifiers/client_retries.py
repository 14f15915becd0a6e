"""Refuses a client that retries by itself.

Nested retries multiply: three attempts around a client's three attempts are nine calls, and both
layers wait. `docs/how-to/choose-what-to-retry.md` lists the clients and how to switch their retries off.
"""

from __future__ import annotations

from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

#: The attributes of urllib3's `Retry` that hold a number of retries.
_COUNT_NAMES: Final = ("total", "connect", "read", "status", "other")


def refuse_client_retries(inner: object, where: str) -> None:
    """Raise `UsageError` for a transport that retries by itself, because nested retries multiply."""
    # httpx and httpx2 store the number in their connection pool.
    pool = getattr(inner, "_pool", None)
    if getattr(pool, "_retries", 0):
        raise UsageError(
            f"{where}() got a transport with retries of its own; write HTTPTransport(retries=0), or "
            "both numbers multiply"
        )
    # requests stores a number or a urllib3 `Retry`.
    max_retries = getattr(inner, "max_retries", None)
    if max_retries is None:
        return
    counts = (
        [max_retries]
        if isinstance(max_retries, int)
        else [getattr(max_retries, name, None) for name in _COUNT_NAMES]
    )
    # A `Retry` with None in every count has no limit at all.
    is_endless = counts[0] is None and all(count is None for count in counts)
    if is_endless or any(count for count in counts if count is not True):
        raise UsageError(
            f"{where}() got an adapter with retries of its own; write HTTPAdapter(max_retries=0), or "
            "both numbers multiply"
        )
