"""The two drivers of `messaging.delivery`, blocking and awaiting: they do what a delivery asks for.

What cut a send off (Ctrl-C, cancellation) waits until the event is in order, and is raised then. A write that
the store did not answer is not repeated here: the pass ends with the error, the worker whose name the event
may bear is retired, and whoever looks next finds what is stored.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from oncemore.control.model import CONTROL
from oncemore.errors import PermanentError, UsageError
from oncemore.log.encryption import opened
from oncemore.log.entry_codec import body_of, head_of
from oncemore.log.head_access import notice_write, told_already, write_of
from oncemore.log.record import NOWHERE, Outgoing
from oncemore.log.store import Batch, Query, Stored
from oncemore.messaging.delivery import Given, Listed, Lives, Send, Stopping
from oncemore.messaging.message import message_of
from oncemore.retries.deadlines import awaited
from oncemore.retries.loop import Invoke
from oncemore.steps.attempt import OURS
from oncemore.steps.call_in_progress import in_thread
from oncemore.steps.ops import Begin, Holder, Load, Now, Permit, Save, Seen, Tell

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Protocol

    from oncemore.log.record import Run
    from oncemore.log.store import Conflict, Head
    from oncemore.messaging.message import Message
    from oncemore.steps.engine import Engine
    from oncemore.steps.lease import Identity
    from oncemore.steps.ops import Permission, Script

    class Stop(Protocol):
        """Says when to stop; a `threading.Event`, an `asyncio.Event` or a `trio.Event` is one."""

        def is_set(self) -> bool:
            """Whether to stop."""


#: Later than any event is due: those that wait are listed too, behind those that are due.
EVER = 1e15


class Sinks:
    """Which sink a topic has: the one under its name, else that of the first pattern that fits."""

    def __init__(self, routes: Mapping[str, Callable[[Message], Any]]) -> None:
        if not routes:
            raise UsageError("a relay needs a sink: Relay(engine, {'orders.*': sink})")
        for topic, sink in routes.items():
            if not isinstance(topic, str) or not 1 <= len(topic) <= 200:
                raise UsageError(f"topic is {topic!r}; it takes a text of 1 to 200 characters")
            if not callable(sink):
                raise UsageError(f"the sink of {topic!r} is {sink!r}; it takes a function of one message")
        self._routes = dict(routes)
        colours = {_awaits(sink) for sink in self._routes.values()}
        if len(colours) > 1:
            raise UsageError("some sinks are async and some are not; make a relay for each kind")
        self.awaits = True in colours
        self.ours = any(topic.startswith(OURS) for topic in self._routes)

    def of(self, topic: str) -> Any:
        """Return the sink of a topic, or None."""
        named = self._routes.get(topic)
        if named is not None:
            return named
        # What we ourselves tell is for those whom the settings name: "*" does not mean it.
        ours = OURS if topic.startswith(OURS) else ""
        fits = (
            sink
            for pattern, sink in self._routes.items()
            if fnmatchcase(topic, pattern) and pattern.startswith(ours)
        )
        return next(fits, None)

    def takes(self, topic: str) -> bool:
        """Whether a topic has a sink."""
        return self.of(topic) is not None


def _awaits(sink: Any) -> bool:
    return iscoroutinefunction(sink) or iscoroutinefunction(getattr(type(sink), "__call__", None))  # noqa: B004


class Courier:
    """Does what a delivery asks for, on one engine; has one event under way at most."""

    def __init__(
        self, engine: Engine, sinks: Sinks, max_bytes: int, limit_s: float | None, stop: Stop | None
    ) -> None:
        self.engine, self._sinks, self._max_bytes, self._stop = engine, sinks, max_bytes, stop
        self._limit_s = limit_s
        self.cut: BaseException | None = None
        self._me: Identity | None = None
        self._held: tuple[str, int] | None = None

    def listed(self, op: Listed) -> tuple[Seen, ...]:
        """Return the events that are not over."""
        heads = self.engine.store.heads(Query("event", due_by=EVER, limit=op.limit))
        return tuple(_seen(head) for head in heads)

    def lives(self, op: Lives) -> tuple[int, str]:
        """Return how many runs an entity has had, and of which step."""
        head = self.engine.store.head(op.entity)
        if head is None:
            return 0, ""
        run: Run = head_of(head.head)
        return run.runs, run.step

    def permit(self, op: Permit) -> Permission:
        """Say whether an event may be sent, as far as people have to say so."""
        return self.engine.controls.permit(self.engine, op)

    def stopping(self, op: Stopping) -> bool:
        """Return whether to stop."""
        return self._stop is not None and self._stop.is_set()

    def load(self, op: Load) -> Seen:
        """Read the head of an event."""
        head = self.engine.store.head(op.entity)
        return Seen(op.entity, 0, NOWHERE, None) if head is None else _seen(head)

    def given(self, op: Given) -> bytes | None:
        """Return what was given away, or None if it was pruned."""
        # Opened here and not when it is sent: a key that is missing is no failure of the event.
        first = next(iter(self.engine.store.entries(op.entity)))
        return None if first.body is None else opened(first.body, self.engine.seal, op.entity, first.version)

    def now(self, op: Now) -> float:
        """Return the store's time."""
        return self.engine.now()

    def holder(self, op: Holder) -> float:
        """Return until when a relay holds an attempt."""
        return self.engine.held_until(op.worker, op.entity, op.fence)

    def begin(self, op: Begin) -> str:
        """Return who sends: this process, with a lease that is good for it."""
        self.engine.check_original()
        self._me = self.engine.identity()
        self.engine.policies.record_policy(self.engine, op.policy_name, op.policy)
        return self._me.name

    def tell(self, op: Tell) -> None:
        """Say in the log that an event was given up: nothing is dropped in silence (MSG-8)."""
        event = op.seen.run
        self.engine.grumble(
            f"event {event.event_id} ({event.topic}) is dead after {event.tried} attempts, {event.reason}; "
            "it is kept: Relay.dead() lists it, Relay.redeliver() has it sent again"
        )

    def message(self, op: Send) -> Message:
        """Return the message of an event; refuse one that is lost or too large."""
        event = op.seen.run
        if op.given is None:
            raise PermanentError(f"the payload of event {event.event_id} was pruned")
        size = len(op.given)
        if size > self._max_bytes:
            raise PermanentError(
                f"event {event.event_id} takes {size:,} bytes; {self._max_bytes:,} is the most"
            )
        return message_of(event, op.life, body_of(op.given)["payload"])

    def sink(self, op: Send) -> Any:
        """Return where an event goes."""
        return self._sinks.of(op.seen.run.topic)

    def invoke(self, op: Send) -> Invoke:
        """Return the limits of an attempt."""
        return Invoke(op.seen.run.attempt, self._limit_s)

    def failed(self, error: BaseException) -> BaseException:
        """Return what came of a send; what cut it off is raised once that is written."""
        if not isinstance(error, Exception):
            self.cut = error
        return error

    def begin_save(self, op: Save) -> tuple[Batch, Seen]:
        """Return the bytes of a change, and the event as it will be once they are stored."""
        seen, event = op.seen, op.change.after
        change, now, told = op.change, self.engine.now(), self.engine.notices
        given: tuple[Any, ...] = ()
        if told is not None:
            change, given = told.of(self.engine, seen.entity, seen.version, change, now)
        write = write_of(seen.entity, seen.version, seen.hash, change, now, self.engine.seal)
        if type(event) is Outgoing and event.state == "SENDING":
            # Before it is written: nobody in this process may take it for lost.
            assert self._me is not None
            assert CONTROL in op.guards, "an event was to be sent that nobody has let be sent"
            held = (seen.entity, event.attempt)
            self._me.take(held)
            self._held = held  # after it: what was not taken must not be left, it may be somebody else's
        writes = (write, *(notice_write(each, now, self.engine.seal) for each in given))
        return Batch(writes, op.guards, op.sync), Seen(seen.entity, seen.version + 1, write.hash, event)

    def end_save(self, after: Seen, answer: Stored | Conflict) -> Seen | None:
        """Return the event as it is now, or None if it was not as it had been seen."""
        stored = isinstance(answer, Stored)
        if not (stored and after.run.state == "SENDING"):
            self._let_go()
        if not stored:
            self.engine.controls.forget()  # what people have said may be what has changed: it is read anew
        if stored and after.run.state == "DEAD" and self.engine.notices is not None:
            self.engine.notices.wake(self.engine)
        if self.cut is not None:
            raise self.cut
        return after if stored else None

    def abandon(self) -> None:
        """Leave: an attempt whose outcome could not be written is nobody's, and others may see that."""
        if self._held is not None and self._me is not None:
            self.engine.retire(self._me)
            self._let_go()

    def _let_go(self) -> None:
        if self._held is not None and self._me is not None:
            held, self._held = self._held, None  # before it: nobody leaves twice
            self._me.leave(held)
            if self._me.retired:
                self.engine.bury(self._me)


