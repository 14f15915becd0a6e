"""The subjects of scale.py on NATS JetStream: our appends and steps, and publishes by hand.

By hand means: the client's own publish to a subject of its own, with the sequence that its last message must
have, and nothing else: no head, no hash, no record of what ran. A step by hand is two of them, and asks for
nobody's leave; what it costs with a guard of its own (an atomic batch) is measured beside it. Bodies have 600
bytes. The server syncs before it acknowledges (`sync_interval: always`), for all of them alike.
"""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import nats
from _measure import Effort, Goal, Group, Row, Subject, at_least, interleaved, ratios, spread

import oncemore
from oncemore.log.entry_codec import hash_entry
from oncemore.log.nats.store import NatsStore
from oncemore.log.record import NOWHERE
from oncemore.log.store import Batch, EntryWrite, HeadIndex
from oncemore.policy.canonical_json import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

AT_ONCE = 32
BODY = b"x" * 600
EXPECT = "Nats-Expected-Last-Subject-Sequence"
RAW, RAW_TWO = "publish by hand", "two publishes by hand"
GUARDED = "guarded batch and publish by hand"
APPEND, STEP = "our append", "our step"
THREADS = f"our append, {AT_ONCE} threads"

ALONE, MANY = "NATS, one at a time", f"NATS, {AT_ONCE} at once"
STEPS, MANY_STEPS = "NATS, a step at a time", f"NATS, {AT_ONCE} steps at once"


