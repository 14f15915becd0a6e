"""Encoding of log entries as JetStream messages.

Each entity has one subject, `{namespace}.e.{token}`. The token is a digest of the entity's name, because a
server stores messages on subjects that no request can name afterwards; the name itself is in every message.

Every message on that subject has a header `Om-Head` with the entity's head after it, so that heads can be
listed without reading bodies. There are three kinds of messages:

* *entry*: one entry of the log: its header, the hash of the entry before it, its body;
* *head only*: a replaced head, or the head of an entity whose last entry was purged. The version stays;
* *tombstone*: the entity was dropped. It lists the ids of the appends that wrote the dropped entries, for
  writers that still wait for an acknowledgement, and is purged later.

The next message of an entity expects the server's sequence of its last one; the version counts entries.

A body that is too large for one message is split into messages on `{namespace}.b.{token}`, stored in the same
atomic batch as their entry, a known number of messages before it. What remains of pruned entries (all but
their bodies) is stored on `{namespace}.h.{token}`.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore._values import Value, make
from oncemore.errors import StoreError, UsageError
from oncemore.log.store import Entry, Head, HeadIndex, hash_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from oncemore.log.nats.replies import StreamMessage
    from oncemore.log.store import Batch

    #: Subject, payload and headers of a message to publish.
    OutgoingMessage = tuple[str, bytes, dict[str, str]]

EXPECT = "Nats-Expected-Last-Subject-Sequence"
EXPECT_OF = "Nats-Expected-Last-Subject-Sequence-Subject"
STREAM = "Nats-Expected-Stream"
BATCH, NUMBER, COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
HEAD, APPEND = "Om-Head", "Om-Append"

# The kinds are stored: their numbers must not change.
ENTRY, HEAD_ONLY, TOMBSTONE = 0, 1, 2

#: The largest body; a larger result belongs into an artifact.
MAX_BODY_BYTES = 64 * 1024 * 1024
#: The largest encoded head; a server accepts 64 KiB for all headers of a message.
MAX_HEAD_BYTES = 60_000
#: The largest atomic batch that a server accepts, in messages.
MAX_BATCH_MESSAGES = 1000
#: About how many bytes of pruned entries go into one message.
PRUNED_MESSAGE_BYTES = 200_000


class LogSubjects(Value):
    """The stream and the subjects of a namespace; a token completes `entities`, `parts` and `pruned`."""

    stream: str
    entities: str
    parts: str
    pruned: str
    guard: str

    def entity_subject(self, name: str) -> str:
        """Return the subject of an entity's entries."""
        return self.entities + entity_token(name)


def log_subjects(namespace: str) -> LogSubjects:
    """Return the stream and the subjects of a namespace."""
    return LogSubjects(
        f"{namespace}_LOG", f"{namespace}.e.", f"{namespace}.b.", f"{namespace}.h.", f"{namespace}.g"
    )


class PrunedEntry(Value):
    """An entry without its body; `append_id` names the append that wrote it.

    The field order is the stored order.
    """

    version: int
    seq: int
    prev: bytes
    hash: bytes
    header: bytes
    digest: bytes
    append_id: str


class LogMessage(Value):
    """A decoded message of an entity's subject.

    seq         the sequence of the message, which the next one must expect
    kind        ENTRY, HEAD_ONLY or TOMBSTONE
    head        the head after this message, with its body if the message contains it
    entry       the entry in the message, if there is one
    append_id   the append that wrote the message
    first_part  the sequence of the first part of its body; 0: the body is in the message
    part_count  the number of parts
    """

    seq: int
    kind: int
    head: Head
    entry: Entry | None
    append_id: str
    first_part: int = 0
    part_count: int = 0


@lru_cache(1024)  # one append computes the token of an entity several times
def entity_token(entity: str) -> str:
    """Return the part of the subject that identifies an entity."""
    return base64.b32encode(sha256(_encode_utf8(entity)).digest()[:20]).decode().lower()


def _encode_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} cannot be encoded as UTF-8: it contains a lone surrogate") from None


# Encoding


def build_headers(head: Head, kind: int, append_id: str) -> dict[str, str]:
    """Return the headers that store a head.

    The `seq` of an entry's head is stored as 0: it is the sequence of the message, which only the server
    knows.
    """
    seq = 0 if kind == ENTRY else head.seq
    for text in (head.entity, *head.by):
        if isinstance(text, str) and not text.isascii():
            _encode_utf8(text)
    fields = [kind, head.entity, head.version, head.hash, head.head, list(head.by), seq]
    packed = base64.b64encode(msgspec.msgpack.encode(fields)).decode()
    if len(packed) > MAX_HEAD_BYTES:
        raise UsageError(
            f"{head.entity[:80]}: its state takes {len(head.head):,} bytes, more than the headers of "
            "a NATS message may have; use shorter names, tenants and reasons"
        )
    return {HEAD: packed, APPEND: append_id}


