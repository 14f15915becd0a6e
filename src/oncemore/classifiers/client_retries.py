"""Clients that already retry by themselves, and how to make them try once.

Retries around retries multiply: three of ours around three of a client's are nine calls, and each
layer waits too. Whoever wraps one of these in `oncemore.retry` switches its own off, or leaves it on
and does without ours. As data, for what checks a program (`doctor`) and for the page that lists them.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


class OwnRetries(Value):
    """What one client does unasked.

    module  the top-level module by which a program that uses it is known
    client  what people call it
    does    what it does unless told otherwise
    off     what to write so that it tries once
    """

    module: str
    client: str
    does: str
    off: str


CLIENTS: Final = (
    OwnRetries(
        "anthropic",
        "anthropic",
        "2 retries of timeouts, lost connections, 408, 409, 429 and every 5xx",
        "Anthropic(max_retries=0)",
    ),
    OwnRetries(
        "azure",
        "azure-core",
        "up to 10 retries in all, at most 3 each of connecting, reading and a status",
        "SomeClient(..., retry_total=0)",
    ),
    OwnRetries(
        "botocore",
        "botocore, boto3",
        "3 attempts in its standard mode, 5 in the older one",
        'Config(retries={"total_max_attempts": 1})',
    ),
    OwnRetries(
        "google",
        "google-api-core",
        "retries for up to 2 minutes in the methods that a client's makers chose",
        "client.method(..., retry=None)",
    ),
    OwnRetries(
        "grpc",
        "grpc",
        "calls that never left, and what a service's own configuration says",
        'options=[("grpc.enable_retries", 0)]',
    ),
    OwnRetries(
        "neo4j",
        "neo4j",
        "execute_read and execute_write begin again for up to 30 s",
        "session.begin_transaction()",
    ),
    OwnRetries(
        "openai",
        "openai",
        "2 retries of timeouts, lost connections, 408, 409, 429 and every 5xx",
        "OpenAI(max_retries=0)",
    ),
    OwnRetries(
        "pystac_client",
        "pystac-client",
        "5 retries of what could not be sent or read",
        "StacApiIO(max_retries=None)",
    ),
    OwnRetries(
        "redis",
        "redis 6 and newer",
        "3 or 10 retries, by version, of lost connections and timeouts, writes included",
        "Redis(retry=Retry(NoBackoff(), 0))",
    ),
    OwnRetries(
        "urllib3",
        "urllib3",
        "3 retries of what could not be sent, and of what could not be read for idempotent methods",
        "PoolManager(retries=False)",
    ),
)


#: How often a pool or an adapter may try by itself, by the names that each keeps it under.
_COUNTS: Final = ("total", "connect", "read", "status", "other")


def refuse_own(inner: object, where: str) -> None:
    """Refuse a transport that retries by itself: retries around retries multiply."""
    pool = getattr(inner, "_pool", None)  # httpx, httpx2
    if getattr(pool, "_retries", 0):
        raise UsageError(
            f"{where}() was given a transport with retries of its own; write HTTPTransport(retries=0), or "
            "both numbers multiply"
        )
    told = getattr(inner, "max_retries", None)  # requests
    if told is None:
        return
    counts = [told] if isinstance(told, int) else [getattr(told, name, None) for name in _COUNTS]
    endless = counts[0] is None and all(count is None for count in counts)
    if endless or any(count for count in counts if count is not True):
        raise UsageError(
            f"{where}() was given an adapter with retries of its own; write HTTPAdapter(max_retries=0), or "
            "both numbers multiply"
        )
