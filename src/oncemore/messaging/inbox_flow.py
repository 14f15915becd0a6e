"""The processing of an incoming message, as a script that a driver runs.

    message ─► call the step under the message's own key ─► store a dead letter, if needed ─► answer the queue

The key of the step's run is made from the message's id, so a message that is delivered again finds its run in
the log. The queue is answered last: a crash can only happen at a `yield`, and the queue then delivers the
message again. An unreadable or permanently failed message is stored whole as an event that is DEAD from its
first entry, so that the dead-letter list and the quarantine show it without special cases.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._redact import mask_headers
from oncemore._values import Value
from oncemore.log.record import EventRecord, RecordChange
from oncemore.policy.canonical_json import canonical_digest, make_event_id
from oncemore.steps.attempt import OURS
from oncemore.steps.ops import AppendChange, LoadHead, ReadClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.steps.ops import Script

#: Topics of dead letters: this, and the name of the step.
TOPIC_PREFIX = f"{OURS}inbox."
MAX_TOPIC_LENGTH = 200
#: The delay of a redelivery without a known due time, and the longest delay.
DEFAULT_DELAY_S, MAX_DELAY_S = 5.0, 43_200.0


class InboxMessage(Value):
    """An incoming message.

    id              identifies the message: a redelivery has the same id
    source          the stream, queue or endpoint within which the id is unique
    body            the content, as bytes
    headers         header fields or attributes, with names in lower case
    delivery_count  how often it was delivered, according to the queue
    has_id          whether the id is the sender's; False if the queue has none and the id is only a digest
    """

    id: str
    source: str
    body: bytes
    headers: Mapping[str, str] = {}
    delivery_count: int = 1
    has_id: bool = True

    def to_record(self) -> dict[str, Any]:
        """Return the message for a dead letter, as readable text if the body is UTF-8."""
        fields: dict[str, Any] = {"id": self.id, "source": self.source}
        try:
            fields["text"] = self.body.decode()
        except UnicodeDecodeError:
            fields["base64"] = b64encode(self.body).decode()
        return {**fields, "headers": [[name, value] for name, value in self.headers.items()]}


def sanitize_message(message: InboxMessage) -> InboxMessage:
    """Return a message that may be stored: no secrets in its headers, and texts that UTF-8 can encode."""
    # Masked headers are not needed later: no header that the reader uses is masked.
    headers = {
        _escape_surrogates(name): _escape_surrogates(value)
        for name, value in mask_headers(message.headers).items()
    }
    return message._replace(
        id=_escape_surrogates(message.id), source=_escape_surrogates(message.source), headers=headers
    )


def _escape_surrogates(text: str) -> str:
    """Return a text with lone surrogates, which UTF-8 cannot encode, as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class MessageOutcome(NamedTuple):
    """The result of processing a message.

    outcome  a key of `DISPOSITIONS`
    until    when its work is due, or 0 if that is not known
    error    the record of the error, if there was one
    run      the id of its run, if it has one
    value    the return value of the step
    """

    outcome: str
    until: float = 0.0
    error: Mapping[str, Any] = {}
    run: str = ""
    value: Any = None
    correlation_id: str = ""
    tenant: str = ""


class CallStep(NamedTuple):
    """Call the step with a message, under the message's key. Returns a `MessageOutcome`."""

    message: InboxMessage


class AnswerQueue(NamedTuple):
    """Answer the queue. Returns None.

    verb    ack: remove it; nak: deliver it again after `delay_s`; term: remove it though it was not processed
    reason  for the queue's own log
    """

    verb: str
    delay_s: float = 0.0
    reason: str = ""


class Disposition(NamedTuple):
    """How a message is answered, and whether it is stored as a dead letter before."""

    verb: str
    is_stored: bool = False


