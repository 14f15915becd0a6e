"""Heartbeats of a letter end with its answer, whatever that is, and none is left when an inbox closes."""

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
from tests.inbox.broker import Broker, left, published, wire
from tests.inbox.world import POLICY, Queue, letter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from oncemore.inbox import Delivery

BEAT = "beat"
#: How long an answer takes, and how long to listen for what should not come: several heartbeats.
AWAY_S = 0.01


class Slow(Queue):
    """A queue far away: a heartbeat leaves some time after it was begun, and an answer is answered later."""

    beat_s = 0.001

    def __init__(self, *letters: Any) -> None:
        super().__init__(*letters)
        self.heard: dict[str, list[str]] = defaultdict(list)
        self.after_close: list[str] = []
        self.cut = 0

    async def beat(self, delivery: Delivery) -> None:
        try:
            await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        self.beats += 1
        self.heard[delivery.letter.id].append(BEAT)
        self.after_close += [delivery.letter.id] * self.closed

    def _answer(self, delivery: Delivery, *told: Any) -> None:
        super()._answer(delivery, *told)
        self.heard[delivery.letter.id].append(told[0])

    async def ack(self, delivery: Delivery) -> None:
        await super().ack(delivery)
        await asyncio.sleep(AWAY_S)

    async def nak(self, delivery: Delivery, delay_s: float) -> None:
        await super().nak(delivery, delay_s)
        await asyncio.sleep(AWAY_S)

    async def term(self, delivery: Delivery, why: str) -> None:
        await super().term(delivery, why)
        await asyncio.sleep(AWAY_S)

    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(AWAY_S)  # whoever still beats is heard


def served(inbox: Inbox, enough: Any) -> set[str]:
    """Serve until there is enough; return the tasks that are left in the loop afterwards."""

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
    """A step that takes a moment by chance, or until something is heard, and ends as its letter says."""
    chance = random.Random(seed)

    @oncemore.step(effect="idempotent", policy=POLICY, name="book")
    async def book(ends: str) -> str:
        await asyncio.sleep(chance.uniform(0.0, 0.02))
        while not heard():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.001)
        if ends == "later":
            raise oncemore.TransientError("not now")
        if ends == "failed":
            raise oncemore.PermanentError("never")
        return ends

    return book


@pytest.mark.parametrize("lanes", [False, True])
def test_nothing_is_heard_of_a_letter_after_its_answer(engine: oncemore.Engine, lanes: bool) -> None:
    seed = f"{random.SystemRandom().getrandbits(32):08x}"
    print(f"seed {seed}")
    kinds = ("done", "later", "failed")
    letters = [letter(f"{'abcd'[n % 4]}{n}", {"ends": kinds[n % 3]}) for n in range(60)]
    queue = Slow(*letters, letter("x", b"{no json"))
    queue.lanes = lanes
    inbox = Inbox(queue, step(seed, lambda: queue.beats), concurrency=16)
    left_over = served(inbox, lambda: len(queue.told) == 61)
    answers = {told[-1] for told in queue.heard.values()}
    assert answers == {"ack", "nak", "term"}
    for ident, told in queue.heard.items():
        assert told[:-1] == [BEAT] * (len(told) - 1), (ident, told)
    assert queue.beats, "no heartbeat"
    assert queue.cut, "none was under way when its letter was answered"
    assert (queue.after_close, left_over) == ([], set())


def test_one_whose_answer_does_not_get_through_beats_no_more_either(engine: oncemore.Engine) -> None:
    """It is to come again: who beats on would keep it from coming."""
    queue = Slow(letter("m1", {"ends": "done"}))
    queue.deaf = [OSError("the line is cut")]
    inbox = Inbox(queue, step("1"))
    beats: list[int] = []

    def enough() -> bool:
        if inbox.taken.unanswered:
            beats.append(queue.beats)
        return len(beats) > 30

    assert served(inbox, enough) == set()
    assert len(set(beats)) == 1
    assert queue.told == []


def test_one_that_the_store_was_in_trouble_with_beats_no_more_once_it_is_given_back(
    engine: oncemore.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, real = Slow(letter("m1", {"ends": "failed"})), engine.store.head

    def away(entity: str) -> Any:
        if entity.startswith("event/"):  # where its dead letter would be kept
            raise oncemore.StoreError("away")
        return real(entity)

    monkeypatch.setattr(engine.store, "head", away)
    assert served(Inbox(queue, step("1")), lambda: queue.told) == set()
    assert queue.heard["m1"][-1] == "nak"
    assert set(queue.heard["m1"][:-1]) <= {BEAT}


def test_what_is_cut_off_at_the_end_is_not_kept_alive(engine: oncemore.Engine) -> None:
    queue = Slow(*(letter(f"m{n}", {}) for n in range(3)))

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
    """Return what the server was told of each delivery, in its order."""
    told: dict[bytes, list[bytes]] = defaultdict(list)
    for subject, word in _WORD.findall(bytes(sent)):
        told[subject].append(word)
    return told


def test_on_the_wire_no_in_progress_follows_an_answer_or_the_end(url: str, tmp_path: Path) -> None:
    ack_wait_s = 1.0

    @oncemore.step(effect="idempotent", policy=POLICY, name="book")
    def book(ends: str) -> str:
        time.sleep(1.5 * ack_wait_s)  # real time: it is the server's that counts
        if ends == "later":
            raise oncemore.TransientError("not now")
        if ends == "failed":
            raise oncemore.PermanentError("never")
        return ends

    letters: list[Any] = [
        ("beats.new", b'{"ends": "%s"}' % ends, {}) for ends in (b"done", b"later", b"failed")
    ]
    asyncio.run(published(url, "BEATS", *letters))
    with oncemore.open(tmp_path / "log.db"), wire(url) as cable:
        inbox = jetstream(book, cable.url, stream="BEATS", durable="shop", ack_wait=ack_wait_s)
        assert served(inbox, lambda: min(inbox.taken.done, inbox.taken.later, inbox.taken.dead)) == set()
        at_the_end = len(cable.sent)
        time.sleep(ack_wait_s)  # the server's patience, three heartbeats
        assert len(cable.sent) == at_the_end
    assert (inbox.taken.done, inbox.taken.dead, inbox.taken.trouble, inbox.taken.unanswered) == (1, 1, 0, 0)
    told = list(heard(cable.sent).values())
    # A machine that stood still longer than the server waits has a letter delivered again, and puts it off.
    assert sorted(words[-1] for words in told) == [b"+ACK", b"+TERM", *[b"-NAK"] * inbox.taken.later]
    assert sum(len(words) >= 3 for words in told) >= 3, "they were not kept while they were under way"
    for words in told:
        assert set(words[:-1]) <= {b"+WPI"}, words
    assert asyncio.run(left(url, "BEATS"))[0] == 1, "only what was put off is left"
