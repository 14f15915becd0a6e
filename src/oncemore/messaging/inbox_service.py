"""An inbox: takes letters from a queue, some at a time, until it is told to stop.

What happens to a letter, and what a crash means, is told in `messaging.inbox_flow`; here its script is
driven. An
inbox is a task on an event loop: async steps run on it, plain ones in threads. Letters under way are told to
the queue as such, so that it gives them to nobody else; the answer comes after everything is stored, and an
answer that is lost is made up for when the letter comes again.
"""

from __future__ import annotations

import asyncio
import contextvars
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from oncemore._values import Value
from oncemore.audit.neutral import neutral
from oncemore.classifiers.classify import classify, ready
from oncemore.errors import Error, PermanentError, TransientError, UsageError
from oncemore.messaging import relay
from oncemore.messaging.driver import Courier, Sinks, awaiting
from oncemore.messaging.inbox_flow import CameTo, Letter, Perform, Reply, away_s, letter_of, take, topic_of
from oncemore.messaging.inbox_step import Taker
from oncemore.messaging.relay import MOST_BYTES, POLICY, DeadLetter
from oncemore.policy.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oncemore.messaging.inbox_message import Called
    from oncemore.messaging.message import Message
    from oncemore.steps.engine import Engine
    from oncemore.steps.ops import Script

#: After so many deliveries a letter that fails outside of its step is given up, too.
MOST_DELIVERIES = 20
MOST_AT_ONCE = 1000
#: How long an answer to the queue may take; how long to leave a queue alone that cannot be asked.
ANSWER_S, AWAY_S = 10.0, 1.0
#: How long what is cut off has to write down that it was.
CUT_S = 5.0


class Delivery(NamedTuple):
    """A letter, what its queue knows it by, and the lane in which letters keep their order, if any."""

    letter: Letter
    token: Any
    lane: str = ""


class Source(Protocol):
    """A queue: what an inbox asks of it.

    name    whose the ids of its letters are
    beat_s  how often it is told that a letter is still under way
    """

    name: str
    beat_s: float

    async def open(self) -> None:
        """Connect; refuse with a `UsageError` what no waiting will cure."""

    async def receive(self, limit: int) -> Sequence[Delivery]:
        """Return letters, after a short while also none."""

    async def ack(self, delivery: Delivery) -> None:
        """Have it never come again; return when the queue has said so."""

    async def nak(self, delivery: Delivery, delay_s: float) -> None:
        """Have it come again after a while."""

    async def term(self, delivery: Delivery, why: str) -> None:
        """Have it never come again, though it was not done."""

    async def beat(self, delivery: Delivery) -> None:
        """Say that it is still under way."""

    async def close(self) -> None:
        """Let go of the connection."""


class Taken(Value):
    """How many letters came to what.

    done        their work was done now
    seen        they had come before: nothing was run
    later       their work is due later, or somebody else is at it; they come again
    held        their work waits for a person
    dead        kept as dead letters: unreadable, or failed for good
    trouble     they could not be taken in here and now; they come again
    unanswered  the queue could not be told; they come again
    """

    done: int = 0
    seen: int = 0
    later: int = 0
    held: int = 0
    dead: int = 0
    trouble: int = 0
    unanswered: int = 0


_COUNTED = {
    "done": "done", "seen": "seen", "expired": "seen", "later": "later", "busy": "later", "held": "held",
    "failed": "dead", "unreadable": "dead", "conflict": "dead", "trouble": "trouble",
}  # fmt: skip


