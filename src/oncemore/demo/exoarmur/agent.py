"""The user's program of `oncemore demo exoarmur`: an agent that acts on hosts.

Every operation goes through `RetryManager.execute_with_retry` under its category. An operation with an effect
has an idempotency key made of its parameters, and sends the key to the host, which applies it once per key.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import oncemore
from oncemore.audit import AuditSpool, Idempotency
from oncemore.control.nats_switches import NatsSwitches
from oncemore.demo.terminal import silence_logging
from oncemore.outbox import JetStreamSink
from oncemore.profiles.exoarmur import IdempotencyManager, RetryCategory, RetryManager
from oncemore.profiles.exoarmur.bus import Bus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

TENANT, NAMESPACE, AUDIT = "tenant-123", "exoarmur", "exoarmur.audit.append.v1"
#: Timeouts of a request to a host, and to the service that stalls.
REQUEST_S, REPUTATION_S = 10.0, 0.6
#: The request that sets the switch: both processes send the same one.
REQUEST, REASON, BY = "req-1", "the ledger is wrong", "operator"
#: A short lease, so that the runs of the killed process are free soon.
LEASE_S = 2.0


class DemoAgent:
    """An agent with its log in the bus.

    careless   do not send the keys to the hosts, to show the duplicates
    requested  a semaphore that is released at each request to a host
    """

    def __init__(self, engine: oncemore.Engine, hosts: str, *, careless: bool = False) -> None:
        self.engine, self._hosts, self._careless = engine, hosts, careless
        self.manager = RetryManager(IdempotencyManager(engine))
        self.requested = asyncio.Semaphore(0)

    def compute_key(self, operation: str, **params: Any) -> str:
        """Return the idempotency key of an operation."""
        return self.manager.idempotency_manager.compute_idempotency_key(
            operation, TENANT, additional_params=params
        )

    async def validate_intent(self, intent: dict[str, str]) -> Any:
        """Have an intent validated."""
        return await self._run_operation("API_VALIDATION", f"Validate {intent['name']}", "validate", intent)

    async def ask_reputation(self, host: str) -> Any:
        """Return the reputation of a host; stored, because a report quotes it."""
        key = self.compute_key("reputation", host=host)
        name = f"Look up {host}"
        return await self._run_operation(
            "API_REQUEST", name, "reputation", {"name": host}, key, timeout_s=REPUTATION_S
        )

    async def execute_intent(self, intent: dict[str, str]) -> Any:
        """Execute an intent; a second delivery returns the stored result."""
        key = self.compute_key("execute", **intent)
        return await self._run_operation(
            "EXECUTION_INTENT", f"Execute {intent['name']}", "execute", intent, key
        )

    async def contain_host(self, host: str, **more: Any) -> Any:
        """Take a host off the network."""
        key = self.compute_key("contain", host=host)
        return await self._run_operation(
            "EXECUTION_CONTAINMENT", f"Contain {host}", "contain", {"name": host}, key, **more
        )

    async def expire_containments(self, hosts: Sequence[str]) -> Any:
        """Release hosts as one batch with one attempt; each host has its own key."""

        async def release_all() -> list[str]:
            return [(await self._post_to_host("release", {"name": host}, host))["done"] for host in hosts]

        key = self.compute_key("expire", hosts=sorted(hosts))
        return await self.manager.execute_with_retry(
            RetryCategory.EXECUTION_EXPIRATION, "Expire containments", release_all, idempotency_key=key,
            tenant_id=TENANT,
        )  # fmt: skip

    async def replay_stream(self, read: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Read the audit stream again."""
        return await self.manager.execute_with_retry(
            RetryCategory.REPLAY_PROCESSING, "Replay the audit stream", read,
            idempotency_key=self.compute_key("replay"), tenant_id=TENANT,
        )  # fmt: skip

    async def compare_stream(self, compare: Callable[[], Awaitable[bool]]) -> bool:
        """Compare the audit stream with the log."""
        return await self.manager.execute_with_retry(
            RetryCategory.REPLAY_VALIDATION, "Compare the stream with the log", compare, tenant_id=TENANT
        )

    async def _run_operation(
        self,
        category: str,
        operation: str,
        path: str,
        body: dict[str, str],
        key: str | None = None,
        **more: Any,
    ) -> Any:
        return await self.manager.execute_with_retry(
            RetryCategory[category], operation, lambda: self._post_to_host(path, body), idempotency_key=key,
            tenant_id=TENANT, **more,
        )  # fmt: skip

    async def _post_to_host(self, path: str, body: dict[str, str], part: str = "") -> Any:
        """Send a request to a host, with the key of the current operation."""
        # Only operations with an effect run inside of a step, and have a key.
        step = oncemore.current() if path in ("execute", "contain", "release") else None
        key = None if step is None or self._careless else f"{step.key}{part and ':'}{part}"
        # Released before the request, so that the demo can kill a server while it is on its way.
        self.requested.release()
        return await run_in_thread(_post_json, f"{self._hosts}/{path}", body, key)


async def run_in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Call a blocking function in a daemon thread and return its result."""
    # Not `asyncio.to_thread`: its pool is joined at exit, which would delay the end after Ctrl-C.
    loop, context = asyncio.get_running_loop(), copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def run() -> None:
        try:
            settled = future.set_result, context.run(work, *args)
        except BaseException as error:  # noqa: BLE001 - raised again in the awaiting task
            settled = future.set_exception, error
        with suppress(RuntimeError):  # the loop is closed: the demo was stopped
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, daemon=True).start()
    return await future


def _post_json(url: str, body: dict[str, str], key: str | None) -> Any:
    headers = {"Content-Type": "application/json", **({} if key is None else {"Idempotency-Key": key})}
    request = Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - our own server
    with urlopen(request, timeout=REQUEST_S) as reply:  # noqa: S310
        return json.loads(reply.read())


# The second agent -----------------------------------------------------------------------------------


async def turn_switch_on(bus: Bus) -> dict[str, Any]:
    """Set the kill switch, with the same request in both processes."""
    return await bus.set_switch("on", reason=REASON, by=BY, correlation_id=REQUEST)


def run_second_agent(store: str, url: str, folder: str) -> None:
    """Run the second agent: wait for a line, set the switch, print the action, and die by SIGKILL."""
    sink = JetStreamSink(url, form="cloudevents-binary")
    with (
        silence_logging(),
        oncemore.open(store, lease_s=LEASE_S) as engine,
        AuditSpool(f"{folder}/audit-2.jsonl", sink, topic=AUDIT) as spool,
    ):
        manager = RetryManager(IdempotencyManager(engine), spool)
        print("ready", flush=True)
        sys.stdin.readline()

        async def set_switch() -> None:
            async with Bus(manager, url, replicas=3, tenant_id=TENANT) as bus:
                await turn_switch_on(bus)

        asyncio.run(set_switch())
        # The process dies without closing the spool: its events must be out before.
        spool.flush(5.0)
        (action,) = [event.action for event in manager.audit if isinstance(event, Idempotency)]
        print(action, flush=True)
        # Without any cleanup, as a crash would end it.
        os.kill(os.getpid(), signal.SIGKILL)


def open_engine(store: str, control: str) -> oncemore.Engine:
    """Return an engine with its log in the bus; it reads switches from a bucket before every attempt."""
    # Two seconds for reading a switch: without an answer, the attempt is refused.
    return oncemore.open(store, control=NatsSwitches(control, "control", 2.0))


if __name__ == "__main__":
    run_second_agent(*sys.argv[1:])
