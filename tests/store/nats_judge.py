"""Writers on a store in NATS, and a judge that believes only the messages of the stream."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import nats as client

from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import write
from tests.servers.cutting import BODY

if TYPE_CHECKING:
    from oncemore.errors import StoreError
    from oncemore.log.nats.store import NatsStore
    from oncemore.log.store import Write


class Answered(NamedTuple):
    """What a caller was told about its writes."""

    writes: tuple[Write, ...]
    answer: Stored | Conflict | StoreError
    relied: int = -1  # the version of the switch that moves, if it was relied on


def nonced(store: NatsStore, entity: str) -> Write:
    return write(entity, store.head(entity), secrets.token_bytes(8) + BODY)


#: A guard that somebody moves while others rely on it, and may be told so late.
MOVES = "switch/moves"


def work(store: NatsStore, mine: int, rounds: int, told: list[Answered], faults: list[object]) -> None:
    """Write alone, against others, and two at once; on the strength of a guard now and then."""
    try:
        for n in range(rounds):
            own = MOVES if mine == 0 else f"run/{mine}"
            entities = [(own,), ("run/hot",), (f"run/{mine}-{n}", f"worker/{mine}")][n % 3]
            writes = tuple(nonced(store, entity) for entity in entities)
            guards, relied = {"switch/off": 0} if n % 2 else {}, -1
            if n % 3 == 0 and mine:
                head = store.head(MOVES)
                relied = 0 if head is None else head.version
                guards = {MOVES: relied}
            batch = Batch(writes, guards, late=relied >= 0)
            told.append(Answered(writes, store.append(batch).wait(), relied))
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
    for writes, answer, _ in told:
        there = [standing.get(one.body, []) for one in writes]
        half += len({bool(seqs) for seqs in there}) > 1
        if isinstance(answer, Stored):
            missing += there != [[seq] for seq in answer.seqs]
        elif isinstance(answer, Conflict) and answer.stands:
            missing += there != [[seq] for seq in answer.stands]
        elif isinstance(answer, Conflict):
            surplus += sum(map(len, there))
    return double, missing, surplus, half


def misled(told: list[Answered], moves: list[int]) -> int:
    """Return how many were told "stored" though the switch had moved before; `moves` are the seqs of that."""
    return sum(
        sum(seq < answer.seqs[0] for seq in moves) != relied
        for _, answer, relied in told
        if relied >= 0 and isinstance(answer, Stored)
    )
