"""Signatures of messages over HTTP: the symmetric scheme of Standard Webhooks 1.0.

    webhook-id         the id of the message, the same in every attempt
    webhook-timestamp  when this attempt was sent, in whole POSIX seconds
    webhook-signature  v1,BASE64 of HMAC-SHA256(key, id "." timestamp "." body), for each key, with spaces

A key is whsec_BASE64 of 24 to 64 random bytes. To change a key, sender and receiver have both keys for a
while: the sender signs with each, and the receiver takes a signature by any. A receiver refuses a timestamp
that is more than five minutes away, so that a recorded message cannot be sent again later; within that time
its id tells that it came before. Header fields other than these three are not signed.

Keys and tokens are never given as they are: an option names an environment variable or a file, which is read
at each use. So a key can be exchanged while a program runs, and none is in code, settings or the log.
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
TOLERANCE_S = 300
SHORTEST_KEY, LONGEST_KEY, SHORTEST_TOKEN = 24, 64, 16
#: How many signatures of one message are compared, and how many secrets one option may have.
MOST_SIGNATURES, MOST_SECRETS = 20, 10


class SecretSource:
    """Secrets by where they are: env:NAME or file:PATH, or several of these; never shown.

    option  what a message about them calls them
    decode  a function that makes bytes of one secret, and raises ValueError for one that cannot be used
    """

    def __init__(self, option: str, told: Any, decode: Callable[[str], bytes]) -> None:
        self._places = tuple(told) if isinstance(told, list | tuple) else (told,)
        self._option, self._decode = option, decode
        if not self._places or not all(map(_is_place, self._places)):
            raise UsageError(
                f"{option} takes env:NAME or file:PATH, or a list of these; a secret itself belongs neither "
                "into code nor into settings"
            )

    def __repr__(self) -> str:
        return f"<{self._option} from {', '.join(map(_show_place, self._places))}>"

    def read_all(self) -> list[bytes]:
        """Return the secrets, as they are now; refuse a place that has none, or one that cannot be used."""
        found = [(place, word) for place in self._places for word in self._read_place(place).split()]
        if not found or len(found) > MOST_SECRETS:
            raise UsageError(f"{self._option} has {len(found)} secrets; it takes 1 to {MOST_SECRETS}")
        return [self._decode_one(place, word) for place, word in found]

    def _read_place(self, place: Any) -> str:
        if isinstance(place, Secret):
            return str(place.reveal())
        kind, _, name = place.partition(":")
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

    def _decode_one(self, place: Any, word: str) -> bytes:
        try:
            return self._decode(word)
        except ValueError as fault:
            reason = str(fault) if type(fault) is ValueError else "it is not Base64"
            raise UsageError(f"{self._option}: {_show_place(place)} cannot be used: {reason}") from None


def _is_place(place: Any) -> bool:
    if isinstance(place, Secret):
        return True
    kind, _, name = place.partition(":") if isinstance(place, str) else ("", "", "")
    return kind in ("env", "file") and bool(name)


def _show_place(place: Any) -> str:
    return "a Secret" if isinstance(place, Secret) else str(place)


def decode_key(text: str) -> bytes:
    """Return the bytes of a signing key."""
    key = b64decode(text.removeprefix(KEY_PREFIX), validate=True)
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        raise ValueError(f"it has {len(key)} bytes; a key has {SHORTEST_KEY} to {LONGEST_KEY}")
    return key


def decode_token(text: str) -> bytes:
    """Return the bytes of a bearer token."""
    if len(text) < SHORTEST_TOKEN:
        raise ValueError(f"it has {len(text)} characters; a token has {SHORTEST_TOKEN} or more")
    return text.encode("utf-8", "surrogateescape")


def sign_message(keys: Sequence[bytes], ident: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the header fields that sign a message, with a signature for each key."""
    signatures = [f"{VERSION},{_compute_signature(key, ident, str(timestamp), body)}" for key in keys]
    return {ID: ident, TIMESTAMP: str(timestamp), SIGNATURE: " ".join(signatures)}


def find_signature_fault(
    keys: Sequence[bytes], ident: str, timestamp: str, signatures: str, body: bytes, now: float
) -> str:
    """Return why a message is not to be believed; empty if a signature by one of the keys is right."""
    if not (ident and timestamp and signatures):
        return f"{ID}, {TIMESTAMP} and {SIGNATURE} have to be there, once each"
    if "." in ident:  # it could be moved between the id and the rest of what is signed
        return f"{ID} has a dot"
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return f"{TIMESTAMP} is not a number of seconds"
    if abs(now - int(timestamp)) > TOLERANCE_S:
        return f"{TIMESTAMP} is more than {TOLERANCE_S} seconds away from the time here"
    right = [_compute_signature(key, ident, timestamp, body).encode() for key in keys]
    matches = 0
    for given in signatures.split()[:MOST_SIGNATURES]:
        version, _, value = given.partition(",")
        if version == VERSION:  # other versions are of other schemes
            # Each is compared with each, in constant time: the time taken tells nothing of a signature.
            matches += sum(hmac.compare_digest(one, value.encode()) for one in right)
    return "" if matches else "no signature fits"


def _compute_signature(key: bytes, ident: str, timestamp: str, body: bytes) -> str:
    content = b".".join((ident.encode(), timestamp.encode(), body))
    return b64encode(hmac.digest(key, content, "sha256")).decode()
