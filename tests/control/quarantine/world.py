"""A small world for the quarantine: steps that end there, and processes that die before or after anything.

`Call` runs what a process asks for operation by operation, with the real driver on a shared store, and can
crash it before or after each of them: what a crash leaves is what the store holds at that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify
from oncemore.control.notifications import TOPIC_PREFIX, Notifier
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.memory import MemoryStore
from oncemore.log.record import EventRecord
from oncemore.log.store import HeadQuery
from oncemore.steps import driver, flow
from oncemore.steps.engine import Engine
from oncemore.steps.ops import EndCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.outbox import EventMessage


#: A stretch of time that no test gets to the end of by chance: it ends in the year 2033.
AGES = 1e9


class Crash(BaseException):
    """The process dies here."""


class Shared(MemoryStore):
    """Stays open when one of its engines is closed."""

    def close(self) -> None:
        """Forget nothing."""


class Heard:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[EventMessage] = []

    def __call__(self, message: EventMessage) -> None:
        self.messages.append(message)

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.messages]


def notices(*sinks: Any, every_s: float = AGES) -> Notifier:
    """Return who is told: sinks by the names a, b, c."""
    return Notifier(
        dict(zip("abc", sinks, strict=False)), classify=classify, describe=error_to_record, every_s=every_s
    )


class Quiet(Notifier):
    """Notices that are written, and delivered when a test says so."""

    def wake_thread(self, engine: Engine) -> None:
        """Start no thread."""


def quiet(*sinks: Any, every_s: float = AGES) -> Quiet:
    return Quiet(
        dict(zip("abc", sinks, strict=False)), classify=classify, describe=error_to_record, every_s=every_s
    )


@oncemore.step(effect="idempotent", name="doubtful")
def doubtful(x: int) -> str:
    """Always needs a person."""
    raise oncemore.NeedsReview("AMBIGUOUS_NAME", f"two stars for {x}")


@oncemore.step(effect="once", name="charge")
def charge(x: int) -> str:
    """Nobody knows whether it happened."""
    raise TimeoutError(f"no answer about {x}")


def told(engine: Engine) -> list[EventRecord]:
    """Return the notices in a store, by topic and place."""
    found = [
        decode_head(head.head, EventRecord)
        for head in engine.store.list_heads(HeadQuery("event", limit=10_000))
    ]
    return sorted(
        (event for event in found if event.topic.startswith(TOPIC_PREFIX)),
        key=lambda event: (event.topic, event.ordinal),
    )


def marks(engine: Engine, entity: str) -> list[tuple[str, ...]]:
    return [tuple(decode_header(entry.header).marks) for entry in engine.store.read_entries(entity)]


def die(engine: Engine) -> None:
    """Let a process be provably gone, with all it had under way."""
    for me in engine.leases.workers.values():
        me._presence.close()
    if engine.leases.heartbeat is not None:
        engine.leases.heartbeat.stop_heartbeat()


class Call:
    """One script of one process, operation by operation."""

    def __init__(self, engine: Engine, job: Any, script: Any) -> None:
        self.engine, self.job, self.script = engine, job, script
        self.op: Any = next(script)
        self.count = 0

    @classmethod
    def of(cls, engine: Engine, step: Any, *args: Any) -> Call:
        """Return a call of a step."""
        step = step.bind(engine)
        look = step._prepare_call(args, {})
        return cls(engine, step._start_call(look), flow.run_step(look.plan, look.call))

    def run(self, crash_at: tuple[int, str] | None = None) -> Any:
        """Go on to the end or to the crash; return the value, or the error."""
        while type(self.op) is not EndCall:
            self.count += 1
            assert self.count < 500, "the script does not end"
            if crash_at == (self.count, "before"):
                self._die()
            do = driver._IMMEDIATE.get(type(self.op)) or driver._BLOCKING[type(self.op)]
            answer = do(self.job, self.op)
            if crash_at == (self.count, "after"):
                self._die()
            self.op = self.script.send(answer)
        return self.op.value if self.op.error is None else self.op.error

    def up_to(self, kind: type) -> Any:
        """Go on to the operation of a kind, and return that one undone."""
        while type(self.op) is not kind:
            do = driver._IMMEDIATE.get(type(self.op)) or driver._BLOCKING[type(self.op)]
            self.op = self.script.send(do(self.job, self.op))
        return self.op

    def _die(self) -> None:
        die(self.engine)
        raise Crash


def processes(made: Callable[[], Notifier | None] = lambda: None) -> Callable[[], Engine]:
    """Return what starts processes on one store, each with notices of its own."""
    store = Shared()
    return lambda: Engine(lambda: store, "memory:", notices=made())
