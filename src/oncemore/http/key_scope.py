"""The `Idempotency-Key` field: what a client sends, and what a server reads.

What is sent is made from the key of the step around the request, one way: the step's own key is internal
(IDEM-15), and whoever reads the field learns nothing of it. It is the same in every attempt and every run of
that work, and differs from request to request: one step may send several, and a server that is given one key
for two of them would answer the second with the first's answer. So the request's method, its address, and
which of those in the attempt it is are part of it. Its body is not: one that differs between two attempts
(a time in it, say) must meet the same key, so that the server refuses it instead of doing it twice.

On the wire it is a structured field, a quoted string (draft-ietf-httpapi-idempotency-key-header); some
servers want it bare. Both are read.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from weakref import WeakKeyDictionary

from oncemore.errors import UsageError
from oncemore.policy.canonical_json import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final, Literal

    from oncemore.steps.attempt import Attempt

    Style = Literal["quoted", "bare"]

FIELD: Final = "Idempotency-Key"
STYLES: Final = ("quoted", "bare")
LONGEST: Final = 255


def around() -> Attempt | None:
    """Return the attempt of the step around this line; where no step was ever made there is none."""
    loaded = sys.modules.get("oncemore.steps.attempt")
    return None if loaded is None else loaded.CURRENT.get()


def idempotency_key(*parts: str, style: Style = "quoted") -> str:
    """Return a value for `Idempotency-Key` that belongs to the step around this line and to these parts.

    It is the same in every attempt of the step. The parts tell several requests of one step apart, whatever
    order they are sent in: `idempotency_key("invoice", "line 3")`.

    style  "quoted" as the draft standard wants it, or "bare"
    """
    attempt = around()
    if attempt is None:
        raise UsageError(
            "idempotency_key() is for the inside of a function with @oncemore.step, which has a key; "
            "elsewhere make one yourself, and keep it where a repeat finds it"
        )
    if not all(isinstance(part, str) for part in parts):
        raise UsageError(f"idempotency_key() takes texts, and got {parts!r}")
    return written(_made(attempt.key, ["parts", *parts]), style)


def _made(key: str, about: Sequence[str]) -> str:
    """Return a UUID (version 8) from a step's key and what a request is about; nothing leads back."""
    digits = digest({"idempotency-key": key, "about": list(about)})
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:32]}"


def written(key: str, style: str) -> str:
    """Return a key as it goes over the wire."""
    return f'"{key}"' if style == "quoted" else key


# Which request of its step it is --------------------------------------------------------------------


class Place:
    """Which of a step's requests one is: kept while it is under way."""

    __slots__ = ("_attempt", "_what", "key")

    def __init__(self, attempt: Attempt, method: str, url: str) -> None:
        self._attempt, self._what = attempt, f"{method} {url}"
        with _lock:
            counts = _counts.setdefault(attempt, {})
            number, busy = counts.get(self._what, (0, False))
            if busy:
                raise UsageError(
                    f"{attempt.step} sends two requests of one method to one address at the same time, and "
                    "nobody can tell which is which when they are sent again; give each its own key: "
                    "headers={'Idempotency-Key': oncemore.http.idempotency_key('which one')}"
                )
            counts[self._what] = (number + 1, True)
        self.key = _made(attempt.key, ["request", self._what, str(number + 1)])

    def over(self) -> None:
        """Let the next one of its kind begin."""
        with _lock:
            number, _ = _counts[self._attempt][self._what]
            _counts[self._attempt][self._what] = (number, False)


_lock = allocate_lock()
_counts: WeakKeyDictionary[Attempt, dict[str, tuple[int, bool]]] = WeakKeyDictionary()


# Reading --------------------------------------------------------------------------------------------


def read(fields: Sequence[bytes]) -> str | None:
    """Return the key that a request's `Idempotency-Key` fields give, or None when there is none.

    Raises `ValueError` with a sentence for the client when they are malformed.
    """
    if not fields:
        return None
    if len(fields) > 1:
        raise ValueError("the request has more than one Idempotency-Key")
    text = fields[0].decode("latin-1").strip(" \t")
    if text.startswith('"'):
        text = _unquoted(text)
    elif '"' in text or "," in text or ";" in text or " " in text:
        raise ValueError('the Idempotency-Key is no string; write Idempotency-Key: "…"')
    if not 1 <= len(text) <= LONGEST:
        raise ValueError(f"the Idempotency-Key takes 1 to {LONGEST} characters")
    if not all(" " <= letter <= "~" for letter in text):
        raise ValueError("the Idempotency-Key takes printable ASCII only")
    return text


def _unquoted(text: str) -> str:
    """Return what a structured field's string says (RFC 9651 §3.3.3); parameters after it are ignored."""
    letters: list[str] = []
    at = 1
    while at < len(text):
        letter = text[at]
        if letter == '"':
            rest = text[at + 1 :].strip()
            if rest and not rest.startswith(";"):
                break
            return "".join(letters)
        if letter == "\\":
            at += 1
            letter = text[at : at + 1]
            if letter not in ('"', "\\"):
                break
        letters.append(letter)
        at += 1
    raise ValueError('the Idempotency-Key is no string; write Idempotency-Key: "…"')
