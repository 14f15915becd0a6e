"""What a message of the log in NATS holds.

An entity is a subject, `{namespace}.e.{token}`; the token is a digest of its name, because a server takes any
subject and keeps some that nobody can ask for again. The name itself is in every message.

A message is a *frame*: its header `Om-Head` is the head that stands from then on, so that heads can be
listed without their bodies. There are three kinds:

* *entry*: one entry of the log: its header, the hash before it, its body;
* *husk*: nothing new; a head that was put right, or whose last entry was purged. It moves no version;
* *stone*: the entity was dropped. It is as if it had never been, and the stone is purged later.

The server's sequence of an entity's last frame is what the next one must expect; its version counts entries.

What is left of entries whose bodies were forgotten, and whose messages were purged, is in the last message of
`{namespace}.h.{token}`.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from oncemore.core.key import fingerprint
from oncemore.core.value import Value
from oncemore.errors import StoreError, UsageError
from oncemore.store.base import Entry, Head, Index

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oncemore.store.base import Write
    from oncemore.store.nats_wire import Message

EXPECT = "Nats-Expected-Last-Subject-Sequence"
EXPECT_OF = "Nats-Expected-Last-Subject-Sequence-Subject"
STREAM = "Nats-Expected-Stream"
BATCH, NUMBER, COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
HEAD, APPEND = "Om-Head", "Om-Append"

ENTRY, HUSK, STONE = 0, 1, 2


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
    """

    at: int
    kind: int
    head: Head
    entry: Entry | None
    append: str


def token(entity: str) -> str:
    """Return what stands for an entity in its subject."""
    return base64.b32encode(sha256(_utf8(entity)).digest()[:20]).decode().lower()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is not text: it has half a character in it") from None


def headers(head: Head, kind: int, append: str) -> dict[str, str]:
    """Return the headers that tell the head from then on; an entry's seq is that of its message."""
    seq = 0 if kind == ENTRY else head.seq
    for text in head.by:
        if isinstance(text, str):
            _utf8(text)
    told = msgspec.msgpack.encode([kind, head.entity, head.version, head.hash, head.head, list(head.by), seq])
    return {HEAD: base64.b64encode(told).decode(), APPEND: append}


def entry(write: Write, prev: bytes, append: str) -> tuple[bytes, dict[str, str]]:
    """Return content and headers of the frame that appends an entry."""
    head = Head(write.entity, write.expect + 1, write.hash, write.head, write.by, 0)
    return msgspec.msgpack.encode([write.header, prev, write.body]), headers(head, ENTRY, append)


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
    """Read a whole message."""
    kind, head, append = told(message)
    if kind != ENTRY:
        return Frame(message.seq, kind, head, None, append)
    header, prev, body = _content(message)
    found = Entry(message.seq, head.entity, head.version, prev, head.hash, header, body, fingerprint(body))
    return Frame(message.seq, kind, head._replace(body=body), found, append)


def olds(entity: str, kept: Sequence[Old]) -> bytes:
    """Return the content of a message that keeps what is left of entries."""
    return msgspec.msgpack.encode([entity, [list(old) for old in kept]])


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
