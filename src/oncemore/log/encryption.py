"""SEAL: bodies that only who has the key can read.

A codec is an object with an `id`, `encode(bytes) -> bytes` and `decode(bytes) -> bytes`: most often a cipher.
Bodies (arguments, results, errors, checkpoints, events) are stored as it encodes them, and the hashes of the
log are made over that: `verify` needs no key. What is stored says by which codec, so that keys can be
changed:

    stored  =  0x01 ‖ length of the id ‖ id ‖ encode(binding ‖ body)
    binding =  version, 8 bytes ‖ length of the entity's name, 4 bytes ‖ name of the entity

The first byte tells it from a plain body, which is a JSON object. The binding says which entry the body
belongs to: a body that was put into another entry is refused, as far as the codec authenticates what it
decodes. With a codec plain bodies are refused, because anybody who can write to the store could have written
them; so are bodies that earlier versions sealed without a binding (0x00). `EarlierBodies` allows both.
Headers and heads are never sealed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from oncemore.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

UNBOUND, BOUND = 0, 1
EMPTY = b"{}"  # the body of an entry that says nothing; it is never sealed
LONGEST_ID = 100


class Codec(Protocol):
    """Turns bytes into other bytes and back; `id` names it, most often by its key."""

    @property
    def id(self) -> str:
        """The name that is stored with what it encodes."""

    def encode(self, data: bytes, /) -> bytes:
        """Return what is stored instead."""

    def decode(self, data: bytes, /) -> bytes:
        """Return what was encoded, or raise."""


class EarlierBodies:
    """Among the codecs of an engine: bodies of earlier times are read too, until all of them are gone.

    These are plain ones, of a log that began without a codec, and those that earlier versions have sealed
    without binding them to their entry. Whoever can write to the store can then forge or swap such bodies.
    """

    id = "earlier bodies"

    def encode(self, data: bytes, /) -> bytes:
        """Refuse: it reads only."""
        raise UsageError("EarlierBodies cannot write; name the codec that does before it")

    def decode(self, data: bytes, /) -> bytes:
        """Return plain bytes as they are."""
        return data


class Seal:
    """The codecs of an engine: the first one writes, and all can read."""

    def __init__(self, codecs: Codec | Sequence[Codec]) -> None:
        several: Any = codecs if isinstance(codecs, list | tuple) else (codecs,)
        if not several:
            raise UsageError("codec is empty; it takes a codec, or several of which the first one writes")
        self._by_id: dict[str, Codec] = {_name(codec): codec for codec in several}
        if len(self._by_id) < len(several):
            raise UsageError("codec names one id twice; each needs an id of its own")
        self._first: Codec = several[0]
        if isinstance(self._first, EarlierBodies):
            raise UsageError(
                "codec begins with EarlierBodies, which only reads; name the one that writes first"
            )
        self._reads_earlier = any(isinstance(codec, EarlierBodies) for codec in several)
        name = _name(self._first).encode()
        self._mark = bytes((BOUND, len(name))) + name

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """All codecs, the one that writes first."""
        return tuple(self._by_id.values())

    def close(self, body: bytes, entity: str, version: int) -> bytes:
        """Return a body as it is stored in an entry."""
        return self._mark + self._first.encode(_binding(entity, version) + body)

    def check_earlier(self, what: str, entity: str, version: int) -> None:
        """Refuse a body that is not sealed as ours are, unless `EarlierBodies` is among the codecs."""
        if not self._reads_earlier:
            raise UsageError(
                f"the body of version {version} of {entity} is {what}, though a codec is set: another "
                "program may have put it there. If the log is older than its codec, or than this version, "
                "add oncemore.EarlierBodies() to codec=[…]"
            )

    def open(self, name: str, data: bytes) -> bytes:
        """Return what was sealed under a name."""
        codec = self._by_id.get(name)
        if codec is None:
            raise UsageError(
                f"a body is sealed with the key {name!r}, which is not here; open the store with a "
                f"codec of that id (there {_are(list(self._by_id))})"
            )
        try:
            return codec.decode(data)
        except Exception as fault:
            raise UsageError(
                f"the key {name!r} does not open a body that was sealed under that id: "
                f"{type(fault).__name__}; is it the right key?"
            ) from fault


def _are(ids: list[str]) -> str:
    return f"is {ids[0]}" if len(ids) == 1 else f"are {', '.join(ids)}"


def is_sealed(data: bytes) -> bool:
    """Whether a body is sealed."""
    return data[0] in (UNBOUND, BOUND)


def opened(data: bytes, seal: Seal | None, entity: str, version: int) -> bytes:
    """Return the plain bytes of the body of an entry; one that is sealed needs its key."""
    if not is_sealed(data):
        if seal is not None and data != EMPTY:
            seal.check_earlier("plain", entity, version)
        return data
    end = 2 + data[1]
    name = data[2:end].decode()
    if seal is None:
        raise UsageError(
            f"a body is sealed with the key {name!r}; open the store with it: oncemore.open(url, codec=…)"
        )
    if data[0] == UNBOUND:
        seal.check_earlier("sealed without its entry", entity, version)
        return seal.open(name, data[end:])
    plain, binding = seal.open(name, data[end:]), _binding(entity, version)
    if not plain.startswith(binding):
        raise StoreError(
            f"the body of version {version} of {entity} was sealed for another entry: it was swapped. Do not "
            "write to this store any more, and run `oncemore verify`"
        )
    return plain[len(binding) :]


def _binding(entity: str, version: int) -> bytes:
    """Return what binds a body to its entry; every part has its length, so that no two are alike."""
    name = entity.encode()
    return version.to_bytes(8, "big") + len(name).to_bytes(4, "big") + name


def _name(codec: Any) -> str:
    """Return a codec's id; what is no codec is refused."""
    name = getattr(codec, "id", None)
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise UsageError(f"codec is {type(codec).__name__}; it takes an object with id, encode and decode")
    if not isinstance(name, str) or not name.isascii() or not 1 <= len(name) <= LONGEST_ID:
        raise UsageError(f"the id of a codec is {name!r:.80}; it takes 1 to {LONGEST_ID} ASCII characters")
    return name
