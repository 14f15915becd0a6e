"""Clients that retry by themselves, and how to switch that off.

Nested retries multiply: three attempts around a client's three attempts are nine calls, and both
layers wait. Switch off the client's own retries under `oncemore.retry`, or leave them on and do not
use ours. The table is data for `doctor` and for the documentation.
"""

from __future__ import annotations

from oncemore._values import Value
from oncemore.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final


class ClientRetries(Value):
    """The default retries of one client.

    module  the top-level module that shows that a program uses the client
    client  the client's usual name
    does    its default behaviour
    off     the code that limits it to one attempt
    """

    module: str
    client: str
    does: str
    off: str


RETRYING_CLIENTS: Final = (
    ClientRetries(
        "anthropic",
        "anthropic",
        "2 retries of timeouts, lost connections, 408, 409, 429 and every 5xx",
        "Anthropic(max_retries=0)",
    ),
    ClientRetries(
        "azure",
        "azure-core",
        "up to 10 retries in all, at most 3 each of connecting, reading and a status",
        "SomeClient(..., retry_total=0)",
    ),
    ClientRetries(
        "botocore",
        "botocore, boto3",
        "3 attempts in its standard mode, 5 in the older one",
        'Config(retries={"total_max_attempts": 1})',
    ),
    ClientRetries(
        "google",
        "google-api-core",
        "retries for up to 2 minutes in the methods chosen by the client's authors",
        "client.method(..., retry=None)",
    ),
    ClientRetries(
        "grpc",
        "grpc",
        "calls that were never sent, and the retries in a service's own configuration",
        'options=[("grpc.enable_retries", 0)]',
    ),
    ClientRetries(
        "neo4j",
        "neo4j",
        "execute_read and execute_write restart for up to 30 s",
        "session.begin_transaction()",
    ),
    ClientRetries(
        "openai",
        "openai",
        "2 retries of timeouts, lost connections, 408, 409, 429 and every 5xx",
        "OpenAI(max_retries=0)",
    ),
    ClientRetries(
        "pystac_client",
        "pystac-client",
        "5 retries of requests that could not be sent or read",
        "StacApiIO(max_retries=None)",
    ),
    ClientRetries(
        "redis",
        "redis 6 and newer",
        "3 or 10 retries, by version, of lost connections and timeouts, writes included",
        "Redis(retry=Retry(NoBackoff(), 0))",
    ),
    ClientRetries(
        "urllib3",
        "urllib3",
        "3 retries of requests that could not be sent, and of unread answers to idempotent methods",
        "PoolManager(retries=False)",
    ),
)


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
