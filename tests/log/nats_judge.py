"""Writers on a store in NATS, and checks of their answers against the messages of the stream."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import nats as client

from oncemore.log.store import Batch, Conflict, Stored
from oncemore.testing.store_contract import make_write
from tests.servers.cutting import BODY

if TYPE_CHECKING:
    from oncemore.errors import StoreError
    from oncemore.log.nats.store import NatsStore
    from oncemore.log.store import EntryWrite


class AnsweredBatch(NamedTuple):
    """The writes of a batch and the answer that its caller got."""

    writes: tuple[EntryWrite, ...]
    answer: Stored | Conflict | StoreError
    expected_version: int = -1  # the expected version of the switch that moves; -1 without that guard


def make_unique_write(store: NatsStore, entity: str) -> EntryWrite:
    return make_write(entity, store.load_head(entity), secrets.token_bytes(8) + BODY)


#: A guard that one writer moves while the other writers rely on it.
MOVES = "switch/moves"


def work(
    store: NatsStore, mine: int, rounds: int, answered: list[AnsweredBatch], errors: list[object]
) -> None:
    """Write own entities, contested ones, and pairs; some of the batches with a guard."""
    try:
        for n in range(rounds):
            own = MOVES if mine == 0 else f"run/{mine}"
            entities = [(own,), ("run/hot",), (f"run/{mine}-{n}", f"worker/{mine}")][n % 3]
            writes = tuple(make_unique_write(store, entity) for entity in entities)
            guards, expected_version = {"switch/off": 0} if n % 2 else {}, -1
            if n % 3 == 0 and mine:
                head = store.load_head(MOVES)
                expected_version = 0 if head is None else head.version
                guards = {MOVES: expected_version}
            batch = Batch(writes, guards, late=expected_version >= 0)
            answered.append(AnsweredBatch(writes, store.append(batch).wait(), expected_version))
    except BaseException as fault:
        errors.append(fault)


def read_stream(url: str, namespace: str) -> list[tuple[int, str, bytes]]:
    """Return sequence, append id and body of every entity message, read with nats-py alone."""

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


def count_errors(
    answered: list[AnsweredBatch], frames: list[tuple[int, str, bytes]]
) -> tuple[int, int, int, int]:
    """Count writes that are stored twice, missing, stored despite a conflict, or without their pair."""
    standing: dict[bytes, list[int]] = {}
    for seq, _, body in frames:
        standing.setdefault(body, []).append(seq)
    double = sum(len(seqs) > 1 for body, seqs in standing.items() if body)
    missing = surplus = half = 0
    for writes, answer, _ in answered:
        there = [standing.get(one.body, []) for one in writes]
        half += len({bool(seqs) for seqs in there}) > 1
        if isinstance(answer, Stored):
            missing += there != [[seq] for seq in answer.seqs]
        elif isinstance(answer, Conflict) and answer.stored_seqs:
            missing += there != [[seq] for seq in answer.stored_seqs]
        elif isinstance(answer, Conflict):
            surplus += sum(map(len, there))
    return double, missing, surplus, half


def count_missed_moves(answered: list[AnsweredBatch], moves: list[int]) -> int:
    """Count answers "stored" although the switch had moved before; `moves` are the seqs of its entries."""
    return sum(
        sum(seq < answer.seqs[0] for seq in moves) != expected_version
        for _, answer, expected_version in answered
        if expected_version >= 0 and isinstance(answer, Stored)
    )
