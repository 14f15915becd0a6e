"""The user's program of `oncemore demo exoarmur`: an agent that acts on hosts, by the profile's interface.

Everything goes through `RetryManager.execute_with_retry` under its category. Whatever acts has an idempotency
key made of what it does, and passes it on to whom it acts on: that is all it takes to be done once.
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
from oncemore.demo.pipeline.live import silence_logging
from oncemore.outbox import JetStreamSink
from oncemore.profiles.exoarmur import IdempotencyManager, RetryCategory, RetryManager
from oncemore.profiles.exoarmur.bus import Bus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

TENANT, NAMESPACE, AUDIT = "tenant-123", "exoarmur", "exoarmur.audit.append.v1"
#: How long one visit to a host may take, and how long the service that stalls is waited for.
VISIT_S, REPUTATION_S = 10.0, 0.6
#: The switch and the request that another process turns it with.
REQUEST, REASON, BY = "req-1", "the ledger is wrong", "operator"
#: How long the other process keeps its runs after its death: nobody has to wait for it here.
LEASE_S = 2.0


class DemoAgent:
    """An agent with its log in the bus, a manager, and the hosts that it acts on.

    careless  keep the keys to oneself, to see what then happens
    arrived   grows by one with each visit to a host
    """

    def __init__(self, engine: oncemore.Engine, hosts: str, *, careless: bool = False) -> None:
        self.engine, self._hosts, self._careless = engine, hosts, careless
        self.manager = RetryManager(IdempotencyManager(engine))
        self.arrived = asyncio.Semaphore(0)

    def compute_key(self, operation: str, **params: Any) -> str:
        """Return the key of an operation."""
        return self.manager.idempotency_manager.compute_idempotency_key(
            operation, TENANT, additional_params=params
        )

    async def validate_intent(self, intent: dict[str, str]) -> Any:
        """Ask whether an intent makes sense; the verdict is final."""
        return await self._run_operation("API_VALIDATION", f"Validate {intent['name']}", "validate", intent)

    async def ask_reputation(self, host: str) -> Any:
        """Ask what is known of a host; once, as it stands in the report."""
        key = self.compute_key("reputation", host=host)
        name = f"Look up {host}"
        return await self._run_operation(
            "API_REQUEST", name, "reputation", {"name": host}, key, timeout_s=REPUTATION_S
        )

    async def execute_intent(self, intent: dict[str, str]) -> Any:
        """Execute an intent, once however often it is delivered."""
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
        """Let hosts go whose containment has expired: one batch, one attempt, each host under its own key."""

        async def batch() -> list[str]:
            return [(await self._post_to_host("release", {"name": host}, host))["done"] for host in hosts]

        key = self.compute_key("expire", hosts=sorted(hosts))
        return await self.manager.execute_with_retry(
            RetryCategory.EXECUTION_EXPIRATION, "Expire containments", batch, idempotency_key=key,
            tenant_id=TENANT,
        )  # fmt: skip

    async def replay_stream(self, read: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Go through the audit stream once more."""
        return await self.manager.execute_with_retry(
            RetryCategory.REPLAY_PROCESSING, "Replay the audit stream", read,
            idempotency_key=self.compute_key("replay"), tenant_id=TENANT,
        )  # fmt: skip

    async def compare_stream(self, look: Callable[[], Awaitable[bool]]) -> bool:
        """Compare what the stream says with what the log says."""
        return await self.manager.execute_with_retry(
            RetryCategory.REPLAY_VALIDATION, "Compare the stream with the log", look, tenant_id=TENANT
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
        """Ask a host for something, under the key of the operation that this is a part of."""
        at = oncemore.current() if path in ("execute", "contain", "release") else None
        key = None if at is None or self._careless else f"{at.key}{part and ':'}{part}"
        self.arrived.release()
        return await run_in_thread(_post_json, f"{self._hosts}/{path}", body, key)


async def run_in_thread(work: Callable[..., Any], *args: Any) -> Any:
    """Do what blocks in a thread of its own, which nobody waits for when the story is stopped."""
    loop, context = asyncio.get_running_loop(), copy_context()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(how: Callable[[Any], None], what: Any) -> None:
        if not done.done():
            how(what)

    def run() -> None:
        try:
            told = done.set_result, context.run(work, *args)
        except BaseException as error:  # noqa: BLE001 - it is for whoever waits
            told = done.set_exception, error
        with suppress(RuntimeError):  # the story was stopped
            loop.call_soon_threadsafe(settle, *told)

    threading.Thread(target=run, daemon=True).start()
    return await done


def _post_json(url: str, body: dict[str, str], key: str | None) -> Any:
    headers = {"Content-Type": "application/json", **({} if key is None else {"Idempotency-Key": key})}
    request = Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - our own server
    with urlopen(request, timeout=VISIT_S) as answer:  # noqa: S310
        return json.loads(answer.read())


# The other process ----------------------------------------------------------------------------------


async def turn_switch_on(bus: Bus) -> dict[str, Any]:
    """Turn the switch on, as both processes ask for it: it is one request."""
    return await bus.set_switch("on", reason=REASON, by=BY, correlation_id=REQUEST)


def run_second_agent(store: str, url: str, folder: str) -> None:
    """Be an agent that turns the switch when it is told to, says so, and is gone at once, as by kill -9."""
    to = JetStreamSink(url, form="cloudevents-binary")
    with (
        silence_logging(),
        oncemore.open(store, lease_s=LEASE_S) as engine,
        AuditSpool(f"{folder}/audit-2.jsonl", to, topic=AUDIT) as spool,
    ):
        manager = RetryManager(IdempotencyManager(engine), spool)
        print("ready", flush=True)
        sys.stdin.readline()

        async def do() -> None:
            async with Bus(manager, url, replicas=3, tenant_id=TENANT) as bus:
                await turn_switch_on(bus)

        asyncio.run(do())
        spool.flush(5.0)
        (told,) = [event.action for event in manager.audit if isinstance(event, Idempotency)]
        print(told, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def open_engine(store: str, control: str) -> oncemore.Engine:
    """Return an engine whose log is in the bus, and that asks a bucket of it before every attempt."""
    return oncemore.open(store, control=NatsSwitches(control, "control", 2.0))


if __name__ == "__main__":
    run_second_agent(*sys.argv[1:])
