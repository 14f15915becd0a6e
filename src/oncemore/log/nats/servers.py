"""Which servers an address of NATS names, and a line to one of them.

    nats://[user:password@]host[:port][,host[:port]…]        also tls://, ws:// and wss://

Any of a cluster's servers will do, and some may be gone: `connected` asks one after the other.
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
#: How long what is under way may take to end.
LEAVE_S = 5.0


def servers_of(url: str) -> list[str]:
    """Return each server that an address names, with who we are; its secrets are in no error."""
    scheme, _, rest = url.partition("://")
    who, at, hosts = rest.rstrip("/").rpartition("@")
    found = [f"{scheme}://{who}{at}{host}" for host in hosts.split(",")]
    if scheme not in SCHEMES or not all(_named(one) for one in found):
        raise UsageError("url takes nats://host:port, or tls://, ws://, wss://; a cluster's with commas")
    return found


def shown(servers: Sequence[str]) -> str:
    """Return what people may see of servers: where, and nothing of who we are."""
    parts = [urlsplit(one) for one in servers]
    hosts = ",".join(f"{part.hostname}:{part.port or USUAL_PORT}" for part in parts)
    return f"{parts[0].scheme}://{hosts}"


async def connected(servers: Sequence[str], patience_s: float, **options: Any) -> Any:
    """Return a line to the first server that answers; raise what the last one said if none does.

    The line is closed for good when it is lost: whoever needs one asks for another.
    """
    each_s = patience_s / len(servers)
    for left, server in enumerate(servers, 1 - len(servers)):
        try:
            return await _connected(server, each_s, options)
        except Exception:
            if not left:
                raise
    raise AssertionError("an address names a server")  # pragma: no cover


async def _connected(server: str, patience_s: float, options: dict[str, Any]) -> Any:
    """Connect to one server, once. Left alone, the client would try for minutes and not say why."""
    from nats.aio.client import Client

    line, trying = Client(), True

    async def heard(error: Exception) -> None:
        if trying:
            raise error

    asked = line.connect(server, allow_reconnect=False, error_cb=heard, **options)
    try:
        await asyncio.wait_for(asked, patience_s)
    except BaseException:
        trying = False
        with suppress(Exception):
            await line.close()
        raise
    trying = False
    return line


async def quiet(error: Exception) -> None:
    """Say nothing: what matters of it is raised by what was asked."""


def forever(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped, and leave nothing of it behind."""
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=LEAVE_S))
    loop.close()


def _named(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return bool(parts.hostname) and parts.port != 0 and not parts.path
    except ValueError:
        return False
