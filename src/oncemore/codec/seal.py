"""SEAL: bodies that only who has the key can read.

A codec is an object with an `id`, `encode(bytes) -> bytes` and `decode(bytes) -> bytes`: most often a cipher.
Bodies (arguments, results, errors, checkpoints, events) are stored as it encodes them, and the hashes of the
log are made over that: `verify` needs no key. What is stored says by which codec, so that keys can be
changed:

    stored  =  0x00 ‖ length of the id ‖ id ‖ what encode() returned

The first byte tells it from a plain body, which is a JSON object. Headers and heads are never sealed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from oncemore.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

SEALED = 0
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
        name = _name(self._first).encode()
        self._mark = bytes((SEALED, len(name))) + name

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """All codecs, the one that writes first."""
        return tuple(self._by_id.values())

    def close(self, body: bytes) -> bytes:
        """Return a body as it is stored."""
        return self._mark + self._first.encode(body)

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


def opened(data: bytes, seal: Seal | None) -> bytes:
    """Return the plain bytes of a body; one that is sealed needs its key."""
    if data[0] != SEALED:
        return data
    end = 2 + data[1]
    name = data[2:end].decode()
    if seal is None:
        raise UsageError(
            f"a body is sealed with the key {name!r}; open the store with it: oncemore.open(url, codec=…)"
        )
    return seal.open(name, data[end:])


def _name(codec: Any) -> str:
    """Return a codec's id; what is no codec is refused."""
    name = getattr(codec, "id", None)
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise UsageError(f"codec is {type(codec).__name__}; it takes an object with id, encode and decode")
    if not isinstance(name, str) or not name.isascii() or not 1 <= len(name) <= LONGEST_ID:
        raise UsageError(f"the id of a codec is {name!r:.80}; it takes 1 to {LONGEST_ID} ASCII characters")
    return name
