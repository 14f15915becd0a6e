"""Encryption of bodies by the user's codecs.

A codec is an object with an `id`, `encode(bytes) -> bytes` and `decode(bytes) -> bytes`: usually a cipher.
Bodies (arguments, results, errors, checkpoints, events) are stored as it encodes them, and the hashes of the
log cover the encoded bytes, so `verify` needs no key. The stored bytes name their codec, so keys can be
changed:

    stored  =  0x01 ‖ length of the id ‖ id ‖ encode(binding ‖ body)
    binding =  version, 8 bytes ‖ length of the entity's name, 4 bytes ‖ name of the entity

The first byte distinguishes it from a plain body, because a plain body is a JSON object. The binding names
the entry of the body: a body that was moved to another entry is refused, provided that the codec
authenticates its input. With a codec, plain bodies are refused, because any program with write access to the
store could have written them; so are bodies that earlier versions encrypted without a binding (0x00).
`EarlierBodies` allows both. Headers and heads are never encrypted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from oncemore.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: First byte of an encrypted body: without and with a binding.
UNBOUND, BOUND = 0, 1
#: The body of an entry without content; it is never encrypted.
EMPTY = b"{}"
MAX_ID_LENGTH = 100


class Codec(Protocol):
    """A codec of the user: encodes bytes and decodes them again; its `id` usually names its key."""

    @property
    def id(self) -> str:
        """The name that is stored with the encoded bytes."""

    def encode(self, data: bytes, /) -> bytes:
        """Return the bytes to store."""

    def decode(self, data: bytes, /) -> bytes:
        """Return the original bytes, or raise."""


class EarlierBodies:
    """A codec that allows an engine to read bodies from before it had a codec.

    These are the plain bodies of a log that began without a codec, and bodies that earlier versions encrypted
    without a binding to their entry. Any program with write access to the store can forge or swap such
    bodies, so remove it from `codec=[…]` once none of them is left.
    """

    id = "earlier bodies"

    def encode(self, data: bytes, /) -> bytes:
        """Refuse: this codec only reads."""
        raise UsageError("EarlierBodies cannot write; name the codec that does before it")

    def decode(self, data: bytes, /) -> bytes:
        """Return plain bytes as they are."""
        return data


class BodyCipher:
    """The codecs of an engine: the first one encrypts, and each can decrypt."""

    def __init__(self, codecs: Codec | Sequence[Codec]) -> None:
        all_codecs: Any = codecs if isinstance(codecs, list | tuple) else (codecs,)
        if not all_codecs:
            raise UsageError("codec is empty; it takes a codec, or several, and the first one writes")
        self._by_id: dict[str, Codec] = {_codec_id(codec): codec for codec in all_codecs}
        if len(self._by_id) < len(all_codecs):
            raise UsageError("codec names one id twice; each codec needs its own id")
        self._first: Codec = all_codecs[0]
        if isinstance(self._first, EarlierBodies):
            raise UsageError(
                "codec begins with EarlierBodies, which only reads; name the one that writes first"
            )
        # Reading without a binding is a downgrade, so it needs an explicit permission.
        self._reads_earlier = any(isinstance(codec, EarlierBodies) for codec in all_codecs)
        name = _codec_id(self._first).encode()
        self._prefix = bytes((BOUND, len(name))) + name

    @property
    def all_codecs(self) -> tuple[Codec, ...]:
        """All codecs; the first one encrypts."""
        return tuple(self._by_id.values())

    def encrypt_body(self, body: bytes, entity: str, version: int) -> bytes:
        """Return the stored form of the body of an entry."""
        return self._prefix + self._first.encode(_binding(entity, version) + body)

    def check_earlier(self, condition: str, entity: str, version: int) -> None:
        """Refuse a body without encryption or binding, unless `EarlierBodies` is among the codecs."""
        if not self._reads_earlier:
            raise UsageError(
                f"the body of version {version} of {entity} is {condition}, though a codec is set: another "
                "program may have put it there. If the log is older than its codec, or than this version, "
                "add oncemore.EarlierBodies() to codec=[…]"
            )

    def decrypt_body(self, name: str, data: bytes) -> bytes:
        """Decrypt bytes with the codec of an id."""
        codec = self._by_id.get(name)
        if codec is None:
            raise UsageError(
                f"a body is encrypted with the key {name!r}, but no codec has that id; open the store "
                f"with such a codec (there {_format_ids(list(self._by_id))})"
            )
        try:
            return codec.decode(data)
        # A user's codec may raise anything, for example the InvalidToken of `cryptography`.
        except Exception as error:
            raise UsageError(
                f"the key {name!r} cannot decrypt a body that was encrypted under that id: "
                f"{type(error).__name__}; is it the right key?"
            ) from error


def _format_ids(ids: list[str]) -> str:
    return f"is {ids[0]}" if len(ids) == 1 else f"are {', '.join(ids)}"


def is_encrypted(data: bytes) -> bool:
    """Whether a body is encrypted."""
    return data[0] in (UNBOUND, BOUND)


def decrypt_bytes(data: bytes, cipher: BodyCipher | None, entity: str, version: int) -> bytes:
    """Return the plain bytes of the body of an entry; an encrypted body needs its cipher."""
    if not is_encrypted(data):
        if cipher is not None and data != EMPTY:
            cipher.check_earlier("plain", entity, version)
        return data
    end = 2 + data[1]
    name = data[2:end].decode()
    if cipher is None:
        raise UsageError(
            f"a body is encrypted with the key {name!r}; open the store with it: oncemore.open(url, codec=…)"
        )
    if data[0] == UNBOUND:
        cipher.check_earlier("encrypted without its entry", entity, version)
        return cipher.decrypt_body(name, data[end:])
    # The binding is inside of the encrypted bytes, so that only a holder of the key could change it.
    plain, binding = cipher.decrypt_body(name, data[end:]), _binding(entity, version)
    if not plain.startswith(binding):
        raise StoreError(
            f"the body of version {version} of {entity} was encrypted for another entry: it was swapped. Do "
            "not write to this store any more, and run `oncemore store verify`"
        )
    return plain[len(binding) :]


def _binding(entity: str, version: int) -> bytes:
    """Return the bytes that bind a body to its entry; with lengths, so that no two entries share them."""
    name = entity.encode()
    return version.to_bytes(8, "big") + len(name).to_bytes(4, "big") + name


def _codec_id(codec: Any) -> str:
    """Return the id of a codec; refuse an object that is not a codec."""
    name = getattr(codec, "id", None)
    if not callable(getattr(codec, "encode", None)) or not callable(getattr(codec, "decode", None)):
        raise UsageError(f"codec is {type(codec).__name__}; it takes an object with id, encode and decode")
    if not isinstance(name, str) or not name.isascii() or not 1 <= len(name) <= MAX_ID_LENGTH:
        raise UsageError(f"the id of a codec is {name!r:.80}; it takes 1 to {MAX_ID_LENGTH} ASCII characters")
    return name