class ByHand:
    """A connection of its own in a loop of its own, and the client's publish."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._numbers = count(1)
        self._runner.run(self._open(url))

    async def _open(self, url: str) -> None:
        self._client = await nats.connect(url)
        self._stream = self._client.jetstream()
        options: dict[str, Any] = {"allow_direct": True, "allow_atomic": True, "duplicate_window": 0.1}
        await self._stream.add_stream(name="HAND", subjects=["hand.*"], **options)

    async def _one(self, messages: int) -> None:
        subject, last = f"hand.{next(self._numbers)}", 0
        for _ in range(messages):
            last = (await self._stream.publish(subject, BODY, headers={EXPECT: str(last)})).seq

    async def _guarded(self) -> None:
        """Publish to a new subject only if another has not moved, and once more to the same."""
        number = next(self._numbers)
        subject, batch = f"hand.{number}", {"Nats-Batch-Id": f"b{number}"}
        guard = {EXPECT: "0", f"{EXPECT}-Subject": "hand.switches", "Nats-Batch-Sequence": "1"}
        await self._client.publish("hand.guard", b"", headers={**batch, **guard})
        last = {EXPECT: "0", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
        answer = await self._client.request(subject, BODY, headers={**batch, **last}, timeout=10)
        await self._stream.publish(subject, BODY, headers={EXPECT: str(json.loads(answer.data)["seq"])})

    def alone(self, messages: int) -> Callable[[int], int]:
        """Return what publishes one after the other; 0 messages: a guarded batch and one more."""

        async def go(n: int) -> int:
            begin = time.perf_counter_ns()
            for _ in range(n):
                await (self._one(messages) if messages else self._guarded())
            return time.perf_counter_ns() - begin

        return lambda n: self._runner.run(go(n))

    def together(self, messages: int) -> Callable[[int], int]:
        """Return what publishes with many under way."""
        make = (lambda: self._one(messages)) if messages else self._guarded
        return lambda n: self._runner.run(at_once(make, n))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


async def at_once(make: Callable[[], Any], n: int) -> int:
    """Do something n times, 32 at a time; return how long that took."""
    left = iter(range(n))

    async def one() -> None:
        for _ in left:
            await make()

    begin = time.perf_counter_ns()
    await asyncio.gather(*[one() for _ in range(min(n, AT_ONCE))])
    return time.perf_counter_ns() - begin


class Ours:
    """A store and an engine on it."""

    def __init__(self, url: str) -> None:
        self._store = NatsStore(f"{url}/bench")
        self._engine = oncemore.open(f"{url}/bench")
        self._numbers = count(1)
        self._runner = asyncio.Runner()
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._work = oncemore.step(effect="idempotent", name="bench")(lambda n: n).bind(self._engine)

        async def work(n: int) -> int:
            return n

        self._task = oncemore.step(effect="idempotent", name="bench.task")(work).bind(self._engine)

    def _batch(self) -> Batch:
        header = b"header"
        hashed = hash_entry(NOWHERE, header, hash_bytes(BODY))
        return Batch(
            (
                EntryWrite(
                    f"bench/{next(self._numbers)}", 0, header, BODY, hashed, b"head", HeadIndex("bench")
                ),
            )
        )

    def append(self, n: int) -> int:
        begin = time.perf_counter_ns()
        for _ in range(n):
            self._store.append(self._batch()).wait()
        return time.perf_counter_ns() - begin

    def appends(self, n: int) -> int:
        async def one() -> None:
            await self._store.append(self._batch())

        return self._runner.run(at_once(one, n))

    def threads(self, n: int) -> int:
        left = iter(range(n))

        def one(_: int) -> None:
            for _ in left:
                self._store.append(self._batch()).wait()

        begin = time.perf_counter_ns()
        list(self._pool.map(one, range(AT_ONCE)))
        return time.perf_counter_ns() - begin

    def step(self, n: int) -> int:
        begin = time.perf_counter_ns()
        for _ in range(n):
            self._work(next(self._numbers))
        return time.perf_counter_ns() - begin

    def steps(self, n: int) -> int:
        async def one() -> None:
            await self._task(next(self._numbers))

        return self._runner.run(at_once(one, n))

    def close(self) -> None:
        self._pool.shutdown()
        self._runner.close()
        self._engine.close()
        self._store.close()


def groups(url: str, effort: Effort, opened: ExitStack) -> Iterator[Group]:
    """Measure, table by table; subjects of one table take turns."""
    hand, ours = ByHand(url), Ours(url)
    opened.callback(hand.close)
    opened.callback(ours.close)
    for name, over, subjects in (
        (ALONE, RAW, [Subject(RAW, hand.alone(1)), Subject(APPEND, ours.append)]),
        (
            STEPS,
            RAW_TWO,
            [
                Subject(GUARDED, hand.alone(0)),
                Subject(RAW_TWO, hand.alone(2)),
                Subject(STEP, ours.step),
            ],
        ),
        (
            MANY,
            RAW,
            [
                at_least(Subject(RAW, hand.together(1)), 2 * AT_ONCE),
                at_least(Subject(APPEND, ours.appends), 2 * AT_ONCE),
                at_least(Subject(THREADS, ours.threads), 2 * AT_ONCE),
            ],
        ),
        (
            MANY_STEPS,
            RAW_TWO,
            [
                at_least(Subject(GUARDED, hand.together(0)), 2 * AT_ONCE),
                at_least(Subject(RAW_TWO, hand.together(2)), 2 * AT_ONCE),
                at_least(Subject(STEP, ours.steps), 2 * AT_ONCE),
            ],
        ),
    ):
        costs = interleaved(subjects, effort)
        against = ratios({key: [1 / one for one in own] for key, own in costs.items()}, over)
        rows = [
            Row(subject, spread([own / 1e6 for own in costs[subject]]), against[subject]) for subject in costs
        ]
        yield Group(name, "ms", f"the rate of {over}", rows)


def goals(found: dict[str, Group]) -> list[Goal]:
    """Judge: at least half the rate of what the client alone can do."""
    asked = [
        (ALONE, APPEND, "an append beside a publish by hand"),
        (STEPS, STEP, "a step beside two publishes by hand"),
        (MANY, APPEND, f"… {AT_ONCE} at once"),
        (MANY_STEPS, STEP, f"… {AT_ONCE} steps at once"),
    ]
    return [
        Goal("NATS", what, found[group].of(row).ratio, 0.5, 0.75, most=False) for group, row, what in asked
    ]