def check_batch_size(batch: Batch) -> None:
    """Raise `UsageError` for a batch that no server accepts, before anything is sent."""
    for name in batch.guards:
        _encode_utf8(name)
    for write in batch.writes:
        texts = (write.entity, *write.by)
        # Encoding every head twice would be slow; only large ones and those with non-ASCII text can fail.
        if len(write.head) > MAX_HEAD_BYTES // 4 or any(type(t) is str and not t.isascii() for t in texts):
            build_headers(Head(write.entity, 0, write.hash, write.head, write.by, 0), ENTRY, "")
        if len(write.body) > MAX_BODY_BYTES:
            raise UsageError(
                f"{write.entity[:80]}: a body of {len(write.body):,} bytes is larger than a store in NATS "
                f"takes in one entry, {MAX_BODY_BYTES:,}; store it as an artifact (current().put)"
            )


class EntryToPublish(Value):
    """An entry to store, and the head after it.

    body          None: it was pruned in the log that the entry comes from, and `body_digest` is given
    expected_seq  the sequence that the subject's last message must have; None: the entry follows another
                  one of its entity in the same batch
    """

    head: Head
    header: bytes
    prev: bytes
    body: bytes | None
    expected_seq: int | None
    body_digest: bytes | None = None


def build_batch_messages(
    batch: Batch, positions: Mapping[str, Any], append_id: str, subjects: LogSubjects, room: int
) -> list[OutgoingMessage]:
    """Return the messages of a batch: guards, parts of large bodies, and last the entries in their order.

    `room` is the largest payload of a message, in bytes.
    """
    outgoing = build_guard_messages(batch, positions, append_id, subjects)
    entries: list[EntryToPublish] = []
    for write in batch.writes:
        position = positions[write.entity]
        head = Head(write.entity, write.expect + 1, write.hash, write.head, write.by, 0)
        entries.append(
            make(EntryToPublish, (head, write.header, position.hash, write.body, position.seq, b""))
        )
    return add_entry_messages(entries, append_id, subjects, room, outgoing)


def build_guard_messages(
    batch: Batch, positions: Mapping[str, Any], append_id: str, subjects: LogSubjects
) -> list[OutgoingMessage]:
    """Return one message per guard, which the server refuses if the guarded entity has moved."""
    return [
        (
            subjects.guard,
            b"",
            {
                EXPECT: str(positions[entity].seq),
                EXPECT_OF: subjects.entity_subject(entity),
                APPEND: append_id,
            },
        )
        for entity in batch.guards
    ]


def add_entry_messages(
    entries: Sequence[EntryToPublish],
    append_id: str,
    subjects: LogSubjects,
    room: int,
    outgoing: list[OutgoingMessage],
) -> list[OutgoingMessage]:
    """Add the messages of entries to `outgoing`: parts of large bodies first, then the entries in order."""
    parts_at: list[tuple[int, int]] = []
    for entry in entries:
        parts = _split_body(entry, room)
        parts_at.append((len(outgoing), len(parts)))
        if parts:
            subject = subjects.parts + entity_token(entry.head.entity)
            outgoing += [(subject, part, {APPEND: append_id}) for part in parts]
    for entry, (first, part_count) in zip(entries, parts_at, strict=True):
        content: list[Any] = [entry.header, entry.prev, entry.body]
        if part_count:
            # The sequences of an atomic batch are consecutive, so the distance to the first part is known.
            content = [entry.header, entry.prev, None, len(outgoing) - first, part_count, b""]
        elif entry.body is None:
            content += [0, 0, entry.body_digest]
        headers = build_headers(entry.head, ENTRY, append_id)
        if entry.expected_seq is not None:
            headers[EXPECT] = str(entry.expected_seq)
        subject = subjects.entity_subject(entry.head.entity)
        outgoing.append((subject, msgspec.msgpack.encode(content), headers))
    if len(outgoing) > MAX_BATCH_MESSAGES:
        raise UsageError(
            f"a batch of {len(outgoing)} messages is larger than NATS takes as one, {MAX_BATCH_MESSAGES}"
        )
    return outgoing


def _split_body(entry: EntryToPublish, room: int) -> list[bytes]:
    body = entry.body or b""
    # 200 bytes are more than the rest of an encoded entry takes.
    if len(body) + len(entry.header) + 200 <= room:
        return []
    return [body[start : start + room] for start in range(0, len(body), room)]


