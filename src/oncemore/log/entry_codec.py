"""Entries and heads as bytes: msgspec JSON with the fields in one order, the format's version first."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from oncemore._values import make
from oncemore.errors import StoreError
from oncemore.log.encryption import EMPTY, opened
from oncemore.log.record import FORMAT, Run

if TYPE_CHECKING:
    from oncemore.log.encryption import Seal
    from oncemore.log.record import Change, Chore, Kept, Outgoing, State_, Worker


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of an entry that is never erased.

    nonce  tells two entries apart that say the same: an equal hash means that it is one's own
    """

    format: int
    entity: str
    version: int
    at: float
    fence: int
    nonce: int
    marks: tuple[str, ...]
    sets: dict[str, Any]


class Written(NamedTuple):
    """The bytes of an entry and of the head that then stands."""

    header: bytes
    body: bytes
    hash: bytes
    head: bytes


_headers = msgspec.json.Decoder(Header)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_head = msgspec.json.Decoder(tuple[Any, ...]).decode
_BRACE = 0x7B
_DIGEST_OF_EMPTY = sha256(EMPTY).digest()


def written(
    change: Change, entity: str, version: int, prev: bytes, at: float, nonce: int, seal: Seal | None = None
) -> Written:
    """Return the bytes of the next entry of an entity, linked to the hash of the one before."""
    marks, _, after, told = change
    fence = after.fence if type(after) is Run else 0
    header = _encode(Header(FORMAT, entity, version, at, fence, nonce, marks, change.sets))
    body, digest = EMPTY, _DIGEST_OF_EMPTY
    if told:
        body = _encode(told) if seal is None else seal.close(_encode(told), entity, version)
        digest = sha256(body).digest()
    return make(Written, (header, body, linked(prev, header, digest), _encode((FORMAT, *after))))


def linked(prev: bytes, header: bytes, body_digest: bytes) -> bytes:
    """Return the hash of an entry (`log.record.link`), by what takes longer to load and less to run."""
    return sha256(prev + header + body_digest).digest()


def head_bytes(state: Run | Worker | Outgoing | Kept | Chore) -> bytes:
    """Return the bytes of a head: its fields in order."""
    return _encode((FORMAT, *state))


def head_of(data: bytes, kind: type[State_] = Run) -> State_:  # type: ignore[assignment]
    """Return the state that the bytes of a head hold; fields that an older one lacks have their defaults."""
    whole = _decode_head(data)
    found, fields = whole[0], whole[1:]
    if found == FORMAT and len(fields) == len(kind._fields):
        return make(kind, fields)
    if found > FORMAT:
        raise StoreError(
            f"a head has format {found}, which a newer oncemore wrote; this one reads up to {FORMAT}"
        )
    try:
        return kind(*fields)
    except TypeError:
        raise StoreError(
            f"a head has {len(fields)} fields, of which this oncemore knows {len(kind._fields)}: a "
            "newer one wrote it; nothing was changed, use that version here too"
        ) from None


def header_of(data: bytes) -> Header:
    """Return the header that its bytes hold; bytes that are none are refused."""
    try:
        header = _headers.decode(data)
    except msgspec.DecodeError as error:
        raise StoreError(f"an entry's header cannot be read: {error}") from None
    if header.format > FORMAT:
        raise StoreError(f"an entry has format {header.format}, which a newer oncemore wrote")
    return header


def body_of(data: bytes, seal: Seal | None = None, entity: str = "", version: int = 0) -> dict[str, Any]:
    """Return the body of an entry that its bytes hold; a sealed one needs its key."""
    if seal is not None or data[0] != _BRACE:
        data = opened(data, seal, entity, version)
    found: dict[str, Any] = _decode(data)
    return found


def read_body(stored: Any, seal: Seal | None = None) -> dict[str, Any]:
    """Return the body of an entry, or of the last entry of a head; empty where it was pruned."""
    return {} if stored.body is None else body_of(stored.body, seal, stored.entity, stored.version)
