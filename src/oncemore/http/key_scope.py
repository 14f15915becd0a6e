"""Derives, formats and parses the `Idempotency-Key` header field.

The value is a one-way digest of the surrounding step's key, which is internal (IDEM-15), and of the request's
method, URL and ordinal in the attempt. It is the same in every attempt. The body is not part of it: a request
whose body differs between two attempts must have the same key, so that the server refuses it. The field is a
quoted string (draft-ietf-httpapi-idempotency-key-header); the bare form of some servers is read, too.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from weakref import WeakKeyDictionary

from oncemore.errors import UsageError
from oncemore.policy.canonical_json import canonical_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final, Literal

    from oncemore.steps.attempt import Attempt

    Style = Literal["quoted", "bare"]

KEY_HEADER: Final = "Idempotency-Key"
KEY_STYLES: Final = ("quoted", "bare")
MAX_KEY_LENGTH: Final = 255


def current_attempt() -> Attempt | None:
    """Return the attempt of the surrounding step, or None outside of steps."""
    # Not imported: a program without steps must not load them for its HTTP client.
    module = sys.modules.get("oncemore.steps.attempt")
    return None if module is None else module.CURRENT.get()


def idempotency_key(*parts: str, style: Style = "quoted") -> str:
    """Return a value for `Idempotency-Key`, derived from the surrounding step's key and the parts.

    It is the same in every attempt of the step. The parts distinguish the requests of one step, in any order
    of sending: `idempotency_key("invoice", "line 3")`.

    style  "quoted" as in the draft standard, or "bare"
    """
    attempt = current_attempt()
    if attempt is None:
        raise UsageError(
            "idempotency_key() needs a surrounding @oncemore.step function, from whose key it is derived; "
            "elsewhere create a key yourself, and store it so that a retry sends the same one"
        )
    if not all(isinstance(part, str) for part in parts):
        raise UsageError(f"idempotency_key() takes strings, not {parts!r}")
    return format_key(_derive_uuid(attempt.key, ["parts", *parts]), style)


def _derive_uuid(key: str, about: Sequence[str]) -> str:
    """Return a UUID (version 8) that is a one-way digest of a step's key and a description of the request."""
    digits = canonical_digest({"idempotency-key": key, "about": list(about)})
    # RFC 9562 leaves the content of version 8 to the application, apart from version and variant.
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def format_key(key: str, style: str) -> str:
    """Return a key as a header field value."""
    return f'"{key}"' if style == "quoted" else key


# Requests of one step -------------------------------------------------------------------------------


class RequestSlot:
    """Numbers the requests of an attempt to one method and URL; occupied while a request is in flight."""

    __slots__ = ("_attempt", "_target", "key")

    def __init__(self, attempt: Attempt, method: str, url: str) -> None:
        self._attempt, self._target = attempt, f"{method} {url}"
        with _lock:
            counts = _counts.setdefault(attempt, {})
            number, is_busy = counts.get(self._target, (0, False))
            # Concurrent requests have no stable order, so the next attempt could swap their keys.
            if is_busy:
                raise UsageError(
                    f"{attempt.step} sends two requests with the same method and URL at the same time, and "
                    "their keys cannot be told apart in the next attempt; give each its own key: "
                    "headers={'Idempotency-Key': oncemore.http.idempotency_key('which one')}"
                )
            counts[self._target] = (number + 1, True)
        self.key = _derive_uuid(attempt.key, ["request", self._target, str(number + 1)])

    def release_slot(self) -> None:
        """Allow the next request to the same method and URL."""
        with _lock:
            number, _ = _counts[self._attempt][self._target]
            _counts[self._attempt][self._target] = (number, False)


_lock = allocate_lock()
# Weak keys: the numbers of an attempt are dropped with the attempt.
_counts: WeakKeyDictionary[Attempt, dict[str, tuple[int, bool]]] = WeakKeyDictionary()


# Reading --------------------------------------------------------------------------------------------


def parse_key(fields: Sequence[bytes]) -> str | None:
    """Return the key of a request's `Idempotency-Key` fields, or None without such a field.

    Raises `ValueError`, with a text for the client, for a malformed field.
    """
    if not fields:
        return None
    if len(fields) > 1:
        raise ValueError("the request has more than one Idempotency-Key")
    text = fields[0].decode("latin-1").strip(" \t")
    if text.startswith('"'):
        text = _unquote_string(text)
    elif '"' in text or "," in text or ";" in text or " " in text:
        raise ValueError('the Idempotency-Key is not a string; write Idempotency-Key: "…"')
    if not 1 <= len(text) <= MAX_KEY_LENGTH:
        raise ValueError(f"the Idempotency-Key takes 1 to {MAX_KEY_LENGTH} characters")
    if not all(" " <= char <= "~" for char in text):
        raise ValueError("the Idempotency-Key takes printable ASCII only")
    return text


def _unquote_string(text: str) -> str:
    """Return the value of a structured field's string (RFC 9651 §3.3.3); ignore parameters after it."""
    chars: list[str] = []
    position = 1
    while position < len(text):
        char = text[position]
        if char == '"':
            rest = text[position + 1 :].strip()
            if rest and not rest.startswith(";"):
                break
            return "".join(chars)
        if char == "\\":
            position += 1
            char = text[position : position + 1]
            if char not in ('"', "\\"):
                break
        chars.append(char)
        position += 1
    raise ValueError('the Idempotency-Key is not a string; write Idempotency-Key: "…"')
