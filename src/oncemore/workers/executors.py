"""ELSEWHERE: a job's attempts made by somebody else's executor, with everything that decides staying here.

A lane (`workers.map`) sends an item to a *place* and waits. The board, the pace of each provider, what
waits for its time, and the counts are the same as for attempts made in the lane; what comes back is a
`Reply`, plain values that say what became of the item, and never an exception that might not survive the
journey. Results do not travel at all: they are in the store, which both sides have opened.

A process that dies takes its items along, and a place says so by an error of its own instead of an answer.
The item is then *lost*: nobody knows how far it came, except the store. So it is sent again, and the run goes
on by its lease and its effect as after any crash. Who loses an item first asks the place whether it still
works at all (`hello`): a place that cannot even answer that ends the job, with the place's own error; one
that can is not to blame, and the item's attempts are counted by the log.

Whoever waits is blocking or awaiting; what happens in which order is written once, as a generator that yields
what to wait for: a future, or seconds.
"""

from __future__ import annotations

import sys
from concurrent.futures import wait
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Protocol

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import StoreError, UsageError
from oncemore.policy.model import Failure
from oncemore.workers.item_result import Came
from oncemore.workers.map import LOOK_S

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from concurrent.futures import Future

    from oncemore.workers.map import Met
    from oncemore.workers.map_items import Item

    Waits = Generator[Future[Any] | float, None, None]

#: How often a place may fail to answer at all, one time after another.
PROBES = 3
#: How long to wait for one's turn, and between looks at a run whose last holder may not be quite dead.
TURN_S, AGAIN_S = 0.02, 0.25
#: How much longer than its lease says a lost run is waited for.
GRACE_S = 2.0

_REAL = clocks.Clock()


class Reply(Value):
    """What came back of one attempt that was made elsewhere, in plain values.

    came        what became of the item
    resource    what it asks for, where that can be left alone
    met         the failures of the attempt: their records, and the failures as tuples
    held_until  until when somebody else has the run; 0 if nobody does
    fault       why the whole job cannot go on: "" | store | unusable | KeyboardInterrupt | SystemExit
    """

    came: Came
    resource: str = ""
    met: tuple[tuple[dict[str, Any], tuple[Any, ...]], ...] = ()
    held_until: float = 0.0
    fault: str = ""


def sent(reply: Reply) -> tuple[Any, ...]:
    """Return a reply as it travels: nothing in it needs a class that the other side might not have."""
    return (tuple(reply.came), *reply[1:])


def _received(told: tuple[Any, ...]) -> Reply:
    return Reply(Came(*told[0]), *told[1:])


class Raised(Value):
    """What an attempt raised in a thread of this very process."""

    error: BaseException


class Place(Protocol):
    """Somebody else's executor.

    name   what it is, for people
    most   how many calls it makes at once; None if it does not say
    """

    name: str
    most: int | None

    def turn(self) -> bool:
        """Whether a lost item may be sent now; where it may, `done` follows."""

    def done(self) -> None:
        """Let the next lost item have its turn."""

    def send(self, work: Callable[..., Any], told: tuple[Any, ...], *, again: bool) -> Future[Any]:
        """Have a call made there; `again` if one like it was lost."""

    def lost(self, future: Future[Any] | None, error: BaseException) -> None:
        """Learn that a call was lost, or could not even be sent."""

    def close(self) -> None:
        """Let go of what was made for one job."""


