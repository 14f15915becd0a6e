"""The encoding of entries and heads: msgspec JSON with fixed field order, the format's version first."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from oncemore._values import make
from oncemore.errors import StoreError
from oncemore.log.encryption import EMPTY, decrypt_bytes
from oncemore.log.record import FORMAT, RunRecord

if TYPE_CHECKING:
    from oncemore.log.encryption import BodyCipher
    from oncemore.log.record import (
        ArtifactRecord,
        EventRecord,
        MaintenanceRecord,
        RecordChange,
        State_,
        WorkerRecord,
    )


class EntryHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of an entry that is never erased.

    nonce  random number that makes two entries with the same content differ: a writer recognises its own
           entry by the hash
    """

    format: int
    entity: str
    version: int
    at: float
    fence: int
    nonce: int
    marks: tuple[str, ...]
    sets: dict[str, Any]


class EncodedEntry(NamedTuple):
    """The bytes of an entry, its hash, and the bytes of the new head."""

    header: bytes
    body: bytes
    hash: bytes
    head: bytes


_headers = msgspec.json.Decoder(EntryHeader)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_head = msgspec.json.Decoder(tuple[Any, ...]).decode
#: First byte of a body that is not encrypted: every body is a JSON object.
_BRACE = 0x7B
_DIGEST_OF_EMPTY = sha256(EMPTY).digest()


def encode_entry(
    change: RecordChange,
    entity: str,
    version: int,
    prev: bytes,
    at: float,
    nonce: int,
    cipher: BodyCipher | None = None,
) -> EncodedEntry:
    """Return the bytes of the next entry of an entity, linked to the hash of the previous one."""
    marks, _, after, content = change
    fence = after.fence if type(after) is RunRecord else 0
    header = EntryHeader(
        format=FORMAT,
        entity=entity,
        version=version,
        at=at,
        fence=fence,
        nonce=nonce,
        marks=marks,
        sets=change.changed_fields,
    )
    body, digest = EMPTY, _DIGEST_OF_EMPTY
    if content:
        body = _encode(content) if cipher is None else cipher.encrypt_body(_encode(content), entity, version)
        # Over the stored bytes, so that the chain verifies without the key.
        digest = sha256(body).digest()
    header_bytes = _encode(header)
    own_hash = hash_entry(prev, header_bytes, digest)
    return make(EncodedEntry, (header_bytes, body, own_hash, _encode((FORMAT, *after))))


def hash_entry(prev: bytes, header: bytes, body_digest: bytes) -> bytes:
    """Return the hash of an entry.

    The same as `log.record.hash_entry`, but by hashlib: slower to import, faster to run.
    """
    return sha256(prev + header + body_digest).digest()


def encode_head(state: RunRecord | WorkerRecord | EventRecord | ArtifactRecord | MaintenanceRecord) -> bytes:
    """Return the bytes of a head: the format and the fields in order."""
    return _encode((FORMAT, *state))


def decode_head(data: bytes, kind: type[State_] = RunRecord) -> State_:  # type: ignore[assignment]
    """Return the record in the bytes of a head; fields that an older head lacks get their defaults."""
    whole = _decode_head(data)
    head_format, fields = whole[0], whole[1:]
    # The common case first, without the checks of the constructor.
    if head_format == FORMAT and len(fields) == len(kind._fields):
        return make(kind, fields)
    if head_format != FORMAT:
        raise unreadable_format("a head", head_format)
    # Fields are only ever added at the end, so an older head is a prefix of the current fields.
    try:
        return kind(*fields)
    except TypeError:
        raise StoreError(
            f"a head has {len(fields)} fields, and this oncemore knows {len(kind._fields)}: a newer oncemore "
            "wrote it; nothing was changed, use that version here too"
        ) from None


def unreadable_format(subject: str, stored_format: int) -> StoreError:
    """Return the error for data of another format; it names the version that can read the data."""
    if stored_format > FORMAT:
        return StoreError(
            f"{subject} has format {stored_format}, which a newer oncemore wrote; this one reads format "
            f"{FORMAT}: install the newer one"
        )
    return StoreError(
        f"{subject} has format {stored_format}, which oncemore wrote before its first release; this one "
        f"reads format {FORMAT}: finish the work with the version that wrote the store, then begin with a "
        "new store"
    )


def decode_header(data: bytes) -> EntryHeader:
    """Decode the header of an entry; raise `StoreError` for bytes that are not a header."""
    try:
        header = _headers.decode(data)
    except msgspec.DecodeError as error:
        raise StoreError(f"an entry's header cannot be read: {error}") from None
    if header.format != FORMAT:
        raise unreadable_format("an entry", header.format)
    return header


def decode_body(
    data: bytes, cipher: BodyCipher | None = None, entity: str = "", version: int = 0
) -> dict[str, Any]:
    """Decode the body of an entry; an encrypted one needs its cipher."""
    # With a cipher even a plain body is checked: it must be allowed by `EarlierBodies`.
    if cipher is not None or data[0] != _BRACE:
        data = decrypt_bytes(data, cipher, entity, version)
    body: dict[str, Any] = _decode(data)
    return body


def read_body(stored: Any, cipher: BodyCipher | None = None) -> dict[str, Any]:
    """Return the body of an `Entry` or a `Head`; empty if it was pruned."""
    return {} if stored.body is None else decode_body(stored.body, cipher, stored.entity, stored.version)
