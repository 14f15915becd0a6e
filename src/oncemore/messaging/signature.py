"""Signs and verifies messages over HTTP: the symmetric scheme of Standard Webhooks 1.0.

    webhook-id         the id of the message, the same in every attempt
    webhook-timestamp  when this attempt was sent, in whole POSIX seconds
    webhook-signature  v1,BASE64 of HMAC-SHA256(key, id "." timestamp "." body), one per key, space separated

To rotate a key, sender and receiver keep both for a while: the sender signs with each, the receiver accepts
any. Options name an environment variable or a file instead of the secret; it is read at each use, so that a
key can be replaced while the program runs, and none is in code, settings or the log.
"""

from __future__ import annotations

import hmac
import os
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oncemore._file_trust import read_file
from oncemore.errors import UsageError
from oncemore.steps.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
VERSION, KEY_PREFIX = "v1", "whsec_"
#: A recorded message cannot be replayed after this time; within it, the inbox recognises the id.
TOLERANCE_S = 300
MIN_KEY_BYTES, MAX_KEY_BYTES, MIN_TOKEN_LENGTH = 24, 64, 16
#: How many signatures of one message are compared, and how many secrets one option may have.
MAX_SIGNATURES, MAX_SECRETS = 20, 10


class SecretSource:
    """Reads secrets from env:NAME or file:PATH references, or a list of these; never shows them.

    option      the name of the option, for error messages
    references  one reference or several
    decode      converts one secret to bytes, and raises ValueError for an unusable one
    """

    def __init__(self, option: str, references: Any, decode: Callable[[str], bytes]) -> None:
        self._references = tuple(references) if isinstance(references, list | tuple) else (references,)
        self._option, self._decode = option, decode
        if not self._references or not all(map(_is_reference, self._references)):
            # The value is not shown: it may be the secret itself.
            raise UsageError(
                f"{option} takes env:NAME or file:PATH, or a list of these; do not put the secret itself "
                "into code or settings"
            )

    def __repr__(self) -> str:
        return f"<{self._option} from {', '.join(map(_show_reference, self._references))}>"

    def read_all(self) -> list[bytes]:
        """Return the current secrets; raise `UsageError` for a missing or unusable one."""
        # One variable or file may contain several secrets, separated by white space.
        secrets = [(ref, word) for ref in self._references for word in self._read_reference(ref).split()]
        if not secrets or len(secrets) > MAX_SECRETS:
            raise UsageError(f"{self._option} has {len(secrets)} secrets; it takes 1 to {MAX_SECRETS}")
        return [self._decode_secret(reference, word) for reference, word in secrets]

    def _read_reference(self, reference: Any) -> str:
        if isinstance(reference, Secret):
            return str(reference.reveal())
        kind, _, name = reference.partition(":")
        if kind == "env":
            text = os.environ.get(name, "")
            if not text.strip():
                raise UsageError(f"{self._option}: the environment variable {name} is not set")
            return text
        path = Path(name).expanduser()
        try:
            content, fault = read_file(path)
            text = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{self._option}: {path} cannot be read ({type(error).__name__})") from None
        if fault:
            raise UsageError(f"{self._option}: {path} is not used, because {fault}")
        if not text.strip():
            raise UsageError(f"{self._option}: {path} is empty")
        return text

    def _decode_secret(self, reference: Any, word: str) -> bytes:
        try:
            return self._decode(word)
        except ValueError as error:
            # The text of binascii.Error, a subclass, does not say that the value must be Base64.
            reason = str(error) if type(error) is ValueError else "it is not Base64"
            raise UsageError(
                f"{self._option}: {_show_reference(reference)} cannot be used: {reason}"
            ) from None


def _is_reference(value: Any) -> bool:
    if isinstance(value, Secret):
        return True
    kind, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    return kind in ("env", "file") and bool(name)


def _show_reference(reference: Any) -> str:
    return "a Secret" if isinstance(reference, Secret) else str(reference)


def decode_key(text: str) -> bytes:
    """Return the bytes of a signing key, whsec_BASE64 of 24 to 64 random bytes."""
    key = b64decode(text.removeprefix(KEY_PREFIX), validate=True)
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"it has {len(key)} bytes; a key has {MIN_KEY_BYTES} to {MAX_KEY_BYTES}")
    return key


def decode_token(text: str) -> bytes:
    """Return the bytes of a bearer token."""
    if len(text) < MIN_TOKEN_LENGTH:
        raise ValueError(f"it has {len(text)} characters; a token has {MIN_TOKEN_LENGTH} or more")
    return text.encode("utf-8", "surrogateescape")


def sign_message(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the header fields that sign a message, with one signature per key."""
    signatures = [f"{VERSION},{_compute_signature(key, message_id, str(timestamp), body)}" for key in keys]
    return {ID: message_id, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def find_signature_fault(
    keys: Sequence[bytes], message_id: str, timestamp: str, signatures: str, body: bytes, now: float
) -> str:
    """Return the reason why a message is not authentic; empty if one of the keys signed it."""
    if not (message_id and timestamp and signatures):
        return f"{ID}, {TIMESTAMP} and {SIGNATURE} are required, once each"
    # The dot separates the signed parts: with one in the id, two different messages have the same signature.
    if "." in message_id:
        return f"{ID} has a dot"
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return f"{TIMESTAMP} is not a number of seconds"
    if abs(now - int(timestamp)) > TOLERANCE_S:
        return f"{TIMESTAMP} differs by more than {TOLERANCE_S} seconds from the receiver's clock"
    expected = [_compute_signature(key, message_id, timestamp, body).encode() for key in keys]
    matches = 0
    for signature in signatures.split()[:MAX_SIGNATURES]:
        version, _, value = signature.partition(",")
        if version == VERSION:  # a sender may add signatures of newer schemes
            # All pairs, in constant time: the duration reveals nothing about a signature.
            matches += sum(hmac.compare_digest(known, value.encode()) for known in expected)
    return "" if matches else "no signature matches"


def _compute_signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    content = b".".join((message_id.encode(), timestamp.encode(), body))
    return b64encode(hmac.digest(key, content, "sha256")).decode()