#: By outcome; there is no default.
DISPOSITIONS: dict[str, Disposition] = {
    "done": Disposition("ack"),  # its COMMIT is stored
    "duplicate": Disposition("ack"),  # done before; the step was not called
    "expired": Disposition("ack"),  # done so long ago that its run was pruned
    "deferred": Disposition("nak"),  # waits for a retry, a cooldown or a later time
    "busy": Disposition("nak"),  # another worker is running it
    "store_error": Disposition("nak"),  # the store cannot be used
    "held": Disposition("term"),  # its run is in quarantine, where an operator decides
    "failed": Disposition("term", is_stored=True),
    "unreadable": Disposition("term", is_stored=True),
    "conflict": Disposition("term", is_stored=True),  # its id belongs to another content
}

#: The counter of `InboxStats` for each outcome.
OUTCOME_COUNTERS = {
    "done": "done",
    "duplicate": "duplicate",
    "expired": "duplicate",
    "deferred": "deferred",
    "busy": "deferred",
    "held": "held",
    "failed": "dead",
    "unreadable": "dead",
    "conflict": "dead",
    "store_error": "store_error",
}


def take_message(message: InboxMessage, step: str) -> Script:
    """Process a message; return its outcome."""
    message = sanitize_message(message)
    result: MessageOutcome = yield CallStep(message)
    disposition = DISPOSITIONS[result.outcome]
    if disposition.is_stored:
        yield from store_dead_letter(message, step, result)
    delay = 0.0
    if disposition.verb == "nak":
        now = yield ReadClock()
        delay = redelivery_delay_s(result, now)
    # Last: the answer may be given only when everything that it relies on is stored.
    yield AnswerQueue(disposition.verb, delay, result.outcome)
    return result


def redelivery_delay_s(result: MessageOutcome, now: float) -> float:
    """Return the seconds until a message should be delivered again: when its work is due, if known."""
    return min(max(0.0, result.until - now), MAX_DELAY_S) if result.until else DEFAULT_DELAY_S


def store_dead_letter(message: InboxMessage, step: str, result: MessageOutcome) -> Script:
    """Store a message as a dead letter, unless it is stored already; return the id of its event."""
    # The id follows from the message's, so that a redelivered message is stored once.
    lane = f"letter/{canonical_digest({'step': step, 'source': message.source, 'id': message.id})}"
    event_id = make_event_id(lane, 0, 0)
    head = yield LoadHead(f"event/{event_id}")
    if head.record is None:
        now = yield ReadClock()
        event = EventRecord(
            state="DEAD",
            topic=dead_letter_topic(step),
            event_id=event_id,
            run_entity=lane,
            created_at=now,
            tenant=result.tenant,
            correlation_id=result.correlation_id,
            reason=result.outcome,
        )
        body = {"payload": message.to_record(), "error": dict(result.error), "run_id": result.run}
        # A conflict is ignored: another inbox has stored the same dead letter at the same time.
        yield AppendChange(head, RecordChange(("EVENT", "DEAD", "ESCALATION"), None, event, body))
    return event_id


def dead_letter_topic(step: str) -> str:
    """Return the topic of a step's dead letters, with a digest for a step name that is too long."""
    topic = TOPIC_PREFIX + step
    return topic if len(topic) <= MAX_TOPIC_LENGTH else TOPIC_PREFIX + canonical_digest({"step": step})


def restore_message(payload: Mapping[str, Any]) -> InboxMessage:
    """Return the message that is stored in a dead letter."""
    body = payload["text"].encode() if "text" in payload else b64decode(payload["base64"])
    headers = {name: value for name, value in payload["headers"]}  # noqa: C416 - pairs are lists here
    return InboxMessage(payload["id"], payload["source"], body, headers)


__all__ = [
    "DISPOSITIONS",
    "OUTCOME_COUNTERS",
    "TOPIC_PREFIX",
    "AnswerQueue",
    "CallStep",
    "InboxMessage",
    "MessageOutcome",
    "dead_letter_topic",
    "restore_message",
    "store_dead_letter",
    "take_message",
]
