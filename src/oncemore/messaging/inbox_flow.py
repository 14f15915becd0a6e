"""INTAKE: the way of a message into the building, as a script that a driver runs.

    letter ─► the step, under the letter's own key ─► kept as a dead letter, if it must be ─► answer

The log is the table of what was seen: a letter is a call of a step, and its key is made from the letter's own
id. So a letter that comes again, an hour or a year later, finds its run and is answered from it. The queue is
answered last, when everything that the answer rests on is stored; a crash can only fall on a `yield`, and
means, by the line of `take` it falls on:

    before the step    nothing happened; it is delivered again
    inside the step    what a crash means for any call of it; it is delivered again
    before it is kept  delivered again, the step's end is found in the log, and it is kept then
    before the answer  delivered again, found, not run, and answered

**Dead letters.** What cannot be read, or has failed for good, is kept whole as an event of the topic
`oncemore.inbox.` and the step's name, DEAD from its first entry: the list of dead letters and the quarantine
have it without knowing what it is, and a release has it taken once more. Its id follows from the letter's, so
that one which comes again is kept once.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any, NamedTuple

from oncemore._redact import mask_headers
from oncemore._values import Value
from oncemore.log.record import Change, Outgoing
from oncemore.policy.canonical_json import digest, event_id_of
from oncemore.steps.attempt import OURS
from oncemore.steps.ops import Load, Now, Save

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oncemore.steps.ops import Script

#: Topics of dead letters: this, and the name of the step.
TOPIC = f"{OURS}inbox."
LONGEST_TOPIC = 200
#: How long a letter stays away that somebody else is at, or that the store had no room for; and at most.
BUSY_S, LONGEST_S = 5.0, 43_200.0


class Letter(Value):
    """A message as it came in.

    id        what makes it the same message when it comes again
    source    whose ids these are: the stream, the queue, the endpoint
    body      its bytes
    headers   header fields or attributes, their names in small letters
    delivery  how often it was delivered, as far as the queue says
    """

    id: str
    source: str
    body: bytes
    headers: Mapping[str, str] = {}
    delivery: int = 1

    def stored(self) -> dict[str, Any]:
        """Return what a dead letter keeps of it: all that taking it again needs, and a person can read."""
        fields: dict[str, Any] = {"id": self.id, "source": self.source}
        try:
            fields["text"] = self.body.decode()
        except UnicodeDecodeError:
            fields["base64"] = b64encode(self.body).decode()
        return {**fields, "headers": [[name, value] for name, value in self.headers.items()]}


def prepare_letter(letter: Letter) -> Letter:
    """Return a letter that may be kept: its header fields without secrets, its texts as UTF-8 can hold them.

    A letter is read by its content and by fields that stay as they are; nothing else of them is needed later.
    """
    headers = {_escape(name): _escape(value) for name, value in mask_headers(letter.headers).items()}
    return letter._replace(id=_escape(letter.id), source=_escape(letter.source), headers=headers)


def _escape(text: str) -> str:
    """Return a text in which half a surrogate pair, which UTF-8 lacks, is written as an escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class CameTo(NamedTuple):
    """What a letter came to.

    what   a word of `ANSWERS`
    until  when it goes on, if it does; 0: nobody said
    error  the neutral record of what went wrong
    run    the id of its run, if it has one
    value  what the step returned
    """

    what: str
    until: float = 0.0
    error: Mapping[str, Any] = {}
    run: str = ""
    value: Any = None
    correlation_id: str = ""
    tenant: str = ""


class Perform(NamedTuple):
    """Call the step with a letter, under the letter's key. ← a `CameTo`"""

    letter: Letter


class Reply(NamedTuple):
    """Answer the queue. ← None

    verb     ack: it is done with; nak: again, after `delay_s`; term: never again
    why      for whoever reads the queue's own log
    """

    verb: str
    delay_s: float = 0.0
    why: str = ""


class Answer(NamedTuple):
    """How a letter is answered: the verb, and whether it is kept as a dead letter before."""

    verb: str
    kept: bool = False


#: By what it came to. A word that is not here is a mistake.
ANSWERS: dict[str, Answer] = {
    "done": Answer("ack"),  # its COMMIT is stored
    "seen": Answer("ack"),  # it was done before: nothing was run
    "expired": Answer("ack"),  # … so long ago that its record was pruned
    "later": Answer("nak"),  # parked, soft-failed, cooling down: it is due then
    "busy": Answer("nak"),  # somebody else is at it
    "trouble": Answer("nak"),  # the store cannot be used
    "held": Answer("term"),  # in quarantine, as a run: a person decides there
    "failed": Answer("term", kept=True),
    "unreadable": Answer("term", kept=True),
    "conflict": Answer("term", kept=True),  # its id belongs to another content
}


def take(letter: Letter, step: str) -> Script:
    """Take a letter in; return what it came to."""
    letter = prepare_letter(letter)
    came_to: CameTo = yield Perform(letter)
    answer = ANSWERS[came_to.what]
    if answer.kept:
        yield from keep(letter, step, came_to)
    delay = 0.0
    if answer.verb == "nak":
        now = yield Now()
        delay = away_s(came_to, now)
    yield Reply(answer.verb, delay, came_to.what)
    return came_to


def away_s(came_to: CameTo, now: float) -> float:
    """Return how long a letter stays away: as long as was decided, where something was."""
    return min(max(0.0, came_to.until - now), LONGEST_S) if came_to.until else BUSY_S


def keep(letter: Letter, step: str, came_to: CameTo) -> Script:
    """Keep a letter as a dead one, unless it is; return the id of its event."""
    lane = f"letter/{digest({'step': step, 'source': letter.source, 'id': letter.id})}"
    event_id = event_id_of(lane, 0, 0)
    seen = yield Load(f"event/{event_id}")
    if seen.run is None:
        now = yield Now()
        dead = Outgoing(
            "DEAD", topic_of(step), event_id, lane, 0, now, tenant=came_to.tenant,
            correlation_id=came_to.correlation_id, reason=came_to.what,
        )  # fmt: skip
        body = {"payload": letter.stored(), "error": dict(came_to.error), "run_id": came_to.run}
        # Two who keep one letter at the same time write the same; whoever comes second has nothing to add.
        yield Save(seen, Change(("EVENT", "DEAD", "ESCALATION"), None, dead, body))
    return event_id


def topic_of(step: str) -> str:
    """Return the topic of a step's dead letters; a name that is too long stands there by its digest."""
    topic = TOPIC + step
    return topic if len(topic) <= LONGEST_TOPIC else TOPIC + digest({"step": step})


def letter_of(payload: Mapping[str, Any]) -> Letter:
    """Return the letter that a dead one has kept."""
    body = payload["text"].encode() if "text" in payload else b64decode(payload["base64"])
    headers = {name: value for name, value in payload["headers"]}  # noqa: C416 - pairs are lists here
    return Letter(payload["id"], payload["source"], body, headers)


__all__ = [
    "ANSWERS",
    "TOPIC",
    "CameTo",
    "Letter",
    "Perform",
    "Reply",
    "keep",
    "letter_of",
    "take",
    "topic_of",
]
