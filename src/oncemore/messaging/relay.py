"""RELAY: who delivers events, once or for as long as it is let.

A relay gives every event to the one sink of its topic, at least once, under an id that never changes. Any
number of relays may work on one store, in threads, processes or on machines: an event is claimed by a
compare-and-set under the lease of its relay's process, so that one of them sends it at a time, and what a
dead one had is sent by another.

A sink is a function of one `Message`: if it returns, the message is delivered; what it raises is classified
like any failure and decided on by the relay's policy. Relays whose sinks are async functions are awaited.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from oncemore import clock as clocks
from oncemore._values import Value
from oncemore.errors import UsageError
from oncemore.log.entry_codec import head_of, read_body
from oncemore.log.record import Outgoing
from oncemore.log.store import Query
from oncemore.messaging.delivery import Rules, Tally, deliver_due, redeliver
from oncemore.messaging.driver import Courier, Sinks, awaiting, blocking
from oncemore.policy.backoff import Schedule
from oncemore.policy.policy import Policy
from oncemore.steps.context import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from oncemore.log.encryption import Seal
    from oncemore.messaging.driver import Stop
    from oncemore.messaging.message import Message
    from oncemore.policy.model import Failure
    from oncemore.steps.engine import Engine

#: Twenty attempts, the last after about eight hours; what no rule knows is tried again as well.
POLICY = Policy(
    "relay", max_attempts=20, schedule=Schedule("exponential", 1.0), max_delay_s=3600.0, unmatched="retry"
)
MOST_BYTES = 1024 * 1024
MOST_DEAD = 1000
#: How long a loop rests at least between two passes, and how long it is deaf to being stopped.
REST_S, DEAF_S = 0.01, 0.2
#: How long `close()` waits for a sink that does not come back.
GRACE_S = 60.0


class DeadLetter(Value):
    """An event that was given up; it stays, until a person has it sent again.

    reason    why, as a stable code: not_retryable, max_attempts_exceeded
    error     the neutral record of its last failure
    attempts  how often it was sent
    """

    event_id: str
    topic: str
    reason: str
    error: dict[str, Any]
    attempts: int
    created: float
    correlation_id: str
    tenant: str


class Relay:
    """Delivers the events of an engine's store; any number of relays may share one."""

    def __init__(
        self,
        engine: Engine,
        routes: Mapping[str, Callable[[Message], Any]],
        *,
        classify: Callable[[BaseException, float], Failure],
        describe: Callable[[BaseException, Failure | None], dict[str, Any]],
        policy: Policy = POLICY,
        batch: int = 256,
        max_bytes: int = MOST_BYTES,
        poll_s: float = 1.0,
    ) -> None:
        _check("batch", batch, 1, 10_000)
        _check("max_bytes", max_bytes, 1, 64 * MOST_BYTES)
        _check("poll_s", poll_s, 0.01, 3600)
        self._engine, self._sinks = engine, Sinks(routes)
        self._rules = Rules(policy, classify, describe, self._sinks.takes, batch, self._sinks.ours)
        self._max_bytes, self._poll_s = max_bytes, poll_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def run_once(self, stop: Stop | None = None) -> Any:
        """Deliver everything that is due and return the `Tally`; to be awaited if the sinks are async."""
        drive = awaiting if self._sinks.awaits else blocking
        return drive(self._courier(stop), deliver_due(self._rules))

    def run(self, stop: Stop) -> Any:
        """Deliver until `stop` is set, whatever the store does; to be awaited if the sinks are async."""
        return self._run_awaited(stop) if self._sinks.awaits else self._run(stop)

    def start(self) -> Self:
        """Deliver in a thread of its own until `close()`."""
        if self._sinks.awaits:
            raise UsageError("the sinks are async; await relay.run(stop) in a task of yours")
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._run, args=(self._stop,), name="oncemore-relay", daemon=True
            )
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop after the event under way, and leave no thread behind."""
        thread, self._thread = self._thread, None
        self._stop.set()
        if thread is not None:
            thread.join(GRACE_S)
            if thread.is_alive():
                self._engine.grumble(
                    f"a relay's sink did not come back within {GRACE_S:g} s of being stopped"
                )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def dead(self, limit: int = MOST_DEAD) -> tuple[DeadLetter, ...]:
        """Return the events that were given up, with why; each is kept until it is sent again."""
        store = self._engine.store
        heads = list(store.heads(Query("event", state="DEAD", limit=limit)))
        return tuple(
            _dead_letter(head_of(head.head, Outgoing), store.head(head.entity), self._engine.seal)
            for head in heads
        )

    def redeliver(self, event_id: str, *, reason: str) -> None:
        """Have an event sent again that is dead or delivered; the reason is recorded."""
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError("reason is missing; say why, it is recorded")
        blocking(self._courier(None), redeliver(event_id, reason, CONTEXT.get().actor))

    # ------------------------------------------------------------------------------------------------

    def _courier(self, stop: Stop | None) -> Courier:
        return Courier(self._engine, self._sinks, self._max_bytes, self._rules.policy.timeout_s, stop)

    def _run(self, stop: Any) -> None:
        while not stop.is_set():
            seen = 0
            try:
                seen = self._engine.store.changed(0, 0.0)
                self.run_once(stop)
            except Exception as error:  # noqa: BLE001 - a relay that ends is a relay that nobody misses in time
                self._complain(error)
                stop.wait(self._poll_s)
                continue
            self._look_away(stop, seen)

    def _look_away(self, stop: Any, seen: int) -> None:
        """Wait until the log has grown, or it is time to look for what has become due."""
        ends = clocks.Clock().monotonic() + self._poll_s
        stop.wait(REST_S)
        while not stop.is_set() and (left := ends - clocks.Clock().monotonic()) > 0:
            if self._engine.store.changed(seen, min(left, DEAF_S)) > seen:
                return

    async def _run_awaited(self, stop: Stop) -> None:
        while not stop.is_set():
            try:
                await self.run_once(stop)
            except Exception as error:  # noqa: BLE001 - the same
                self._complain(error)
            await clocks.current.pause(self._poll_s)

    def _complain(self, error: Exception) -> None:
        self._engine.grumble(f"a relay could not deliver: {type(error).__name__}; it tries again")


def _check(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; it takes {low:g} to {high:g}")


def _dead_letter(event: Outgoing, head: Any, seal: Seal | None) -> DeadLetter:
    body = {} if head is None else read_body(head, seal)
    return DeadLetter(
        event.event_id, event.topic, event.reason, body.get("error", {}), event.attempt, event.created,
        event.correlation_id, event.tenant,
    )  # fmt: skip


__all__ = ["MOST_BYTES", "POLICY", "DeadLetter", "Relay", "Tally"]
