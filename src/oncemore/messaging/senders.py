"""Who may send messages over HTTP: whoever has the bearer token, or the key that messages are signed with.

What is given is demanded: with both, a request needs both. The token is checked before the body is read. A
signed message is known by its `webhook-id` and by no other field, because no other field is signed: the same
message under another `Idempotency-Key` would otherwise be done again.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from oncemore.http.problems import Problem
from oncemore.messaging.signature import (
    ID,
    SIGNATURE,
    TIMESTAMP,
    SecretSource,
    decode_key,
    decode_token,
    find_signature_fault,
)

if TYPE_CHECKING:
    from oncemore.http.stored_response import Scope

NOT_AUTHENTICATED = Problem(
    401, "not-authenticated", "The sender is not known", "Send the bearer token that this inbox asks for."
)
CHALLENGE = (b"www-authenticate", b'Bearer realm="inbox"')


class NotAuthenticated(Exception):
    """A request lacks the token or the signature that is demanded; the message says what is wrong."""


class SenderCheck:
    """What a request has to show."""

    def __init__(self, signing_key: Any, bearer_token: Any) -> None:
        self._keys = None if signing_key is None else SecretSource("signing_key", signing_key, decode_key)
        self._tokens = (
            None if bearer_token is None else SecretSource("bearer_token", bearer_token, decode_token)
        )
        for source in (self._keys, self._tokens):
            if source is not None:
                source.read_all()  # a mistake shows when the program starts, and not with the first request

    @property
    def signs(self) -> bool:
        """Whether a signature is demanded."""
        return self._keys is not None

    def check_token(self, scope: Scope) -> None:
        """Refuse a request without the token."""
        if self._tokens is None:
            return
        scheme, _, token = _find_field(scope, "authorization").partition(" ")
        given = token.strip().encode("latin-1")
        matches = sum(hmac.compare_digest(given, one) for one in self._tokens.read_all())
        if scheme.lower() != "bearer" or not matches:
            raise NotAuthenticated("")

    def check_signature(self, scope: Scope, body: bytes, now: float) -> str:
        """Return the id of a message that is signed; refuse one that is not."""
        if self._keys is None:
            return ""
        ident, timestamp, signatures = (_find_field(scope, name) for name in (ID, TIMESTAMP, SIGNATURE))
        fault = find_signature_fault(self._keys.read_all(), ident, timestamp, signatures, body, now)
        if fault:
            raise NotAuthenticated(f"The message is not signed as it should be: {fault}.")
        return ident


def _find_field(scope: Scope, name: str) -> str:
    """Return a header field; empty if it is not there, or there twice."""
    found = [value for field, value in scope["headers"] if field.lower() == name.encode()]
    return str(found[0].decode("latin-1")).strip() if len(found) == 1 else ""