class Trip(Protocol):
    """What is sent: a function that the place can find, and what it is told."""

    def call(self, item: Item, met: Met) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return what makes an attempt of an item; one that cannot travel is refused."""

    def hello(self, job_id: str) -> tuple[Callable[..., str], tuple[Any, ...]] | None:
        """Return what says why attempts cannot be made there ("" if they can); None: ask nothing."""


class Elsewhere:
    """Makes attempts at a place.

    tries    how often one item may be lost: as often as it may be attempted, and a little more, since a
             process can die before its attempt is on record
    lease_s  how long a run stays with a process that died, where nobody can tell that it did
    """

    def __init__(self, place: Place, trip: Trip, tries: int, lease_s: float) -> None:
        self._place, self._trip, self._tries, self._lease_s = place, trip, tries, lease_s
        self._answers = 0

    def once(self, item: Item, met: Met) -> None:
        """Make one attempt of an item there, blocking."""
        for wanted in self._carried(item, met):
            if isinstance(wanted, float):
                _REAL.sleep(wanted)
                continue
            while not wanted.done():
                wait((wanted,), LOOK_S)
                if met.stopped:
                    wanted.cancel()  # what has not begun shall not; what has is waited for, a while

    async def once_awaited(self, item: Item, met: Met) -> None:
        """Make one attempt of an item there, in a task."""
        with closing(self._carried(item, met)) as script:
            for wanted in script:
                await _awaited(wanted)

    def ready(self, job_id: str) -> None:
        """Ask the place whether attempts can be made there; or raise why not."""
        with closing(self._asked(job_id)) as script:
            for wanted in script:
                wait((wanted,))  # type: ignore[arg-type] # nothing was lost yet, so that nobody takes turns

    async def ready_awaited(self, job_id: str) -> None:
        """Ask it in a task."""
        with closing(self._asked(job_id)) as script:
            for wanted in script:
                await _awaited(wanted)

    def leave(self) -> None:
        """Let go of what was made for this job."""
        self._place.close()

    # ------------------------------------------------------------------------------------------------

    def _carried(self, item: Item, met: Met) -> Waits:
        work, told = self._trip.call(item, met)
        losses, patience = 0, 0.0
        while True:
            answer, error = yield from self._sent(work, told, again=losses > 0)
            if error is None:
                reply = answer if isinstance(answer, Raised | None) else _received(answer)
                if losses and isinstance(reply, Reply) and reply.held_until:
                    patience = patience or _REAL.monotonic() + self._lease_s + GRACE_S
                    if _REAL.monotonic() < patience and not met.stopped:
                        yield AGAIN_S
                        continue
                _take(reply, met)
                return
            losses += 1
            if met.stopped:
                met.came = Came("", "later", "the job was stopped before it was done")
                return
            if losses >= self._tries:
                met.came = Came("", "later", f"whoever had it died, {losses} times: {_words(error)}")
                return
            try:
                yield from self._asked(met.job_id, lost=error)
            except Exception as fault:  # noqa: BLE001 - whatever the place or the step there has to say
                met.came = Came("", "later", f"whoever had it died: {_words(error)}")
                met.stop(fault)
                return

    def _asked(self, job_id: str, lost: BaseException | None = None) -> Waits:
        """Find out whether the place works, at first or when it has lost something; raise why it does not."""
        asks = self._trip.hello(job_id)
        if asks is None:
            if lost is not None:  # a thread of this process cannot die alone
                raise lost
            return
        asked, error, answers = 0, lost, self._answers
        while asked < PROBES:
            says, error = yield from self._sent(*asks, again=lost is not None)
            if error is None:
                if says:
                    raise UsageError(says)
                return
            # A place that has answered others meanwhile does work, however bad a time it has.
            asked = asked + 1 if self._answers == answers else 1
            answers = self._answers
        assert error is not None
        error.add_note(
            f"oncemore: {self._place.name} did not answer, {PROBES} times in a row, and the job was stopped; "
            "what is done is done, and calling map again goes on with the rest"
        )
        raise error

    def _sent(
        self, work: Callable[..., Any], told: tuple[Any, ...], *, again: bool
    ) -> Generator[Future[Any] | float, None, tuple[Any, BaseException | None]]:
        """Have a call made; return its answer, or the error that the place has instead of one."""
        while again and not self._place.turn():
            yield TURN_S
        future: Future[Any] | None = None
        try:
            future = self._place.send(work, told, again=again)
            yield future
            answer = future.result(0)
            self._answers += 1
            return answer, None
        except BaseException as error:
            if not isinstance(error, Exception) and (future is None or not future.done()):
                if future is not None:  # whoever waits for it has had enough
                    future.cancel()
                raise
            self._place.lost(future, error)
            return None, error
        finally:
            if again:
                self._place.done()


def _take(reply: Reply | Raised | None, met: Met) -> None:
    """Tell a lane what an attempt has met and come to, as if it had been made there."""
    if reply is None:
        return
    if isinstance(reply, Raised):
        raise reply.error
    came = met.came = reply.came
    met.key, met.resource = came.key, reply.resource
    for error, failure in reply.met:
        met.told(error, Failure(*failure))
    if reply.fault == "store":
        raise StoreError(came.error)
    if reply.fault == "KeyboardInterrupt":
        raise KeyboardInterrupt(came.error)
    if reply.fault == "SystemExit":
        raise SystemExit(came.error)
    if reply.fault:
        met.stop(UsageError(came.error))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:500]


async def _awaited(wanted: Future[Any] | float) -> None:
    """Wait for a future of another thread, or for some time, on asyncio or trio."""
    if isinstance(wanted, float):
        await _REAL.pause(wanted)
        return
    trio = clocks.in_trio()
    done: Any
    if trio is not None:
        done, soon = trio.Event(), trio.lowlevel.current_trio_token().run_sync_soon
        ring = done.set
    else:
        loop = sys.modules["asyncio"].get_running_loop()
        done, soon = sys.modules["asyncio"].Event(), loop.call_soon_threadsafe
        ring = done.set

    def over(_: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            soon(ring)

    wanted.add_done_callback(over)
    await done.wait()
