"""Test helpers for the quarantine: steps that end there, sinks that record, and processes on one store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import oncemore
from oncemore.audit.error_record import error_to_record
from oncemore.classifiers.classify import classify
from oncemore.control.notifications import TOPIC_PREFIX, Notifier
from oncemore.log.entry_codec import decode_head, decode_header
from oncemore.log.record import EventRecord
from oncemore.log.store import HeadQuery
from oncemore.steps.engine import Engine
from tests.crash.harness import SharedStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from oncemore.outbox import EventMessage


#: Longer than any test runs; added to the present it is still a valid time.
FAR_FUTURE_S = 1e9


class RecordingSink:
    """A sink that records its messages."""

    def __init__(self) -> None:
        self.messages: list[EventMessage] = []

    def __call__(self, message: EventMessage) -> None:
        self.messages.append(message)

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.messages]


def make_notifier(*sinks: Any, every_s: float = FAR_FUTURE_S) -> Notifier:
    """Return a notifier with sinks by the names a, b, c."""
    return Notifier(
        dict(zip("abc", sinks, strict=False)), classify=classify, describe=error_to_record, every_s=every_s
    )


class ManualNotifier(Notifier):
    """A notifier that writes notifications and starts no thread to deliver them."""

    def wake_thread(self, engine: Engine) -> None:
        """Start no thread."""


def make_manual_notifier(*sinks: Any, every_s: float = FAR_FUTURE_S) -> ManualNotifier:
    return ManualNotifier(
        dict(zip("abc", sinks, strict=False)), classify=classify, describe=error_to_record, every_s=every_s
    )


@oncemore.step(effect="idempotent", name="doubtful")
def doubtful(x: int) -> str:
    """Always need a review."""
    raise oncemore.NeedsReview("AMBIGUOUS_NAME", f"two stars for {x}")


@oncemore.step(effect="once", name="charge")
def charge(x: int) -> str:
    """Always end with an unknown outcome."""
    raise TimeoutError(f"no answer about {x}")


def list_notifications(engine: Engine) -> list[EventRecord]:
    """Return the notifications in a store, by topic and ordinal."""
    found = [
        decode_head(head.head, EventRecord)
        for head in engine.store.list_heads(HeadQuery("event", limit=10_000))
    ]
    return sorted(
        (event for event in found if event.topic.startswith(TOPIC_PREFIX)),
        key=lambda event: (event.topic, event.ordinal),
    )


def list_marks(engine: Engine, entity: str) -> list[tuple[str, ...]]:
    return [tuple(decode_header(entry.header).marks) for entry in engine.store.read_entries(entity)]


def processes(
    make_notices: Callable[[], Notifier | None] = lambda: None,
) -> Callable[[], Engine]:
    """Return a function that starts a process on a shared store, each with a notifier of its own."""
    store = SharedStore()
    return lambda: Engine(lambda: store, "memory:", notices=make_notices())
