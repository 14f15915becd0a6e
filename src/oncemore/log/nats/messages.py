"""What a message of the log in NATS holds.

An entity is a subject, `{namespace}.e.{token}`; the token is a digest of its name, because a server takes any
subject and keeps some that nobody can ask for again. The name itself is in every message.

A message is a *frame*: its header `Om-Head` is the head that stands from then on, so that heads can be
listed without their bodies. There are three kinds:

* *entry*: one entry of the log: its header, the hash before it, its body;
* *husk*: nothing new; a head that was put right, or whose last entry was purged. It moves no version;
* *stone*: the entity was dropped. It is as if it had never been. The stone tells by which appends the entries
  were written that went with it, for who still waits for an answer, and is purged later.

The server's sequence of an entity's last frame is what the next one must expect; its version counts entries.

A body that is too large for a message is in *parts*, messages on `{namespace}.b.{token}`, which are stored in
the same atomic batch as their frame and stand a known number of messages before it.

What is left of entries whose bodies were forgotten, and whose messages were purged, is in the messages of
`{namespace}.h.{token}`.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value, make
from oncemore.errors import StoreError, UsageError
from oncemore.log.store import Entry, Head, Index
from oncemore.policy.canonical_json import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oncemore.log.nats.connection import Message
    from oncemore.log.store import Batch

    Sent = tuple[str, bytes, dict[str, str]]

EXPECT = "Nats-Expected-Last-Subject-Sequence"
EXPECT_OF = "Nats-Expected-Last-Subject-Sequence-Subject"
STREAM = "Nats-Expected-Stream"
BATCH, NUMBER, COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
HEAD, APPEND = "Om-Head", "Om-Append"

ENTRY, HUSK, STONE = 0, 1, 2

#: How large a body may be: a result that is larger belongs into an artifact.
LARGEST_BODY = 64 * 1024 * 1024
#: How large the header with a head may be; a server takes 64 KiB for all headers of a message.
LARGEST_HEAD = 60_000
#: How many messages a server takes as one.
MOST_TOGETHER = 1000
#: How many bytes of what is left of entries go into one message, about.
OLDS_TOGETHER = 200_000


class Subjects(Value):
    """The subjects of a namespace; `parts`, `olds` and `entities` are completed by a token."""

    stream: str
    entities: str
    parts: str
    olds: str
    guard: str

    def entity(self, name: str) -> str:
        """Return where the frames of an entity are."""
        return self.entities + token(name)


def subjects(namespace: str) -> Subjects:
    """Return the subjects of a namespace."""
    return Subjects(
        f"{namespace}_LOG", f"{namespace}.e.", f"{namespace}.b.", f"{namespace}.h.", f"{namespace}.g"
    )


class Old(Value):
    """An entry without its body; `append` is who wrote it."""

    version: int
    seq: int
    prev: bytes
    hash: bytes
    header: bytes
    digest: bytes
    append: str


class Frame(Value):
    """A message of the log, read.

    at      the sequence of the message itself, which the next one must expect
    kind    ENTRY, HUSK or STONE
    head    what stands from then on, with its body if the message has it
    entry   the entry that it holds, if it does
    append  by which append it was written
    first   the sequence of the first part of its body; 0: the body is in the message
    parts   how many parts there are
    """

    at: int
    kind: int
    head: Head
    entry: Entry | None
    append: str
    first: int = 0
    parts: int = 0


@lru_cache(1024)  # one append asks several times
def token(entity: str) -> str:
    """Return what stands for an entity in its subject."""
    return base64.b32encode(sha256(_utf8(entity)).digest()[:20]).decode().lower()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is not text: it has half a character in it") from None


# Writing.


def headers(head: Head, kind: int, append: str) -> dict[str, str]:
    """Return the headers that tell the head from then on; an entry's seq is that of its message."""
    seq = 0 if kind == ENTRY else head.seq
    for text in (head.entity, *head.by):
        if isinstance(text, str) and not text.isascii():
            _utf8(text)
    told = msgspec.msgpack.encode([kind, head.entity, head.version, head.hash, head.head, list(head.by), seq])
    packed = base64.b64encode(told).decode()
    if len(packed) > LARGEST_HEAD:
        raise UsageError(
            f"{head.entity[:80]}: its state takes {len(head.head):,} bytes, more than the headers of "
            "a NATS message may have; names, tenants and reasons must be shorter"
        )
    return {HEAD: packed, APPEND: append}


