"""Heartbeats of a message end with its answer, and none is left when the inbox closes."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

import oncemore
from oncemore.inbox import Inbox, jetstream
from tests.messaging.inbox.broker import Broker, left, published, wire
from tests.messaging.inbox.fake_queue import POLICY, Queue, make_message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.inbox import ReceivedMessage

BEAT = "beat"
#: How long an answer takes, and how long to listen for what should not come: several heartbeats.
AWAY_S = 0.01


class Slow(Queue):
    """A slow queue: heartbeats and answers take some time."""

    heartbeat_s = 0.001

    def __init__(self, *messages: Any) -> None:
        super().__init__(*messages)
        self.heard: dict[str, list[str]] = defaultdict(list)
        self.after_close: list[str] = []
        self.cut = 0

    async def extend_lease(self, delivery: ReceivedMessage) -> None:
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        self.beats += 1
        self.heard[delivery.message.id].append(BEAT)
        self.after_close += [delivery.message.id] * self.closed

    def _answer(self, delivery: ReceivedMessage, *told: Any) -> None:
        super()._answer(delivery, *told)
        self.heard[delivery.message.id].append(told[0])

    async def ack(self, delivery: ReceivedMessage) -> None:
        await super().ack(delivery)
        await asyncio.sleep(AWAY_S)

    async def nak(self, delivery: ReceivedMessage, delay_s: float) -> None:
        await super().nak(delivery, delay_s)
        await asyncio.sleep(AWAY_S)

    async def terminate(self, delivery: ReceivedMessage, why: str) -> None:
        await super().terminate(delivery, why)
        await asyncio.sleep(AWAY_S)

    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(AWAY_S)  # whoever still beats is heard


def served(inbox: Inbox, enough: Any) -> set[str]:
    """Serve until a condition holds; return the tasks that are left in the loop."""

    async def main() -> set[str]:
        serving = asyncio.ensure_future(inbox.serve())
        async with asyncio.timeout(20):
            while not enough() and not serving.done():  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.001)
        inbox.stop()
        await serving
        await asyncio.sleep(AWAY_S)
        return {repr(task.get_coro()) for task in asyncio.all_tasks() - {asyncio.current_task()}}

    return asyncio.run(main())


def step(seed: str, heard: Any = lambda: True) -> Any:
    """A step that takes a random time and ends as its message says."""
    chance = random.Random(seed)

    @oncemore.step(effect="idempotent", policy=POLICY, name="book")
    async def book(ends: str) -> str:
        await asyncio.sleep(chance.uniform(0.0, 0.02))
        while not heard():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.001)
        if ends == "deferred":
            raise oncemore.TransientError("not now")
        if ends == "failed":
            raise oncemore.PermanentError("never")
        return ends

    return book


@pytest.mark.parametrize("lanes", [False, True])
def test_no_heartbeat_follows_an_answer(engine: oncemore.Engine, lanes: bool) -> None:
    seed = f"{random.SystemRandom().getrandbits(32):08x}"
    print(f"seed {seed}")
    kinds = ("done", "deferred", "failed")
    messages = [make_message(f"{'abcd'[n % 4]}{n}", {"ends": kinds[n % 3]}) for n in range(60)]
    queue = Slow(*messages, make_message("x", b"{no json"))
    queue.lanes = lanes
    inbox = Inbox(queue, step(seed, lambda: queue.beats), concurrency=16)
    left_over = served(inbox, lambda: len(queue.told) == 61)
    answers = {told[-1] for told in queue.heard.values()}
    assert answers == {"ack", "nak", "term"}
    for ident, told in queue.heard.items():
        assert told[:-1] == [BEAT] * (len(told) - 1), (ident, told)
    assert queue.beats, "no heartbeat"
    assert queue.cut, "none was under way when its message was answered"
    assert (queue.after_close, left_over) == ([], set())


def test_no_heartbeat_follows_a_lost_answer(engine: oncemore.Engine) -> None:
    """The queue must deliver it again, which a further heartbeat would prevent."""
    queue = Slow(make_message("m1", {"ends": "done"}))
    queue.deaf = [OSError("the line is cut")]
    inbox = Inbox(queue, step("1"))
    beats: list[int] = []

    def enough() -> bool:
        if inbox.stats.unanswered:
            beats.append(queue.beats)
        return len(beats) > 30

    assert served(inbox, enough) == set()
    assert len(set(beats)) == 1
    assert queue.told == []


def test_no_heartbeat_follows_a_return_after_a_store_error(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, real = Slow(make_message("m1", {"ends": "failed"})), engine.store.load_head

    def away(entity: str) -> Any:
        if entity.startswith("event/"):  # where its dead letter would be kept
            raise oncemore.StoreError("away")
        return real(entity)

    monkeypatch.setattr(engine.store, "load_head", away)
    assert served(Inbox(queue, step("1")), lambda: queue.told) == set()
    assert queue.heard["m1"][-1] == "nak"
    assert set(queue.heard["m1"][:-1]) <= {BEAT}


def test_no_heartbeat_follows_a_cancellation_at_the_end(engine: oncemore.Engine) -> None:
    queue = Slow(*(make_message(f"m{n}", {}) for n in range(3)))

    @oncemore.step(effect="idempotent", name="hangs")
    async def hangs() -> None:
        await asyncio.sleep(60)

    inbox = Inbox(queue, hangs, grace_s=0.0)
    assert served(inbox, lambda: queue.beats >= 6) == set()
    assert queue.after_close == []
    assert queue.told == [], "it comes again, when its time is over"


# On a real server


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = Broker(tmp_path_factory.mktemp("nats"))
    yield made.start()
    made.stop()


_WORD = re.compile(rb"PUB (\$JS\.ACK\.\S+) [^\r]*\r\n(\+WPI|\+ACK|-NAK|\+TERM)")


def heard(sent: bytearray) -> dict[bytes, list[bytes]]:
    """Return the answers to the server by delivery, in order."""
    told: dict[bytes, list[bytes]] = defaultdict(list)
    for subject, word in _WORD.findall(bytes(sent)):
        told[subject].append(word)
    return told


def test_jetstream_gets_no_heartbeat_after_an_answer_or_the_end(url: str, tmp_path: Path) -> None:
    ack_wait_s = 1.0

    @oncemore.step(effect="idempotent", policy=POLICY, name="book")
    def book(ends: str) -> str:
        time.sleep(1.5 * ack_wait_s)  # real time: it is the server's that counts
        if ends == "deferred":
            raise oncemore.TransientError("not now")
        if ends == "failed":
            raise oncemore.PermanentError("never")
        return ends

    messages: list[Any] = [
        ("beats.new", b'{"ends": "%s"}' % ends, {}) for ends in (b"done", b"deferred", b"failed")
    ]
    asyncio.run(published(url, "BEATS", *messages))
    with oncemore.open(tmp_path / "log.db"), wire(url) as cable:
        inbox = jetstream(book, cable.url, stream="BEATS", durable="shop", ack_wait=ack_wait_s)
        assert served(inbox, lambda: min(inbox.stats.done, inbox.stats.deferred, inbox.stats.dead)) == set()
        at_the_end = len(cable.sent)
        time.sleep(ack_wait_s)  # the server's patience, three heartbeats
        assert len(cable.sent) == at_the_end
    assert (inbox.stats.done, inbox.stats.dead, inbox.stats.store_error, inbox.stats.unanswered) == (
        1,
        1,
        0,
        0,
    )
    told = list(heard(cable.sent).values())
    # A machine that stood still longer than the server waits has a message delivered again, and puts it off.
    assert sorted(words[-1] for words in told) == [b"+ACK", b"+TERM", *[b"-NAK"] * inbox.stats.deferred]
    assert sum(len(words) >= 3 for words in told) >= 3, "they were not kept while they were under way"
    for words in told:
        assert set(words[:-1]) <= {b"+WPI"}, words
    assert asyncio.run(left(url, "BEATS"))[0] == 1, "only what was put off is left"
