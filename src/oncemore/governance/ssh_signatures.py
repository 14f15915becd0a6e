"""SSH signatures (SSHSIG) over files, as `ssh-keygen -Y sign` makes and `ssh-keygen -Y verify` checks them.

A signature is an armoured text with the signer's public key, a namespace and the hash algorithm:

    blob    "SSHSIG" ‖ version 1 ‖ public key ‖ namespace ‖ reserved ‖ hash name ‖ signature
    signed  "SSHSIG" ‖ namespace ‖ reserved ‖ hash name ‖ hash of the file

Every part but the first two follows its length in four bytes. The namespace is signed: a signature that was
made for mail or for git is not valid for a policy. The key in the blob is only a claim until it is compared
with the trusted keys.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256, sha512
from typing import TYPE_CHECKING, NamedTuple

from oncemore.errors import UsageError
from oncemore.governance.keys import KEY_TYPE, SIGNATURE_BYTES, parse_wire_key

if TYPE_CHECKING:
    from oncemore.governance.keys import SigningKey, VerifyKey

MAX_SIGNATURE_TEXT = 16 * 1024
_MAGIC, _VERSION = b"SSHSIG", 1
_FIRST, _LAST = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_LINE_LENGTH = 70
#: The hash algorithms of the format; `ssh-keygen` uses SHA-512 unless it is asked for the other.
_HASHES = {b"sha512": sha512, b"sha256": sha256}


class SshSignature(NamedTuple):
    """A parsed signature: the claimed key, its namespace, and the parts that are needed to check it."""

    key: VerifyKey
    namespace: str
    hash_name: bytes
    signature: bytes

    def is_valid(self, data: bytes, namespace: str) -> bool:
        """Return whether the claimed key signed the data for a namespace."""
        signed = _signed_bytes(namespace, self.hash_name, data)
        return self.namespace == namespace and self.key.is_valid(self.signature, signed)


def sign_file_bytes(data: bytes, namespace: str, key: SigningKey) -> str:
    """Return the armoured signature of a key over the bytes of a file."""
    signature = _pack(KEY_TYPE.encode()) + _pack(key.sign_bytes(_signed_bytes(namespace, b"sha512", data)))
    blob = b"".join(
        (
            _MAGIC,
            _VERSION.to_bytes(4, "big"),
            _pack(key.public.wire_bytes),
            _pack(namespace.encode()),
            _pack(b""),
            _pack(b"sha512"),
            _pack(signature),
        )
    )
    text = b64encode(blob).decode()
    lines = [text[at : at + _LINE_LENGTH] for at in range(0, len(text), _LINE_LENGTH)]
    return "\n".join((_FIRST, *lines, _LAST, ""))


def parse_ssh_signature(text: bytes, where: str) -> SshSignature:
    """Return the signature in an armoured text; `UsageError` names `where` and the fault."""
    reader = _BlobReader(_decode_armour(text, where), where)
    reader.read_exactly(_MAGIC, "it does not begin with SSHSIG")
    reader.read_exactly(_VERSION.to_bytes(4, "big"), "its version is not 1")
    key = parse_wire_key(reader.read_text(), f"the key in {where}")
    namespace, reserved, hash_name = (reader.read_text() for _ in range(3))
    inner = _BlobReader(reader.read_text(), where)
    algorithm, signature = inner.read_text(), inner.read_text()
    # Unread bytes would let one signature have many forms.
    if reader.rest or inner.rest or reserved:
        raise UsageError(f"{where} is not an SSH signature: it has unknown parts")
    if algorithm != KEY_TYPE.encode() or len(signature) != SIGNATURE_BYTES or hash_name not in _HASHES:
        raise UsageError(f"{where} is not an Ed25519 signature over SHA-512 or SHA-256")
    try:
        return SshSignature(key, namespace.decode(), hash_name, signature)
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not an SSH signature: its namespace is not text") from None


class _BlobReader:
    """Reads the parts of a blob, each after its length."""

    def __init__(self, data: bytes, where: str) -> None:
        self.rest, self._where = data, where

    def read_exactly(self, expected: bytes, fault: str) -> None:
        """Consume the expected bytes; `UsageError` with the fault if there are other bytes."""
        if not self.rest.startswith(expected):
            raise UsageError(f"{self._where} is not an SSH signature: {fault}")
        self.rest = self.rest[len(expected) :]

    def read_text(self) -> bytes:
        """Return the next part."""
        # A length beyond the end must be refused, because a slice would only be shorter.
        length = int.from_bytes(self.rest[:4], "big")
        if len(self.rest) < 4 + length:
            raise UsageError(f"{self._where} is not an SSH signature: it is cut off")
        part, self.rest = self.rest[4 : 4 + length], self.rest[4 + length :]
        return part


def _decode_armour(text: bytes, where: str) -> bytes:
    try:
        lines = text[: MAX_SIGNATURE_TEXT + 1].decode("ascii").strip().splitlines()
    except UnicodeDecodeError:
        lines = []
    if len(text) > MAX_SIGNATURE_TEXT or len(lines) < 3 or (lines[0], lines[-1]) != (_FIRST, _LAST):
        raise UsageError(f"{where} is not an SSH signature: it takes one text from '{_FIRST}' to '{_LAST}'")
    body = "".join(lines[1:-1])
    try:
        data = b64decode(body, validate=True)
    except ValueError:
        raise UsageError(f"{where} is not an SSH signature: its base64 is damaged") from None
    if b64encode(data).decode() != body:
        raise UsageError(f"{where} is not an SSH signature: its base64 is not in its canonical form")
    return data


def _signed_bytes(namespace: str, hash_name: bytes, data: bytes) -> bytes:
    digest = _HASHES[hash_name](data).digest()
    return _MAGIC + _pack(namespace.encode()) + _pack(b"") + _pack(hash_name) + _pack(digest)


def _pack(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
