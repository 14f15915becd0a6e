"""Authenticates senders of messages over HTTP, by bearer token, by signature, or by both.

The token is checked before the body is read. The id of a signed message is its `webhook-id` alone, because no
other header field is signed: replayed under another `Idempotency-Key` the message would be processed again.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from oncemore.http.problems import ProblemType
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

NOT_AUTHENTICATED = ProblemType(
    401, "not-authenticated", "The sender is not known", "Send the bearer token that this inbox requires."
)
CHALLENGE = (b"www-authenticate", b'Bearer realm="inbox"')


class NotAuthenticated(Exception):
    """A request lacks the required token or signature; the text says what is wrong."""


class SenderCheck:
    """Checks requests for the required bearer token and signature."""

    def __init__(self, signing_key: Any, bearer_token: Any) -> None:
        self._keys = None if signing_key is None else SecretSource("signing_key", signing_key, decode_key)
        self._tokens = (
            None if bearer_token is None else SecretSource("bearer_token", bearer_token, decode_token)
        )
        for source in (self._keys, self._tokens):
            if source is not None:
                # A missing or bad secret stops the program at its start, not at the first request.
                source.read_all()

    @property
    def requires_signature(self) -> bool:
        """Whether a request must be signed."""
        return self._keys is not None

    def check_token(self, scope: Scope) -> None:
        """Raise `NotAuthenticated` for a request without the token."""
        if self._tokens is None:
            return
        scheme, _, token = _find_field(scope, "authorization").partition(" ")
        sent = token.strip().encode("latin-1")
        # Compared with all, in constant time: the duration reveals nothing about a token.
        matches = sum(hmac.compare_digest(sent, known) for known in self._tokens.read_all())
        if scheme.lower() != "bearer" or not matches:
            raise NotAuthenticated("")

    def check_signature(self, scope: Scope, body: bytes, now: float) -> str:
        """Return the id of a signed message; raise `NotAuthenticated` without a valid signature."""
        if self._keys is None:
            return ""
        message_id, timestamp, signatures = (_find_field(scope, name) for name in (ID, TIMESTAMP, SIGNATURE))
        fault = find_signature_fault(self._keys.read_all(), message_id, timestamp, signatures, body, now)
        if fault:
            raise NotAuthenticated(f"The signature of the message is not valid: {fault}.")
        return message_id


def _find_field(scope: Scope, name: str) -> str:
    """Return a header field, or an empty string if it is missing or repeated."""
    values = [value for field, value in scope["headers"] if field.lower() == name.encode()]
    # Two values are ambiguous: it is not known on which of them the sender relies.
    return str(values[0].decode("latin-1")).strip() if len(values) == 1 else ""