class Inbox:
    """Takes letters from a queue and calls a step for each, once, however often it is delivered.

    key          what makes two letters the same work: their own ids, unless a function of the content says;
                 "arguments": what makes two calls of the step the same
    arguments    a function of the content that gives the step's arguments by name
    concurrency  how many letters may be under way at once
    grace_s      how long what is under way may take when it is told to stop
    poll_s       how often to look for dead letters that a person has released
    """

    def __init__(
        self,
        source: Source,
        step: Any,
        *,
        engine: Engine | None = None,
        key: Callable[[Any], Any] | str | None = None,
        arguments: Callable[[Any], Mapping[str, Any]] | None = None,
        concurrency: int = 5,
        grace_s: float = 30.0,
        poll_s: float = 2.0,
    ) -> None:
        whole = isinstance(concurrency, int) and not isinstance(concurrency, bool)
        if not whole or not 1 <= concurrency <= MOST_AT_ONCE:
            raise UsageError(f"concurrency is {concurrency!r}; it takes 1 to {MOST_AT_ONCE}")
        self._source, self._taker = source, Taker.of(step, engine, key, arguments)
        self._concurrency, self._grace_s, self._poll_s = concurrency, grace_s, poll_s
        self._counts: dict[str, int] = {}
        self._busy: dict[asyncio.Task[Any], str] = {}
        self._stopping = threading.Event()
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._at_work, self._lock = 0, threading.Lock()
        ready()

    def __repr__(self) -> str:
        return f"<oncemore.Inbox {self._source.name} for {self._taker.name}>"

    @property
    def taken(self) -> Taken:
        """How many letters came to what, until now."""
        return Taken(**self._counts)

    @property
    def under_way(self) -> tuple[str, ...]:
        """The ids of the letters that are under way."""
        return tuple(self._busy.values())

    @property
    def threads_left(self) -> int:
        """How many plain steps are still at work in threads, after `run()` could not wait any longer."""
        return self._at_work

    def dead(self) -> tuple[DeadLetter, ...]:
        """Return the dead letters of this step; `oncemore quarantine` lists and releases them."""
        topic = topic_of(self._taker.name)
        return tuple(each for each in self._relay(self._taker.engine).dead() if each.topic == topic)

    def run(self) -> Taken:
        """Take letters until `stop()`, SIGTERM or Ctrl-C; what is under way then comes to its end."""
        return asyncio.run(self._run(drains=False))

    def drain(self) -> Taken:
        """Take what is there now, and end."""
        return asyncio.run(self._run(drains=True))

    async def serve(self) -> Taken:
        """Take letters until `stop()`; the same as `run()`, in a task of yours."""
        return await self._serve(drains=False)

    def stop(self) -> None:
        """Take no more letters; may be called from anywhere, also before it has begun."""
        self._stopping.set()
        if self._wake is not None:
            loop, told = self._wake
            with suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(told.set)

    # The loop ---------------------------------------------------------------------------------------

    async def _run(self, drains: bool) -> Taken:
        loop, heard = asyncio.get_running_loop(), []
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    loop.add_signal_handler(number, self.stop)
                    heard.append(number)
        try:
            return await self._serve(drains)
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    async def _serve(self, drains: bool) -> Taken:
        told = asyncio.Event()
        self._wake = asyncio.get_running_loop(), told
        self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="oncemore-inbox")
        again: asyncio.Task[None] | None = None
        try:
            if await self._open(told):
                again = asyncio.create_task(self._released())
                await self._take_all(drains, told)
            await self._all_over()
        finally:
            if again is not None:
                again.cancel()
                await asyncio.wait({again}, timeout=CUT_S)
            with suppress(Exception):
                await asyncio.wait_for(self._source.close(), ANSWER_S)
            self._pool.shutdown(wait=False)
            self._wake = None
            self._stopping.clear()
        return self.taken

    async def _open(self, told: asyncio.Event) -> bool:
        """Connect, however long that takes; return whether it came to that before it was to stop."""
        while not self._stopping.is_set():
            try:
                opening = asyncio.ensure_future(self._source.open())
                waits = asyncio.ensure_future(told.wait())
                await asyncio.wait({opening, waits}, return_when=asyncio.FIRST_COMPLETED)
                waits.cancel()
                if not opening.done():  # it was told to stop
                    await _ended(opening)
                    return False
                opening.result()
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - a queue may come up later than those who ask it
                self._complain("could not reach its queue", error)
                await _pause(told, AWAY_S)
            else:
                return True
        return False

    async def _take_all(self, drains: bool, told: asyncio.Event) -> None:
        while not self._stopping.is_set():
            room = self._concurrency - len(self._busy)
            if not room:
                await self._any_over(told)
                continue
            try:
                deliveries = await self._source.receive(room)
            except Exception as error:  # noqa: BLE001 - an inbox that ends is one that nobody misses in time
                self._complain("got no answer from its queue", error)
                await _pause(told, AWAY_S)
                continue
            for lane in _lanes(deliveries):
                self._start(lane)
            if drains and not deliveries and not self._busy:
                return

    def _start(self, lane: list[Delivery]) -> None:
        task = asyncio.create_task(self._handle_all(lane))
        self._busy[task] = lane[0].letter.id
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        del self._busy[task]
        if not task.cancelled() and task.exception() is not None:
            self._complain("lost a letter to its queue", task.exception())

    async def _any_over(self, told: asyncio.Event) -> None:
        waits = asyncio.ensure_future(told.wait())
        await asyncio.wait({*self._busy, waits}, return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()

    async def _all_over(self) -> None:
        """Let what is under way come to its end; what does not in time is cut off, and comes again."""
        if self._busy:
            await asyncio.wait(set(self._busy), timeout=self._grace_s)
        for task in list(self._busy):
            task.cancel()
        if self._busy:
            await asyncio.wait(set(self._busy), timeout=CUT_S)

    # A letter ---------------------------------------------------------------------------------------

    async def _handle_all(self, lane: list[Delivery]) -> None:
        """Take the letters of one lane in their order; behind one that is put off all others are, too."""
        beats = [asyncio.create_task(self._beats(delivery)) for delivery in lane]
        put_off: Reply | None = None
        try:
            for delivery, beat in zip(lane, beats, strict=True):
                if put_off is None and not self._stopping.is_set():
                    put_off = await self._handle(delivery, beat)
                    continue
                await _ended(beat)  # it was not begun: somebody else may have it now
                await self._reply(delivery, put_off or Reply("nak"))
                self._count("later")
        finally:
            for beat in beats:
                beat.cancel()

    async def _handle(self, delivery: Delivery, beat: asyncio.Task[None]) -> Reply | None:
        """Take one letter; return how it was put off, or None if it is over."""
        try:
            came_to, answer = await self._driven(delivery, beat)
        except Exception as error:  # noqa: BLE001 - the store, most likely: it comes again
            self._complain(f"could not take {delivery.letter.id[:80]!r}", error)
            came_to = CameTo("trouble")
            answer = Reply("nak", away_s(came_to, 0.0))
            await _ended(beat)
            await self._reply(delivery, answer)
        self._count(_COUNTED[came_to.what])
        return answer if answer.verb == "nak" else None

    async def _driven(self, delivery: Delivery, beat: asyncio.Task[None]) -> tuple[CameTo, Reply]:
        """Drive a letter's script to its end; return what it came to, and how it was answered."""
        script = take(delivery.letter, self._taker.name)
        engine = self._taker.engine
        courier = Courier(engine, self._sinks(), MOST_BYTES, None, None)
        op, replied = next(script), Reply("nak")
        while True:
            answer: Any = None
            if type(op) is Perform:
                answer = await self._performed(op.letter)
            elif type(op) is Reply:
                await _ended(beat)  # what is answered is not under way any more
                await self._reply(delivery, op)
                replied = op
            else:
                answer = await awaiting(courier, _only(op))
            try:
                op = script.send(answer)
            except StopIteration as end:
                return end.value, replied

    def _worked(self, called: Called) -> CameTo:
        with self._lock:
            self._at_work += 1
        try:
            return self._taker.call(called)
        finally:
            with self._lock:
                self._at_work -= 1

    async def _performed(self, letter: Letter) -> CameTo:
        called = self._taker.read(letter)
        if isinstance(called, CameTo):
            return called
        try:
            if self._taker.awaits:
                return await self._taker.call_awaited(called)
            assert self._pool is not None
            around = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, lambda: around.run(self._worked, called)
            )
        except Exception as error:  # noqa: BLE001 - no end that a step comes to: a mistake in it, or in us
            self._complain(f"could not take {letter.id[:80]!r}", error)
            given_up = letter.delivery >= MOST_DELIVERIES
            return CameTo("failed" if given_up else "trouble", error={"code": "", **neutral(error)})

    async def _beats(self, delivery: Delivery) -> None:
        while True:
            await asyncio.sleep(self._source.beat_s)
            try:
                await self._source.beat(delivery)
            except Exception as error:  # noqa: BLE001 - at worst it is delivered twice
                self._complain("could not say that a letter is under way", error)

    async def _reply(self, delivery: Delivery, op: Reply) -> None:
        source = self._source
        try:
            async with asyncio.timeout(ANSWER_S):
                if op.verb == "ack":
                    await source.ack(delivery)
                elif op.verb == "nak":
                    await source.nak(delivery, op.delay_s)
                else:
                    await source.term(delivery, op.why)
        except Exception as error:  # noqa: BLE001 - it comes again, and is found
            self._count("unanswered")
            self._complain(f"could not {op.verb} {delivery.letter.id[:80]!r}", error)

    # Dead letters -----------------------------------------------------------------------------------

    async def _released(self) -> None:
        """Take dead letters in again that a person has released, for as long as the inbox is open."""
        while True:
            try:
                deliver = self._relay(self._taker.engine)
                if self._taker.awaits:
                    await deliver.run_once(self._stopping)
                else:
                    await asyncio.to_thread(deliver.run_once, self._stopping)
            except Exception as error:  # noqa: BLE001 - the store has a bad moment
                self._complain("could not look for released letters", error)
            await asyncio.sleep(self._poll_s)

    def _relay(self, engine: Engine) -> relay.Relay:
        return relay.Relay(
            engine, {topic_of(self._taker.name): self._sink()}, classify=classify, describe=neutral,
            policy=_AGAIN, max_bytes=64 * MOST_BYTES,
        )  # fmt: skip

    def _sinks(self) -> Sinks:
        return Sinks({topic_of(self._taker.name): self._sink()})

    def _sink(self) -> Callable[[Message], Any]:
        """Return what takes a released letter in, in the colour of the step."""
        why = "its dead letter was released"

        def now(message: Message) -> None:
            called = self._taker.read(letter_of(message.payload))
            _arrived(called if isinstance(called, CameTo) else self._taker.call(called, why))

        async def awaited(message: Message) -> None:
            called = self._taker.read(letter_of(message.payload))
            ended = called if isinstance(called, CameTo) else await self._taker.call_awaited(called, why)
            _arrived(ended)

        return awaited if self._taker.awaits else now

    # ------------------------------------------------------------------------------------------------

    def _count(self, word: str) -> None:
        self._counts[word] = self._counts.get(word, 0) + 1

    def _complain(self, what: str, error: BaseException | None) -> None:
        told = error if isinstance(error, Error) else type(error).__name__
        self._taker.engine.grumble(f"an inbox {what}: {told}")


#: What is released is the step's to retry; here it is only asked whether it has come to its end.
_AGAIN = Policy("inbox", max_attempts=1000, schedule=POLICY.schedule, max_delay_s=60.0, unmatched="retry")


def _arrived(came_to: CameTo) -> None:
    """Let a released letter be over, or say why it is not."""
    word = _COUNTED[came_to.what]
    if word == "dead":
        raise PermanentError(str(came_to.error.get("message", came_to.what)))
    if word in ("later", "trouble"):
        raise TransientError("its work is not over yet")


def _lanes(deliveries: Sequence[Delivery]) -> list[list[Delivery]]:
    """Return letters by lane; one that is in none is alone."""
    lanes: dict[Any, list[Delivery]] = {}
    for at, delivery in enumerate(deliveries):
        lanes.setdefault(delivery.lane or at, []).append(delivery)
    return list(lanes.values())


def _only(op: Any) -> Script:
    return (yield op)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


async def _pause(told: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(told.wait(), seconds)