def _seen(head: Head) -> Seen:
    return Seen(head.entity, head.version, head.hash, head_of(head.head, Outgoing))


_QUICK: dict[type, Callable[[Courier, Any], Any]] = {
    Listed: Courier.listed, Lives: Courier.lives, Stopping: Courier.stopping, Load: Courier.load,
    Given: Courier.given, Now: Courier.now, Holder: Courier.holder, Begin: Courier.begin, Tell: Courier.tell,
}  # fmt: skip


# Blocking -------------------------------------------------------------------------------------------


def blocking(courier: Courier, script: Script) -> Any:
    """Run a script to its end in this thread; return its value."""
    try:
        op = next(script)
        while True:
            quick = _QUICK.get(type(op)) or _BLOCKING[type(op)]
            op = script.send(quick(courier, op))
    except StopIteration as end:
        return end.value
    except BaseException:
        courier.abandon()
        raise


def _save(courier: Courier, op: Save) -> Seen | None:
    while True:
        batch, after = courier.begin_save(op)
        answer = courier.engine.store.append(batch).wait()
        if not told_already(op, batch, answer):
            return courier.end_save(after, answer)


def _send(courier: Courier, op: Send) -> BaseException | None:
    try:
        message, sink, invoke = courier.message(op), courier.sink(op), courier.invoke(op)
        if invoke.limit_s is None:
            sink(message)
        else:
            from oncemore.retries import timeouts

            timeouts.run(message.topic, invoke, lambda: sink(message))
    except BaseException as error:  # noqa: BLE001 - it travels as a value, and is decided on
        return courier.failed(error)
    return None


