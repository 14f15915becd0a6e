"""What the work can know and do while it runs: `oncemore.current()`."""

from __future__ import annotations

import random
from contextvars import ContextVar
from os import getpid
from typing import TYPE_CHECKING, Any

from msgspec.json import encode

from oncemore.core.key import digest, seed_of
from oncemore.core.record import Outgoing
from oncemore.engine.limits import remaining
from oncemore.errors import LeaseLost, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.engine.ops import Seen

MOST_EVENTS = 1000


class Attempt:
    """One attempt of a durable step, as the work inside sees it.

    number          of the attempt, counted over all runs of its key, never reused
    key             what makes this work the same work: give it to whatever deduplicates by key
    fence           rises with every attempt of the key: give it to whatever can refuse an older one
    step, run_id    which step and which run
    correlation_id  what ties all records of this work together
    tenant          whose it is
    """

    def __init__(
        self,
        seen: Seen,
        now: Callable[[], float],
        tagged: Callable[[Any], Any],
        keep: Callable[[Attempt, Any], Any] | None = None,
        kept: Callable[[Seen], Any] | None = None,
        parent: Attempt | None = None,
    ) -> None:
        run = seen.run
        self.seen = seen
        self.number: int = run.attempt
        self.fence: int = run.fence
        self.key = seen.entity.removeprefix("run/")
        self.step: str = run.step
        self.run_id: str = run.run_id
        self.correlation_id: str = run.correlation_id
        self.tenant: str = run.tenant
        self.parent = parent
        self.over = False
        self.pid = getpid()
        self.events: list[tuple[Outgoing, Any]] = []
        self._now, self._tagged, self._keep, self._kept = now, tagged, keep, kept
        self._rng: random.Random | None = None

    @property
    def rng(self) -> random.Random:
        """Chance that can be repeated: seeded by the run and the attempt's number."""
        if self._rng is None:
            run = self.seen.run
            self._rng = random.Random(f"{run.seed or seed_of(run.run_id)}:{self.number}")  # noqa: S311
        return self._rng

    def remaining(self) -> float | None:
        """Return the seconds left to this attempt, or None when nothing limits it."""
        return remaining()

    def emit(self, topic: str, payload: Any = None) -> str:
        """Give an event away: it is published if and only if this attempt commits. Return its id.

        The id is the same in every attempt, so that whoever gets it twice can tell.
        """
        self._check("emit")
        if self._keep is None:
            raise UsageError(f"{self.step}: a reconcile function looks, it gives no events away")
        if not isinstance(topic, str) or not 1 <= len(topic) <= 200:
            raise UsageError(f"topic is {topic!r}; it takes a text of 1 to 200 characters")
        if len(self.events) >= MOST_EVENTS:
            raise UsageError(
                f"{self.step} emits more than {MOST_EVENTS} events; publish one that sums them up"
            )
        run, ordinal, plain = self.seen.run, len(self.events), self._tagged(payload)
        self._check_keyless(topic, plain)
        event_id = event_id_of(self.seen.entity, run.runs, ordinal)
        letter = Outgoing(
            "PENDING",
            topic,
            event_id,
            self.seen.entity,
            ordinal,
            self._now(),
            0.0,
            run.tenant,
            run.correlation_id,
        )
        self.events.append((letter, plain))
        return event_id

    def checkpoint(self, value: Any) -> Any:
        """Write down how far the work is; a later attempt gets it back from `resume()`.

        In an async step the answer has to be awaited.
        """
        return self.keep(self._tagged(value))

    def keep(self, plain: Any) -> Any:
        """Write down a checkpoint that is in its tagged form already."""
        self._check("checkpoint")
        if self._keep is None:
            raise UsageError(f"{self.step}: a reconcile function looks, it does not make checkpoints")
        return self._keep(self, plain)

    def resume(self, default: Any = None) -> Any:
        """Return the last checkpoint of this run, from whatever attempt; else the default."""
        if self._kept is None or not self.seen.run.checkpoint:
            return default
        return self._kept(self.seen)

    def _check_keyless(self, topic: str, plain: Any) -> None:
        """Refuse an event that holds the key of a step around it: keys stay inside (IDEM-15)."""
        written = encode([topic, plain])
        around: Attempt | None = self
        while around is not None:
            if around.key.encode() in written:
                raise UsageError(
                    f"{self.step}: event {topic!r} holds the idempotency key of {around.step}, which is "
                    "internal; whoever gets the event tells it by the event's own id"
                )
            around = around.parent

    def _check(self, what: str) -> None:
        if self.over:
            raise LeaseLost(f"{self.step}: attempt {self.number} is over, it cannot {what} any more")
        if self.forked:
            raise LeaseLost(
                f"{self.step}: attempt {self.number} is the parent's, a forked child cannot {what}"
            )

    @property
    def forked(self) -> bool:
        """Whether this is a child that was forked inside the work: the attempt is its parent's."""
        return self.pid != getpid()


def event_id_of(entity: str, life: int, ordinal: int) -> str:
    """Return the id of an event: by the run's entity, which of its runs it was, and its place in that."""
    return digest({"run": entity, "life": life, "ordinal": ordinal})[:32]


CURRENT: ContextVar[Attempt | None] = ContextVar("oncemore.current", default=None)


def current() -> Attempt:
    """Return the attempt around this line; outside of a durable step there is none."""
    attempt = CURRENT.get()
    if attempt is None:
        raise UsageError("oncemore.current() is for the inside of a function with @oncemore.step")
    return attempt
