"""The integration tests that the ExoArmur document asks for, on a real NATS server with JetStream."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import nats as client
import pytest

import oncemore
from oncemore.audit import AuditSpool
from oncemore.outbox import JetStreamSink
from oncemore.profiles.exoarmur import IdempotencyManager, RetryCategory, RetryManager
from oncemore.profiles.exoarmur.bus import Bus
from oncemore.testing import instant_waits
from tests.servers import nats

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AUDIT = "exoarmur.audit.append.v1"


@pytest.fixture
def url() -> Iterator[str]:
    try:
        with nats.running(jetstream=True) as (url, _):
            yield url
    except nats.NatsUnavailable as reason:
        pytest.skip(str(reason))


async def events_in(url: str, stream: str) -> list[dict[str, Any]]:
    """The payloads of a stream, read by the client alone."""
    line = await client.connect(url)
    streams = line.jetstream()
    last = (await streams.stream_info(stream)).state.last_seq
    found = [json.loads((await streams.get_msg(stream, seq)).data or b"{}") for seq in range(1, last + 1)]
    await line.close()
    return found


@pytest.mark.timeout(120)
@pytest.mark.req("TEST-2")
def test_client_key_value_store_execution_and_audit_on_a_real_server(url: str, tmp_path: Path) -> None:
    executed: list[int] = []

    async def work(manager: RetryManager) -> list[str]:
        async with Bus(manager, url) as bus:
            # The client: a stream, a message in, the same message out.
            await bus.create_stream("AUDIT", [AUDIT])
            await bus.create_stream("BELIEFS", ["beliefs.>"])
            await bus.publish("beliefs.v1", {"host": "h-1"}, idempotency_key="b-1")
            letters = await bus.subscribe("BELIEFS", "executor", "beliefs.v1")
            (letter,) = await letters.fetch(1, 10.0)
            await letter.ack_sync()
            # Key-value operations.
            await bus.create_bucket("box")
            await bus.put("box", "a", b"1")
            values = [await bus.get("box", "a")]
            await bus.delete("box", "a")
            values.append(await bus.get("box", "a"))
            assert values == [b"1", None]

        # An execution that fails once, comes good, and is not done again.
        async def execute() -> str:
            executed.append(1)
            if len(executed) == 1:
                raise ConnectionError("the agent is busy")
            return json.loads(letter.data)["host"]  # type: ignore[no-any-return]

        return [
            await manager.execute_with_retry(
                RetryCategory.EXECUTION_INTENT, "Contain h-1", execute, idempotency_key="i-1"
            )
            for _ in range(2)
        ]

    with oncemore.open(tmp_path / "log.db") as engine, instant_waits():
        manager = RetryManager(IdempotencyManager(engine))
        with AuditSpool(tmp_path / "audit.jsonl", JetStreamSink(url), topic=AUDIT) as spool:
            manager.add_sink(spool)
            assert asyncio.run(work(manager)) == ["h-1", "h-1"]
            assert spool.flush(60.0)
    assert len(executed) == 2
    # Audit emission: every event that the manager told is in the stream, once.
    told = [json.dumps(one, sort_keys=True) for one in asyncio.run(events_in(url, "AUDIT"))]
    assert len(told) == len(set(told)) == len(list(manager.audit))
    for category in ("RETRY_NATS_PUBLISH", "RETRY_KV_PUT", "RETRY_EXECUTION_INTENT"):
        assert any(category in one for one in told), category