def check(batch: Batch) -> None:
    """Refuse what no server can take, before anything is sent."""
    for name in batch.guards:
        _utf8(name)
    for write in batch.writes:
        texts = (write.entity, *write.by)
        if len(write.head) > LARGEST_HEAD // 4 or any(type(t) is str and not t.isascii() for t in texts):
            headers(Head(write.entity, 0, write.hash, write.head, write.by, 0), ENTRY, "")
        if len(write.body) > LARGEST_BODY:
            raise UsageError(
                f"{write.entity[:80]}: {len(write.body):,} bytes are more than a store in NATS takes in one "
                f"entry, {LARGEST_BODY:,}; keep them as an artifact (current().put)"
            )


class Put(Value):
    """An entry on its way into the log: the head that then stands, and what the frame holds.

    body    None: it was pruned where the entry comes from, and `digest` is what is left of it
    expect  the sequence that the subject's last message must have; None: it follows one in the same batch
    """

    head: Head
    header: bytes
    prev: bytes
    body: bytes | None
    expect: int | None
    digest: bytes = b""


def frames(batch: Batch, known: Mapping[str, Any], mine: str, where: Subjects, room: int) -> list[Sent]:
    """Return the messages of a batch: guards, parts of large bodies, and last the frames, in their order."""
    sent = guards(batch, known, mine, where)
    puts: list[Put] = []
    for write in batch.writes:
        at = known[write.entity]
        head = Head(write.entity, write.expect + 1, write.hash, write.head, write.by, 0)
        puts.append(make(Put, (head, write.header, at.hash, write.body, at.seq, b"")))
    return put(puts, mine, where, room, sent)


def guards(batch: Batch, known: Mapping[str, Any], mine: str, where: Subjects) -> list[Sent]:
    """Return the messages that hold only if the guards of a batch do."""
    return [
        (
            where.guard,
            b"",
            {EXPECT: str(known[entity].seq), EXPECT_OF: where.entity(entity), APPEND: mine},
        )
        for entity in batch.guards
    ]


def put(puts: Sequence[Put], mine: str, where: Subjects, room: int, sent: list[Sent]) -> list[Sent]:
    """Add the messages of entries to others: parts of large bodies, and last the frames, in their order."""
    begins: list[tuple[int, int]] = []
    for one in puts:
        pieces = _pieces(one, room)
        begins.append((len(sent), len(pieces)))
        if pieces:
            subject = where.parts + token(one.head.entity)
            sent += [(subject, piece, {APPEND: mine}) for piece in pieces]
    for one, (first, many) in zip(puts, begins, strict=True):
        told: list[Any] = [one.header, one.prev, one.body]
        if many:
            told = [one.header, one.prev, None, len(sent) - first, many, b""]
        elif one.body is None:
            told += [0, 0, one.digest]
        given = headers(one.head, ENTRY, mine)
        if one.expect is not None:
            given[EXPECT] = str(one.expect)
        sent.append((where.entity(one.head.entity), msgspec.msgpack.encode(told), given))
    if len(sent) > MOST_TOGETHER:
        raise UsageError(f"a batch of {len(sent)} messages is more than NATS takes as one, {MOST_TOGETHER}")
    return sent


def _pieces(one: Put, room: int) -> list[bytes]:
    body = one.body or b""
    if len(body) + len(one.header) + 200 <= room:
        return []
    return [body[at : at + room] for at in range(0, len(body), room)]