_BLOCKING: dict[type, Callable[[Courier, Any], Any]] = {
    Save: _save,
    Send: _send,
    Permit: Courier.permit,
}


# Awaiting -------------------------------------------------------------------------------------------


async def awaiting(courier: Courier, script: Script) -> Any:
    """Run a script to its end in this task, on asyncio or trio; return its value."""
    try:
        op = next(script)
        while True:
            quick = _QUICK.get(type(op))
            op = script.send(quick(courier, op) if quick else await _AWAITING[type(op)](courier, op))
    except StopIteration as end:
        return end.value
    except BaseException:
        courier.abandon()
        raise


async def _save_awaited(courier: Courier, op: Save) -> Seen | None:
    if courier.cut is not None:
        return _save(courier, op)  # a task that was cancelled must not await; the disk is worth the moment
    while True:
        batch, after = courier.begin_save(op)
        answer = await courier.engine.store.append(batch)
        if not told_already(op, batch, answer):
            return courier.end_save(after, answer)


async def _send_awaited(courier: Courier, op: Send) -> BaseException | None:
    try:
        message, invoke = courier.message(op), courier.invoke(op)
        made = courier.sink(op)(message)
        await (made if invoke.limit_s is None else awaited(message.topic, invoke, made))
    except BaseException as error:  # noqa: BLE001 - it travels as a value, and is decided on
        return courier.failed(error)
    return None


async def _permit_awaited(courier: Courier, op: Permit) -> Permission:
    if not courier.engine.controls.waits:
        return courier.permit(op)
    return await in_thread(courier.permit, op)  # type: ignore[no-any-return]


_AWAITING: dict[type, Callable[[Courier, Any], Coroutine[Any, Any, Any]]] = {
    Save: _save_awaited,
    Send: _send_awaited,
    Permit: _permit_awaited,
}
