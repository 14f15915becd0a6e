"""Writers on a store in NATS, and a judge that believes only the messages of the stream."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import nats as client

from oncemore.store.base import Batch, Conflict, Stored
from oncemore.testing.contract import write
from tests.servers.cutting import BODY

if TYPE_CHECKING:
    from oncemore.errors import StoreError
    from oncemore.store.base import Write
    from oncemore.store.nats import NatsStore


class Answered(NamedTuple):
    """What a caller was told about its writes."""

    writes: tuple[Write, ...]
    answer: Stored | Conflict | StoreError


def nonced(store: NatsStore, entity: str) -> Write:
    return write(entity, store.head(entity), secrets.token_bytes(8) + BODY)


def work(store: NatsStore, mine: int, rounds: int, told: list[Answered], faults: list[object]) -> None:
    """Write alone, against others, and two at once; on the strength of a guard now and then."""
    try:
        for n in range(rounds):
            entities = [(f"run/{mine}",), ("run/hot",), (f"run/{mine}-{n}", f"worker/{mine}")][n % 3]
            writes = tuple(nonced(store, entity) for entity in entities)
            guards = {"switch/off": 0} if n % 2 else {}
            told.append(Answered(writes, store.append(Batch(writes, guards)).wait()))
    except BaseException as fault:
        faults.append(fault)


def raw(url: str, namespace: str) -> list[tuple[int, str, bytes]]:
    """Return the sequence, mark and body of every frame, read by the client alone."""

    async def read() -> list[tuple[int, str, bytes]]:
        connection = await client.connect(url)
        stream = connection.jetstream()
        found: list[tuple[int, str, bytes]] = []
        subject = f"{namespace}.e.*"
        subscription = await stream.subscribe(subject, ordered_consumer=True, stream=f"{namespace}_LOG")
        last = (await stream.stream_info(f"{namespace}_LOG", subjects_filter=subject)).state
        left = sum((last.subjects or {}).values())
        for _ in range(left):
            message = await subscription.next_msg(timeout=5)
            content: list[Any] = msgspec.msgpack.decode(message.data) if message.data else []
            mark = (message.headers or {})["Om-Append"]
            found.append((message.metadata.sequence.stream, mark, content[2] if content else b""))
        await connection.close()
        return found

    return asyncio.run(read())


def wrong(told: list[Answered], frames: list[tuple[int, str, bytes]]) -> tuple[int, int, int, int]:
    """Return how many writes stand twice, are missing, stand though refused, or stand without their pair."""
    standing: dict[bytes, list[int]] = {}
    for seq, _, body in frames:
        standing.setdefault(body, []).append(seq)
    double = sum(len(seqs) > 1 for body, seqs in standing.items() if body)
    missing = surplus = half = 0
    for writes, answer in told:
        there = [standing.get(one.body, []) for one in writes]
        half += len({bool(seqs) for seqs in there}) > 1
        if isinstance(answer, Stored):
            missing += there != [[seq] for seq in answer.seqs]
        elif isinstance(answer, Conflict):
            surplus += sum(map(len, there))
    return double, missing, surplus, half