def mark_as_batch(outgoing: list[OutgoingMessage], stream: str, batch_id: str) -> list[OutgoingMessage]:
    """Add the headers that make several messages one atomic batch; a single message needs none."""
    for number, (_, _, headers) in enumerate(outgoing, 1):
        headers[STREAM] = stream
        if len(outgoing) > 1:
            headers |= {BATCH: batch_id, NUMBER: str(number)}
    if len(outgoing) > 1:
        outgoing[-1][2][COMMIT] = "1"
    return outgoing


def build_tombstone(
    entity: str, kind: str, dropped: Iterable[tuple[int, str]], append_id: str
) -> tuple[bytes, dict[str, str]]:
    """Return payload and headers of a tombstone; `dropped` has sequence and append id of each entry."""
    head = Head(entity, 0, b"", b"", HeadIndex(kind), 0)
    return msgspec.msgpack.encode([list(pair) for pair in dropped]), build_headers(head, TOMBSTONE, append_id)


# Decoding


def parse_headers(message: StreamMessage) -> tuple[int, Head, str]:
    """Return the kind of a message, the head after it, and the id of the append that wrote it."""
    headers: Mapping[str, str] = message.headers
    try:
        kind, entity, version, digest, state, by, seq = msgspec.msgpack.decode(
            base64.b64decode(headers[HEAD])
        )
        head = Head(entity, version, digest, state, HeadIndex(*by), seq or message.seq)
    except (KeyError, ValueError, TypeError, msgspec.DecodeError):
        raise StoreError(
            f"message {message.seq} of the log in NATS was not written by oncemore: it has no head; "
            "check who else publishes to this stream"
        ) from None
    return kind, head, headers.get(APPEND, "")


def parse_message(message: StreamMessage) -> LogMessage:
    """Decode a message; a body that is stored in parts is missing (`with_body` adds it)."""
    kind, head, append_id = parse_headers(message)
    if kind != ENTRY:
        return LogMessage(message.seq, kind, head, None, append_id)
    header, prev, body, *parts = _decode_content(message)
    back, part_count, digest = parts or (0, 0, b"")
    entry = Entry(
        seq=message.seq,
        entity=head.entity,
        version=head.version,
        prev=prev,
        hash=head.hash,
        header=header,
        body=body,
        body_digest=digest if body is None else None,
    )
    return LogMessage(
        seq=message.seq,
        kind=kind,
        head=head._replace(body=body),
        entry=entry,
        append_id=append_id,
        first_part=message.seq - back if part_count else 0,
        part_count=part_count,
    )


def with_body(message: LogMessage, body: bytes) -> LogMessage:
    """Return a message with the body that was joined from its parts."""
    assert message.entry is not None
    entry = message.entry._replace(body=body, body_digest=None)
    return message._replace(head=message.head._replace(body=body), entry=entry)


def tombstone_appends(message: StreamMessage) -> dict[str, int]:
    """Return the append ids in a tombstone, with the sequences of the entries that they wrote."""
    return {append_id: seq for seq, append_id in _decode_content(message)}


def encode_pruned_entries(entity: str, entries: Sequence[PrunedEntry]) -> list[bytes]:
    """Return the payloads of messages that store pruned entries."""
    groups: list[list[list[Any]]] = []
    room = 0
    for entry in entries:
        if room <= 0:
            groups.append([])
            room = PRUNED_MESSAGE_BYTES
        groups[-1].append(list(entry))
        # The fields besides the header take about 150 bytes.
        room -= len(entry.header) + 150
    return [msgspec.msgpack.encode([entity, group]) for group in groups]


def decode_pruned_entries(message: StreamMessage) -> tuple[str, tuple[PrunedEntry, ...]]:
    """Return the entity and the pruned entries in a message."""
    entity, entries = _decode_content(message)
    return entity, tuple(PrunedEntry(*fields) for fields in entries)


def _decode_content(message: StreamMessage) -> Any:
    try:
        return msgspec.msgpack.decode(message.data)
    except msgspec.DecodeError:
        raise StoreError(
            f"message {message.seq} of the log in NATS was altered: it does not decode"
        ) from None


def restore_pruned_entry(entity: str, pruned: PrunedEntry) -> Entry:
    """Return a pruned entry as an `Entry` without body."""
    return Entry(
        seq=pruned.seq,
        entity=entity,
        version=pruned.version,
        prev=pruned.prev,
        hash=pruned.hash,
        header=pruned.header,
        body=None,
        body_digest=pruned.digest,
    )


def prune_entry(entry: Entry, append_id: str) -> PrunedEntry:
    """Return an entry without its body."""
    return PrunedEntry(
        version=entry.version,
        seq=entry.seq,
        prev=entry.prev,
        hash=entry.hash,
        header=entry.header,
        digest=hash_body(entry),
        append_id=append_id,
    )