def together(sent: list[Sent], stream: str, name: str) -> list[Sent]:
    """Return messages as what a server stores as one, or not at all."""
    for number, (_, _, given) in enumerate(sent, 1):
        given[STREAM] = stream
        if len(sent) > 1:
            given |= {BATCH: name, NUMBER: str(number)}
    if len(sent) > 1:
        sent[-1][2][COMMIT] = "1"
    return sent


def stone(entity: str, kind: str, gone: Iterable[tuple[int, str]], mine: str) -> tuple[bytes, dict[str, str]]:
    """Return the frame that says that an entity is no more, with the appends that went with it."""
    head = Head(entity, 0, b"", b"", Index(kind), 0)
    return msgspec.msgpack.encode([list(pair) for pair in gone]), headers(head, STONE, mine)


# Reading.


def told(message: Message) -> tuple[int, Head, str]:
    """Return what the headers of a message say: its kind, the head from then on, and by which append."""
    given: Mapping[str, str] = message.headers
    try:
        kind, entity, version, digest, head, by, seq = msgspec.msgpack.decode(base64.b64decode(given[HEAD]))
        stands = Head(entity, version, digest, head, Index(*by), seq or message.seq)
    except (KeyError, ValueError, TypeError, msgspec.DecodeError):
        raise StoreError(f"message {message.seq} of the log in NATS is not one of ours") from None
    return kind, stands, given.get(APPEND, "")


def read(message: Message) -> Frame:
    """Read a whole message; a body that is in parts is missing, and must be filled in (`with_body`)."""
    kind, head, append = told(message)
    if kind != ENTRY:
        return Frame(message.seq, kind, head, None, append)
    header, prev, body, *parts = _content(message)
    back, many, digest = parts or (0, 0, b"")
    if body is not None:
        digest = fingerprint(body)
    found = Entry(message.seq, head.entity, head.version, prev, head.hash, header, body, digest)
    first = message.seq - back if many else 0
    return Frame(message.seq, kind, head._replace(body=body), found, append, first, many)


def with_body(frame: Frame, body: bytes) -> Frame:
    """Return a frame with the body that was put together from its parts."""
    assert frame.entry is not None
    entry = frame.entry._replace(body=body, body_digest=fingerprint(body))
    return frame._replace(head=frame.head._replace(body=body), entry=entry)


def gone_with(message: Message) -> dict[str, int]:
    """Return which appends wrote what a stone stands for, with the sequences of their entries."""
    return {mark: seq for seq, mark in _content(message)}


def olds(entity: str, kept: Sequence[Old]) -> list[bytes]:
    """Return the contents of messages that keep what is left of entries."""
    parts: list[list[list[Any]]] = []
    room = 0
    for old in kept:
        if room <= 0:
            parts.append([])
            room = OLDS_TOGETHER
        parts[-1].append(list(old))
        room -= len(old.header) + 150
    return [msgspec.msgpack.encode([entity, part]) for part in parts]


def read_olds(message: Message) -> tuple[str, tuple[Old, ...]]:
    """Return whose entries they were and what is left of them."""
    entity, kept = _content(message)
    return entity, tuple(Old(*old) for old in kept)


def _content(message: Message) -> Any:
    try:
        return msgspec.msgpack.decode(message.data)
    except msgspec.DecodeError:
        raise StoreError(f"message {message.seq} of the log in NATS was altered") from None


def without_body(entity: str, old: Old) -> Entry:
    """Return an entry whose body is forgotten."""
    return Entry(old.seq, entity, old.version, old.prev, old.hash, old.header, None, old.digest)


def as_old(found: Entry, append: str) -> Old:
    """Return what is left of an entry without its body."""
    return Old(found.version, found.seq, found.prev, found.hash, found.header, found.body_digest, append)
