"""Server lists in NATS addresses, and connecting to one of the servers; for modules other than the store.

    nats://[user:password@]host[:port][,host[:port]…]        also tls://, ws:// and wss://

Any server of a cluster will do, and some may be down: `connect_first` tries one after the other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMES = ("nats", "tls", "ws", "wss")
USUAL_PORT = 4222
#: How long cancelled tasks may take to end.
CANCEL_TIMEOUT_S = 5.0


def parse_servers(url: str) -> list[str]:
    """Return the address of each server, with the credentials; errors do not contain them."""
    scheme, _, rest = url.partition("://")
    login, at, hosts = rest.rstrip("/").rpartition("@")
    servers = [f"{scheme}://{login}{at}{host}" for host in hosts.split(",")]
    if scheme not in SCHEMES or not all(_has_host(server) for server in servers):
        raise UsageError("url takes nats://host:port, or tls://, ws://, wss://; a cluster's with commas")
    return servers


def hide_credentials(servers: Sequence[str]) -> str:
    """Return the addresses of servers as one, without credentials."""
    parts = [urlsplit(server) for server in servers]
    hosts = ",".join(f"{part.hostname}:{part.port or USUAL_PORT}" for part in parts)
    return f"{parts[0].scheme}://{hosts}"


async def connect_first(servers: Sequence[str], patience_s: float, **options: Any) -> Any:
    """Return a client connected to the first server that answers; raise the last error if none does.

    The client does not reconnect: the caller asks for another one when the connection is lost.
    """
    # Shared among the servers, so that one that hangs cannot use up the time of the rest.
    timeout = patience_s / len(servers)
    for left, server in enumerate(servers, 1 - len(servers)):
        try:
            return await _connect_server(server, timeout, options)
        except Exception:
            if not left:
                raise
    raise AssertionError("an address names a server")  # pragma: no cover


async def _connect_server(server: str, timeout_s: float, options: dict[str, Any]) -> Any:
    """Connect to one server, once."""
    from nats.aio.client import Client

    client, is_connecting = Client(), True

    async def on_error(error: Exception) -> None:
        # By itself the client would retry for minutes; raising here ends the attempt with the reason.
        if is_connecting:
            raise error

    connecting = client.connect(server, allow_reconnect=False, error_cb=on_error, **options)
    try:
        await asyncio.wait_for(connecting, timeout_s)
    except BaseException:
        is_connecting = False
        with suppress(Exception):
            await client.close()
        raise
    is_connecting = False
    return client


async def ignore_error(error: Exception) -> None:
    """Do nothing; an error callback for clients whose requests raise their own errors."""


def run_loop_forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, then cancel its tasks and close it."""
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S))
    loop.close()


def _has_host(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return bool(parts.hostname) and parts.port != 0 and not parts.path
    except ValueError:
        return False
