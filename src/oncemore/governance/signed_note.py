"""Checkpoints as signed notes: the text, its signatures, and their checks.

A checkpoint is the text of C2SP "tlog-checkpoint", signed as a C2SP "signed-note":

    oncemore/5f0c…            origin: the name of the log, also the name of its keys
    1204                      the number of entries that it covers
    CsUYapGGPo4dkMgIAU…       the root of their Merkle tree, in base64
    time 1789456123           extension lines: when, the last `seq` that it covers, and
    seq 1310                  the size of the checkpoint before it
    previous 1180

    — oncemore/5f0c… 3XOAZl…  one line per signature: name, and base64 of key hash and Ed25519 signature

The key hash is the first four bytes of SHA-256(name ‖ newline ‖ 0x01 ‖ public key), so that a verifier needs
the public key alone. A signature of an unknown key is ignored; a wrong signature of a known key refuses the
whole note.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

from oncemore._values import Value
from oncemore.errors import LedgerMismatch
from oncemore.governance.merkle import HASH_SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oncemore.governance.keys import SigningKey, VerifyKey

ED25519 = b"\x01"
KEY_HASH_SIZE = 4
#: A note is a few hundred bytes; a larger text is not one.
MAX_NOTE_BYTES = 100_000
MAX_SIGNATURES = 64
#: A name is not empty and has no space and no plus sign; ours have no other odd characters either.
NAME_PATTERN = re.compile(r"[A-Za-z0-9._~:/@-]{1,200}")
_SIGNATURE_MARK = "— "
#: Larger than every log, so that a hostile size costs nothing.
_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}")


class Checkpoint(Value):
    """The statement of a checkpoint.

    origin    the name of the log
    size      the number of entries that it covers, in the order of the log
    root      the root of their Merkle tree
    at        when it was made, in POSIX seconds of the store's clock
    last_seq  the highest `seq` among them
    previous  the size of the checkpoint before it; 0 for the first
    """

    origin: str
    size: int
    root: bytes
    at: int = 0
    last_seq: int = 0
    previous: int = 0


class NoteSignature(Value):
    """One signature line of a note."""

    name: str
    key_hash: bytes
    signature: bytes


def format_checkpoint(checkpoint: Checkpoint) -> str:
    """Return the text of a checkpoint, without signatures; it ends with a newline."""
    if not NAME_PATTERN.fullmatch(checkpoint.origin):
        raise ValueError(f"{checkpoint.origin!r} is not an origin: letters, digits and . _ ~ : / @ -")
    return (
        f"{checkpoint.origin}\n{checkpoint.size}\n{b64encode(checkpoint.root).decode()}\n"
        f"time {checkpoint.at}\nseq {checkpoint.last_seq}\nprevious {checkpoint.previous}\n"
    )


def sign_checkpoint(checkpoint: Checkpoint, key: SigningKey) -> str:
    """Return a checkpoint as a note with one signature."""
    text = format_checkpoint(checkpoint)
    signed = compute_key_hash(checkpoint.origin, key.public) + key.sign_bytes(text.encode())
    return f"{text}\n{_SIGNATURE_MARK}{checkpoint.origin} {b64encode(signed).decode()}\n"


def compute_key_hash(name: str, key: VerifyKey) -> bytes:
    """Return the four bytes by which a signature line names its key."""
    return sha256(name.encode() + b"\n" + ED25519 + key.raw).digest()[:KEY_HASH_SIZE]


def format_vkey(name: str, key: VerifyKey) -> str:
    """Return a public key in the form that other verifiers of signed notes read."""
    return f"{name}+{compute_key_hash(name, key).hex()}+{b64encode(ED25519 + key.raw).decode()}"


def parse_note(note: str) -> tuple[Checkpoint, str, list[NoteSignature]]:
    """Return the checkpoint of a note, its signed text, and its signatures, none of them verified.

    Raise `LedgerMismatch` for a text that is not such a note.
    """
    # The last empty line ends the text: no line of a checkpoint is empty.
    text, separator, lines = note.rpartition("\n\n")
    if not separator or len(note.encode("utf-8", "replace")) > MAX_NOTE_BYTES or not note.endswith("\n"):
        raise LedgerMismatch("this is not a checkpoint: a text, an empty line and signature lines")
    text += "\n"
    signatures = [_parse_signature(line) for line in lines[:-1].split("\n")]
    if len(signatures) > MAX_SIGNATURES:
        raise LedgerMismatch(f"this is not a checkpoint: it has more than {MAX_SIGNATURES} signatures")
    return _parse_checkpoint(text), text, signatures


def verify_note(note: str, keys: Sequence[VerifyKey]) -> Checkpoint:
    """Return the checkpoint of a note that one of the keys has signed; else raise `LedgerMismatch`."""
    checkpoint, text, signatures = parse_note(note)
    is_signed = False
    for signature in signatures:
        # A key signs under the name of the log; under another name it would have another hash.
        if signature.name != checkpoint.origin:
            continue
        for key in keys:
            if signature.key_hash == compute_key_hash(signature.name, key):
                if not key.is_valid(signature.signature, text.encode()):
                    raise LedgerMismatch(
                        f"the checkpoint of size {checkpoint.size} was altered: the signature of the key "
                        f"{key.key_id} does not fit"
                    )
                is_signed = True
    if not is_signed:
        known = ", ".join(key.key_id for key in keys)
        raise LedgerMismatch(
            f"the checkpoint of size {checkpoint.size} is not signed by a known key ({known}); give the "
            "public key of the log, and earlier ones too if it was replaced"
        )
    return checkpoint


def is_signed_by(note: str, key: VerifyKey) -> bool:
    """Whether a note has a valid signature of this key."""
    try:
        verify_note(note, [key])
    except LedgerMismatch:
        return False
    return True


def _parse_signature(line: str) -> NoteSignature:
    mark, (name, _, data) = line[:2], line[2:].partition(" ")
    try:
        decoded = decode_base64(data)
    except ValueError:
        decoded = b""
    if mark != _SIGNATURE_MARK or not NAME_PATTERN.fullmatch(name) or len(decoded) <= KEY_HASH_SIZE:
        raise LedgerMismatch("this is not a checkpoint: a signature line is damaged")
    return NoteSignature(name, decoded[:KEY_HASH_SIZE], decoded[KEY_HASH_SIZE:])


def _parse_checkpoint(text: str) -> Checkpoint:
    origin, *rest = text.split("\n")[:-1]
    fields = dict(line.split(" ", 1) for line in rest[2:] if " " in line)
    # Exactly our own lines: a text that differs in any byte is not one of our checkpoints.
    try:
        checkpoint = Checkpoint(
            origin,
            _parse_number(rest[0]),
            decode_base64(rest[1]),
            *(_parse_number(fields[name]) for name in ("time", "seq", "previous")),
        )
        if len(checkpoint.root) == HASH_SIZE and format_checkpoint(checkpoint) == text:
            return checkpoint
    except (KeyError, IndexError, ValueError):
        pass
    raise LedgerMismatch("this is not a checkpoint of oncemore: its text has another form")


def _parse_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a number")
    return int(text)


def decode_base64(text: str) -> bytes:
    """Decode base64; raise `ValueError` for a text that is not the one form of its bytes.

    The last character of a text has bits that decoding ignores: evidence has no such freedom.
    """
    data = b64decode(text, validate=True)
    if b64encode(data).decode() != text:
        raise ValueError("the base64 is not in its usual form")
    return data
